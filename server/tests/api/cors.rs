//! What a page of another origin learns. Responses without CORS headers are unreadable for it: an expired token looked
//! like a server that is down. The class is every refusal, from whichever layer; the table has one of each status.

use abide_engine::buffers::BufferLimits;
use abide_server::AccessConfig;
use serde_json::json;

use crate::http::{Request, Response, head};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

const NEAR: &str = "http://localhost:5173";
const FAR: &str = "https://app.example";

/// The origin that may read a response. `Vary` must be there in any case.
fn reader(response: &Response) -> Option<&str> {
    let varies = response.headers.iter().any(|header| header.0 == "vary" && header.1 == "Origin");
    assert!(varies, "{response:?}");
    assert_eq!(response.header("access-control-allow-credentials"), None, "there are no cookies");
    response.header("access-control-allow-origin")
}

async fn asked(request: Request<'_>, origin: &str) -> Response {
    request.header("origin", origin).send().await
}

/// A server with a caller that has used up its quota.
async fn with_tokens() -> TokenServer {
    let home =
        TokenServer(TestServer::serving(AccessConfig::loopback(), abide_reducers::modules()).await);
    home.with("annannann", json!({})).await;
    home.with("workwork", json!({"role": "worker"})).await;
    let quota = json!({"limits": {"quota": {"calls": 1, "per_ms": 3_600_000}}});
    home.with("bobbobbob", quota).await;
    assert_eq!(home.call("bobbobbob", "create_session", json!({"agent": "a"})).await.status, 200);
    home
}

#[tokio::test]
async fn a_page_with_a_token_can_read_why_it_is_refused() {
    let home = with_tokens().await;
    let server = &home.0;
    let call = r#"{"agent":"a"}"#;
    let bearer = |name: &str| format!("Bearer {}", token(name));
    let ann = bearer("annannann");
    let bob = bearer("bobbobbob");
    let worker = bearer("workwork");
    let large = " ".repeat((16 << 20) + 1);
    // Status, method, path, token, body.
    let table: [(u16, &str, &str, Option<&str>, &str); 13] = [
        (200, "POST", "/v1/call/create_session", Some(&ann), call),
        (400, "POST", "/v1/call/create_session", Some(&ann), "{"),
        (400, "GET", "/v1/subscribe?sql=SELECT+1&sql=SELECT+2", Some(&ann), ""),
        (401, "POST", "/v1/call/create_session", None, call),
        (401, "GET", "/v1/schema", Some("Bearer old"), ""),
        (401, "GET", "/v1/ws", Some("Bearer old"), ""),
        (401, "POST", "/v1/responses", Some("Bearer old"), "{}"),
        (401, "GET", "/nowhere", None, ""),
        (403, "POST", "/v1/call/create_session", Some(&worker), call),
        (404, "GET", "/v1/runs/r1", Some(&ann), ""),
        (405, "DELETE", "/v1/sql", Some(&ann), ""),
        (413, "POST", "/v1/sql", Some(&ann), &large),
        (429, "POST", "/v1/call/create_session", Some(&bob), call),
    ];
    for (status, method, path, bearer, body) in table {
        for origin in [FAR, NEAR, "null"] {
            let mut request = server.request(method, path).body(body);
            if let Some(bearer) = bearer {
                request = request.header("authorization", bearer);
            }
            let response = asked(request, origin).await;
            assert_eq!(response.status, status, "{method} {path}: {response:?}");
            assert_eq!(reader(&response), Some(origin), "{status} {method} {path}");
        }
    }
    let twice = server.request("GET", "/v1/schema").header("authorization", "Bearer a");
    let twice = asked(twice.header("authorization", "Bearer b"), FAR).await;
    assert_eq!((twice.status, reader(&twice)), (400, Some(FAR)));
    let refused = asked(server.request("GET", "/v1/schema"), FAR).await;
    let exposed = refused.header("access-control-expose-headers").expect("some are exposed");
    for name in ["Retry-After", "WWW-Authenticate"] {
        assert!(exposed.contains(name), "{exposed}");
    }
}

#[tokio::test]
async fn a_server_without_tokens_is_read_by_pages_of_this_machine_only() {
    let server = TestServer::open().await;
    for (method, path, body, near, far) in [
        ("POST", "/v1/call/nothing", "", 200, 403),
        ("POST", "/v1/call/nothing", "{", 400, 403),
        ("GET", "/nowhere", "", 404, 403),
        ("DELETE", "/v1/sql", "", 405, 403),
        ("GET", "/health", "", 200, 200),
    ] {
        let response = asked(server.request(method, path).body(body), NEAR).await;
        assert_eq!((response.status, reader(&response)), (near, Some(NEAR)), "{method} {path}");
        for origin in [FAR, "null", "http://localhost.evil.example"] {
            let response = asked(server.request(method, path).body(body), origin).await;
            assert_eq!(
                (response.status, reader(&response)),
                (far, None),
                "{method} {path} {origin}"
            );
        }
    }
    let two = server.request("GET", "/v1/schema").header("origin", NEAR);
    let two = asked(two, NEAR).await;
    assert_eq!((two.status, reader(&two)), (400, None));
    let same_origin = server.get("/v1/schema").await;
    assert_eq!((same_origin.status, reader(&same_origin)), (200, None));
}

/// The browser asks before it sends a token. The question had no token, so it was refused with 401.
#[tokio::test]
async fn preflights_are_answered_for_the_same_pages() {
    let open = TestServer::open().await;
    let home = with_tokens().await;
    for (server, path, origin, status) in [
        (&home.0, "/v1/sql", FAR, 204),
        (&home.0, "/v1/sql", NEAR, 204),
        (&home.0, "/nowhere", FAR, 204),
        // MCP demands a check of the origin.
        (&home.0, "/mcp", FAR, 401),
        (&home.0, "/mcp", NEAR, 204),
        (&open, "/v1/sql", NEAR, 204),
        (&open, "/v1/sql", FAR, 403),
    ] {
        let request = server
            .request("OPTIONS", path)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type");
        let response = asked(request, origin).await;
        assert_eq!(response.status, status, "{path} {origin}: {response:?}");
        let is_allowed = status == 204;
        assert_eq!(reader(&response), is_allowed.then_some(origin), "{path} {origin}");
        let headers = response.header("access-control-allow-headers");
        assert_eq!(headers, is_allowed.then_some("authorization,content-type"));
        let methods = response.header("access-control-allow-methods");
        assert_eq!(methods.is_some_and(|methods| methods.contains("PATCH")), is_allowed);
    }
    let refused = asked(home.0.request("POST", "/mcp"), FAR).await;
    assert_eq!((refused.status, reader(&refused)), (401, None));
    let plain = asked(open.request("OPTIONS", "/v1/sql"), NEAR).await;
    assert_eq!(plain.status, 405, "without a requested method it is no preflight");
}

#[tokio::test]
async fn a_server_that_cannot_answer_says_so_to_a_page() {
    let server = TestServer::open().await;
    let engine = server.engine.clone();
    tokio::task::spawn_blocking(move || engine.close()).await.expect("no panic");
    let closed = asked(server.request("POST", "/v1/call/nothing"), NEAR).await;
    assert_eq!((closed.status, reader(&closed)), (503, Some(NEAR)));
    let far = asked(server.request("POST", "/v1/call/nothing"), FAR).await;
    assert_eq!(reader(&far), None);

    // A body that does not end fills the share of the caller.
    let server = TestServer::buffering(BufferLimits { total: 8 << 20, per_caller: 4 << 20 }).await;
    let body = vec![b' '; 3 << 20];
    let begin = || {
        let request = server.request("POST", "/v1/sql").header("origin", NEAR);
        request.header("content-length", "8000000").body(body.clone())
    };
    let first = begin().begin().await;
    while server.engine.buffers().total() < 3 << 20 {
        tokio::task::yield_now().await;
    }
    let full = head(&mut begin().begin().await).await;
    assert_eq!((full.status, reader(&full)), (503, Some(NEAR)));
    drop(first);
}
