//! The next action of a run, from the rows that it has.

use abide_client::Seq;
use abide_client::rows::{Run, Session, ToolCall};
use expect_test::{Expect, expect};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{CurrentRows, NewRows, RunState};
use crate::context::entry::{SessionEntry, test_row};
use crate::context::summarized::SummarizedContext;
use crate::run::decide::{Action, CallStep};
use crate::run::step_batch::RecordedStep;

fn row<T: DeserializeOwned>(fields: Value, more: Value) -> T {
    let mut fields = fields;
    if let (Some(fields), Value::Object(more)) = (fields.as_object_mut(), more) {
        fields.extend(more);
    }
    serde_json::from_value(fields).expect("it is a row")
}

fn run(more: Value) -> Run {
    let fields = json!({"id": "r", "session_id": "s", "agent": "clerk", "revision": 1,
        "status": "running", "turn": 1, "iterations": 0, "tool_calls": 0, "input_tokens": 0,
        "output_tokens": 0, "usage_missing": 0, "events": 0, "created_at": 0, "updated_at": 0,
        "seq": 1});
    row(fields, more)
}

fn session(status: &str) -> Session {
    let fields = json!({"id": "s", "agent": "clerk", "scope": "{}", "metadata": "{}",
        "created_at": 0, "updated_at": 0, "seq": 1});
    row(fields, json!({"status": status}))
}

fn call(id: &str, status: &str, more: Value) -> ToolCall {
    let fields = json!({"call_id": id, "session_id": "s", "tool_name": "pay", "tool_version": 1,
        "arguments": "{}", "status": status, "attempt": 0, "created_at": 0, "created_seq": 1,
        "updated_at": 0, "seq": 1});
    row(fields, more)
}

/// A message, as a line of a script describes it: its author, and the calls of an answer or the call of a result.
fn entry(id: i64, line: &str) -> SessionEntry {
    let words: Vec<&str> = line.split(' ').collect();
    let (role, data) = match words.as_slice() {
        ["answer", calls @ ..] => {
            let calls: Vec<Value> = calls.iter().map(|id| json!({"call_id": id})).collect();
            ("assistant", Some(json!({"run_id": "r", "iteration": 1, "calls": calls})))
        }
        ["answer-past-limit", past_limit, call] => {
            let calls = [json!({"call_id": call})];
            let past_limit: i64 = past_limit.parse().expect("a number");
            let data = json!({"run_id": "r", "iteration": 1, "calls": calls,
                "past_limit": past_limit});
            ("assistant", Some(data))
        }
        ["answer-of-other-run", call] => {
            let calls = [json!({"call_id": call})];
            ("assistant", Some(json!({"run_id": "other", "iteration": 1, "calls": calls})))
        }
        ["result", call] => ("tool", Some(json!({"call_id": call, "run_id": "r"}))),
        [role] => (*role, None),
        _ => panic!("no message: {line}"),
    };
    SessionEntry::from(test_row(id, role, "text", data.as_ref()))
}

/// A state with these rows. A line is `session STATUS`, `call ID STATUS`, `later ID` for a call that waits for its next attempt,
/// `waits ID` for a call whose run waits for a decision, or a message.
fn state(script: &str) -> RunState {
    let mut state = RunState::claimed(run(json!({})));
    let mut status = "active";
    let mut new = Vec::new();
    let mut calls = Vec::new();
    let mut waiting = Vec::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["session", other] => status = other,
            ["call", id, status] => calls.push(call(id, status, json!({}))),
            ["later", id] => calls.push(call(id, "pending", json!({"retry_at": 1}))),
            ["waits", id] => {
                calls.push(call(id, "pending", json!({"attempt": 1})));
                waiting.push(run(json!({"id": "child", "session_id": id, "parent_id": "r"})));
            }
            _ => new.push(entry(1 + new.len() as i64, line)),
        }
    }
    let context = SummarizedContext::default();
    state.apply(NewRows::Context { context, kept: Vec::new() });
    let rows = CurrentRows {
        run: run(json!({})),
        session: session(status),
        pause: None,
        new,
        seq: Some(Seq(1)),
    };
    state.apply(NewRows::Current(Box::new(rows)));
    state.apply(NewRows::Calls(calls));
    state.waiting = waiting;
    state
}

fn shown(action: &Action) -> String {
    let ids = |calls: &[ToolCall]| {
        calls.iter().map(|call| call.call_id.as_str()).collect::<Vec<_>>().join(" ")
    };
    match action {
        Action::Suspend(reason) => format!("suspend {reason}"),
        Action::Ask => "ask".to_owned(),
        Action::Calls(CallStep::Request(missing)) => {
            let ids: Vec<&str> = missing.iter().map(|call| call.call_id.as_str()).collect();
            format!("request {}", ids.join(" "))
        }
        Action::Calls(CallStep::Run(calls)) => format!("run {}", ids(calls)),
        Action::Calls(CallStep::Await) => "await".to_owned(),
        Action::Calls(CallStep::Interrupt(calls)) => format!("interrupt {}", ids(calls)),
        Action::Calls(CallStep::Deliver(ended)) => {
            let ended = ended.iter().map(|(asked, row)| {
                assert_eq!(asked.call_id, row.call_id);
                format!("{}={}", row.call_id, row.status.as_str())
            });
            format!("deliver {}", ended.collect::<Vec<_>>().join(" "))
        }
        Action::Finish(text) => format!("finish {text}"),
        Action::EndAtLimit(text) => format!("end at limit {text}"),
    }
}

#[track_caller]
fn check(script: &str, expected: Expect) {
    expected.assert_eq(&shown(&state(script).decide()));
}

#[test]
fn a_message_is_answered_once() {
    check("", expect!["ask"]);
    check("user", expect!["ask"]);
    check("user\nanswer", expect!["finish text"]);
    check("user\nanswer\nuser", expect!["ask"]);
    check("user\nanswer\nsystem", expect!["ask"]);
    check("user\nanswer-of-other-run a\ncall a pending", expect!["ask"]);
}

#[test]
fn calls_are_requested_run_and_delivered() {
    check("user\nanswer a b", expect!["request a b"]);
    check("user\nanswer a b\ncall a pending", expect!["request b"]);
    check("user\nanswer a b\ncall a pending\ncall b pending", expect!["run a b"]);
    check("user\nanswer a b\ncall a succeeded\ncall b pending", expect!["run b"]);
    check("user\nanswer a b\ncall a claimed\ncall b succeeded", expect!["await"]);
    check("user\nanswer a\nlater a", expect!["await"]);
    let ended = "user\nanswer a b\ncall a failed\ncall b succeeded";
    check(ended, expect!["deliver a=failed b=succeeded"]);
    check("user\nanswer a b\nresult a\ncall a failed\ncall b pending", expect!["run b"]);
    check("user\nanswer a b\nresult a\nresult b", expect!["ask"]);
}

/// The decision comes before any effect.
#[test]
fn an_approval_halts_the_other_calls_of_an_answer() {
    check("user\nanswer a b\ncall a awaiting_approval\ncall b pending", expect!["interrupt a"]);
    check("user\nanswer a b\ncall a awaiting_approval\nlater b", expect!["interrupt a"]);
    check("user\nanswer a b\ncall a awaiting_approval\ncall b claimed", expect!["await"]);
    check("user\nanswer a b\ncall a succeeded\ncall b unknown", expect!["interrupt b"]);
}

#[test]
fn a_call_waits_for_the_run_that_it_has_started() {
    check("user\nanswer a\nwaits a", expect!["interrupt a"]);
    check("user\nanswer a b\nwaits a\ncall b pending", expect!["run b"]);
    check("user\nanswer a b\nwaits a\ncall b claimed", expect!["await"]);
    check("user\nanswer a b\nwaits a\ncall b succeeded", expect!["interrupt a"]);
}

#[test]
fn a_suspended_session_suspends_the_run_whatever_its_calls_need() {
    check("session suspended\nuser\nanswer a\ncall a pending", expect!["suspend resume"]);
    check("session handed_off\nuser", expect!["suspend handoff"]);
}

#[test]
fn a_model_that_keeps_calling_past_the_limit_ends_its_run() {
    check("user\nanswer-past-limit 1 a\nresult a", expect!["ask"]);
    check("user\nanswer-past-limit 2 a\nresult a", expect!["end at limit text"]);
}

/// The state after a step whose condition held is that of reading the rows again.
#[test]
fn a_recorded_step_is_known_without_reading() {
    let step = |known_seq: Option<Seq>| {
        let mut state = state("user");
        assert!(!state.take_current(), "rows that were read are current until something is done");
        let step = RecordedStep {
            run: run(json!({"iterations": 1})),
            seq: Seq(2),
            known_seq,
            entries: vec![entry(2, "answer a")],
            calls: vec![call("a", "pending", json!({}))],
        };
        assert!(!state.apply(NewRows::Step(step)), "the same agent is active");
        state
    };
    let mut known = step(Some(Seq(2)));
    assert!(known.take_current());
    assert!(!known.take_current(), "something is done with each decision");
    assert_eq!(shown(&known.decide()), "run a");
    let mut unknown = step(None);
    assert!(!unknown.take_current(), "others have changed rows");
    assert_eq!(unknown.recorded_seq(), Seq(2));
    assert_eq!(unknown.newest_id(), 1, "the entry is read again");
}

#[test]
fn a_handoff_changes_the_active_agent() {
    let mut state = state("user\nanswer a");
    let handoff = |id: i64, agent: Option<&str>| {
        let data = json!({"call_id": "a", "run_id": "r",
            "handoff": {"run_id": "r", "agent": agent, "revision": 1, "iterations": 1}});
        let entry = SessionEntry::from(test_row(id, "tool", "text", Some(&data)));
        RecordedStep {
            run: run(json!({"iterations": 3})),
            seq: Seq(id),
            known_seq: Some(Seq(id)),
            entries: vec![entry],
            calls: Vec::new(),
        }
    };
    assert!(state.apply(NewRows::Step(handoff(3, Some("expert")))));
    assert_eq!(state.handoff().and_then(|it| it.agent.as_deref()), Some("expert"));
    assert_eq!(state.consumed().iterations, 2, "the limits of an agent apply from its handoff on");
    assert!(state.apply(NewRows::Step(handoff(4, None))));
    assert_eq!(state.handoff(), None);
    assert_eq!(state.consumed().iterations, 3);
}
