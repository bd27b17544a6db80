//! The fixture: a file, a runtime, and an agent with one tool that does nothing.

use std::path::Path;
use std::sync::Arc;

use abide_agent::{Catalog, Runtime, Settings};
use abide_client::arguments::{CreateSession, StartRun};
use abide_client::{Abide, Call};
use abide_engine::{Config, Engine};
use abide_models::{ConfigContext, Models, ModelsConfig};
use abide_tools::{Effect, Function, ToolContext, Tools};
use schemars::JsonSchema;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::model::{Model, Notes, Pace};

#[derive(Deserialize, JsonSchema)]
struct Order {
    /// The order's id.
    order: String,
}

/// The fixture of one measurement.
pub(crate) struct AgentFixture {
    pub(crate) engine: Engine,
    pub(crate) abide: Abide,
    pub(crate) notes: Arc<Notes>,
    stop: CancellationToken,
    runtime: Option<Runtime>,
    running: Option<JoinHandle<()>>,
    _folder: TempDir,
}

/// Number of runs that are started in one transaction.
const BEGUN_TOGETHER: usize = 100;

impl AgentFixture {
    /// A new file, without a driver.
    pub(crate) async fn new(dir: &Path, pace: Pace) -> AgentFixture {
        let folder = TempDir::new_in(dir).expect("a folder for the files");
        std::fs::create_dir_all(folder.path().join("agents")).expect("the folder can be created");
        let definition =
            "tools: [look]\nlimits: { tool_calls: 1000 }\nconfig: { recursion_limit: 1000 }\n";
        std::fs::write(folder.path().join("agents/clerk.yaml"), definition)
            .expect("the file can be written");
        let config = Config::new(abide_reducers::modules());
        let engine =
            Engine::open(folder.path().join("abide.db"), config).expect("the engine opens");
        let abide = Abide::embed(engine.clone());
        let notes = Arc::new(Notes::new());
        let mut models = Models::new(ModelsConfig::default(), &ConfigContext::of_process())
            .expect("the configuration is valid");
        let model = Model { pace, notes: Arc::clone(&notes) };
        models.add(Arc::new(model), vec!["bench".to_owned()], 0).expect("the id is unique");
        let tools = Tools::new();
        let look_up = |order: Order, _: ToolContext| async move {
            Ok::<_, String>(format!("{} is there", order.order))
        };
        let tool = Function::new("look", "Looks an order up.", look_up).effect(Effect::ReadOnly);
        tools.add(tool).expect("the tool is valid");
        let catalog = Catalog::new(folder.path(), tools.clone());
        let runtime = Runtime::new(abide.clone(), models, tools, catalog, Settings::named("bench"));
        assert_eq!(runtime.register().await.expect("it is registered"), []);
        let stop = CancellationToken::new();
        let running = None;
        AgentFixture {
            engine,
            abide,
            notes,
            stop,
            runtime: Some(runtime),
            running,
            _folder: folder,
        }
    }

    /// Starts runs `r0`, `r1` …, each in its own session, with the run's id as the user's message.
    pub(crate) async fn start_runs(&self, from: usize, runs: usize) {
        let ids: Vec<String> = (from..from + runs).map(|number| format!("r{number}")).collect();
        for some in ids.chunks(BEGUN_TOGETHER) {
            let calls = some.iter().flat_map(|id| {
                let session = CreateSession::new("clerk").id(format!("s{id}"));
                let run = StartRun::new(format!("s{id}")).id(id).input(id);
                [Call::from(session), Call::from(run)]
            });
            self.abide.batch(calls).await.expect("the runs start");
        }
    }

    /// Starts the driver.
    pub(crate) fn start_driver(&mut self) {
        let runtime = self.runtime.take().expect("once");
        let stop = self.stop.clone();
        self.running =
            Some(tokio::spawn(async move { runtime.run(stop).await.expect("the runtime runs") }));
    }

    /// Waits until every run has ended, and checks that all succeeded.
    pub(crate) async fn wait_until_done(&self) {
        let open = "SELECT count(*) FROM runs WHERE status IN ('running', 'waiting')";
        let mut open = self.abide.subscribe(open).await.expect("the subscription starts");
        while let Some(Ok(_)) = open.next().await {
            let left: Vec<i64> = open.typed_rows().expect("it is a count");
            if left == [0] {
                break;
            }
        }
        let badly = "SELECT count(*) FROM runs WHERE status <> 'done'";
        let badly: Vec<i64> = self.abide.sql(badly).fetch().await.expect("it is a count");
        assert_eq!(badly, [0], "failed runs");
    }

    /// Number of transactions so far.
    pub(crate) fn commit_count(&self) -> f64 {
        self.engine.metrics().commits_total.get() as f64
    }

    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        if let Some(running) = self.running.take() {
            running.await.expect("the task succeeds");
        }
        self.abide.close().await;
        let engine = self.engine.clone();
        tokio::task::spawn_blocking(move || engine.close()).await.expect("the engine closes");
    }
}
