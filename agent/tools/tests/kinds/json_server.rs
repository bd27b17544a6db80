//! An MCP server whose responses are plain JSON, and of an older protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abide_tools::{Effect, Failure, McpServer, McpServerConfig, Tools};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use expect_test::expect;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{call, environment};

/// The tools, and the responses to their calls. `ID` is the id of the request.
const RESPONSES: [(&str, StatusCode, &str, &str); 19] = [
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
    (
        "capitals",
        StatusCode::OK,
        "Application/JSON;Charset=UTF-8",
        r#"{"id":ID,"error":null,"result":{"content":[{"type":"text","text":"paid"}]}}"#,
    ),
    (
        "shouted",
        StatusCode::OK,
        "Text/Event-Stream",
        "data: {\"id\":ID,\"error\":null,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"paid\"}]}}\n\n",
    ),
    // It asks for a login, after which the call would be sent again, although it has run.
    (
        "unauthorized",
        StatusCode::UNAUTHORIZED,
        "application/json",
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"paid"}]}}"#,
    ),
    ("html", StatusCode::OK, "application/json", "<html>"),
    (
        "events",
        StatusCode::OK,
        "text/event-stream",
        "data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"\\udd11 cut\"}]}}\r\n\r\n",
    ),
    (
        "other",
        StatusCode::OK,
        "application/json",
        r#"{"jsonrpc":"2.0","id":99999,"result":{"content":[{"type":"text","text":"of another call"}]}}"#,
    ),
    ("proxy", StatusCode::OK, "text/html", "<html>Please log in.</html>"),
    ("gateway", StatusCode::BAD_GATEWAY, "text/html", "<html>Bad gateway</html>"),
    (
        "cut",
        StatusCode::OK,
        "text/event-stream",
        "data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[{\"type\":\"te",
    ),
    ("silent", StatusCode::OK, "text/event-stream", ": no answer\n\n"),
    (
        "strange",
        StatusCode::OK,
        "text/event-stream",
        "data: {\"jsonrpc\":\"2.0\",\"id\":99999,\"result\":{\"content\":[]}}\n\n",
    ),
    (
        "anonymous",
        StatusCode::OK,
        "application/json",
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"that is no JSON"}}"#,
    ),
    ("empty", StatusCode::OK, "application/json", ""),
    (
        "refused",
        StatusCode::BAD_REQUEST,
        "application/json",
        r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"not on Sundays"}}"#,
    ),
    // A server that could not read the request does not know its id. The call waited for another answer.
    (
        "unread",
        StatusCode::BAD_REQUEST,
        "application/json",
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"that is no JSON"}}"#,
    ),
    (
        "nameless",
        StatusCode::BAD_REQUEST,
        "application/json",
        r#"{"jsonrpc":"2.0","error":{"code":-32602,"message":"too long"}}"#,
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

/// The tools of a server that is served until the test ends.
pub(crate) async fn serve(router: Router) -> (Tools, McpServer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}/mcp", listener.local_addr().expect("the socket is bound"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let tools = Tools::new();
    let mut config = McpServerConfig::at("json", &url);
    config.prefix = Some(String::new());
    let server = McpServer::start(config, &environment(), &tools).await.expect("it starts");
    (tools, server)
}

/// Class: a name in a configuration that means nothing. A wrong name in `needs_approval` let the tool run without an approval, and so
/// did the name that the tool has here. Both names of a tool are its names, and a name that is neither is reported.
#[tokio::test]
async fn names_of_a_definition_are_those_of_tools() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}/mcp", listener.local_addr().expect("the socket is bound"));
    let router = Router::new().route("/mcp", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let tools = Tools::new();
    let mut config = McpServerConfig::at("json", &url);
    config.only =
        Some(vec!["half".to_owned(), "json_nan".to_owned(), "cut*".to_owned(), "cot".to_owned()]);
    config.needs_approval = vec!["json_half".to_owned(), "nann".to_owned()];
    config.effects =
        [("half".to_owned(), Effect::ReadOnly), ("json_nan".to_owned(), Effect::ReadOnly)].into();
    let server = McpServer::start(config, &environment(), &tools).await.expect("it starts");
    let declared = tools.declarations().into_iter();
    let lines = declared.map(|it| format!("{} {} {:?}\n", it.name, it.needs_approval, it.effect));
    let unlisted = server.unlisted();
    let names: Vec<&str> = unlisted.iter().map(|it| it.name.as_str()).collect();
    expect![[r#"
        json_cut false AtMostOnce
        json_half true ReadOnly
        json_nan false ReadOnly
        ["cot", "nann"]"#]]
    .assert_eq(&format!("{}{names:?}", lines.collect::<String>()));
    assert!(
        unlisted[1].why.starts_with(
            "needs_approval of MCP server json names nann, which the server does not have; it has half, hologram, nan"
        ),
        "{unlisted:?}"
    );
}

/// Class: one undecodable value costs the message. Regression: half a surrogate pair in a body of JSON, or a content that is not
/// known, cost the text of the result, because the SDK had decoded the body before it was repaired.
#[tokio::test]
async fn a_response_that_cannot_be_decoded_keeps_what_is_readable() {
    let (tools, _server) = serve(Router::new().route("/mcp", post(answer))).await;
    let mut lines = Vec::new();
    for (name, ..) in RESPONSES {
        let outcome = call(tools.get(name).expect("it is listed").as_ref(), json!({})).await;
        let failure = outcome.failure.map_or("ok", |failure| failure.code());
        lines.push(format!("{name} {failure}: {}", outcome.text));
    }
    expect![[r#"
        half ok: cut �
        hologram tool: the tool ran, but a part of its result cannot be read: content 0 (hologram)
        seen
        nan lost: MCP server json has answered, but the response cannot be read: expected value at line 1 column 73
        capitals ok: paid
        shouted ok: paid
        unauthorized lost: MCP server json has answered, but not as the protocol says: the server has answered the call with HTTP 401 Unauthorized: {"jsonrpc":"2.0","id":8,"result":{"content":[{"type":"text","text":"paid"}]}}
        html lost: MCP server json has answered, but the response cannot be read: expected value at line 1 column 1
        events ok: � cut
        other lost: MCP server json has answered, but the response is not that of the request
        proxy lost: MCP server json has answered, but not as the protocol says: its content type is text/html
        gateway lost: MCP server json has answered, but not as the protocol says: HTTP 502 Bad Gateway: <html>Bad gateway</html>
        cut lost: the connection to MCP server json was lost during the call: the connection was closed
        silent lost: the connection to MCP server json was lost during the call: the connection was closed
        strange lost: the connection to MCP server json was lost during the call: the connection was closed
        anonymous tool: MCP server json returned an error: that is no JSON
        empty lost: MCP server json has answered, but the response cannot be read: EOF while parsing a value at line 1 column 0
        refused arguments: MCP server json returned an error: not on Sundays
        unread tool: MCP server json returned an error: that is no JSON
        nameless arguments: MCP server json returned an error: too long"#]].assert_eq(&lines.join("\n"));
}

/// Class: an outcome that the peer may have produced and that is not known. An error of JSON-RPC was a failure of the tool, also one that
/// reports a timeout or a lost connection to the server behind, so that a payment could be repeated by the model.
#[tokio::test]
async fn only_an_error_that_refuses_a_call_is_its_failure() {
    let ok = StatusCode::OK;
    for (status, code, expected) in [
        (ok, -32_700, Failure::Tool),
        (ok, -32_600, Failure::Tool),
        (ok, -32_601, Failure::Arguments),
        (ok, -32_602, Failure::Arguments),
        (ok, -32_042, Failure::Tool),
        (ok, -32_021, Failure::Tool),
        (ok, -32_603, Failure::Lost),
        (ok, -32_000, Failure::Lost),
        (ok, -32_001, Failure::Lost),
        (ok, -32_099, Failure::Lost),
        (ok, 7, Failure::Lost),
        (StatusCode::BAD_REQUEST, -32_602, Failure::Arguments),
        (StatusCode::BAD_REQUEST, -32_000, Failure::Lost),
        (StatusCode::INTERNAL_SERVER_ERROR, -32_603, Failure::Lost),
        (StatusCode::BAD_GATEWAY, -32_000, Failure::Lost),
        (StatusCode::SERVICE_UNAVAILABLE, -32_600, Failure::Lost),
        (StatusCode::GATEWAY_TIMEOUT, -32_602, Failure::Lost),
    ] {
        let refusing = async move |headers, body: Bytes| {
            let sessions =
                Sessions { opened: Arc::default(), ran: Arc::default(), answer: ("", "") };
            let message: Value = serde_json::from_slice(&body).expect("the client sends JSON");
            if message["method"] != "tools/call" {
                return answer_in_session(sessions, headers, body).await;
            }
            let error = json!({"code": code, "message": "it broke"});
            let body = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
            (status, axum::Json(body)).into_response()
        };
        let (tools, _server) = serve(Router::new().route("/mcp", post(refusing))).await;
        let tool = tools.get("pay").expect("it is listed");
        let outcome = call(tool.as_ref(), json!({})).await;
        assert_eq!(outcome.failure, Some(expected), "{status} {code}: {}", outcome.text);
        assert!(outcome.text.contains("it broke"), "{status} {code}: {}", outcome.text);
    }
}

/// The calls that a server of sessions has run, and its answer to a call in the first session.
#[derive(Clone)]
struct Sessions {
    opened: Arc<AtomicUsize>,
    ran: Arc<AtomicUsize>,
    answer: (&'static str, &'static str),
}

async fn answer_in_session(sessions: Sessions, headers: HeaderMap, body: Bytes) -> Response {
    let message: Value = serde_json::from_slice(&body).expect("the client sends JSON");
    let result = match message["method"].as_str() {
        Some("initialize") => {
            let id = sessions.opened.fetch_add(1, Ordering::SeqCst) + 1;
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "json", "version": "1"}});
            let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            let session = [("mcp-session-id", id.to_string())];
            return (session, axum::Json(body)).into_response();
        }
        Some("tools/list") => json!({"tools": [
            {"name": "pay", "inputSchema": {"type": "object"}},
            {"name": "look", "inputSchema": {"type": "object"},
                "annotations": {"readOnlyHint": true}}]}),
        Some("tools/call") => {
            sessions.ran.fetch_add(1, Ordering::SeqCst);
            if headers["mcp-session-id"] == "1" {
                let (kind, body) = sessions.answer;
                let body = body.replace("ID", &message["id"].to_string());
                return (StatusCode::NOT_FOUND, [(header::CONTENT_TYPE, kind)], body)
                    .into_response();
            }
            json!({"content": [{"type": "text", "text": "done"}]})
        }
        Some(method) if method.starts_with("notifications/") => {
            return StatusCode::ACCEPTED.into_response();
        }
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    axum::Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).into_response()
}

/// Class: an outcome that the peer may have produced and that is not known. Every 404 to a request of a session repeated the call in
/// a new one, and later every 404 whose text has the word "session": also a payment whose 404 came from a proxy, or from the tool itself
/// ("no such checkout session"). No text proves that the tool has not run.
#[tokio::test]
async fn a_404_repeats_no_call_that_must_not_run_twice() {
    let mut lines = Vec::new();
    for answer in [
        ("text/plain", "Not Found: Session not found"),
        (
            "application/json",
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#,
        ),
        (
            "application/json",
            r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session has been terminated"}}"#,
        ),
        (
            "application/json",
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no such order"}}"#,
        ),
        (
            "application/json",
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no such checkout session"}}"#,
        ),
        ("application/json", r#"{"jsonrpc":"2.0","id":ID,"error":"no such checkout session"}"#),
        ("text/plain", ""),
        ("text/html", "<html>Your session has no such page</html>"),
        ("application/json", r#"{"order":7,"session":1}"#),
        ("application/json", r#"{"error":"Session A-1 was charged. Receipt not found."}"#),
        (
            "application/json",
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32001,"message":"Session not found"}}"#,
        ),
        (
            "application/json",
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"Session has been terminated"}}"#,
        ),
        (
            "application/json",
            r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"the session is paid"}]}}"#,
        ),
    ] {
        for tool in ["pay", "look"] {
            let opened = Arc::default();
            let ran = Arc::default();
            let sessions = Sessions { opened, ran, answer };
            let served = sessions.clone();
            let (tools, _server) = serve(Router::new().route(
                "/mcp",
                post(move |headers, body| answer_in_session(served.clone(), headers, body)),
            ))
            .await;
            let tool = tools.get(tool).expect("it is listed");
            let outcome = call(tool.as_ref(), json!({})).await;
            let failure = outcome.failure.map_or("ok", |failure| failure.code());
            let ran = sessions.ran.load(Ordering::SeqCst);
            // The next call is one of a new session, if the first one may have ended.
            let next = call(tool.as_ref(), json!({})).await;
            let name = &tool.declaration().name;
            lines.push(format!("{name} {failure} {ran}, then {}: {}", next.text, outcome.text));
        }
    }
    expect![[r#"
        pay lost 1, then done: MCP server json has answered, but not as the protocol says: HTTP 404: Not Found: Session not found
        look ok 2, then done: done
        pay lost 1, then done: MCP server json has answered, but not as the protocol says: HTTP 404: {"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}
        look ok 2, then done: done
        pay lost 1, then done: MCP server json has answered, but not as the protocol says: HTTP 404: {"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session has been terminated"}}
        look ok 2, then done: done
        pay arguments 1, then MCP server json returned an error: no such order: MCP server json returned an error: no such order
        look arguments 1, then MCP server json returned an error: no such order: MCP server json returned an error: no such order
        pay arguments 1, then MCP server json returned an error: no such checkout session: MCP server json returned an error: no such checkout session
        look arguments 1, then MCP server json returned an error: no such checkout session: MCP server json returned an error: no such checkout session
        pay lost 1, then done: MCP server json has answered, but not as the protocol says: HTTP 404: {"jsonrpc":"2.0","id":3,"error":"no such checkout session"}
        look ok 2, then done: done
        pay lost 1, then done: MCP server json has answered, but not as the protocol says: HTTP 404:
        look ok 2, then done: done
        pay lost 1, then done: MCP server json has answered, but not as the protocol says: HTTP 404: <html>Your session has no such page</html>
        look ok 2, then done: done
        pay lost 1, then done: MCP server json has answered, but not as the protocol says: HTTP 404: {"order":7,"session":1}
        look ok 2, then done: done
        pay lost 1, then done: MCP server json has answered, but not as the protocol says: HTTP 404: {"error":"Session A-1 was charged. Receipt not found."}
        look ok 2, then done: done
        pay lost 1, then done: MCP server json has answered, but not as the protocol says: HTTP 404: {"jsonrpc":"2.0","id":3,"error":{"code":-32001,"message":"Session not found"}}
        look ok 2, then done: done
        pay lost 1, then done: MCP server json has answered, but not as the protocol says: HTTP 404: {"jsonrpc":"2.0","id":3,"error":{"code":-32600,"message":"Session has been terminated"}}
        look ok 2, then done: done
        pay ok 1, then the session is paid: the session is paid
        look ok 1, then the session is paid: the session is paid"#]].assert_eq(&lines.join("\n"));
}

/// Class: peers that do not end. Comments keep the stream of a call open; they are no progress.
#[tokio::test]
async fn comments_do_not_extend_the_timeout_of_a_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}/mcp", listener.local_addr().expect("the socket is bound"));
    let router = Router::new().route(
        "/mcp",
        post(async |headers: HeaderMap, body: Bytes| {
            let sessions =
                Sessions { opened: Arc::default(), ran: Arc::default(), answer: ("", "") };
            let message: Value = serde_json::from_slice(&body).expect("the client sends JSON");
            if message["method"] != "tools/call" {
                return answer_in_session(sessions, headers, body).await;
            }
            let stream = futures_util::stream::repeat_with(|| {
                Ok::<_, std::convert::Infallible>(": still here\n\n")
            });
            ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream))
                .into_response()
        }),
    );
    tokio::spawn(async move { axum::serve(listener, router).await });
    let tools = Tools::new();
    let mut config = McpServerConfig::at("json", &url);
    config.prefix = Some(String::new());
    config.timeout_ms = Some(300);
    let _server = McpServer::start(config, &environment(), &tools).await.expect("it starts");
    let outcome = call(tools.get("pay").expect("it is listed").as_ref(), json!({})).await;
    assert_eq!(outcome.failure, Some(Failure::TimedOut), "{}", outcome.text);
}
