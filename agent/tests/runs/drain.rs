//! A runtime drains: the steps in progress end, nothing new begins, and the next runtime continues the runs.

use std::path::Path;
use std::sync::Arc;

use abide_agent::{Catalog, EndSignal, Runtime, Settings, Shutdown};
use abide_client::Abide;
use abide_client::arguments::{CreateSession, StartRun};
use abide_tools::{Effect, Function, ToolDeclaration, Tools};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::fixture::{define, scripted, temporary_folder};

/// A tool that runs until the gate is open, and says that it has begun.
#[derive(Default)]
struct Gate {
    begun: watch::Sender<u32>,
    is_open: watch::Sender<bool>,
}

impl Gate {
    /// The tool `pay`, which must not run twice.
    fn tools(self: &Arc<Gate>) -> Tools {
        let gate = Arc::clone(self);
        let declaration = ToolDeclaration {
            effect: Effect::AtMostOnce,
            ..ToolDeclaration::new("pay", "Pays.", json!({"type": "object"}))
        };
        let tools = Tools::new();
        let pay = Function::untyped(declaration, move |_| {
            gate.begun.send_modify(|begun| *begun += 1);
            let mut is_open = gate.is_open.subscribe();
            async move {
                is_open.wait_for(|is_open| *is_open).await.map_err(|why| why.to_string())?;
                Ok::<_, String>("it is paid".to_owned())
            }
        });
        tools.add(pay).expect("the tool is valid");
        tools
    }

    async fn until_begun(&self) {
        self.begun.subscribe().wait_for(|begun| *begun > 0).await.expect("the tool exists");
    }
}

const SCRIPT: &str = "
answers:
  - calls: [{ name: pay, arguments: {} }, { name: pay, arguments: {} }]
  - text: All is paid.
";

async fn start(abide: &Abide, folder: &Path, tools: Tools, shutdown: &Shutdown) -> JoinHandle<()> {
    let catalog = Catalog::new(folder, tools.clone());
    let settings = Settings::named("runtime");
    let runtime = Runtime::new(abide.clone(), scripted(SCRIPT), tools, catalog, settings);
    runtime.register().await.expect("it is registered");
    let shutdown = shutdown.clone();
    tokio::spawn(async move { runtime.run(shutdown).await.expect("the runtime runs") })
}

async fn begin(abide: &Abide) {
    abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
    abide.call(StartRun::new("s1").id("r1").input("Pay.")).await.expect("the run starts");
}

async fn until(abide: &Abide, sql: &str) {
    let mut rows = abide.subscribe(sql).await.expect("the subscription starts");
    while rows.rows().len() == 0 {
        rows.try_next().await.expect("the file is open");
    }
}

const ENDED: &str = "SELECT id FROM runs WHERE ended_at IS NOT NULL";

/// A deploy dropped the tool, and its call was left for a person. The second call of the answer does not begin any more.
#[tokio::test]
async fn a_running_tool_ends_and_the_next_runtime_continues() {
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", "tools: [pay]\nlimits: { parallel_tools: 1 }\n");
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let gate = Arc::<Gate>::default();
    let shutdown = Shutdown::default();
    let runtime = start(&abide, folder.path(), gate.tools(), &shutdown).await;
    begin(&abide).await;
    gate.until_begun().await;
    shutdown.drain();
    gate.is_open.send_replace(true);
    runtime.await.expect("no panic");

    let sql = "SELECT status FROM tool_calls ORDER BY call_id";
    let calls: Vec<String> = abide.sql(sql).fetch().await.expect("the rows");
    assert_eq!(calls, ["succeeded", "pending"]);
    let runs: Vec<(String, i64)> =
        abide.sql("SELECT status, iterations FROM runs").fetch().await.expect("the rows");
    assert_eq!(runs, [("running".to_owned(), 1)]);
    assert_eq!(*gate.begun.borrow(), 1);

    let shutdown = Shutdown::default();
    let runtime = start(&abide, folder.path(), gate.tools(), &shutdown).await;
    until(&abide, ENDED).await;
    shutdown.stop();
    runtime.await.expect("no panic");
    let sql = "SELECT status, attempt FROM tool_calls ORDER BY call_id";
    let calls: Vec<(String, i64)> = abide.sql(sql).fetch().await.expect("the rows");
    assert_eq!(calls, [("succeeded".to_owned(), 1), ("succeeded".to_owned(), 1)]);
    assert_eq!(*gate.begun.borrow(), 2);
    abide.close().await;
}

/// A runtime without work does not wait, and one that drains from the beginning claims nothing.
#[tokio::test]
async fn a_runtime_that_drains_claims_nothing() {
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", "tools: [pay]\n");
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let gate = Arc::<Gate>::default();
    let shutdown = Shutdown::default();
    let runtime = start(&abide, folder.path(), gate.tools(), &shutdown).await;
    shutdown.drain();
    runtime.await.expect("no panic");
    let runtime = start(&abide, folder.path(), gate.tools(), &shutdown).await;
    begin(&abide).await;
    runtime.await.expect("no panic");
    let sql = "SELECT count(*) FROM runs WHERE driver IS NULL";
    let unclaimed: Vec<i64> = abide.sql(sql).fetch().await.expect("the rows");
    assert_eq!(unclaimed, [1]);
    abide.close().await;
}

/// Works until it is asked to end, the first time. The second time it answers. It is no shell script: a shell cannot trap a
/// signal that the tests ignore, as they do SIGHUP after `nohup`.
const WORKS: &str = r#"
import os, signal, sys
def end(signum, frame):
    with open("got", "w") as file:
        file.write(signal.Signals(signum).name)
    sys.exit(1)
signal.signal(signal.SIGHUP, end)
print('{"type":"system","subtype":"init","session_id":"p1"}', flush=True)
if not os.path.exists("first"):
    os.mkdir("first")
    print('{"type":"assistant","message":{"id":"m1","content":[{"type":"text","text":"Let me see."}]}}', flush=True)
    while True:
        signal.pause()
print('{"type":"result","subtype":"success","is_error":false,"result":"It is 42.","session_id":"p1"}')
"#;

/// A program gets the signal and time to end, and the next runtime resumes its session.
#[tokio::test]
async fn a_program_gets_the_signal_and_is_resumed() {
    let folder = temporary_folder();
    std::fs::write(folder.path().join("agent.py"), WORKS).expect("the file can be written");
    let at = folder.path().display();
    let cli =
        format!("cli: {{ command: [python3, agent.py], program: claude, working_dir: '{at}' }}\n");
    define(folder.path(), "clerk.yaml", &cli);
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let shutdown = Shutdown::default();
    let runtime = start(&abide, folder.path(), Tools::new(), &shutdown).await;
    begin(&abide).await;
    until(&abide, "SELECT id FROM run_events WHERE kind = 'token'").await;
    shutdown.drain();
    shutdown.stop_with(EndSignal::Hangup);
    runtime.await.expect("no panic");
    let got = std::fs::read_to_string(folder.path().join("got"));
    assert_eq!(got.expect("the program has had time"), "SIGHUP");
    let sql = "SELECT count(*) FROM runs WHERE status = 'running' AND ended_at IS NULL";
    let running: Vec<i64> = abide.sql(sql).fetch().await.expect("the rows");
    assert_eq!(running, [1]);

    let shutdown = Shutdown::default();
    let runtime = start(&abide, folder.path(), Tools::new(), &shutdown).await;
    until(&abide, ENDED).await;
    shutdown.stop();
    runtime.await.expect("no panic");
    let ended: Vec<(String, String)> = abide
        .sql("SELECT status, output ->> '$.content' FROM runs")
        .fetch()
        .await
        .expect("the rows");
    assert_eq!(ended, [("done".to_owned(), "It is 42.".to_owned())]);
    abide.close().await;
}
