//! Agents with the Agent Client Protocol: what Abide sends, what it makes of the answers, and agents with odd behaviour.

use abide_programs::{CliConfig, Decision, Line, Program, ProgramEvent, Prompt, run, spawn_paused};
use expect_test::{Expect, expect};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::{SOON, echoed, fake, rendered, start, until};

const INITIALIZED: &str = r#"
{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}"#;
const OPENED: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s1"}}"#;
const ENDED: &str = r#"
{"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn","usage":{"inputTokens":10,"outputTokens":5}}}"#;
const SAYS: &str = r#"
{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"It is 42."}}}}"#;
const ASKS: &str = r#"
{"jsonrpc":"2.0","id":"q1","method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"c1","kind":"execute","title":"ls","rawInput":{"command":"ls"}},"options":[{"optionId":"always","kind":"allow_always"},{"optionId":"yes","kind":"allow_once"},{"optionId":"no","kind":"reject_once"}]}}"#;

/// An agent that opens a session, gets the prompt, and executes the steps. It echoes the lines that it gets.
fn acp(steps: &[&str]) -> CliConfig {
    let opening = ["echo-line", "line", INITIALIZED, "echo-line", "line", OPENED, "echo-line"];
    let steps = [&opening, steps].concat();
    CliConfig { program: Some(Program::Acp), ..fake(&steps) }
}

/// The events of an agent with these steps after its prompt, without the echoes.
async fn check(steps: &[&str], expected: Expect) {
    let rendered = rendered(start(acp(steps))).await;
    let lines = rendered.lines().filter(|line| !line.starts_with(r#"{"echo""#)).skip(2);
    let events = lines.map(|line| line.rsplit_once(" => ").map_or(line, |(_, events)| events));
    expected.assert_eq(&events.map(|line| format!("{line}\n")).collect::<String>());
}

#[tokio::test]
async fn a_turn_is_three_requests() {
    let prompt = Prompt { system: Some("You count.".to_owned()), ..Prompt::user("6 × 7?") };
    let config = acp(&["line", SAYS, "line", ENDED, "echo"]);
    let folder = std::env::current_dir().expect("there is a folder").join("");
    let lines: Vec<Line> = run(config, prompt, None).collect().await;
    let mut requests = echoed(&lines);
    requests[0]["params"]["clientInfo"] = Value::Null;
    let capabilities =
        json!({"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false});
    let text = "System instructions:\nYou count.\n\nConversation:\nuser: 6 × 7?";
    let expected = [
        json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": null}}),
        json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {
            "cwd": folder, "mcpServers": []}}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {
            "sessionId": "s1", "prompt": [{"type": "text", "text": text}]}}),
    ];
    assert_eq!(requests, expected);
    let Some(ProgramEvent::Final(answer)) = lines.last().and_then(|line| line.events.last()) else {
        panic!("{lines:?}")
    };
    assert_eq!((answer.text.as_str(), answer.session_id.as_deref()), ("It is 42.", Some("s1")));
    assert_eq!(answer.usage.as_ref().and_then(|usage| usage.input_tokens), Some(10));
}

/// A caller that stores the session first decides when the program gets its prompt. Without that it gets none, even if it
/// is cancelled.
#[tokio::test]
async fn the_prompt_follows_when_the_session_is_stored() {
    let mut running =
        spawn_paused(acp(&["line", SAYS, "line", ENDED]), Prompt::user("6 × 7?"), None);
    running.open_session();
    let before = until(&mut running, |event| matches!(event, ProgramEvent::SessionId { .. })).await;
    running.send_prompt();
    let after: Vec<Line> = running.collect().await;
    let method = |lines: &[Line]| echoed(lines).last().map(|request| request["method"].clone());
    assert_eq!(method(&before), Some(json!("session/new")));
    assert_eq!(method(&after), Some(json!("session/prompt")));

    let opening = ["echo-line", "line", INITIALIZED, "echo-line", "line", OPENED];
    let steps = [&opening[..], &["on-term", "bye", "echo"]].concat();
    let config = CliConfig { program: Some(Program::Acp), ..fake(&steps) };
    let mut running = spawn_paused(config, Prompt::user("6 × 7?"), None);
    running.open_session();
    while let Some(line) = running.next().await {
        if line.raw.is_some_and(|raw| raw.contains("listens")) {
            break;
        }
    }
    running.cancel();
    let rest: Vec<Line> = running.collect().await;
    let last = rest.iter().find_map(|line| line.raw.as_deref().filter(|raw| raw.contains("echo")));
    assert_eq!(last, Some(r#"{"echo":""}"#));
}

#[tokio::test]
async fn a_call_starts_once_and_finishes_once() {
    let update = |update: &str| {
        let update = update.trim();
        format!(
            r#"
{{"method":"session/update","params":{{"sessionId":"s1","update":{update}}}}}"#
        )
    };
    let begins = update(
        r#"
{"sessionUpdate":"tool_call","toolCallId":"c1","kind":"execute","title":"ls","status":"pending","rawInput":{}}"#,
    );
    let runs = update(
        r#"
{"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"in_progress","rawInput":{"command":"ls"}}"#,
    );
    let ends = update(
        r#"
{"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"completed","content":[{"type":"content","content":{"type":"text","text":"a b"}}]}"#,
    );
    let thinks =
        update(r#"{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"Hm."}}"#);
    let unknown = update(r#"{"sessionUpdate":"dances","content":[]}"#);
    let steps = [
        "line", &thinks, "line", &unknown, "line", &begins, "line", &runs, "line", &runs, "line",
        &ends, "line", &ends, "line", SAYS, "line", ENDED,
    ];
    check(&steps, expect![[r#"
        thinks "Hm."
        status

        execute {"command":"ls"}

        ToolCallFinished { id: "c1", output: String("a b"), is_error: false, exit_code: None, parent: None }

        says "It is 42."
        Usage(Usage { input_tokens: Some(10), output_tokens: Some(5), cached_tokens: None, cache_write_tokens: None, reasoning_tokens: None, completeness: Complete })
        final "It is 42.", exited with code 0
    "#]]).await;
}

/// Methods of the client that are not offered, lines that are not messages, answers to requests that were not sent.
#[tokio::test]
async fn odd_messages_do_not_end_the_turn() {
    let read =
        r#"{"jsonrpc":"2.0","id":7,"method":"fs/read_text_file","params":{"path":"/etc/passwd"}}"#;
    let steps = [
        "line",
        "no JSON",
        "line",
        "[1]",
        "line",
        "{}",
        "line",
        r#"{"id":99,"result":{}}"#,
        "line",
        read,
        "echo-line",
        "line",
        SAYS,
        "line",
        ENDED,
    ];
    let lines: Vec<Line> = start(acp(&steps)).collect().await;
    let refused = &echoed(&lines)[3];
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(-32601)));
    assert!(matches!(lines.last().map(|line| &line.events[..]), Some([ProgramEvent::Final(_)])));
}

/// A notification with this update, as one line.
fn update(update: &Value) -> String {
    let params = json!({"sessionId": "s1", "update": update});
    json!({"method": "session/update", "params": params}).to_string()
}

/// A piece of a message of the agent.
fn piece(message: &str, content: &Value) -> String {
    update(
        &json!({"sessionUpdate": "agent_message_chunk", "messageId": message, "content": content}),
    )
}

/// The steps that print these lines.
fn printing(lines: &[String]) -> Vec<&str> {
    lines.iter().flat_map(|line| ["line", line.as_str()]).collect()
}

/// The class: a message that comes twice, or that nobody asked for. Regression: a second answer to `initialize` opened a second
/// session, and a second answer to `session/new` sent the prompt once more: the agent did its work twice.
#[tokio::test]
async fn a_repeated_answer_asks_for_nothing_again() {
    let early = r#"{"id":2,"result":{"stopReason":"end_turn"}}"#;
    let opening = ["echo-line", "line", early, "line", INITIALIZED, "line", INITIALIZED];
    let then = ["echo-line", "line", OPENED, "line", OPENED, "line", INITIALIZED, "echo-line"];
    let ended = ENDED.replace(r#""id":2"#, r#""id":"2""#);
    let turn = ["line", SAYS, "line", &ended, "echo"];
    let config =
        CliConfig { program: Some(Program::Acp), ..fake(&[&opening[..], &then, &turn].concat()) };
    let lines: Vec<Line> = start(config).collect().await;
    let methods: Vec<Value> = echoed(&lines).iter().map(|it| it["method"].clone()).collect();
    assert_eq!(methods, ["initialize", "session/new", "session/prompt"]);
    let last = lines.last().and_then(|line| line.events.last());
    let Some(ProgramEvent::Final(answer)) = last else { panic!("{lines:?}") };
    assert_eq!(answer.text, "It is 42.");
}

/// The class: a clear failure that becomes a timeout. An answer without an id, or with a wrong one, was ignored, and nothing else came.
#[tokio::test]
async fn an_answer_without_the_id_of_the_open_request_ends_the_run() {
    let unread = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"cut"}}"#;
    let no_prompt = "runtime_crash: session/prompt failed: cut";
    for (answer, expected) in [
        (unread, no_prompt),
        (r#"{"error":{"code":-32700,"message":"cut"}}"#, no_prompt),
        (r#"{"jsonrpc":"2.0","id":99,"error":{"code":-32603,"message":"cut"}}"#, no_prompt),
        (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"cut"}}"#, no_prompt),
        (
            r#"{"jsonrpc":"2.0","id":99,"result":{"stopReason":"end_turn"}}"#,
            "bad_model_output: session/prompt failed: the program answered with the id 99",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}"#,
            "bad_model_output: session/prompt failed: the program answered with the id 1",
        ),
        (
            r#"{"jsonrpc":"2.0","id":null,"result":{"stopReason":"end_turn"}}"#,
            "bad_model_output: session/prompt failed: the program answered with the id null",
        ),
    ] {
        let rendered = rendered(start(acp(&["line", SAYS, "line", answer, "echo"]))).await;
        let last = rendered.lines().last().expect("there is a last line");
        assert_eq!(last, format!("· => {expected}"), "{answer}");
    }
    for (lines, method) in
        [(&["echo-line"][..], "initialize"), (&["echo-line", "line", INITIALIZED], "session/new")]
    {
        let steps = [lines, &["line", unread, "echo"]].concat();
        let config = CliConfig { program: Some(Program::Acp), ..fake(&steps) };
        let rendered = rendered(start(config)).await;
        let last = rendered.lines().last().expect("there is a last line");
        assert_eq!(last, format!("· => runtime_crash: {method} failed: cut"));
    }
    // A log with an error is no answer.
    let log = r#"{"level":"error","error":"retrying"}"#;
    let rendered = rendered(start(acp(&["line", log, "line", SAYS, "line", ENDED, "echo"]))).await;
    assert!(rendered.ends_with("final \"It is 42.\", exited with code 0\n"), "{rendered}");
}

/// The class: a lost part is counted as success. A cut update was a notice only.
#[tokio::test]
async fn an_update_that_cannot_be_read_is_a_lost_part() {
    let cut = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","upd"#;
    let lost = "bad_model_output: line 6 of the program cannot be read: a part of the answer may be missing, answer \"It is 42.\"";
    // Lines 1, 3 and 5 are echoes.
    for (steps, expected) in [
        (["line", cut, "line", SAYS, "line", ENDED], lost),
        (["line", SAYS, "line", ENDED, "line", cut], "final \"It is 42.\", exited with code 0"),
    ] {
        let rendered = rendered(start(acp(&[&steps[..], &["echo"]].concat()))).await;
        let last = rendered.lines().last().expect("there is a last line");
        assert_eq!(last, format!("· => {expected}"));
    }
}

/// The class: a part of a message is assigned by its position. The answer is the last message that has a text.
#[tokio::test]
async fn pieces_belong_to_the_message_with_their_id() {
    let text = |text: &str| json!({"type": "text", "text": text});
    let call = |update_kind: &str, state: &str| {
        update(
            &json!({"sessionUpdate": update_kind, "toolCallId": "c1", "kind": "read", "status": state, "rawInput": {"path": "a"}}),
        )
    };
    let other = piece("m9", &text("No.")).replace("s1", "s2");
    let lines = [
        piece("m1", &text("Let me see.")),
        call("tool_call", "in_progress"),
        other,
        piece("m2", &json!("It is ")),
        // A call that began before reports its progress.
        call("tool_call_update", "in_progress"),
        piece("", &json!([{"type": "text", "text": "42."}])),
        call("tool_call_update", "completed"),
        // A call after the answer, and an empty message.
        update(
            &json!({"sessionUpdate": "tool_call", "toolCallId": "c2", "status": "pending", "title": "Tidy up"}),
        ),
        piece("m3", &text("")),
        ENDED.to_owned(),
    ];
    check(&printing(&lines), expect![[r#"
        says "Let me see."
        read {"path":"a"}
        status
        says "It is "

        says "42."
        ToolCallFinished { id: "c1", output: Null, is_error: false, exit_code: None, parent: None }

        status
        other {"title":"Tidy up"}, Usage(Usage { input_tokens: Some(10), output_tokens: Some(5), cached_tokens: None, cache_write_tokens: None, reasoning_tokens: None, completeness: Complete })
        final "It is 42.", exited with code 0
    "#]]).await;
}

/// The class: arguments that may still arrive, are no object, or belong to a call without an id; results for unknown ids, and
/// states that come twice or in another order.
#[tokio::test]
async fn odd_calls() {
    let call = |id: Value, more: Value| {
        let mut call = json!({"sessionUpdate": "tool_call_update", "toolCallId": id});
        for (key, value) in more.as_object().expect("it is an object") {
            call[key] = value.clone();
        }
        update(&call)
    };
    let output = json!([{"type": "content", "content": {"type": "text", "text": "a b"}}]);
    let lines = [
        // Arguments that grow while the call is pending.
        call(
            json!("c1"),
            json!({"kind": "execute", "status": "pending", "rawInput": {"command": "rm"}}),
        ),
        call(json!("c1"), json!({"status": "", "rawInput": {"command": "rm -i x"}})),
        call(json!("c1"), json!({"status": "in_progress", "rawInput": {}, "content": output})),
        // Empty fields do not replace what is known.
        call(json!("c1"), json!({"status": "completed", "content": [], "rawOutput": ""})),
        call(json!("c1"), json!({"status": "failed"})),
        call(json!("c1"), json!({"status": "in_progress"})),
        // Without an id, with a number, and with a text as arguments.
        call(json!(""), json!({"kind": "edit", "status": "in_progress"})),
        call(
            json!(7),
            json!({"kind": "edit", "status": "in_progress", "rawInput": "{\"path\": \"a\""}),
        ),
        // The end of a call that did not begin, and one that the agent gave up.
        call(json!("c3"), json!({"status": "completed", "rawOutput": {"exitCode": 3}})),
        call(json!("c4"), json!({"name": "look", "status": "cancelled"})),
        SAYS.to_owned(),
        ENDED.to_owned(),
    ];
    check(&printing(&lines), expect![[r#"


        execute {"command":"rm -i x"}
        ToolCallFinished { id: "c1", output: String("a b"), is_error: false, exit_code: None, parent: None }


        status
        edit "{\"path\": \"a\""
        other {"title":null}, ToolCallFinished { id: "c3", output: Object {"exitCode": Number(3)}, is_error: false, exit_code: Some(3), parent: None }
        look {"title":null}, ToolCallFinished { id: "c4", output: Null, is_error: true, exit_code: None, parent: None }
        says "It is 42."
        Usage(Usage { input_tokens: Some(10), output_tokens: Some(5), cached_tokens: None, cache_write_tokens: None, reasoning_tokens: None, completeness: Complete })
        final "It is 42.", exited with code 0
    "#]]).await;
}

/// The class: success although the program reports an error beside it.
#[tokio::test]
async fn an_error_beside_a_good_reason_counts() {
    for (ended, expected) in [
        (
            r#"{"id":2,"result":{"stopReason":"end_turn","error":{"message":"late"}}}"#,
            expect![[r#"
                says "It is 42."

                runtime_crash: late, answer "It is 42."
            "#]],
        ),
        (
            r#"{"id":2,"result":{"stopReason":""}}"#,
            expect![[r#"
            says "It is 42."

            bad_model_output: the turn ended with the unknown reason "", answer "It is 42."
        "#]],
        ),
        (
            r#"{"id":2,"result":null,"error":"broke"}"#,
            expect![[r#"
            says "It is 42."

            runtime_crash: session/prompt failed: broke
        "#]],
        ),
        (
            r#"{"id":2,"result":{"stopReason":"end_turn"},"error":{}}"#,
            expect![[r#"
            says "It is 42."

            final "It is 42.", exited with code 0
        "#]],
        ),
    ] {
        check(&["line", SAYS, "line", ended], expected).await;
    }
}

/// The agent's answer to the decision on its request, and the notices of the run.
async fn decided(asks: &str, decision: Decision) -> (Value, Vec<String>) {
    let steps = ["line", asks, "echo-line", "line", SAYS, "line", ENDED];
    let mut running = start(acp(&steps));
    until(&mut running, |event| matches!(event, ProgramEvent::ApprovalRequested { .. })).await;
    running.answer(r#""q1""#, decision.clone()).expect("the approval is pending");
    running.answer(r#""q1""#, decision).expect_err("the first decision counts");
    let lines: Vec<Line> = running.collect().await;
    let notices = lines.iter().flat_map(|line| &line.events).filter_map(|event| match event {
        ProgramEvent::Notice { message, .. } => Some(message.clone()),
        _ => None,
    });
    let notices = notices.collect();
    (echoed(&lines).remove(0)["result"]["outcome"].clone(), notices)
}

fn selected(option: &str) -> Value {
    json!({"outcome": "selected", "optionId": option})
}

#[tokio::test]
async fn a_permission_is_for_one_call_only() {
    let allow = Decision::Allow { input: None };
    assert_eq!(decided(ASKS, allow.clone()).await, (selected("yes"), vec![]));
    let same = Decision::Allow { input: Some(json!({"command": "ls"})) };
    assert_eq!(decided(ASKS, same).await.0, selected("yes"));
    let deny = Decision::Deny { message: "no".to_owned(), interrupt: false };
    assert_eq!(decided(ASKS, deny.clone()).await, (selected("no"), vec![]));
    // The protocol cannot carry other arguments. What was not approved must not run.
    let other = Decision::Allow { input: Some(json!({"command": "ls -l"})) };
    let why = "the protocol cannot change the arguments of a call: it is denied";
    assert_eq!(decided(ASKS, other).await, (selected("no"), vec![why.to_owned()]));
    let none = ASKS.replace("reject_once", "unknown");
    assert_eq!(decided(&none, deny).await.0, json!({"outcome": "cancelled"}));
}

/// What an agent gets as answers to its lines, whether a person was asked, and whether a request was withdrawn.
async fn answered(lines: &[&str]) -> (Vec<Value>, bool, bool) {
    let mut steps: Vec<&str> = lines.iter().flat_map(|line| ["line", *line]).collect();
    steps.extend(["echo-line", "line", SAYS, "line", ENDED]);
    let mut running = start(acp(&steps));
    let lines =
        until(&mut running, |event| matches!(event, ProgramEvent::AssistantDelta { .. })).await;
    let late = running.answer(r#""q1""#, Decision::Allow { input: None });
    late.expect_err("the request is not open");
    let events = || lines.iter().flat_map(|line| &line.events);
    let asked = events().any(|event| matches!(event, ProgramEvent::ApprovalRequested { .. }));
    let withdrawn = events().any(|event| matches!(event, ProgramEvent::ApprovalWithdrawn { .. }));
    let answers = echoed(&lines).into_iter().filter(|message| message.get("method").is_none());
    let outcomes = answers.map(|answer| {
        let refused = answer["error"]["code"].clone();
        if refused.is_null() { answer["result"]["outcome"].clone() } else { refused }
    });
    (outcomes.collect(), asked, withdrawn)
}

/// Regression: a person approved a request that could not be allowed for one call only, and the agent got `reject_always`: the
/// person sees an approval that has taken effect. The class: a decision must not be asked for that cannot be passed on, and no
/// answer may hold for more than one call.
#[tokio::test]
async fn a_request_that_cannot_be_allowed_once_is_denied_without_asking() {
    let only_always = ASKS.replace(r#""kind":"allow_once""#, r#""kind":"allow_always""#);
    assert_eq!(answered(&[&only_always]).await, (vec![selected("no")], false, false));
    let always = only_always.replace("reject_once", "reject_always");
    let cancelled = json!({"outcome": "cancelled"});
    assert_eq!(answered(&[&always]).await, (vec![cancelled.clone()], false, false));
    // The id of both options.
    let ambiguous = ASKS.replace(r#""optionId":"yes""#, r#""optionId":"no""#);
    assert_eq!(answered(&[&ambiguous]).await, (vec![cancelled], false, false));
}

/// Regression: an agent changed the command of a call while its approval was open, and the approval was sent for the new command.
/// The class: what a person approves is what the person saw.
#[tokio::test]
async fn a_call_that_changes_while_its_approval_is_open_is_denied() {
    let update = |change: Value| {
        let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "c1"});
        let change = change.as_object().cloned().expect("it is an object");
        update.as_object_mut().expect("it is an object").extend(change);
        let params = json!({"sessionId": "s1", "update": update});
        json!({"method": "session/update", "params": params}).to_string()
    };
    for change in [
        json!({"rawInput": {"command": "rm -rf /"}}),
        json!({"kind": "delete"}),
        json!({"status": "in_progress", "rawInput": {"command": "rm -rf /"}}),
    ] {
        let change = update(change);
        assert_eq!(answered(&[ASKS, &change]).await, (vec![selected("no")], true, true));
    }
    // Another request for the same call, with another command.
    let other = ASKS.replace("q1", "q2").replace(r#""command":"ls""#, r#""command":"rm""#);
    assert_eq!(answered(&[ASKS, &other]).await, (vec![selected("no")], true, true));
    // Another request with the same id.
    let same_id = other.replace("q2", "q1").replace("c1", "c2");
    assert_eq!(answered(&[ASKS, &same_id]).await, (vec![json!(-32600)], true, true));
}

/// The protocol requires that all requests are answered with `cancelled` after the turn was cancelled.
#[tokio::test]
async fn a_cancelled_turn_cancels_its_permissions_also_later_ones() {
    let later = ASKS.replace("q1", "q2");
    let ended = ENDED.replace("end_turn", "cancelled");
    let steps = [
        "line",
        ASKS,
        "echo-line",
        "echo-line",
        "line",
        &later,
        "echo-line",
        "line",
        &ended,
        "echo",
    ];
    let mut running = start(acp(&steps));
    until(&mut running, |event| matches!(event, ProgramEvent::ApprovalRequested { .. })).await;
    running.interrupt();
    let lines: Vec<Line> = running.collect().await;
    let cancelled = json!({"outcome": {"outcome": "cancelled"}});
    let of = |id: &str| json!({"jsonrpc": "2.0", "id": id, "result": cancelled});
    let cancel =
        json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}});
    assert_eq!(echoed(&lines), [of("q1"), cancel, of("q2")]);
    let events: Vec<&ProgramEvent> = lines.iter().flat_map(|line| &line.events).collect();
    let withdrawn = ProgramEvent::ApprovalWithdrawn { request_id: r#""q1""#.to_owned() };
    assert!(events.contains(&&withdrawn), "{events:?}");
    let Some(ProgramEvent::Error(failure)) = events.last() else { panic!("{events:?}") };
    assert_eq!(failure.kind.code(), "cancelled");
}

#[tokio::test]
async fn the_stop_reason_is_the_kind_of_failure() {
    for (reason, kind) in [
        ("max_tokens", "answer_truncated"),
        ("max_turn_requests", "loop_limit"),
        ("refusal", "refused"),
        ("dances", "bad_model_output"),
    ] {
        let ended = ENDED.replace("end_turn", reason);
        let rendered = rendered(start(acp(&["line", SAYS, "line", &ended, "echo"]))).await;
        let last = rendered.lines().last().expect("there is a last line");
        assert!(last.starts_with(&format!("· => {kind}: ")), "{last}");
        assert!(last.ends_with(r#", answer "It is 42.""#), "{last}");
    }
}

#[tokio::test]
async fn an_agent_that_exits_in_mid_turn_gave_no_answer() {
    check(
        &["line", SAYS],
        expect![[r#"
        says "It is 42."
        bad_model_output: the program exited with code 0 and gave no answer
    "#]],
    )
    .await;
    check(
        &["line", SAYS, "exit", "3"],
        expect![[r#"
        says "It is 42."
        runtime_crash: the program exited with code 3
    "#]],
    )
    .await;
    check(
        &["line", ASKS, "exit", "3"],
        expect![[r#"
        "q1" asks for execute {"command":"ls"}
        runtime_crash: the program exited with code 3
    "#]],
    )
    .await;
}

#[tokio::test]
async fn an_oversized_line_ends_the_run() {
    let config = CliConfig { max_line_bytes: 1000, ..acp(&["long", "1001", "hang"]) };
    let rendered = rendered(start(config)).await;
    let last = rendered.lines().last().expect("there is a last line");
    assert_eq!(
        last,
        "· => budget_exceeded: the program wrote a line of more than 1000 bytes (max_line_bytes)"
    );
}

/// An agent serves until its stdin ends. One that continues is ended, and its answer counts.
#[tokio::test]
async fn an_agent_that_stays_after_its_answer_is_ended() {
    let config = CliConfig { grace: SOON, ..acp(&["line", SAYS, "line", ENDED, "hang"]) };
    let rendered = rendered(start(config)).await;
    let last = rendered.lines().last().expect("there is a last line");
    assert_eq!(last, r#"· => final "It is 42.", was killed by signal 15"#);
}

#[tokio::test]
async fn refused_requests_and_other_versions_are_failures() {
    for (initialized, opened, expected) in [
        (
            INITIALIZED.replace(r#""protocolVersion":1"#, r#""protocolVersion":2"#),
            OPENED,
            "capability_unsupported: the program speaks version 2 of ACP, and not 1",
        ),
        (
            INITIALIZED.to_owned(),
            r#"{"id":1,"error":{"code":-32000,"message":"Authentication required"}}"#,
            "runtime_crash: session/new failed: Authentication required",
        ),
        (
            INITIALIZED.to_owned(),
            r#"{"id":1,"result":{}}"#,
            "bad_model_output: the program opened a session without an id",
        ),
    ] {
        let steps = ["echo-line", "line", &initialized, "echo-line", "line", opened, "echo"];
        let config = CliConfig { program: Some(Program::Acp), ..fake(&steps) };
        let rendered = rendered(start(config)).await;
        let last = rendered.lines().last().expect("there is a last line");
        assert_eq!(last, format!("· => {expected}"));
    }
}

/// An agent that loads a session repeats its history. The text of an earlier turn is not text of this one.
#[tokio::test]
async fn a_session_is_continued_and_its_history_is_not_repeated() {
    let history = SAYS.replace("It is 42.", "Earlier.");
    let loaded = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    let steps = [
        "echo-line",
        "line",
        INITIALIZED,
        "echo-line",
        "line",
        &history,
        "line",
        loaded,
        "echo-line",
        "line",
        SAYS,
        "line",
        ENDED,
        "echo",
    ];
    let config =
        CliConfig { program: Some(Program::Acp), session: Some("s1".to_owned()), ..fake(&steps) };
    let lines: Vec<Line> = start(config.clone()).collect().await;
    let methods: Vec<Value> = echoed(&lines).iter().map(|it| it["method"].clone()).collect();
    assert_eq!(methods, ["initialize", "session/load", "session/prompt"]);
    let Some(ProgramEvent::Final(answer)) = lines.last().and_then(|line| line.events.last()) else {
        panic!("{lines:?}")
    };
    assert_eq!((answer.text.as_str(), answer.session_id.as_deref()), ("It is 42.", Some("s1")));
    let said = lines
        .iter()
        .flat_map(|line| &line.events)
        .filter(|event| matches!(event, ProgramEvent::AssistantDelta { .. }));
    assert_eq!(said.count(), 1);
    // With `session/resume` there is no history.
    let resumes =
        INITIALIZED.replace("\"loadSession\":true", r#""sessionCapabilities":{"resume":{}}"#);
    let command = config.command.iter().map(|word| word.replace(INITIALIZED, &resumes)).collect();
    let lines: Vec<Line> = start(CliConfig { command, ..config.clone() }).collect().await;
    assert_eq!(echoed(&lines)[1]["method"], "session/resume");
    let cannot = INITIALIZED.replace("true", "false");
    let command = config.command.iter().map(|word| word.replace(INITIALIZED, &cannot)).collect();
    let rendered = rendered(start(CliConfig { command, grace: SOON, ..config })).await;
    let last = rendered.lines().last().expect("there is a last line");
    let why = "the program cannot continue a session: it does not offer loadSession";
    assert_eq!(last, format!("· => capability_unsupported: {why}"));
}
