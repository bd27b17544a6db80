//! The runtime contract over HTTP: invoke and wait, state, checkpoints, the state at a checkpoint, abort.

use std::collections::BTreeSet;

use abide_engine::{Connection, SubscribeRequest, Update};
use abide_schema::{Caller, Code, Scope};
use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::agents::server;
use crate::http::Response;
use crate::runs::{claim, finish, local, say, with_clerk};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

const INVOKE: &str = "/v1/agents/clerk/invoke";

/// The first column of the first row of a query, as soon as it has one.
async fn first_text(server: &TestServer, sql: &str) -> String {
    let mut connection = server.engine.connect(&Caller::local());
    let none = serde_json::Map::new();
    let request = SubscribeRequest::new("q", sql, &none);
    connection.subscribe(&request).await.expect("it is a query");
    loop {
        let row = match connection.next().await {
            Update::Snapshot(part) => part.rows.first().cloned(),
            Update::Delta { changes, .. } => {
                changes.iter().find_map(|change| change.delta.rows().inserts.first().cloned())
            }
            Update::Rerun { change, .. } => change.delta.rows().inserts.first().cloned(),
            _ => None,
        };
        if let Some(row) = row {
            return row[0].to_json().as_str().expect("it is a text").to_owned();
        }
    }
}

/// Invokes the agent, and drives the run that this starts to its end.
async fn invoked(server: &TestServer, body: &JsonValue) -> Response {
    let text = body.to_string();
    let asked = server.post(INVOKE, &text);
    let drives = async {
        let sql = "SELECT id FROM runs WHERE status = 'running' AND driver IS NULL";
        let id = first_text(server, sql).await;
        let fencing = claim(server, &id).await;
        say(server, &id, &fencing, &["Hel", "lo."]).await;
        finish(server, &id, &fencing).await;
    };
    tokio::join!(asked, drives).0
}

#[tokio::test]
async fn invoke_waits_for_the_end_of_the_turn() {
    let server = with_clerk().await;
    let done = invoked(&server, &json!({"input": "Hello.", "id": "r1", "wait_ms": 60_000})).await;
    assert_eq!((done.status, done.header("location")), (200, Some("/v1/runs/r1")));
    let answer = done.json();
    assert_eq!((&answer["run"]["status"], &answer["duplicate"]), (&json!("done"), &json!(false)));
    assert_eq!(answer["run"]["output"], json!({"content": "x"}));
    assert_eq!(answer["event"]["event"], "done");
    assert_eq!(answer["event"]["data"], json!({"assistant_data": {"content": "x"}}));
    // A repeated request returns the same end.
    let again = server.post(INVOKE, r#"{"input": "Hello.", "id": "r1"}"#).await;
    let again = again.json();
    assert_eq!((&again["event"], &again["duplicate"]), (&answer["event"], &json!(true)));
}

/// An agent gets JSON as JSON text.
#[tokio::test]
async fn the_input_can_be_json() {
    let server = with_clerk().await;
    for (id, input, stored) in [
        ("r1", json!({"order": 7, "a": [true]}), r#"{"a":[true],"order":7}"#),
        ("r2", json!(["x"]), r#"["x"]"#),
        ("r3", json!("text"), "text"),
    ] {
        let done = invoked(&server, &json!({"input": input, "id": id})).await;
        assert_eq!(done.status, 200, "{done:?}");
        let sql = format!(
            "SELECT s.content FROM agent_state s JOIN runs r ON r.session_id = s.session_id \
            WHERE r.id = '{id}' AND s.role = 'user'"
        );
        assert_eq!(first_text(&server, &sql).await, stored);
    }
    let begun = server.post("/v1/agents/clerk/runs", r#"{"input": {"order": 8}}"#).await;
    assert_eq!(begun.status, 201);
}

/// The run continues when the time of the request is over, and an interrupt ends the turn.
#[tokio::test]
async fn a_request_is_bounded_and_its_run_continues() {
    let server = with_clerk().await;
    let late = server.post(INVOKE, r#"{"input": "Hello.", "id": "r1", "wait_ms": 0}"#).await;
    assert_eq!((late.status, late.header("location")), (202, Some("/v1/runs/r1")));
    assert_eq!(
        (&late.json()["run"]["status"], &late.json()["event"]),
        (&json!("running"), &json!(null))
    );
    let fencing = claim(&server, "r1").await;
    local(&server, "suspend_session", json!({"session_id": late.json()["run"]["session_id"]}))
        .await;
    let wait = json!({"id": "r1", "fencing_token": fencing, "interrupt": {"why": "x"}});
    local(&server, "wait_run", wait).await;
    let waits = server.post(INVOKE, r#"{"input": "Hello.", "id": "r1"}"#).await;
    assert_eq!((waits.status, &waits.json()["event"]["event"]), (200, &json!("interrupt")));
    assert_eq!(waits.json()["run"]["status"], "waiting");
    let mut refusals = String::new();
    for body in [
        r#"{"input": "x", "wait_ms": -1}"#,
        r#"{"input": "x", "wait_ms": 600001}"#,
        r#"{"input": "x", "wait_ms": "1"}"#,
        r#"{"input": 7}"#,
        r#"{"inptu": "x"}"#,
        "",
    ] {
        refusals += &format!("{}\n", server.post(INVOKE, body).await.problem());
    }
    expect![[r#"
        422 bad_arguments: wait_ms must be an integer from 0 to 600000 (when the time is over, the response is 202, and the run continues)
        422 bad_arguments: wait_ms must be an integer from 0 to 600000 (when the time is over, the response is 202, and the run continues)
        422 bad_arguments: wait_ms must be an integer from 0 to 600000 (when the time is over, the response is 202, and the run continues)
        400 bad_request: the body has an unexpected form: input must be a string, an object or a list at line 1 column 12 (send a body like {"input": "…", "session_id": "…"}, the last optional)
        400 bad_request: the body has an unexpected form: unknown field `inptu`, expected one of `input`, `session_id`, `id`, `deadline_ms`, `title`, `scope`, `metadata`, `wait_ms` at line 1 column 8 (send a body like {"input": "…", "session_id": "…"}, the last optional)
        400 bad_request: the body is empty (send a body like {"input": "…", "session_id": "…"}, the last optional)
    "#]].assert_eq(&refusals);
}

#[tokio::test]
async fn the_state_at_a_checkpoint_stays() {
    let server = with_clerk().await;
    invoked(&server, &json!({"input": "First.", "id": "r1"})).await;
    let session = server.get("/v1/runs/r1").await.json()["run"]["session_id"].clone();
    let path = format!("/v1/sessions/{}/state", session.as_str().expect("it has one"));
    let first = server.get("/v1/runs/r1/checkpoints").await.json();
    let checkpoints = first["checkpoints"].as_array().expect("a list").clone();
    assert_eq!(first["session_id"], session);
    assert_eq!(checkpoints.len(), 1, "{first}");
    let at = checkpoints[0]["at"].as_i64().expect("a seq");
    let before = server.get(&format!("{path}?at={at}")).await.json();
    invoked(&server, &json!({"input": "Second.", "id": "r2", "session_id": session})).await;
    let now = server.get(&path).await.json();
    assert_eq!((&before["run"]["id"], &now["run"]["id"]), (&json!("r1"), &json!("r2")));
    let later = server.get("/v1/runs/r1/checkpoints").await.json();
    assert_eq!(later["checkpoints"], first["checkpoints"], "the last one does not move");
    let contents = |state: &JsonValue| -> Vec<JsonValue> {
        let messages = state["messages"].as_array().expect("a list");
        messages.iter().map(|message| message["content"].clone()).collect()
    };
    assert_eq!(contents(&before), ["First."]);
    assert_eq!(contents(&now), ["First.", "Second."]);
    assert_eq!(server.get(&format!("{path}?at={at}")).await.json(), before);
    assert_eq!(contents(&server.get(&format!("{path}?last=1")).await.json()), ["Second."]);
    for query in ["?at=-1", "?at=x", "?last=10001", "?lst=1", "?at=99999999"] {
        let refused = server.get(&format!("{path}{query}")).await;
        assert!((400..500).contains(&refused.status), "{query}: {refused:?}");
    }
}

#[tokio::test]
async fn checkpoints_are_listed_in_pages() {
    let server = with_clerk().await;
    server.post(INVOKE, r#"{"input": "x", "id": "r1", "wait_ms": 0}"#).await;
    let fencing = claim(&server, "r1").await;
    let event = |kind: &str| {
        let event = json!({"kind": kind, "data": {}});
        json!({"reducer": "record_run",
            "args": {"id": "r1", "fencing_token": fencing, "events": [event]}})
    };
    // Every second step is a checkpoint.
    let calls: Vec<JsonValue> = (0..501).flat_map(|_| [event("usage"), event("status")]).collect();
    for some in calls.chunks(500) {
        let done = server.post("/v1/batch", &json!({"calls": some}).to_string()).await;
        assert_eq!(done.status, 200, "{done:?}");
    }
    let path = "/v1/runs/r1/checkpoints";
    let (first, next) = {
        let page = server.get(path).await.json();
        (page["checkpoints"].as_array().expect("a list").clone(), page["next"].clone())
    };
    assert_eq!((first.len(), &next), (500, &first[499]["events"]));
    // The state of a checkpoint is that before the next step.
    let steps = first[1]["at"].as_i64().zip(first[0]["at"].as_i64());
    assert_eq!(steps.map(|(second, first)| second - first), Some(2));
    let last = server.get(&format!("{path}?after={next}")).await.json();
    assert_eq!(
        (last["checkpoints"].as_array().map(Vec::len), &last["next"]),
        (Some(1), &json!(null))
    );
    for query in ["?after=x", "?before=1"] {
        let refused = server.get(&format!("{path}{query}")).await;
        assert_eq!(refused.status, 422, "{query}: {refused:?}");
    }
}

#[tokio::test]
async fn a_session_aborts_its_active_run() {
    let server = with_clerk().await;
    server.post(INVOKE, r#"{"input": "x", "id": "r1", "wait_ms": 0}"#).await;
    let session = server.get("/v1/runs/r1").await.json()["run"]["session_id"].clone();
    let path = format!("/v1/sessions/{}/abort", session.as_str().expect("it has one"));
    let aborted = server.post(&path, r#"{"reason": "enough"}"#).await.json();
    assert_eq!((&aborted["aborted"], &aborted["run"]["status"]), (&json!(true), &json!("aborted")));
    // A retry with a key could not get the first answer: another run can be active by then.
    let keyed = server.request("POST", &path).header("idempotency-key", "k").send().await;
    assert_eq!((keyed.status, &keyed.json()["code"]), (400, &json!("bad_request")));
    // An abort when nothing runs does not end the next run.
    let idle = server.post(&path, "").await;
    assert_eq!((idle.status, &idle.json()["aborted"]), (200, &json!(false)));
    let next = json!({"input": "y", "id": "r2", "session_id": session, "wait_ms": 0});
    server.post(INVOKE, &next.to_string()).await;
    assert_eq!(server.get("/v1/runs/r2").await.json()["run"]["status"], "running");
}

/// For another tenant each route answers as for an unknown id.
#[tokio::test]
async fn the_contract_of_another_tenant_does_not_exist() {
    let home = TokenServer(server().await);
    home.with("rootrootr", json!({"role": "admin"})).await;
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let acme = token("acmeacmea");
    let zeta = token("zetazetaz");
    home.ask(&token("rootrootr"), "POST", "/agents", r#"{"name": "clerk"}"#).await;
    local(
        &home.0,
        "create_session",
        json!({"agent": "clerk", "id": "s1", "scope": {"tenant": "acme"}}),
    )
    .await;
    let body = r#"{"input": "x", "id": "r1", "session_id": "s1", "wait_ms": 0}"#;
    assert_eq!(home.ask(&acme, "POST", INVOKE, body).await.status, 202);
    for (method, path) in [
        ("GET", "/v1/sessions/s1/state"),
        ("GET", "/v1/sessions/s1/state?at=9"),
        ("GET", "/v1/runs/r1/checkpoints"),
        ("POST", "/v1/sessions/s1/abort"),
    ] {
        let own = home.ask(&acme, "GET", path, "").await;
        assert!(method == "POST" || own.status == 200, "{path}: {own:?}");
        let theirs = home.ask(&zeta, method, path, "").await.problem();
        let other = path.replace("r1", "r9").replace("s1", "s9");
        let unknown = home.ask(&zeta, method, &other, "").await.problem();
        assert_eq!(theirs.replace("r1", "r9").replace("s1", "s9"), unknown, "{method} {path}");
        assert!(theirs.starts_with("404 "), "{theirs}");
        assert_eq!(home.0.request(method, path).send().await.status, 401);
    }
    let into = home.ask(&zeta, "POST", INVOKE, r#"{"input": "x", "session_id": "s1"}"#).await;
    assert_eq!(into.status, 404, "{into:?}");
    assert_eq!(home.ask(&acme, "GET", "/v1/runs/r1", "").await.json()["run"]["status"], "running");
}

/// Subscribes to queries of three tables until each is refused. They check every change of the sessions too.
async fn use_up_live_queries(server: &TestServer, by: &Caller) -> Connection {
    let mut connection = server.engine.connect(by);
    // Texts of subscriptions count for their tenant: long ones first, until not even a short one has room.
    for length in [50_000, 1_000, 0] {
        for number in 0.. {
            let text = "x".repeat(length);
            let sql =
                format!("SELECT id FROM run_events WHERE id = -{number} AND kind <> '{text}'");
            let id = format!("{length} {number}");
            let none = serde_json::Map::new();
            let request = SubscribeRequest::new(&id, &sql, &none);
            if let Err(refusal) = connection.subscribe(&request).await {
                assert_eq!(refusal.code, Code::LimitExceeded, "{refusal}");
                break;
            }
        }
    }
    connection
}

/// A run was started before its events were subscribed to. If the subscription was refused, the client got an error without
/// the id of the run, and each repetition started another run.
#[tokio::test]
async fn a_run_that_cannot_be_followed_does_not_start() {
    let home = TokenServer(with_clerk().await);
    for (id, tenant) in [("annannann", "acme"), ("zoezoezoe", "zeta")] {
        home.with(id, json!({"scope": {"tenant": tenant}})).await;
    }
    let scope = Scope::from([("tenant".to_owned(), "acme".to_owned())]);
    let ann = Caller::with("annannann", "app", BTreeSet::new(), scope);
    let used = use_up_live_queries(&home.0, &ann).await;
    let message = json!({"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}]});
    let asks = [
        (INVOKE, json!({"input": "Hello.", "wait_ms": 0})),
        ("/v1/responses", json!({"model": "clerk", "input": "Hello.", "background": true})),
        ("/v1/agents/clerk/chat", json!({"id": "c", "messages": [message]})),
    ];
    for (path, body) in &asks {
        let refused = home.ask(&token("annannann"), "POST", path, &body.to_string()).await;
        assert_eq!(refused.status, 413, "{path}: {refused:?}");
    }
    let count = || async {
        let sql = "SELECT count(*) FROM runs";
        let asked = home.0.engine.query(&Caller::local(), sql, &Default::default(), None).await;
        asked.expect("it is a query").rows[0][0].to_json()
    };
    assert_eq!(count().await, json!(0), "no run has started");
    for (path, body) in &asks[..2] {
        let of_zoe = home.ask(&token("zoezoezoe"), "POST", path, &body.to_string()).await;
        assert!(of_zoe.status < 300, "{path}: {of_zoe:?}");
    }
    assert_eq!(count().await, json!(2), "another tenant has its own share");
    drop(used);
}
