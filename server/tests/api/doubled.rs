//! What a request has twice. A proxy in front of the server may check one value while the server acts on the other: two
//! headers `Authorization` were accepted, and the first one counted. So the class is refused with 400, on each kind of
//! connection, whether the two are equal or not, and before any of them is used.

use abide_schema::Seq;
use abide_server::AccessConfig;
use axum::body::Bytes;
use expect_test::expect;
use h2::client;
use tokio::net::TcpStream;

use crate::http::{Response, check, head};
use crate::test_server::TestServer;

const BEARER: &str = "Bearer s3cret";

/// Each header that decides something, with two values that would be accepted alone.
const HEADERS: [(&str, &str, &str); 12] = [
    ("authorization", BEARER, "Bearer other"),
    ("abide-scope", r#"{"tenant":"acme"}"#, r#"{"tenant":"zeta"}"#),
    ("host", "localhost", "localhost:1"),
    ("origin", "http://localhost", "http://127.0.0.1"),
    ("sec-fetch-site", "same-origin", "cross-site"),
    ("x-forwarded-proto", "https", "http"),
    ("content-type", "application/json", "text/plain"),
    ("idempotency-key", "k1", "k2"),
    ("if-match", "\"1\"", "\"2\""),
    ("last-event-id", "1", "2"),
    ("a2a-version", "1.0", "0.3"),
    ("sec-websocket-version", "13", "12"),
];

/// Those of MCP, whose clients get an error of JSON-RPC.
const MCP_HEADERS: [(&str, &str, &str); 4] = [
    ("mcp-session-id", "s1", "s2"),
    ("mcp-protocol-version", "2026-07-28", "2025-11-25"),
    ("mcp-method", "tools/call", "tools/list"),
    ("mcp-name", "a", "b"),
];

async fn locked() -> TestServer {
    TestServer::with(AccessConfig::bearer("s3cret").expect("a token")).await
}

fn names_it_twice(response: &Response) -> bool {
    response.status == 400 && response.body.contains("occurs twice in the request")
}

#[tokio::test]
async fn a_header_that_decides_something_occurs_once() {
    for server in [locked().await, TestServer::open().await] {
        for (name, one, other) in HEADERS {
            for values in [[one, other], [one, one], [other, one]] {
                let mut request = server.request("POST", "/v1/call/nothing");
                if name != "authorization" {
                    request = request.header("authorization", BEARER);
                }
                for value in values {
                    request = request.header(name, value);
                }
                let response = request.send().await;
                assert!(names_it_twice(&response), "{name} {values:?}: {response:?}");
            }
        }
        assert_eq!(server.engine.durable_seq(), Seq(0), "no call had an effect");
        let once = server.request("POST", "/v1/call/nothing").header("authorization", BEARER);
        assert_eq!(once.send().await.status, 200);
    }
}

#[tokio::test]
async fn the_refusal_says_what_occurs_twice() {
    let server = locked().await;
    let request = server.request("POST", "/v1/sql").header("authorization", BEARER);
    let refused = request.header("authorization", BEARER).send().await;
    check(
        &refused.problem(),
        expect![[r#"
            400 bad_request: the header authorization occurs twice in the request (send it once: a proxy and the server could each read another one)
        "#]],
    );
    // Two lengths would be two requests for a proxy: the connection ends without a handler.
    let lengths = server.request("POST", "/v1/sql").header("authorization", BEARER);
    let lengths = lengths.header("content-length", "2").header("content-length", "9").body("{}");
    assert_eq!(lengths.send().await.status, 400);
}

/// The server looked for a token in three places and took the first one that was valid.
#[tokio::test]
async fn a_token_is_in_one_place() {
    let server = locked().await;
    let ways: [(&str, &[(&str, &str)]); 7] = [
        ("/v1/ws?token=s3cret", &[("authorization", BEARER)]),
        ("/v1/ws?token=other", &[("authorization", BEARER)]),
        ("/v1/ws?token=s3cret&token=s3cret", &[]),
        ("/v1/ws?token=s3cret&%74oken=other", &[]),
        ("/v1/subscribe?sql=SELECT+1&token=s3cret", &[("authorization", BEARER)]),
        (
            "/v1/ws",
            &[("authorization", BEARER), ("sec-websocket-protocol", "abide.v1, bearer.other")],
        ),
        ("/v1/ws", &[("sec-websocket-protocol", "bearer.s3cret, abide.v1, bearer.other")]),
    ];
    for (path, headers) in ways {
        let mut request = server
            .request("GET", path)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut socket = request.begin().await;
        assert_eq!(head(&mut socket).await.status, 400, "{path} {headers:?}");
    }
    // A password for a proxy is no token.
    let with_proxy = server.try_socket("/v1/ws?token=s3cret", &[("authorization", "Basic YTpi")]);
    assert!(with_proxy.await.is_ok());
}

/// A parameter that decides something has one value too, however its name is encoded.
#[tokio::test]
async fn a_parameter_occurs_once() {
    let server = TestServer::open().await;
    for path in [
        "/v1/subscribe?sql=SELECT+1&sql=SELECT+2",
        "/v1/subscribe?sql=SELECT+1&after_seq=0&after_seq=1",
        "/v1/subscribe?sql=SELECT+1&%73ql=SELECT+2",
        "/a2a/clerk/tasks?A2A-Version=1.0&A2A-Version=0.3",
        "/v1/sessions?limit=1&limit=2",
        "/v1/prompts?after=a&after=b",
    ] {
        let status = server.get(path).await.status;
        assert!([400, 422].contains(&status), "{path}: {status}");
    }
    let both = server.request("GET", "/a2a/clerk/tasks?A2A-Version=1.0");
    assert!(names_it_twice(&both.header("a2a-version", "1.0").send().await));
}

/// Sends a request over HTTP/2 and returns the status and the body.
async fn by_http2(
    server: &TestServer,
    path: &str,
    headers: &[(&'static str, &'static str)],
) -> (u16, String) {
    let socket = TcpStream::connect(server.address).await.expect("it listens");
    let (mut sender, connection) = client::handshake(socket).await.expect("it speaks HTTP/2");
    let connection = tokio::spawn(connection);
    let mut request = axum::http::Request::post(format!("http://localhost{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(()).expect("a request");
    let content = if path == "/mcp" { MCP_CALL } else { "{}" };
    let (response, mut body) = sender.send_request(request, false).expect("it is open");
    // A server that has refused may not read the body.
    let _ = body.send_data(Bytes::from_static(content.as_bytes()), true);
    let response = response.await.expect("an answer");
    let status = response.status().as_u16();
    let mut content = response.into_body();
    let mut text = Vec::new();
    while let Some(chunk) = content.data().await {
        text.extend_from_slice(&chunk.expect("a part of the body"));
    }
    connection.abort();
    (status, String::from_utf8(text).expect("UTF-8"))
}

/// A request with all headers that it needs.
const MCP_CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":{
    "io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;

#[tokio::test]
async fn a_header_of_mcp_occurs_once() {
    let server = locked().await;
    for (doubled, _, other) in MCP_HEADERS {
        let mut headers = vec![("authorization", BEARER), ("content-type", "application/json")];
        for (name, value, _) in MCP_HEADERS {
            // A session makes a request one of 2025-11-25.
            if name != "mcp-session-id" || doubled == name {
                headers.push((name, value));
            }
        }
        headers.push((doubled, other));
        let (status, body) = by_http2(&server, "/mcp", &headers).await;
        assert!(status == 400 && body.contains("occurs twice"), "{doubled}: {status} {body}");
        let mut request = server.request("POST", "/mcp").body(MCP_CALL);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = request.send().await;
        assert!(names_it_twice(&response), "{doubled}: {response:?}");
        assert_eq!(response.json()["error"]["code"], -32020);
    }
}

/// HTTP/2 is what clients of gRPC speak, and most proxies.
#[tokio::test]
async fn http2_is_no_way_around() {
    let server = locked().await;
    let paths = ["/v1/call/nothing", "/mcp", "/lf.a2a.v1.A2AService/SendMessage", "/a2a/clerk"];
    for path in paths {
        for (name, one, other) in HEADERS {
            let mut headers = vec![("authorization", BEARER), (name, one)];
            if name != "authorization" {
                headers.push((name, other));
            }
            let (status, body) = by_http2(&server, path, &headers).await;
            let is_refused = status == 400 && body.contains("occurs twice in the request");
            assert!(is_refused, "{path} {name}: {status} {body}");
        }
        // The target has the host.
        let other_host = [("authorization", BEARER), ("host", "other.example")];
        assert_eq!(by_http2(&server, path, &other_host).await.0, 400, "{path}");
    }
    let once = [("authorization", BEARER), ("host", "localhost")];
    assert_eq!(by_http2(&server, "/v1/call/nothing", &once).await.0, 200);
}
