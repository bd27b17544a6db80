//! A server of 2026-07-28 that asks to continue a call, and one that works on a task.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide_client::rows::ExchangeKind;
use abide_tools::{Exchange, ExchangeLog, ExchangeStep, Failure, Invocation, ToolOutcome};
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use expect_test::expect;
use serde_json::{Value, json};

use crate::json_server::serve;
use crate::questions::Log;
use crate::{call, context};

/// The `params` of the requests that a server has received for its tool.
type Received = Arc<Mutex<Vec<Value>>>;

/// A server whose calls are answered with `called`, and whose tasks are `task`.
fn server(called: Value, task: Value) -> (Router, Received) {
    let received = Received::default();
    let calls = Arc::clone(&received);
    let answer = async move |body: Bytes| {
        let message: Value = serde_json::from_slice(&body).expect("the client sends JSON");
        let result = match message["method"].as_str() {
            Some("server/discover") => json!({"resultType": "complete",
                "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "ttlMs": 0, "cacheScope": "private"}),
            Some("tools/list") => json!({"resultType": "complete", "ttlMs": 0,
                "cacheScope": "private",
                "tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}),
            Some("tools/call") => {
                calls.lock().expect("no panic").push(message["params"].clone());
                called.clone()
            }
            Some("tasks/get") => task.clone(),
            _ => json!({"resultType": "complete"}),
        };
        axum::Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))
    };
    (Router::new().route("/mcp", post(answer)), received)
}

/// Class: a call is sent again although nothing proves that it has not run. A server that asks for input, but for none, and has no
/// state, got the same call ten times.
#[tokio::test]
async fn a_request_without_a_state_or_answers_is_no_continuation() {
    let mut lines = Vec::new();
    for (called, state) in [
        (json!({"inputRequests": {}}), None),
        (json!({}), None),
        (json!({"inputRequests": {}, "requestState": null}), None),
        (json!({"inputRequests": {}, "requestState": "sealed"}), Some("sealed")),
    ] {
        let mut called = called;
        called["resultType"] = json!("input_required");
        let (router, received) = server(called.clone(), json!({}));
        let (tools, _server) = serve(router).await;
        let tool = tools.get("pay").expect("it is listed");
        let outcome = call(tool.as_ref(), json!({})).await;
        assert_eq!(outcome.failure, Some(Failure::Lost), "{called}: {}", outcome.text);
        let received = received.lock().expect("no panic");
        for continued in &received[1..] {
            assert_eq!(continued["requestState"].as_str(), state, "{called}");
            assert!(state.is_some(), "{called}: sent again as {continued}");
        }
        lines.push(format!("{}: {}", received.len(), outcome.text));
    }
    expect![[r#"
        1: the exchange with MCP server json was lost: it has asked for input, but for none that can be given
        1: MCP server json has answered, but not with a result of this call
        1: the exchange with MCP server json was lost: it has asked for input, but for none that can be given
        10: the exchange with MCP server json was lost: it has asked for another request 10 times"#]].assert_eq(&lines.join("\n"));
}

async fn follow(task: Value) -> ToolOutcome {
    let (router, _) = server(json!({}), task);
    let (tools, _server) = serve(router).await;
    let step = ExchangeStep {
        kind: ExchangeKind::Task,
        data: json!({"task_id": "T1"}),
        is_open: true,
        age: Duration::ZERO,
    };
    let mut invocation = Invocation::new("call-1", json!({}), context());
    let log: Arc<dyn ExchangeLog> = Arc::new(Log::default());
    invocation.exchange = Exchange { steps: vec![step], answers: Vec::new(), log: Some(log) };
    tools.get("pay").expect("it is listed").run(invocation).await
}

/// Class: the answer to another request. The result of a task of another call, perhaps of another tenant, became that of this call.
#[tokio::test]
async fn the_answer_about_another_task_is_no_result() {
    let now = "2026-11-25T10:00:00Z";
    let task = |id: &str| {
        json!({"resultType": "complete", "taskId": id, "status": "completed", "createdAt": now,
            "lastUpdatedAt": now, "ttlMs": null,
            "result": {"content": [{"type": "text", "text": "paid"}]}})
    };
    assert_eq!(follow(task("T1")).await.text, "paid");
    let other = follow(task("T9")).await;
    assert_eq!(other.failure, Some(Failure::Lost));
    expect![[r#"the exchange with MCP server json was lost: it has answered about the task "T9" instead of "T1""#]].assert_eq(&other.text);
}
