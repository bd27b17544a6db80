//! What people and programs see of approvals and of the results of tool calls, in every protocol of a real server whose tools are real
//! programs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use abide_client::Json;
use expect_test::{Expect, expect};
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::server::Server;

const CONFIG: &str = r#"
models:
  providers:
    - { id: clerk, kind: script, script: clerk-answers.yaml, models: [clerk] }
    - { id: sleeper, kind: script, script: sleeper-answers.yaml, models: [sleeper] }
programs:
  - name: refund
    description: Pays an order back.
    parameters: { type: object, properties: { order: { type: string } }, required: [order] }
    command: [echo, "paid {order}"]
    effect: at_most_once
    approval: { prompt: "Refund this?", defaults: { order: A-8 }, expires_after_ms: 3600000 }
  - { name: broken, description: Fails., command: [sh, -c, "echo it broke; exit 3"], stdin: empty }
  - { name: killed, description: Is killed., command: [sh, -c, "kill -9 $$"], stdin: empty }
  - { name: nap, description: Sleeps., command: [sleep, "600"], effect: read_only }
mcp: { tools: [refund, broken] }
"#;

/// One answer with calls of each status: of the first two the approver edits one and rejects the other, and the last one is past the
/// limit.
const CLERK_ANSWERS: &str = "
repeat: true
answers:
  - calls:
      - { name: refund, arguments: { order: A-7 } }
      - { name: refund, arguments: { order: B-1 } }
      - { name: broken, arguments: {} }
      - { name: killed, arguments: {} }
      - { name: broken, arguments: {} }
  - text: That is all.
";

const SLEEPER_ANSWERS: &str = "answers: [{ calls: [{ name: nap, arguments: {} }] }]\n";

/// A server with the agents `clerk` and `sleeper`.
fn server() -> (Server, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    fs::create_dir(folder.path().join("agents")).unwrap();
    write("abide.yaml", CONFIG);
    write("clerk-answers.yaml", CLERK_ANSWERS);
    write("sleeper-answers.yaml", SLEEPER_ANSWERS);
    let exposed = "a2a_exposed: true\nmcp_exposed: true\n";
    let clerk = "tools: [refund, broken, killed]\nlimits: { tool_calls: 4 }\n";
    write("agents/clerk.yaml", &format!("{exposed}{clerk}config: {{ provider: clerk }}\n"));
    write("agents/sleeper.yaml", "tools: [nap]\nconfig: { provider: sleeper }\n");
    let options = ["--agents".to_owned(), folder.path().display().to_string()];
    let db = folder.path().join("abide.db");
    (Server::start_with(&db, &options), folder)
}

/// The body of an answer.
#[track_caller]
fn request(server: &Server, method: &str, path: &str, headers: &str, body: &JsonValue) -> String {
    let mut socket = TcpStream::connect(server.address()).unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    write!(
        socket,
        "{method} {path} HTTP/1.0\r\nhost: abide\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 ") || head.contains(" 201 "), "{answer}");
    body.to_owned()
}

#[track_caller]
fn post(server: &Server, path: &str, body: &JsonValue) -> String {
    request(server, "POST", path, "", body)
}

#[track_caller]
fn json_of(text: &str) -> JsonValue {
    serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

/// The events of a stream.
fn events(stream: &str) -> Vec<JsonValue> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: {"));
    data.map(|line| json_of(&format!("{{{line}"))).collect()
}

/// The result of a call of A2A over JSON-RPC.
#[track_caller]
fn a2a(server: &Server, method: &str, params: JsonValue) -> JsonValue {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let answer = request(server, "POST", "/a2a/clerk", "a2a-version: 1.0\r\n", &body);
    let answer = json_of(&answer);
    assert!(answer["error"].is_null(), "{answer}");
    answer["result"].clone()
}

/// The result of a call of MCP 2026-07-28 by a client with forms.
#[track_caller]
fn mcp(server: &Server, method: &str, mut params: JsonValue) -> JsonValue {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    let capabilities = json!({"elicitation": {}, "extensions": params["extensions"].take()});
    params.as_object_mut().unwrap().remove("extensions");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    let name = params["name"].as_str().or(params["taskId"].as_str()).unwrap().to_owned();
    let headers = format!(
        "mcp-protocol-version: 2026-07-28\r\nmcp-method: {method}\r\nmcp-name: {name}\r\naccept: application/json\r\n"
    );
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let answer = json_of(&request(server, "POST", "/mcp", &headers, &body));
    assert!(answer["error"].is_null(), "{answer}");
    answer["result"].clone()
}

/// Replaces what differs from run to run.
fn check(shown: &JsonValue, expected: Expect) {
    let mut text = serde_json::to_string_pretty(shown).unwrap();
    let mut masks: BTreeMap<String, String> = BTreeMap::new();
    collect_ids(shown, &mut masks);
    // Ids that contain others first.
    let mut ids: Vec<(String, String)> = masks.into_iter().collect();
    ids.sort_by_key(|(id, _)| std::cmp::Reverse(id.len()));
    for (id, mask) in ids {
        text = text.replace(&id, &mask);
    }
    expected.assert_eq(&text);
}

/// The ids and times in a value, each with what stands for it.
fn collect_ids(value: &JsonValue, masks: &mut BTreeMap<String, String>) {
    match value {
        JsonValue::Object(members) => {
            for (name, member) in members {
                let masked = match name.as_str() {
                    "callId" | "toolCallId" | "tool_call_id" | "call_id" => "CALL",
                    "approvalId" | "approval_id" => "APPROVAL",
                    "sessionId" | "session_id" => "SESSION",
                    "expiresAt" => "TIME",
                    _ => "",
                };
                if let (false, Some(id)) = (masked.is_empty(), member.as_str()) {
                    let number = id.rsplit_once('~').map(|(_, n)| format!("-{n}"));
                    let mask = format!("{masked}{}", number.unwrap_or_default());
                    masks.insert(id.to_owned(), mask);
                }
                if let (Some(at), "expires_at") = (member.as_i64(), name.as_str()) {
                    masks.insert(at.to_string(), "\"TIME\"".to_owned());
                }
                collect_ids(member, masks);
            }
        }
        JsonValue::Array(members) => members.iter().for_each(|it| collect_ids(it, masks)),
        _ => {}
    }
}

/// The ids of the calls of the only run that waits, in order.
async fn waiting_calls(server: &Server) -> Vec<String> {
    let client = server.client().await;
    let sql = "SELECT call_id FROM tool_calls WHERE status = 'awaiting_approval' ORDER BY call_id";
    let mut rows = client.subscribe(sql).await.unwrap();
    while rows.next().await.is_some() {
        let calls = rows.typed_rows::<(String,)>().unwrap();
        if calls.len() == 2 {
            return calls.into_iter().map(|(id,)| id).collect();
        }
    }
    panic!("no call waits");
}

/// Approves the first call with another order, and rejects the second one.
async fn decide(server: &Server) {
    let [first, second] = waiting_calls(server).await.try_into().unwrap();
    let edited = r#"approved_arguments={"order":"EDITED"}"#;
    let call = |id: &str| format!("call_id={id}");
    server.run(&["call", "decide_approval", &call(&first), "decision=approve", edited]).good();
    let reject = ["decision=reject", "comment=Not this one."];
    server.run(&["call", "decide_approval", &call(&second), reject[0], reject[1]]).good();
}

/// The class: what an interrupt says to the approver, and what became of a call, was in the rows only, and each protocol showed
/// another part of it. Prompt, suggested values and deadline were nowhere, a call that ran with other arguments showed those of the
/// model, and each call without success had merely failed.
#[tokio::test]
async fn the_ai_sdk_shows_questions_edits_and_results() {
    let (server, _folder) = server();
    let message = json!({"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Pay."}]});
    let body = json!({"id": "chat", "trigger": "submit-message", "messages": [message]});
    let asked = events(&post(&server, "/v1/agents/clerk/chat", &body));
    let data: Vec<&JsonValue> =
        asked.iter().filter(|part| part["type"] == "data-approval").collect();
    check(&json!(data[0]), expect![[""]]);
    assert_eq!(data.len(), 2);
    decide(&server).await;
    let run = "SELECT id FROM runs WHERE ended_at IS NOT NULL";
    until(&server, run).await;
    // A page that is loaded again, and one that goes on.
    let path = "/v1/agents/clerk/chat/chat/stream";
    let parts = events(&request(&server, "GET", path, "", &JsonValue::Null));
    let kinds =
        ["tool-input-available", "tool-output-available", "tool-output-error", "data-tool-result"];
    let shown: Vec<&JsonValue> =
        parts.iter().filter(|part| kinds.iter().any(|kind| part["type"] == *kind)).collect();
    check(&json!(shown), expect![[""]]);
}

/// A page that has rejected a call shows it as denied.
#[tokio::test]
async fn the_ai_sdk_shows_a_rejection_of_its_own_as_denied() {
    let (server, _folder) = server();
    let message = json!({"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Pay."}]});
    let body = json!({"id": "chat", "trigger": "submit-message", "messages": [message]});
    post(&server, "/v1/agents/clerk/chat", &body);
    let parts: Vec<JsonValue> = waiting_calls(&server)
        .await
        .iter()
        .map(|id| {
            json!({"type": "dynamic-tool", "state": "approval-responded",
            "approval": {"id": id, "approved": false, "reason": "no"}})
        })
        .collect();
    let decided = json!({"id": "m2", "role": "assistant", "parts": parts});
    let body = json!({"id": "chat", "trigger": "submit-message", "messages": [message, decided]});
    let parts = events(&post(&server, "/v1/agents/clerk/chat", &body));
    let denied = parts.iter().filter(|part| part["type"] == "tool-output-denied").count();
    assert_eq!(denied, 2, "{parts:?}");
}

#[tokio::test]
async fn ag_ui_shows_questions_edits_and_results() {
    let (server, _folder) = server();
    let body = json!({"threadId": "thread", "runId": "r1",
        "messages": [{"id": "m1", "role": "user", "content": "Pay."}]});
    let asked = events(&post(&server, "/v1/agents/clerk/ag-ui", &body));
    let interrupts = &asked.last().unwrap()["outcome"]["interrupts"];
    check(&interrupts[0], expect![[""]]);
    decide(&server).await;
    until(&server, "SELECT id FROM runs WHERE ended_at IS NOT NULL").await;
    let all = events(&post(&server, "/v1/agents/clerk/ag-ui", &body));
    let shown: Vec<JsonValue> = all
        .iter()
        .filter(|event| event["type"] == "CUSTOM" || event["type"] == "TOOL_CALL_RESULT")
        .map(|event| match event["type"].as_str() {
            Some("CUSTOM") => event["value"].clone(),
            _ => event["content"].clone(),
        })
        .collect();
    check(&json!(shown), expect![[""]]);
}

#[tokio::test]
async fn responses_show_questions_edits_and_results() {
    let (server, _folder) = server();
    let asked = post(&server, "/v1/responses", &json!({"model": "clerk", "input": "Pay."}));
    let asked = json_of(&asked);
    let output = asked["output"].as_array().unwrap();
    let request_item = output.iter().find(|item| item["type"] == "mcp_approval_request").unwrap();
    check(&json!([request_item["arguments"], request_item["abide"]]), expect![[""]]);
    decide(&server).await;
    until(&server, "SELECT id FROM runs WHERE ended_at IS NOT NULL").await;
    let next = asked["id"].as_str().unwrap().replacen("resp_1_", "resp_2_", 1);
    let path = format!("/v1/responses/{next}");
    let read = json_of(&request(&server, "GET", &path, "", &JsonValue::Null));
    let shown: Vec<JsonValue> = read["output"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["type"] == "mcp_call")
        .map(|item| {
            json!([item["status"], item["arguments"], item["output"], item["error"], item["abide"]])
        })
        .collect();
    check(&json!(shown), expect![[""]]);
}

#[tokio::test]
async fn a2a_shows_questions_edits_and_results() {
    let (server, _folder) = server();
    let message = json!({"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Pay."}]});
    let sent = a2a(&server, "SendMessage", json!({"message": message}));
    let task = &sent["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{sent}");
    let parts = &task["status"]["message"]["parts"];
    check(&json!([parts[0]["text"], parts[1]["data"]["approvals"][0]]), expect![[""]]);
    decide(&server).await;
    until(&server, "SELECT id FROM runs WHERE ended_at IS NOT NULL").await;
    let read = a2a(&server, "GetTask", json!({"id": task["id"]}));
    assert_eq!(read["status"]["state"], "TASK_STATE_COMPLETED");
    check(&read["metadata"], expect![[""]]);
}

#[tokio::test]
async fn mcp_shows_questions_edits_and_results() {
    let (server, _folder) = server();
    let tasks = json!({"io.modelcontextprotocol/tasks": {}});
    let arguments = json!({"message": "Pay."});
    let call = json!({"name": "agent_clerk", "arguments": arguments, "extensions": tasks});
    let begun = mcp(&server, "tools/call", call);
    let id = &begun["taskId"];
    until(&server, "SELECT id FROM runs WHERE status = 'waiting'").await;
    let task = mcp(&server, "tasks/get", json!({"taskId": id, "extensions": tasks}));
    let form = task["inputRequests"].as_object().unwrap().values().next().unwrap();
    check(&json!([task["statusMessage"], form]), expect![[""]]);
    decide(&server).await;
    until(&server, "SELECT id FROM runs WHERE ended_at IS NOT NULL").await;

    // An exposed tool: its form, and its result.
    let call = |key: &str, name: &str, arguments: JsonValue| json!({"name": name, "arguments": arguments, "_meta": {"abide/request_id": key}});
    let refund = call("k1", "refund", json!({"order": "C-1"}));
    let asked = mcp(&server, "tools/call", refund.clone());
    let form = asked["inputRequests"].as_object().unwrap().values().next().unwrap();
    check(form, expect![[""]]);
    let client = server.client().await;
    let sql = "SELECT call_id FROM approvals WHERE status = 'pending'";
    let pending: Vec<(String,)> = client.sql(sql).fetch().await.unwrap();
    let call_id = format!("call_id={}", pending[0].0);
    let edited = r#"approved_arguments={"order":"EDITED"}"#;
    server.run(&["call", "decide_approval", &call_id, "decision=approve", edited]).good();
    let paid = mcp(&server, "tools/call", refund);
    check(
        &json!([paid["content"], paid["structuredContent"]["approved_arguments"]]),
        expect![[""]],
    );
    let failed = mcp(&server, "tools/call", call("k2", "broken", json!({})));
    assert_eq!(failed["isError"], true);
    assert_eq!(failed["structuredContent"]["status"], "failed");
    assert_eq!(failed["structuredContent"]["exit_code"], 3);
}

/// The statuses are also in the messages of a copy of the session and of an exported run.
#[tokio::test]
async fn forks_and_exports_keep_the_results() {
    let (server, _folder) = server();
    let start = ["call", "create_session", "agent=clerk", "id=s1"];
    server.run(&start).good();
    server.run(&["call", "start_run", "session_id=s1", "id=r1", "input=Pay."]).good();
    decide(&server).await;
    until(&server, "SELECT id FROM runs WHERE ended_at IS NOT NULL").await;
    let results = results(&server, "s1").await;
    let statuses: Vec<&JsonValue> = results.iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, ["succeeded", "rejected", "failed", "failed", "skipped"]);
    let codes: Vec<&JsonValue> = results.iter().map(|result| &result["exit_code"]).collect();
    assert_eq!(codes, [0, 1, 3, 137, 1]);
    server.run(&["call", "fork_session", "session_id=s1", "id=s2"]).good();
    until(&server, "SELECT id FROM sessions WHERE id = 's2' AND status = 'active'").await;
    assert_eq!(self::results(&server, "s2").await, results);
    // A snapshot is that of a run that waits.
    server.run(&["call", "start_run", "session_id=s1", "id=r2", "input=Again."]).good();
    until(&server, "SELECT id FROM runs WHERE id = 'r2' AND status = 'waiting'").await;
    let exported = server.run(&["agent", "export", "r2", "--copy"]).good();
    let shown: Vec<&str> = ["succeeded", "rejected", "failed", "skipped"]
        .into_iter()
        .filter(|status| exported.contains(&format!("\"status\":\"{status}\"")))
        .collect();
    assert_eq!(shown, ["succeeded", "rejected", "failed", "skipped"], "{exported}");
}

/// A tool that runs when its run is aborted.
#[tokio::test]
async fn an_aborted_call_is_shown_as_cancelled() {
    let (server, _folder) = server();
    let start = ["call", "create_session", "agent=sleeper", "id=s1"];
    server.run(&start).good();
    server.run(&["call", "start_run", "session_id=s1", "id=r1", "input=Sleep."]).good();
    until(&server, "SELECT call_id FROM tool_calls WHERE status = 'claimed'").await;
    server.run(&["call", "abort_run", "id=r1"]).good();
    until(&server, "SELECT call_id FROM tool_calls WHERE status = 'cancelled'").await;
    let client = server.client().await;
    let sql = "SELECT kind, data FROM run_events WHERE run_id = 'r1' ORDER BY number";
    let events: Vec<(String, Json)> = client.sql(sql).fetch().await.unwrap();
    let events: Vec<JsonValue> =
        events.into_iter().map(|(kind, data)| json!([kind, data.value()])).collect();
    check(&json!(events), expect![[""]]);
    let path = "/v1/agents/sleeper/chat/s1/stream";
    let parts = self::events(&request(&server, "GET", path, "", &JsonValue::Null));
    check(&json!(parts), expect![[""]]);
}

/// The data of the results of tool calls in a session, in order.
async fn results(server: &Server, session: &str) -> Vec<JsonValue> {
    let client = server.client().await;
    let sql = "SELECT data FROM agent_state WHERE session_id = :sid AND role = 'tool' ORDER BY id";
    let rows: Vec<(Json,)> = client.sql(sql).param("sid", session).fetch().await.unwrap();
    rows.into_iter().map(|(data,)| data.value()).collect()
}

/// Waits until a query has rows.
async fn until(server: &Server, sql: &str) {
    let client = server.client().await;
    let mut rows = client.subscribe(sql).await.unwrap();
    while rows.next().await.is_some() {
        if rows.rows().len() > 0 {
            return;
        }
    }
    panic!("the server has stopped before a row appeared: {sql}");
}
