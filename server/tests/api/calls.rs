//! Calls, batches and queries over HTTP.

use expect_test::expect;

use crate::http::check;
use crate::test_server::TestServer;

#[tokio::test]
async fn a_call_returns_its_seq_and_result() {
    let server = TestServer::open().await;
    let written = server.post("/v1/call/write_note", r#"{"book":"a","text":"é\u0000"}"#).await;
    assert_eq!(written.status, 200);
    assert_eq!(written.header("content-type"), Some("application/json"));
    check(
        &written.body,
        expect![[r#"
        {"seq":1,"result":{"id":1,"book":"a","text":"é\u0000","weight":"light"},"duplicate":false}
    "#]],
    );
    let nothing = server.post("/v1/call/nothing", "").await;
    check(
        &nothing.body,
        expect![[r#"
        {"seq":2,"result":null,"duplicate":false}
    "#]],
    );
}

#[tokio::test]
async fn a_retry_with_the_same_key_returns_the_first_result() {
    let server = TestServer::open().await;
    let write = |text: &str| {
        let body = format!(r#"{{"book":"a","text":"{text}"}}"#);
        server.request("POST", "/v1/call/write_note").header("idempotency-key", "k1").body(body)
    };
    let first = write("once").send().await;
    let second = write("once").send().await;
    assert_eq!(first.json()["duplicate"], false);
    assert_eq!(second.json()["duplicate"], true);
    assert_eq!(first.json()["result"], second.json()["result"]);
    assert_eq!(first.json()["seq"], second.json()["seq"]);
    let other = write("twice").send().await;
    assert!(other.problem().starts_with("409 request_id_conflict"), "{}", other.problem());
}

#[tokio::test]
async fn a_batch_is_all_or_nothing() {
    let server = TestServer::open().await;
    let calls = r#"{"calls":[
        {"reducer":"write_note","args":{"book":"a","text":"x"}},
        {"reducer":"nothing"}
    ]}"#;
    let batch = || server.request("POST", "/v1/batch").header("idempotency-key", "b1").body(calls);
    check(
        &batch().send().await.body,
        expect![[r#"
        {"seq":2,"results":[{"seq":1,"result":{"id":1,"book":"a","text":"x","weight":"light"}},{"seq":2,"result":null}],"duplicate":false}
    "#]],
    );
    assert_eq!(batch().send().await.json()["duplicate"], true);
    let calls = r#"{"calls":[
        {"reducer":"write_note","args":{"book":"a","text":"y"}},
        {"reducer":"burn_note","args":{"id":9}}
    ]}"#;
    let refused = server.post("/v1/batch", calls).await;
    assert!(refused.problem().starts_with("404 not_found"), "{}", refused.problem());
    let count = server.post("/v1/sql", r#"{"sql":"SELECT count(*) FROM notes"}"#).await;
    assert_eq!(count.json()["rows"][0][0], 1);
}

#[tokio::test]
async fn a_query_returns_columns_rows_and_its_seq() {
    let server = TestServer::open().await;
    server.post("/v1/call/write_note", r#"{"book":"a","text":null}"#).await;
    let sql = r#"{
        "sql": "SELECT id, text, 1.0 AS r, x'00ff' AS b FROM notes WHERE book = :book",
        "params": {"book": "a"}
    }"#;
    check(
        &server.post("/v1/sql", sql).await.body,
        expect![[r#"
        {"seq":1,"columns":["id","text","r","b"],"rows":[[1,null,1.0,{"$blob":"AP8="}]]}
    "#]],
    );
}

#[tokio::test]
async fn a_query_can_read_a_past_state() {
    let server = TestServer::open().await;
    server.post("/v1/call/write_note", r#"{"book":"a","text":"before"}"#).await;
    server.post("/v1/call/edit_note", r#"{"id":1,"text":"after"}"#).await;
    let ask = |as_of: i64| format!(r#"{{"sql":"SELECT text FROM notes","as_of":{as_of}}}"#);
    let then = server.post("/v1/sql", &ask(1)).await.json();
    assert_eq!((&then["seq"], &then["rows"][0][0]), (&1.into(), &"before".into()));
    let now = server.post("/v1/sql", &ask(2)).await.json();
    assert_eq!((&now["seq"], &now["rows"][0][0]), (&2.into(), &"after".into()));
}
