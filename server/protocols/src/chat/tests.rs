//! The parts of messages as a client of the AI SDK reads them: answers with approvals and other calls.

use std::collections::BTreeMap;

use super::*;
use crate::turn::RunEvent;
use crate::turn::tests::events_of_a_decided_approval;

/// The calls of the message of a client, by id, with the state of their parts.
#[derive(Debug, Default, PartialEq)]
struct Client {
    calls: BTreeMap<String, String>,
    order: Vec<String>,
    /// The calls of the last step.
    step: HashSet<String>,
    data: Vec<JsonValue>,
}

impl Client {
    fn read(&mut self, stream: &str) {
        for line in stream.lines().filter_map(|line| line.strip_prefix("data: {")) {
            let chunk: JsonValue = serde_json::from_str(&format!("{{{line}")).expect("JSON");
            let id = chunk["toolCallId"].as_str().unwrap_or_default().to_owned();
            let state = match chunk["type"].as_str().expect("a type") {
                "start-step" => {
                    self.step.clear();
                    continue;
                }
                "data-waiting" => {
                    self.data.push(chunk["data"].clone());
                    continue;
                }
                "tool-input-available" => "input".to_owned(),
                "tool-approval-request" => "requested".to_owned(),
                "tool-output-available" => format!("output {}", chunk["output"]),
                "tool-output-error" => format!("error {}", chunk["errorText"]),
                _ => continue,
            };
            if self.calls.insert(id.clone(), state.clone()).is_none() {
                assert_eq!(state, "input", "a part begins with its input");
                self.order.push(id.clone());
                self.step.insert(id);
            }
        }
    }

    /// Responds to all requests. Returns whether `lastAssistantMessageIsCompleteWithApprovalResponses` would be true.
    fn respond(&mut self) -> bool {
        for state in self.calls.values_mut().filter(|state| *state == "requested") {
            "responded".clone_into(state);
        }
        let states: Vec<&String> = self.step.iter().map(|id| &self.calls[id]).collect();
        states.iter().any(|state| *state == "responded")
            && states.iter().all(|state| *state != "input" && *state != "requested")
    }
}

/// The stream of these turns. `idle` is the number of the event after which nothing happens for a while.
fn stream(events: &[RunEvent], first: i64, last: i64, idle: Option<i64>) -> String {
    let mut turn = Turn::span(first, last);
    let mut encoder = ChatEncoder { run_id: "r1".to_owned(), ..ChatEncoder::default() };
    let mut text = String::new();
    for event in events {
        for change in turn.add(event) {
            encoder.encode(&turn, &change, &mut text);
        }
        if idle == Some(event.number) && encoder.holds() {
            encoder.release(&turn, &mut text);
        }
    }
    text
}

/// The events of a run, in order. Those of one commit have the same time.
#[derive(Default)]
struct Log {
    events: Vec<RunEvent>,
    commit: i64,
}

impl Log {
    fn commit(&mut self, turn: i64, events: impl IntoIterator<Item = (&'static str, JsonValue)>) {
        self.commit += 1;
        for (kind, data) in events {
            let number = self.events.len() as i64 + 1;
            let kind = kind.to_owned();
            self.events.push(RunEvent { number, turn, kind, data, created_at: self.commit });
        }
    }
}

fn requested(id: &str) -> (&'static str, JsonValue) {
    ("tool_call", json!({"id": id, "name": "pay", "args": {}}))
}

fn result(id: &str, output: &str, exit_code: i64) -> (&'static str, JsonValue) {
    ("tool_result", json!({"tool_call_id": id, "output": output, "exit_code": exit_code}))
}

fn interrupt(calls: &[String]) -> (&'static str, JsonValue) {
    let requests: Vec<JsonValue> = calls
        .iter()
        .map(|id| {
            json!({"tool_call_id": id, "tool_name": "pay", "args": {},
            "status": "awaiting_approval"})
        })
        .collect();
    ("interrupt", json!({"reason": "approval", "action_requests": requests}))
}

/// The page of `docs/ai-sdk.md` hung when an answer had a call with an approval and any other call: the other one was shown
/// without an output, and the client sends decisions only when every call has one. The class is a part whose call cannot end
/// before the client acts. `p` is a plain call, `a` one with an approval, `r` one that is rejected, and `w` one whose result,
/// an error, is recorded with its request.
#[test]
fn decisions_are_sent_for_every_mix_of_calls() {
    for mix in ["a", "pa", "ap", "aap", "pap", "apa", "rap", "prp", "ppar", "wa", "awp", "pwar"] {
        let calls: Vec<(char, String)> =
            mix.chars().enumerate().map(|(at, kind)| (kind, format!("c{at}"))).collect();
        let of = |kinds: &str| -> Vec<String> {
            let found = calls.iter().filter(|(kind, _)| kinds.contains(*kind));
            found.map(|(_, id)| id.clone()).collect()
        };
        let mut log = Log::default();
        let answer = calls.iter().flat_map(|(kind, id)| {
            let failed = (*kind == 'w').then(|| result(id, "wrong", 1));
            std::iter::once(requested(id)).chain(failed)
        });
        log.commit(1, answer);
        let answered = log.events.len() as i64;
        log.commit(1, [interrupt(&of("ar"))]);
        let waiting = log.events.len();
        for id in of("r") {
            log.commit(2, [result(&id, "rejected", 1)]);
        }
        // The last call ends first.
        for id in of("ap").iter().rev() {
            log.commit(2, [result(id, "done", 0)]);
        }
        log.commit(2, [("done", json!({"assistant_data": {"content": ""}}))]);

        for idle in [None, Some(answered)] {
            let mut client = Client::default();
            client.read(&stream(&log.events[..waiting], 1, 1, idle));
            if idle.is_none() {
                let shown: Vec<&String> = client.calls.keys().collect();
                assert_eq!(shown, of("arw").iter().collect::<Vec<_>>(), "{mix}");
            }
            assert!(client.respond(), "{mix}, idle {idle:?}: {client:?}");
            client.read(&stream(&log.events, 2, 2, None));
            let ended = |state: &String| state == r#"output "done""# || state.starts_with("error");
            assert!(client.calls.values().all(ended), "{mix}: {client:?}");
            if idle.is_none() {
                let mut reloaded = Client::default();
                reloaded.read(&stream(&log.events, 1, 2, None));
                assert_eq!(reloaded.calls, client.calls, "{mix}");
                let order = |client: &Client| -> Vec<String> {
                    client.order.iter().filter(|id| of("p").contains(id)).cloned().collect()
                };
                assert_eq!(order(&reloaded), order(&client), "{mix}");
            }
        }
    }
}

/// Calls that run are shown when the first of them ends, when their run says so, or after a while, in the same order.
#[test]
fn calls_without_an_approval_are_shown_while_they_run() {
    let mut log = Log::default();
    log.commit(1, [requested("c1"), requested("c2")]);
    let silent = stream(&log.events, 1, 1, None);
    assert!(!silent.contains("tool-input-available"), "{silent}");
    let idle = stream(&log.events, 1, 1, Some(2));
    assert_eq!(idle.matches("tool-input-available").count(), 2, "{idle}");
    log.commit(1, [result("c2", "done", 0)]);
    let ended = stream(&log.events, 1, 1, None);
    assert_eq!(ended, stream(&log.events, 1, 1, Some(2)));
    assert_eq!(ended.matches("tool-input-available").count(), 2, "{ended}");
}

/// A call that has started a run waits for an approval of that run: it has begun, so it is shown, and the client can
/// still send the decision.
#[test]
fn a_call_whose_delegated_run_asks_does_not_keep_the_decision_back() {
    let mut log = Log::default();
    log.commit(1, [requested("task")]);
    log.commit(1, [("status", json!({"child": {"event": "token", "data": {}}}))]);
    log.commit(1, [interrupt(&["child~1.1".to_owned()])]);
    let mut client = Client::default();
    client.read(&stream(&log.events, 1, 1, None));
    assert_eq!(client.order, ["task", "child~1.1"]);
    assert!(client.respond(), "{client:?}");
    let child =
        json!({"child": {"event": "tool_result", "data": result("child~1.1", "paid", 0).1}});
    log.commit(2, [("status", child)]);
    log.commit(2, [result("task", "all is paid", 0)]);
    client.read(&stream(&log.events, 2, 2, None));
    assert_eq!(client.calls["task"], r#"output "all is paid""#);
    assert_eq!(client.calls["child~1.1"], r#"output "paid""#);
}

/// The stream of a loaded chat requests an approval only while the run waits for it.
#[test]
fn a_decided_approval_is_not_requested_again() {
    for (last, requests) in [(1, 1), (2, 0)] {
        let text = stream(&events_of_a_decided_approval(), 1, last, None);
        assert_eq!(text.matches("tool-approval-request").count(), requests, "{text}");
    }
}
