//! A driver continues before its step is durable, and waits before the next effect. The disk of these tests is slow.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use abide_client::{Abide, Config, Seq};
use abide_engine::Engine;
use abide_models::{ModelProvider, ModelRequest, ModelStream};
use abide_tests::disk::HookedDisk;
use abide_tools::{Effect, Function, Invocation, Tool, ToolContext, ToolDeclaration, ToolOutcome};
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::fixture::{FixtureOptions, answering};
use crate::scripted_model::Walker;

/// The effects of a run so far: their names, and the last event that was durable when they began.
#[derive(Debug, Default)]
struct Effects(Mutex<Vec<(&'static str, Seq)>>, Condvar);

impl Effects {
    fn add(&self, name: &'static str, durable: Seq) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name, durable));
        self.1.notify_all();
    }

    fn all(&self) -> Vec<(&'static str, Seq)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How long a sync takes.
#[derive(Clone, Copy, Debug)]
enum Sync {
    /// This long.
    For(Duration),
    /// After the first request to the model: until the next effect, and a minute at most.
    UntilNextEffect,
}

/// A disk whose syncs take a time.
fn slow_disk(effects: &Arc<Effects>, sync: Sync) -> HookedDisk {
    let effects = Arc::clone(effects);
    HookedDisk::new(move || {
        let begun = effects.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (longest, many) = match sync {
            Sync::For(time) => (time, usize::MAX),
            Sync::UntilNextEffect => (Duration::from_secs(60), 2),
        };
        drop(
            effects.1.wait_timeout_while(begun, longest, |begun| (1..many).contains(&begun.len())),
        );
        Ok(())
    })
}

/// A model that calls the tool `read` once, and records when it is asked.
struct Model {
    walker: Walker,
    engine: Engine,
    effects: Arc<Effects>,
}

impl ModelProvider for Model {
    fn id(&self) -> &str {
        self.walker.id()
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        self.effects.add("model", self.engine.durable_seq());
        self.walker.stream(request)
    }
}

#[derive(Deserialize, JsonSchema)]
struct Page {
    #[expect(dead_code, reason = "the model sends it")]
    page: usize,
}

/// A tool of another process, which learns the id of each call.
struct RemoteTool(Function);

impl Tool for RemoteTool {
    fn declaration(&self) -> &ToolDeclaration {
        self.0.declaration()
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'static, ToolOutcome> {
        self.0.run(invocation)
    }
}

/// The effects of a run with a tool of this effect, and whether the message that each depends on was durable when it began.
async fn effects(effect: Effect, is_local: bool, sync: Sync) -> Vec<(&'static str, bool)> {
    let mut options = FixtureOptions::new("tools: [read]\n", "answers: []\n");
    let effects = Arc::new(Effects::default());
    let mut config: abide_engine::Config = Config::default().into();
    config.tuning.disk = Arc::new(slow_disk(&effects, sync));
    let file = options.folder.path().join("abide.db");
    let engine = Engine::open(file, config).expect("the file opens");
    let walker = Walker::new(1);
    let own = Arc::clone(&effects);
    options.models = answering(Model { walker, engine: engine.clone(), effects: own });
    let tool = Arc::clone(&effects);
    let reader = engine.clone();
    let read = move |_: Page, _: ToolContext| {
        tool.add("tool", reader.durable_seq());
        async { Ok::<_, String>("read".to_owned()) }
    };
    let read = Function::new("read", "Reads a page.", read).effect(effect);
    let added =
        if is_local { options.tools.add(read) } else { options.tools.add(RemoteTool(read)) };
    added.expect("the tool is valid");
    let fixture = options.open_file(Abide::embed(engine)).await;
    let run = fixture.begin("Read.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.kind.as_str(), "done");
    let written = "SELECT seq FROM agent_state WHERE session_id = 's1' ORDER BY id";
    let messages: Vec<(Seq,)> = fixture.abide.sql(written).fetch().await.expect("it is read");
    fixture.close().await;
    // The task, the answer with the call, the result, and the last answer.
    let needed = effects.all().into_iter().zip(messages);
    needed.map(|((name, durable), (seq,))| (name, durable >= seq)).collect()
}

#[tokio::test]
async fn a_tool_that_only_reads_runs_while_its_claim_is_synced() {
    let found = effects(Effect::ReadOnly, true, Sync::UntilNextEffect).await;
    assert_eq!(found, [("model", true), ("tool", false), ("model", true)]);
}

#[tokio::test]
async fn other_tools_and_models_wait_for_the_disk() {
    // A server could have stored the result of a call under an id that another call has after a crash.
    for (effect, is_local) in [(Effect::AtMostOnce, true), (Effect::ReadOnly, false)] {
        let found = effects(effect, is_local, Sync::For(Duration::from_millis(20))).await;
        assert_eq!(found, [("model", true), ("tool", true), ("model", true)], "{effect:?}");
    }
}
