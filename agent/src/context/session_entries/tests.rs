//! Which messages the message of a rule removes.

use serde_json::{Value, json};

use super::*;
use crate::context::entry::test_row;

/// Messages of `role` and data, with their number as text; data is that of the driver of a run. The first id is `from`.
fn entries(from: i64, all: &[(&str, Option<Value>)]) -> Vec<SessionEntry> {
    let rows = all.iter().zip(from..);
    let rows = rows.map(|((role, data), id)| test_row(id, role, &id.to_string(), data.as_ref()));
    rows.map(SessionEntry::from).collect()
}

fn denied(entries: &SessionEntries) -> Vec<i64> {
    entries.iter().filter(|entry| entry.is_denied()).map(|entry| entry.id).collect()
}

fn denial() -> Option<Value> {
    Some(json!({"run_id": "r", "denies_request": true}))
}

fn answer() -> Option<Value> {
    Some(json!({"run_id": "r", "iteration": 1}))
}

/// The message of a user, and answers that others than a driver have written, lose their text wherever they are read.
#[test]
fn the_messages_since_the_answer_before_are_removed() {
    let mut all = SessionEntries::default();
    all.extend(entries(1, &[("user", None), ("assistant", answer()), ("user", None)]));
    all.extend(entries(4, &[("assistant", None), ("tool", None), ("assistant", denial())]));
    all.extend(entries(7, &[("user", None), ("assistant", answer())]));
    assert_eq!(denied(&all), [3, 4, 5]);
    let text = all[2].content.as_deref();
    assert_eq!(text, Some("[A rule has removed this message.]"));
}

/// Regression: after a compaction between a denied message and its denial, the task that the summary keeps counted as denied,
/// and the next summary did not keep it.
#[test]
fn kept_messages_are_not_removed() {
    let mut all = SessionEntries::with_kept(entries(1, &[("system", None), ("user", None)]));
    all.extend(entries(9, &[("assistant", denial()), ("user", None), ("assistant", denial())]));
    assert_eq!(denied(&all), [10]);
    all.retain(|id| id != 1 && id != 9);
    all.extend(entries(12, &[("user", None), ("assistant", denial())]));
    assert_eq!(denied(&all), [10, 12]);
}

/// An answer without a text of a model, such as one that a program of the caller has recorded for its own run, denies nothing.
#[test]
fn only_the_message_of_a_rule_denies() {
    let mut all = SessionEntries::default();
    let of_caller = Some(json!({"run_id": "r"}));
    all.extend(entries(1, &[("user", None), ("assistant", of_caller), ("user", None)]));
    all.extend(entries(4, &[("assistant", None)]));
    assert_eq!(denied(&all), [0_i64; 0]);
}
