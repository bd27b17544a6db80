//! Authentication: every place where a token may be, and loopback without one.

use std::future::poll_fn;

use abide_schema::{Code, Refusal};
use abide_server::AccessConfig;
use axum::body::Bytes;
use expect_test::expect;
use h2::client;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

use crate::http::check;
use crate::test_server::TestServer;

async fn locked() -> TestServer {
    TestServer::with(AccessConfig::bearer("s3cret").expect("a token")).await
}

#[tokio::test]
async fn without_credentials_other_addresses_are_refused() {
    let server = TestServer::open().await;
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a free port");
    let served = abide_server::serve(
        server.engine.clone(),
        listener,
        AccessConfig::loopback(),
        std::future::pending(),
    );
    let refused = served.await.expect_err("it must refuse");
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    let refusal = refused.get_ref().and_then(|why| why.downcast_ref::<Refusal>());
    let refusal = refusal.expect("a refusal");
    assert_eq!(refusal.code, Code::Denied);
    let starts = "cannot listen on 0.0.0.0:";
    assert!(refusal.detail.starts_with(starts), "{refusal}");
    assert!(refusal.hint.is_some());
}

#[tokio::test]
async fn a_token_is_required_except_on_open_paths() {
    let server = locked().await;
    let mut problems = Vec::new();
    for path in ["/v1/schema", "/openapi.json", "/metrics", "/v1/subscribe?sql=SELECT+1", "/no"] {
        let refused = server.get(path).await;
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"), "{path}");
        problems.push(refused.problem());
    }
    problems.dedup();
    check(
        &problems.concat(),
        expect![[r#"
        401 unauthenticated: the request has no token (send the header: Authorization: Bearer <token>)
    "#]],
    );
    let wrong = server.request("POST", "/v1/call/nothing").header("authorization", "Bearer no");
    check(
        &wrong.send().await.problem(),
        expect![[r#"
            401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
        "#]],
    );
    assert_eq!(server.post("/health", "").await.status, 401);
    for path in ["/health", "/ready", "/"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    assert!(server.get("/").await.body.contains("Requests need a bearer token."));
}

/// The stream was reset before its body was read, and curl discards the response of such a stream. The body here does not
/// fit into the window of a stream, so it arrives only if the server reads it.
#[tokio::test]
async fn a_refusal_over_http2_reaches_a_client_that_still_sends() {
    let locked = locked().await;
    let open = TestServer::open().await;
    for (server, path, status) in
        [(&locked, "/v1/sql", 401), (&open, "/no", 404), (&open, "/v1/schema", 405)]
    {
        let socket = TcpStream::connect(server.address).await.expect("it listens");
        let (mut sender, connection) = client::handshake(socket).await.expect("it is HTTP/2");
        let connection = tokio::spawn(connection);
        let request = axum::http::Request::post(format!("http://localhost{path}"));
        let request = request.body(()).expect("a request");
        let (response, mut body) = sender.send_request(request, false).expect("it is open");
        let mut rest = 256 << 10;
        while rest > 0 {
            body.reserve_capacity(rest);
            let capacity = poll_fn(|cx| body.poll_capacity(cx)).await;
            let part = capacity.expect("no reset").expect("no reset").min(rest);
            body.send_data(Bytes::from(vec![b' '; part]), part == rest).expect("it is open");
            rest -= part;
        }
        let response = response.await.expect("a response");
        assert_eq!(response.status(), status, "{path}");
        let content = response.into_body().data().await.expect("a body").expect("a body");
        assert!(content.starts_with(b"{"), "{path}: {content:?}");
        connection.abort();
    }
}

#[tokio::test]
async fn the_log_records_the_caller() {
    let open = TestServer::open().await;
    open.post("/v1/call/nothing", "").await;
    let server = locked().await;
    let with_token = |method: &'static str, path: &'static str| {
        server.request(method, path).header("authorization", "Bearer s3cret")
    };
    assert_eq!(with_token("POST", "/v1/call/nothing").send().await.status, 200);
    let ask = r#"{"sql":"SELECT caller FROM events"}"#;
    let callers = with_token("POST", "/v1/sql").body(ask).send().await;
    assert_eq!(callers.json()["rows"], serde_json::json!([["token"]]));
    let callers = open.post("/v1/sql", ask).await;
    assert_eq!(callers.json()["rows"], serde_json::json!([["local"]]));
}

#[tokio::test]
async fn a_websocket_accepts_a_token_in_three_places() {
    let server = locked().await;
    let ways: [(&str, &[(&'static str, &str)]); 3] = [
        ("/v1/ws", &[("authorization", "Bearer s3cret")]),
        ("/v1/ws?token=s3cret", &[]),
        ("/v1/ws", &[("sec-websocket-protocol", "abide.v1, bearer.s3cret")]),
    ];
    for (path, headers) in ways {
        let socket = server.try_socket(path, headers).await;
        let hello = socket.unwrap_or_else(|why| panic!("{path} {why:?}")).receive().await;
        assert_eq!(hello["op"], "hello", "{path}");
    }
    let (status, body) = server.try_socket("/v1/ws", &[]).await.err().expect("a refusal");
    assert_eq!(status, 401);
    assert!(body.contains(r#""code":"unauthenticated""#), "{body}");
}

#[tokio::test]
async fn the_subprotocol_is_negotiated() {
    let server = TestServer::open().await;
    let upgrade = |protocols: &'static str| {
        server
            .request("GET", "/v1/ws")
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", protocols)
    };
    let mut socket = upgrade("bearer.x, abide.v1").begin().await;
    let answer = crate::http::head(&mut socket).await;
    assert_eq!(answer.status, 101);
    assert_eq!(answer.header("sec-websocket-protocol"), Some("abide.v1"));
    // A client of another version learns which side is older.
    for (protocols, older) in [
        ("abide.v2", "the server is older"),
        ("bearer.x, abide.v4294967295", "the server is older"),
        ("abide.v0", "the client is older"),
    ] {
        let mut socket = upgrade(protocols).begin().await;
        let answer = crate::http::head(&mut socket).await;
        assert_eq!(answer.status, 400, "{protocols}");
        let length = answer.header("content-length").expect("a length");
        let mut body = vec![0; length.parse().expect("a number")];
        socket.read_exact(&mut body).await.expect("a body");
        let body = String::from_utf8_lossy(&body);
        assert!(body.contains("speaks abide.v") && body.contains(older), "{protocols}: {body}");
    }
    let mut socket = upgrade("abide.v2, abide.v1").begin().await;
    assert_eq!(crate::http::head(&mut socket).await.status, 101);
}

#[tokio::test]
async fn foreign_origins_are_refused() {
    let server = TestServer::open().await;
    let evil = ("origin", "https://evil.example");
    let (status, body) = server.try_socket("/v1/ws", &[evil]).await.err().expect("a refusal");
    assert_eq!(status, 403);
    assert!(body.contains(r#""code":"denied""#), "{body}");
    let call = || server.request("POST", "/v1/call/nothing");
    let refused = call().header(evil.0, evil.1).send().await;
    check(
        &refused.problem(),
        expect![[r#"
            403 denied: requests from the origin "https://evil.example" need a token (create a token with `abide token create NAME --role ROLE` and send it)
        "#]],
    );
    let rebound = call().header("host", "rebound.example:7341").send().await;
    check(
        &rebound.problem(),
        expect![[r#"
            403 denied: requests to the host "rebound.example:7341" need a token (use http://127.0.0.1, or create a token with `abide token create NAME --role ROLE`)
        "#]],
    );
    let neighbour = call().header("origin", "http://localhost:5173").send().await;
    assert_eq!(neighbour.status, 200);
}
