//! Irregular conversations.

use super::*;
use abide_client::{Micros, Seq};
use expect_test::{Expect, expect};

/// Each call as `tool(arguments) -> outcome`, and each message with the call that it answers.
fn check(messages: JsonValue, expected: Expect) {
    let line = json!({"id": "c", "messages": messages}).to_string();
    let recording = Recording::parse(&line).expect("it is a recording");
    let calls = recording.calls.iter().map(|call| {
        let id = call.id("s");
        let tool = &call.tool;
        let arguments = &call.arguments;
        let outcome = match &call.outcome {
            None => "nothing".to_owned(),
            Some(outcome) => {
                format!("{:?}{}", outcome.text, if outcome.failed { " failed" } else { "" })
            }
        };
        format!("{id} {tool}({arguments}) -> {outcome}\n")
    });
    let answers = recording.messages.iter().enumerate().filter_map(|(at, message)| {
        let call = &recording.calls[message.answers?];
        Some(format!("message {at} answers {}\n", call.id("s")))
    });
    expected.assert_eq(&calls.chain(answers).collect::<String>());
}

fn calls(ids: &[Option<&str>]) -> JsonValue {
    let calls = ids
        .iter()
        .enumerate()
        .map(|(n, id)| json!({"id": id, "name": "look", "arguments": n.to_string()}));
    json!({"role": "assistant", "content": null, "tool_calls": calls.collect::<Vec<_>>()})
}

fn result(id: Option<&str>, content: &str) -> JsonValue {
    json!({"role": "tool", "content": content, "tool_call_id": id})
}

#[test]
fn an_id_that_comes_twice_stands_for_two_calls() {
    check(
        json!([
            calls(&[Some("x")]),
            result(Some("x"), "one"),
            calls(&[Some("x")]),
            result(Some("x"), "two"),
        ]),
        expect![[r#"
            s/0/0 look(0) -> Some("one")
            s/2/0 look(0) -> Some("two")
            message 1 answers s/0/0
            message 3 answers s/2/0
        "#]],
    );
}

#[test]
fn an_unanswered_call_does_not_take_a_later_result() {
    check(
        json!([calls(&[Some("x")]), calls(&[Some("x")]), result(Some("x"), "two")]),
        expect![[r#"
            s/0/0 look(0) -> nothing
            s/1/0 look(0) -> Some("two")
            message 2 answers s/1/0
        "#]],
    );
}

#[test]
fn results_of_parallel_calls_pair_by_id_and_null_ones_by_place() {
    check(
        json!([
            calls(&[Some("a"), Some("b")]),
            result(Some("b"), "of b"),
            result(Some("a"), "of a"),
            calls(&[None, None]),
            result(None, "first"),
            result(None, "second"),
        ]),
        expect![[r#"
            s/0/0 look(0) -> Some("of a")
            s/0/1 look(1) -> Some("of b")
            s/3/0 look(0) -> Some("first")
            s/3/1 look(1) -> Some("second")
            message 1 answers s/0/1
            message 2 answers s/0/0
            message 4 answers s/3/0
            message 5 answers s/3/1
        "#]],
    );
}

#[test]
fn a_result_without_a_call_is_a_message_like_any_other() {
    check(
        json!([calls(&[Some("a")]), result(Some("z"), "of nothing")]),
        expect![[r#"
        s/0/0 look(0) -> nothing
    "#]],
    );
}

#[test]
fn arguments_that_are_no_json_are_text() {
    let call = |arguments: JsonValue| json!({"id": null, "name": "t", "arguments": arguments});
    check(
        json!([{"role": "assistant", "content": null, "tool_calls": [
            call(json!("{'id': 1}")), call(json!("{\"id\": 1}")), call(json!("")), call(json!("7")),
            call(json!({"already": "an object"})),
        ]}]),
        expect![[r#"
            s/0/0 t("{'id': 1}") -> nothing
            s/0/1 t({"id":1}) -> nothing
            s/0/2 t("") -> nothing
            s/0/3 t(7) -> nothing
            s/0/4 t({"already":"an object"}) -> nothing
        "#]],
    );
}

#[test]
fn an_error_is_a_result() {
    let mut failed = result(Some("a"), "no such order");
    failed["error"] = true.into();
    check(
        json!([calls(&[Some("a")]), failed]),
        expect![[r#"
        s/0/0 look(0) -> Some("no such order") failed
        message 1 answers s/0/0
    "#]],
    );
}

#[test]
fn all_that_was_recorded_of_a_message_is_kept() {
    let line = r#"{"id":"c","messages":[
        {"role":"user","content":"a\u0000b","timestamp":1.0},
        {"role":"odd one","content":[{"text":"in parts"}]},
        {"role":"assistant","content":null,"tool_calls":[{"id":null,"name":"t","arguments":"{ }"}]},
        {"role":"assistant"}]}"#;
    let recording = Recording::parse(line).expect("it is a recording");
    let kept = recording.messages.iter().map(|message| {
        let data = message.data.as_ref().map(ToString::to_string);
        format!("{} {:?} {}\n", message.role, message.content, data.unwrap_or_default())
    });
    expect![[r#"
        user Some("a\0b") {"timestamp":1.0}
        odd one None {"content":[{"text":"in parts"}]}
        assistant None {"tool_calls":[{"arguments":"{ }","id":null,"name":"t"}]}
        assistant None 
    "#]]
    .assert_eq(&kept.collect::<String>());
}

#[test]
fn a_row_holds_a_message_or_it_does_not() {
    let message = Message {
        role: "tool".to_owned(),
        content: Some("ok".to_owned()),
        data: Some(json!({"n": 1.0})),
        answers: None,
    };
    let row = |role: &str, content: Option<&str>, data: Option<JsonValue>| AgentState {
        id: 1,
        session_id: "s".to_owned(),
        role: role.to_owned(),
        kind: "message".to_owned(),
        content: content.map(str::to_owned),
        data: data.map(Json::from),
        created_at: Micros(0),
        seq: Seq(1),
        run_id: None,
    };
    let data = || Some(json!({"n": 1.0}));
    assert!(message.matches_row(&row("tool", Some("ok"), data())));
    assert!(!message.matches_row(&row("tool", Some("ok "), data())));
    assert!(!message.matches_row(&row("tool", None, data())));
    assert!(!message.matches_row(&row("tool", Some("ok"), Some(json!({"n": 1})))));
    assert!(!message.matches_row(&row("tool", Some("ok"), None)));
    assert!(!message.matches_row(&row("user", Some("ok"), data())));
}
