//! Items of a turn: pieces of answers, answers that start again, calls and approvals.

use expect_test::{Expect, expect};
use serde_json::json;

use super::*;

/// The items of turn 1 after these events, `kind data`, and the pieces that a reader got.
fn check(events: &[(&str, JsonValue)], expected: Expect) {
    let mut turn = Turn::new(1);
    let mut told = String::new();
    for (at, (kind, data)) in events.iter().enumerate() {
        let event = RunEvent {
            number: at as i64 + 1,
            turn: 1,
            kind: (*kind).to_owned(),
            data: data.clone(),
            created_at: 0,
        };
        for change in turn.add(&event) {
            told.push_str(&match change {
                Change::Started => String::new(),
                Change::Opened(at) => format!("+{at} "),
                Change::Text(at, text) => format!("{at}:{text:?} "),
                Change::Closed(at) => format!("-{at} "),
                Change::Ended => "end".to_owned(),
            });
        }
    }
    for item in &turn.items {
        told.push_str(&format!("\n{:?} {:?}", item.state, item.content));
    }
    expected.assert_eq(&told);
}

fn token(text: &str) -> (&'static str, JsonValue) {
    ("token", json!({"content": text}))
}

fn reasoning(text: &str) -> (&'static str, JsonValue) {
    ("reasoning", json!({"content": text}))
}

fn restart() -> (&'static str, JsonValue) {
    ("restart", json!({}))
}

fn done(text: &str) -> (&'static str, JsonValue) {
    ("done", json!({"assistant_data": {"content": text}}))
}

#[test]
fn an_answer_is_one_message() {
    check(
        &[token("It is "), token("there."), ("usage", json!({})), done("It is there.")],
        expect![[r#"
        +0 0:"It is " 0:"there." -0 end
        Complete Message("It is there.")"#]],
    );
}

/// A client that has shown a part of an answer gets only the rest after the server was killed.
#[test]
fn an_answer_that_starts_again_continues_if_it_is_the_same() {
    let events = [
        reasoning("Hm."),
        token("It is "),
        restart(),
        reasoning("H"),
        reasoning("m."),
        token("It"),
        token(" is there."),
        done("It is there."),
    ];
    check(
        &events,
        expect![[r#"
        +0 0:"Hm." -0 +1 1:"It is " 1:"there." -1 end
        Complete Reasoning("Hm.")
        Complete Message("It is there.")"#]],
    );
}

#[test]
fn an_answer_that_starts_again_and_differs_replaces_its_items() {
    let events =
        [token("It is "), restart(), token("It was"), token(" there."), done("It was there.")];
    check(
        &events,
        expect![[r#"
        +0 0:"It is " -0 +1 1:"It was" 1:" there." -1 end
        Void Message("It is ")
        Complete Message("It was there.")"#]],
    );
    let shorter = [token("It is there."), restart(), token("It is"), done("It is")];
    check(
        &shorter,
        expect![[r#"
        +0 0:"It is there." -0 +1 1:"It is" -1 end
        Void Message("It is there.")
        Complete Message("It is")"#]],
    );
}

#[test]
fn a_replaced_answer_is_void() {
    check(
        &[token("A secret."), done("This is withheld.")],
        expect![[r#"
        +0 0:"A secret." -0 +1 1:"This is withheld." -1 end
        Void Message("A secret.")
        Complete Message("This is withheld.")"#]],
    );
}

#[test]
fn calls_and_approvals_are_items() {
    let call = |id: &str| ("tool_call", json!({"id": id, "name": "look", "args": {"a": 1}}));
    let events = [
        token("Let me look."),
        call("c1"),
        call("c2"),
        ("tool_result", json!({"tool_call_id": "c1", "output": "it is there", "exit_code": 0})),
        (
            "interrupt",
            json!({"reason": "approval", "action_requests": [{"tool_call_id": "c2",
                "tool_name": "look", "args": {"a": 1}, "status": "awaiting_approval"}]}),
        ),
    ];
    check(
        &events,
        expect![[r#"
        +0 0:"Let me look." -0 +1 +2 -1 +3 -3 end
        Complete Message("Let me look.")
        Complete Call(CallItem { call_id: "c1", name: "look", arguments: Object {"a": Number(1)}, output: Some(("it is there", false)) })
        Open Call(CallItem { call_id: "c2", name: "look", arguments: Object {"a": Number(1)}, output: None })
        Complete Approval(CallItem { call_id: "c2", name: "look", arguments: Object {"a": Number(1)}, output: None })"#]],
    );
}

/// A run can end with the text of an answer whose calls were skipped.
#[test]
fn the_text_of_an_earlier_answer_is_not_repeated() {
    let events = [
        token("That is all."),
        ("tool_call", json!({"id": "c1", "name": "look", "args": {}})),
        ("tool_result", json!({"tool_call_id": "c1", "output": "skipped", "exit_code": 1})),
        done("That is all."),
    ];
    check(
        &events,
        expect![[r#"
        +0 0:"That is all." -0 +1 -1 end
        Complete Message("That is all.")
        Complete Call(CallItem { call_id: "c1", name: "look", arguments: Object {}, output: Some(("skipped", true)) })"#]],
    );
}
