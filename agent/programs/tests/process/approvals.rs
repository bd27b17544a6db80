//! Claude Code's control protocol in both directions, and interrupts with and without it.

use abide_programs::{
    CliConfig, Decision, DecisionError, InputFormat, Line, ProgramEvent, Prompt, run,
};
use expect_test::expect;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::{FINAL, echoed, end, fake, rendered, start, until};

const ASKS: &str = r#"
    {"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"t1","description":"lists"}}"#;

/// A fake program that reads the two opening lines of a conversation, and then executes the steps.
fn conversing(steps: &[&str]) -> CliConfig {
    let steps = [&["echo-line", "echo-line"], steps].concat();
    CliConfig { input_format: InputFormat::StreamJson, ..fake(&steps) }
}

fn asked(event: &ProgramEvent) -> bool {
    matches!(event, ProgramEvent::ApprovalRequested { .. })
}

#[tokio::test]
async fn a_conversation_opens_with_the_protocol_and_the_prompt() {
    let lines: Vec<Line> = run(
        conversing(&["line", FINAL, "echo"]),
        Prompt { system: Some("You count.".to_owned()), ..Prompt::user("6 × 7?") },
        None,
    )
    .collect()
    .await;
    let content = "System instructions:\nYou count.\n\nConversation:\nuser: 6 × 7?";
    let initialize = json!({"subtype": "initialize"});
    let message = json!({"role": "user", "content": content});
    let opening = [
        json!({"type": "control_request", "request_id": "initialize", "request": initialize}),
        json!({"type": "user", "message": message, "parent_tool_use_id": null,
               "session_id": "default"}),
    ];
    assert_eq!(echoed(&lines), opening);
    // The answer closes stdin, so the last echo, which reads to its end, completes.
    assert!(matches!(lines.last().map(|line| &line.events[..]), Some([ProgramEvent::Final(_)])));
}

/// The line that the program receives for a decision.
async fn decided(decision: Decision) -> Value {
    let mut running = start(conversing(&["line", ASKS, "echo-line", "line", FINAL, "echo"]));
    let lines = until(&mut running, asked).await;
    let events = &lines.last().expect("there is a request").events;
    assert_eq!(
        events[..],
        [ProgramEvent::ApprovalRequested {
            request_id: "r1".to_owned(),
            tool: "Bash".to_owned(),
            input: json!({"command": "ls"}),
            call_id: Some("t1".to_owned()),
            details: json!({"description": "lists"}),
        }]
    );
    running.answer("r1", decision.clone()).expect("the approval is pending");
    let again = running.answer("r1", decision);
    assert_eq!(again, Err(DecisionError::NotOpen("r1".to_owned())), "the first decision counts");
    let lines: Vec<Line> = running.collect().await;
    echoed(&lines).remove(0)
}

fn response(response: Value) -> Value {
    let response = json!({"subtype": "success", "request_id": "r1", "response": response});
    json!({"type": "control_response", "response": response})
}

#[tokio::test]
async fn an_approval_allows_the_call_unchanged() {
    let allowed = json!({"behavior": "allow", "updatedInput": {"command": "ls"}});
    assert_eq!(decided(Decision::Allow { input: None }).await, response(allowed));
}

#[tokio::test]
async fn an_approval_can_change_the_arguments() {
    let input = json!({"command": "ls -l"});
    let allowed = json!({"behavior": "allow", "updatedInput": input});
    assert_eq!(decided(Decision::Allow { input: Some(input) }).await, response(allowed));
}

#[tokio::test]
async fn denied_with_a_message() {
    let denied = json!({"behavior": "deny", "message": "not here", "interrupt": false});
    let message = "not here".to_owned();
    let decision = Decision::Deny { message, interrupt: false };
    assert_eq!(decided(decision).await, response(denied));
}

#[tokio::test]
async fn a_withdrawn_approval_is_no_longer_open() {
    let withdraws = r#"{"type":"control_cancel_request","request_id":"r1"}"#;
    let mut running = start(conversing(&["line", ASKS, "line", withdraws, "line", FINAL]));
    until(&mut running, |event| matches!(event, ProgramEvent::ApprovalWithdrawn { .. })).await;
    let late = running.answer("r1", Decision::Allow { input: None });
    assert_eq!(late, Err(DecisionError::NotOpen("r1".to_owned())));
}

/// Regression: a program used a request id twice. The approval of the first call was sent for the second one, and one of them stayed
/// open after the run. The class: an id that a program chooses names one request only.
#[tokio::test]
async fn a_request_id_that_is_used_again_is_refused() {
    let other = ASKS.replace(r#""command":"ls""#, r#""command":"rm -rf /""#);
    let mut running =
        start(conversing(&["line", ASKS, "line", &other, "echo-line", "line", FINAL]));
    let mut lines =
        until(&mut running, |event| matches!(event, ProgramEvent::ApprovalWithdrawn { .. })).await;
    let late = running.answer("r1", Decision::Allow { input: None });
    assert_eq!(late, Err(DecisionError::NotOpen("r1".to_owned())));
    lines.extend(running.collect::<Vec<Line>>().await);
    assert_eq!(lines.iter().flat_map(|line| &line.events).filter(|event| asked(event)).count(), 1);
    let refused = echoed(&lines).pop().expect("it is answered");
    let error = "this request id was used before";
    let refusal = json!({"subtype": "error", "request_id": "r1", "error": error});
    assert_eq!(refused, json!({"type": "control_response", "response": refusal}));
    // Also after the decision.
    let steps = ["line", ASKS, "echo-line", "line", &other, "echo-line", "line", FINAL];
    let mut running = start(conversing(&steps));
    until(&mut running, asked).await;
    running.answer("r1", Decision::Allow { input: None }).expect("it is pending");
    let lines: Vec<Line> = running.collect().await;
    assert_eq!(echoed(&lines).pop(), Some(refused));
    assert!(!lines.iter().flat_map(|line| &line.events).any(asked));
    // The same request again before the decision: one answer is for both.
    let steps = ["line", ASKS, "line", ASKS, "echo-line", "line", FINAL, "echo"];
    let mut running = start(conversing(&steps));
    until(&mut running, asked).await;
    let again = running.next().await.expect("the program goes on");
    assert_eq!((again.raw.is_some(), again.events), (true, vec![]));
    running.answer("r1", Decision::Allow { input: None }).expect("it is pending");
    let lines: Vec<Line> = running.collect().await;
    let allowed = json!({"behavior": "allow", "updatedInput": {"command": "ls"}});
    assert_eq!(echoed(&lines), [response(allowed)]);
}

/// Regression: the answer to a request with a number as its id had an empty id, so the program waited for ever.
#[tokio::test]
async fn an_answer_has_the_id_of_the_request_as_it_was_sent() {
    let numbered = ASKS.replace(r#""request_id":"r1""#, r#""request_id":7"#);
    let mut running = start(conversing(&["line", &numbered, "echo-line", "line", FINAL]));
    until(&mut running, asked).await;
    running.answer("7", Decision::Allow { input: None }).expect("it is pending");
    let lines: Vec<Line> = running.collect().await;
    assert_eq!(echoed(&lines)[0]["response"]["request_id"], json!(7));
    let withdraws = r#"{"type":"control_cancel_request","request_id":7}"#;
    let steps = ["line", &numbered, "line", withdraws, "line", FINAL];
    let mut running = start(conversing(&steps));
    until(&mut running, |event| matches!(event, ProgramEvent::ApprovalWithdrawn { .. })).await;
    // Nobody can answer a request without an id, so nobody is asked.
    let unnamed = ASKS.replace(r#""request_id":"r1","#, "");
    let running = start(conversing(&["line", &unnamed, "line", FINAL]));
    let lines: Vec<Line> = running.collect().await;
    assert!(!lines.iter().flat_map(|line| &line.events).any(asked));
}

#[tokio::test]
async fn undeliverable_decisions_are_errors() {
    let mut running = start(fake(&["line", ASKS, "line", FINAL]));
    until(&mut running, asked).await;
    let deaf = running.answer("r1", Decision::Allow { input: None });
    assert_eq!(deaf.expect_err("its input is text").code(), "input_closed");

    let mut running = start(conversing(&["line", ASKS, "exit", "1"]));
    until(&mut running, asked).await;
    let handle = running.handle();
    end(running).await;
    let late = handle.answer("r1", Decision::Allow { input: None });
    assert_eq!(late.expect_err("the run is over").code(), "run_over");
}

/// Without an answer, the program would wait forever.
#[tokio::test]
async fn other_control_requests_are_declined() {
    let asks = r#"{"type":"control_request","request_id":"h1","request":{"subtype":"hook"}}"#;
    let running = start(conversing(&["line", asks, "echo-line", "line", FINAL]));
    let lines: Vec<Line> = running.collect().await;
    let response = json!({
        "subtype": "error", "request_id": "h1", "error": "not supported by this client",
    });
    let declined = json!({"type": "control_response", "response": response});
    assert_eq!(echoed(&lines)[2], declined);
}

#[tokio::test]
async fn an_interrupt_uses_the_protocol_if_there_is_one() {
    let result = r#"{"type":"result","subtype":"error_during_execution","is_error":true}"#;
    let mut running = start(conversing(&["line", ASKS, "echo-line", "line", result]));
    until(&mut running, asked).await;
    running.interrupt();
    let lines: Vec<Line> = running.collect().await;
    let interrupt = json!({
        "type": "control_request", "request_id": "interrupt", "request": {"subtype": "interrupt"},
    });
    assert_eq!(echoed(&lines), [interrupt]);
    let ProgramEvent::Error(failure) = &lines.last().expect("the run ends").events[0] else {
        panic!("the run was interrupted")
    };
    assert_eq!(failure.kind.code(), "cancelled");
}

#[tokio::test]
async fn an_interrupt_is_sigint_without_a_protocol() {
    let mut running = start(fake(&["on-int", FINAL]));
    // Wait until the program handles the signal.
    until(&mut running, |event| matches!(event, ProgramEvent::Status { .. })).await;
    running.interrupt();
    expect![[r#"
        {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
        · => final "42", exited with code 0
    "#]]
    .assert_eq(&rendered(running).await);
}
