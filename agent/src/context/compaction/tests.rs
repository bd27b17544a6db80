//! Which messages stay together, and what is reduced.

use abide_definitions::profile::Profile;
use abide_models::ModelMessage;
use serde_json::{Value, json};

use super::groups;
use crate::context::entry::{SessionEntry, test_row};
use crate::context::transcript::reduced_messages;

/// Messages with the ids 1, 2, 3 …
fn entries(all: &[(&str, &str, Value)]) -> Vec<SessionEntry> {
    let rows = all.iter().zip(1..);
    let rows = rows.map(|((role, content, data), id)| test_row(id, role, content, Some(data)));
    rows.map(SessionEntry::from).collect()
}

fn calls(ids: &[&str], arguments: &str) -> Value {
    let calls = ids.iter().map(
        |id| json!({"call_id": id, "name": "read", "arguments": arguments, "provider_call_id": id}),
    );
    json!({"calls": calls.collect::<Vec<_>>(), "carry": {"secret": arguments}})
}

fn result(id: &str) -> Value {
    json!({"call_id": id, "provider_call_id": id, "name": "read"})
}

#[test]
fn tool_call_groups_stay_whole() {
    let all = entries(&[
        ("user", "Go.", json!({})),
        ("assistant", "", calls(&["a", "b"], "{}")),
        ("tool", "1", result("a")),
        ("supervisor", "Hurry.", json!({})),
        ("tool", "2", result("b")),
        ("user", "And?", json!({})),
        ("assistant", "So.", json!({})),
    ]);
    let found: Vec<(usize, usize, bool, bool)> = groups(&all, &[1])
        .iter()
        .map(|group| (group.start, group.end, group.answers, group.is_kept))
        .collect();
    assert_eq!(
        found,
        [(0, 1, false, true), (1, 5, true, false), (5, 6, false, false), (6, 7, true, false)]
    );
}

/// In the original, large arguments were never reclaimed.
#[test]
fn large_arguments_become_markers() {
    let text = json!({"text": "x".repeat(500)}).to_string();
    let all = entries(&[
        ("assistant", "", calls(&["a"], &text)),
        ("tool", "short", result("a")),
        ("assistant", "", calls(&["b"], &text)),
        ("tool", &"y".repeat(201), result("b")),
    ]);
    let through = |id: i64| -> Vec<String> {
        let settings = Profile::settings(None).context;
        let texts =
            reduced_messages(&all, id, &settings).into_iter().map(|message| match message {
                ModelMessage::Assistant { calls, carry, .. } => {
                    let carried = if carry.is_some() { " with data" } else { "" };
                    format!("{}{carried}", calls[0].arguments)
                }
                ModelMessage::Tool { call_id, content, .. } => format!("{call_id}: {content}"),
                other => format!("{other:?}"),
            });
        texts.collect()
    };
    let reduced = through(2);
    let marker = "SUMMARIZED executionId:'a' (511 characters: get_tool_response returns its input)";
    assert_eq!(reduced[0], json!({ "archived": marker }).to_string());
    assert_eq!(reduced[1], "a: short");
    assert_eq!(reduced[2], format!("{text} with data"), "it is after that id");
    let marker =
        "SUMMARIZED executionId:'b' (201 characters: get_tool_response returns its output)";
    assert_eq!(through(4)[3], format!("b: {marker}"));
}
