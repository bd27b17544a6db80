//! One file, one runtime over it, a model that answers from a script, and three tools that keep a ledger of
//! what they did.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide_agent::{AgentDefinition, AgentEvent, Catalog, Events, Runtime, Settings};
use abide_client::{Abide, AgentState, Json, NewRun, NewSession, Run, RunEventKind};
use abide_models::{Models, ModelsConfig, Script, Surroundings};
use abide_tools::{Effect, Function, ToolContext, Tools};
use schemars::JsonSchema;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What a tool is called with.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Order {
    /// Which order.
    order: String,
}

/// The tools: `look` changes nothing, `note` may run twice, `pay` must not.
pub(crate) fn tools(ledger: PathBuf) -> Tools {
    let tools = Tools::new();
    for (name, effect) in
        [("look", Effect::ReadOnly), ("note", Effect::Idempotent), ("pay", Effect::AtMostOnce)]
    {
        let ledger = ledger.clone();
        let run = move |order: Order, _: ToolContext| {
            let ledger = ledger.clone();
            async move {
                enter(&ledger, &format!("{name} {}", order.order));
                Ok::<_, String>(format!("{name} {} is done", order.order))
            }
        };
        let function = Function::new(name, "Does something with an order.", run).effect(effect);
        tools.add(function).expect("the tool is one");
    }
    tools
}

/// Notes on the disk that a tool did something.
fn enter(ledger: &Path, what: &str) {
    let file = OpenOptions::new().create(true).append(true).open(ledger);
    let mut file = file.expect("the ledger can be opened");
    writeln!(file, "{what}").expect("the ledger takes it");
    file.sync_all().expect("the disk takes it");
}

/// What the tools did.
pub(crate) fn ledger(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A runtime over a file, on its own task.
pub(crate) struct House {
    pub(crate) folder: TempDir,
    pub(crate) abide: Abide,
    stop: CancellationToken,
    runtime: Option<JoinHandle<()>>,
}

/// A runtime as it is in all tests.
pub(crate) fn runtime(abide: &Abide, folder: &Path, script: &str, lease: Duration) -> Runtime {
    let surroundings = Surroundings::of_process();
    let mut models = Models::new(ModelsConfig::default(), &surroundings).expect("nothing is wrong");
    let script = Script::from_text(script).expect("the script is one").named("script");
    models
        .add(Arc::new(script), vec!["scripted".to_owned()], 0)
        .expect("nothing else has its name");
    let tools = tools(folder.join("ledger"));
    let catalog = Catalog::new(folder, tools.clone());
    let settings = Settings { lease, ..Settings::named("house") };
    Runtime::new(abide.clone(), models, tools, catalog, settings)
}

impl House {
    /// With one agent, `clerk`, and what the model answers.
    pub(crate) async fn of(definition: &str, script: &str) -> House {
        let folder = tempfile::tempdir().expect("there is room");
        let agents = folder.path().join("agents");
        std::fs::create_dir_all(&agents).expect("there is room");
        let definition = format!("name: clerk\n{definition}");
        AgentDefinition::from_yaml(&definition).expect("the definition is one");
        std::fs::write(agents.join("clerk.yaml"), definition).expect("there is room");
        let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
        let runtime = runtime(&abide, folder.path(), script, Duration::from_secs(10));
        let problems = runtime.register().await.expect("it is registered");
        assert_eq!(problems, [], "every file is a definition");
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            runtime.run(stopped).await.expect("it runs");
        });
        House { folder, abide, stop, runtime: Some(task) }
    }

    /// Begins a run of a new session.
    pub(crate) async fn begin(&self, input: &str) -> Run {
        let session = NewSession { id: Some("s1".to_owned()), ..NewSession::of("clerk") };
        self.abide.create_session(session).await.expect("it is made");
        let run = NewRun { id: Some("r1".to_owned()), ..NewRun::of("s1").input(input) };
        self.abide.start_run(run).await.expect("it begins").into_inner()
    }

    /// What a run tells until a turn of it ends, a line each. How many pieces an answer comes in is the
    /// disk's to say: here they are one.
    pub(crate) async fn told(&self, run_id: &str, after: i64) -> (String, AgentEvent) {
        let mut events = Events::of(&self.abide, run_id, after).await.expect("it can be followed");
        let (mut told, mut said) = (String::new(), String::new());
        loop {
            let event = events.next().await.expect("it goes on").expect("the turn has an end");
            if event.kind == RunEventKind::Token {
                said.push_str(event.data["content"].as_str().expect("it is text"));
                continue;
            }
            if !said.is_empty() {
                writeln!(told, "{} says {said:?}", event.turn).expect("a string takes it");
                said.clear();
            }
            writeln!(told, "{} {} {}", event.turn, event.kind, event.data)
                .expect("a string takes it");
            if event.ends_turn() {
                return (told, event);
            }
        }
    }

    /// The session's messages, a line each.
    pub(crate) async fn transcript(&self) -> String {
        transcript(&self.abide).await
    }

    pub(crate) fn ledger(&self) -> Vec<String> {
        ledger(&self.folder.path().join("ledger"))
    }

    /// Ends the runtime, and closes the file.
    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        let runtime = self.runtime.take().expect("it runs");
        runtime.await.expect("it ends well");
        self.abide.close().await;
    }
}

/// The messages of session `s1`, a line each.
pub(crate) async fn transcript(abide: &Abide) -> String {
    let sql = "SELECT * FROM agent_state WHERE session_id = 's1' ORDER BY id";
    let entries: Vec<AgentState> = abide.sql(sql).fetch().await.expect("it can be read");
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
            .expect("a string takes it");
    }
    text
}
