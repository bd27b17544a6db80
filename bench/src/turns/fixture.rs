//! An engine with sessions, and the turns that clients take: each call awaited, or one batch per turn.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use abide_client::{Abide, Call};
use abide_engine::{Config, Engine};
use abide_server::AccessConfig;
use clap::ValueEnum;
use serde_json::{Value as JsonValue, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::payload::Payload;

/// How clients reach the engine, and how they write a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// In the process; each of four calls is awaited.
    Embedded,
    /// A WebSocket for each session; each of four calls is awaited.
    Websocket,
    /// A WebSocket for each session; one batch of four calls.
    WebsocketBatch,
}

impl Way {
    /// The name in options and records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Embedded => "embedded",
            Way::Websocket => "websocket",
            Way::WebsocketBatch => "websocket-batch",
        }
    }
}

/// The name of the file in its folder.
pub(crate) const FILE: &str = "abide.db";

/// An open file with sessions and their clients.
pub(crate) struct Fixture {
    pub(crate) engine: Engine,
    pub(crate) path: PathBuf,
    /// The client of each session. One that writes batches has the token of the tool call that its first batch
    /// completes.
    clients: Vec<(Abide, Option<i64>)>,
    server: Option<(oneshot::Sender<()>, JoinHandle<std::io::Result<()>>)>,
    /// Events before the first turn.
    events_before: usize,
    /// The last event that a session has an answer for.
    pub(crate) acknowledged: Arc<AtomicI64>,
}

impl Fixture {
    /// Opens a new file in a folder, and creates the sessions.
    pub(crate) async fn open(dir: &Path, way: Way, sessions: usize) -> Fixture {
        Fixture::open_with(dir, way, sessions, Config::new(abide_reducers::modules())).await
    }

    /// Opens a new file with this configuration, and creates the sessions.
    pub(crate) async fn open_with(
        dir: &Path,
        way: Way,
        sessions: usize,
        config: Config,
    ) -> Fixture {
        let path = dir.join(FILE);
        let engine = Engine::open(&path, config).expect("the engine opens");
        let embedded = Abide::embed(engine.clone());
        embedded.call_by_name("register_tool", json!({"name": "lookup"})).await.expect("a tool");
        for session in 0..sessions {
            let args = json!({"agent": "bench", "id": id_of(session)});
            embedded.call_by_name("create_session", args).await.expect("a session");
        }
        let mut clients = vec![embedded; sessions];
        let mut server = None;
        if way != Way::Embedded {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let url = format!("http://{}", listener.local_addr().expect("an address"));
            let (stop, stopped) = oneshot::channel::<()>();
            let access = AccessConfig::loopback();
            let served = abide_server::serve(engine.clone(), listener, access, async {
                let _ = stopped.await;
            });
            server = Some((stop, tokio::spawn(served)));
            for client in &mut clients {
                *client = Abide::connect(&url).await.expect("connects");
            }
        }
        // The client that completes a call must have claimed it.
        let mut events_before = 1 + sessions;
        let mut tokens = vec![None; sessions];
        if way == Way::WebsocketBatch {
            for (session, token) in tokens.iter_mut().enumerate() {
                let (reducer, args) = Script::new(session).request(0);
                let done = clients[session].call_by_name(reducer, args).await;
                *token = Some(done.expect("a tool call").seq.0);
            }
            events_before += sessions;
        }
        let clients = clients.into_iter().zip(tokens).collect();
        Fixture { engine, path, clients, server, events_before, acknowledged: Arc::default() }
    }

    /// Takes turns in all sessions concurrently, once. Returns the requests, and the seconds from the first to the last.
    pub(crate) async fn take_turns(&self, turns: usize) -> (Vec<Request>, f64) {
        let started = Instant::now();
        let clients = self.clients.iter().enumerate();
        let tasks = clients.map(|(session, (abide, token))| {
            let session = Session {
                abide: abide.clone(),
                engine: self.engine.clone(),
                script: Script::new(session),
                acknowledged: Arc::clone(&self.acknowledged),
                requests: Vec::new(),
            };
            match *token {
                Some(token) => tokio::spawn(session.batches(turns, token)),
                None => tokio::spawn(session.calls(turns)),
            }
        });
        let mut requests = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            requests.extend(task.await.expect("a session"));
        }
        (requests, started.elapsed().as_secs_f64())
    }

    /// The number of events after this many turns of each session.
    pub(crate) fn events_after(&self, turns: usize) -> usize {
        self.events_before + 4 * turns * self.clients.len()
    }

    /// Closes the connections, the server and the file.
    pub(crate) async fn close(self) {
        drop(self.clients);
        if let Some((stop, served)) = self.server {
            let _ = stop.send(());
            served.await.expect("the server's task").expect("the server ends well");
        }
        let engine = self.engine;
        tokio::task::spawn_blocking(move || engine.close()).await.expect("the engine closes");
    }
}

/// The id of a session.
pub(crate) fn id_of(session: usize) -> String {
    format!("s_{session}")
}

/// A call by name.
type NamedCall = (&'static str, JsonValue);

/// The calls of a session's turns.
struct Script {
    session_id: String,
    user: String,
    assistant: String,
    arguments: JsonValue,
    result: JsonValue,
}

impl Script {
    fn new(session: usize) -> Script {
        let Payload { user, assistant, arguments, result, .. } = Payload::new();
        let parsed = |text: &str| serde_json::from_str(text).expect("the payload is JSON");
        let arguments = parsed(&arguments);
        let result = parsed(&result);
        Script { session_id: id_of(session), user, assistant, arguments, result }
    }

    fn user(&self) -> NamedCall {
        self.message("user", &self.user)
    }

    fn assistant(&self) -> NamedCall {
        self.message("assistant", &self.assistant)
    }

    fn message(&self, role: &str, content: &str) -> NamedCall {
        let args = json!({"session_id": self.session_id, "role": role, "content": content});
        ("append_message", args)
    }

    /// Requests and claims the tool call of a turn.
    fn request(&self, turn: usize) -> NamedCall {
        let args = json!({"session_id": self.session_id, "call_id": self.call_id(turn),
            "tool_name": "lookup", "arguments": self.arguments, "claim_lease_ms": LEASE_MS});
        ("request_tool_call", args)
    }

    /// Completes it. The fencing token is the seq of the request.
    fn complete(&self, turn: usize, token: i64) -> NamedCall {
        let args = json!({"call_id": self.call_id(turn), "fencing_token": token,
            "result": self.result});
        ("complete_tool_call", args)
    }

    fn call_id(&self, turn: usize) -> String {
        format!("{}/{turn}", self.session_id)
    }
}

/// Longer than a run: no lease expires.
const LEASE_MS: i64 = 600_000;

/// A client of one session.
struct Session {
    abide: Abide,
    engine: Engine,
    script: Script,
    acknowledged: Arc<AtomicI64>,
    requests: Vec<Request>,
}

impl Session {
    /// Four calls per turn, each awaited.
    async fn calls(mut self, turns: usize) -> Vec<Request> {
        for turn in 0..turns {
            self.call(self.script.user()).await;
            let token = self.call(self.script.request(turn)).await;
            self.call(self.script.complete(turn, token)).await;
            self.call(self.script.assistant()).await;
        }
        self.requests
    }

    /// One batch of four calls per turn. The token of a tool call is in the answer to its batch, so the next batch
    /// completes it.
    async fn batches(mut self, turns: usize, mut token: i64) -> Vec<Request> {
        for turn in 0..turns {
            let calls = [
                self.script.user(),
                self.script.complete(turn, token),
                self.script.request(turn + 1),
                self.script.assistant(),
            ];
            let begun = Begun::now(&self.engine);
            let batch = self.abide.batch(calls.map(|(reducer, args)| Call::new(reducer, args)));
            let done = batch.await.expect("the batch is done");
            self.requests.push(begun.end(&self.engine));
            self.acknowledged.fetch_max(done.seq.0, Ordering::SeqCst);
            token = done.value[2].seq.0;
        }
        self.requests
    }

    /// Makes a call and returns its seq.
    async fn call(&mut self, (reducer, args): NamedCall) -> i64 {
        let begun = Begun::now(&self.engine);
        let done = self.abide.call_by_name(reducer, args).await.expect("the call is done");
        self.requests.push(begun.end(&self.engine));
        self.acknowledged.fetch_max(done.seq.0, Ordering::SeqCst);
        done.seq.0
    }
}

/// The time of a request: a call or a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) us: f64,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    /// The time of all syncs meanwhile. If no other request is in flight, it waited for all of them.
    pub(crate) sync_us: f64,
}

struct Begun {
    at: Instant,
    synced: Duration,
}

impl Begun {
    fn now(engine: &Engine) -> Begun {
        Begun { at: Instant::now(), synced: engine.metrics().sync_seconds.sum() }
    }

    fn end(self, engine: &Engine) -> Request {
        let received = Instant::now();
        let us = received.duration_since(self.at).as_secs_f64() * 1e6;
        let synced = engine.metrics().sync_seconds.sum() - self.synced;
        Request { us, sent: self.at, received, sync_us: synced.as_secs_f64() * 1e6 }
    }
}
