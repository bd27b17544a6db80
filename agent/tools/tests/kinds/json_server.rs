//! An MCP server whose responses are plain JSON, and of an older protocol.

use abide_tools::{McpServer, McpServerConfig, Tools};
use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use expect_test::expect;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{call, environment};

/// The tools, and the responses to their calls. `ID` is the id of the request.
const RESPONSES: [(&str, StatusCode, &str, &str); 6] = [
    (
        "half",
        StatusCode::OK,
        "application/json",
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"cut \ud83d"}]}}"#,
    ),
    (
        "hologram",
        StatusCode::OK,
        "application/json; charset=utf-8",
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"hologram"},{"type":"text","text":"seen"}]}}"#,
    ),
    (
        "nan",
        StatusCode::OK,
        "application/json",
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"n":NaN}}}"#,
    ),
    ("html", StatusCode::OK, "application/json", "<html>"),
    (
        "events",
        StatusCode::OK,
        "text/event-stream",
        "data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"\\udd11 cut\"}]}}\r\n\r\n",
    ),
    (
        "refused",
        StatusCode::BAD_REQUEST,
        "application/json",
        r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"not on Sundays"}}"#,
    ),
];

async fn answer(body: Bytes) -> Response {
    let message: Value = serde_json::from_slice(&body).expect("the client sends JSON");
    let id = message["id"].to_string();
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "json", "version": "1"},
        }),
        Some("tools/list") => {
            let tools = RESPONSES
                .map(|(name, ..)| json!({"name": name, "inputSchema": {"type": "object"}}));
            json!({"tools": tools})
        }
        Some("tools/call") => {
            let (_, status, kind, body) = RESPONSES
                .into_iter()
                .find(|(name, ..)| message["params"]["name"] == *name)
                .expect("the tool is listed");
            let body = body.replace("ID", &id);
            return (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        }
        // A notification is answered by an empty 200.
        Some(method) if method.starts_with("notifications/") => {
            return StatusCode::OK.into_response();
        }
        _ => return (StatusCode::NOT_FOUND, "no such method").into_response(),
    };
    let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Class: one undecodable value costs the message. Regression: half a surrogate pair in a body of JSON, or a content that is not
/// known, cost the text of the result, because the SDK had decoded the body before it was repaired.
#[tokio::test]
async fn a_response_that_cannot_be_decoded_keeps_what_is_readable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}/mcp", listener.local_addr().expect("the socket is bound"));
    let router = Router::new().route("/mcp", post(answer));
    let served = tokio::spawn(async move { axum::serve(listener, router).await });
    let tools = Tools::new();
    let mut config = McpServerConfig::at("json", &url);
    config.prefix = Some(String::new());
    let _server = McpServer::start(config, &environment(), &tools).await.expect("it starts");
    let mut lines = Vec::new();
    for (name, ..) in RESPONSES {
        let outcome = call(tools.get(name).expect("it is listed").as_ref(), json!({})).await;
        let failure = outcome.failure.map_or("ok", |failure| failure.code());
        lines.push(format!("{name} {failure}: {}", outcome.text));
    }
    served.abort();
    expect![[r#"
        half ok: cut �
        hologram tool: the tool ran, but a part of its result cannot be read: content 0 (hologram)
        seen
        nan tool: MCP server json has answered, but the response cannot be read: expected value at line 1 column 73
        html tool: MCP server json has answered, but the response cannot be read: expected value at line 1 column 1
        events ok: � cut
        refused arguments: MCP server json returned an error: not on Sundays"#]].assert_eq(&lines.join("\n"));
}
