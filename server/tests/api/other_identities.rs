//! The same subject with another scope, role or issuer, in every place where a protocol finds something by an id: tasks and
//! contexts of A2A, responses, chats, threads, streams, webhooks, tasks and calls of MCP, idempotency keys.
//!
//! Regression: a session of MCP was found by less than the whole identity of its caller. The class: an id that is valid for
//! more callers than the one that has it. A new operation of a protocol that takes an id has to be added to [`attempts`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use abide_protocols::{AgentProtocols, WebhookFuture, WebhookRequest, WebhookSender};
use abide_schema::Caller;
use expect_test::expect;
use serde_json::{Map, Value as JsonValue, json};
use tokio::io::AsyncReadExt as _;

use crate::http::{Request, escaped};
use crate::jwts::{access, issued};
use crate::mcp::{call, initialize, legacy, modern};
use crate::runs::{claim, local};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

const SUBJECT: &str = "annannann";

const OPERATOR: &str = "operator";

/// Permits every receiver, and reaches none.
#[derive(Debug)]
struct NoReceiver;

impl WebhookSender for NoReceiver {
    fn check(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn send(&self, _: WebhookRequest) -> WebhookFuture<'_> {
        Box::pin(std::future::ready(Err("unreachable".to_owned())))
    }
}

/// An identity of the subject.
struct Identity {
    name: &'static str,
    bearer: String,
    /// The header `Abide-Scope`.
    scope: Option<&'static str>,
}

impl Identity {
    fn issued(name: &'static str, role: &str, tenant: &str) -> Identity {
        let bearer = issued(json!({"sub": SUBJECT, "job": role, "org": tenant}));
        Identity { name, bearer, scope: None }
    }

    fn owner() -> Identity {
        Identity::issued("owner", "app", "acme")
    }

    /// With another scope.
    fn elsewhere() -> Identity {
        Identity::issued("scope", "app", "zeta")
    }

    /// Without a scope of its own, but with the header `Abide-Scope`.
    fn narrowed() -> Identity {
        Identity { name: "narrowed", bearer: token(OPERATOR), scope: Some(r#"{"tenant": "zeta"}"#) }
    }

    /// With a role that may call everything, and whose policy hides all sessions.
    fn hidden() -> Identity {
        Identity::issued("hidden", "twin", "acme")
    }

    /// With a role that reads what its scope has, and changes nothing.
    fn worker() -> Identity {
        Identity::issued("worker", "worker", "acme")
    }

    /// The subject of another issuer, which is the database, with the same role and scope.
    fn of_database() -> Identity {
        Identity { name: "issuer", bearer: token(SUBJECT), scope: None }
    }
}

/// A request of a protocol.
enum Attempt {
    Http(&'static str, String, JsonValue),
    /// A `POST` with the header `Idempotency-Key`.
    Keyed(&'static str, JsonValue),
    A2a(&'static str, JsonValue),
    Mcp(&'static str, JsonValue),
    /// Of 2025-11-25, in a session.
    LegacyMcp(&'static str, JsonValue),
}

struct World {
    home: TokenServer,
    /// The session of MCP that the owner has started.
    session: String,
}

impl World {
    async fn open() -> World {
        let webhooks = Some(Arc::new(NoReceiver) as Arc<dyn WebhookSender>);
        let protocols = AgentProtocols { webhooks, ..AgentProtocols::default() };
        let home = TokenServer(TestServer::with_protocols(access(), protocols).await);
        let definition = json!({"a2a_exposed": true, "mcp_exposed": true});
        local(&home.0, "register_agent", json!({"name": "clerk", "definition": definition})).await;
        local(&home.0, "register_tool", json!({"name": "refund", "needs_approval": true})).await;
        home.with(SUBJECT, json!({"role": "app", "scope": {"tenant": "acme"}})).await;
        home.with(OPERATOR, json!({"role": "app"})).await;
        local(&home.0, "set_role", json!({"name": "twin", "reducers": ["*"]})).await;
        let hidden = json!({"table": "sessions", "role": "twin", "condition": "0"});
        local(&home.0, "set_policy", hidden).await;
        let session = initialize(&home.0, Some(&Identity::owner().bearer)).await;
        World { home, session }
    }

    fn request<'a>(&'a self, by: &Identity, attempt: &Attempt) -> Request<'a> {
        let server = &self.home.0;
        let request = match attempt {
            Attempt::Mcp(method, params) => {
                modern(server, Some(&by.bearer), method, params.clone())
            }
            Attempt::LegacyMcp(method, params) => {
                let body = call(method, params.clone());
                legacy(server, Some(&by.bearer), Some(&self.session), &body)
            }
            Attempt::A2a(method, params) => {
                let body = call(method, params.clone()).to_string();
                let request = server.request("POST", "/a2a/clerk").body(body);
                request.header("a2a-version", "1.0")
            }
            Attempt::Http(method, path, body) => {
                let request = server.request(method, path);
                if body.is_null() { request } else { request.body(body.to_string()) }
            }
            Attempt::Keyed(path, body) => {
                let request = server.request("POST", path).body(body.to_string());
                request.header("idempotency-key", path)
            }
        };
        let request = match attempt {
            Attempt::Mcp(..) | Attempt::LegacyMcp(..) => request,
            Attempt::Http(..) | Attempt::Keyed(..) | Attempt::A2a(..) => {
                request.header("authorization", &format!("Bearer {}", by.bearer))
            }
        };
        by.scope.iter().fold(request, |request, scope| request.header("abide-scope", scope))
    }

    /// The status and the body of an answer. A stream that begins is not read.
    async fn answer(&self, by: &Identity, attempt: &Attempt) -> (u16, String) {
        let mut socket = self.request(by, attempt).begin().await;
        let head = crate::http::head(&mut socket).await;
        if head.header("content-type") == Some("text/event-stream") {
            return (head.status, "a stream".to_owned());
        }
        let mut body = String::new();
        socket.read_to_string(&mut body).await.expect("the answer ends");
        (head.status, body)
    }

    /// Status and message of a refusal, or what was returned.
    async fn outcome(&self, by: &Identity, attempt: &Attempt) -> String {
        let (status, body) = self.answer(by, attempt).await;
        let Ok(body) = serde_json::from_str::<JsonValue>(&body) else {
            return format!("{status} {body}").trim_end().to_owned();
        };
        let failed = &body["result"]["content"][0]["text"];
        let message = [&body["error"]["message"], &body["detail"], failed];
        let told = match message.iter().find_map(|it| it.as_str()) {
            Some(message) => message.split(" (").next().unwrap_or_default().to_owned(),
            None => summary(&body),
        };
        format!("{status} {told}")
    }

    async fn rows(&self, sql: &str) -> JsonValue {
        let found = self.home.0.engine.query(&Caller::local(), sql, &Map::new(), None).await;
        let rows = found.expect("the query is valid").rows;
        rows.iter()
            .map(|row| row.iter().map(abide_schema::Value::to_json).collect::<JsonValue>())
            .collect()
    }

    /// The rows of the owner's tenant.
    async fn state(&self) -> JsonValue {
        let mut state = Map::new();
        for (name, sql) in [
            ("sessions", "SELECT id, status FROM sessions WHERE scope ->> 'tenant' = 'acme'"),
            (
                "runs",
                "SELECT id, status, turn, events, abort_requested_at FROM runs \
                 WHERE session_id IN (SELECT id FROM sessions WHERE scope ->> 'tenant' = 'acme')",
            ),
            ("approvals", "SELECT call_id, status FROM approvals"),
            ("webhooks", "SELECT id, url FROM webhooks"),
            (
                "messages",
                "SELECT session_id, count(*) FROM agent_state \
                 WHERE session_id IN (SELECT id FROM sessions WHERE scope ->> 'tenant' = 'acme') \
                 GROUP BY session_id",
            ),
        ] {
            state.insert(name.to_owned(), self.rows(sql).await);
        }
        JsonValue::Object(state)
    }

    /// Lets the only running run wait for an approval; returns the id of the run as it is stored.
    async fn wait_for_approval(&self) -> String {
        let running = self.rows("SELECT id, session_id FROM runs WHERE status = 'running'").await;
        let [run, session] = [0, 1].map(|column| running[0][column].as_str().expect("a run"));
        let server = &self.home.0;
        let fencing = claim(server, run).await;
        let call_id = format!("call-{run}");
        let wanted = json!({"call_id": call_id, "session_id": session, "tool_name": "refund",
            "arguments": {"order": 7}});
        local(server, "request_tool_call", wanted).await;
        let asked = json!({"tool_call_id": call_id, "tool_name": "refund", "args": {"order": 7},
            "status": "awaiting_approval"});
        let interrupt = json!({"reason": "approval", "action_requests": [asked]});
        let args = json!({"id": run, "fencing_token": fencing, "interrupt": interrupt});
        assert_eq!(local(server, "wait_run", args).await["status"], "waiting");
        run.to_owned()
    }
}

/// What an answer returns: the lengths of its lists.
fn summary(body: &JsonValue) -> String {
    let result = if body["result"].is_object() { &body["result"] } else { body };
    let members = result.as_object().into_iter().flatten();
    let lists = members.filter_map(|(name, value)| {
        value.as_array().map(|items| format!("{name} ({})", items.len()))
    });
    format!("a result: {}", lists.collect::<Vec<_>>().join(", "))
}

fn chat(id: &str, text: &str) -> JsonValue {
    let message = json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]});
    json!({"id": "chat", "trigger": "submit-message", "messages": [message]})
}

fn thread(id: &str, text: &str) -> JsonValue {
    let message = json!({"id": id, "role": "user", "content": text});
    json!({"threadId": "thread", "runId": "r", "messages": [message]})
}

fn message(id: &str, text: &str, of: JsonValue) -> JsonValue {
    let mut message = json!({"messageId": id, "role": "ROLE_USER", "parts": [{"text": text}]});
    message.as_object_mut().expect("an object").extend(of.as_object().expect("one").clone());
    json!({"message": message, "configuration": {"returnImmediately": true}})
}

fn with_tasks(mut params: JsonValue) -> JsonValue {
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
        json!({"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}});
    params
}

/// Requests that begin a run, each with everything that makes a repeated one the same.
fn creations() -> Vec<(&'static str, Attempt)> {
    let mut with_hook = message("m1", "Pay it back.", json!({"contextId": "ctx"}));
    with_hook["configuration"]["taskPushNotificationConfig"] =
        json!({"id": "hook", "url": "https://hooks.example/"});
    let response = json!({"model": "clerk", "input": "Hello.", "background": true});
    let mut ask = with_tasks(json!({"name": "agent_clerk", "arguments": {"message": "Hello."}}));
    ask["_meta"]["abide/request_id"] = json!("key");
    let http = |path: &str, body: JsonValue| Attempt::Http("POST", path.to_owned(), body);
    vec![
        ("A2A context", Attempt::A2a("SendMessage", with_hook)),
        ("A2A", Attempt::A2a("SendMessage", message("m1", "Pay it back.", json!({})))),
        ("chat", http("/v1/agents/clerk/chat", chat("m1", "Hello."))),
        ("AG-UI", http("/v1/agents/clerk/ag-ui", thread("m1", "Hello."))),
        ("responses", Attempt::Keyed("/v1/responses", response)),
        ("runs", Attempt::Keyed("/v1/agents/clerk/runs", json!({"input": "Hello."}))),
        ("MCP", Attempt::Mcp("tools/call", ask)),
    ]
}

/// The stored ids of the owner's runs, by what has created them.
struct Owned(BTreeMap<&'static str, String>);

impl Owned {
    /// Creates one of each kind. All wait for an approval.
    async fn create(world: &World) -> Owned {
        let mut runs = BTreeMap::new();
        for (name, attempt) in creations() {
            let (status, body) = world.answer(&Identity::owner(), &attempt).await;
            assert!([200, 201].contains(&status), "{name}: {status} {body}");
            runs.insert(name, world.wait_for_approval().await);
        }
        Owned(runs)
    }

    fn run(&self, name: &str) -> &str {
        &self.0[name]
    }

    /// Replaces ids of runs by the names of what has created them.
    fn named(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, id)| {
            let short = id.strip_prefix("tenant=acme/").unwrap_or(id);
            text.replace(id, &format!("[{name}]")).replace(short, &format!("[{name}]"))
        })
    }
}

/// Every operation that takes an id of the owner.
fn attempts(owned: &Owned) -> Vec<(&'static str, Attempt)> {
    let task = owned.run("A2A context");
    let response = &format!("resp_1_{}", owned.run("responses"));
    let mcp_task = owned.run("MCP");
    let [chat_call, thread_call, response_call] =
        ["chat", "AG-UI", "responses"].map(|name| format!("call-{}", owned.run(name)));
    let http = |method: &'static str, path: &str, body: JsonValue| {
        Attempt::Http(method, path.to_owned(), body)
    };
    let task_id = json!({"taskId": task});
    let hook = json!({"taskId": task, "id": "hook"});
    let chat_part = json!({"type": "dynamic-tool", "toolName": "refund", "toolCallId": chat_call,
        "state": "approval-responded", "approval": {"id": chat_call, "approved": true}});
    let chat_decision = json!({"id": "chat", "trigger": "submit-message",
        "messages": [{"id": "x", "role": "assistant", "parts": [chat_part]}]});
    let resume = json!([{"interruptId": thread_call, "status": "resolved",
        "payload": {"approved": true}}]);
    let thread_decision =
        json!({"threadId": "thread", "runId": "r2", "messages": [], "resume": resume});
    let continued = |input: JsonValue| {
        json!({"model": "clerk", "previous_response_id": response, "background": true,
            "input": input})
    };
    let approval = json!([{"type": "mcp_approval_response", "approve": true,
        "approval_request_id": format!("mcpr_{response_call}")}]);
    let of_response = format!("/v1/responses/{}", escaped(response));
    let of_run = format!("/v1/runs/{}", escaped(mcp_task));
    let mcp_id = with_tasks(json!({"taskId": mcp_task}));
    let mut decided = mcp_id.clone();
    decided["inputResponses"] = json!({format!("call-{mcp_task}"):
        {"action": "accept", "content": {"approve": true}}});
    let tool = |arguments: JsonValue| json!({"name": "agent_clerk", "arguments": arguments});
    let mut with_state = with_tasks(tool(json!({"message": "Hello."})));
    with_state["requestState"] = json!(mcp_task);
    with_state["inputResponses"] = decided["inputResponses"].clone();
    let in_session = with_tasks(tool(json!({"message": "More.", "session_id": "ctx"})));
    vec![
        ("A2A GetTask", Attempt::A2a("GetTask", json!({"id": task}))),
        ("A2A ListTasks", Attempt::A2a("ListTasks", json!({}))),
        ("A2A ListTasks of the context", Attempt::A2a("ListTasks", json!({"contextId": "ctx"}))),
        ("A2A SubscribeToTask", Attempt::A2a("SubscribeToTask", json!({"id": task}))),
        ("A2A decision", Attempt::A2a("SendMessage", message("m2", "approve", task_id.clone()))),
        ("A2A CancelTask", Attempt::A2a("CancelTask", json!({"id": task}))),
        (
            "A2A CreateTaskPushNotificationConfig",
            Attempt::A2a(
                "CreateTaskPushNotificationConfig",
                json!({"taskId": task, "id": "own", "url": "https://other.example/"}),
            ),
        ),
        (
            "A2A GetTaskPushNotificationConfig",
            Attempt::A2a("GetTaskPushNotificationConfig", hook.clone()),
        ),
        (
            "A2A ListTaskPushNotificationConfigs",
            Attempt::A2a("ListTaskPushNotificationConfigs", task_id),
        ),
        (
            "A2A DeleteTaskPushNotificationConfig",
            Attempt::A2a("DeleteTaskPushNotificationConfig", hook),
        ),
        ("chat stream", http("GET", "/v1/agents/clerk/chat/chat/stream", JsonValue::Null)),
        ("chat decision", http("POST", "/v1/agents/clerk/chat", chat_decision)),
        ("AG-UI decision", http("POST", "/v1/agents/clerk/ag-ui", thread_decision)),
        ("response", http("GET", &of_response, JsonValue::Null)),
        ("response stream", http("GET", &format!("{of_response}?stream=true"), JsonValue::Null)),
        ("response message", http("POST", "/v1/responses", continued(json!("More.")))),
        ("response decision", http("POST", "/v1/responses", continued(approval))),
        ("response cancel", http("POST", &format!("{of_response}/cancel"), JsonValue::Null)),
        ("run", http("GET", &of_run, JsonValue::Null)),
        ("run events", http("GET", &format!("{of_run}/events"), JsonValue::Null)),
        ("run abort", http("POST", &format!("{of_run}/abort"), JsonValue::Null)),
        ("session", http("GET", "/v1/sessions/ctx", JsonValue::Null)),
        ("session messages", http("GET", "/v1/sessions/ctx/messages", JsonValue::Null)),
        ("session abort", http("POST", "/v1/sessions/ctx/abort", JsonValue::Null)),
        ("MCP tasks/get", Attempt::Mcp("tasks/get", mcp_id.clone())),
        ("MCP tasks/update", Attempt::Mcp("tasks/update", decided)),
        ("MCP tasks/cancel", Attempt::Mcp("tasks/cancel", mcp_id)),
        ("MCP requestState", Attempt::Mcp("tools/call", with_state)),
        ("MCP call in the session", Attempt::Mcp("tools/call", in_session)),
        (
            "MCP resource of the run",
            Attempt::Mcp("resources/read", json!({"uri": format!("abide://runs/{mcp_task}")})),
        ),
        (
            "MCP resource of the session",
            Attempt::Mcp("resources/read", json!({"uri": "abide://sessions/tenant=acme/ctx"})),
        ),
        ("MCP 2025-11-25 tasks/list", Attempt::LegacyMcp("tasks/list", json!({}))),
        (
            "MCP 2025-11-25 tasks/cancel",
            Attempt::LegacyMcp("tasks/cancel", json!({"taskId": mcp_task})),
        ),
    ]
}

/// Another scope sees nothing of the owner, and neither does a role whose policy hides the sessions. A role that may call few reducers reads
/// what its scope has, which shows that each request reaches something, and changes nothing.
#[tokio::test]
async fn another_scope_or_role_finds_nothing() {
    let world = World::open().await;
    let owned = Owned::create(&world).await;
    let before = world.state().await;
    let mut table = String::new();
    for (name, attempt) in attempts(&owned) {
        let mut outcomes = Vec::new();
        for by in
            [Identity::elsewhere(), Identity::narrowed(), Identity::hidden(), Identity::worker()]
        {
            let outcome = owned.named(&world.outcome(&by, &attempt).await);
            assert_eq!(world.state().await, before, "{name}, {}: {outcome}", by.name);
            outcomes.push(outcome);
        }
        let of_role = outcomes.pop().expect("the last one");
        outcomes.dedup();
        writeln!(table, "{name}: {}; role: {of_role}", outcomes.join(" | ")).expect("it is text");
    }
    expect![[r#"
        A2A GetTask: 200 there is no task [A2A context]; role: 200 a result: artifacts (0), history (1)
        A2A ListTasks: 200 a result: tasks (0); role: 200 a result: tasks (7)
        A2A ListTasks of the context: 200 a result: tasks (0); role: 200 a result: tasks (1)
        A2A SubscribeToTask: 200 there is no task [A2A context]; role: 200 a stream
        A2A decision: 200 there is no task [A2A context]; role: 200 the role worker may not call write_entries
        A2A CancelTask: 200 there is no task [A2A context]; role: 200 the role worker may not call abort_run
        A2A CreateTaskPushNotificationConfig: 200 there is no task [A2A context]; role: 200 the role worker may not call put_webhook
        A2A GetTaskPushNotificationConfig: 200 there is no task [A2A context]; role: 200 a result: 
        A2A ListTaskPushNotificationConfigs: 200 there is no task [A2A context]; role: 200 a result: configs (1)
        A2A DeleteTaskPushNotificationConfig: 200 there is no task [A2A context]; role: 200 the role worker may not call delete_webhook
        chat stream: 204; role: 200 a stream
        chat decision: 404 agent clerk has no run in chat; role: 403 the role worker may not call decide_approval
        AG-UI decision: 404 agent clerk has no run in thread; role: 403 the role worker may not call decide_approval
        response: 404 there is no response resp_1_[responses]; role: 200 a result: output (2), tools (0)
        response stream: 404 there is no response resp_1_[responses]; role: 200 a stream
        response message: 404 there is no response resp_1_[responses]; role: 403 the role worker may not call start_run
        response decision: 404 there is no response resp_1_[responses]; role: 403 the role worker may not call decide_approval
        response cancel: 404 there is no response resp_1_[responses]; role: 403 the role worker may not call abort_run
        run: 404 there is no run [MCP]; role: 200 a result: 
        run events: 404 there is no run [MCP]; role: 200 a stream
        run abort: 404 there is no run [MCP]; role: 403 the role worker may not call abort_run
        session: 404 there is no session ctx; role: 200 a result: 
        session messages: 404 there is no session ctx; role: 200 a result: messages (1)
        session abort: 404 there is no session ctx; role: 403 the role worker may not call abort_run
        MCP tasks/get: 200 there is no task [MCP]; role: 200 a result: 
        MCP tasks/update: 200 there is no task [MCP]; role: 200 the role worker may not call decide_approval
        MCP tasks/cancel: 200 there is no task [MCP]; role: 200 the role worker may not call abort_run
        MCP requestState: 200 requestState is not that of a call of this tool; role: 200 the role worker may not call decide_approval
        MCP call in the session: 200 there is no session ctx; role: 200 the role worker may not call start_run
        MCP resource of the run: 200 Resource not found; role: 200 a result: contents (1)
        MCP resource of the session: 200 Resource not found; role: 200 a result: contents (1)
        MCP 2025-11-25 tasks/list: 404 Session not found: start a new one with initialize; role: 404 Session not found: start a new one with initialize
        MCP 2025-11-25 tasks/cancel: 404 Session not found: start a new one with initialize; role: 404 Session not found: start a new one with initialize
    "#]].assert_eq(&table);
}

/// A request that repeats one of the owner, word for word, is another one if the identity is: it finds no run of the owner. The rows
/// of a scope are for all its callers, so another issuer meets the owner in a context that both name.
#[tokio::test]
async fn a_request_of_another_identity_is_no_repetition() {
    let mut table = String::new();
    for by in
        [Identity::elsewhere(), Identity::narrowed(), Identity::of_database(), Identity::hidden()]
    {
        let world = World::open().await;
        let owned = Owned::create(&world).await;
        let mut runs = world.rows(RUNS).await;
        let before = runs.clone();
        for (name, attempt) in creations() {
            let told = owned.named(&world.outcome(&by, &attempt).await);
            let now = world.rows(RUNS).await;
            let count = |runs: &JsonValue| runs.as_array().map_or(0, Vec::len);
            let begun = count(&now) - count(&runs);
            runs = now;
            writeln!(table, "{}, {name}: {told}, new runs: {begun}", by.name).expect("text");
        }
        let kept = runs.as_array().expect("a list").iter();
        let kept: Vec<&JsonValue> =
            kept.filter(|run| owned.0.values().any(|id| run[0] == **id)).collect();
        assert_eq!(json!(kept), before, "{}", by.name);
    }
    expect![[r#"
        scope, A2A context: 200 a result: , new runs: 1
        scope, A2A: 200 a result: , new runs: 1
        scope, chat: 200 a stream, new runs: 1
        scope, AG-UI: 200 a stream, new runs: 1
        scope, responses: 200 a result: output (0), tools (0), new runs: 1
        scope, runs: 201 a result: , new runs: 1
        scope, MCP: 200 a result: , new runs: 1
        narrowed, A2A context: 200 a result: , new runs: 1
        narrowed, A2A: 200 a result: , new runs: 1
        narrowed, chat: 200 a stream, new runs: 1
        narrowed, AG-UI: 200 a stream, new runs: 1
        narrowed, responses: 200 a result: output (0), tools (0), new runs: 1
        narrowed, runs: 201 a result: , new runs: 1
        narrowed, MCP: 200 a result: , new runs: 1
        issuer, A2A context: 200 session tenant=acme/ctx has run [A2A context], which is waiting, new runs: 0
        issuer, A2A: 200 a result: , new runs: 1
        issuer, chat: 409 session tenant=acme/chat has run [chat], which is waiting, new runs: 0
        issuer, AG-UI: 409 session tenant=acme/thread has run [AG-UI], which is waiting, new runs: 0
        issuer, responses: 200 a result: output (0), tools (0), new runs: 1
        issuer, runs: 201 a result: , new runs: 1
        issuer, MCP: 200 a result: , new runs: 1
        hidden, A2A context: 200 there is no task [A2A context], new runs: 0
        hidden, A2A: 200 there is no task [A2A], new runs: 0
        hidden, chat: 403 no policy permits the role twin this row of sessions, new runs: 0
        hidden, AG-UI: 403 no policy permits the role twin this row of sessions, new runs: 0
        hidden, responses: 409 request id "/v1/responses" was already used with other rights, new runs: 0
        hidden, runs: 409 request id "/v1/agents/clerk/runs" was already used with other rights, new runs: 0
        hidden, MCP: 200 request id "key" was already used with other rights, new runs: 0
    "#]].assert_eq(&table);
}

const RUNS: &str = "SELECT id, status, turn, events FROM runs ORDER BY id";
