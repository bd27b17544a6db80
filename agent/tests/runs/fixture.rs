//! The test fixture: one database file, a runtime, a scripted model, and three tools that record their calls in a
//! ledger.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use abide_agent::{
    AgentEvent, AgentMetrics, AgentMiddleware, Catalog, MiddlewareContext, Problem, PromptStore,
    RunEvents, Runtime, Settings,
};
use abide_client::arguments::{CreateSession, StartRun};
use abide_client::embedded::{Clock, SystemClock};
use abide_client::rows::{AgentState, Run, RunEventKind};
use abide_client::{Abide, Config, Json, Micros};
use abide_models::{ConfigContext, ModelProvider, ModelResponse, Models, ModelsConfig, Script};
use abide_tools::{Effect, Function, ToolContext, Tools};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::loops::Errands;

/// A store whose prompts come from a task of the runtime, as over a connection.
pub(crate) struct RemotePrompts;

impl PromptStore for RemotePrompts {
    fn prompt(&self, _: &str) -> Result<String, String> {
        let (sender, received) = mpsc::channel();
        Handle::current().spawn(async move { sender.send("Be brief.".to_owned()) });
        received.recv_timeout(Duration::from_secs(60)).map_err(|why| why.to_string())
    }
}

/// The arguments of a tool.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Order {
    /// The order's id.
    order: String,
}

/// The tools: `look` is read-only, `note` is idempotent, `pay` must run at most once.
pub(crate) fn tools(ledger: PathBuf) -> Tools {
    let tools = Tools::new();
    for (name, effect) in
        [("look", Effect::ReadOnly), ("note", Effect::Idempotent), ("pay", Effect::AtMostOnce)]
    {
        let ledger = ledger.clone();
        let function = Function::new(
            name,
            "Does something with an order.",
            move |order: Order, _: ToolContext| {
                let ledger = ledger.clone();
                async move {
                    enter(&ledger, &format!("{name} {}", order.order));
                    Ok::<_, String>(format!("{name} {} is done", order.order))
                }
            },
        )
        .effect(effect);
        tools.add(function).expect("the tool is valid");
    }
    tools
}

/// Appends an entry to the ledger on disk.
fn enter(ledger: &Path, what: &str) {
    let file = OpenOptions::new().create(true).append(true).open(ledger);
    let mut file = file.expect("the ledger can be opened");
    writeln!(file, "{what}").expect("the ledger can be written");
    file.sync_all().expect("the ledger can be synced");
}

/// The entries of the ledger.
pub(crate) fn ledger(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A runtime over a file, in its own task.
pub(crate) struct RuntimeFixture {
    pub(crate) folder: TempDir,
    pub(crate) abide: Abide,
    /// The invalid files.
    pub(crate) problems: watch::Receiver<Vec<Problem>>,
    /// The counters of the runtime.
    pub(crate) metrics: AgentMetrics,
    stop: CancellationToken,
    runtime: Option<JoinHandle<()>>,
}

/// The settings that differ between tests.
pub(crate) struct FixtureOptions {
    pub(crate) folder: TempDir,
    pub(crate) models: Models,
    pub(crate) tools: Tools,
    pub(crate) settings: Settings,
}

/// Models with one scripted provider.
pub(crate) fn scripted(script: &str) -> Models {
    answering(Script::from_text(script).expect("the script is valid").named("script"))
}

/// Models with one provider.
pub(crate) fn answering(provider: impl ModelProvider) -> Models {
    let surroundings = ConfigContext::of_process();
    let mut models =
        Models::new(ModelsConfig::default(), &surroundings).expect("the configuration is valid");
    models.add(Arc::new(provider), vec!["scripted".to_owned()], 0).expect("the id is unique");
    models
}

/// Models with one scripted provider for each pair of an id and a script.
pub(crate) fn providers(scripts: &[(&str, &str)]) -> Models {
    let surroundings = ConfigContext::of_process();
    let mut models =
        Models::new(ModelsConfig::default(), &surroundings).expect("the configuration is valid");
    for (id, script) in scripts {
        let script = Script::from_text(script).expect("the script is valid").named(id);
        let model = format!("{id}-model");
        models.add(Arc::new(script), vec![model], 0).expect("the id is unique");
    }
    models
}

/// A clock that is ahead.
#[derive(Debug)]
struct ClockAhead(Micros);

impl Clock for ClockAhead {
    fn now(&self) -> Micros {
        Micros(SystemClock.now().0 + self.0.0)
    }
}

/// Opens the file of a folder. If it exists, it is that of a killed process: the clock is then ahead by a minute, so that
/// the leases of that process have expired and the test does not wait for it. Leases are never too short for a busy
/// machine.
pub(crate) fn open_after_kill(folder: &Path) -> Abide {
    open_ahead(folder, folder.join("abide.db").exists())
}

/// Opens the file of a folder, with a clock that is ahead or not.
pub(crate) fn open_ahead(folder: &Path, is_ahead: bool) -> Abide {
    let ahead = if is_ahead { LEASE_ENDS } else { Micros(0) };
    let config = Config { clock: Arc::new(ClockAhead(ahead)), ..Config::default() };
    Abide::open_with(folder.join("abide.db"), config).expect("the file opens")
}

/// More than the lease of a runtime, and less than any time limit of the tests.
const LEASE_ENDS: Micros = Micros(60_000_000);

/// The runtime that all tests use.
pub(crate) fn runtime(abide: &Abide, folder: &Path, script: &str) -> Runtime {
    runtime_of(abide, folder, scripted(script))
}

/// The runtime that all tests use, with other models.
pub(crate) fn runtime_of(abide: &Abide, folder: &Path, models: Models) -> Runtime {
    let tools = tools(folder.join("ledger"));
    let catalog = Catalog::new(folder, tools.clone());
    let catalog = catalog.middleware("marks", Marks).agent_loop("errands", Errands);
    Runtime::new(abide.clone(), models, tools, catalog, Settings::named("runtime"))
}

/// Removes a question mark from the order of a call, and writes an answer in lower case.
struct Marks;

impl AgentMiddleware for Marks {
    fn after_model(
        &self,
        _: &MiddlewareContext<'_>,
        answer: &mut ModelResponse,
    ) -> Result<(), String> {
        answer.text = answer.text.replace("PAID", "paid");
        Ok(())
    }

    fn before_tool(
        &self,
        _: &MiddlewareContext<'_>,
        _: &str,
        arguments: &mut Value,
    ) -> Result<(), String> {
        if let Some(order) = arguments["order"].as_str() {
            arguments["order"] = Value::from(order.trim_end_matches('?'));
        }
        Ok(())
    }
}

impl FixtureOptions {
    /// A plan with one agent, `clerk`, the three tools, and the model's script.
    pub(crate) fn new(definition: &str, script: &str) -> FixtureOptions {
        let folder = temporary_folder();
        let tools = tools(folder.path().join("ledger"));
        let settings = Settings {
            grace: Duration::from_millis(50),
            reload_interval: Duration::from_millis(50),
            ..Settings::named("runtime")
        };
        let plan = FixtureOptions { folder, models: scripted(script), tools, settings };
        plan.define("clerk.yaml", &format!("name: clerk\n{definition}"));
        plan
    }

    /// Writes a definition.
    pub(crate) fn define(&self, file: &str, text: &str) {
        define(self.folder.path(), file, text);
    }

    /// Opens the file, registers definitions and tools, and starts the runtime.
    pub(crate) async fn open(self) -> RuntimeFixture {
        let catalog = Catalog::new(self.folder.path(), self.tools.clone());
        self.open_with(catalog).await
    }

    /// Opens the file and starts the runtime with another catalog.
    pub(crate) async fn open_with(self, catalog: Catalog) -> RuntimeFixture {
        let abide = Abide::open(self.folder.path().join("abide.db")).expect("the file opens");
        self.start(abide, catalog).await
    }

    /// Starts the runtime on a file that is open.
    pub(crate) async fn open_file(self, abide: Abide) -> RuntimeFixture {
        let catalog = Catalog::new(self.folder.path(), self.tools.clone());
        self.start(abide, catalog).await
    }

    async fn start(self, abide: Abide, catalog: Catalog) -> RuntimeFixture {
        let FixtureOptions { folder, models, tools, settings } = self;
        let runtime = Runtime::new(abide.clone(), models, tools, catalog, settings);
        let problems = runtime.problems();
        let metrics = runtime.metrics();
        runtime.register().await.expect("it is registered");
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            runtime.run(stopped).await.expect("the runtime runs");
        });
        RuntimeFixture { folder, abide, problems, metrics, stop, runtime: Some(task) }
    }
}

/// A temporary folder, in memory where there is room: a process that is killed leaves there what it leaves on a disk, and
/// nothing waits for a disk.
pub(crate) fn temporary_folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).map_or(0, |it| it.f_bavail.saturating_mul(it.f_frsize));
    let folder = if room >= ROOM { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    folder.expect("a temporary folder")
}

/// Bytes that the tests of this binary may need at a time.
const ROOM: u64 = 2 << 30;

/// Writes a definition into an agent folder atomically.
pub(crate) fn define(folder: &Path, file: &str, text: &str) {
    let agents = folder.join("agents");
    std::fs::create_dir_all(&agents).expect("the folder can be created");
    let beside = folder.join("being-written");
    std::fs::write(&beside, text).expect("the file can be written");
    std::fs::rename(&beside, agents.join(file)).expect("the file can be written");
}

impl RuntimeFixture {
    /// Starts a runtime with one agent, `clerk`, and the model's script.
    pub(crate) async fn start(definition: &str, script: &str) -> RuntimeFixture {
        let fixture = FixtureOptions::new(definition, script).open().await;
        assert_eq!(*fixture.problems.borrow(), [], "every file is valid");
        fixture
    }

    /// Starts a run in a new session.
    pub(crate) async fn begin(&self, input: &str) -> Run {
        let session = CreateSession::new("clerk").id("s1");
        self.abide.call(session).await.expect("it is created");
        let run = StartRun::new("s1").id("r1").input(input);
        self.abide.call(run).await.expect("the run starts").into_inner()
    }

    /// The events of a run up to the end of a turn, one per line. The number of chunks of an answer depends on
    /// timing, so they are joined.
    pub(crate) async fn output(&self, run_id: &str, after: i64) -> (String, AgentEvent) {
        let mut events = RunEvents::subscribe(&self.abide, run_id, after)
            .await
            .expect("the subscription starts");
        let mut output = String::new();
        let mut text = String::new();
        loop {
            let event =
                events.next().await.expect("the stream continues").expect("the turn has an end");
            if event.kind == RunEventKind::Token {
                text.push_str(event.data["content"].as_str().expect("it is text"));
                continue;
            }
            if !text.is_empty() {
                writeln!(output, "{} says {text:?}", event.turn)
                    .expect("writing to a string succeeds");
                text.clear();
            }
            let data = without_random_ids(event.data.clone());
            writeln!(output, "{} {} {data}", event.turn, event.kind)
                .expect("writing to a string succeeds");
            if event.ends_turn() {
                return (output, event);
            }
        }
    }

    /// The session's messages, one per line.
    pub(crate) async fn transcript(&self) -> String {
        transcript(&self.abide).await
    }

    /// Waits until a query has a row.
    pub(crate) async fn until(&self, sql: &str) {
        let mut rows = self.abide.subscribe(sql).await.expect("the subscription starts");
        while let Some(Ok(_)) = rows.next().await {
            if rows.rows().len() > 0 {
                return;
            }
        }
        panic!("the database was closed before a row appeared: {sql}");
    }

    pub(crate) fn ledger(&self) -> Vec<String> {
        ledger(&self.folder.path().join("ledger"))
    }

    /// Stops the runtime and closes the file.
    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        let runtime = self.runtime.take().expect("the runtime runs");
        runtime.await.expect("the task succeeds");
        self.abide.close().await;
    }
}

/// The messages of session `s1`, one per line.
pub(crate) async fn transcript(abide: &Abide) -> String {
    let sql = "SELECT * FROM agent_state WHERE session_id = 's1' ORDER BY id";
    let entries: Vec<AgentState> = abide.sql(sql).fetch().await.expect("the query succeeds");
    let mut text = String::new();
    for entry in entries {
        let data = entry.data.as_ref().map(Json::value).unwrap_or_default();
        let calls: Vec<String> = data["calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| format!("{} {}", call["call_id"], call["name"]))
            .collect();
        let content = entry.content.unwrap_or_default();
        let answers = data["call_id"].as_str().map(|id| format!(" [{id}]")).unwrap_or_default();
        writeln!(text, "{}{answers}: {content} {}", entry.role, calls.join(", "))
            .expect("writing to a string succeeds");
    }
    text
}

/// The data of an event without the ids of approvals, which are random.
fn without_random_ids(mut data: Value) -> Value {
    if let Some(fields) = data.as_object_mut() {
        fields.remove("approval_id");
        if let Some(handoff) = fields.get_mut("handoff").and_then(Value::as_object_mut) {
            handoff.remove("id");
        }
        let requests = fields.get_mut("action_requests").and_then(Value::as_array_mut);
        for request in requests.into_iter().flatten().filter_map(Value::as_object_mut) {
            request.remove("approval_id");
        }
    }
    data
}
