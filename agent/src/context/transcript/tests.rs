//! What a model reads of a session.

use serde_json::{Value, json};

use super::*;
use crate::context::entry::test_row;

/// The messages for entries of `role`, text, and data; data is that of the driver of a run.
fn read(all: &[(&str, &str, Option<Value>)]) -> Vec<String> {
    let rows = all.iter().zip(1..);
    let rows = rows.map(|((role, content, data), id)| test_row(id, role, content, data.as_ref()));
    let entries: Vec<SessionEntry> = rows.map(SessionEntry::from).collect();
    messages(&entries)
        .into_iter()
        .map(|message| match message {
            ModelMessage::System { text } => format!("system: {text}"),
            ModelMessage::User { text } => format!("user: {text}"),
            ModelMessage::Assistant { text, calls, .. } => {
                let ids: Vec<String> = calls.into_iter().map(|call| call.id).collect();
                format!("assistant: {text} {}", ids.join(" "))
            }
            ModelMessage::Tool { call_id, content, .. } => format!("tool {call_id}: {content}"),
        })
        .collect()
}

fn calls(ids: &[&str]) -> Option<Value> {
    let calls = ids.iter().map(|id| json!({"call_id": id, "provider_call_id": id, "name": "look"}));
    Some(json!({"run_id": "r", "iteration": 1, "calls": calls.collect::<Vec<_>>()}))
}

fn result(id: &str) -> Option<Value> {
    Some(json!({"call_id": id, "provider_call_id": id, "name": "look"}))
}

const ENDED: &str = NO_RESULT;

/// A message of a supervisor between an answer and its results gave each call a second result, which says that the call did
/// not run.
#[test]
fn a_message_before_the_results_follows_them() {
    let read = read(&[
        ("user", "Look.", None),
        ("assistant", "", calls(&["a", "b"])),
        ("tool", "1", result("a")),
        ("reviewer", "Hurry.", None),
        ("tool", "2", result("b")),
        ("user", "And?", None),
    ]);
    let expected = ["user: Look.", "assistant:  a b", "tool a: 1", "tool b: 2"];
    assert_eq!(read[..4], expected);
    assert_eq!(read[4..], ["user: [reviewer] Hurry.", "user: And?"]);
}

#[test]
fn a_call_without_a_result_has_a_placeholder() {
    let ended = format!("tool a: {ENDED}");
    let open = [("assistant", "", calls(&["a"])), ("user", "Again.", None)];
    assert_eq!(read(&open), ["assistant:  a", &ended, "user: Again."]);
    let answered = [&open[..], &[("assistant", "Yes.", calls(&[]))]].concat();
    assert_eq!(read(&answered), ["assistant:  a", &ended, "user: Again.", "assistant: Yes. "]);
}

/// Regression: a fork wrote the results of an aborted run behind a later answer, and the request had results without a call, which
/// providers refuse. The class: a second result of a call.
#[test]
fn a_result_behind_a_later_answer_is_no_second_result() {
    let read = read(&[
        ("assistant", "", calls(&["a"])),
        ("user", "Again.", None),
        ("assistant", "Yes.", calls(&[])),
        ("tool", "1", result("a")),
        ("user", "And?", None),
    ]);
    let ended = format!("tool a: {ENDED}");
    assert_eq!(read, ["assistant:  a", &ended, "user: Again.", "assistant: Yes. ", "user: And?"]);
}
