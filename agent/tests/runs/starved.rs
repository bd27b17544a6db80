//! A program whose async runtime is starved: its tools block, or the machine has too much load. The leases of its runs and calls were
//! lost then, so a call that must not run twice became `unknown` while it ran.

use std::net::SocketAddr;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use abide_agent::{Catalog, Runtime, Settings};
use abide_client::arguments::{CreateSession, StartRun};
use abide_client::{Abide, Config};
use abide_engine::Engine;
use abide_server::AccessConfig;
use abide_tools::{Effect, Function, Invocation, ToolDeclaration, Tools};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime as AsyncRuntime};
use tokio_util::sync::CancellationToken;

use crate::fixture::{define, scripted, temporary_folder};

/// The leases of the test: long enough for a thread that a busy machine runs late.
const LEASE: Duration = Duration::from_secs(2);

/// The threads of the runtime that is starved.
const WORKERS: usize = 2;

/// Blocks threads until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    /// Blocks this thread, and reports that it does.
    fn block(&self, blocked: &Sender<()>) {
        let is_open = self.0.lock().expect("no panic");
        blocked.send(()).expect("the test waits");
        drop(self.1.wait_while(is_open, |is_open| !*is_open).expect("no panic"));
    }

    fn open(&self) {
        *self.0.lock().expect("no panic") = true;
        self.1.notify_all();
    }
}

fn workers() -> AsyncRuntime {
    let workers = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
    workers.expect("a runtime")
}

/// A server for an engine. Returns its address.
async fn serve(engine: &Engine, stop: &CancellationToken) -> String {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = TcpListener::bind(any).await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let stop = stop.clone().cancelled_owned();
    let serve = abide_server::serve(engine.clone(), listener, AccessConfig::loopback(), stop);
    tokio::spawn(async move { serve.await.expect("it serves") });
    format!("http://{address}")
}

/// The state of the run and of its call, and when the first of their leases ends.
type State = (String, String, i64);

const STATE: &str = "SELECT r.status, c.status, min(r.lease_expires_at, c.lease_expires_at) \
                     FROM runs r JOIN tool_calls c ON c.session_id = r.session_id";

/// Waits until both leases were renewed for so long that they would have ended without it, or one of them was lost.
async fn until_renewed(abide: &Abide) -> State {
    let mut state = abide.subscribe(STATE).await.expect("the subscription starts");
    let mut first = None;
    while let Some(Ok(_)) = state.next().await {
        let Ok(rows) = state.typed_rows::<(String, String, Option<i64>)>() else { continue };
        let Some((run, call, ends)) = rows.into_iter().next() else { continue };
        let ends = ends.unwrap_or_default();
        let first = *first.get_or_insert(ends);
        let lease = i64::try_from(LEASE.as_micros()).expect("it is short");
        if (run.as_str(), call.as_str()) != ("running", "claimed") || ends > first + lease {
            return (run, call, ends - first);
        }
    }
    panic!("the engine was closed");
}

fn check(is_remote: bool) {
    let folder = temporary_folder();
    let engine = Engine::open(folder.path().join("abide.db"), Config::default().into());
    let engine = engine.expect("the file opens");
    let outside = workers();
    let starved = workers();
    let stop = CancellationToken::new();
    let observer = Abide::embed(engine.clone());
    let url = is_remote.then(|| outside.block_on(serve(&engine, &stop)));
    let gate = Arc::new(Gate::default());
    let (blocking, blocked) = mpsc::channel();
    let runtime = starved.block_on(async {
        let abide = match &url {
            Some(url) => Abide::connect(url).await.expect("it connects"),
            None => observer.clone(),
        };
        let declaration = ToolDeclaration {
            effect: Effect::AtMostOnce,
            ..ToolDeclaration::new("pay", "Blocks.", json!({"type": "object"}))
        };
        let gate = Arc::clone(&gate);
        let blocking = Mutex::new(blocking.clone());
        let tools = Tools::new();
        let pay = move |_: Invocation| {
            let gate = Arc::clone(&gate);
            let blocking = blocking.lock().expect("no panic").clone();
            async move {
                gate.block(&blocking);
                Ok::<_, String>("It is paid.".to_owned())
            }
        };
        tools.add(Function::untyped(declaration, pay)).expect("the tool is valid");
        define(folder.path(), "clerk.yaml", "tools: [pay]\n");
        let catalog = Catalog::new(folder.path(), tools.clone());
        let script = "answers: [{ calls: [{ name: pay }] }, { text: Done. }]";
        let settings = Settings { lease: LEASE, ..Settings::named("runtime") };
        let runtime = Runtime::new(abide, scripted(script), tools, catalog, settings);
        runtime.register().await.expect("it is registered");
        runtime
    });
    let stopped = stop.clone();
    let driven = starved.spawn(async move { runtime.run(stopped).await });
    outside.block_on(async {
        observer.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
        observer.call(StartRun::new("s1").id("r1").input("Pay.")).await.expect("it starts");
    });
    blocked.recv().expect("the tool blocks one thread");
    for _ in 1..WORKERS {
        let gate = Arc::clone(&gate);
        let blocking = blocking.clone();
        starved.spawn(async move { gate.block(&blocking) });
        blocked.recv().expect("a task blocks the other one");
    }
    let state = outside.block_on(until_renewed(&observer));
    gate.open();
    let (run, call, renewed) = &state;
    assert_eq!((run.as_str(), call.as_str()), ("running", "claimed"), "remote: {is_remote}");
    assert!(*renewed > 0, "remote: {is_remote}");
    outside.block_on(async {
        let sql = "SELECT r.status, c.status, c.attempt FROM runs r \
                   JOIN tool_calls c ON c.session_id = r.session_id WHERE r.ended_at IS NOT NULL";
        let mut ended = observer.subscribe(sql).await.expect("the subscription starts");
        while let Some(Ok(_)) = ended.next().await {
            let rows: Vec<(String, String, i64)> = ended.typed_rows().expect("the rows fit");
            if let Some(row) = rows.into_iter().next() {
                assert_eq!(row, ("done".to_owned(), "succeeded".to_owned(), 1));
                break;
            }
        }
        stop.cancel();
    });
    starved.block_on(driven).expect("no panic").expect("the runtime runs");
    outside.block_on(observer.close());
}

#[test]
fn a_starved_runtime_keeps_the_leases_of_its_run_and_its_call() {
    for is_remote in [false, true] {
        check(is_remote);
    }
}
