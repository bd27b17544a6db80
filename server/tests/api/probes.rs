//! Endpoints for operators and tools: health, readiness, metrics, schema, OpenAPI, the page.

use abide_engine::SubscribeRequest;
use abide_schema::Caller;
use abide_server::{AccessConfig, Drain, Services};
use expect_test::expect;

use crate::http::check;
use crate::test_server::TestServer;

#[tokio::test]
async fn health_and_readiness() {
    let server = TestServer::open().await;
    check(
        &server.get("/health").await.body,
        expect![[r#"
        {"status":"ok","version":"0.1.0"}
    "#]],
    );
    check(
        &server.get("/ready").await.body,
        expect![[r#"
        {"seq":0,"status":"ready"}
    "#]],
    );
    assert_eq!(server.request("HEAD", "/health").send().await.status, 200);
}

/// A load balancer sends requests elsewhere, and what has begun goes on.
#[tokio::test]
async fn a_server_that_is_about_to_stop_is_not_ready() {
    let drain = Drain::default();
    let services = Services { drain: drain.clone(), ..Services::default() };
    let server = TestServer::with_services(AccessConfig::loopback(), services).await;
    assert_eq!(server.get("/ready").await.status, 200);
    drain.begin(&server.engine);
    let refused = server.get("/ready").await;
    check(
        &refused.problem(),
        expect![[r#"
            503 unavailable: the server is about to stop (send new work to another server, or to this one when it has started again)
        "#]],
    );
    let claim = server.post("/v1/call/claim_next_tool_call", r#"{"tools": ["pay"]}"#).await;
    check(
        &claim.problem(),
        expect![[r#"
            503 unavailable: claim_next_tool_call is not accepted any more: the process is about to stop (nothing was written; try again when it runs again)
        "#]],
    );
    assert_eq!(claim.header("retry-after"), Some("1"));
    let calls = r#"{"calls": [{"reducer": "create_session", "args": {"agent": "a"}},
        {"reducer": "claim_run", "args": {"id": "r", "driver": "d", "lease_ms": 1000}}]}"#;
    assert_eq!(server.post("/v1/batch", calls).await.status, 503);
    assert_eq!(server.get("/health").await.status, 200);
    let session = server.post("/v1/call/create_session", r#"{"agent": "a"}"#).await;
    assert_eq!(session.status, 200);
    assert_eq!(server.engine.durable_seq().0, 1, "nothing of the batch was written");
}

#[tokio::test]
async fn a_closed_engine_refuses_with_retry_after() {
    let server = TestServer::open().await;
    let engine = server.engine.clone();
    tokio::task::spawn_blocking(move || engine.close()).await.expect("no panic");
    let refused = server.post("/v1/call/nothing", "").await;
    check(
        &refused.problem(),
        expect![[r#"
        503 unavailable: the engine is closing (open the database again, then retry)
    "#]],
    );
    assert_eq!(refused.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn metrics_have_the_prometheus_text_format() {
    let server = TestServer::open().await;
    server.post("/v1/call/nothing", "").await;
    server.post("/v1/call/edit_note", r#"{"id":7,"text":"x"}"#).await;
    let _socket = server.socket().await;
    let metrics = server.get("/metrics").await;
    let kind = metrics.header("content-type");
    assert_eq!(kind, Some("text/plain; version=0.0.4; charset=utf-8"));
    for line in [
        "# TYPE abide_calls_total counter",
        "abide_calls_total 1",
        "# TYPE abide_seq gauge",
        "abide_seq 1",
        "abide_websockets 1",
        "abide_connections 2",
        "abide_ready 1",
        "# TYPE abide_refusals_by_code_total counter",
        "abide_refusals_by_code_total{code=\"not_found\"} 1",
        "abide_change_log_oldest_seq 0",
        "abide_change_log_events 1",
        "abide_build_info{version=\"0.1.0\"} 1",
        "# TYPE abide_call_seconds histogram",
        "abide_call_seconds_bucket{le=\"+Inf\"} 2",
        "abide_call_seconds_count 2",
        "# TYPE abide_waiting_rows gauge",
    ] {
        assert!(metrics.body.lines().any(|given| given == line), "{line}\n{}", metrics.body);
    }
    let is_sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_default();
        name.starts_with("abide_") && value.parse::<f64>().is_ok()
    };
    let odd = metrics.body.lines().find(|line| !line.starts_with("# ") && !is_sample(line));
    assert_eq!(odd, None);
}

/// A digest in the metrics, and its query for those who may see the queries of all callers.
#[tokio::test]
async fn a_template_has_a_digest_in_the_metrics_and_its_text_in_another_place() {
    let server = TestServer::open().await;
    let none = serde_json::Map::new();
    let mut connection = server.engine.connect(&Caller::local());
    let sql = "SELECT id, text FROM notes WHERE text = 'hidden'";
    let request = SubscribeRequest::new("q", sql, &none);
    connection.subscribe(&request).await.expect("it is a query");
    let live = server.get("/v1/live").await.json();
    let template = &live["templates"][0];
    assert!(template["sql"].as_str().is_some_and(|sql| sql.contains("notes")), "{live}");
    let digest = template["template"].as_str().expect("a digest");
    let metrics = server.get("/metrics").await.body;
    let line = format!("abide_live_template_bindings{{template=\"{digest}\"}} 1");
    assert!(metrics.lines().any(|given| given == line), "{line}\n{metrics}");
    assert!(!metrics.contains("SELECT") && !metrics.contains("hidden"), "{metrics}");
    drop(connection);
}

/// A program that reads the metrics all the time takes no turn from others: rows are counted every five seconds.
#[tokio::test]
async fn scrapes_share_what_costs_a_turn() {
    let server = TestServer::open().await;
    let first = server.get("/metrics").await.body;
    let none = serde_json::Map::new();
    let mut connection = server.engine.connect(&Caller::local());
    let request = SubscribeRequest::new("q", "SELECT id FROM notes", &none);
    connection.subscribe(&request).await.expect("it is a query");
    let second = server.get("/metrics").await.body;
    for metrics in [first, second] {
        let head = "# TYPE abide_live_template_bindings gauge";
        assert!(metrics.lines().any(|line| line == head), "{metrics}");
        assert!(!metrics.contains("abide_live_template_bindings{"), "{metrics}");
    }
    drop(connection);
}

#[tokio::test]
async fn the_schema_lists_tables_and_reducers() {
    let server = TestServer::open().await;
    let schema = server.get("/v1/schema").await.json();
    let names = |list: &str| -> Vec<String> {
        let items = schema[list].as_array().expect("a list").iter();
        items.map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert!(names("tables").contains(&"notes".to_owned()), "{:?}", names("tables"));
    assert_eq!(names("reducers"), ["burn_note", "edit_note", "nothing", "write_note"]);
}

#[tokio::test]
async fn the_page_shows_the_state_of_the_log() {
    let server = TestServer::open().await;
    server.post("/v1/call/nothing", "").await;
    let page = server.get("/").await;
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    for part in ["<title>Abide</title>", "event <b>1</b>", "/openapi.json", "/metrics"] {
        assert!(page.body.contains(part), "{part}");
    }
}
