//! Runs over REST: started, read, aborted, and followed as server-sent events until they end.

use abide_schema::Caller;
use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::agents::server;
use crate::events::Stream;
use crate::http::{Response, check};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

const START: &str = "/v1/agents/clerk/runs";

/// A server with the agent `clerk`.
pub(crate) async fn with_clerk() -> TestServer {
    let server = server().await;
    assert_eq!(server.post("/agents", r#"{"name": "clerk"}"#).await.status, 201);
    server
}

async fn start(server: &TestServer, body: &JsonValue) -> Response {
    let begun = server.post(START, &body.to_string()).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    begun
}

/// A call by an unrestricted driver.
pub(crate) async fn local(server: &TestServer, reducer: &str, args: JsonValue) -> JsonValue {
    let done = server.engine.call(&Caller::local(), reducer, &args, None).await;
    let done = done.unwrap_or_else(|why| panic!("{reducer} {args}: {why}"));
    serde_json::from_str(&done.result).expect("it is JSON")
}

/// Claims a run; returns its fencing token.
pub(crate) async fn claim(server: &TestServer, id: &str) -> JsonValue {
    let args = json!({"id": id, "driver": "d", "lease_ms": 60_000});
    local(server, "claim_run", args).await["fencing_token"].clone()
}

pub(crate) async fn say(server: &TestServer, id: &str, fencing: &JsonValue, words: &[&str]) {
    let events = words.iter().map(|word| json!({"kind": "token", "data": {"content": word}}));
    let events: Vec<JsonValue> = events.collect();
    let args = json!({"id": id, "fencing_token": fencing, "events": events});
    local(server, "record_run", args).await;
}

pub(crate) async fn finish(server: &TestServer, id: &str, fencing: &JsonValue) {
    let args =
        json!({"id": id, "fencing_token": fencing, "end": "done", "output": {"content": "x"}});
    local(server, "finish_run", args).await;
}

async fn stream(server: &TestServer, id: &str, last: Option<&str>) -> Stream {
    Stream::by(server.request("GET", &format!("/v1/runs/{id}/events")), last).await
}

/// The rest of a stream, one line per event, without the numbers that count over all runs.
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
async fn a_run_starts_in_a_new_session() {
    let server = with_clerk().await;
    let body = json!({"input": "Hello.", "id": "r1", "title": "A parcel", "metadata": {"n": 1}});
    let begun = start(&server, &body).await;
    assert_eq!(begun.header("location"), Some("/v1/runs/r1"));
    let run = begun.json()["run"].clone();
    let duplicate = begun.json()["duplicate"].clone();
    assert_eq!((&run["status"], duplicate), (&json!("running"), json!(false)));
    let mut read = server.get("/v1/runs/r1").await.json();
    // The row of a query has all columns; the result of a call omits columns without a value that were added later.
    read["run"].as_object_mut().expect("a row").retain(|name, value| {
        !(["waited_us", "waiting_since"].contains(&name.as_str()) && value.is_null())
    });
    assert_eq!(read["run"], run);
    let session = run["session_id"].as_str().expect("it has one");
    let sql = json!({"sql": "SELECT agent, title, status FROM sessions WHERE id = :id",
        "params": {"id": session}});
    let rows = server.post("/v1/sql", &sql.to_string()).await.json()["rows"].clone();
    assert_eq!(rows, json!([["clerk", "A parcel", "active"]]));
    let second = json!({"input": "And?", "session_id": session});
    let busy = server.post(START, &second.to_string()).await;
    assert_eq!((busy.status, &busy.json()["code"]), (409, &json!("conflict")));
    let aborted = server.post("/v1/runs/r1/abort", r#"{"reason": "enough"}"#).await;
    assert_eq!(aborted.json()["run"]["status"], "aborted");
    let again = server.post("/v1/runs/r1/abort", "").await;
    assert_eq!((again.status, &again.json()["duplicate"]), (200, &json!(true)));
    assert_eq!(server.post(START, &second.to_string()).await.status, 201, "it has ended");
}

#[tokio::test]
async fn a_retry_starts_no_second_run() {
    let server = with_clerk().await;
    let body = r#"{"input": "Hello."}"#;
    let ask = || server.request("POST", START).header("idempotency-key", "k1").body(body).send();
    let first = ask().await.json();
    let second = ask().await.json();
    assert_eq!(first["run"]["id"], second["run"]["id"]);
    assert_eq!((&first["duplicate"], &second["duplicate"]), (&json!(false), &json!(true)));
    let named = json!({"input": "Hello.", "id": "r7"});
    let once = start(&server, &named).await.json();
    let again = start(&server, &named).await.json();
    assert_eq!((&once["duplicate"], &again["duplicate"]), (&json!(false), &json!(true)));
    assert_eq!(once["run"]["session_id"], again["run"]["session_id"]);
    let other = start(&server, &json!({"input": "Hello."})).await.json();
    assert_ne!(other["run"]["session_id"], first["run"]["session_id"]);
}

#[tokio::test]
async fn a_refused_run_leaves_nothing() {
    let server = with_clerk().await;
    let unknown = server.post("/v1/agents/noname/runs", r#"{"input": "Hello."}"#).await;
    assert_eq!((unknown.status, &unknown.json()["code"]), (404, &json!("not_found")));
    let absent = server.post(START, r#"{"input": "x", "session_id": "s9"}"#).await;
    check(
        &absent.problem(),
        expect![[r#"
            404 not_found: there is no session s9 (the query `SELECT id, agent, status FROM sessions` lists them)
        "#]],
    );
    let both = server.post(START, r#"{"input": "x", "session_id": "s9", "title": "t"}"#).await;
    assert_eq!(both.status, 422);
    for body in ["", "[]", "{}", r#"{"input": 1}"#, r#"{"input": "x", "inptu": 1}"#] {
        assert_eq!(server.post(START, body).await.status, 400, "{body}");
    }
    let long = json!({"input": "x".repeat(abide_schema::limits::MESSAGE_BYTES)}).to_string();
    assert_eq!(server.post(START, &long).await.status, 413);
    let count = r#"{"sql": "SELECT count(*) FROM sessions"}"#;
    assert_eq!(server.post("/v1/sql", count).await.json()["rows"], json!([[0]]));
    for path in ["/v1/runs/r9", "/v1/runs/r9/events"] {
        let missing = server.get(path).await.problem();
        let expected = "404 not_found: there is no run r9 \
            (the query `SELECT id, session_id, status FROM runs` lists them)";
        assert_eq!(missing, expected);
    }
    assert_eq!(server.post("/v1/runs/r9/abort", "").await.status, 404);
}

#[tokio::test]
async fn a_run_can_be_followed_to_its_end() {
    let server = with_clerk().await;
    start(&server, &json!({"input": "Hello.", "id": "r1"})).await;
    let fencing = claim(&server, "r1").await;
    let mut live = stream(&server, "r1", None).await;
    let first = live.next().await.expect("the earlier events");
    assert!(first.starts_with("event: status id: 1 "), "{first}");
    say(&server, "r1", &fencing, &["Hel", "lo\n"]).await;
    finish(&server, "r1", &fencing).await;
    let remaining = rest(&mut live).await;
    let expected = expect![[r#"
        event: token id: 2 turn 1 {"content":"Hel"}
        event: token id: 3 turn 1 {"content":"lo\n"}
        event: status id: 4 turn 1 {"status":"idle"}
        event: done id: 5 turn 1 {"assistant_data":{"content":"x"}}
    "#]];
    expected.assert_eq(&remaining);
    expected.assert_eq(&rest(&mut stream(&server, "r1", Some("1")).await).await);
    let left = rest(&mut stream(&server, "r1", Some("4")).await).await;
    assert_eq!(left, "event: done id: 5 turn 1 {\"assistant_data\":{\"content\":\"x\"}}\n");
    let over = server.request("GET", "/v1/runs/r1/events").header("last-event-id", "5");
    assert_eq!(over.send().await.status, 204, "an EventSource does not reconnect");
}

#[tokio::test]
async fn an_invalid_last_event_id_is_refused() {
    let server = with_clerk().await;
    start(&server, &json!({"input": "Hello.", "id": "r1"})).await;
    for id in ["x", "-1", "1.5", "", "99999999999999999999", "2"] {
        let request = server.request("GET", "/v1/runs/r1/events").header("last-event-id", id);
        let refused = request.send().await;
        assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("bad_request")), "{id}");
    }
}

/// For another tenant's run every route answers the same as for an unknown one.
#[tokio::test]
async fn a_foreign_run_is_not_found() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let acme = token("acmeacmea");
    let zeta = token("zetazetaz");
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
    for (method, path) in [
        ("GET", "/v1/runs/r1"),
        ("GET", "/v1/runs/r1/events"),
        ("POST", "/v1/runs/r1/abort"),
        ("POST", "/v1/runs/r1/pause"),
        ("POST", "/v1/runs/r1/resume"),
        ("POST", "/v1/runs/r1/export"),
    ] {
        let theirs = home.ask(&zeta, method, path, "").await.problem();
        let unknown = home.ask(&zeta, method, &path.replace("r1", "r9"), "").await.problem();
        assert_eq!(theirs.replace("r1", "r9"), unknown, "{method} {path}");
        assert!(theirs.starts_with("404 "), "{theirs}");
    }
    let in_theirs = json!({"input": "x", "session_id": session}).to_string();
    assert_eq!(home.ask(&zeta, "POST", START, &in_theirs).await.status, 404);
    let scoped = json!({"input": "x", "scope": {"tenant": "acme"}}).to_string();
    assert_eq!(home.ask(&zeta, "POST", START, &scoped).await.status, 403);
    assert_eq!(home.ask(&acme, "GET", "/v1/runs/r1", "").await.json()["run"]["status"], "running");
}

/// A browser's `EventSource` cannot set headers, so here the token may be in the query, and only here.
/// When it is no longer valid, the stream ends with an event.
#[tokio::test]
async fn a_stream_ends_with_its_credentials() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    let body = json!({"input": "Hello.", "id": "r1"}).to_string();
    assert_eq!(home.ask(&token("acmeacmea"), "POST", START, &body).await.status, 201);
    let query = format!("?token={}", token("acmeacmea"));
    assert_eq!(home.0.get(&format!("/v1/runs/r1{query}")).await.status, 401);
    let request = home.0.request("GET", &format!("/v1/runs/r1/events{query}"));
    let mut live = Stream::by(request, None).await;
    assert!(live.next().await.is_some_and(|event| event.contains("thinking")));
    home.local("revoke_token", json!({"id": "acmeacmea"})).await;
    let last = live.next().await.expect("the error arrives");
    assert!(last.starts_with("event: problem data: {\"code\":\"unauthenticated\""), "{last}");
    assert_eq!(live.next().await, None);
}

/// A run starts with an id in the caller's own namespace. If another tenant has a run with that id, or with the full
/// id, no answer changes.
#[tokio::test]
async fn ids_of_another_tenants_runs_are_available() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let acme = token("acmeacmea");
    let zeta = token("zetazetaz");
    let named = |id: &str| json!({"input": "Hello.", "id": id}).to_string();
    assert_eq!(home.ask(&acme, "POST", START, &named("r1")).await.status, 201);
    let theirs = home.ask(&acme, "GET", "/v1/runs/r1", "").await.json()["run"].clone();
    assert_eq!(theirs["id"], "tenant=acme/r1");
    for id in ["r1", "r9"] {
        let begun = home.ask(&zeta, "POST", START, &named(id)).await;
        assert_eq!(begun.status, 201, "{begun:?}");
        let place = format!("/v1/runs/tenant%3Dzeta%2F{id}");
        assert_eq!(begun.header("location"), Some(place.as_str()));
        let own = begun.json();
        assert_eq!(
            (&own["run"]["id"], &own["duplicate"]),
            (&json!(format!("tenant=zeta/{id}")), &json!(false))
        );
        assert_ne!(own["run"]["session_id"], theirs["session_id"]);
        let again = home.ask(&zeta, "POST", START, &named(id)).await.json();
        assert_eq!((&again["run"]["id"], &again["duplicate"]), (&own["run"]["id"], &json!(true)));
    }
    let mut whole = Vec::new();
    for id in ["tenant=acme/r1", "tenant=acme/r8"] {
        let answer = home.ask(&zeta, "POST", START, &named(id)).await;
        let status = answer.status;
        let body = answer.json();
        let outcome =
            json!([status, body["code"], body["run"]["id"], body["duplicate"]]).to_string();
        whole.push(outcome.replace("r1", "r8"));
    }
    assert_eq!(whole[0], whole[1]);
    let after = home.ask(&acme, "GET", "/v1/runs/r1", "").await.json()["run"].clone();
    assert_eq!(after, theirs);
}

/// Routes answer without hidden columns, and 403 if they need them. It was 400, `bad_sql`.
#[tokio::test]
async fn run_routes_work_without_hidden_columns() {
    let home = TokenServer(with_clerk().await);
    home.with("shopshops", json!({})).await;
    let shop = token("shopshops");
    let hide = async |table: &str, column: &str| {
        let args = json!({"table": table, "role": "app", "name": column, "hidden": [column]});
        home.local("set_policy", args).await;
    };
    hide("run_events", "data").await;
    let body = json!({"input": "Hello.", "id": "r1"}).to_string();
    assert_eq!(home.ask(&shop, "POST", START, &body).await.status, 201);
    let fencing = claim(&home.0, "r1").await;
    say(&home.0, "r1", &fencing, &["Hello."]).await;
    finish(&home.0, "r1", &fencing).await;
    let events = async || {
        let request = home.0.request("GET", "/v1/runs/r1/events");
        let request = request.header("authorization", &format!("Bearer {shop}"));
        rest(&mut Stream::by(request, None).await).await
    };
    expect![[r#"
        event: status id: 1 turn 1 null
        event: token id: 2 turn 1 null
        event: status id: 3 turn 1 null
        event: done id: 4 turn 1 null
    "#]]
    .assert_eq(&events().await);
    hide("agent_state", "content").await;
    hide("runs", "events").await;
    let run = home.ask(&shop, "GET", "/v1/runs/r1", "").await;
    let shown = run.json()["run"].clone();
    assert_eq!((run.status, &shown["status"]), (200, &json!("done")));
    assert_eq!((shown.get("output"), shown.get("events")), (None, None));
    assert_eq!(events().await.lines().count(), 4);
    hide("run_events", "kind").await;
    let refused = home.ask(&shop, "GET", "/v1/runs/r1/events", "").await.problem();
    let expected = "403 denied: a policy hides rows or columns that this route needs \
        (ask an admin for access to them, or read the visible ones with POST /v1/sql)";
    assert_eq!(refused, expected);
    hide("runs", "id").await;
    for (method, path) in [("GET", "/v1/runs/r1"), ("GET", "/v1/runs/r1/events")] {
        assert_eq!(home.ask(&shop, method, path, "").await.status, 403, "{path}");
    }
}

/// A run that is paused at a stage by its driver.
async fn paused(server: &TestServer) {
    start(server, &json!({"input": "Hello.", "id": "r1"})).await;
    let claim = json!({"id": "r1", "driver": "d", "lease_ms": 60_000}).to_string();
    let claimed = server.post("/v1/call/claim_run", &claim).await.json();
    let record = json!({"id": "r1", "fencing_token": claimed["result"]["fencing_token"],
        "stage": "after_agent"});
    let asked = server.post("/v1/runs/r1/pause", r#"{"stage": "after_agent"}"#).await;
    assert_eq!((asked.status, &asked.json()["pause"]["status"]), (200, &json!("requested")));
    server.post("/v1/call/record_pause", &record.to_string()).await;
}

#[tokio::test]
async fn a_run_is_paused_resumed_and_moved() {
    let server = with_clerk().await;
    paused(&server).await;
    let read = server.get("/v1/runs/r1").await.json();
    let status = &read["run"]["status"];
    let reason = &read["run"]["reason"];
    assert_eq!((status, reason), (&json!("waiting"), &json!("pause")));
    let copied = server.post("/v1/runs/r1/export", r#"{"copy": true}"#).await.json();
    let body = json!({"snapshot": copied["snapshot"], "id": "r2"}).to_string();
    let imported = server.post("/v1/imports", &body).await;
    assert_eq!((imported.status, &imported.json()["run"]["status"]), (201, &json!("running")));
    let session = read["run"]["session_id"].as_str().expect("it has one");
    let forked = server.post(&format!("/v1/sessions/{session}/fork"), r#"{"id": "f1"}"#).await;
    assert_eq!((forked.status, &forked.json()["fork"]["messages"]), (201, &json!(1)));
    // The agent was registered before the session: the copy would be empty.
    let early = server.post(&format!("/v1/sessions/{session}/fork"), r#"{"at": 1}"#).await;
    let why = early.problem();
    assert!(early.status == 422 && why.contains("begins at event"), "{why}");
    let resumed = server.post("/v1/runs/r1/resume", "").await.json();
    let status = &resumed["run"]["status"];
    let turn = &resumed["run"]["turn"];
    assert_eq!((status, turn), (&json!("running"), &json!(2)));
}

#[tokio::test]
async fn an_exported_run_has_ended_here() {
    let server = with_clerk().await;
    paused(&server).await;
    let first = server.post("/v1/runs/r1/export", "").await.json();
    let again = server.post("/v1/runs/r1/export", "").await.json();
    assert_eq!((&first["snapshot"], &again["duplicate"]), (&again["snapshot"], &json!(true)));
    let run = server.get("/v1/runs/r1").await.json()["run"].clone();
    assert_eq!((&run["status"], &run["error_code"]), (&json!("aborted"), &json!("moved")));
    for (path, body, status) in [
        ("/v1/runs/r1/pause", r#"{"stage": "soon"}"#, 422),
        ("/v1/runs/r1/pause", r#"{"color": "red"}"#, 422),
        ("/v1/runs/r1/resume", "", 409),
        ("/v1/runs/r9/export", "", 404),
        ("/v1/sessions/s9/fork", "", 404),
        ("/v1/imports", "", 400),
        ("/v1/imports", "{}", 422),
        ("/v1/imports", r#"{"snapshot": []}"#, 422),
    ] {
        assert_eq!(server.post(path, body).await.status, status, "{path} {body}");
    }
}

/// The actions of the watchdog in the metrics are those of the rows, so a restart does not lose them.
#[tokio::test]
async fn the_metrics_count_what_the_watchdog_does() {
    let server = with_clerk().await;
    let run = start(&server, &json!({"input": "x"})).await.json()["run"]["id"].clone();
    let id = run.as_str().expect("a text");
    let fencing = claim(&server, id).await;
    for (iteration, action) in ["warn", "none", "warn", "stop"].into_iter().enumerate() {
        let health = json!({"tokens": 1, "token_drift": 0, "messages": 1, "new_messages": 1,
            "tool_messages": 0, "over_tooling": 0, "context_rot": 0, "repeats": 0, "signals": [],
            "unhealthy": 0});
        let args = json!({"id": id, "fencing_token": fencing, "iteration": iteration + 1,
            "health": health, "action": action});
        local(&server, "record_health", args).await;
    }
    let metrics = server.get("/metrics").await;
    let counted: Vec<&str> =
        metrics.body.lines().filter(|line| line.contains("watchdog")).collect();
    expect![[r#"
        # HELP abide_watchdog_actions_total Actions of the watchdog in runs of agents.
        # TYPE abide_watchdog_actions_total counter
        abide_watchdog_actions_total{action="stop"} 1
        abide_watchdog_actions_total{action="warn"} 2"#]]
    .assert_eq(&counted.join("\n"));
}
