//! Decisions of approvers over the protocols: what an approver edits takes effect, and nothing that a client sends is ignored.

use serde_json::{Value as JsonValue, json};

use crate::events::Stream;
use crate::runs::{claim, local};
use crate::test_server::TestServer;

const CHAT: &str = "/v1/agents/clerk/chat";
const AG_UI: &str = "/v1/agents/clerk/ag-ui";
const A2A: &str = "/a2a/clerk/message:send";
const RESPONSES: &str = "/v1/responses";

/// The protocols, each with the request that begins a run.
fn beginnings() -> [(&'static str, JsonValue); 4] {
    let text = json!([{"type": "text", "text": "Pay."}]);
    let returns = json!({"returnImmediately": true});
    [
        (CHAT, json!({"id": "c", "messages": [{"id": "m", "role": "user", "parts": text}]})),
        (
            AG_UI,
            json!({"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user",
            "content": "Pay."}]}),
        ),
        (
            A2A,
            json!({"configuration": returns, "message": {"messageId": "m", "role": "ROLE_USER",
            "parts": [{"text": "Pay."}]}}),
        ),
        (RESPONSES, json!({"model": "clerk", "background": true, "input": "Pay."})),
    ]
}

/// Returns the request of a protocol that decides on a call.
fn decision(path: &str, run: &str, call: &str, decision: JsonValue) -> JsonValue {
    let returns = json!({"returnImmediately": true});
    match path {
        CHAT => json!({"id": "c", "messages": [{"id": "x", "role": "assistant", "parts": [
            {"type": "dynamic-tool", "toolName": "refund", "toolCallId": call,
                "state": "approval-responded", "approval": decision}]}]}),
        AG_UI => json!({"threadId": "t", "runId": "r2", "resume": [decision]}),
        A2A => json!({"configuration": returns, "message": {"messageId": "m2", "taskId": run,
            "role": "ROLE_USER", "parts": [{"data": decision}]}}),
        _ => json!({"model": "clerk", "background": true,
            "previous_response_id": format!("resp_1_{run}"), "input": [decision]}),
    }
}

async fn server() -> TestServer {
    let server = crate::agents::server().await;
    let agent = json!({"name": "clerk", "a2a_exposed": true});
    assert_eq!(server.post("/agents", &agent.to_string()).await.status, 201);
    server
}

/// The status of the answer, and its text as far as it is a refusal.
async fn post(server: &TestServer, path: &str, body: &JsonValue) -> (u16, String) {
    let body = body.to_string();
    let request = server.request("POST", path).header("a2a-version", "1.0").body(body);
    let is_stream = path == CHAT || path == AG_UI;
    if !is_stream {
        let answer = request.send().await;
        return (answer.status, answer.json().to_string());
    }
    let mut socket = request.begin().await;
    (crate::http::head(&mut socket).await.status, String::new())
}

async fn rows(server: &TestServer, sql: &str) -> JsonValue {
    let body = json!({"sql": sql}).to_string();
    server.post("/v1/sql", &body).await.json()["rows"].clone()
}

/// Begins a run over a protocol and lets it wait for an approval; returns the run and the call.
async fn begin(server: &TestServer, path: &str, body: &JsonValue) -> (String, String) {
    let body = body.to_string();
    let request = server.request("POST", path).header("a2a-version", "1.0").body(body);
    if path == CHAT || path == AG_UI {
        drop(Stream::by(request, None).await);
    } else {
        assert_eq!(request.send().await.status, 200, "{path}");
    }
    let found = rows(server, "SELECT id, session_id FROM runs ORDER BY seq DESC").await;
    let run = found[0][0].as_str().expect("a run").to_owned();
    let fencing = claim(server, &run).await;
    local(server, "register_tool", json!({"name": "refund", "needs_approval": true})).await;
    let call = format!("call-{run}");
    let wanted = json!({"call_id": call, "session_id": found[0][1], "tool_name": "refund",
        "arguments": {"amount": 900}});
    local(server, "request_tool_call", wanted).await;
    let asked = json!({"tool_call_id": call, "tool_name": "refund", "args": {"amount": 900},
        "status": "awaiting_approval"});
    let interrupt = json!({"reason": "approval", "action_requests": [asked]});
    let args = json!({"id": run, "fencing_token": fencing, "interrupt": interrupt});
    assert_eq!(local(server, "wait_run", args).await["status"], "waiting");
    (run, call)
}

/// Class: an edit of an approver that has no effect. The refund of 900 ran although its approver had made it 9.
#[tokio::test]
async fn the_call_runs_with_the_arguments_that_its_approver_has_edited() {
    let server = server().await;
    let edited = json!({"amount": 9});
    for (path, body) in beginnings() {
        let (run, call) = begin(&server, path, &body).await;
        let edit = match path {
            CHAT => json!({"id": call, "approved": true, "approvedArguments": edited}),
            AG_UI => json!({"interruptId": call, "status": "resolved",
                "payload": {"approved": true, "editedArgs": edited}}),
            A2A => json!({"approve": true, "approvedArguments": edited}),
            _ => json!({"type": "mcp_approval_response", "approve": true,
                "approval_request_id": format!("mcpr_{call}"), "approved_arguments": edited}),
        };
        let (status, text) = post(&server, path, &decision(path, &run, &call, edit)).await;
        assert_eq!(status, 200, "{path}: {text}");
        let sql = format!("SELECT status, arguments FROM tool_calls WHERE call_id = '{call}'");
        let expected = json!([["pending", r#"{"amount":9}"#]]);
        assert_eq!(rows(&server, &sql).await, expected, "{path}");
    }
}

/// Class: a member of a decision that the server does not know, so that it decides something else than its client has sent. Edits
/// under other names were ignored, and the refund ran unedited; so were contradictions.
#[tokio::test]
async fn a_decision_with_a_member_without_an_effect_is_refused() {
    let server = server().await;
    for (path, body) in beginnings() {
        let (run, call) = begin(&server, path, &body).await;
        let id = match path {
            CHAT => json!({"id": call, "approved": true}),
            AG_UI => json!({"interruptId": call, "status": "resolved",
                "payload": {"approved": true}}),
            A2A => json!({"approve": true}),
            _ => json!({"type": "mcp_approval_response", "approve": true,
                "approval_request_id": format!("mcpr_{call}")}),
        };
        let mut wrong = Vec::new();
        for name in ["arguments", "edited_arguments", "editedArguments", "args", "input"] {
            let mut with = id.clone();
            with[name] = json!({"amount": 9});
            wrong.push(with);
            let mut within = id.clone();
            if path == AG_UI {
                within["payload"][name] = json!({"amount": 9});
                wrong.push(within);
            }
        }
        match path {
            AG_UI => wrong.extend([
                json!({"interruptId": call, "status": "cancelled", "payload": {"approved": true}}),
                json!({"interruptId": call, "status": "resolved", "payload":
                    {"approved": true, "answer": 1, "editedArgs": {"amount": 9}}}),
                json!({"interruptId": call, "status": "resolved", "payload":
                    {"outcome": "succeeded", "approved": true}}),
            ]),
            A2A => wrong.extend([
                json!({"approve": true, "decisions": [{"callId": call, "approve": false}]}),
                json!({"comment": "no", "decisions": [{"callId": call, "approve": true}]}),
                json!({"decisions": [{"callId": call, "approve": true, "arguments": {}}]}),
                json!({"approve": false, "approvedArguments": {"amount": 9}}),
            ]),
            _ => {}
        }
        for wrong in wrong {
            let what = format!("{path}: {wrong}");
            let (status, text) = post(&server, path, &decision(path, &run, &call, wrong)).await;
            // A2A has 400 for all invalid parameters.
            assert!(matches!(status, 400 | 422), "{what}: {status} {text}");
        }
        if path == A2A {
            let mut two = decision(path, &run, &call, json!({"approve": true}));
            for more in [json!({"text": "reject"}), json!({"data": {"approve": false}})] {
                let first = two["message"]["parts"][0].clone();
                two["message"]["parts"] = json!([first, more]);
                assert_eq!(post(&server, path, &two).await.0, 400, "{two}");
            }
        }
        let sql = format!("SELECT status, arguments FROM tool_calls WHERE call_id = '{call}'");
        let expected = json!([["awaiting_approval", r#"{"amount":900}"#]]);
        assert_eq!(rows(&server, &sql).await, expected, "{path}");
    }
}
