//! `/v1/sessions` as a collection.

use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::agents::server;
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

async fn with_sessions(ids: &[&str]) -> TestServer {
    let server = server().await;
    for id in ids {
        let made =
            server.post("/v1/sessions", &json!({"agent": "clerk", "id": id}).to_string()).await;
        assert_eq!(made.status, 201, "{made:?}");
    }
    server
}

fn ids(page: &JsonValue) -> Vec<&str> {
    let sessions = page["sessions"].as_array().expect("a list");
    sessions.iter().filter_map(|session| session["id"].as_str()).collect()
}

#[tokio::test]
async fn sessions_are_listed_in_pages_and_filtered() {
    let server = with_sessions(&["s1", "s2", "s3"]).await;
    let child = json!({"agent": "helper", "id": "s4", "parent_id": "s1"}).to_string();
    server.post("/v1/sessions", &child).await;
    server.post("/v1/call/complete_session", r#"{"session_id": "s2"}"#).await;
    let first = server.get("/v1/sessions?limit=3").await.json();
    assert_eq!((ids(&first), &first["next"]), (vec!["s4", "s3", "s2"], &json!("s2")));
    let rest = server.get("/v1/sessions?limit=3&before=s2").await.json();
    assert_eq!((ids(&rest), &rest["next"]), (vec!["s1"], &json!(null)));
    for (filter, expected) in [
        ("agent=helper", vec!["s4"]),
        ("status=completed", vec!["s2"]),
        ("parent_id=s1", vec!["s4"]),
        ("agent=clerk&status=created", vec!["s3", "s1"]),
        ("agent=nobody", vec![]),
    ] {
        assert_eq!(ids(&server.get(&format!("/v1/sessions?{filter}")).await.json()), expected);
    }
}

/// A misspelt parameter or value was ignored by other lists: the answer looked like one to the question.
#[tokio::test]
async fn unknown_parameters_are_refused() {
    let server = with_sessions(&["s1"]).await;
    let mut refusals = String::new();
    for path in [
        "/v1/sessions?stauts=active",
        "/v1/sessions?status=done",
        "/v1/sessions?limit=0",
        "/v1/sessions?limit=501",
        "/v1/sessions/s1/messages?after=1&before=2",
        "/v1/sessions/s1/messages?last=2",
        "/v1/sessions/none",
        "/v1/sessions/none/messages",
        "/agents?limit=2",
        "/agents?kind=primary",
    ] {
        refusals += &format!("{}\n", server.get(path).await.problem());
    }
    expect![[r#"
        422 bad_arguments: invalid query string: stauts: unknown field `stauts`, expected one of `agent`, `status`, `parent_id`, `before`, `limit` (send any of ?agent=, ?status=, ?parent_id=, ?before= with next of the previous page, and ?limit=)
        422 bad_arguments: invalid query string: status: unknown variant `done`, expected one of `created`, `active`, `suspended`, `handed_off`, `completed`, `failed` (send any of ?agent=, ?status=, ?parent_id=, ?before= with next of the previous page, and ?limit=)
        422 bad_arguments: limit is 0, not between 1 and 500 (-)
        422 bad_arguments: limit is 501, not between 1 and 500 (-)
        422 bad_arguments: invalid query string: after and before exclude each other (send one of ?after= and ?before= with next of the previous page, and ?limit=)
        422 bad_arguments: invalid query string: last: unknown field `last`, expected one of `after`, `before`, `limit` (send one of ?after= and ?before= with next of the previous page, and ?limit=)
        404 not_found: there is no session none (the query `SELECT id, agent, status FROM sessions` lists them)
        404 not_found: there is no session none (the query `SELECT id, agent, status FROM sessions` lists them)
        422 bad_arguments: invalid query string: limit: unknown field `limit`, expected `kind` (omit it, or send ?kind=primaries or ?kind=subagents)
        422 bad_arguments: invalid query string: kind: unknown variant `primary`, expected `primaries` or `subagents` (omit it, or send ?kind=primaries or ?kind=subagents)
    "#]].assert_eq(&refusals);
}

/// The answers of changes had the JSON columns of the row as text, and those of reads as JSON: a client of `POST` could not read
/// the metadata that it had sent. The class is every answer with a row.
#[tokio::test]
async fn each_answer_with_a_row_has_its_json_as_json() {
    let server = server().await;
    let clerk = json!({"name": "clerk", "definition": {}}).to_string();
    server.post("/v1/call/register_agent", &clerk).await;
    let metadata = json!({"ticket": 7, "text": "7"});
    let body = json!({"agent": "clerk", "id": "s1", "metadata": metadata});
    let send = async |method: &str, path: &str, body: &JsonValue| {
        let answer = server.request(method, path).body(body.to_string()).send().await;
        assert!(matches!(answer.status, 200 | 201), "{method} {path}: {answer:?}");
        answer.json()
    };
    let patch = json!({"metadata": {"more": [1]}});
    let begin = json!({"input": "Go.", "id": "r1", "session_id": "s1"});
    let answers = [
        ("session", send("POST", "/v1/sessions", &body).await),
        ("session", server.get("/v1/sessions/s1").await.json()),
        ("session", send("PATCH", "/v1/sessions/s1", &patch).await),
        ("session", server.get("/v1/sessions/s1/state").await.json()),
        ("fork", send("POST", "/v1/sessions/s1/fork", &json!({"id": "s2"})).await),
        ("run", send("POST", "/v1/agents/clerk/runs", &begin).await),
        ("run", server.get("/v1/runs/r1").await.json()),
        ("run", send("POST", "/v1/runs/r1/abort", &json!({})).await),
    ];
    let mut metadata_of_sessions = Vec::new();
    for (member, answer) in &answers {
        let row = answer[member].as_object().expect("a row");
        for (column, value) in row {
            let is_text_of_json = value.as_str().is_some_and(|it| it.starts_with(['{', '[']));
            assert!(!is_text_of_json, "{member}.{column}: {value}");
        }
        metadata_of_sessions.extend(row.get("metadata").cloned());
    }
    let changed = json!({"ticket": 7, "text": "7", "more": [1]});
    let expected = [metadata.clone(), metadata, changed.clone(), changed.clone(), changed];
    assert!(expected.starts_with(&metadata_of_sessions), "{metadata_of_sessions:?}");
    assert!(metadata_of_sessions.len() >= 4, "{answers:?}");
    let listed = server.get("/v1/sessions").await.json();
    assert!(listed["sessions"][0]["scope"].is_object(), "{listed}");
}

#[tokio::test]
async fn a_session_is_changed_by_a_merge_patch() {
    let server = server().await;
    let body = json!({"agent": "clerk", "id": "s1", "title": "Old",
        "metadata": {"a": 1, "b": {"c": 2, "d": 3}}});
    server.post("/v1/sessions", &body.to_string()).await;
    let patch = json!({"title": null, "metadata": {"a": null, "b": {"c": 4}, "e": [null]}});
    let changed = server.request("PATCH", "/v1/sessions/s1").body(patch.to_string()).send().await;
    assert_eq!(changed.status, 200, "{changed:?}");
    let session = &server.get("/v1/sessions/s1").await.json()["session"];
    assert_eq!(session["title"], json!(null));
    assert_eq!(session["metadata"], json!({"b": {"c": 4, "d": 3}, "e": [null]}));
    let large = json!({"metadata": {"x": "x".repeat(65 << 10)}}).to_string();
    let mut refusals = String::new();
    for body in ["{}", r#"{"status": "failed"}"#, r#"{"metadata": 7}"#, large.as_str()] {
        let refused = server.request("PATCH", "/v1/sessions/s1").body(body).send().await;
        refusals += &format!("{}\n", refused.problem());
    }
    expect![[r#"
        422 bad_arguments: at least one of title and metadata is required (-)
        422 bad_arguments: update_session: unexpected argument status (update_session takes session_id, title?, metadata?)
        422 bad_arguments: update_session: argument metadata: expected an object, found the integer 7 (update_session takes session_id, title?, metadata?)
        413 limit_exceeded: metadata would have 66597 bytes; the limit is 65536 (remove members by null, or keep large values in entries)
    "#]].assert_eq(&refusals);
    assert_eq!(&server.get("/v1/sessions/s1").await.json()["session"], session);
}

#[tokio::test]
async fn messages_are_read_in_pages_in_both_directions() {
    let server = with_sessions(&["s1", "s2"]).await;
    for (session, text) in [("s1", "a"), ("s2", "x"), ("s1", "b"), ("s1", "c")] {
        let message = json!({"session_id": session, "role": "user", "content": text});
        server.post("/v1/call/append_message", &message.to_string()).await;
    }
    let page = async |query: &str| {
        let page = server.get(&format!("/v1/sessions/s1/messages?{query}")).await.json();
        let messages = page["messages"].as_array().expect("a list");
        let texts = messages.iter().filter_map(|message| message["content"].as_str());
        (texts.collect::<String>(), page["next"].clone())
    };
    let (texts, next) = page("limit=2").await;
    assert_eq!(texts, "ab");
    assert_eq!(page(&format!("limit=2&after={next}")).await, ("c".to_owned(), json!(null)));
    let newest = i64::MAX;
    let (texts, next) = page(&format!("limit=2&before={newest}")).await;
    assert_eq!(texts, "bc");
    assert_eq!(page(&format!("limit=2&before={next}")).await, ("a".to_owned(), json!(null)));
}

/// The collection shows what queries of the caller show: rows outside its scope do not exist.
#[tokio::test]
async fn sessions_of_another_tenant_do_not_exist() {
    let home = TokenServer(server().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let acme = token("acmeacmea");
    let zeta = token("zetazetaz");
    let made = home.ask(&acme, "POST", "/v1/sessions", r#"{"agent": "clerk", "id": "s1"}"#).await;
    assert_eq!(made.status, 201, "{made:?}");
    for id in ["s1", "tenant=acme%2Fs1"] {
        for (method, path, body) in [
            ("GET", format!("/v1/sessions/{id}"), ""),
            ("GET", format!("/v1/sessions/{id}/messages"), ""),
            ("PATCH", format!("/v1/sessions/{id}"), r#"{"title": "Mine"}"#),
        ] {
            assert_eq!(home.ask(&zeta, method, &path, body).await.status, 404, "{method} {path}");
            assert_eq!(home.ask(&acme, method, &path, body).await.status, 200, "{method} {path}");
        }
    }
    assert_eq!(ids(&home.ask(&zeta, "GET", "/v1/sessions", "").await.json()), Vec::<&str>::new());
    assert_eq!(ids(&home.ask(&acme, "GET", "/v1/sessions", "").await.json()).len(), 1);
    let child = r#"{"agent": "clerk", "id": "s2", "parent_id": "s1"}"#;
    home.ask(&acme, "POST", "/v1/sessions", child).await;
    let children = home.ask(&acme, "GET", "/v1/sessions?parent_id=s1", "").await.json();
    assert_eq!(ids(&children), ["tenant=acme/s2"]);
}
