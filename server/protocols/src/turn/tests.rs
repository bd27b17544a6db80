//! Items of a turn: pieces of answers, answers that start again, calls and approvals.

use expect_test::{Expect, expect};
use serde_json::json;

use super::*;

/// The items of turn 1 after these events, `kind data`, and the pieces that a reader got.
fn check(events: &[(&str, JsonValue)], expected: Expect) {
    let mut turn = Turn::new(1);
    let mut rendered = String::new();
    for (at, (kind, data)) in events.iter().enumerate() {
        let event = RunEvent {
            number: at as i64 + 1,
            turn: 1,
            kind: (*kind).to_owned(),
            data: data.clone(),
            created_at: 0,
        };
        for change in turn.add(&event) {
            rendered.push_str(&match change {
                Change::Started => String::new(),
                Change::Opened(at) => format!("+{at} "),
                Change::Text(at, text) => format!("{at}:{text:?} "),
                Change::Edited(at) => format!("~{at} "),
                Change::Closed(at) => format!("-{at} "),
                Change::CallsRun => "run ".to_owned(),
                Change::Waits => "waits ".to_owned(),
                Change::Continues => "continues ".to_owned(),
                Change::Ended => "end".to_owned(),
            });
        }
    }
    for item in &turn.items {
        let content = match &item.content {
            Content::Call(call) => {
                format!("Call({} {} {:?})", call.name, call.arguments, call.result_details())
            }
            Content::Approval(interrupt) => format!("Approval({})", interrupt.to_json()),
            text => format!("{text:?}"),
        };
        rendered.push_str(&format!("\n{:?} {content}", item.state));
    }
    expected.assert_eq(&rendered);
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
            +0 0:"Let me look." -0 +1 +2 -1 +3 -3 waits end
            Complete Message("Let me look.")
            Complete Call(look {"a":1} None)
            Open Call(look {"a":1} None)
            Complete Approval({"arguments":{"a":1},"callId":"c2","tool":"look"})"#]],
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
            Complete Call(look {} Some(Object {"callId": String("c1"), "exitCode": Number(1), "status": String("failed"), "tool": String("look")}))"#]],
    );
}

/// However an answer is cut into pieces and wherever it starts again, its text is the last attempt.
#[test]
fn every_restart_leaves_the_text_of_the_last_attempt() {
    let attempts = ["abcdef", "abc", "abxyz", "", "abcdefgh"];
    for (first, second) in attempts.iter().flat_map(|a| attempts.map(|b| (*a, b))) {
        for (size, cut) in (1..4).flat_map(|size| (0..=first.len()).map(move |cut| (size, cut))) {
            let pieces = |text: &str| -> Vec<(&'static str, JsonValue)> {
                let bytes = text.as_bytes().chunks(size);
                bytes.map(|piece| token(std::str::from_utf8(piece).expect("ASCII"))).collect()
            };
            let mut events = pieces(&first[..cut]);
            events.push(restart());
            events.extend(pieces(second));
            events.push(("usage", json!({})));
            events.push(done(second));
            let mut turn = Turn::new(1);
            let mut streamed: HashMap<usize, String> = HashMap::new();
            for (number, (kind, data)) in (1..).zip(events) {
                let kind = kind.to_owned();
                let event = RunEvent { number, turn: 1, kind, data, created_at: 0 };
                for change in turn.add(&event) {
                    if let Change::Text(at, text) = change {
                        streamed.entry(at).or_default().push_str(&text);
                    }
                }
            }
            let texts: String = turn.items.iter().map(Item::text).collect();
            assert_eq!(texts, second, "{first:?} cut at {cut}, in pieces of {size}");
            for (at, item) in turn.items.iter().enumerate() {
                if item.state != ItemState::Void {
                    assert_eq!(streamed.get(&at).map_or("", String::as_str), item.text());
                }
            }
        }
    }
}

/// A run that waits for a run that it has delegated asks for the approval of a call that is not its own.
#[test]
fn an_approval_of_a_delegated_run_has_its_call() {
    let request = json!({"tool_call_id": "child~1.1", "tool_name": "pay", "args": {},
        "status": "awaiting_approval", "run_id": "child"});
    let interrupt = json!({"reason": "delegation", "action_requests": [request]});
    check(
        &[("interrupt", interrupt.clone())],
        expect![[r#"
            +0 +1 -1 waits end
            Open Call(pay {} None)
            Complete Approval({"arguments":{},"callId":"child~1.1","tool":"pay"})"#]],
    );
    let mut turn = Turn::new(2);
    let result = json!({"tool_call_id": "child~1.1", "output": "paid", "exit_code": 0});
    let child = json!({"child": {"run_id": "child", "event": "tool_result", "data": result}});
    for (number, (of, kind, data)) in (1..).zip([(1, "interrupt", interrupt), (2, "status", child)])
    {
        let kind = kind.to_owned();
        turn.add(&RunEvent { number, turn: of, kind, data, created_at: 0 });
    }
    let Content::Call(call) = &turn.items[0].content else { panic!("{:?}", turn.items) };
    let output = call.outcome.as_ref().map(|outcome| outcome.output.as_str());
    assert_eq!((output, call.has_failed(), call.is_earlier), (Some("paid"), false, true));
}

/// The class is a decision of a person that a protocol does not show: the tool ran with `EDITED`, and each client showed the
/// arguments of the model. `~` is the change with which a client can show them. The call is also in the turn that asked.
#[test]
fn the_arguments_of_an_approver_replace_those_of_the_model() {
    let request = json!({"tool_call_id": "c1", "tool_name": "pay", "args": {"order": "A"},
        "status": "awaiting_approval", "approval_id": "ap1", "prompt": "Pay this?",
        "defaults": {"order": "B"}, "expires_at": 60_000_000});
    let interrupt = json!({"reason": "approval", "agent": "clerk", "session_id": "s1",
        "action_requests": [request]});
    let edited = json!({"order": "EDITED"});
    let events = [
        (1, "tool_call", json!({"id": "c1", "name": "pay", "args": {"order": "A"}})),
        (1, "interrupt", interrupt),
        (
            2,
            "status",
            json!({"status": "tool_approval", "tool_call_id": "c1", "tool_name": "pay",
            "decision": "approved", "approved_args": edited}),
        ),
        (
            2,
            "tool_result",
            json!({"tool_call_id": "c1", "output": "paid", "exit_code": 0,
            "status": "succeeded", "approved_args": edited}),
        ),
    ];
    let mut turns = [Turn::span(1, 2), Turn::new(2)];
    for (number, (of, kind, data)) in (1..).zip(events) {
        let kind = kind.to_owned();
        let event = RunEvent { number, turn: of, kind, data, created_at: 0 };
        let changes = turns.each_mut().map(|turn| turn.add(&event));
        if number == 3 {
            assert_eq!(changes[0].last(), Some(&Change::Edited(0)));
            assert_eq!(changes[1][1..], [Change::Opened(0), Change::Edited(0)]);
        }
    }
    for turn in &turns {
        let Content::Call(call) = &turn.items[0].content else { panic!("{:?}", turn.items) };
        assert_eq!(
            call.result_details(),
            Some(json!({"callId": "c1", "tool": "pay", "status": "succeeded", "exitCode": 0,
                "arguments": {"order": "EDITED"}}))
        );
    }
    let Content::Approval(interrupt) = &turns[0].items[1].content else { panic!("no approval") };
    expect![[r#"{"agent":"clerk","approvalId":"ap1","arguments":{"order":"A"},"callId":"c1","defaults":{"order":"B"},"expiresAt":"1970-01-01T00:01:00Z","prompt":"Pay this?","sessionId":"s1","tool":"pay"}"#]]
    .assert_eq(&interrupt.to_json().to_string());
    expect![[
        r#"Pay this? May clerk call pay with {"order":"A"}? Suggested values: {"order":"B"}."#
    ]]
    .assert_eq(&interrupt.description());
}

/// The program of a call that was approved in turn 1 was killed in turn 2, and its outcome is unknown.
pub(crate) fn events_of_a_decided_approval() -> [RunEvent; 3] {
    let event = |number: i64, turn: i64, kind: &str, data: JsonValue| {
        let kind = kind.to_owned();
        RunEvent { number, turn, kind, data, created_at: 0 }
    };
    let wait = |reason: &str, status: &str| {
        let request = json!({"tool_call_id": "c1", "tool_name": "pay", "args": {},
            "status": status});
        json!({"reason": reason, "action_requests": [request]})
    };
    [
        event(1, 1, "tool_call", json!({"id": "c1", "name": "pay", "args": {}})),
        event(2, 1, "interrupt", wait("approval", "awaiting_approval")),
        event(3, 2, "interrupt", wait("settlement", "unknown")),
    ]
}

/// A client that loaded a chat again was asked again for an approval that was given.
#[test]
fn a_decided_approval_is_not_awaited() {
    let mut turn = Turn::span(1, 2);
    let awaited = events_of_a_decided_approval().map(|event| {
        turn.add(&event);
        turn.awaited_approvals().len()
    });
    assert_eq!(awaited, [0, 1, 0]);
    assert_eq!(turn.end, Some(TurnEnd::Waits("settlement".to_owned())));
}
