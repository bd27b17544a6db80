//! A scripted model on loopback, with the protocols of the four programs. It first requests a command, and answers
//! when it sees the result.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// Its final answer.
pub(crate) const DONE: &str = "All done.";

/// Its behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// Requests a command, then answers.
    RunsCommand,
    /// Requests a command, asks Codex to run it outside of its sandbox, and answers.
    RunsCommandUnconfined,
    /// Starts an answer and never ends it.
    Stalls,
}

/// A running model server.
#[derive(Clone)]
pub(crate) struct Mock {
    pub(crate) address: String,
    script: Script,
    command: String,
    asked: Arc<Mutex<Vec<Value>>>,
    /// Notified when a request arrived that will not be answered.
    pub(crate) stalled: Arc<Notify>,
}

impl Mock {
    /// Starts the server; it stops with the test's runtime.
    pub(crate) async fn start(script: Script, command: &str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = format!("http://{}", listener.local_addr().expect("the socket is bound"));
        let mock = Self {
            address,
            script,
            command: command.to_owned(),
            asked: Arc::default(),
            stalled: Arc::default(),
        };
        let router = Router::new().fallback(answer).with_state(mock.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        mock
    }

    /// The requests so far.
    pub(crate) fn asked(&self) -> Vec<Value> {
        self.asked.lock().expect("no thread panicked").clone()
    }

    /// Whether the request contains the result of the command.
    fn is_shown(request: &Value) -> bool {
        let conversation = ["messages", "input", "contents"].map(|key| request[key].to_string());
        ["tool_result", "function_call_output", "functionResponse", "\"role\":\"tool\""]
            .iter()
            .any(|mark| conversation.iter().any(|text| text.contains(mark)))
    }
}

async fn answer(State(mock): State<Mock>, uri: Uri, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    mock.asked.lock().expect("no thread panicked").push(request.clone());
    let path = uri.path();
    let done = Mock::is_shown(&request);
    if path.ends_with("/messages") {
        return anthropic(&mock, &request, done).await;
    }
    if path.ends_with("/responses") {
        return sse(&responses(&mock, &request, done));
    }
    if path.ends_with("/chat/completions") {
        return sse(&chat(&mock, &request, done));
    }
    if path.contains("enerateContent") {
        return gemini(&mock, path, &request, done);
    }
    axum::Json(json!({"data": [], "models": []})).into_response()
}

fn sse(events: &[Value]) -> Response {
    let body: String = events
        .iter()
        .map(|event| {
            let name = event["type"].as_str().map(|name| format!("event: {name}\n"));
            format!("{}data: {event}\n\n", name.unwrap_or_default())
        })
        .collect();
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// Whether the program offers a tool with this name.
fn offers(request: &Value, name: &str) -> bool {
    request["tools"].to_string().contains(&format!("\"name\":\"{name}\""))
}

async fn anthropic(mock: &Mock, request: &Value, done: bool) -> Response {
    let runs = offers(request, "Bash");
    if mock.script == Script::Stalls && runs {
        mock.stalled.notify_one();
        return std::future::pending().await;
    }
    let usage = json!({"input_tokens": 10, "output_tokens": 5});
    let id = if done { "msg_2" } else { "msg_1" };
    let (block, delta, stop) = if runs && !done {
        let input = json!({"command": mock.command, "description": "runs"});
        (
            json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}),
            json!({"type": "input_json_delta", "partial_json": input.to_string()}),
            "tool_use",
        )
    } else {
        let block = json!({"type": "text", "text": ""});
        (block, json!({"type": "text_delta", "text": DONE}), "end_turn")
    };
    let message = json!({
        "id": id, "type": "message", "role": "assistant", "model": request["model"],
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage,
    });
    if request["stream"] != true {
        let mut whole = message;
        whole["content"] = json!([{"type": "text", "text": DONE}]);
        whole["stop_reason"] = json!("end_turn");
        return axum::Json(whole).into_response();
    }
    sse(&[
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage}),
        json!({"type": "message_stop"}),
    ])
}

/// OpenAI's Responses, for Codex.
fn responses(mock: &Mock, request: &Value, done: bool) -> Vec<Value> {
    let item = if done {
        let content = json!([{"type": "output_text", "text": DONE, "annotations": []}]);
        json!({"type": "message", "id": "m1", "role": "assistant", "content": content})
    } else {
        let (name, arguments) = if offers(request, "exec_command") {
            let mut arguments = json!({"cmd": mock.command});
            if mock.script == Script::RunsCommandUnconfined {
                arguments["sandbox_permissions"] = json!("require_escalated");
                arguments["justification"] = json!("it writes a file");
            }
            ("exec_command", arguments)
        } else {
            ("shell", json!({"command": ["bash", "-c", mock.command]}))
        };
        json!({"type": "function_call", "id": "f1", "call_id": "call_1", "name": name,
               "arguments": arguments.to_string()})
    };
    let usage = json!({
        "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15,
    });
    let response =
        |status: &str| json!({"id": "r1", "status": status, "output": [], "usage": usage});
    vec![
        json!({"type": "response.created", "response": response("in_progress")}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": item}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed", "response": response("completed")}),
    ]
}

/// OpenAI's Chat Completions, for OpenCode with such a provider.
fn chat(mock: &Mock, request: &Value, done: bool) -> Vec<Value> {
    let runs = offers(request, "bash") && !done;
    let delta = if runs {
        let arguments = json!({"command": mock.command, "description": "runs"}).to_string();
        let function = json!({"name": "bash", "arguments": arguments});
        json!({"role": "assistant", "tool_calls": [
            {"index": 0, "id": "call_1", "type": "function", "function": function}]})
    } else {
        json!({"role": "assistant", "content": DONE})
    };
    let reason = if runs { "tool_calls" } else { "stop" };
    let chunk = |delta: Value, reason: Value, usage: Value| {
        json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "mock",
               "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": usage})
    };
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
    vec![chunk(delta, Value::Null, Value::Null), chunk(json!({}), json!(reason), usage)]
}

fn gemini(mock: &Mock, path: &str, request: &Value, done: bool) -> Response {
    let runs = offers(request, "run_shell_command") && !done;
    let part = if runs {
        let args = json!({"command": mock.command, "description": "runs"});
        json!({"functionCall": {"name": "run_shell_command", "args": args}})
    } else {
        json!({"text": DONE})
    };
    let usage = json!({"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15});
    let content = json!({"role": "model", "parts": [part]});
    let whole = json!({
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": usage, "modelVersion": "mock",
    });
    if path.contains("stream") { sse(&[whole]) } else { axum::Json(whole).into_response() }
}
