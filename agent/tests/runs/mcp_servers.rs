//! Calls of tools whose MCP server (2026-07-28) asks for input, or makes a task of the call. The server is in this process and counts
//! what a runtime sends. The runtime is another process, which is killed at every step.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};

use abide_agent::{Catalog, McpServer, Runtime, Settings};
use abide_client::Abide;
use abide_client::arguments::{
    AbortRun, CancelToolCall, CreateSession, DecideApproval, Decision, Outcome, SettleToolCall,
    StartRun,
};
use abide_schema::Scope;
use abide_schema::reducer::Caller;
use abide_tools::{McpServerConfig, Tools};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::fixture::{define, open_after_kill, scripted, transcript};
use crate::victim;

/// A server with the tools `book`, which asks who for, and `ship`, a task that asks where to.
#[derive(Clone, Default)]
struct Agency {
    url: String,
    state: Arc<Mutex<AgencyState>>,
}

#[derive(Default)]
struct AgencyState {
    /// The answers with which `book` was completed.
    booked: Vec<Value>,
    /// The answers that each task got.
    tasks: Vec<Option<Value>>,
    /// The ids of cancelled tasks.
    cancelled: Vec<String>,
    /// The questions of `book`, if there are others.
    questions: Option<Value>,
    /// The requests that need a login, which nobody has made yet.
    needs_login: Option<&'static str>,
}

impl AgencyState {
    /// Whether a request is refused until a person logs in.
    fn rejects(&self, method: &str, params: &Value) -> bool {
        match self.needs_login {
            Some("tools/call with answers") => {
                method == "tools/call" && params["inputResponses"].is_object()
            }
            needs_login => needs_login == Some(method),
        }
    }
}

fn form(field: &str) -> Value {
    json!({"type": "object", "properties": {field: {"type": "string", "minLength": 2},
        "seat": {"type": "string", "default": "aisle"}}, "required": [field]})
}

fn question(message: &str, field: &str) -> Value {
    json!({"method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": form(field)}})
}

impl Agency {
    /// Starts it on a port of its own.
    async fn start() -> Agency {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let agency = Agency { url: format!("http://{address}/mcp"), ..Agency::default() };
        let app = Router::new().route("/mcp", post(answer)).with_state(agency.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        agency
    }

    fn perform(&self, method: &str, params: &Value) -> Result<Value, i64> {
        let mut state = self.state.lock().expect("no test panicked");
        let at = params["taskId"].as_str().and_then(|id| id.parse::<usize>().ok());
        let at = at.filter(|at| *at < state.tasks.len());
        Ok(match method {
            "server/discover" => json!({"resultType": "complete",
                "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "ttlMs": 0, "cacheScope": "private"}),
            "tools/list" => {
                let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
                json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private",
                    "tools": [tool("book"), tool("ship")]})
            }
            "tools/call" if params["name"] == "ship" => {
                state.tasks.push(None);
                let mut created = task(&state, state.tasks.len() - 1);
                created["resultType"] = json!("task");
                created["status"] = json!("working");
                created
            }
            "tools/call" => match params["inputResponses"]["who"].as_object() {
                Some(response) if params["requestState"] == "sealed" => {
                    state.booked.push(json!(response));
                    let text = format!("Booked: {}.", json!(response));
                    json!({"resultType": "complete", "content": [{"type": "text", "text": text}]})
                }
                _ => {
                    let asked = json!({"who": question("Who travels?", "name")});
                    let asked = state.questions.clone().unwrap_or(asked);
                    json!({"resultType": "input_required", "inputRequests": asked,
                        "requestState": "sealed"})
                }
            },
            "tasks/get" => task(&state, at.ok_or(-32602)?),
            "tasks/update" => {
                state.tasks[at.ok_or(-32602)?] = Some(params["inputResponses"]["where"].clone());
                json!({"resultType": "complete"})
            }
            "tasks/cancel" => {
                let id = params["taskId"].as_str().unwrap_or_default().to_owned();
                state.cancelled.push(id);
                json!({"resultType": "complete"})
            }
            _ => return Err(-32601),
        })
    }

    fn tasks(&self) -> Vec<Option<Value>> {
        self.state.lock().expect("no test panicked").tasks.clone()
    }

    fn booked(&self) -> Vec<Value> {
        self.state.lock().expect("no test panicked").booked.clone()
    }
}

/// A task as `tasks/get` returns it.
fn task(state: &AgencyState, at: usize) -> Value {
    let now = "2026-11-25T10:00:00Z";
    let mut task = json!({"resultType": "complete", "taskId": at.to_string(), "createdAt": now,
        "lastUpdatedAt": now, "ttlMs": null, "pollIntervalMs": 1});
    match &state.tasks[at] {
        None => {
            task["status"] = json!("input_required");
            task["inputRequests"] = json!({"where": question("Where to?", "place")});
        }
        Some(answer) => {
            let text = format!("Shipped: {answer}.");
            task["status"] = json!("completed");
            task["result"] = json!({"content": [{"type": "text", "text": text}]});
        }
    }
    task
}

async fn answer(State(agency): State<Agency>, Json(request): Json<Value>) -> Response {
    let Some(id) = request.get("id") else { return StatusCode::ACCEPTED.into_response() };
    let method = request["method"].as_str().unwrap_or_default();
    if agency.state.lock().expect("no test panicked").rejects(method, &request["params"]) {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer scope=\"book\"")];
        return (StatusCode::UNAUTHORIZED, challenge).into_response();
    }
    let answer = match agency.perform(method, &request["params"]) {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(code) => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "no"}})
        }
    };
    Json(answer).into_response()
}

/// A runtime whose agent calls the tools of the server.
async fn runtime(abide: &Abide, folder: &Path, url: &str, script: &str) -> (Runtime, McpServer) {
    define(folder, "clerk.yaml", "tools: ['agency_*']\n");
    let tools = Tools::new();
    let config = McpServerConfig::at("agency", url);
    let server = McpServer::start(config, &std::env::vars().collect(), &tools).await;
    let server = server.expect("the server is reachable");
    let catalog = Catalog::new(folder, tools.clone());
    let settings = Settings::named("runtime");
    let runtime = Runtime::new(abide.clone(), scripted(script), tools, catalog, settings);
    runtime.register().await.expect("it is registered");
    (runtime, server)
}

const BOTH: &str = "answers: [{ calls: [{ name: agency_book }, { name: agency_ship }] }, \
                    { text: All is done. }]";

/// Environment variables that make this binary the victim process.
const VICTIM: &str = "ABIDE_MCP_VICTIM";
const URL: &str = "ABIDE_MCP_URL";
const DIES_AT: &str = "ABIDE_MCP_DIES_AT";

/// The process that is killed: this binary, running only this test.
#[test]
#[ignore = "a process that other tests start"]
fn victim() {
    let folder = std::env::var(VICTIM).expect("another test starts it");
    let url = std::env::var(URL).expect("the URL is set");
    let dies_at = std::env::var(DIES_AT).ok().map(|seq| seq.parse().expect("a seq is a number"));
    let process = tokio::runtime::Runtime::new().expect("a runtime");
    process.block_on(work(Path::new(&folder), &url, dies_at));
}

/// Starts the run unless it exists, answers its questions, and drives it until it is over.
async fn work(folder: &Path, url: &str, dies_at: Option<i64>) {
    let abide = open_after_kill(folder);
    if let Some(seq) = dies_at {
        victim::die_at(&abide, seq);
    }
    let (runtime, _server) = runtime(&abide, folder, url, BOTH).await;
    let stop = CancellationToken::new();
    let waits = async {
        let _ = abide.call(CreateSession::new("clerk").id("s1")).await;
        let _ = abide.call(StartRun::new("s1").id("r1").input("Go.")).await;
        let sql = "SELECT r.ended_at IS NOT NULL, c.call_id, c.status, c.tool_name, \
                   c.arguments ->> '$.message' FROM runs r LEFT JOIN tool_calls c \
                   ON c.session_id = r.session_id AND c.status IN ('awaiting_approval', 'unknown') \
                   WHERE r.id = 'r1'";
        let mut state = abide.subscribe(sql).await.expect("the subscription starts");
        loop {
            state.try_next().await.expect("the file is open");
            type Open = (bool, Option<String>, Option<String>, Option<String>, Option<String>);
            let now: Vec<Open> = state.typed_rows().expect("the rows fit");
            if now.iter().any(|(has_ended, ..)| *has_ended) {
                break;
            }
            for (_, call_id, status, tool, message) in now {
                let (Some(call_id), Some(tool)) = (call_id, tool) else { continue };
                if status.as_deref() == Some("unknown") {
                    let settle = SettleToolCall::new(call_id, Outcome::Succeeded);
                    let _ = abide.call(settle.result(json!({"text": "It is settled."}))).await;
                } else if tool == "tool_input" {
                    let answer = match message.as_deref() {
                        Some("Who travels?") => json!({"name": "Ada"}),
                        _ => json!({"place": "Vienna"}),
                    };
                    let decide = DecideApproval::new(Decision::Approve).call_id(call_id);
                    let answer = json!({ "answer": answer });
                    let _ = abide.call(decide.approved_arguments(answer)).await;
                }
            }
        }
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(runtime.run(stop.clone()), waits);
    driven.expect("the runtime runs");
    abide.close().await;
}

async fn spawn(folder: &Path, url: &str, dies_at: Option<i64>) -> ExitStatus {
    let mut command = tokio::process::Command::new(std::env::current_exe().expect("it has a path"));
    command.args(["--ignored", "--exact", "mcp_servers::victim"]).env(VICTIM, folder).env(URL, url);
    match dies_at {
        Some(seq) => command.env(DIES_AT, seq.to_string()),
        None => command.env_remove(DIES_AT),
    };
    let output = command.output().await.expect("it starts");
    let killed = output.status.code().is_none();
    assert!(
        output.status.success() || killed,
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output.status
}

/// How the run ended, how many of its calls had to be settled, and whether the task was recorded before it began.
async fn outcome(folder: &Path) -> (String, i64) {
    let abide = Abide::open(folder.join("abide.db")).expect("the file opens");
    let sql = "SELECT (SELECT status || coalesce(' ' || error_message, '') FROM runs), \
               (SELECT count(*) FROM tool_calls WHERE settled_by IS NOT NULL)";
    let found: Vec<(String, i64)> = abide.sql(sql).fetch().await.expect("the query succeeds");
    abide.close().await;
    found.into_iter().next().expect("there is a row")
}

/// A tool that must not run twice is called once, a task is begun once, and the answers of a person are not asked for again. Only
/// a call whose first answer was lost has to be settled.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_repeated_after_a_kill_at_every_step() {
    let ada = json!({"action": "accept", "content": {"name": "Ada", "seat": "aisle"}});
    let vienna = json!({"action": "accept", "content": {"place": "Vienna", "seat": "aisle"}});
    let mut dies_at = None;
    let mut killed = 0;
    let mut unsettled = 0;
    loop {
        let agency = Agency::start().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let has_ended = spawn(folder.path(), &agency.url, dies_at).await.success();
        if !has_ended {
            killed += 1;
            let resumed = spawn(folder.path(), &agency.url, None).await;
            assert!(resumed.success(), "not resumed after a kill at {dies_at:?}");
        }
        let (status, settled) = outcome(folder.path()).await;
        assert_eq!(status, "done", "killed at {dies_at:?}");
        let booked = agency.booked();
        let tasks = agency.tasks();
        assert!(booked.len() <= 1 && tasks.len() <= 1, "{dies_at:?}: {booked:?} {tasks:?}");
        if settled == 0 {
            unsettled += 1;
            assert_eq!((booked, tasks), (vec![ada.clone()], vec![Some(vienna.clone())]));
        }
        match dies_at {
            None => dies_at = Some(14),
            Some(_) if has_ended => break,
            Some(at) => dies_at = Some(at + 5),
        }
    }
    assert!(killed > 6 && unsettled > 3, "killed {killed} times, {unsettled} without a settlement");
}

/// A runtime in this process, until a condition holds.
async fn with_runtime(
    agency: &Agency,
    folder: &Path,
    script: &str,
    then: impl AsyncFnOnce(&Abide),
) -> String {
    let abide = open_after_kill(folder);
    let (runtime, _server) = runtime(&abide, folder, &agency.url, script).await;
    let stop = CancellationToken::new();
    let waits = async {
        abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
        abide.call(StartRun::new("s1").id("r1").input("Go.")).await.expect("it starts");
        then(&abide).await;
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(runtime.run(stop.clone()), waits);
    driven.expect("the runtime runs");
    let rendered = transcript(&abide).await;
    abide.close().await;
    rendered
}

/// Waits until a query has a row, and returns its first cell.
async fn until(abide: &Abide, sql: &str) -> String {
    let mut rows = abide.subscribe(sql).await.expect("the subscription starts");
    while let Some(Ok(_)) = rows.next().await {
        let found: Vec<(String,)> = rows.typed_rows().expect("the rows fit");
        if let Some((cell,)) = found.into_iter().next() {
            return cell;
        }
    }
    panic!("the file was closed before a row appeared: {sql}");
}

const ASKED: &str = "SELECT c.call_id FROM tool_calls c JOIN runs r ON r.session_id = c.session_id \
                     WHERE r.status = 'waiting' AND c.status = 'awaiting_approval' \
                     AND c.tool_name = 'tool_input'";
const ENDED: &str = "SELECT status FROM runs WHERE ended_at IS NOT NULL";
const ONE: &str = "answers: [{ calls: [{ name: agency_book }] }, { text: All is done. }]";

/// An answer is checked when it is given. A question can be declined and cancelled; both reach the server.
#[tokio::test]
async fn a_person_answers_declines_or_cancels() {
    for (decision, expected) in [
        ("answer", r#"{"action":"accept","content":{"name":"Ada","seat":"aisle"}}"#),
        ("decline", r#"{"action":"decline"}"#),
        ("cancel", r#"{"action":"cancel"}"#),
    ] {
        let agency = Agency::start().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let rendered = with_runtime(&agency, folder.path(), ONE, async |abide| {
            let call_id = until(abide, ASKED).await;
            assert!(call_id.starts_with("r1~"), "{call_id}");
            let decide = |decision| DecideApproval::new(decision).call_id(&call_id);
            match decision {
                "decline" => {
                    let reject = decide(Decision::Reject).comment("not now");
                    abide.call(reject).await.expect("it is rejected");
                }
                "cancel" => {
                    abide.call(CancelToolCall::new(&call_id)).await.expect("it is cancelled");
                }
                _ => {
                    for unfit in [
                        json!({"answer": {"name": "A"}}),
                        json!({"answer": {}}),
                        json!({"answer": {"name": "Ada"}, "call_id": "r1~other"}),
                        json!({}),
                    ] {
                        let approve = decide(Decision::Approve).approved_arguments(unfit.clone());
                        let refused = abide.call(approve).await.expect_err("it does not fit");
                        let code = refused.code().map(|code| code.as_str());
                        assert_eq!(code, Some("bad_arguments"), "{unfit}");
                    }
                    // A protocol without a form sends a comment.
                    let approve = decide(Decision::Approve).comment(r#"{"name": "Ada"}"#);
                    abide.call(approve).await.expect("it fits");
                }
            }
            assert_eq!(until(abide, ENDED).await, "done");
        })
        .await;
        assert!(rendered.contains(&format!("Booked: {expected}.")), "{rendered}");
        assert_eq!(agency.booked().len(), 1);
    }
}

const EACH: &str = "answers: [{ calls: [{ name: agency_book }] }, { calls: [{ name: agency_ship }] }, \
                    { text: All is done. }]";

/// A server that needs a new login in the middle of a run, at any request of a call. The call was retried for minutes, and then its
/// error was given to the model; the reason was only in the row of the call. Both tools must not run twice.
#[tokio::test]
async fn a_login_that_has_expired_interrupts_the_run_and_the_same_call_goes_on() {
    for rejected in ["tools/call", "tools/call with answers", "tasks/get", "tasks/update"] {
        let agency = Agency::start().await;
        let set_login = |needed| agency.state.lock().expect("no panic").needs_login = needed;
        set_login(Some(rejected));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut asked = Vec::new();
        let rendered = with_runtime(&agency, folder.path(), EACH, async |abide| {
            for _ in 0..3 {
                let call_id = until(abide, ASKED).await;
                let sql = "SELECT prompt FROM approvals WHERE call_id = :id";
                let prompt = abide.sql(sql).param("id", &call_id).fetch().await;
                let prompt: Vec<(String,)> = prompt.expect("the query succeeds");
                let answer = match prompt[0].0.as_str() {
                    "Who travels?" => json!({"name": "Ada"}),
                    "Where to?" => json!({"place": "Vienna"}),
                    _ => json!({"logged_in": true}),
                };
                asked.push(prompt[0].0.clone());
                if answer["logged_in"] == true {
                    set_login(None);
                }
                let approve = DecideApproval::new(Decision::Approve).call_id(&call_id);
                let approve = approve.approved_arguments(json!({ "answer": answer }));
                abide.call(approve).await.expect("it is approved");
            }
            assert_eq!(until(abide, ENDED).await, "done", "{rejected}");
        })
        .await;
        asked.retain(|prompt| prompt.contains("login"));
        let expected = "MCP server agency cannot be used: it requires a login with the scopes \
                        book: run `abide mcp login agency`; then accept";
        assert_eq!(asked, [expected], "{rejected}");
        assert_eq!((agency.booked().len(), agency.tasks().len()), (1, 1), "{rejected}");
        assert!(!rendered.contains("login"), "{rendered}");
        assert!(rendered.contains("Booked: ") && rendered.contains("Shipped: "), "{rendered}");
    }
}

/// If nobody logs in, the model learns it. A call whose task goes on on the server did not fail: its outcome is unknown.
#[tokio::test]
async fn a_declined_login_ends_the_call() {
    let ship = "answers: [{ calls: [{ name: agency_ship }] }, { text: All is done. }]";
    for (rejected, script, expected) in
        [("tools/call", ONE, "failed"), ("tasks/get", ship, "unknown")]
    {
        let agency = Agency::start().await;
        agency.state.lock().expect("no panic").needs_login = Some(rejected);
        let folder = tempfile::tempdir().expect("a temporary folder");
        with_runtime(&agency, folder.path(), script, async |abide| {
            let call_id = until(abide, ASKED).await;
            let reject = DecideApproval::new(Decision::Reject).call_id(&call_id);
            abide.call(reject).await.expect("it is rejected");
            let sql = "SELECT status FROM tool_calls WHERE tool_name LIKE 'agency%' \
                       AND status IN ('failed', 'unknown')";
            assert_eq!(until(abide, sql).await, expected, "{rejected}");
        })
        .await;
    }
}

/// The abort of a run that waits for an answer cancels the question, and the task on the server.
#[tokio::test]
async fn an_abort_reaches_the_server() {
    let agency = Agency::start().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = "answers: [{ calls: [{ name: agency_ship }] }]";
    with_runtime(&agency, folder.path(), script, async |abide| {
        until(abide, ASKED).await;
        abide.call(AbortRun::new("r1")).await.expect("it is aborted");
        until(abide, "SELECT call_id FROM tool_exchanges WHERE ended_at IS NOT NULL").await;
        let sql = "SELECT group_concat(DISTINCT status) FROM tool_calls";
        let statuses: Vec<(String,)> = abide.sql(sql).fetch().await.expect("the rows");
        assert_eq!(statuses, [("cancelled".to_owned(),)]);
    })
    .await;
    assert_eq!(agency.state.lock().expect("no test panicked").cancelled, ["0"]);
}

/// Messages of a server are bounded, and an unsupported question fails the call with a reason for the model.
#[tokio::test]
async fn a_malicious_question_fails_only_its_call() {
    let many: Value = (0..9)
        .map(|n| (format!("q{n}"), question("Who?", "name")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let with = |params: Value| json!({"method": "elicitation/create", "params": params});
    let file = with(json!({"mode": "url", "message": "Look", "url": "file:///etc/passwd"}));
    let roots = json!({"method": "roots/list", "params": {}});
    for (asked, expected) in [
        (json!({"who": question(&"x".repeat(9_000), "name")}), "has more than 8192 bytes"),
        (json!({"who": file}), "url of an input must begin with https:// or http://"),
        (json!({"who": roots}), "something else than input of a person"),
        (many, "inputs has 9 questions"),
    ] {
        let agency = Agency::start().await;
        agency.state.lock().expect("no test panicked").questions = Some(asked);
        let folder = tempfile::tempdir().expect("a temporary folder");
        with_runtime(&agency, folder.path(), ONE, async |abide| {
            let sql = "SELECT error FROM tool_calls WHERE status = 'failed'";
            let error = until(abide, sql).await;
            assert!(error.contains(expected), "{expected}: {error}");
            assert_eq!(until(abide, ENDED).await, "done");
        })
        .await;
    }
}

/// A worker of another tenant records the task of a call of its own as that of another call. The runtime neither follows it nor
/// cancels it: it would use its own credentials.
#[tokio::test]
async fn a_recorded_task_of_another_worker_is_not_followed() {
    let agency = Agency::start().await;
    agency.state.lock().expect("no test panicked").tasks.push(Some(json!("of another tenant")));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let abide = open_after_kill(folder.path());
    let script = "answers: [{ calls: [{ name: agency_ship }] }, { text: All is done. }]";
    let (runtime, _server) = runtime(&abide, folder.path(), &agency.url, script).await;
    abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
    abide.call(StartRun::new("s1").id("r1").input("Go.")).await.expect("it starts");
    let eve = Caller::with("eve", "agent", BTreeSet::new(), Scope::new());
    let engine = abide.engine().expect("it is embedded");
    let call = async |reducer: &str, args: Value| {
        let done = engine.call(&eve, reducer, &args, None).await.expect("the call succeeds");
        serde_json::from_str::<Value>(&done.result).expect("a result is JSON")
    };
    let open = json!({"id": "m", "agent": "mcp"});
    call("create_session", open).await;
    let ask = json!({"call_id": "c1", "session_id": "m", "tool_name": "agency_ship",
        "arguments": {}, "claim_lease_ms": 60_000});
    let token = call("request_tool_call", ask).await["fencing_token"].clone();
    let step = json!({"kind": "task", "data": {"task_id": "0"}});
    let record = json!({"call_id": "c1", "fencing_token": token, "entries": [step]});
    call("record_exchange", record).await;
    call("fail_tool_call", json!({"call_id": "c1", "fencing_token": token, "error": "x"})).await;
    let stop = CancellationToken::new();
    let waits = async {
        // The run's own task is asked about, after a sweep of tasks of calls that have ended.
        until(&abide, ASKED).await;
        abide.call(AbortRun::new("r1")).await.expect("it is aborted");
        let sql = "SELECT call_id FROM tool_exchanges WHERE ended_at IS NOT NULL";
        assert_ne!(until(&abide, sql).await, "c1");
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(runtime.run(stop.clone()), waits);
    driven.expect("the runtime runs");
    abide.close().await;
    assert_eq!(agency.state.lock().expect("no test panicked").cancelled, ["1"]);
}
