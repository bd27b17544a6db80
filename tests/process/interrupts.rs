//! What people and programs see of approvals and of the results of tool calls, in every protocol of a real server whose tools are real
//! programs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
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
    command: [echo, paid, "{order}"]
    effect: at_most_once
    approval: { prompt: "Refund this?", defaults: { order: A-8 }, expires_after_ms: 3600000 }
  - { name: broken, description: Fails., command: [sh, -c, "echo it broke; exit 3"], stdin: empty }
  - { name: killed, description: Is killed., command: [sh, -c, "kill -9 $$"], stdin: empty }
  - { name: nap, description: Sleeps., command: [sleep, "600"], effect: read_only }
mcp: { tools: [refund, broken] }
"#;

/// One answer with calls of each status: of the first three the approver edits one, rejects one and cancels one, and the last one is
/// past the limit.
const CLERK_ANSWERS: &str = "
repeat: true
answers:
  - calls:
      - { name: refund, arguments: { order: A-7 } }
      - { name: refund, arguments: { order: B-1 } }
      - { name: refund, arguments: { order: C-1 } }
      - { name: broken, arguments: {} }
      - { name: killed, arguments: {} }
      - { name: broken, arguments: {} }
  - text: That is all.
";

/// What becomes of these calls, in order.
const STATUSES: [&str; 6] = ["succeeded", "rejected", "cancelled", "failed", "failed", "skipped"];

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
    let clerk = "tools: [refund, broken, killed]\nlimits: { tool_calls: 5 }\n";
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
    let host = server.address();
    let length = body.len();
    write!(
        socket,
        "{method} {path} HTTP/1.0\r\nhost: {host}\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
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

/// Compares without what differs from run to run. Each element of a list is a line.
fn check(shown: &JsonValue, expected: Expect) {
    let mut text = match shown {
        JsonValue::Array(all) => all.iter().map(|it| format!("{it}\n")).collect(),
        other => format!("{other}\n"),
    };
    let mut masks: BTreeMap<String, &str> = BTreeMap::new();
    collect_ids(shown, &mut masks);
    for (id, mask) in masks {
        text = text.replace(&id, mask);
    }
    expected.assert_eq(&text);
}

/// The ids and times in a value, each with what stands for it.
fn collect_ids(value: &JsonValue, masks: &mut BTreeMap<String, &str>) {
    match value {
        JsonValue::Object(members) => {
            for (name, member) in members {
                let mask = match name.as_str() {
                    "callId" | "toolCallId" | "tool_call_id" => "CALL",
                    "approvalId" | "approval_id" => "APPROVAL",
                    "sessionId" | "session_id" => "SESSION",
                    "run_id" => "RUN",
                    "expiresAt" | "expires_at" => "TIME",
                    _ => "",
                };
                let text = member.as_str().map_or_else(|| member.to_string(), str::to_owned);
                match text.split_once('~') {
                    _ if mask.is_empty() || member.is_null() => {}
                    Some((run, _)) => drop(masks.insert(run.to_owned(), "RUN")),
                    None => drop(masks.insert(text, mask)),
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
    while let Some(Ok(_)) = rows.next().await {
        let calls = rows.typed_rows::<(String,)>().unwrap();
        if calls.len() == 3 {
            return calls.into_iter().map(|(id,)| id).collect();
        }
    }
    panic!("no call waits");
}

/// Approves the first call with another order, rejects the second one, cancels the third one, and waits for the end of the run.
async fn decide(server: &Server) {
    let [first, second, third] = waiting_calls(server).await.try_into().unwrap();
    let edited = r#"approved_arguments={"order":"EDITED"}"#;
    let call = |id: &str| format!("call_id={id}");
    server.run(&["call", "decide_approval", &call(&first), "decision=approve", edited]).good();
    let reject = ["decision=reject", "comment=Not this one."];
    server.run(&["call", "decide_approval", &call(&second), reject[0], reject[1]]).good();
    server.run(&["call", "cancel_tool_call", &call(&third)]).good();
    fetch_until_rows(server, "SELECT id FROM runs WHERE ended_at IS NOT NULL").await;
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
    check(
        &json!(data[0]),
        expect![[r#"
        {"data":{"agent":"clerk","approvalId":"APPROVAL","arguments":{"order":"A-7"},"callId":"RUN~1.1","defaults":{"order":"A-8"},"expiresAt":"TIME","message":"Refund this?","prompt":"Refund this?","sessionId":"SESSION","tool":"refund"},"id":"RUN~1.1","type":"data-approval"}
    "#]],
    );
    assert_eq!(data.len(), 3);
    decide(&server).await;
    // A page that is loaded again, and one that goes on.
    let path = "/v1/agents/clerk/chat/chat/stream";
    let parts = events(&request(&server, "GET", path, "", &JsonValue::Null));
    let kinds =
        ["tool-input-available", "tool-output-available", "tool-output-error", "data-tool-result"];
    let shown: Vec<&JsonValue> =
        parts.iter().filter(|part| kinds.iter().any(|kind| part["type"] == *kind)).collect();
    check(
        &json!(shown),
        expect![[r#"
        {"dynamic":true,"input":{},"providerExecuted":true,"toolCallId":"RUN~1.6","toolName":"broken","type":"tool-input-available"}
        {"dynamic":true,"errorText":"This call was skipped: the run has reached its tool call limit.","providerExecuted":true,"toolCallId":"RUN~1.6","type":"tool-output-error"}
        {"data":{"callId":"RUN~1.6","status":"skipped","tool":"broken"},"id":"RUN~1.6","type":"data-tool-result"}
        {"dynamic":true,"input":{"order":"A-7"},"providerExecuted":true,"toolCallId":"RUN~1.1","toolName":"refund","type":"tool-input-available"}
        {"dynamic":true,"input":{"order":"B-1"},"providerExecuted":true,"toolCallId":"RUN~1.2","toolName":"refund","type":"tool-input-available"}
        {"dynamic":true,"input":{"order":"C-1"},"providerExecuted":true,"toolCallId":"RUN~1.3","toolName":"refund","type":"tool-input-available"}
        {"dynamic":true,"input":{"order":"EDITED"},"providerExecuted":true,"toolCallId":"RUN~1.1","toolName":"refund","type":"tool-input-available"}
        {"dynamic":true,"output":"paid EDITED","providerExecuted":true,"toolCallId":"RUN~1.1","type":"tool-output-available"}
        {"data":{"arguments":{"order":"EDITED"},"callId":"RUN~1.1","exitCode":0,"status":"succeeded","tool":"refund"},"id":"RUN~1.1","type":"data-tool-result"}
        {"dynamic":true,"errorText":"Rejected: Not this one.","providerExecuted":true,"toolCallId":"RUN~1.2","type":"tool-output-error"}
        {"data":{"callId":"RUN~1.2","status":"rejected","tool":"refund"},"id":"RUN~1.2","type":"data-tool-result"}
        {"dynamic":true,"errorText":"The call was cancelled before it began: it did not run.","providerExecuted":true,"toolCallId":"RUN~1.3","type":"tool-output-error"}
        {"data":{"callId":"RUN~1.3","status":"cancelled","tool":"refund"},"id":"RUN~1.3","type":"data-tool-result"}
        {"dynamic":true,"input":{},"providerExecuted":true,"toolCallId":"RUN~1.4","toolName":"broken","type":"tool-input-available"}
        {"dynamic":true,"errorText":"broken failed with exit code 3\nstdout:\nit broke","providerExecuted":true,"toolCallId":"RUN~1.4","type":"tool-output-error"}
        {"data":{"callId":"RUN~1.4","exitCode":3,"status":"failed","tool":"broken"},"id":"RUN~1.4","type":"data-tool-result"}
        {"dynamic":true,"input":{},"providerExecuted":true,"toolCallId":"RUN~1.5","toolName":"killed","type":"tool-input-available"}
        {"dynamic":true,"errorText":"killed failed with exit code 137","providerExecuted":true,"toolCallId":"RUN~1.5","type":"tool-output-error"}
        {"data":{"callId":"RUN~1.5","exitCode":137,"status":"failed","tool":"killed"},"id":"RUN~1.5","type":"data-tool-result"}
    "#]],
    );
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
    assert_eq!(denied, 3, "{parts:?}");
}

#[tokio::test]
async fn ag_ui_shows_questions_edits_and_results() {
    let (server, _folder) = server();
    let body = json!({"threadId": "thread", "runId": "r1",
        "messages": [{"id": "m1", "role": "user", "content": "Pay."}]});
    let asked = events(&post(&server, "/v1/agents/clerk/ag-ui", &body));
    let interrupts = &asked.last().unwrap()["outcome"]["interrupts"];
    check(
        &interrupts[0],
        expect![[r#"
            {"expiresAt":"TIME","id":"RUN~1.1","message":"Refund this?","metadata":{"agent":"clerk","approvalId":"APPROVAL","arguments":{"order":"A-7"},"callId":"RUN~1.1","defaults":{"order":"A-8"},"expiresAt":"TIME","prompt":"Refund this?","sessionId":"SESSION","tool":"refund"},"reason":"tool_call","responseSchema":{"properties":{"approved":{"type":"boolean"},"editedArgs":{"type":"object"},"reason":{"type":"string"}},"required":["approved"],"type":"object"},"toolCallId":"RUN~1.1"}
        "#]],
    );
    decide(&server).await;
    let all = events(&post(&server, "/v1/agents/clerk/ag-ui", &body));
    let shown: Vec<JsonValue> = all
        .iter()
        .filter(|event| event["type"] == "CUSTOM" || event["type"] == "TOOL_CALL_RESULT")
        .map(|event| match event["type"].as_str() {
            Some("CUSTOM") => event["value"].clone(),
            _ => event["content"].clone(),
        })
        .collect();
    check(
        &json!(shown),
        expect![[r#"
        {"callId":"RUN~1.6","status":"skipped","tool":"broken"}
        "This call was skipped: the run has reached its tool call limit."
        {"arguments":{"order":"EDITED"},"callId":"RUN~1.1","exitCode":0,"status":"succeeded","tool":"refund"}
        "paid EDITED"
        {"callId":"RUN~1.2","status":"rejected","tool":"refund"}
        "Rejected: Not this one."
        {"callId":"RUN~1.3","status":"cancelled","tool":"refund"}
        "The call was cancelled before it began: it did not run."
        {"callId":"RUN~1.4","exitCode":3,"status":"failed","tool":"broken"}
        "failed: broken failed with exit code 3\nstdout:\nit broke"
        {"callId":"RUN~1.5","exitCode":137,"status":"failed","tool":"killed"}
        "failed: killed failed with exit code 137"
    "#]],
    );
}

#[tokio::test]
async fn responses_show_questions_edits_and_results() {
    let (server, _folder) = server();
    let asked = post(&server, "/v1/responses", &json!({"model": "clerk", "input": "Pay."}));
    let asked = json_of(&asked);
    let output = asked["output"].as_array().unwrap();
    let request_item = output.iter().find(|item| item["type"] == "mcp_approval_request").unwrap();
    check(
        &json!([request_item["arguments"], request_item["abide"]]),
        expect![[r#"
        "{\"order\":\"A-7\"}"
        {"agent":"clerk","approvalId":"APPROVAL","arguments":{"order":"A-7"},"callId":"RUN~1.1","defaults":{"order":"A-8"},"expiresAt":"TIME","prompt":"Refund this?","sessionId":"SESSION","tool":"refund"}
    "#]],
    );
    decide(&server).await;
    let next = asked["id"].as_str().unwrap().replacen("resp_1_", "resp_2_", 1);
    let path = format!("/v1/responses/{next}");
    let read = json_of(&request(&server, "GET", &path, "", &JsonValue::Null));
    // The call past the limit has its result before the decisions.
    let items = output.iter().chain(read["output"].as_array().unwrap());
    let shown: Vec<JsonValue> = items
        .filter(|item| item["type"] == "mcp_call")
        .map(|item| {
            json!([item["status"], item["arguments"], item["output"], item["error"], item["abide"]])
        })
        .collect();
    check(
        &json!(shown),
        expect![[r#"
        ["incomplete","{\"order\":\"A-7\"}",null,null,null]
        ["incomplete","{\"order\":\"B-1\"}",null,null,null]
        ["incomplete","{\"order\":\"C-1\"}",null,null,null]
        ["incomplete","{}",null,null,null]
        ["incomplete","{}",null,null,null]
        ["failed","{}",null,"This call was skipped: the run has reached its tool call limit.",{"callId":"RUN~1.6","status":"skipped","tool":"broken"}]
        ["completed","{\"order\":\"EDITED\"}","paid EDITED",null,{"arguments":{"order":"EDITED"},"callId":"RUN~1.1","exitCode":0,"status":"succeeded","tool":"refund"}]
        ["failed","{\"order\":\"B-1\"}",null,"Rejected: Not this one.",{"callId":"RUN~1.2","status":"rejected","tool":"refund"}]
        ["failed","{\"order\":\"C-1\"}",null,"The call was cancelled before it began: it did not run.",{"callId":"RUN~1.3","status":"cancelled","tool":"refund"}]
        ["failed","{}",null,"broken failed with exit code 3\nstdout:\nit broke",{"callId":"RUN~1.4","exitCode":3,"status":"failed","tool":"broken"}]
        ["failed","{}",null,"killed failed with exit code 137",{"callId":"RUN~1.5","exitCode":137,"status":"failed","tool":"killed"}]
    "#]],
    );
}

#[tokio::test]
async fn a2a_shows_questions_edits_and_results() {
    let (server, _folder) = server();
    let message = json!({"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Pay."}]});
    let sent = a2a(&server, "SendMessage", json!({"message": message}));
    let task = &sent["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{sent}");
    let parts = &task["status"]["message"]["parts"];
    check(
        &json!([parts[0]["text"], parts[1]["data"]["approvals"][0]]),
        expect![[r#"
        "Refund this? May clerk call refund with {\"order\":\"A-7\"}? Suggested values: {\"order\":\"A-8\"}.\nRefund this? May clerk call refund with {\"order\":\"B-1\"}? Suggested values: {\"order\":\"A-8\"}.\nRefund this? May clerk call refund with {\"order\":\"C-1\"}? Suggested values: {\"order\":\"A-8\"}. Answer approve, or why not."
        {"agent":"clerk","approvalId":"APPROVAL","arguments":{"order":"A-7"},"callId":"RUN~1.1","defaults":{"order":"A-8"},"expiresAt":"TIME","prompt":"Refund this?","sessionId":"SESSION","tool":"refund"}
    "#]],
    );
    decide(&server).await;
    let read = a2a(&server, "GetTask", json!({"id": task["id"]}));
    assert_eq!(read["status"]["state"], "TASK_STATE_COMPLETED");
    check(
        &read["metadata"],
        expect![[r#"
        {"toolResults":[{"arguments":{"order":"EDITED"},"callId":"RUN~1.1","exitCode":0,"status":"succeeded","tool":"refund"},{"callId":"RUN~1.2","status":"rejected","tool":"refund"},{"callId":"RUN~1.3","status":"cancelled","tool":"refund"},{"callId":"RUN~1.4","exitCode":3,"status":"failed","tool":"broken"},{"callId":"RUN~1.5","exitCode":137,"status":"failed","tool":"killed"},{"callId":"RUN~1.6","status":"skipped","tool":"broken"}]}
    "#]],
    );
}

#[tokio::test]
async fn mcp_shows_questions_edits_and_results() {
    let (server, _folder) = server();
    let tasks = json!({"io.modelcontextprotocol/tasks": {}});
    let arguments = json!({"message": "Pay."});
    let call = json!({"name": "agent_clerk", "arguments": arguments, "extensions": tasks});
    let begun = mcp(&server, "tools/call", call);
    let id = &begun["taskId"];
    fetch_until_rows(&server, "SELECT id FROM runs WHERE status = 'waiting'").await;
    let task = mcp(&server, "tasks/get", json!({"taskId": id, "extensions": tasks}));
    let form = task["inputRequests"].as_object().unwrap().values().next().unwrap();
    check(
        &json!([task["statusMessage"], form]),
        expect![[r#"
        "Refund this? May clerk call refund with {\"order\":\"A-7\"}? Suggested values: {\"order\":\"A-8\"}. (call RUN~1.1)\nRefund this? May clerk call refund with {\"order\":\"B-1\"}? Suggested values: {\"order\":\"A-8\"}. (call RUN~1.2)\nRefund this? May clerk call refund with {\"order\":\"C-1\"}? Suggested values: {\"order\":\"A-8\"}. (call RUN~1.3)"
        {"method":"elicitation/create","params":{"_meta":{"abide/approval":{"agent":"clerk","approvalId":"APPROVAL","arguments":{"order":"A-7"},"callId":"RUN~1.1","defaults":{"order":"A-8"},"expiresAt":"TIME","prompt":"Refund this?","sessionId":"SESSION","tool":"refund"}},"message":"Refund this? May clerk call refund with {\"order\":\"A-7\"}? Suggested values: {\"order\":\"A-8\"}.","mode":"form","requestedSchema":{"properties":{"approve":{"title":"Approve","type":"boolean"},"comment":{"title":"Comment for the agent","type":"string"}},"required":["approve"],"type":"object"}}}
    "#]],
    );
    decide(&server).await;
    let task = mcp(&server, "tasks/get", json!({"taskId": id, "extensions": tasks}));
    check(
        &task["result"],
        expect![[r#"
        {"_meta":{"abide/toolResults":[{"arguments":{"order":"EDITED"},"callId":"RUN~1.1","exitCode":0,"status":"succeeded","tool":"refund"},{"callId":"RUN~1.2","status":"rejected","tool":"refund"},{"callId":"RUN~1.3","status":"cancelled","tool":"refund"},{"callId":"RUN~1.4","exitCode":3,"status":"failed","tool":"broken"},{"callId":"RUN~1.5","exitCode":137,"status":"failed","tool":"killed"},{"callId":"RUN~1.6","status":"skipped","tool":"broken"}]},"content":[{"text":"That is all.","type":"text"}],"isError":false,"structuredContent":{"output":{"content":"That is all.","message_id":9},"run_id":"RUN","session_id":"SESSION","status":"done"}}
    "#]],
    );

    // An exposed tool: its form, and its result.
    let call = |key: &str, name: &str, arguments: JsonValue| json!({"name": name, "arguments": arguments, "_meta": {"abide/request_id": key}});
    let refund = call("k1", "refund", json!({"order": "C-1"}));
    let asked = mcp(&server, "tools/call", refund.clone());
    let form = asked["inputRequests"].as_object().unwrap().values().next().unwrap();
    check(
        form,
        expect![[r#"
        {"method":"elicitation/create","params":{"_meta":{"abide/approval":{"approvalId":"APPROVAL","arguments":{"order":"C-1"},"callId":"CALL","defaults":{"order":"A-8"},"expiresAt":"TIME","prompt":"Refund this?","tool":"refund"}},"message":"Refund this? May the agent call refund with {\"order\":\"C-1\"}? Suggested values: {\"order\":\"A-8\"}.","mode":"form","requestedSchema":{"properties":{"approve":{"title":"Approve","type":"boolean"},"comment":{"title":"Comment for the agent","type":"string"}},"required":["approve"],"type":"object"}}}
    "#]],
    );
    let client = server.client().await;
    let sql = "SELECT call_id FROM approvals WHERE status = 'pending'";
    let pending: Vec<(String,)> = client.sql(sql).fetch().await.unwrap();
    let call_id = format!("call_id={}", pending[0].0);
    let edited = r#"approved_arguments={"order":"EDITED"}"#;
    server.run(&["call", "decide_approval", &call_id, "decision=approve", edited]).good();
    let paid = mcp(&server, "tools/call", refund);
    check(
        &json!([paid["content"], paid["structuredContent"]["approved_arguments"]]),
        expect![[r#"
            [{"text":"paid EDITED","type":"text"}]
            {"order":"EDITED"}
        "#]],
    );
    let failed = mcp(&server, "tools/call", call("k2", "broken", json!({})));
    assert_eq!(failed["isError"], true);
    assert_eq!(failed["structuredContent"]["status"], "failed");
    assert_eq!(failed["structuredContent"]["exit_code"], 3);
}

/// In MCP 2025-11-25 the form is a request of the server on the stream of the call.
#[tokio::test]
async fn mcp_with_sessions_shows_questions_edits_and_results() {
    let (server, _folder) = server();
    let initialize = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"}});
    let (head, _) = session_request(&server, "", "initialize", initialize);
    let session = head.iter().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
    let session = format!("mcp-session-id: {session}\r\n");
    let call = json!({"name": "agent_clerk", "arguments": {"message": "Pay."}, "task": {}});
    let (_, begun) = session_request(&server, &session, "tools/call", call);
    let task = json!({"taskId": begun["result"]["task"]["taskId"]});
    fetch_until_rows(&server, "SELECT id FROM runs WHERE status = 'waiting'").await;
    let (_, form) = session_request(&server, &session, "tasks/result", task.clone());
    check(
        &json!([form["method"], form["params"]]),
        expect![[r#"
        "elicitation/create"
        {"_meta":{"abide/approval":{"agent":"clerk","approvalId":"APPROVAL","arguments":{"order":"A-7"},"callId":"RUN~1.1","defaults":{"order":"A-8"},"expiresAt":"TIME","prompt":"Refund this?","sessionId":"SESSION","tool":"refund"}},"message":"Refund this? May clerk call refund with {\"order\":\"A-7\"}? Suggested values: {\"order\":\"A-8\"}.","mode":"form","requestedSchema":{"properties":{"approve":{"title":"Approve","type":"boolean"},"comment":{"title":"Comment for the agent","type":"string"}},"required":["approve"],"type":"object"}}
    "#]],
    );
    decide(&server).await;
    let (_, ended) = session_request(&server, &session, "tasks/result", task);
    check(
        &ended["result"]["_meta"]["abide/toolResults"],
        expect![[r#"
        {"arguments":{"order":"EDITED"},"callId":"RUN~1.1","exitCode":0,"status":"succeeded","tool":"refund"}
        {"callId":"RUN~1.2","status":"rejected","tool":"refund"}
        {"callId":"RUN~1.3","status":"cancelled","tool":"refund"}
        {"callId":"RUN~1.4","exitCode":3,"status":"failed","tool":"broken"}
        {"callId":"RUN~1.5","exitCode":137,"status":"failed","tool":"killed"}
        {"callId":"RUN~1.6","status":"skipped","tool":"broken"}
    "#]],
    );
    let call = json!({"name": "broken", "arguments": {}});
    let (_, failed) = session_request(&server, &session, "tools/call", call);
    let result = &failed["result"];
    assert_eq!(result["isError"], true, "{failed}");
    assert_eq!(result["structuredContent"]["status"], "failed");
    assert_eq!(result["structuredContent"]["exit_code"], 3);
}

/// The lines before the body of an answer to a client of MCP 2025-11-25, and the first message.
fn session_request(
    server: &Server,
    session: &str,
    method: &str,
    params: JsonValue,
) -> (Vec<String>, JsonValue) {
    let mut socket = TcpStream::connect(server.address()).unwrap();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let host = server.address();
    let length = body.len();
    write!(
        socket,
        "POST /mcp HTTP/1.0\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: 2025-11-25\r\n\
         {session}content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut head = Vec::new();
    for line in BufReader::new(socket).lines() {
        let line = line.unwrap();
        let message = line.strip_prefix("data: ").unwrap_or(&line);
        if message.starts_with('{') {
            return (head, json_of(message));
        }
        head.push(line);
    }
    panic!("no message: {head:?}");
}

/// REST has the events as they are stored.
#[tokio::test]
async fn rest_shows_questions_edits_and_results() {
    let (server, _folder) = server();
    let start = ["call", "create_session", "agent=clerk", "id=s1"];
    server.run(&start).good();
    server.run(&["call", "start_run", "session_id=s1", "id=r1", "input=Pay."]).good();
    decide(&server).await;
    let stream = request(&server, "GET", "/v1/runs/r1/events", "", &JsonValue::Null);
    let events = events(&stream);
    assert!(!events.is_empty(), "{stream}");
    let interrupt = events.iter().find(|event| event["event"] == "interrupt").unwrap();
    check(
        &interrupt["data"]["action_requests"][0],
        expect![[r#"
        {"approval_id":"APPROVAL","args":{"order":"A-7"},"defaults":{"order":"A-8"},"expires_at":TIME,"prompt":"Refund this?","status":"awaiting_approval","tool_call_id":"RUN~1.1","tool_name":"refund"}
    "#]],
    );
    let results: Vec<&JsonValue> =
        events.iter().filter(|it| it["event"] == "tool_result").map(|it| &it["data"]).collect();
    check(
        &json!(results),
        expect![[r#"
        {"exit_code":1,"output":"This call was skipped: the run has reached its tool call limit.","status":"skipped","tool_call_id":"RUN~1.6"}
        {"approved_args":{"order":"EDITED"},"exit_code":0,"output":"paid EDITED","status":"succeeded","tool_call_id":"RUN~1.1"}
        {"exit_code":1,"output":"Rejected: Not this one.","status":"rejected","tool_call_id":"RUN~1.2"}
        {"exit_code":1,"output":"The call was cancelled before it began: it did not run.","status":"cancelled","tool_call_id":"RUN~1.3"}
        {"exit_code":3,"output":"broken failed with exit code 3\nstdout:\nit broke","status":"failed","tool_call_id":"RUN~1.4"}
        {"exit_code":137,"output":"killed failed with exit code 137","status":"failed","tool_call_id":"RUN~1.5"}
    "#]],
    );
}

/// A run on a terminal that cannot ask ends with exit code 5, and its hint has the question.
#[tokio::test]
async fn the_command_line_shows_questions_edits_and_results() {
    let (server, folder) = server();
    let agents = folder.path().display().to_string();
    let run = ["agent", "run", "--id", "r1", "--agents", &agents, "clerk", "Pay."];
    let asked = server.run(&run);
    assert_eq!(asked.code, Some(5), "{asked:?}");
    let question = r#"Refund this?  refund {"order":"A-7"}  (suggested: {"order":"A-8"})"#;
    assert!(asked.stderr.contains(question), "{asked:?}");
    decide(&server).await;
    let shown = server.run(&run);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    check(
        &json!(shown.stdout.lines().collect::<Vec<&str>>()),
        expect![[r#"
        "→ refund {\"order\":\"A-7\"}"
        "→ refund {\"order\":\"B-1\"}"
        "→ refund {\"order\":\"C-1\"}"
        "→ broken {}"
        "→ killed {}"
        "→ broken {}"
        "← This call was skipped: the run has reached its tool call limit."
        "← paid EDITED  (ran with {\"order\":\"EDITED\"})"
        "← Rejected: Not this one."
        "← The call was cancelled before it began: it did not run."
        "← broken failed with exit code 3 ⏎ stdout: ⏎ it broke"
        "← killed failed with exit code 137"
        "That is all."
    "#]],
    );
    let raw =
        server.run(&["agent", "run", "--json", "--id", "r1", "--agents", &agents, "clerk", "Pay."]);
    for status in STATUSES {
        assert!(raw.stdout.contains(&format!("\"status\":\"{status}\"")), "{status}: {raw:?}");
    }
}

/// The statuses are also in the messages of a copy of the session and of an exported run.
#[tokio::test]
async fn forks_and_exports_keep_the_results() {
    let (server, _folder) = server();
    let start = ["call", "create_session", "agent=clerk", "id=s1"];
    server.run(&start).good();
    server.run(&["call", "start_run", "session_id=s1", "id=r1", "input=Pay."]).good();
    decide(&server).await;
    server.run(&["call", "fork_session", "session_id=s1", "id=s2"]).good();
    fetch_until_rows(&server, "SELECT id FROM sessions WHERE id = 's2' AND status = 'active'")
        .await;
    for session in ["s1", "s2"] {
        let results = results(&server, session).await;
        let statuses: Vec<&JsonValue> = results.iter().map(|result| &result["status"]).collect();
        assert_eq!(statuses, STATUSES, "{session}");
        let codes: Vec<&JsonValue> = results.iter().map(|result| &result["exit_code"]).collect();
        assert_eq!(codes, [0, 1, 1, 3, 137, 1], "{session}");
    }
    // A snapshot is that of a run that waits.
    server.run(&["call", "start_run", "session_id=s1", "id=r2", "input=Again."]).good();
    fetch_until_rows(&server, "SELECT id FROM runs WHERE id = 'r2' AND status = 'waiting'").await;
    let exported = server.run(&["agent", "export", "r2", "--copy"]).good();
    for status in STATUSES {
        assert!(exported.contains(&format!("\"status\":\"{status}\"")), "{status}: {exported}");
    }
}

/// A tool that runs when its run is aborted.
#[tokio::test]
async fn an_aborted_call_is_shown_as_cancelled() {
    let (server, _folder) = server();
    let start = ["call", "create_session", "agent=sleeper", "id=s1"];
    server.run(&start).good();
    server.run(&["call", "start_run", "session_id=s1", "id=r1", "input=Sleep."]).good();
    fetch_until_rows(&server, "SELECT call_id FROM tool_calls WHERE status = 'claimed'").await;
    server.run(&["call", "abort_run", "id=r1"]).good();
    fetch_until_rows(&server, "SELECT call_id FROM tool_calls WHERE status = 'cancelled'").await;
    let path = "/v1/agents/sleeper/chat/s1/stream";
    let parts = events(&request(&server, "GET", path, "", &JsonValue::Null));
    check(
        &json!(parts),
        expect![[r#"
        {"messageId":"msg_RUN","messageMetadata":{"runId":"RUN"},"type":"start"}
        {"type":"start-step"}
        {"dynamic":true,"input":{},"providerExecuted":true,"toolCallId":"RUN~1.1","toolName":"nap","type":"tool-input-available"}
        {"dynamic":true,"errorText":"The run ended before the call had a result.","providerExecuted":true,"toolCallId":"RUN~1.1","type":"tool-output-error"}
        {"data":{"callId":"RUN~1.1","status":"cancelled","tool":"nap"},"id":"RUN~1.1","type":"data-tool-result"}
        {"type":"finish-step"}
        {"reason":"the run was aborted","type":"abort"}
    "#]],
    );
}

/// The data of the results of tool calls in a session, in order.
async fn results(server: &Server, session: &str) -> Vec<JsonValue> {
    let client = server.client().await;
    let sql = "SELECT data FROM agent_state WHERE session_id = :sid AND role = 'tool' ORDER BY data->>'provider_call_id'";
    let rows: Vec<(Json,)> = client.sql(sql).param("sid", session).fetch().await.unwrap();
    rows.into_iter().map(|(data,)| data.value()).collect()
}

/// Waits until a query of ids has rows; returns the first id.
async fn fetch_until_rows(server: &Server, sql: &str) -> String {
    let client = server.client().await;
    let mut rows = client.subscribe(sql).await.unwrap();
    while let Some(Ok(_)) = rows.next().await {
        if let Some((id,)) = rows.typed_rows::<(String,)>().unwrap().into_iter().next() {
            return id;
        }
    }
    panic!("the server has stopped before a row appeared: {sql}");
}
