//! Who may start runs of an agent, over every protocol. `reducers/tests/rules/allow.rs` has the rule itself, for more callers.
//!
//! Regression: built-in agents were open to every tenant, over all protocols. The class: a way to start a run that does not
//! check the agent. A new `POST` path has to be added to one of the lists here.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use abide_engine::{SubscribeRequest, Update};
use abide_schema::Caller;
use expect_test::expect;
use serde_json::{Map, Value as JsonValue, json};
use tokio::io::AsyncReadExt as _;

use crate::http::Request;
use crate::mcp::modern;
use crate::tokens::{TokenServer, token};

/// An agent of the role `agent` with the scope of acme.
const ANN: &str = "annannann";

/// The paths that start a run; `/v1/batch` and `/v1/call/{reducer}` call the reducer itself.
const STARTING: [&str; 10] = [
    "/v1/agents/{name}/runs",
    "/v1/agents/{name}/invoke",
    "/v1/agents/{name}/chat",
    "/v1/agents/{name}/ag-ui",
    "/v1/responses",
    "/a2a/{agent}",
    "/a2a/{agent}/message:send",
    "/mcp",
    "/v1/batch",
    "/v1/call/{reducer}",
];

/// The other `POST` paths of the OpenAPI description. `start_child_run` and imports are tested with the reducers. `resume` and
/// `decide_approval` continue runs.
const OTHERS: [&str; 27] = [
    "/agents",
    "/v1/explain",
    "/v1/imports",
    "/v1/prompts/{name}/render",
    "/v1/responses/{id}/cancel",
    "/v1/runs/{id}/abort",
    "/v1/runs/{id}/export",
    "/v1/runs/{id}/pause",
    "/v1/runs/{id}/resume",
    "/v1/sessions",
    "/v1/sessions/{id}/abort",
    "/v1/sessions/{id}/fork",
    "/v1/sql",
    "/v1/call/abort_run",
    "/v1/call/claim_next_run",
    "/v1/call/claim_run",
    "/v1/call/correct_run",
    "/v1/call/export_run",
    "/v1/call/finish_run",
    "/v1/call/heartbeat_run",
    "/v1/call/import_run",
    "/v1/call/pause_run",
    "/v1/call/record_run",
    "/v1/call/resume_run",
    "/v1/call/start_child_run",
    "/v1/call/start_run",
    "/v1/call/wait_run",
];

/// Agents with every kind of rule. All are exposed over A2A and MCP.
const AGENTS: [&str; 4] = ["builtin", "zetas", "apps", "open"];

async fn home() -> TokenServer {
    let home = TokenServer(crate::agents::server().await);
    home.with(ANN, json!({"role": "agent", "scope": {"tenant": "acme"}})).await;
    for (name, allow, native) in [
        ("builtin", None, true),
        ("zetas", Some(json!({"scopes": [{"tenant": "zeta"}]})), false),
        ("apps", Some(json!({"roles": ["app"]})), false),
        ("open", None, false),
    ] {
        let mut definition = json!({"a2a_exposed": true, "mcp_exposed": true});
        if let Some(allow) = allow {
            definition["allow"] = allow;
        }
        let args = json!({"name": name, "definition": definition, "native": native});
        home.local("register_agent", args).await;
    }
    home.call(ANN, "create_session", json!({"agent": "open", "id": "s1"})).await;
    home
}

/// A request of ann that starts a run of an agent.
fn request<'a>(home: &'a TokenServer, path: &str, agent: &str) -> Request<'a> {
    let text = json!([{"type": "text", "text": "x"}]);
    let message = json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]});
    let send = json!({"message": message, "configuration": {"returnImmediately": true}});
    let start = json!({"session_id": "s1", "agent": agent});
    let body = match path {
        "/v1/agents/{name}/chat" => {
            let message = json!({"id": "m", "role": "user", "parts": text});
            json!({"id": "c", "trigger": "submit-message", "messages": [message]})
        }
        "/v1/agents/{name}/ag-ui" => {
            let message = json!({"id": "m", "role": "user", "content": "x"});
            json!({"threadId": "t", "runId": "r", "messages": [message]})
        }
        "/v1/responses" => json!({"model": agent, "input": "x", "background": true}),
        "/a2a/{agent}" => {
            json!({"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": send})
        }
        "/a2a/{agent}/message:send" => send,
        "/mcp" => {
            let call = json!({"name": format!("agent_{agent}"), "arguments": {"message": "x"}});
            return modern(&home.0, Some(&token(ANN)), "tools/call", call);
        }
        "/v1/batch" => json!({"calls": [{"reducer": "start_run", "args": start}]}),
        "/v1/call/{reducer}" => start,
        _ => json!({"input": "x"}),
    };
    let path = path.replace("{name}", agent).replace("{agent}", agent);
    let path = path.replace("{reducer}", "start_run");
    let request = home.0.request("POST", &path).header("a2a-version", "1.0");
    request.header("authorization", &format!("Bearer {}", token(ANN))).body(body.to_string())
}

async fn has_run(home: &TokenServer) -> bool {
    let sql = "SELECT id FROM runs";
    let found = home.0.engine.query(&Caller::local(), sql, &Map::new(), None).await;
    !found.expect("the query is valid").rows.is_empty()
}

#[tokio::test]
async fn every_protocol_checks_who_may_start_an_agent() {
    let mut table = String::new();
    for path in STARTING {
        let mut row = Vec::new();
        for agent in AGENTS {
            let home = home().await;
            // Without a driver the answer to an accepted request never ends.
            let mut socket = request(&home, path, agent).begin().await;
            let outcome = if agent == "open" {
                while !has_run(&home).await {
                    tokio::task::yield_now().await;
                }
                "starts".to_owned()
            } else {
                let mut answer = String::new();
                socket.read_to_string(&mut answer).await.expect("the answer ends");
                assert!(!has_run(&home).await, "{path} {agent}: {answer}");
                let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
                let status = head.split(' ').nth(1).expect("a status");
                let is_unknown =
                    body.contains("there is no agent") || body.contains("unknown tool");
                let is_denied = body.contains("the role agent may not start runs");
                let why = match (is_unknown, is_denied) {
                    (true, false) => "unknown",
                    (false, true) => "denied",
                    _ => body,
                };
                format!("{status} {why}")
            };
            row.push(format!("{agent} {outcome}"));
        }
        writeln!(table, "{path}: {}", row.join(", ")).expect("writing to a string succeeds");
    }
    expect![[r#"
        /v1/agents/{name}/runs: builtin 404 unknown, zetas 404 unknown, apps 403 denied, open starts
        /v1/agents/{name}/invoke: builtin 404 unknown, zetas 404 unknown, apps 403 denied, open starts
        /v1/agents/{name}/chat: builtin 404 unknown, zetas 404 unknown, apps 403 denied, open starts
        /v1/agents/{name}/ag-ui: builtin 404 unknown, zetas 404 unknown, apps 403 denied, open starts
        /v1/responses: builtin 404 unknown, zetas 404 unknown, apps 403 denied, open starts
        /a2a/{agent}: builtin 200 unknown, zetas 200 unknown, apps 200 denied, open starts
        /a2a/{agent}/message:send: builtin 404 unknown, zetas 404 unknown, apps 403 denied, open starts
        /mcp: builtin 200 unknown, zetas 200 unknown, apps 200 denied, open starts
        /v1/batch: builtin 404 unknown, zetas 404 unknown, apps 403 denied, open starts
        /v1/call/{reducer}: builtin 404 unknown, zetas 404 unknown, apps 403 denied, open starts
    "#]].assert_eq(&table);
}

/// Regression: `POST /v1/agents/plain/runs` began a run of `plain` in a session of the agent `support` without a word. The class: a
/// way to start a run that names a session of another agent.
#[tokio::test]
async fn every_protocol_refuses_a_session_of_another_agent() {
    let home = home().await;
    home.local("register_agent", json!({"name": "other", "definition": {}})).await;
    home.call(ANN, "create_session", json!({"agent": "other", "id": "s2"})).await;
    home.call(ANN, "start_run", json!({"session_id": "s2", "id": "r2"})).await;
    let mut table = String::new();
    for path in STARTING {
        let text = json!([{"type": "text", "text": "x"}]);
        let message = json!({"messageId": "m", "role": "ROLE_USER", "contextId": "s2",
            "parts": [{"text": "x"}]});
        let start = json!({"session_id": "s2", "agent": "open"});
        let body = match path {
            "/v1/agents/{name}/chat" => {
                let message = json!({"id": "m", "role": "user", "parts": text});
                json!({"id": "s2", "trigger": "submit-message", "messages": [message]})
            }
            "/v1/agents/{name}/ag-ui" => {
                let message = json!({"id": "m", "role": "user", "content": "x"});
                json!({"threadId": "s2", "runId": "r", "messages": [message]})
            }
            "/v1/responses" => {
                json!({"model": "open", "input": "x", "previous_response_id": "resp_1_tenant=acme/r2"})
            }
            "/a2a/{agent}" => {
                json!({"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": {"message": message}})
            }
            "/a2a/{agent}/message:send" => json!({ "message": message }),
            "/v1/batch" => json!({"calls": [{"reducer": "start_run", "args": start}]}),
            "/v1/call/{reducer}" => start,
            _ => json!({"input": "x", "session_id": "s2"}),
        };
        let answer = if path == "/mcp" {
            let arguments = json!({"message": "x", "session_id": "s2"});
            let call = json!({"name": "agent_open", "arguments": arguments});
            modern(&home.0, Some(&token(ANN)), "tools/call", call).send().await
        } else {
            let path = path.replace("{name}", "open").replace("{agent}", "open");
            let request = home.0.request("POST", &path.replace("{reducer}", "start_run"));
            let request = request.header("authorization", &format!("Bearer {}", token(ANN)));
            request.header("a2a-version", "1.0").body(body.to_string()).send().await
        };
        let says = "session tenant=acme/s2 belongs to agent other, not to agent open";
        let is_refused = answer.body.contains(says);
        let what = if is_refused { "refused" } else { &answer.body };
        writeln!(table, "{path}: {} {what}", answer.status).expect("writing to a string succeeds");
    }
    let sql = "SELECT id FROM runs";
    let runs = home.0.engine.query(&Caller::local(), sql, &Map::new(), None).await;
    assert_eq!(runs.expect("the query is valid").rows.len(), 1, "only the run of the other agent");
    expect![[r#"
        /v1/agents/{name}/runs: 409 refused
        /v1/agents/{name}/invoke: 409 refused
        /v1/agents/{name}/chat: 409 refused
        /v1/agents/{name}/ag-ui: 409 refused
        /v1/responses: 409 refused
        /a2a/{agent}: 200 refused
        /a2a/{agent}/message:send: 409 refused
        /mcp: 200 refused
        /v1/batch: 409 refused
        /v1/call/{reducer}: 409 refused
    "#]]
    .assert_eq(&table);
}

#[tokio::test]
async fn every_path_is_in_the_table() {
    let home = home().await;
    let described = home.ask(&token(ANN), "GET", "/openapi.json", "").await.json();
    let paths = described["paths"].as_object().expect("a map");
    let posts = paths.iter().filter(|(_, operations)| operations["post"].is_object());
    // Of the reducers, those that are about runs.
    let posts: BTreeSet<&str> = posts
        .map(|(path, _)| path.as_str())
        .filter(|path| {
            let reducer = path.strip_prefix("/v1/call/");
            reducer.is_none_or(|name| name.ends_with("_run") || name.starts_with("start_"))
        })
        .collect();
    let known: BTreeSet<&str> = STARTING.into_iter().chain(OTHERS).collect();
    let unlisted: Vec<&&str> = posts.difference(&known).collect();
    assert!(unlisted.is_empty(), "do these paths start runs? {unlisted:?}");
    let gone = OTHERS.iter().filter(|path| !posts.contains(*path));
    assert_eq!(gone.collect::<Vec<_>>(), Vec::<&&str>::new(), "these paths do not exist");
}

/// Names of agents that a caller may not start because of its scope are in no list.
#[tokio::test]
async fn lists_show_the_agents_within_the_scope() {
    let home = home().await;
    let all = |list: &JsonValue, name: &str| -> Vec<String> {
        let items = list.as_array().expect("a list");
        items.iter().map(|item| item[name].as_str().expect("a text").to_owned()).collect()
    };
    let get = async |path: &str| home.ask(&token(ANN), "GET", path, "").await.json();
    assert_eq!(all(&get("/agents").await["agents"], "name"), ["apps", "open"]);
    assert_eq!(all(&get("/v1/models").await["data"], "id"), ["apps", "open"]);
    let cards = get("/.well-known/agent-card.json").await;
    assert_eq!(all(&cards["agents"], "name"), ["apps", "open"]);
    for agent in ["builtin", "zetas", "noname"] {
        for path in ["/agents/NAME", "/a2a/NAME/.well-known/agent-card.json"] {
            let path = path.replace("NAME", agent);
            let answer = home.ask(&token(ANN), "GET", &path, "").await;
            assert_eq!(answer.status, 404, "{path}: {answer:?}");
        }
    }
    let tools = modern(&home.0, Some(&token(ANN)), "tools/list", json!({})).send().await.json();
    let tools = all(&tools["result"]["tools"], "name");
    assert_eq!(tools, ["agent_apps", "agent_open", "sql_query"]);
    let sql = json!({"sql": "SELECT name FROM agents ORDER BY name"}).to_string();
    let rows = home.ask(&token(ANN), "POST", "/v1/sql", &sql).await.json();
    assert_eq!(rows["rows"], json!([["apps"], ["open"]]));
}

/// A subscription follows a change of a rule: the row leaves the result, and comes back.
#[tokio::test]
async fn a_subscription_follows_the_rule() {
    let home = home().await;
    let ann = Caller::with(
        "ann",
        "agent",
        BTreeSet::new(),
        [("tenant".to_owned(), "acme".to_owned())].into(),
    );
    let mut connection = home.0.engine.connect(&ann);
    let none = Map::new();
    let request = SubscribeRequest::new("q", "SELECT name FROM agents ORDER BY name", &none);
    connection.subscribe(&request).await.expect("it is a query");
    for scope in ["zeta", "acme"] {
        let definition = json!({"allow": {"scopes": [{"tenant": scope}]}});
        home.local("register_agent", json!({"name": "open", "definition": definition})).await;
    }
    let Update::Snapshot(part) = connection.next().await else { panic!("first the rows") };
    assert_eq!(part.rows.len(), 2);
    let mut changes = Vec::new();
    for _ in 0..2 {
        let Update::Delta { changes: now, .. } = connection.next().await else {
            panic!("each change of the rule is a delta");
        };
        let delta = now[0].delta.rows().clone();
        changes.push((delta.deletes.len(), delta.inserts.len()));
    }
    assert_eq!(changes, [(1, 0), (0, 1)]);
}
