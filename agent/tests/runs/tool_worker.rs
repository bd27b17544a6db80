//! Calls that belong to no run: which of them a worker runs, how many at once, and what becomes of them when it is killed.

use std::path::Path;
use std::sync::{Arc, Mutex};

use abide_agent::{Settings, Shutdown, ToolWorker};
use abide_client::Abide;
use abide_client::arguments::{CreateSession, RequestToolCall};
use abide_tools::{Effect, Function, Selection, ToolDeclaration, Tools};
use serde_json::{Map, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fixture::{open_after_kill, temporary_folder};

/// A file with the tools `look` (read-only), `pay` (at most once) and `secret`, which is not exposed. A tool waits until
/// the gate is open.
struct Home {
    abide: Abide,
    tools: Tools,
    /// The calls that have begun.
    begun: Arc<Mutex<Vec<String>>>,
    count: watch::Sender<usize>,
    gate: watch::Sender<bool>,
}

impl Home {
    async fn open(folder: &Path) -> Home {
        let abide = open_after_kill(folder);
        let tools = Tools::new();
        let begun = Arc::new(Mutex::new(Vec::new()));
        let count = watch::Sender::new(0);
        let gate = watch::Sender::new(false);
        for (name, effect) in
            [("look", Effect::ReadOnly), ("pay", Effect::AtMostOnce), ("secret", Effect::ReadOnly)]
        {
            let declaration = ToolDeclaration {
                effect,
                ..ToolDeclaration::new(name, "Does something.", json!({"type": "object"}))
            };
            abide.call(declaration.manifest()).await.expect("the tool is registered");
            let begun = Arc::clone(&begun);
            let count = count.clone();
            let gate = gate.clone();
            tools
                .add(Function::untyped(declaration, move |call| {
                    begun.lock().expect("no panic").push(call.call_id.clone());
                    count.send_modify(|count| *count += 1);
                    let mut gate = gate.subscribe();
                    async move {
                        gate.wait_for(|is_open| *is_open).await.map_err(|why| why.to_string())?;
                        Ok::<_, String>(format!("{} is done", call.call_id))
                    }
                }))
                .expect("the tool is valid");
        }
        Home { abide, tools, begun, count, gate }
    }

    async fn session(&self, id: &str, agent: &str) {
        self.abide.call(CreateSession::new(agent).id(id)).await.expect("a session");
    }

    async fn scoped(&self, id: &str, scope: &[(&str, &str)]) {
        let members = scope.iter().map(|(key, value)| ((*key).to_owned(), json!(value)));
        let session = CreateSession::new("mcp").id(id).scope(members.collect::<Map<_, _>>());
        self.abide.call(session).await.expect("a session");
    }

    async fn request(&self, call_id: &str, session_id: &str, tool: &str) {
        let request = RequestToolCall::new(call_id, session_id, tool, json!({}));
        self.abide.call(request).await.expect("the call is requested");
    }

    /// A worker for `look` and `pay` in sessions of `mcp`.
    fn worker(&self, stop: &CancellationToken) -> JoinHandle<()> {
        self.worker_until(stop.clone().into())
    }

    fn worker_until(&self, shutdown: Shutdown) -> JoinHandle<()> {
        let exposed = vec!["look".to_owned(), "pay".to_owned()];
        let exposed = Selection { tools: Some(exposed), ..Selection::default() };
        let view = self.tools.view(exposed).expect("the tools exist");
        let worker = ToolWorker::new(self.abide.clone(), view, Settings::named("worker"), "mcp");
        tokio::spawn(async move { worker.run(shutdown).await.expect("the file is open") })
    }

    async fn until_begun(&self, count: usize) {
        let mut begun = self.count.subscribe();
        begun.wait_for(|begun| *begun == count).await.expect("the tools exist");
    }

    /// Waits until this many calls have a status, and returns the statuses and attempts of all.
    async fn until(&self, status: &str, count: usize) -> Vec<(String, String, i64)> {
        let sql = "SELECT call_id FROM tool_calls WHERE status = :status";
        let rows = self.abide.subscribe(sql).param("status", status);
        let mut rows = rows.await.expect("the subscription starts");
        while rows.rows().len() < count {
            rows.try_next().await.expect("the file is open");
        }
        let sql = "SELECT call_id, status, attempt FROM tool_calls ORDER BY call_id";
        self.abide.sql(sql).fetch().await.expect("the rows")
    }
}

fn row(call_id: &str, status: &str, attempt: i64) -> (String, String, i64) {
    (call_id.to_owned(), status.to_owned(), attempt)
}

/// The process that is killed is a runtime whose tasks are dropped.
#[test]
fn a_killed_worker_runs_nothing_twice() {
    let folder = temporary_folder();
    let process = Runtime::new().expect("a runtime");
    process.block_on(async {
        let home = Home::open(folder.path()).await;
        home.session("m", "mcp").await;
        home.session("o", "other").await;
        home.request("1-look", "m", "look").await;
        home.request("2-pay", "m", "pay").await;
        home.request("3-secret", "m", "secret").await;
        home.request("4-other", "o", "look").await;
        home.worker(&CancellationToken::new());
        home.until_begun(2).await;
    });
    drop(process);
    let process = Runtime::new().expect("a runtime");
    process.block_on(async {
        let home = Home::open(folder.path()).await;
        home.gate.send_replace(true);
        let stop = CancellationToken::new();
        let worker = home.worker(&stop);
        home.until("unknown", 1).await;
        let expected = [
            row("1-look", "succeeded", 2),
            row("2-pay", "unknown", 1),
            row("3-secret", "pending", 0),
            row("4-other", "pending", 0),
        ];
        assert_eq!(home.until("succeeded", 1).await, expected);
        stop.cancel();
        worker.await.expect("no panic");
        assert_eq!(*home.begun.lock().expect("no panic"), ["1-look"]);
    });
}

/// A worker that drains claims nothing more, and its tools can end.
#[tokio::test]
async fn a_worker_that_drains_lets_its_tools_end() {
    let folder = temporary_folder();
    let home = Home::open(folder.path()).await;
    home.session("m", "mcp").await;
    home.request("1-pay", "m", "pay").await;
    let shutdown = Shutdown::default();
    let worker = home.worker_until(shutdown.clone());
    home.until_begun(1).await;
    shutdown.drain();
    home.request("2-pay", "m", "pay").await;
    home.gate.send_replace(true);
    worker.await.expect("no panic");
    let expected = [row("1-pay", "succeeded", 1), row("2-pay", "pending", 0)];
    assert_eq!(home.until("succeeded", 1).await, expected);
}

/// A session with many calls does not delay the others.
#[tokio::test]
async fn a_session_has_a_share_of_the_worker() {
    let folder = temporary_folder();
    let home = Home::open(folder.path()).await;
    home.session("a", "mcp").await;
    home.session("b", "mcp").await;
    for n in 0..20 {
        home.request(&format!("a{n:02}"), "a", "look").await;
    }
    home.request("b", "b", "look").await;
    let stop = CancellationToken::new();
    let worker = home.worker(&stop);
    home.until_begun(9).await;
    let mut first = home.begun.lock().expect("no panic").clone();
    first.sort();
    assert_eq!(first, ["a00", "a01", "a02", "a03", "a04", "a05", "a06", "a07", "b"]);
    home.gate.send_replace(true);
    assert_eq!(home.until("succeeded", 21).await.len(), 21);
    stop.cancel();
    worker.await.expect("no panic");
}

/// A tenant that narrows its scope in each of its sessions has one share, whatever other tenants do.
#[tokio::test]
async fn a_tenant_with_narrower_scopes_has_one_share() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let home = Home::open(folder.path()).await;
    for n in 0..6 {
        let id = format!("b{n}");
        home.scoped(&id, &[("tenant", "b"), ("k", &id)]).await;
        for call in 0..8 {
            home.request(&format!("b{n}-{call}"), &format!("b{n}"), "look").await;
        }
    }
    home.scoped("a", &[("tenant", "a")]).await;
    home.request("a", "a", "look").await;
    let stop = CancellationToken::new();
    let worker = home.worker(&stop);
    home.until_begun(17).await;
    assert!(home.begun.lock().expect("no panic").contains(&"a".to_owned()));
    home.gate.send_replace(true);
    assert_eq!(home.until("succeeded", 49).await.len(), 49);
    stop.cancel();
    worker.await.expect("no panic");
}
