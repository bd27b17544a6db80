//! Runs over REST: begun, looked at, aborted, and followed as server-sent events until they are over.

use abide_schema::Caller;
use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::agents::house;
use crate::events::Stream;
use crate::house::House;
use crate::http::{Response, check};
use crate::tokens::{Home, token};

const START: &str = "/v1/agents/clerk/runs";

/// A house with the agent `clerk`.
async fn with_clerk() -> House {
    let house = house().await;
    assert_eq!(house.post("/agents", r#"{"name": "clerk"}"#).await.status, 201);
    house
}

async fn start(house: &House, body: &JsonValue) -> Response {
    let begun = house.post(START, &body.to_string()).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    begun
}

/// What a driver does, whom nothing bounds.
async fn local(house: &House, reducer: &str, args: JsonValue) -> JsonValue {
    let done = house.engine.call(&Caller::local(), reducer, &args, None).await;
    let done = done.unwrap_or_else(|why| panic!("{reducer} {args}: {why}"));
    serde_json::from_str(&done.result).expect("it is JSON")
}

/// Takes a run over; its fencing token.
async fn claim(house: &House, id: &str) -> JsonValue {
    let args = json!({"id": id, "driver": "d", "lease_ms": 60_000});
    local(house, "claim_run", args).await["fencing_token"].clone()
}

async fn say(house: &House, id: &str, fencing: &JsonValue, words: &[&str]) {
    let told = words.iter().map(|word| json!({"kind": "token", "data": {"content": word}}));
    let events: Vec<JsonValue> = told.collect();
    let args = json!({"id": id, "fencing_token": fencing, "events": events});
    local(house, "record_run", args).await;
}

async fn finish(house: &House, id: &str, fencing: &JsonValue) {
    let args =
        json!({"id": id, "fencing_token": fencing, "end": "done", "output": {"content": "x"}});
    local(house, "finish_run", args).await;
}

async fn stream(house: &House, id: &str, last: Option<&str>) -> Stream {
    Stream::by(house.request("GET", &format!("/v1/runs/{id}/events")), last).await
}

/// All that is left of a stream, a line each, without the numbers that are counted over all runs.
async fn rest(stream: &mut Stream) -> String {
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        let (head, data) = event.split_once(" data: ").expect("it has data");
        let data: JsonValue = serde_json::from_str(data).expect("it is JSON");
        assert!(data["id"].is_i64());
        text.push_str(&format!("{head} turn {} {}\n", data["turn"], data["data"]));
    }
    text
}

#[tokio::test]
async fn begun_in_a_session_of_its_own() {
    let house = with_clerk().await;
    let body = json!({"input": "Hello.", "id": "r1", "title": "A parcel", "metadata": {"n": 1}});
    let begun = start(&house, &body).await;
    assert_eq!(begun.header("location"), Some("/v1/runs/r1"));
    let (run, duplicate) = (begun.json()["run"].clone(), begun.json()["duplicate"].clone());
    assert_eq!((&run["status"], duplicate), (&json!("running"), json!(false)));
    let read = house.get("/v1/runs/r1").await.json();
    assert_eq!(read["run"], run);
    let session = run["session_id"].as_str().expect("it has one");
    let sql = json!({"sql": "SELECT agent, title, status FROM sessions WHERE id = :id",
        "params": {"id": session}});
    let rows = house.post("/v1/sql", &sql.to_string()).await.json()["rows"].clone();
    assert_eq!(rows, json!([["clerk", "A parcel", "active"]]));
    let second = json!({"input": "And?", "session_id": session});
    let busy = house.post(START, &second.to_string()).await;
    assert_eq!((busy.status, &busy.json()["code"]), (409, &json!("conflict")));
    let aborted = house.post("/v1/runs/r1/abort", r#"{"reason": "enough"}"#).await;
    assert_eq!(aborted.json()["run"]["status"], "aborted");
    let again = house.post("/v1/runs/r1/abort", "").await;
    assert_eq!((again.status, &again.json()["duplicate"]), (200, &json!(true)));
    assert_eq!(house.post(START, &second.to_string()).await.status, 201, "it has ended");
}

#[tokio::test]
async fn a_retry_is_answered_and_begins_nothing() {
    let house = with_clerk().await;
    let body = r#"{"input": "Hello."}"#;
    let ask = || house.request("POST", START).header("idempotency-key", "k1").body(body).send();
    let (first, second) = (ask().await.json(), ask().await.json());
    assert_eq!(first["run"]["id"], second["run"]["id"]);
    assert_eq!((&first["duplicate"], &second["duplicate"]), (&json!(false), &json!(true)));
    let named = json!({"input": "Hello.", "id": "r7"});
    let (once, again) = (start(&house, &named).await.json(), start(&house, &named).await.json());
    assert_eq!((&once["duplicate"], &again["duplicate"]), (&json!(false), &json!(true)));
    assert_eq!(once["run"]["session_id"], again["run"]["session_id"]);
    let other = start(&house, &json!({"input": "Hello."})).await.json();
    assert_ne!(other["run"]["session_id"], first["run"]["session_id"]);
}

#[tokio::test]
async fn what_cannot_be_begun_leaves_nothing() {
    let house = with_clerk().await;
    let unknown = house.post("/v1/agents/nobody/runs", r#"{"input": "Hello."}"#).await;
    assert_eq!((unknown.status, &unknown.json()["code"]), (404, &json!("not_found")));
    let absent = house.post(START, r#"{"input": "x", "session_id": "s9"}"#).await;
    check(
        &absent.problem(),
        expect![[r#"
            404 not_found: there is no session s9 (create_session makes one)
        "#]],
    );
    let both = house.post(START, r#"{"input": "x", "session_id": "s9", "title": "t"}"#).await;
    assert_eq!(both.status, 422);
    for body in ["", "[]", "{}", r#"{"input": 1}"#, r#"{"input": "x", "inptu": 1}"#] {
        assert_eq!(house.post(START, body).await.status, 400, "{body}");
    }
    let long = json!({"input": "x".repeat(abide_schema::limits::MESSAGE_BYTES)}).to_string();
    assert_eq!(house.post(START, &long).await.status, 413);
    let count = r#"{"sql": "SELECT count(*) FROM sessions"}"#;
    assert_eq!(house.post("/v1/sql", count).await.json()["rows"], json!([[0]]));
    for path in ["/v1/runs/r9", "/v1/runs/r9/events"] {
        let missing = house.get(path).await.problem();
        assert_eq!(missing, "404 not_found: there is no run r9 (-)");
    }
    assert_eq!(house.post("/v1/runs/r9/abort", "").await.status, 404);
}

#[tokio::test]
async fn followed_until_it_is_over() {
    let house = with_clerk().await;
    start(&house, &json!({"input": "Hello.", "id": "r1"})).await;
    let fencing = claim(&house, "r1").await;
    let mut live = stream(&house, "r1", None).await;
    let first = live.next().await.expect("what was told already");
    assert!(first.starts_with("event: status id: 1 "), "{first}");
    say(&house, "r1", &fencing, &["Hel", "lo\n"]).await;
    finish(&house, "r1", &fencing).await;
    let told = rest(&mut live).await;
    let expected = expect![[r#"
        event: token id: 2 turn 1 {"content":"Hel"}
        event: token id: 3 turn 1 {"content":"lo\n"}
        event: status id: 4 turn 1 {"status":"idle"}
        event: done id: 5 turn 1 {"assistant_data":{"content":"x"}}
    "#]];
    expected.assert_eq(&told);
    expected.assert_eq(&rest(&mut stream(&house, "r1", Some("1")).await).await);
    let left = rest(&mut stream(&house, "r1", Some("4")).await).await;
    assert_eq!(left, "event: done id: 5 turn 1 {\"assistant_data\":{\"content\":\"x\"}}\n");
    let over = house.request("GET", "/v1/runs/r1/events").header("last-event-id", "5");
    assert_eq!(over.send().await.status, 204, "an EventSource does not come again");
}

#[tokio::test]
async fn a_place_that_is_none_is_refused() {
    let house = with_clerk().await;
    start(&house, &json!({"input": "Hello.", "id": "r1"})).await;
    for id in ["x", "-1", "1.5", "", "99999999999999999999", "2"] {
        let request = house.request("GET", "/v1/runs/r1/events").header("last-event-id", id);
        let refused = request.send().await;
        assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("bad_request")), "{id}");
    }
}

/// Of another tenant's run every route says what it says of one that nobody has.
#[tokio::test]
async fn a_foreign_run_is_not_found() {
    let home = Home(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let (acme, zeta) = (token("acmeacmea"), token("zetazetaz"));
    let body = json!({"input": "Hello.", "id": "r1"}).to_string();
    for (method, path) in [
        ("POST", START),
        ("GET", "/v1/runs/r1"),
        ("GET", "/v1/runs/r1/events"),
        ("POST", "/v1/runs/r1/abort"),
    ] {
        let status = home.0.request(method, path).body(&body).send().await.status;
        assert_eq!(status, 401, "{method} {path} without a token");
    }
    let begun = home.ask(&acme, "POST", START, &body).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    let session = begun.json()["run"]["session_id"].clone();
    for (method, path) in
        [("GET", "/v1/runs/r1"), ("GET", "/v1/runs/r1/events"), ("POST", "/v1/runs/r1/abort")]
    {
        let theirs = home.ask(&zeta, method, path, "").await.problem();
        let nobodys = home.ask(&zeta, method, &path.replace("r1", "r9"), "").await.problem();
        assert_eq!(theirs.replace("r1", "r9"), nobodys, "{method} {path}");
        assert!(theirs.starts_with("404 "), "{theirs}");
    }
    let in_theirs = json!({"input": "x", "session_id": session}).to_string();
    assert_eq!(home.ask(&zeta, "POST", START, &in_theirs).await.status, 404);
    let scoped = json!({"input": "x", "scope": {"tenant": "acme"}}).to_string();
    assert_eq!(home.ask(&zeta, "POST", START, &scoped).await.status, 403);
    assert_eq!(home.ask(&acme, "GET", "/v1/runs/r1", "").await.json()["run"]["status"], "running");
}

/// A browser's `EventSource` cannot set headers, so here the token may stand in the query; nowhere else.
/// When it does not count any more, the stream ends and says so.
#[tokio::test]
async fn a_stream_ends_with_its_credentials() {
    let home = Home(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    let body = json!({"input": "Hello.", "id": "r1"}).to_string();
    assert_eq!(home.ask(&token("acmeacmea"), "POST", START, &body).await.status, 201);
    let query = format!("?token={}", token("acmeacmea"));
    assert_eq!(home.0.get(&format!("/v1/runs/r1{query}")).await.status, 401);
    let request = home.0.request("GET", &format!("/v1/runs/r1/events{query}"));
    let mut live = Stream::by(request, None).await;
    assert!(live.next().await.is_some_and(|event| event.contains("thinking")));
    home.local("revoke_token", json!({"id": "acmeacmea"})).await;
    let last = live.next().await.expect("it is told");
    assert!(last.starts_with("event: problem data: {\"code\":\"unauthenticated\""), "{last}");
    assert_eq!(live.next().await, None);
}
