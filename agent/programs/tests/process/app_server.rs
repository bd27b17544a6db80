//! Codex's app server: what Abide sends, and what it makes of threads, turns, items and approvals.

use abide_programs::{CliConfig, Decision, Line, Program, ProgramEvent};
use expect_test::{Expect, expect};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::{echoed, fake, rendered, start, until};

const INITIALIZED: &str = r#"{"id":0,"result":{"userAgent":"codex"}}"#;
const OPENED: &str = r#"{"id":1,"result":{"thread":{"id":"t1"},"model":"m"}}"#;
const BEGUN: &str = r#"{"id":2,"result":{"turn":{"id":"u1","status":"inProgress"}}}"#;
const COMMAND: &str = r#"
{"method":"item/started","params":{"threadId":"t1","item":{"type":"commandExecution","id":"c1","command":"ls","cwd":"/x","status":"inProgress"}}}"#;
const ASKS: &str = r#"
{"id":7,"method":"item/commandExecution/requestApproval","params":{"threadId":"t1","turnId":"u1","itemId":"c1","reason":"why not"}}"#;
const USED: &str = r#"
{"method":"thread/tokenUsage/updated","params":{"threadId":"t1","turnId":"u1","tokenUsage":{"total":{"inputTokens":110,"outputTokens":25},"last":{"inputTokens":10,"outputTokens":5}}}}"#;
const SAYS: &str = r#"
{"method":"item/completed","params":{"threadId":"t1","item":{"type":"agentMessage","id":"m1","text":"It is 42."}}}"#;
const ENDED: &str = r#"
{"method":"turn/completed","params":{"threadId":"t1","turn":{"id":"u1","status":"completed","items":[]}}}"#;

/// A server that starts a turn and executes the steps. It echoes the lines that it gets.
fn codex(steps: &[&str]) -> CliConfig {
    let opening = [
        "echo-line",
        "line",
        INITIALIZED,
        "echo-line",
        "echo-line",
        "line",
        OPENED,
        "echo-line",
        "line",
        BEGUN,
    ];
    let steps = [&opening, steps].concat();
    CliConfig { program: Some(Program::CodexAppServer), ..fake(&steps) }
}

#[tokio::test]
async fn a_turn_is_a_handshake_a_thread_and_its_items() {
    let delta = r#"
{"method":"item/agentMessage/delta","params":{"threadId":"t1","itemId":"m1","delta":"It is "}}"#;
    let other = SAYS.replace("t1", "t2").replace("42", "41");
    let done = r#"
{"method":"item/completed","params":{"threadId":"t1","item":{"type":"commandExecution","id":"c1","command":"ls","status":"completed","aggregatedOutput":"a b","exitCode":0}}}"#;
    let steps = [
        "line", COMMAND, "line", done, "line", delta, "line", &other, "line", SAYS, "line", USED,
        "line", ENDED, "echo",
    ];
    let rendered = rendered(start(codex(&steps))).await;
    let events = rendered.lines().filter(|line| !line.starts_with(r#"{"echo""#));
    let events = events.map(|line| line.rsplit_once(" => ").map_or(line, |(_, events)| events));
    expect![[r#"
        status
        status, SessionId { id: "t1" }

        command_execution {"command":"ls","cwd":"/x"}
        ToolCallFinished { id: "c1", output: String("a b"), is_error: false, exit_code: Some(0), parent: None }
        says "It is "
        status
        says "42."
        Usage(Usage { input_tokens: Some(10), output_tokens: Some(5), cached_tokens: None, cache_write_tokens: None, reasoning_tokens: None, completeness: Partial })
        Usage(Usage { input_tokens: Some(10), output_tokens: Some(5), cached_tokens: None, cache_write_tokens: None, reasoning_tokens: None, completeness: Complete })
        final "It is 42.", exited with code 0
    "#]].assert_eq(&events.map(|line| format!("{line}\n")).collect::<String>());
    let lines: Vec<Line> = start(codex(&steps)).collect().await;
    let methods: Vec<Value> = echoed(&lines).iter().map(|it| it["method"].clone()).collect();
    assert_eq!(methods, ["initialize", "initialized", "thread/start", "turn/start"]);
}

/// A notification of our thread, as one line.
fn notification(method: &str, mut params: Value) -> String {
    if params["threadId"].is_null() {
        params["threadId"] = json!("t1");
    }
    json!({"method": method, "params": params}).to_string()
}

/// The events of a server with these lines after its turn has begun.
async fn check(lines: &[String], expected: Expect) {
    let steps: Vec<&str> = lines.iter().flat_map(|line| ["line", line.as_str()]).collect();
    let rendered = rendered(start(codex(&steps))).await;
    let lines = rendered.lines().filter(|line| !line.starts_with(r#"{"echo""#)).skip(2);
    let events = lines.map(|line| line.rsplit_once(" => ").map_or(line, |(_, events)| events));
    expected.assert_eq(&events.map(|line| format!("{line}\n")).collect::<String>());
}

/// The class: a message that comes twice. Regression: a second answer to `thread/start` began a second turn, and a second end
/// of an item repeated its text and its result.
#[tokio::test]
async fn repeated_messages_have_no_effect() {
    let opening = ["echo-line", "line", INITIALIZED, "line", INITIALIZED, "echo-line", "echo-line"];
    let then = ["line", OPENED, "line", OPENED, "echo-line", "line", BEGUN, "line", BEGUN];
    let done = COMMAND.replace("item/started", "item/completed");
    let turn = [
        "line", COMMAND, "line", &done, "line", &done, "line", COMMAND, "line", SAYS, "line", SAYS,
    ];
    let end = ["line", ENDED, "echo"];
    let steps = [&opening[..], &then, &turn, &end].concat();
    let config = CliConfig { program: Some(Program::CodexAppServer), ..fake(&steps) };
    let lines: Vec<Line> = start(config).collect().await;
    let methods: Vec<Value> = echoed(&lines).iter().map(|it| it["method"].clone()).collect();
    assert_eq!(methods, ["initialize", "initialized", "thread/start", "turn/start"]);
    let events = lines.iter().flat_map(|line| &line.events);
    let count = |is_it: fn(&&ProgramEvent) -> bool| events.clone().filter(is_it).count();
    let calls = count(|event| matches!(event, ProgramEvent::ToolCallStarted { .. }));
    let results = count(|event| matches!(event, ProgramEvent::ToolCallFinished { .. }));
    let texts = count(|event| matches!(event, ProgramEvent::AssistantDelta { .. }));
    assert_eq!((calls, results, texts), (1, 1, 1));
}

/// The class: parts that are assigned by their position, and empty texts that mean "absent".
#[tokio::test]
async fn pieces_belong_to_the_message_with_their_id() {
    let item = |method: &str, item: Value| notification(method, json!({"item": item}));
    let delta = |id: &str, delta: &str| {
        notification("item/agentMessage/delta", json!({"itemId": id, "delta": delta}))
    };
    let lines = [
        item("item/started", json!({"type": "agentMessage", "id": "m1", "text": ""})),
        delta("m1", "Let me "),
        item("item/started", json!({"type": "agentMessage", "id": "m2", "text": ""})),
        delta("m1", "see."),
        delta("", "It is "),
        item("item/completed", json!({"type": "agentMessage", "id": "m1", "text": "Let me see."})),
        notification("item/agentMessage/delta", json!({"threadId": "", "delta": "42."})),
        item(
            "item/completed",
            json!({"type": "agentMessage", "id": "m2", "text": "", "content": []}),
        ),
        item("item/completed", json!({"type": "agentMessage", "id": "m3", "text": ""})),
        // Of another turn.
        notification("turn/completed", json!({"turn": {"id": "u0", "status": "failed"}})),
        ENDED.to_owned(),
    ];
    check(
        &lines,
        expect![[r#"


        says "Let me "

        says "see."
        says "It is "

        says "42."


        status

        final "It is 42.", exited with code 0
    "#]],
    )
    .await;
}

/// The class: a lost part is counted as success. The pieces of a message that had not completed were the answer, or the message before
/// it was.
#[tokio::test]
async fn a_message_that_has_not_completed_is_no_answer() {
    let begun = json!({"item": {"type": "agentMessage", "id": "m2", "text": ""}});
    let piece = json!({"itemId": "m2", "delta": "It is "});
    let lines = [
        SAYS.trim().to_owned(),
        notification("item/started", begun),
        notification("item/agentMessage/delta", piece),
        ENDED.trim().to_owned(),
    ];
    let why = "bad_model_output: the turn completed before its last message did: a part of the answer may be missing";
    for lines in [&lines[..], &lines[1..], &lines[2..]] {
        let steps: Vec<&str> = lines.iter().flat_map(|line| ["line", line.as_str()]).collect();
        let rendered = rendered(start(codex(&steps))).await;
        let last = rendered.lines().last().expect("there is a last line");
        assert!(last.starts_with(&format!("· => {why}")), "{last}");
    }
}

/// The class: what was announced and arrives in the last message only.
#[tokio::test]
async fn items_of_the_last_message_count() {
    let items = json!([
        {"type": "mcpToolCall", "id": "c1", "server": "", "tool": "look", "arguments": "{", "result": "a", "error": ""},
        {"type": "agentMessage", "id": "m1", "content": [{"type": "Text", "text": "It is 42."}]}
    ]);
    let turn = json!({"id": "u1", "status": "completed", "error": {}, "items": items});
    check(&[notification("turn/completed", json!({"turn": turn}))], expect![[r#"

        look "{", ToolCallFinished { id: "c1", output: String("a"), is_error: false, exit_code: None, parent: None }, says "It is 42."
        final "It is 42.", exited with code 0
    "#]]).await;
}

/// The class: success although the program reports an error beside it.
#[tokio::test]
async fn an_error_beside_a_good_status_counts() {
    for (turn, expected) in [
        (
            json!({"id": "u1", "status": "completed", "error": {"message": "late"}}),
            expect![[r#"

                says "It is 42."

                runtime_crash: late, answer "It is 42."
            "#]],
        ),
        (
            json!({"id": "u1", "status": "completed", "error": "late"}),
            expect![[r#"

            says "It is 42."

            runtime_crash: late, answer "It is 42."
        "#]],
        ),
        (
            json!({"id": "u1", "status": ""}),
            expect![[r#"

            says "It is 42."

            runtime_crash: the turn failed, answer "It is 42."
        "#]],
        ),
    ] {
        let ended = notification("turn/completed", json!({"turn": turn}));
        check(&[SAYS.to_owned(), ended], expected).await;
    }
}

#[tokio::test]
async fn a_thread_is_continued() {
    let config = CliConfig {
        session: Some("t1".to_owned()),
        ..codex(&["line", SAYS, "line", ENDED, "echo"])
    };
    let lines: Vec<Line> = start(config).collect().await;
    let resume = &echoed(&lines)[2];
    let wanted = (&json!("thread/resume"), &json!("t1"));
    assert_eq!((&resume["method"], &resume["params"]["threadId"]), wanted);
}

/// The result of the server's approval request for a decision.
async fn decided(asks: &str, decision: Decision) -> Value {
    let steps = ["line", COMMAND, "line", asks, "echo-line", "line", SAYS, "line", ENDED, "echo"];
    let mut running = start(codex(&steps));
    let lines =
        until(&mut running, |event| matches!(event, ProgramEvent::ApprovalRequested { .. })).await;
    if asks == ASKS {
        let Some(ProgramEvent::ApprovalRequested { request_id, tool, input, call_id, details }) =
            lines.last().and_then(|line| line.events.first())
        else {
            panic!("{lines:?}")
        };
        assert_eq!((request_id.as_str(), tool.as_str()), ("7", "command_execution"));
        assert_eq!(input, &json!({"command": "ls", "cwd": "/x"}), "from the item that it is about");
        assert_eq!((call_id.as_deref(), details), (Some("c1"), &json!({"reason": "why not"})));
    }
    running.answer("7", decision).expect("the approval is pending");
    let lines: Vec<Line> = running.collect().await;
    echoed(&lines).remove(0)["result"].clone()
}

#[tokio::test]
async fn an_approval_is_for_one_action_only() {
    let allow = Decision::Allow { input: None };
    assert_eq!(decided(ASKS, allow.clone()).await, json!({"decision": "accept"}));
    let deny = |interrupt| Decision::Deny { message: "no".to_owned(), interrupt };
    assert_eq!(decided(ASKS, deny(false)).await, json!({"decision": "decline"}));
    assert_eq!(decided(ASKS, deny(true)).await, json!({"decision": "cancel"}));
    let other = Decision::Allow { input: Some(json!({"command": "rm"})) };
    assert_eq!(decided(ASKS, other).await, json!({"decision": "decline"}));
    let permissions = r#"
{"id":7,"method":"item/permissions/requestApproval","params":{"threadId":"t1","turnId":"u1","itemId":"p1","permissions":{"network":{"enabled":true}}}}"#;
    let granted = json!({"permissions": {"network": {"enabled": true}}, "scope": "turn"});
    assert_eq!(decided(permissions, allow).await, granted);
    let none = json!({"permissions": {}, "scope": "turn"});
    assert_eq!(decided(permissions, deny(false)).await, none);
}

/// The class: what a person approves is what the person saw. The request has no command of its own.
#[tokio::test]
async fn a_command_that_changes_while_its_approval_is_open_is_declined() {
    let other = COMMAND.replace(r#""command":"ls""#, r#""command":"rm -rf /""#);
    assert_ne!(other, COMMAND);
    let steps = ["line", COMMAND, "line", ASKS, "line", &other, "echo-line", "line", SAYS];
    let steps = [&steps[..], &["line", ENDED, "echo"]].concat();
    let mut running = start(codex(&steps));
    until(&mut running, |event| matches!(event, ProgramEvent::ApprovalWithdrawn { .. })).await;
    running.answer("7", Decision::Allow { input: None }).expect_err("it is not open");
    let lines: Vec<Line> = running.collect().await;
    assert_eq!(echoed(&lines)[0]["result"], json!({"decision": "decline"}));
}

/// Without an answer, the server would wait for ever.
#[tokio::test]
async fn other_requests_are_declined() {
    let asks = r#"{"id":8,"method":"mcpServer/elicitation/request","params":{"threadId":"t1"}}"#;
    let unknown = r#"{"id":9,"method":"item/tool/requestUserInput","params":{"threadId":"t1"}}"#;
    let steps = [
        "line",
        asks,
        "echo-line",
        "line",
        unknown,
        "echo-line",
        "line",
        SAYS,
        "line",
        ENDED,
        "echo",
    ];
    let lines: Vec<Line> = start(codex(&steps)).collect().await;
    let received = echoed(&lines);
    assert_eq!(received[4]["result"], json!({"action": "decline", "content": null}));
    assert_eq!(received[5]["error"]["code"], json!(-32601));
}

#[tokio::test]
async fn an_interrupt_denies_what_is_open_and_ends_the_turn() {
    let ended = ENDED.replace("completed\",\"items", "interrupted\",\"items");
    let steps = ["line", COMMAND, "line", ASKS, "echo-line", "echo-line", "line", &ended, "echo"];
    let mut running = start(codex(&steps));
    until(&mut running, |event| matches!(event, ProgramEvent::ApprovalRequested { .. })).await;
    running.interrupt();
    let lines: Vec<Line> = running.collect().await;
    let received = echoed(&lines);
    assert_eq!(received[0]["result"], json!({"decision": "cancel"}));
    let params = json!({"threadId": "t1", "turnId": "u1"});
    assert_eq!(
        (&received[1]["method"], &received[1]["params"]),
        (&json!("turn/interrupt"), &params)
    );
    let Some(ProgramEvent::Error(failure)) = lines.last().and_then(|line| line.events.last())
    else {
        panic!("{lines:?}")
    };
    assert_eq!(failure.kind.code(), "cancelled");
}

#[tokio::test]
async fn a_failed_turn_has_the_message_of_the_server() {
    let ended = r#"
{"method":"turn/completed","params":{"threadId":"t1","turn":{"id":"u1","status":"failed","error":{"message":"no model"}}}}"#;
    let rendered = rendered(start(codex(&["line", ended, "echo"]))).await;
    let last = rendered.lines().last().expect("there is a last line");
    assert_eq!(last, r#"· => runtime_crash: no model, answer """#);
}
