//! Sessions that repeat recordings in a small window, and what their requests took.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use abide_agent::{
    AgentConfig, AgentDefinition, Catalog, ContextOverrides, CustomProfile, Limits,
    MemoryOverrides, Profile, RunEvents, Runtime, Settings, WatchdogOverrides,
};
use abide_client::Abide;
use abide_client::arguments::{AppendMessage, CreateSession, StartRun};
use abide_client::rows::Run;
use abide_models::{
    ConfigContext, ModelMessage, Models, ModelsConfig, RequestPurpose, TokenEstimate,
};
use abide_tools::{Effect, Function, Invocation, ToolDeclaration, ToolOutcome, Tools};
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::model::{RecordedModel, SeenRequest};
use super::recordings::Recording;

/// The duration of the requests of a session.
#[derive(Debug)]
pub(crate) struct SessionFigures {
    id: String,
    /// Its window in tokens.
    pub(crate) window: u64,
    /// The tokens of each request for an answer.
    pub(crate) answers: Vec<u64>,
    /// The tokens of each request for a summary.
    pub(crate) summaries: Vec<u64>,
    /// The tokens of all requests, if each had the whole conversation.
    pub(crate) without: u64,
    /// The time between two answers, in microseconds.
    pub(crate) turn_us: Vec<f64>,
    expected_answers: usize,
    /// Whether a request has the first task.
    has_task: bool,
    /// The later requests that do not have it.
    without_task: usize,
    error: Option<String>,
}

impl SessionFigures {
    /// Why something that must hold does not.
    pub(crate) fn check(&self) -> Result<(), String> {
        let id = &self.id;
        let window = self.window;
        let largest = self.answers.iter().chain(&self.summaries).max().copied().unwrap_or(0);
        if let Some(error) = &self.error {
            return Err(format!("{id}: a run failed: {error}"));
        }
        if largest > window {
            return Err(format!("{id}: a request has {largest} tokens, and the window {window}"));
        }
        if self.without_task > 0 {
            return Err(format!("{id}: {} requests do not have the task", self.without_task));
        }
        if !self.has_task {
            return Err(format!("{id}: no request has the task"));
        }
        let asked = self.answers.len();
        let expected = self.expected_answers;
        if asked == expected {
            Ok(())
        } else {
            Err(format!("{id}: {asked} requests for {expected} recorded answers"))
        }
    }

    /// The largest request, as a share of the window.
    pub(crate) fn largest_share(&self) -> f64 {
        let largest = self.answers.iter().chain(&self.summaries).max().copied().unwrap_or(0);
        largest as f64 / self.window as f64
    }
}

/// Concurrent sessions.
const AT_ONCE: usize = 16;

/// Repeats recordings, each in a session of its own.
pub(crate) async fn repeat_all(dir: &Path, recordings: &[Recording]) -> Vec<SessionFigures> {
    let folder = TempDir::new_in(dir).expect("a folder for the files");
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let ids: Vec<String> = (0..recordings.len()).map(|at| format!("c{at}")).collect();
    let named = ids.iter().zip(recordings);
    let tasks = named.clone().map(|(id, it)| {
        let task = it.task().expect("recordings without a task are omitted");
        (id.clone(), task.to_owned())
    });
    let conversations = named.clone().map(|(id, it)| {
        let mut conversation = it.conversation.clone();
        conversation.id.clone_from(id);
        conversation
    });
    let model = RecordedModel::new(conversations.collect(), tasks.collect());
    let tools = recorded_tools(named.clone());
    let mut models = Models::new(ModelsConfig::default(), &ConfigContext::of_process())
        .expect("the configuration is valid");
    models.add(Arc::new(model.clone()), Vec::new(), 0).expect("the id is unique");
    let catalog = Catalog::new(folder.path(), tools.clone());
    let runtime = Runtime::new(abide.clone(), models, tools, catalog, Settings::named("bench"));
    runtime.register().await.expect("the tools are registered");
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let driving =
        tokio::spawn(async move { runtime.run(stopped).await.expect("the runtime runs") });
    let sessions: Vec<_> =
        named.map(|(id, recording)| repeat(&abide, &model, id, recording)).collect();
    let figures = stream::iter(sessions).buffered(AT_ONCE).collect().await;
    stop.cancel();
    driving.await.expect("the task succeeds");
    abide.close().await;
    figures
}

/// The id of a call: that of the run, the number of the answer, and its position.
fn call_id(session: &str, turn: usize, answer: usize, position: usize) -> String {
    format!("{session}-{turn}~{answer}.{position}")
}

/// Tools with all names that are called. They return the recorded results.
fn recorded_tools<'a>(recordings: impl Iterator<Item = (&'a String, &'a Recording)>) -> Tools {
    let mut results = HashMap::<String, ToolOutcome>::new();
    let mut names = BTreeSet::new();
    for (id, recording) in recordings {
        for message in &recording.conversation.messages {
            if let ModelMessage::Assistant { calls, .. } = message {
                names.extend(calls.iter().map(|call| call.name.clone()));
            }
        }
        for (turn, it) in recording.turns.iter().enumerate() {
            for (answer, outcomes) in it.results.iter().enumerate() {
                for (position, outcome) in outcomes.iter().enumerate() {
                    let id = call_id(id, turn + 1, answer + 1, position + 1);
                    results.insert(id, outcome.clone());
                }
            }
        }
    }
    let tools = Tools::new();
    let results = Arc::new(results);
    for name in names {
        let mut declaration = ToolDeclaration::new(&name, "As it was recorded.", json!({}));
        declaration.effect = Effect::ReadOnly;
        let results = Arc::clone(&results);
        let returns = Function::untyped(declaration, move |invocation: Invocation| {
            let outcome = results.get(&invocation.call_id).cloned();
            async move { outcome.expect("each call has a result") }
        });
        tools.add(returns).expect("it is a tool");
    }
    tools
}

/// Repeats a recording.
async fn repeat(
    abide: &Abide,
    model: &RecordedModel,
    id: &str,
    recording: &Recording,
) -> SessionFigures {
    let window = window(recording);
    let definition = definition(id, recording, window);
    abide.call(definition.to_register()).await.expect("the agent is valid");
    abide.call(CreateSession::new(id).id(id)).await.expect("it is created");
    let mut error = None;
    for (number, turn) in recording.turns.iter().enumerate() {
        for said in &turn.says {
            let (role, text) = match said {
                ModelMessage::System { text } => ("system", text),
                ModelMessage::User { text } => ("user", text),
                other => panic!("unexpected message {other:?}"),
            };
            let message = AppendMessage::new(id, role, text.as_str());
            abide.call(message).await.expect("the message is appended");
        }
        let run = format!("{id}-{}", number + 1);
        abide.call(StartRun::new(id).id(&run)).await.expect("the run starts");
        let mut events =
            RunEvents::subscribe(abide, &run, 0).await.expect("the subscription starts");
        while events.next().await.expect("the stream continues").is_some() {}
        let sql = "SELECT * FROM runs WHERE id = :id";
        let ended: Vec<Run> = abide.sql(sql).param("id", &run).fetch().await.expect("it is read");
        error = ended[0].error_code.as_ref().map(|code| {
            format!("{run} {code}: {}", ended[0].error_message.as_deref().unwrap_or_default())
        });
        if error.is_some() {
            break;
        }
    }
    let seen = model.seen(id);
    let requests_for = |purpose: RequestPurpose| -> Vec<SeenRequest> {
        seen.iter().filter(|it| it.purpose == purpose).copied().collect()
    };
    let answers = requests_for(RequestPurpose::Answer);
    let summaries = requests_for(RequestPurpose::Summary);
    SessionFigures {
        id: recording.conversation.id.clone(),
        window,
        without: without(recording, answers.first().map_or(0, |it| it.around)),
        has_task: answers.iter().any(|it| it.has_task),
        // A conversation may begin with the model.
        without_task: answers
            .iter()
            .skip_while(|it| !it.has_task)
            .filter(|it| !it.has_task)
            .count(),
        answers: answers.iter().map(|it| it.tokens).collect(),
        summaries: summaries.iter().map(|it| it.tokens).collect(),
        turn_us: turn_times(abide, id).await,
        expected_answers: recording.conversation.answers(),
        error,
    }
}

/// The times between two answers, in microseconds.
async fn turn_times(abide: &Abide, session: &str) -> Vec<f64> {
    let sql = "SELECT created_at FROM agent_state WHERE session_id = :sid AND role = 'assistant' \
               ORDER BY id";
    let times: Vec<(i64,)> = abide.sql(sql).param("sid", session).fetch().await.expect("read");
    times.windows(2).map(|pair| (pair[1].0 - pair[0].0) as f64).collect()
}

/// The tokens of all requests, if each had the whole conversation.
fn without(recording: &Recording, around: u64) -> u64 {
    let estimate = TokenEstimate::for_model("recorded");
    let mut before = around;
    let mut sum = 0;
    for message in &recording.conversation.messages {
        if matches!(message, ModelMessage::Assistant { .. }) {
            sum += before;
        }
        before += estimate.message(message);
    }
    sum
}

/// A small window that has room for what always stays: twice the instructions, the system messages, two messages of the
/// user and an answer.
fn window(recording: &Recording) -> u64 {
    let estimate = TokenEstimate::for_model("recorded");
    let mut always = estimate.text(recording.conversation.system.as_deref().unwrap_or_default());
    let mut user = 0;
    let mut answer = 0;
    for message in &recording.conversation.messages {
        let tokens = estimate.message(message);
        match message {
            ModelMessage::System { .. } => always += tokens,
            ModelMessage::User { .. } => user = tokens.max(user),
            ModelMessage::Assistant { .. } => answer = tokens.max(answer),
            ModelMessage::Tool { .. } => {}
        }
    }
    // The declarations of the tools take some space as well.
    (2 * (always + 2 * user + answer) + 4_000).max(8_000)
}

/// The agent of a recording: its instructions, and a model with its name.
fn definition(id: &str, recording: &Recording, window: u64) -> AgentDefinition {
    let trigger = window * 3 / 4;
    AgentDefinition {
        name: id.to_owned(),
        tools: vec!["*".to_owned()],
        config: AgentConfig {
            model: Some(id.to_owned()),
            recursion_limit: Some(1_000_000),
            ..AgentConfig::default()
        },
        limits: Limits { tool_calls: Some(1_000_000), ..Limits::default() },
        profile: Some(Profile::Custom(Box::new(CustomProfile {
            context: ContextOverrides {
                window_tokens: Some(window),
                compact_above_tokens: Some(trigger),
                compact_to_tokens: Some(trigger / 2),
                summary_token_limit: Some(trigger / 16),
                chunk_tokens: Some(trigger / 4),
                ..ContextOverrides::default()
            },
            memory: MemoryOverrides { enabled: Some(false), ..MemoryOverrides::default() },
            watchdog: WatchdogOverrides { enabled: Some(false), ..WatchdogOverrides::default() },
            ..CustomProfile::default()
        }))),
        instructions: recording.conversation.system.clone(),
        ..AgentDefinition::default()
    }
}
