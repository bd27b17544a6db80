//! The right id through the wrong parent, over every route with two ids: a task through another agent's address, an approval through
//! another run's, a label through another prompt. The parent is one of the same tenant, or of another tenant. The answer is that there
//! is no such thing, and nothing changes.
//!
//! Regression: a page of one chat could approve the call of another, because only the calls that had to be decided were
//! checked, and not those that were. A new path of the OpenAPI description has to be added to one of the lists here.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use abide_protocols::{AgentProtocols, WebhookFuture, WebhookRequest, WebhookSender};
use abide_schema::Caller;
use abide_server::AccessConfig;
use expect_test::expect;
use serde_json::{Map, Value as JsonValue, json};

use crate::http::{Request, Response};
use crate::mcp::modern;
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

/// Tenants, each with a token of the role `app`.
const ANN: &str = "annannann";
const ZED: &str = "zedzedzed";

/// The paths that name a thing within another thing, in the path or in the body. Each has cases below.
const NESTED: [&str; 12] = [
    "/a2a/{agent}",
    "/mcp",
    "/v1/agents/{name}/ag-ui",
    "/v1/agents/{name}/chat",
    "/v1/agents/{name}/chat/{id}/stream",
    "/v1/agents/{name}/invoke",
    "/v1/agents/{name}/runs",
    "/v1/prompts/{name}",
    "/v1/prompts/{name}/labels/{label}",
    "/v1/prompts/{name}/render",
    "/v1/responses",
    "/v1/sessions",
];

/// The other paths: they name one thing, or nothing that belongs to a caller. A `batch` is calls of reducers, whose ids are tested in
/// `tests/it/`. Pages (`after`, `before`, `at`) continue at a number, which belongs to no thing.
const SINGLE: [&str; 33] = [
    "/",
    "/.well-known/agent-card.json",
    "/.well-known/jwks.json",
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-protected-resource/mcp",
    "/a2a/{agent}/.well-known/agent-card.json",
    "/a2a/{agent}/v0.3/.well-known/agent-card.json",
    "/agents",
    "/agents/{name}",
    "/capabilities",
    "/health",
    "/metrics",
    "/openapi.json",
    "/ready",
    "/v1/batch",
    "/v1/explain",
    "/v1/imports",
    "/v1/live",
    "/v1/models",
    "/v1/prompts",
    "/v1/responses/{id}",
    "/v1/responses/{id}/cancel",
    "/v1/runs/{id}",
    "/v1/runs/{id}/abort",
    "/v1/runs/{id}/checkpoints",
    "/v1/runs/{id}/events",
    "/v1/runs/{id}/export",
    "/v1/runs/{id}/pause",
    "/v1/runs/{id}/resume",
    "/v1/schema",
    "/v1/sessions/{id}",
    "/v1/sessions/{id}/abort",
    "/v1/sessions/{id}/fork",
];

/// As [`SINGLE`], of a session or of a query.
const OF_ROWS: [&str; 5] =
    ["/v1/sessions/{id}/messages", "/v1/sessions/{id}/state", "/v1/sql", "/v1/subscribe", "/v1/ws"];

/// A receiver of push notifications that nobody reads.
#[derive(Debug)]
struct Silent;

impl WebhookSender for Silent {
    fn check(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn send(&self, _: WebhookRequest) -> WebhookFuture<'_> {
        Box::pin(std::future::ready(Ok(200)))
    }
}

/// Two sessions of acme whose runs wait for an approval, one of zeta, and prompts.
async fn home() -> TokenServer {
    let protocols =
        AgentProtocols { webhooks: Some(Arc::new(Silent)), ..AgentProtocols::default() };
    let server = TestServer::with_protocols(AccessConfig::loopback(), protocols).await;
    let home = TokenServer(server);
    home.with(ANN, json!({"scope": {"tenant": "acme"}})).await;
    home.with(ZED, json!({"scope": {"tenant": "zeta"}})).await;
    for name in ["clerk", "other"] {
        let definition = json!({"a2a_exposed": true, "mcp_exposed": true});
        home.local("register_agent", json!({"name": name, "definition": definition})).await;
    }
    let tool = json!({"name": "refund", "approval": {"prompt": "Refund?"}});
    home.local("register_tool", tool).await;
    for (who, tenant, name) in [(ANN, "acme", "one"), (ANN, "acme", "two"), (ZED, "zeta", "zed")] {
        let session = json!({"id": format!("s-{name}"), "agent": "clerk"});
        home.call(who, "create_session", session).await;
        let run = json!({"session_id": format!("s-{name}"), "id": format!("r-{name}")});
        home.call(who, "start_run", run).await;
        wait_for_approval(&home, &format!("tenant={tenant}/"), name).await;
        let hook = json!({"run_id": format!("r-{name}"), "name": format!("p-{name}"),
            "url": "https://receiver.example"});
        assert_eq!(home.call(who, "put_webhook", hook).await.status, 200);
    }
    for name in ["greeting", "farewell"] {
        let put = json!({"text": "Hello", "labels": ["live"]}).to_string();
        home.ask(&token(ANN), "PUT", &format!("/v1/prompts/{name}"), &put).await;
    }
    let again = json!({"text": "Good day", "labels": ["next"]}).to_string();
    home.ask(&token(ANN), "PUT", "/v1/prompts/greeting", &again).await;
    home
}

/// Lets a run wait for the approval of a call.
async fn wait_for_approval(home: &TokenServer, namespace: &str, name: &str) {
    let run = format!("{namespace}r-{name}");
    let session = format!("{namespace}s-{name}");
    let fencing = crate::runs::claim(&home.0, &run).await;
    let call_id = format!("{run}~1.1");
    let call = json!({"call_id": call_id, "session_id": session, "tool_name": "refund",
        "arguments": {}, "run_id": run, "run_fencing_token": fencing});
    home.local("request_tool_call", call).await;
    let asked = json!({"tool_call_id": call_id, "tool_name": "refund", "args": {},
        "status": "awaiting_approval"});
    let interrupt = json!({"reason": "approval", "action_requests": [asked]});
    let wait = json!({"id": run, "fencing_token": fencing, "interrupt": interrupt});
    home.local("wait_run", wait).await;
}

/// Everything that a case must not change.
async fn state(home: &TokenServer) -> String {
    let sql = "SELECT (SELECT json_group_array(json_array(id, status, turn)) FROM runs), \
               (SELECT json_group_array(json_array(call_id, status)) FROM tool_calls), \
               (SELECT json_group_array(json_array(call_id, status)) FROM approvals), \
               (SELECT json_group_array(id) FROM sessions), \
               (SELECT json_group_array(json_array(run_id, name)) FROM webhooks), \
               (SELECT json_group_array(json_array(prompt, label, version)) FROM prompt_labels), \
               (SELECT count(*) FROM agent_state)";
    let found = home.0.engine.query(&Caller::local(), sql, &Map::new(), None).await;
    format!("{:?}", found.expect("the query is valid").rows)
}

/// What a request names.
#[derive(Clone, Copy)]
struct Names<'a> {
    /// The address: an agent, a chat, a task.
    agent: &'a str,
    parent: &'a str,
    child: &'a str,
}

type Case = (&'static str, &'static str, fn(Names<'_>) -> JsonValue);

fn decision(names: Names<'_>) -> JsonValue {
    let parts = [names.child, names.parent].map(|name| {
        json!({"type": "dynamic-tool", "toolName": "refund", "state": "approval-responded",
            "approval": {"id": format!("r-{name}~1.1"), "approved": true}})
    });
    json!({"id": format!("s-{}", names.parent), "trigger": "submit-message",
        "messages": [{"id": "a", "role": "assistant", "parts": parts}]})
}

fn resume(names: Names<'_>, payload: &JsonValue) -> JsonValue {
    let own = json!({"interruptId": format!("r-{}~1.1", names.parent), "status": "resolved",
        "payload": {"approved": true}});
    json!({"threadId": format!("s-{}", names.parent), "runId": "r", "resume": [own,
        {"interruptId": format!("r-{}~1.1", names.child), "status": "resolved", "payload": payload}]})
}

fn message(names: Names<'_>) -> JsonValue {
    let decisions = json!([{"callId": format!("r-{}~1.1", names.child), "approve": true},
        {"callId": format!("r-{}~1.1", names.parent), "approve": true}]);
    json!({"message": {"messageId": "m", "role": "ROLE_USER", "taskId": format!("r-{}", names.parent),
        "parts": [{"data": {"decisions": decisions}}]}, "configuration": {"returnImmediately": true}})
}

fn task(names: Names<'_>) -> JsonValue {
    json!({"id": format!("r-{}", names.child)})
}

fn push(names: Names<'_>) -> JsonValue {
    json!({"taskId": format!("r-{}", names.parent), "id": format!("p-{}", names.child),
        "url": "https://attacker.example"})
}

/// A decision on a call whose run has another address, and a configuration of another task. The deletion of what does not exist is no
/// error in A2A.
const CALLS: [Case; 7] = [
    ("POST", "/v1/agents/AGENT/chat", decision),
    ("POST", "/v1/agents/AGENT/ag-ui", |names| resume(names, &json!({"approved": true}))),
    ("POST", "/v1/agents/AGENT/ag-ui", |names| resume(names, &json!({"outcome": "succeeded"}))),
    ("POST", "/v1/responses", |names| {
        json!({"model": "clerk", "previous_response_id": format!("resp_1_r-{}", names.parent),
            "background": true, "input": [{"type": "mcp_approval_response", "approve": true,
                "approval_request_id": format!("r-{}~1.1", names.child)},
                {"type": "mcp_approval_response", "approve": true,
                "approval_request_id": format!("r-{}~1.1", names.parent)}]})
    }),
    ("SendMessage", "/a2a/AGENT", message),
    ("GetTaskPushNotificationConfig", "/a2a/AGENT", push),
    ("DeleteTaskPushNotificationConfig", "/a2a/AGENT", push),
];

/// A run or a session through the address of another agent.
const AGENTS: [Case; 15] = [
    ("POST", "/v1/agents/AGENT/chat", decision),
    ("POST", "/v1/agents/AGENT/ag-ui", |names| resume(names, &json!({"approved": true}))),
    ("POST", "/v1/agents/AGENT/ag-ui", |names| resume(names, &json!({"outcome": "failed"}))),
    ("GET", "/v1/agents/AGENT/chat/s-CHILD/stream", |_| JsonValue::Null),
    (
        "POST",
        "/v1/agents/AGENT/runs",
        |names| json!({"input": "x", "session_id": format!("s-{}", names.child)}),
    ),
    (
        "POST",
        "/v1/agents/AGENT/invoke",
        |names| json!({"input": "x", "session_id": format!("s-{}", names.child), "wait_ms": 1}),
    ),
    ("SendMessage", "/a2a/AGENT", message),
    ("GetTask", "/a2a/AGENT", task),
    ("CancelTask", "/a2a/AGENT", task),
    ("SubscribeToTask", "/a2a/AGENT", task),
    ("CreateTaskPushNotificationConfig", "/a2a/AGENT", push),
    ("GetTaskPushNotificationConfig", "/a2a/AGENT", push),
    ("ListTaskPushNotificationConfigs", "/a2a/AGENT", push),
    ("DeleteTaskPushNotificationConfig", "/a2a/AGENT", push),
    ("tools/call", "/mcp", |names| {
        json!({"name": format!("agent_{}", names.agent), "arguments": {"message": "x"},
            "requestState": format!("r-{}", names.child)})
    }),
];

/// A part of another prompt, and a parent of another tenant.
const PARTS: [Case; 4] = [
    ("DELETE", "/v1/prompts/farewell/labels/next", |_| JsonValue::Null),
    ("PUT", "/v1/prompts/farewell/labels/live", |_| json!({"version": 2})),
    ("GET", "/v1/prompts/farewell?at=next", |_| JsonValue::Null),
    ("POST", "/v1/prompts/farewell/render", |_| json!({"at": "next", "variables": {}})),
];

/// A request of acme.
fn request<'a>(home: &'a TokenServer, (method, path, body): Case, names: Names<'_>) -> Request<'a> {
    let path = path.replace("AGENT", names.agent).replace("CHILD", names.child);
    let body = body(names);
    if path == "/mcp" {
        return modern(&home.0, Some(&token(ANN)), method, body);
    }
    let (method, body) = match method {
        "GET" | "POST" | "PUT" | "DELETE" => (method, body),
        name => ("POST", json!({"jsonrpc": "2.0", "id": 7, "method": name, "params": body})),
    };
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let request = home.0.request(method, &path).header("a2a-version", "1.0");
    request.header("authorization", &format!("Bearer {}", token(ANN))).body(text)
}

/// The status and the code of an answer.
fn code(answer: &Response) -> String {
    if answer.body.is_empty() {
        return answer.status.to_string();
    }
    let body = answer.json();
    let of_rpc = [&body["error"]["data"][0]["reason"], &body["error"]["code"]];
    let code = [&body["code"]].into_iter().chain(of_rpc).find(|code| !code.is_null());
    format!("{} {}", answer.status, code.cloned().unwrap_or(body.clone()))
}

async fn check(cases: &[Case], names: Names<'_>, table: &mut String) {
    let home = home().await;
    let before = state(&home).await;
    for case in cases {
        let answer = request(&home, *case, names).send().await;
        let Names { agent, parent, child } = names;
        let (method, path, _) = case;
        let what = format!("{method} {path} of {agent}, {child} through {parent}");
        assert_eq!(state(&home).await, before, "{what}: {answer:?}");
        writeln!(table, "{method} {path}: {}", code(&answer))
            .expect("writing to a string succeeds");
    }
}

#[tokio::test]
async fn a_call_is_decided_through_its_own_run_only() {
    for (parent, child) in [("two", "one"), ("two", "zed"), ("zed", "one")] {
        let mut table = format!("{child} through {parent}\n");
        check(&CALLS, Names { agent: "clerk", parent, child }, &mut table).await;
        match (parent, child) {
            ("two", "one") => expect![[r#"
                one through two
                POST /v1/agents/AGENT/chat: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                POST /v1/responses: 404 "not_found"
                SendMessage /a2a/AGENT: 200 "NOT_FOUND"
                GetTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                DeleteTaskPushNotificationConfig /a2a/AGENT: 200 {"id":7,"jsonrpc":"2.0","result":{}}
            "#]].assert_eq(&table),
            ("two", _) => expect![[r#"
                zed through two
                POST /v1/agents/AGENT/chat: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                POST /v1/responses: 404 "not_found"
                SendMessage /a2a/AGENT: 200 "NOT_FOUND"
                GetTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                DeleteTaskPushNotificationConfig /a2a/AGENT: 200 {"id":7,"jsonrpc":"2.0","result":{}}
            "#]].assert_eq(&table),
            _ => expect![[r#"
                one through zed
                POST /v1/agents/AGENT/chat: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                POST /v1/responses: 404 "not_found"
                SendMessage /a2a/AGENT: 200 "TASK_NOT_FOUND"
                GetTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                DeleteTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
            "#]].assert_eq(&table),
        }
    }
}

#[tokio::test]
async fn a_run_is_reached_through_its_own_agent_only() {
    for (agent, of) in [("other", "one"), ("other", "zed"), ("clerk", "zed")] {
        let mut table = format!("{of} through {agent}\n");
        check(&AGENTS, Names { agent, parent: of, child: of }, &mut table).await;
        match (agent, of) {
            ("other", "one") => expect![[r#"
                one through other
                POST /v1/agents/AGENT/chat: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                GET /v1/agents/AGENT/chat/s-CHILD/stream: 204
                POST /v1/agents/AGENT/runs: 409 "bad_transition"
                POST /v1/agents/AGENT/invoke: 409 "bad_transition"
                SendMessage /a2a/AGENT: 200 "TASK_NOT_FOUND"
                GetTask /a2a/AGENT: 200 "TASK_NOT_FOUND"
                CancelTask /a2a/AGENT: 200 "TASK_NOT_FOUND"
                SubscribeToTask /a2a/AGENT: 200 "TASK_NOT_FOUND"
                CreateTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                GetTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                ListTaskPushNotificationConfigs /a2a/AGENT: 200 "TASK_NOT_FOUND"
                DeleteTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                tools/call /mcp: 200 -32602
            "#]]
            .assert_eq(&table),
            ("other", _) => expect![[r#"
                zed through other
                POST /v1/agents/AGENT/chat: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                GET /v1/agents/AGENT/chat/s-CHILD/stream: 204
                POST /v1/agents/AGENT/runs: 404 "not_found"
                POST /v1/agents/AGENT/invoke: 404 "not_found"
                SendMessage /a2a/AGENT: 200 "TASK_NOT_FOUND"
                GetTask /a2a/AGENT: 200 "TASK_NOT_FOUND"
                CancelTask /a2a/AGENT: 200 "TASK_NOT_FOUND"
                SubscribeToTask /a2a/AGENT: 200 "TASK_NOT_FOUND"
                CreateTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                GetTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                ListTaskPushNotificationConfigs /a2a/AGENT: 200 "TASK_NOT_FOUND"
                DeleteTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                tools/call /mcp: 200 -32602
            "#]]
            .assert_eq(&table),
            _ => expect![[r#"
                zed through clerk
                POST /v1/agents/AGENT/chat: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                POST /v1/agents/AGENT/ag-ui: 404 "not_found"
                GET /v1/agents/AGENT/chat/s-CHILD/stream: 204
                POST /v1/agents/AGENT/runs: 404 "not_found"
                POST /v1/agents/AGENT/invoke: 404 "not_found"
                SendMessage /a2a/AGENT: 200 "TASK_NOT_FOUND"
                GetTask /a2a/AGENT: 200 "TASK_NOT_FOUND"
                CancelTask /a2a/AGENT: 200 "TASK_NOT_FOUND"
                SubscribeToTask /a2a/AGENT: 200 "TASK_NOT_FOUND"
                CreateTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                GetTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                ListTaskPushNotificationConfigs /a2a/AGENT: 200 "TASK_NOT_FOUND"
                DeleteTaskPushNotificationConfig /a2a/AGENT: 200 "TASK_NOT_FOUND"
                tools/call /mcp: 200 -32602
            "#]]
            .assert_eq(&table),
        }
    }
}

#[tokio::test]
async fn a_part_is_reached_through_its_own_whole_only() {
    let mut table = String::new();
    check(&PARTS, Names { agent: "clerk", parent: "one", child: "one" }, &mut table).await;
    // A parent of another tenant.
    let home = home().await;
    let before = state(&home).await;
    let child = json!({"agent": "clerk", "parent_id": "tenant=zeta/s-zed"}).to_string();
    let answer = home.ask(&token(ANN), "POST", "/v1/sessions", &child).await;
    writeln!(table, "POST /v1/sessions: {}", code(&answer)).expect("writing succeeds");
    // An approval in a response for another task is ignored, as one that comes too late.
    let update = json!({"taskId": "r-two",
        "inputResponses": {"r-one~1.1": {"action": "accept", "content": {"approve": true}}}});
    modern(&home.0, Some(&token(ANN)), "tasks/update", update).send().await;
    assert_eq!(state(&home).await, before);
    expect![[r#"
        DELETE /v1/prompts/farewell/labels/next: 404 "not_found"
        PUT /v1/prompts/farewell/labels/live: 404 "not_found"
        GET /v1/prompts/farewell?at=next: 404 "not_found"
        POST /v1/prompts/farewell/render: 404 "not_found"
        POST /v1/sessions: 404 "not_found"
    "#]]
    .assert_eq(&table);
}

#[tokio::test]
async fn every_path_is_in_one_of_the_lists() {
    let home = home().await;
    let described = home.ask(&token(ANN), "GET", "/openapi.json", "").await.json();
    let paths = described["paths"].as_object().expect("a map");
    let paths = paths.keys().map(String::as_str).filter(|path| !path.starts_with("/v1/call/"));
    let paths: BTreeSet<&str> = paths.collect();
    let listed: BTreeSet<&str> = NESTED.into_iter().chain(SINGLE).chain(OF_ROWS).collect();
    let unlisted: Vec<&&str> = paths.difference(&listed).collect();
    assert!(unlisted.is_empty(), "does one of these name a thing within another? {unlisted:?}");
    // A path with two ids is always one.
    let two = paths.iter().filter(|path| path.matches('{').count() > 1);
    let unchecked: Vec<&&str> = two.filter(|path| !NESTED.contains(*path)).collect();
    assert!(unchecked.is_empty(), "{unchecked:?}");
    // Each has a case.
    let cases = CALLS.iter().chain(&AGENTS).chain(&PARTS);
    let shapes = cases.map(|(_, path, _)| {
        let path = path.split('?').next().unwrap_or_default().replace("s-CHILD", "{id}");
        let path = path.replace("/a2a/AGENT", "/a2a/{agent}").replace("AGENT", "{name}");
        let path = path.replace("/farewell", "/{name}");
        path.replace("/labels/next", "/labels/{label}").replace("/labels/live", "/labels/{label}")
    });
    let tested: BTreeSet<String> = shapes.chain(["/v1/sessions".to_owned()]).collect();
    assert_eq!(tested, NESTED.map(str::to_owned).into(), "a path has no case");
}
