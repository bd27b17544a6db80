//! Runs of remote agents. The agent is a server in this process that accepts every message it gets, also a repeated one, so it
//! counts what a runtime sends. The runtime is another process, which is killed at every step.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use abide_client::Abide;
use abide_client::arguments::{CreateSession, DecideApproval, Decision, StartRun};
use abide_schema::Scope;
use abide_schema::reducer::Caller;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;

use crate::fixture::{define, open_after_kill, runtime, temporary_folder, transcript};
use crate::victim::{self, Victim};

/// A remote agent that asks where to, and answers with the place.
#[derive(Clone, Default)]
pub(crate) struct RemoteAgent {
    pub(crate) address: String,
    streams: bool,
    fault: Fault,
    tasks: Arc<Mutex<Vec<Task>>>,
    /// The ids of tasks that a runtime has cancelled.
    cancelled: Arc<Mutex<Vec<String>>>,
    /// The messages that it has answered without a task, or the requests for its task.
    answered: Arc<AtomicI64>,
}

/// What is wrong with its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Fault {
    #[default]
    None,
    /// A proxy puts a page in the place of the answers to messages.
    PageForMessages,
    /// A proxy does so for all answers.
    Page,
    /// The answers to messages are lost at a gateway, which has this status.
    StatusForMessages(u16),
    /// Messages are answered without a task, at a gateway that loses these answers.
    LostAnswers,
    /// The connections of messages end before an answer.
    CutMessages,
    /// Messages are answered with this error.
    ErrorForMessages(i64),
    /// Answers to messages have the id of another request.
    OtherId,
    /// An answer ends in the middle of an event.
    CutEvent,
    /// The stream of a message ends before it begins.
    NoEvent,
    /// The stream of a message ends after a piece of text.
    TextOnly,
    /// Its tasks complete without an answer.
    Empty,
    /// Its tasks work without an end.
    Endless,
    /// The stream of a message has one event, again and again.
    Repeated,
    /// It answers as written.
    Script(Script),
}

/// The results of an agent, each a line of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Script {
    /// The events of the stream of the message.
    message: &'static str,
    /// The events of each later stream. If there are none, the agent cannot resume a stream.
    resumed: &'static str,
    /// The answers to requests for the task; the last one is repeated. If there is none, the agent does not know the task.
    task: &'static str,
}

#[derive(Clone, Default)]
struct Task {
    context: Value,
    /// The texts that it got.
    messages: Vec<String>,
}

impl Task {
    fn to_json(&self, id: usize) -> Value {
        let asks =
            json!({"messageId": "q", "role": "ROLE_AGENT", "parts": [{"text": "Where to?"}]});
        let (state, message) = match self.messages.len() {
            1 => ("TASK_STATE_INPUT_REQUIRED", asks),
            _ => ("TASK_STATE_COMPLETED", Value::Null),
        };
        let texts = self.messages.iter().skip(1);
        let artifacts: Vec<Value> = texts
            .map(|text| json!({"artifactId": "a", "parts": [{"text": format!("To {text}.")}]}))
            .collect();
        json!({"id": id.to_string(), "contextId": self.context, "artifacts": artifacts,
            "status": {"state": state, "message": message}})
    }
}

impl RemoteAgent {
    /// Starts it on a port of its own.
    pub(crate) async fn start(streams: bool) -> RemoteAgent {
        RemoteAgent::start_with(streams, Fault::None).await
    }

    async fn start_with(streams: bool, fault: Fault) -> RemoteAgent {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let remote = RemoteAgent { address, streams, fault, ..RemoteAgent::default() };
        let app = Router::new()
            .route("/.well-known/agent-card.json", get(card))
            .route("/rpc", post(rpc))
            .with_state(remote.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        remote
    }

    /// The texts that each task got.
    pub(crate) fn messages(&self) -> Vec<Vec<String>> {
        let tasks = self.tasks.lock().expect("no test panicked");
        tasks.iter().map(|task| task.messages.clone()).collect()
    }

    /// The results as an agent without an answer sends them.
    fn emptied(&self, mut results: Vec<Value>) -> Vec<Value> {
        let state = match self.fault {
            Fault::Empty => "TASK_STATE_COMPLETED",
            Fault::Endless | Fault::Repeated => "TASK_STATE_WORKING",
            _ => "",
        };
        if !state.is_empty() {
            for result in &mut results {
                let task = match result.get_mut("task") {
                    Some(task) => task,
                    None => result,
                };
                task["status"] = json!({"state": state});
            }
        }
        results
    }

    fn perform(&self, method: &str, params: &Value) -> Result<Vec<Value>, i64> {
        let mut tasks = self.tasks.lock().expect("no test panicked");
        let at = |id: &Value| id.as_str().and_then(|id| id.parse::<usize>().ok());
        let found = at(&params["id"]).and_then(|id| Some((id, tasks.get(id)?)));
        match method {
            "SendMessage" | "SendStreamingMessage" => {
                let message = &params["message"];
                let text = message["parts"][0]["text"].as_str().unwrap_or_default().to_owned();
                let id = match at(&message["taskId"]) {
                    Some(id) => id,
                    None => {
                        let context = message["contextId"].clone();
                        tasks.push(Task { context, messages: Vec::new() });
                        tasks.len() - 1
                    }
                };
                tasks[id].messages.push(text);
                let task = tasks[id].to_json(id);
                let mut begun = task.clone();
                begun["status"] = json!({"state": "TASK_STATE_WORKING"});
                match method {
                    "SendMessage" => Ok(vec![json!({"task": begun})]),
                    _ => Ok(vec![json!({"task": begun}), json!({"task": task})]),
                }
            }
            "GetTask" => found.map(|(id, task)| vec![task.to_json(id)]).ok_or(-32001),
            "ListTasks" => {
                let all = tasks.iter().enumerate();
                let of_context = all.filter(|(_, task)| task.context == params["contextId"]);
                let listed: Vec<Value> = of_context.map(|(id, task)| task.to_json(id)).collect();
                Ok(vec![json!({"tasks": listed, "nextPageToken": ""})])
            }
            "CancelTask" => {
                let id = params["id"].as_str().unwrap_or_default().to_owned();
                self.cancelled.lock().expect("no test panicked").push(id);
                Ok(vec![json!({"id": params["id"], "status": {"state": "TASK_STATE_CANCELED"}})])
            }
            _ => Err(-32004),
        }
    }
}

async fn card(State(remote): State<RemoteAgent>) -> Json<Value> {
    let url = format!("http://{}/rpc", remote.address);
    let interface = json!({"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"});
    Json(json!({"name": "guide", "supportedInterfaces": [interface],
        "capabilities": {"streaming": remote.streams}, "defaultInputModes": ["text/plain"]}))
}

async fn rpc(State(remote): State<RemoteAgent>, Json(request): Json<Value>) -> Response {
    let method = request["method"].as_str().unwrap_or_default();
    let mut id = request["id"].clone();
    let is_message = method.starts_with("Send");
    if remote.fault == Fault::LostAnswers && is_message {
        remote.answered.fetch_add(1, Relaxed);
        return StatusCode::GATEWAY_TIMEOUT.into_response();
    }
    let performed = remote.perform(method, &request["params"]);
    match remote.fault {
        Fault::Page => return Html("<p>Please log in.</p>").into_response(),
        Fault::PageForMessages if is_message => {
            return Html("<p>Please log in.</p>").into_response();
        }
        Fault::StatusForMessages(status) if is_message => {
            let status = StatusCode::from_u16(status).expect("it is a status");
            return status.into_response();
        }
        Fault::CutMessages if is_message => {
            let broken = stream::once(async { Err::<String, _>(io::Error::other("cut")) });
            return Body::from_stream(broken).into_response();
        }
        Fault::ErrorForMessages(code) if is_message => {
            let error = json!({"code": code, "message": "it broke"});
            return Json(json!({"jsonrpc": "2.0", "id": id, "error": error})).into_response();
        }
        Fault::OtherId if is_message => id = json!("other"),
        Fault::NoEvent if is_message => {
            return ([(CONTENT_TYPE, "text/event-stream")], ": no event\n\n").into_response();
        }
        Fault::TextOnly if is_message => {
            let artifact = json!({"artifactId": "b", "parts": [{"text": "Well."}]});
            let result = json!({"artifactUpdate": {"taskId": "0", "artifact": artifact}});
            let event = json!({"jsonrpc": "2.0", "id": id, "result": result});
            let kind = [(CONTENT_TYPE, "text/event-stream")];
            return (kind, format!("data: {event}\n\n")).into_response();
        }
        Fault::Script(Script { message, resumed, task }) => {
            let lines = match method {
                "GetTask" => task,
                "SubscribeToTask" => resumed,
                _ if is_message => message,
                _ => "",
            };
            let answers = lines.lines().map(|line| {
                let result: Value = serde_json::from_str(line.trim()).expect("it is JSON");
                json!({"jsonrpc": "2.0", "id": id, "result": result})
            });
            let mut answers: Vec<Value> = answers.collect();
            if method == "GetTask" && !answers.is_empty() {
                let before: usize =
                    remote.answered.fetch_add(1, Relaxed).try_into().expect("it is positive");
                answers = vec![answers[before.min(answers.len() - 1)].clone()];
            }
            return match answers.as_slice() {
                [] => {
                    let code = if method == "GetTask" { -32001 } else { -32004 };
                    let error = json!({"code": code, "message": "no"});
                    Json(json!({"jsonrpc": "2.0", "id": id, "error": error})).into_response()
                }
                [answer] if !remote.streams || method == "GetTask" => {
                    Json(answer.clone()).into_response()
                }
                events => {
                    let events: String =
                        events.iter().map(|event| format!("data: {event}\n\n")).collect();
                    ([(CONTENT_TYPE, "Text/Event-Stream")], events).into_response()
                }
            };
        }
        Fault::CutEvent if is_message => {
            let kind = [(CONTENT_TYPE, "text/event-stream")];
            return (kind, "data: {\"jsonrpc\": \"2.0\", \"id\": 1, \"resu\n\n").into_response();
        }
        _ => {}
    }
    let of = |result: &Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
    match performed.map(|results| remote.emptied(results)) {
        Ok(results) if method == "SendStreamingMessage" && remote.fault == Fault::Repeated => {
            let event = format!("data: {}\n\n", of(&results[0]));
            let events = stream::repeat(event).map(Ok::<_, std::convert::Infallible>);
            ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
        }
        Ok(results) if method == "SendStreamingMessage" => {
            let events = results.iter().map(|result| format!("data: {}\n\n", of(result)));
            let kind = [(CONTENT_TYPE, "text/event-stream")];
            (kind, events.collect::<String>()).into_response()
        }
        Ok(results) => Json(of(&results[0])).into_response(),
        Err(code) => {
            let error = json!({"code": code, "message": "no"});
            Json(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).into_response()
        }
    }
}

/// Environment variable of the process that is killed: the address of the remote agent.
const ADDRESS: &str = "ABIDE_REMOTE_ADDRESS";

/// The process that is killed.
#[test]
#[ignore = "a process that other tests start"]
fn victim() {
    let folder = victim::folder();
    let address = std::env::var(ADDRESS).expect("the address is set");
    victim::work(work(&folder, &address));
}

/// Starts the run unless it exists, decides, and drives it until it is over.
async fn work(folder: &Path, address: &str) {
    drive(victim::open(folder), folder, address, "").await;
}

/// Drives a run of the agent at an address until it is over. `more` follows in the definition: indented, it belongs to `a2a`. Returns
/// its [`outcome_of`].
async fn drive(abide: Abide, folder: &Path, address: &str, more: &str) -> (i64, String, String) {
    let a2a = format!("a2a:\n  url: 'http://{address}'\n  allow_private: ['{address}']\n{more}");
    define(folder, "clerk.yaml", &a2a);
    let fixture = runtime(&abide, folder, "answers: []");
    fixture.register().await.expect("it is registered");
    let stop = CancellationToken::new();
    let drives = fixture.run(stop.clone());
    let waits = async {
        let _ = abide.call(CreateSession::new("clerk").id("s1")).await;
        let _ = abide.call(StartRun::new("s1").id("r1").input("Guide me.")).await;
        let sql = "SELECT r.ended_at IS NOT NULL, a.call_id FROM runs r LEFT JOIN approvals a \
                   ON a.session_id = r.session_id AND a.status = 'pending' WHERE r.id = 'r1'";
        let mut state = abide.subscribe(sql).await.expect("the subscription starts");
        loop {
            state.try_next().await.expect("the file is open");
            let now: Vec<(bool, Option<String>)> = state.typed_rows().expect("the rows fit");
            match now.into_iter().next() {
                Some((true, _)) => break,
                Some((false, Some(call_id))) => {
                    let decide = DecideApproval::new(Decision::Approve);
                    let decide = decide.call_id(call_id).comment("Vienna");
                    let _ = abide.call(decide).await;
                }
                _ => {}
            }
        }
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(drives, waits);
    driven.expect("the runtime runs");
    let outcome = outcome_of(&abide).await;
    abide.close().await;
    outcome
}

/// The [`outcome_of`] the run in a folder that no process has open.
async fn outcome(folder: &Path) -> (i64, String, String) {
    let abide = Abide::open(folder.join("abide.db")).expect("the file opens");
    let outcome = outcome_of(&abide).await;
    abide.close().await;
    outcome
}

/// The first event of the run, the status of the run, and the messages of its session.
async fn outcome_of(abide: &Abide) -> (i64, String, String) {
    let sql = "SELECT (SELECT min(seq) FROM run_events), \
               status || coalesce(' ' || error_code || error_message, '') FROM runs";
    let found: Vec<(i64, String)> = abide.sql(sql).fetch().await.expect("the query succeeds");
    let (first, status) = found.into_iter().next().expect("there is a run");
    (first, status, transcript(abide).await)
}

/// Runs the process, kills it at an event, and lets the next one finish. Returns the first event of the run, and whether
/// it was killed.
async fn check_at(streams: bool, dies_at: Option<i64>) -> (i64, bool) {
    let remote = RemoteAgent::start(streams).await;
    let folder = temporary_folder();
    let victim = Victim::new("remote_agents::victim").variable(ADDRESS, &remote.address);
    let has_ended = block_in_place(|| victim.finishes(folder.path(), dies_at));
    if !has_ended {
        let resumed = block_in_place(|| victim.finishes(folder.path(), None));
        assert!(resumed, "not resumed after a kill at {dies_at:?}");
    }
    let (first, status, rendered) = outcome(folder.path()).await;
    assert_eq!(
        (status.as_str(), rendered.as_str()),
        ("done", "user: Guide me. \nassistant: To Vienna. \n"),
        "killed at {dies_at:?}"
    );
    let got = vec![vec!["Guide me.".to_owned(), "Vienna".to_owned()]];
    assert_eq!(remote.messages(), got, "killed at {dies_at:?}");
    (first, !has_ended)
}

async fn check_at_every_step(streams: bool) {
    // The first process is not killed; it shows when the run begins.
    let (first, _) = check_at(streams, None).await;
    let next = Arc::new(AtomicI64::new(first));
    let kills = || {
        let next = Arc::clone(&next);
        tokio::spawn(async move {
            let mut killed = 0;
            while check_at(streams, Some(next.fetch_add(1, Relaxed))).await.1 {
                killed += 1;
            }
            killed
        })
    };
    let (one, other) = tokio::join!(kills(), kills());
    let killed = one.expect("no panic") + other.expect("no panic");
    assert!(killed > 6, "killed only {killed} times");
    println!("killed at {killed} steps");
}

/// No message is sent twice, although the agent would accept it, and none is lost.
#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_repeated_after_a_kill_at_every_step() {
    check_at_every_step(true).await;
}

/// No message is repeated to an agent that has no streams: its tasks are polled.
#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_repeated_to_an_agent_without_streams() {
    check_at_every_step(false).await;
}

/// Class: an outcome that the peer may have produced and that is not known. The page of a proxy, or the response to another request,
/// was an invalid answer, and the run had failed, although the agent had the message. A stream that ended before the agent had taken
/// an answer over left its question open, and the answer was sent again, without an end.
#[tokio::test]
async fn an_answer_that_cannot_be_read_leaves_the_outcome_open() {
    let guided = "done";
    let page = "failed outcome_unknownADDRESS did not respond with JSON-RPC";
    for (streams, fault, expected, messages) in [
        // The agent has the message, and its task is found.
        (false, Fault::PageForMessages, guided, 2),
        (true, Fault::PageForMessages, guided, 2),
        (false, Fault::OtherId, guided, 2),
        (true, Fault::OtherId, guided, 2),
        (true, Fault::CutEvent, guided, 2),
        (true, Fault::NoEvent, guided, 2),
        (true, Fault::TextOnly, guided, 2),
        // Nothing shows whether it has it.
        (false, Fault::Page, page, 1),
        (true, Fault::Page, page, 1),
    ] {
        let remote = RemoteAgent::start_with(streams, fault).await;
        let folder = temporary_folder();
        let abide = open_after_kill(folder.path());
        let (_, status, _) = drive(abide, folder.path(), &remote.address, "").await;
        let status = status.replace(&remote.address, "ADDRESS");
        assert_eq!(status, expected, "{streams} {fault:?}");
        assert_eq!(remote.messages().concat().len(), messages, "{streams} {fault:?}");
    }
}

/// Class: an outcome that the peer may have produced and that is not known. A message whose answer was lost was sent again, eight times,
/// if the agent listed no task. But an agent that answers with a message has no task, and none has to recognize a repeated message.
#[tokio::test]
async fn a_message_whose_answer_was_lost_is_not_sent_again() {
    for streams in [false, true] {
        // The agent has the message, and its task is found.
        for fault in [
            Fault::StatusForMessages(408),
            Fault::StatusForMessages(500),
            Fault::StatusForMessages(502),
            Fault::StatusForMessages(503),
            Fault::StatusForMessages(504),
            Fault::StatusForMessages(520),
            Fault::CutMessages,
            Fault::ErrorForMessages(-32603),
            Fault::ErrorForMessages(-32000),
        ] {
            let remote = RemoteAgent::start_with(streams, fault).await;
            let folder = temporary_folder();
            let ended =
                drive(open_after_kill(folder.path()), folder.path(), &remote.address, "").await;
            assert_eq!(ended.1, "done", "{streams} {fault:?}");
            assert_eq!(remote.messages().concat().len(), 2, "{streams} {fault:?}");
        }
        let remote = RemoteAgent::start_with(streams, Fault::LostAnswers).await;
        let folder = temporary_folder();
        let ended = drive(open_after_kill(folder.path()), folder.path(), &remote.address, "").await;
        let status = ended.1.replace(&remote.address, "ADDRESS");
        let unknown = "failed outcome_unknownADDRESS responded with HTTP 504 Gateway Timeout";
        assert_eq!((status.as_str(), remote.answered.load(Relaxed)), (unknown, 1), "{streams}");
    }
    // The agent states that it did nothing.
    let remote = RemoteAgent::start_with(true, Fault::ErrorForMessages(-32602)).await;
    let folder = temporary_folder();
    let ended = drive(open_after_kill(folder.path()), folder.path(), &remote.address, "").await;
    let status = ended.1.replace(&remote.address, "ADDRESS");
    assert_eq!(status, "failed remote_agent_refusedADDRESS refused: it broke (-32602)");
}

/// Class: success when something is missing. A task that had completed without an answer was a run that is done.
#[tokio::test]
async fn a_task_without_an_answer_is_no_answer() {
    let why = "the remote agent has completed the task without text or data: set allow_empty_answers if that can be an answer";
    let failed = format!("failed no_answer{why}");
    for (streams, more, expected) in [
        (false, "", failed.as_str()),
        (true, "", failed.as_str()),
        (true, "allow_empty_answers: true\n", "done"),
    ] {
        let remote = RemoteAgent::start_with(streams, Fault::Empty).await;
        let folder = temporary_folder();
        let ended =
            drive(open_after_kill(folder.path()), folder.path(), &remote.address, more).await;
        assert_eq!(ended.1, expected, "{streams} {more}");
    }
}

/// The end of a run of an agent that answers as written: its status, and the answer.
async fn end_of(streams: bool, script: Script) -> (String, String) {
    let remote = RemoteAgent::start_with(streams, Fault::Script(script)).await;
    let folder = temporary_folder();
    let abide = open_after_kill(folder.path());
    let limit = "  silent_seconds: 5\n";
    let (_, status, said) = drive(abide, folder.path(), &remote.address, limit).await;
    let answer = said.split_once("assistant: ").map_or("", |(_, answer)| answer);
    (status, answer.trim().to_owned())
}

const WORKING: &str = r#"{"task": {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}}"#;
const COMPLETED: &str =
    r#"{"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_COMPLETED"}}}"#;
const LAST_PIECE: &str = r#"{"artifactUpdate": {"taskId": "t", "append": true, "artifact": {"artifactId": "a", "parts": [{"text": "World."}]}}}
    {"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_COMPLETED"}}}"#;
const WHOLE_TASK: &str = r#"{"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [{"artifactId": "a", "parts": [{"text": "Hello World."}]}]}"#;
const BARE_TASK: &str = r#"{"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}}"#;

/// Class: success when something is missing. A piece that continues an artifact of which no event has the beginning was the answer. A
/// task that had not completed, or that had other artifacts only, confirmed it.
#[tokio::test]
async fn an_artifact_without_its_beginning_is_read_with_the_task() {
    let other_artifact = r#"{"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [{"artifactId": "b", "parts": [{"text": "So."}]}]}"#;
    let works = r#"{"id": "t", "status": {"state": "TASK_STATE_WORKING"}, "artifacts": [{"artifactId": "a", "parts": [{"text": "Hello "}]}]}"#;
    let missing = "failed remote_agent_invalidthe agent continued artifact \"a\" whose beginning it did not send, and the task that it \
                   describes does not have it: a part of the answer is missing";
    let early = "failed remote_agent_invalidthe task had completed, and the agent then described it with the state \"TASK_STATE_WORKING\"";
    for (task, expected, answer) in [
        (WHOLE_TASK, "done", "Hello World."),
        (BARE_TASK, missing, ""),
        ("", missing, ""),
        (other_artifact, missing, ""),
        (works, early, ""),
    ] {
        let script = Script { message: LAST_PIECE, task, ..Script::default() };
        let ended = end_of(true, script).await;
        assert_eq!((ended.0.as_str(), ended.1.as_str()), (expected, answer), "{task}");
    }
}

/// Class: success when something is missing. The events of a stream that had ended were taken for all of the answer, and a description
/// without artifacts for a loss of them.
#[tokio::test]
async fn what_a_stream_has_lost_is_read_with_the_task() {
    let open = r#"{"artifactUpdate": {"taskId": "t", "lastChunk": false, "artifact": {"artifactId": "a", "parts": [{"text": "Hello "}]}}}"#;
    let begun = r#"{"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "a", "parts": [{"text": "Hello "}]}}}"#;
    let described_between = r#"{"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "a", "parts": [{"text": "Hello "}]}}}
        {"task": {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}}
        {"artifactUpdate": {"taskId": "t", "append": true, "artifact": {"artifactId": "a", "parts": [{"text": "World."}]}}}
        {"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_COMPLETED"}}}"#;
    let still = "failed remote_agent_invalidmore of artifact \"a\" was to follow (lastChunk: false), and the task that it \
                 describes does not have it: a part of the answer is missing";
    for (message, resumed, task, expected, answer) in [
        (described_between, "", BARE_TASK, "done", "Hello World."),
        (described_between, "", "", "done", "Hello World."),
        (open, COMPLETED, "", still, ""),
        (begun, COMPLETED, "", "done", "Hello"),
        (begun, COMPLETED, WHOLE_TASK, "done", "Hello World."),
        (WORKING, COMPLETED, WHOLE_TASK, "done", "Hello World."),
    ] {
        let ended = end_of(true, Script { message, resumed, task }).await;
        assert_eq!(
            (ended.0.as_str(), ended.1.as_str()),
            (expected, answer),
            "{message} {resumed} {task}"
        );
    }
}

/// Class: a foreign task is taken. The answer to a request for the task was taken whatever its id was, or the run waited for the limit
/// of silence.
#[tokio::test]
async fn another_task_is_no_answer() {
    let other = r#"{"id": "other", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [{"artifactId": "a", "parts": [{"text": "Secret."}]}]}"#;
    let why = "failed remote_agent_invalidthe agent was asked for the task \"t\" and answered with the task \"other\"";
    for (streams, message) in [(false, WORKING), (true, WORKING), (true, LAST_PIECE)] {
        let script = Script { message, task: other, ..Script::default() };
        let ended = end_of(streams, script).await;
        assert_eq!((ended.0.as_str(), ended.1.as_str()), (why, ""), "{streams} {message}");
    }
}

/// Class: a clear answer that is not asked for. Streams that were about other tasks, or without a known state, kept the run until the
/// limit of silence, although the task had ended.
#[tokio::test]
async fn a_stream_that_says_nothing_about_the_task_is_followed_by_a_request_for_it() {
    let foreign = r#"{"task": {"id": "other", "status": {"state": "TASK_STATE_WORKING"}}}
        {"artifactUpdate": {"taskId": "other", "artifact": {"artifactId": "a", "parts": [{"text": "Secret."}]}}}
        {"statusUpdate": {"taskId": "other", "status": {"state": "TASK_STATE_COMPLETED"}}}"#;
    let unknown = r#"{"statusUpdate": {"taskId": "t", "status": {"state": "unknown"}}}
        {"task": {"id": "t", "status": {"state": "TASK_STATE_UNSPECIFIED"}}}"#;
    // The task ends while the second stream is open.
    let task = r#"{"id": "t", "status": {"state": "TASK_STATE_WORKING"}}
        {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [{"artifactId": "a", "parts": [{"text": "Hello World."}]}]}"#;
    for resumed in [foreign, unknown] {
        for message in [WORKING, unknown] {
            let ended = end_of(true, Script { message, resumed, task }).await;
            assert_eq!((ended.0.as_str(), ended.1.as_str()), ("done", "Hello World."), "{resumed}");
        }
    }
}

/// Class: what cannot be read vanishes. The run was done without it.
#[tokio::test]
async fn a_part_that_cannot_be_read_fails_the_run() {
    let message = r#"{"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "a", "parts": [{"text": "Hello "}, {"kind": "hologram"}]}}}
        {"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_COMPLETED"}}}"#;
    let odd_task = r#"{"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [{"artifactId": "a", "parts": [{"text": 5}]}]}"#;
    let unreadable =
        "failed remote_agent_invalida part of an artifact has neither text, data, url nor raw";
    let no_text = "failed remote_agent_invalidtext of a part of an artifact is not a text";
    for (message, task, expected) in
        [(message, WHOLE_TASK, unreadable), (WORKING, odd_task, no_text)]
    {
        let ended = end_of(true, Script { message, task, ..Script::default() }).await;
        assert_eq!((ended.0.as_str(), ended.1.as_str()), (expected, ""), "{message}");
    }
}

/// Class: peers that do not end. An agent that answers that its task works, and nothing else, kept the run for ever: first in many
/// streams, then in one that repeats its event.
#[tokio::test]
async fn a_task_that_works_without_an_end_fails_the_run() {
    for fault in [Fault::Endless, Fault::Repeated] {
        let remote = RemoteAgent::start_with(true, fault).await;
        let folder = temporary_folder();
        let limit = "  silent_seconds: 2\n";
        let ended =
            drive(open_after_kill(folder.path()), folder.path(), &remote.address, limit).await;
        assert_eq!(
            ended.1,
            "failed remote_agent_silentthe task has worked for 2 s without anything new (a2a.silent_seconds)",
            "{fault:?}"
        );
    }
}

/// An identity that may drive runs records on its own run that the task of another tenant is the task of the run, and ends
/// the run. The runtime does not cancel that task, for which it would use its own credentials. It cancels a task that it has
/// recorded itself.
#[tokio::test]
async fn a_recorded_task_of_another_driver_is_not_cancelled() {
    for (driver, cancelled) in [("eve", vec![]), ("runtime", vec!["7".to_owned()])] {
        let remote = RemoteAgent::start(false).await;
        let folder = temporary_folder();
        let address = &remote.address;
        let a2a = format!("a2a: {{ url: 'http://{address}', allow_private: ['{address}'] }}\n");
        define(folder.path(), "clerk.yaml", &a2a);
        let abide = open_after_kill(folder.path());
        let fixture = runtime(&abide, folder.path(), "answers: []");
        fixture.register().await.expect("it is registered");
        abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
        abide.call(StartRun::new("s1").id("r1").input("Go.")).await.expect("the run starts");
        let eve = Caller::with("eve", "agent", BTreeSet::new(), Scope::new());
        let engine = abide.engine().expect("it is embedded");
        let call = async |reducer: &str, args: Value| {
            if driver == "runtime" {
                let done = abide.call_by_name(reducer, args).await.expect("the call succeeds");
                return done.value;
            }
            let done = engine.call(&eve, reducer, &args, None).await.expect("the call succeeds");
            serde_json::from_str::<Value>(&done.result).expect("a result is JSON")
        };
        let claim = json!({"id": "r1", "driver": driver, "lease_ms": 60_000});
        let token = call("claim_run", claim).await["fencing_token"].clone();
        let task = json!({"event": "task", "task_id": "7", "context_id": "c"});
        let status = json!({"status": "thinking", "a2a": task});
        let events = json!([{"kind": "status", "data": status}]);
        call(
            "record_run",
            json!({"id": "r1", "fencing_token": token, "events": events,
            "lease_ms": 1}),
        )
        .await;
        let entry = json!({"key": "r1", "data": {"task_id": "7"}});
        let open = json!({"collection_id": "open", "kind": "a2a_open_tasks", "puts": [entry]});
        call("write_entries", open).await;
        call("abort_run", json!({"id": "r1"})).await;
        let stop = CancellationToken::new();
        let closes = async {
            let sql = "SELECT key FROM entries WHERE key = 'r1'";
            let mut entries = abide.subscribe(sql).await.expect("the subscription starts");
            entries.try_next().await.expect("the file is open");
            while entries.rows().len() > 0 {
                entries.try_next().await.expect("the file is open");
            }
            stop.cancel();
        };
        let (driven, ()) = tokio::join!(fixture.run(stop.clone()), closes);
        driven.expect("the runtime runs");
        assert_eq!(*remote.cancelled.lock().expect("no test panicked"), cancelled, "{driver}");
        abide.close().await;
    }
}

/// A scope with many tasks that are to be cancelled does not delay the task of another scope: the oldest tasks were first.
#[tokio::test]
async fn scopes_take_turns_in_the_cancellation_of_tasks() {
    let remote = RemoteAgent::start(false).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let address = &remote.address;
    let a2a = format!("a2a: {{ url: 'http://{address}', allow_private: ['{address}'] }}\n");
    define(folder.path(), "clerk.yaml", &a2a);
    let abide = open_after_kill(folder.path());
    let fixture = runtime(&abide, folder.path(), "answers: []");
    fixture.register().await.expect("it is registered");
    let of_acme = (0..70).map(|n| (format!("a{n}"), "acme"));
    for (id, tenant) in of_acme.chain([("z".to_owned(), "zeta")]) {
        let call = async |reducer: &str, args: Value| {
            abide.call_by_name(reducer, args).await.expect("the call succeeds").value
        };
        let scope = json!({"tenant": tenant});
        call("create_session", json!({"id": id, "agent": "clerk", "scope": scope})).await;
        call("start_run", json!({"session_id": id, "id": id, "input": "Go."})).await;
        let claim = json!({"id": id, "driver": "runtime", "lease_ms": 60_000});
        let token = call("claim_run", claim).await["fencing_token"].clone();
        let task = json!({"event": "task", "task_id": id, "context_id": "c"});
        let status = json!({"status": "thinking", "a2a": task});
        let events = json!([{"kind": "status", "data": status}]);
        call("record_run", json!({"id": id, "fencing_token": token, "events": events})).await;
        let entry = json!({"key": id, "data": {"task_id": id}});
        let open = json!({"collection_id": "open", "kind": "a2a_open_tasks", "puts": [entry]});
        call("write_entries", open).await;
        let failed = json!({"id": id, "fencing_token": token, "end": "failed", "code": "x",
            "message": "x"});
        call("finish_run", failed).await;
    }
    let stop = CancellationToken::new();
    let closes = async {
        let sql = "SELECT key FROM entries WHERE key = 'z'";
        let mut entries = abide.subscribe(sql).await.expect("the subscription starts");
        entries.try_next().await.expect("the file is open");
        while entries.rows().len() > 0 {
            entries.try_next().await.expect("the file is open");
        }
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(fixture.run(stop.clone()), closes);
    driven.expect("the runtime runs");
    let cancelled = remote.cancelled.lock().expect("no test panicked").clone();
    let position = cancelled.iter().position(|id| id == "z");
    assert!(position.is_some_and(|at| at < 8), "{cancelled:?}");
}
