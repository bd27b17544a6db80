//! The MCP server: both generations of the protocol, tenants, and malformed messages. The tests with real clients are in
//! `tests/clients/`, those of the protocol itself are `cargo xtask mcp-conformance`.

use std::sync::Arc;

use abide_protocols::{AgentProtocols, McpFailure, McpFuture, McpHandler, McpItems, McpRequest};
use abide_schema::reducer::Context;
use abide_schema::{Abort, Json, Module, reducer, table};
use abide_server::AccessConfig;
use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::agents::server;
use crate::chats::variants;
use crate::events::Stream;
use crate::http::{Request, Response};
use crate::runs::{claim, finish, local, say};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

const MODERN: &str = "2026-07-28";

/// A server with the exposed agent `clerk` and the agent `other`.
pub(crate) async fn with_clerk() -> TestServer {
    let server = server().await;
    for agent in [r#"{"name": "clerk", "mcp_exposed": true}"#, r#"{"name": "other"}"#] {
        assert_eq!(server.post("/agents", agent).await.status, 201);
    }
    server
}

/// A request of 2026-07-28 with all headers.
pub(crate) fn modern<'a>(
    server: &'a TestServer,
    bearer: Option<&str>,
    method: &str,
    mut params: JsonValue,
) -> Request<'a> {
    let capabilities = params["_meta"]["io.modelcontextprotocol/clientCapabilities"].take();
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
        if capabilities.is_null() { json!({}) } else { capabilities };
    let name = ["name", "uri", "taskId"].iter().find_map(|member| params[member].as_str());
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let mut request = server
        .request("POST", "/mcp")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", MODERN)
        .header("mcp-method", method);
    if let Some(name) = name {
        request = request.header("mcp-name", name);
    }
    if let Some(bearer) = bearer {
        request = request.header("authorization", &format!("Bearer {bearer}"));
    }
    request.body(body.to_string())
}

pub(crate) async fn result(server: &TestServer, method: &str, params: JsonValue) -> JsonValue {
    let response = modern(server, None, method, params).send().await;
    assert_eq!(response.status, 200, "{response:?}");
    let body = response.json();
    assert!(body["error"].is_null(), "{body}");
    body["result"].clone()
}

/// A request of 2025-11-25 in a session.
pub(crate) fn legacy<'a>(
    server: &'a TestServer,
    bearer: Option<&str>,
    session: Option<&str>,
    body: &JsonValue,
) -> Request<'a> {
    let mut request = server
        .request("POST", "/mcp")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2025-11-25");
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    if let Some(bearer) = bearer {
        request = request.header("authorization", &format!("Bearer {bearer}"));
    }
    request.body(body.to_string())
}

pub(crate) fn call(method: &str, params: JsonValue) -> JsonValue {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

/// Starts a session; returns its id.
pub(crate) async fn initialize(server: &TestServer, bearer: Option<&str>) -> String {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}});
    let response = legacy(server, bearer, None, &call("initialize", params)).send().await;
    assert_eq!(response.json()["result"]["protocolVersion"], "2025-11-25", "{response:?}");
    response.header("mcp-session-id").expect("a session").to_owned()
}

fn names(list: &JsonValue, member: &str) -> Vec<String> {
    let items = list[member].as_array().expect("a list");
    items.iter().map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn both_generations_have_the_same_tools() {
    let server = with_clerk().await;
    let found = result(&server, "server/discover", json!({})).await;
    assert_eq!(found["supportedVersions"][0], MODERN);
    assert!(found["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object());
    let tools = result(&server, "tools/list", json!({})).await;
    assert_eq!(names(&tools, "tools"), ["agent_clerk", "sql_query"], "other is not exposed");
    let session = initialize(&server, None).await;
    let listed = legacy(&server, None, Some(&session), &call("tools/list", json!({}))).send().await;
    assert_eq!(listed.json()["result"]["tools"], tools["tools"]);
    let query = json!({"name": "sql_query", "arguments": {
        "sql": "SELECT name FROM agents WHERE name > :n ORDER BY name", "params": {"n": "a"}}});
    let rows = result(&server, "tools/call", query).await;
    assert_eq!(rows["structuredContent"]["rows"], json!([["clerk"], ["other"]]));
    assert_eq!(rows["resultType"], "complete");
    let write = json!({"name": "sql_query", "arguments": {"sql": "DELETE FROM agents"}});
    let refused = result(&server, "tools/call", write).await;
    assert_eq!(refused["isError"], true, "{refused}");
    let ended = server.request("DELETE", "/mcp").header("mcp-session-id", &session).send().await;
    assert_eq!(ended.status, 204);
    let gone = legacy(&server, None, Some(&session), &call("ping", json!({}))).send().await;
    assert_eq!(gone.status, 404, "{gone:?}");
}

async fn only_run(server: &TestServer) -> String {
    let query = json!({"name": "sql_query", "arguments": {"sql": "SELECT id FROM runs"}});
    let rows = result(server, "tools/call", query).await;
    rows["structuredContent"]["rows"][0][0].as_str().expect("a run").to_owned()
}

/// Waits for the run of a call that was begun, as rows of this query.
async fn row_of_run(server: &TestServer, sql: &str) -> Vec<abide_schema::Value> {
    let caller = abide_schema::Caller::local();
    let mut connection = server.engine.connect(&caller);
    let nothing = serde_json::Map::new();
    let wanted = abide_engine::SubscribeRequest::new("rows", sql, &nothing);
    connection.subscribe(&wanted).await.expect("a valid query");
    loop {
        let _ = connection.next().await;
        let found = server.engine.query(&caller, sql, &nothing, None).await.expect("rows");
        if let Some(row) = found.rows.first() {
            return row.to_vec();
        }
    }
}

/// Closing the response stream of 2026-07-28 is the cancellation of the request; the run of a client that gave up went
/// on. The class is a signal of a client that the server takes for a lost connection. A request that its client can repeat
/// (an idempotency key), a task, and a client of 2025-11-25 are not cancelled so.
#[tokio::test]
async fn closing_the_connection_cancels_a_call() {
    for (kind, expected) in
        [("stream", "aborted"), ("key", "running"), ("task", "running"), ("legacy", "running")]
    {
        let server = with_clerk().await;
        let mut params = json!({"name": "agent_clerk", "arguments": {"message": "Hello."}});
        match kind {
            "key" => params["_meta"] = json!({"abide/request_id": "k"}),
            "task" => {
                params["_meta"] = json!({"io.modelcontextprotocol/clientCapabilities":
                    {"extensions": {"io.modelcontextprotocol/tasks": {}}}});
            }
            _ => {}
        }
        let socket = if kind == "legacy" {
            let session = initialize(&server, None).await;
            legacy(&server, None, Some(&session), &call("tools/call", params)).begin().await
        } else {
            modern(&server, None, "tools/call", params).begin().await
        };
        row_of_run(&server, "SELECT id FROM runs").await;
        drop(socket);
        if expected == "aborted" {
            row_of_run(&server, "SELECT id FROM runs WHERE status = 'aborted'").await;
        }
        // The request itself is the only connection that is left.
        while !server.get("/metrics").await.body.contains("abide_connections 1\n") {}
        let row = row_of_run(&server, "SELECT status FROM runs").await;
        assert_eq!(row[0].to_json(), expected, "{kind}");
    }
}

#[tokio::test]
async fn a_call_of_an_agent_is_a_run() {
    let server = with_clerk().await;
    let ask = json!({"name": "agent_clerk", "arguments": {"message": "Hello."},
        "_meta": {"progressToken": "p"}});
    let mut socket = modern(&server, None, "tools/call", ask).begin().await;
    // The run exists when the first notification arrives; before, the response has not begun.
    let run = loop {
        let query = json!({"name": "sql_query", "arguments": {"sql": "SELECT id FROM runs"}});
        let rows = result(&server, "tools/call", query).await;
        if let Some(id) = rows["structuredContent"]["rows"][0][0].as_str() {
            break id.to_owned();
        }
    };
    let fencing = claim(&server, &run).await;
    say(&server, &run, &fencing, &["x"]).await;
    let head = crate::http::head(&mut socket).await;
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    finish(&server, &run, &fencing).await;
    let mut text = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut socket, &mut text).await.expect("text");
    assert!(text.contains("notifications/progress"), "{text}");
    let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
    let last: JsonValue = serde_json::from_str(last.expect("a result")).expect("JSON");
    assert_eq!(last["result"]["content"], json!([{"type": "text", "text": "x"}]));
    assert_eq!(last["result"]["structuredContent"]["run_id"], run.as_str());
}

fn with_tasks() -> JsonValue {
    json!({"io.modelcontextprotocol/clientCapabilities":
        {"extensions": {"io.modelcontextprotocol/tasks": {}}}})
}

#[tokio::test]
async fn a_task_is_a_run_in_both_generations() {
    let server = with_clerk().await;
    let ask = json!({"name": "agent_clerk", "arguments": {"message": "Hello."},
        "_meta": with_tasks()});
    let created = result(&server, "tools/call", ask).await;
    let run = only_run(&server).await;
    assert_eq!(
        (&created["resultType"], &created["taskId"], &created["status"]),
        (&json!("task"), &json!(run), &json!("working"))
    );
    let get = json!({"taskId": run, "_meta": with_tasks()});
    let undeclared = modern(&server, None, "tasks/get", json!({"taskId": run})).send().await;
    assert_eq!((undeclared.status, &undeclared.json()["error"]["code"]), (400, &json!(-32021)));
    let fencing = claim(&server, &run).await;
    finish(&server, &run, &fencing).await;
    let done = result(&server, "tasks/get", get).await;
    assert_eq!(
        (&done["status"], &done["result"]["content"][0]["text"]),
        (&json!("completed"), &json!("x"))
    );

    let session = initialize(&server, None).await;
    let ask = json!({"name": "agent_clerk", "task": {}, "arguments": {"message": "Again."}});
    let said = legacy(&server, None, Some(&session), &call("tools/call", ask)).send().await.json();
    let id = said["result"]["task"]["taskId"].clone();
    let cancel = call("tasks/cancel", json!({"taskId": id}));
    let said = legacy(&server, None, Some(&session), &cancel).send().await.json();
    assert_eq!(said["result"]["status"], "cancelled", "{said}");
    let list = call("tasks/list", json!({}));
    let said = legacy(&server, None, Some(&session), &list).send().await.json();
    let listed: Vec<&JsonValue> =
        said["result"]["tasks"].as_array().expect("tasks").iter().map(|it| &it["taskId"]).collect();
    assert!(listed.contains(&&id) && listed.contains(&&json!(run)), "{said}");
    let wait = call("tasks/result", json!({"taskId": run}));
    let said = legacy(&server, None, Some(&session), &wait).send().await.json();
    assert_eq!(
        said["result"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"],
        run.as_str()
    );
}

/// A repeated call with the same key is the same run.
#[tokio::test]
async fn a_repeated_call_starts_no_second_run() {
    let server = with_clerk().await;
    let mut meta = with_tasks();
    meta["abide/request_id"] = json!("k1");
    let ask = json!({"name": "agent_clerk", "arguments": {"message": "Hello."}, "_meta": meta});
    let first = result(&server, "tools/call", ask.clone()).await;
    let second = result(&server, "tools/call", ask).await;
    assert_eq!(first["taskId"], second["taskId"]);
}

async fn said(response: Response) -> JsonValue {
    let body = response.json();
    match &body["error"] {
        JsonValue::Null => body["result"].clone(),
        error => json!({"status": response.status, "code": error["code"]}),
    }
}

#[tokio::test]
async fn the_headers_say_what_the_body_says() {
    let server = server().await;
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {}});
    let body = |method: &str| call(method, json!({"_meta": meta, "name": "é", "uri": "x"}));
    let with = async |method: &str, headers: &[(&str, &str)], body: JsonValue| {
        let mut request = server.request("POST", "/mcp").body(body.to_string());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let said = said(request.send().await).await;
        format!("{method} {headers:?}: {said}\n")
    };
    let version = ("mcp-protocol-version", MODERN);
    let mut all = String::new();
    for (method, headers) in [
        ("tools/list", &[][..]),
        ("tools/list", &[version]),
        ("tools/list", &[version, ("mcp-method", "tools/call")]),
        ("tools/list", &[("mcp-protocol-version", "2025-11-25"), ("mcp-method", "tools/list")]),
        ("tools/list", &[version, version, ("mcp-method", "tools/list")]),
        ("tools/call", &[version, ("mcp-method", "tools/call")]),
        ("tools/call", &[version, ("mcp-method", "tools/call"), ("mcp-name", "e")]),
        ("tools/call", &[version, ("mcp-method", "tools/call"), ("mcp-name", "=?base64?w6k=?=")]),
        ("ping", &[version, ("mcp-method", "ping")]),
        ("initialize", &[version, ("mcp-method", "initialize")]),
    ] {
        all.push_str(&with(method, headers, body(method)).await);
    }
    expect![[r#"
        tools/list []: {"code":-32020,"status":400}
        tools/list [("mcp-protocol-version", "2026-07-28")]: {"code":-32020,"status":400}
        tools/list [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call")]: {"code":-32020,"status":400}
        tools/list [("mcp-protocol-version", "2025-11-25"), ("mcp-method", "tools/list")]: {"code":-32020,"status":400}
        tools/list [("mcp-protocol-version", "2026-07-28"), ("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list")]: {"code":-32020,"status":400}
        tools/call [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call")]: {"code":-32020,"status":400}
        tools/call [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "e")]: {"code":-32020,"status":400}
        tools/call [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "=?base64?w6k=?=")]: {"code":-32602,"status":200}
        ping [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "ping")]: {"code":-32601,"status":404}
        initialize [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "initialize")]: {"code":-32601,"status":404}
    "#]]
    .assert_eq(&all);
}

/// A page in a browser reaches the server only from the server's own origin or from this machine, also with a token.
#[tokio::test]
async fn pages_of_other_origins_are_refused() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({})).await;
    let bearer = format!("Bearer {}", token("acmeacmea"));
    let own = format!("http://{}", home.0.address);
    for (origin, status) in [("https://evil.example", 403), ("null", 403), (own.as_str(), 200)] {
        let request = home.0.request("POST", "/mcp").header("authorization", &bearer);
        let request = request.header("origin", origin).body(call("ping", json!({})).to_string());
        assert_eq!(request.send().await.status, status, "{origin}");
    }
}

#[tokio::test]
async fn a_resource_is_read_and_watched() {
    let server = with_clerk().await;
    let ask = json!({"name": "agent_clerk", "arguments": {"message": "Hello."},
        "_meta": with_tasks()});
    result(&server, "tools/call", ask).await;
    let run = only_run(&server).await;
    let uri = format!("abide://runs/{}", run.replace('_', "%5F"));
    let listed = result(&server, "resources/list", json!({})).await;
    let uris: Vec<&str> = listed["resources"]
        .as_array()
        .expect("resources")
        .iter()
        .filter_map(|resource| resource["uri"].as_str())
        .collect();
    assert!(uris.contains(&uri.as_str()) && uris.contains(&"abide://tables/sessions"), "{uris:?}");
    let read = result(&server, "resources/read", json!({"uri": uri})).await;
    let text = read["contents"][0]["text"].as_str().expect("a text");
    let text: JsonValue = serde_json::from_str(text).expect("JSON");
    assert_eq!(
        (&text["run"]["status"], &text["events"][0]["kind"]),
        (&json!("running"), &json!("status"))
    );
    let table = result(&server, "resources/read", json!({"uri": "abide://tables/runs"})).await;
    assert!(table["contents"][0]["text"].as_str().is_some_and(|text| text.contains(&run)));

    let filter = json!({"notifications": {"resourceSubscriptions": [uri],
        "toolsListChanged": true}});
    let mut live = Stream::by(modern(&server, None, "subscriptions/listen", filter), None).await;
    let session = initialize(&server, None).await;
    let subscribe = call("resources/subscribe", json!({"uri": uri}));
    let answer = legacy(&server, None, Some(&session), &subscribe).send().await.json();
    assert_eq!(answer["result"], json!({}));
    let get = |session: &str| {
        let request = server.request("GET", "/mcp").header("accept", "text/event-stream");
        request.header("mcp-session-id", session)
    };
    let mut stream = Stream::by(get(&session), None).await;
    assert_eq!(get(&session).send().await.status, 409, "a session has one stream");
    let first = live.next().await.expect("an acknowledgement");
    assert!(first.contains("notifications/subscriptions/acknowledged"), "{first}");
    let fencing = claim(&server, &run).await;
    let changed = live.next().await.expect("a change");
    assert!(changed.contains("resources/updated") && changed.contains(&uri), "{changed}");
    assert!(changed.contains(r#""io.modelcontextprotocol/subscriptionId":1"#), "{changed}");
    finish(&server, &run, &fencing).await;
    let changed = stream.next().await.expect("a change");
    assert!(changed.contains("resources/updated") && changed.contains(&uri), "{changed}");
    assert_eq!(server.post("/agents", r#"{"name": "new"}"#).await.status, 201);
    loop {
        let changed = live.next().await.expect("a change");
        if changed.contains("tools/list_changed") {
            break;
        }
    }
}

/// What a person has said, in a table of another module.
#[table(name = "answers")]
struct Answer {
    /// Its number.
    #[column(key)]
    id: i64,
    /// The text.
    result: String,
    /// What was measured.
    measured: Json,
}

/// Writes an answer.
#[reducer]
fn write_answer(
    ctx: &mut Context<'_>,
    result: String,
    measured: JsonValue,
) -> Result<Answer, Abort> {
    ctx.insert(Answer { id: 0, result, measured: measured.into() })
}

/// Class: a name that is taken for a type. The column `result` of some built-in tables is JSON, so the text `42` in a column with that
/// name of any table was a number, and a JSON column with another name stayed a text.
#[tokio::test]
async fn columns_of_a_table_are_decoded_by_their_type() {
    let module = Module::new("answers").table::<Answer>().reducer(write_answer::definition());
    let server = TestServer::serving(AccessConfig::loopback(), vec![module]).await;
    let answer = r#"{"result": "42", "measured": {"size": 7}}"#;
    assert_eq!(server.post("/v1/call/write_answer", answer).await.status, 200);
    let read = result(&server, "resources/read", json!({"uri": "abide://tables/answers"})).await;
    let text = read["contents"][0]["text"].as_str().expect("a text");
    let text: JsonValue = serde_json::from_str(text).expect("JSON");
    assert_eq!(text["rows"], json!([{"id": 1, "result": "42", "measured": {"size": 7}}]));
}

/// For another tenant's run, session or task every method answers the same as for an unknown one.
#[tokio::test]
async fn tenants_do_not_see_each_other() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let acme = token("acmeacmea");
    let zeta = token("zetazetaz");
    let ask = json!({"name": "agent_clerk", "arguments": {"message": "Hello."},
        "_meta": with_tasks()});
    let created = modern(&home.0, Some(&acme), "tools/call", ask).send().await.json();
    let task = created["result"]["taskId"].as_str();
    let task = task.unwrap_or_else(|| panic!("{created}")).to_owned();
    let get = json!({"taskId": task, "_meta": with_tasks()});
    let own = modern(&home.0, Some(&acme), "tasks/get", get).send().await.json();
    assert_eq!(own["result"]["status"], "working", "{own}");
    let unknown = "run_9";
    let state = |id: &str| {
        json!({"name": "agent_clerk", "requestState": id, "inputResponses": {},
            "arguments": {"message": "x"}})
    };
    let task_of = |id: &str| json!({"taskId": id, "inputResponses": {}, "_meta": with_tasks()});
    let uri_of = |id: &str| json!({"uri": format!("abide://runs/{id}")});
    for (method, params) in [
        ("tasks/get", &task_of as &dyn Fn(&str) -> JsonValue),
        ("tasks/update", &task_of),
        ("tasks/cancel", &task_of),
        ("resources/read", &uri_of),
        ("tools/call", &state),
    ] {
        let theirs = modern(&home.0, Some(&zeta), method, params(&task)).send().await;
        let absent = modern(&home.0, Some(&zeta), method, params(unknown)).send().await;
        assert!(theirs.json()["error"].is_object(), "{method}: {theirs:?}");
        assert_eq!(theirs.body.replace(&task, unknown), absent.body, "{method}");
    }
    let resources = modern(&home.0, Some(&zeta), "resources/list", json!({})).send().await;
    assert!(!resources.body.contains(&task.replace('_', "%5F")), "{resources:?}");
    let agents = modern(&home.0, None, "tools/list", json!({})).send().await;
    assert_eq!(agents.status, 401);

    // A session belongs to the caller that has started it.
    let session = initialize(&home.0, Some(&acme)).await;
    let ping = call("ping", json!({}));
    let own = legacy(&home.0, Some(&acme), Some(&session), &ping).send().await;
    let theirs = legacy(&home.0, Some(&zeta), Some(&session), &ping).send().await;
    let absent = legacy(&home.0, Some(&zeta), Some("none"), &ping).send().await;
    assert_eq!((own.status, theirs.status, &theirs.body), (200, 404, &absent.body));

    // A subscription to a foreign run is silent: the next notification is that of the own run.
    let uris = [task.as_str(), unknown].map(|id| format!("abide://runs/{id}"));
    let filter = json!({"notifications": {"resourceSubscriptions": [uris[0]],
        "toolsListChanged": true}});
    let request = modern(&home.0, Some(&zeta), "subscriptions/listen", filter);
    let mut live = Stream::by(request, None).await;
    assert!(live.next().await.is_some_and(|first| first.contains("acknowledged")));
    let fencing = claim(&home.0, &task).await;
    finish(&home.0, &task, &fencing).await;
    home.local("retire_agent", json!({"name": "other"})).await;
    let next = live.next().await.expect("a change");
    assert!(next.contains("tools/list_changed"), "{next}");
}

/// Odd messages get an error of the protocol, and cost nothing else.
#[tokio::test]
async fn odd_messages_are_refused() {
    let server = with_clerk().await;
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities":
            {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}});
    let session = initialize(&server, None).await;
    // Regression: an error repeated the control characters of a name.
    let unknown = server
        .request("POST", "/mcp")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-session-id", &session)
        .body(call("x\u{1b}\u{202e}", json!({})).to_string())
        .send()
        .await
        .json();
    assert_eq!(unknown["error"]["message"], "method not found: x\\u{1b}\\u{202e}", "{unknown}");
    let messages = [
        (
            "tools/call",
            json!({"_meta": meta, "name": "sql_query",
            "arguments": {"sql": "SELECT 1", "params": {"a": 1}}}),
        ),
        (
            "tasks/update",
            json!({"_meta": meta, "taskId": "run_9",
            "inputResponses": {"c": {"action": "accept", "content": {"approve": true}}}}),
        ),
        ("resources/read", json!({"_meta": meta, "uri": "abide://tables/%6Euns"})),
        ("prompts/get", json!({"_meta": meta, "name": "x", "arguments": {"a": "b"}})),
        (
            "completion/complete",
            json!({"_meta": meta, "ref": {"type": "ref/prompt",
            "name": "x"}, "argument": {"name": "a", "value": "b"}}),
        ),
        ("logging/setLevel", json!({"level": "info"})),
        ("tasks/list", json!({"cursor": "9"})),
        ("resources/subscribe", json!({"uri": "abide://runs/x"})),
        ("initialize", json!({"protocolVersion": "x", "capabilities": {"a": 1}})),
    ];
    let mut count = 0;
    for (method, params) in messages {
        let mut all = Vec::new();
        variants(&call(method, params), &mut |odd| all.push(odd));
        for odd in all {
            let is_modern =
                !odd["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].is_null();
            let mut request = server
                .request("POST", "/mcp")
                .header("accept", "application/json, text/event-stream");
            let name = ["name", "uri", "taskId"];
            let name = name.iter().find_map(|member| odd["params"][member].as_str());
            let method = odd["method"].as_str().unwrap_or("x").to_owned();
            request = if is_modern {
                request
                    .header("mcp-protocol-version", MODERN)
                    .header("mcp-method", &method)
                    .header("mcp-name", name.unwrap_or("x"))
            } else {
                request.header("mcp-session-id", &session)
            };
            let response = request.body(odd.to_string()).send().await;
            assert!([200, 202, 400, 404].contains(&response.status), "{odd}: {response:?}");
            if response.status != 202 {
                let body = response.json();
                assert_eq!(body["jsonrpc"], "2.0", "{odd}: {body}");
                assert!(body["error"]["code"] != -32603, "{odd}: {body}");
            }
            count += 1;
        }
    }
    assert!(count > 400, "{count}");
    for text in ["", "[]", "7", "{", "\"x\"", r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#] {
        let response = server.post("/mcp", text).await;
        assert_eq!(response.status, 400, "{text}");
        assert!(response.json()["error"]["code"].as_i64() <= Some(-32600), "{text}");
    }
    assert_eq!(names(&result(&server, "tools/list", json!({})).await, "tools").len(), 2);
}

/// Random numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).expect("31 bits") % n
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// A text with up to three changes. Parts of the other text are inserted.
    fn changed(&mut self, text: &str, other: &str) -> String {
        let mut text = text.to_owned();
        for _ in 0..=self.below(3) {
            let at = text.floor_char_boundary(self.below(text.len() + 1));
            match self.below(4) {
                0 => text.truncate(at),
                1 => text.insert_str(at, self.of(&SPECIAL)),
                2 => {
                    let end = text.ceil_char_boundary((at + 1 + self.below(9)).min(text.len()));
                    text.replace_range(at..end, self.of(&SPECIAL));
                }
                _ => {
                    let from = other.floor_char_boundary(self.below(other.len()));
                    text.insert_str(at, &other[from..]);
                }
            }
        }
        text
    }
}

/// Texts that parsers treat in special ways.
const SPECIAL: [&str; 16] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ",",
    ":",
    "null",
    "1e999",
    "-0",
    "9223372036854775808",
    "\\u0000",
    "\\ud800",
    "\u{1}",
    "\u{feff}",
];

/// Messages with random changes get an answer of the protocol, never an internal error, and change nothing.
#[tokio::test]
async fn random_messages_are_refused_or_answered() {
    let server = with_clerk().await;
    let session = initialize(&server, None).await;
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities":
            {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}});
    let originals: Vec<(&str, String)> = [
        (
            "tools/call",
            json!({"_meta": meta, "name": "agent_other", "arguments": {"message": "x"}}),
        ),
        (
            "tools/call",
            json!({"_meta": meta, "name": "sql_query", "arguments": {"sql": "SELECT 1"}}),
        ),
        ("tasks/get", json!({"_meta": meta, "taskId": "run_9"})),
        ("resources/read", json!({"_meta": meta, "uri": "abide://tables/runs"})),
        ("resources/list", json!({"_meta": meta, "cursor": "runs/x"})),
        ("tools/call", json!({"name": "sql_query", "arguments": {"sql": "SELECT 1"}})),
        ("tasks/list", json!({"cursor": "x"})),
        ("notifications/cancelled", json!({"requestId": 1, "_meta": {"abide/request_id": "k"}})),
    ]
    .into_iter()
    .map(|(method, params)| (method, call(method, params).to_string()))
    .collect();
    let mut random = Random(2026);
    for _ in 0..1_000 {
        let (method, original) = &originals[random.below(originals.len())];
        let other = &originals[random.below(originals.len())].1;
        let text = random.changed(original, other);
        let versions = [MODERN, "2025-11-25", "2024-11-05", "9999-99-99", "x"];
        let mut request = server
            .request("POST", "/mcp")
            .header("accept", random.of(&["application/json", "text/event-stream", "*/*", ","]))
            .header("mcp-protocol-version", random.of(&versions))
            .header("mcp-method", random.of(&[method, method, method, "=?base64?x?=", "%"]))
            .header(
                "mcp-name",
                random.of(&["agent_clerk", "sql_query", "run_9", "=?base64?????="]),
            );
        if random.below(3) == 0 {
            request = request.header("mcp-session-id", random.of(&[&session, "none", "%00"]));
        }
        let response = request.body(&text).send().await;
        assert!([200, 202, 400, 404].contains(&response.status), "{text}: {response:?}");
        let is_stream = response.body.starts_with("event:") || response.body.starts_with(':');
        if response.status != 202 && !is_stream {
            let body = response.json();
            assert!(body["error"]["code"] != -32603, "{text}: {body}");
        }
    }
    let query = json!({"name": "sql_query", "arguments": {"sql": "SELECT count(*) FROM runs"}});
    let runs = result(&server, "tools/call", query).await;
    assert_eq!(runs["structuredContent"]["rows"], json!([[0]]));
    assert_eq!(names(&result(&server, "tools/list", json!({})).await, "tools").len(), 2);
}

/// Each URI of a subscription was kept, whatever its length: 50 of 1 MB in each of 1,000 sessions.
#[tokio::test]
async fn subscriptions_are_bounded() {
    let server = with_clerk().await;
    let session = initialize(&server, None).await;
    let subscribe = |length: usize| {
        let uri = format!("abide://runs/{}", "x".repeat(length));
        call("resources/subscribe", json!({"uri": uri}))
    };
    let answer = legacy(&server, None, Some(&session), &subscribe(512)).send().await.json();
    assert_eq!(answer["result"], json!({}));
    let answer = legacy(&server, None, Some(&session), &subscribe(4096)).send().await.json();
    assert_eq!(answer["error"]["message"], "the URI has more than 4096 bytes");
    let uris: Vec<String> = (0..=100).map(|nth| format!("abide://runs/{nth}")).collect();
    let filter = json!({"notifications": {"resourceSubscriptions": uris}});
    let answer = modern(&server, None, "subscriptions/listen", filter).send().await;
    assert!(answer.body.contains("over 100 subscriptions"), "{answer:?}");
}

/// Another identity of the scope had 1,000 sessions more, and 10 of them ended the sessions of other tenants.
#[tokio::test]
async fn the_identities_of_a_scope_share_its_sessions() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("acmeacmeb", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let [one, two, zeta] = ["acmeacmea", "acmeacmeb", "zetazetaz"].map(token);
    let theirs = initialize(&home.0, Some(&zeta)).await;
    let first = initialize(&home.0, Some(&one)).await;
    let request = home.0.request("GET", "/mcp").header("accept", "text/event-stream");
    let request = request.header("authorization", &format!("Bearer {one}"));
    let mut own = Stream::by(request.header("mcp-session-id", &first), None).await;
    for _ in 0..1_000 {
        initialize(&home.0, Some(&two)).await;
    }
    // Its stream ends. The next request would continue the session without its subscriptions.
    while own.next().await.is_some() {}
    let ping = call("ping", json!({}));
    let other = legacy(&home.0, Some(&zeta), Some(&theirs), &ping).send().await;
    assert_eq!(other.status, 200);
}

/// A session is read and watched, by a tenant also with the id that it has chosen.
#[tokio::test]
async fn a_session_is_a_resource() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    let acme = token("acmeacmea");
    let post = |reducer: &str, args: JsonValue| {
        let request = home.0.request("POST", &format!("/v1/call/{reducer}"));
        request.header("authorization", &format!("Bearer {acme}")).body(args.to_string())
    };
    let opened = post("create_session", json!({"id": "q1", "agent": "clerk"})).send().await;
    assert_eq!(opened.status, 200, "{opened:?}");
    let message = |text: &str| json!({"session_id": "q1", "role": "user", "content": text});
    let said = post("append_message", message("Hello.")).send().await;
    assert_eq!(said.status, 200, "{said:?}");
    let uri = json!({"uri": "abide://sessions/q1"});
    let read = modern(&home.0, Some(&acme), "resources/read", uri.clone()).send().await.json();
    let text = read["result"]["contents"][0]["text"].as_str();
    let text: JsonValue =
        serde_json::from_str(text.unwrap_or_else(|| panic!("{read}"))).expect("JSON");
    assert_eq!(
        (&text["session"]["agent"], &text["messages"][0]["content"]),
        (&json!("clerk"), &json!("Hello."))
    );
    let filter = json!({"notifications": {"resourceSubscriptions": [uri["uri"]]}});
    let listen = modern(&home.0, Some(&acme), "subscriptions/listen", filter);
    let mut live = Stream::by(listen, None).await;
    assert!(live.next().await.is_some_and(|first| first.contains("acknowledged")));
    post("append_message", message("More.")).send().await;
    let changed = live.next().await.expect("a change");
    assert!(changed.contains("resources/updated"), "{changed}");
}

/// Exposes reducers.
#[derive(Clone, Debug)]
struct SomeReducers(Vec<String>);

impl McpHandler for SomeReducers {
    fn items(&self, _items: McpItems) -> Vec<JsonValue> {
        Vec::new()
    }

    fn answer<'a>(&'a self, request: McpRequest<'a>) -> McpFuture<'a> {
        let missing = McpFailure::invalid(format!("{} is not answered", request.method));
        Box::pin(std::future::ready(Err(missing)))
    }

    fn reducers(&self) -> Vec<String> {
        self.0.clone()
    }
}

/// The schema of an argument that takes any value was `true`, which clients of MCP do not accept: they lost all tools.
#[tokio::test]
async fn each_property_of_a_tool_is_described_by_an_object() {
    let modules = abide_reducers::modules();
    let all = modules.iter().flat_map(|module| &module.reducers);
    let all: Vec<String> = all.map(|reducer| reducer.name.to_owned()).collect();
    let mut listed = 0;
    let mut any = 0;
    // A longer list is sent in pieces.
    for some in all.chunks(8) {
        let mcp_handler = Some(Arc::new(SomeReducers(some.to_vec())) as Arc<dyn McpHandler>);
        let protocols = AgentProtocols { mcp_handler, ..AgentProtocols::default() };
        let server = TestServer::with_protocols(AccessConfig::loopback(), protocols).await;
        let page = result(&server, "tools/list", json!({})).await;
        for tool in page["tools"].as_array().expect("a list") {
            listed += usize::from(tool["name"] != "sql_query");
            assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
            let properties = tool["inputSchema"]["properties"].as_object();
            for (name, schema) in properties.into_iter().flatten() {
                assert!(schema.is_object(), "{}: {name}: {schema}", tool["name"]);
                any += usize::from(*schema == json!({}));
            }
        }
    }
    assert_eq!(listed, all.len());
    assert!(any > 0, "a property takes any value");
}

/// A message to a session whose run waits was refused, without a way to go on.
#[tokio::test]
async fn a_waiting_session_names_the_call_and_its_task() {
    let server = with_clerk().await;
    local(&server, "create_session", json!({"agent": "clerk", "id": "s1"})).await;
    local(&server, "start_run", json!({"session_id": "s1", "id": "r1", "input": "Pay."})).await;
    let fencing = claim(&server, "r1").await;
    let tool = json!({"name": "pay", "approval": {"prompt": "Pay?"}});
    local(&server, "register_tool", tool).await;
    let call = json!({"call_id": "c1", "session_id": "s1", "tool_name": "pay",
        "arguments": {"order": 7}});
    local(&server, "request_tool_call", call).await;
    let asked = json!({"tool_call_id": "c1", "tool_name": "pay", "args": {"order": 7},
        "status": "awaiting_approval"});
    let interrupt = json!({"reason": "approval", "action_requests": [asked]});
    let wait = json!({"id": "r1", "fencing_token": fencing, "interrupt": interrupt});
    local(&server, "wait_run", wait).await;
    let message = json!({"name": "agent_clerk",
        "arguments": {"message": "And?", "session_id": "s1"}});
    let refused = result(&server, "tools/call", message).await;
    assert_eq!(refused["isError"], true, "{refused}");
    expect![[r#"
        The message was not sent: the run r1 of the session waits for a decision. May the agent call pay with {"order":7}? (call c1) Decide first: tasks/result of the task r1 asks for it, or  abide call decide_approval call_id=c1 decision=approve"#]]
    .assert_eq(refused["content"][0]["text"].as_str().expect("a text"));
    assert_eq!(refused["structuredContent"]["approvals"][0]["tool_call_id"], "c1");
}

/// Class: one undecodable value costs the message. The response had `id: null`, so a client in JavaScript, which cuts texts by
/// UTF-16 units, waited for its request for ever.
#[tokio::test]
async fn half_a_surrogate_pair_is_refused_under_the_id_of_its_request() {
    let server = with_clerk().await;
    let post = async |body: &str| {
        let request = server.request("POST", "/mcp").header("accept", "application/json");
        request.body(body).send().await.json().to_string()
    };
    let call = r#"{"jsonrpc":"2.0","id":"c7","method":"tools/call","params":{"name":"x","arguments":{"t":"\ud83d"}}}"#;
    expect![[r#"{"error":{"code":-32602,"data":{"code":"bad_arguments","hint":"send whole characters: a text was cut by UTF-16 units; in JavaScript, toWellFormed() repairs it"},"message":"unpaired surrogate \\ud83d in the string at /params/arguments/t"},"id":"c7","jsonrpc":"2.0"}"#]].assert_eq(&post(call).await);
    let large =
        r#"{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"n":9223372036854775808}}"#;
    expect![[r#"{"error":{"code":-32602,"data":{"code":"bad_arguments","hint":"send it as a string: JSON integers are signed 64-bit integers"},"message":"the integer 9223372036854775808 at /params/n does not fit a signed 64-bit integer"},"id":8,"jsonrpc":"2.0"}"#]].assert_eq(&post(large).await);
    // The ids of responses are those of requests of the server.
    let response = r#"{"jsonrpc":"2.0","id":8,"result":{"t":"\ud83d"}}"#;
    expect![[r#"{"error":{"code":-32602,"data":{"code":"bad_arguments","hint":"send whole characters: a text was cut by UTF-16 units; in JavaScript, toWellFormed() repairs it"},"message":"unpaired surrogate \\ud83d in the string at /result/t"},"id":null,"jsonrpc":"2.0"}"#]].assert_eq(&post(response).await);
}
