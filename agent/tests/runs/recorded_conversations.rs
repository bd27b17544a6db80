//! Runs every recorded conversation through the real runtime and a real file: user messages, model answers and tool
//! results come from the recording. The stored messages must equal the recording.
//!
//! The following differences are intended, and are counted:
//! - Arguments that are not JSON reach no tool. The model gets an error (one recorded agent wrote Python).
//! - A placeholder in a tool's name (`${shell}`) loses its punctuation, because providers reject such names.
//! - A call without a recorded result is still running when its run is aborted.

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_agent::{
    AgentConfig, AgentDefinition, Catalog, ContextOverrides, CustomProfile, Limits,
    MemoryOverrides, PauseRule, Profile, RunEvents, Runtime, Settings, WatchdogOverrides,
};
use abide_client::arguments::{
    AbortRun, AppendMessage, CreateSession, NewMemory, ResumeRun, SaveMemories, StartRun,
};
use abide_client::rows::{AgentState, PauseStage};
use abide_client::{Abide, Json};
use abide_models::{
    ConfigContext, Conversation, ModelCall, ModelError, ModelErrorKind, ModelMessage,
    ModelProvider, ModelRequest, ModelStream, Models, ModelsConfig, Replay, read_conversations,
};
use abide_tools::{Effect, Failure, Function, Invocation, ToolDeclaration, ToolOutcome, Tools};
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::fixture::temporary_folder;

/// Number of concurrent conversations, which share commits.
const AT_ONCE: usize = 40;

/// Of the unpublished recordings, every n-th is run, unless all are requested.
const EVERY: usize = 30;

/// Environment variable that requests all of them.
const ALL: &str = "ABIDE_ALL_RECORDINGS";

/// Counters of a test run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReplayCounts {
    conversations: usize,
    answers: usize,
    results: usize,
    /// Calls whose arguments are not JSON.
    unread: usize,
    /// Runs that ended with an unanswered call.
    unanswered: usize,
    /// How often an agent has read its facts.
    reads: usize,
}

impl std::ops::AddAssign for ReplayCounts {
    fn add_assign(&mut self, other: ReplayCounts) {
        self.conversations += other.conversations;
        self.answers += other.answers;
        self.results += other.results;
        self.unread += other.unread;
        self.unanswered += other.unanswered;
        self.reads += other.reads;
    }
}

/// One run of a conversation.
#[derive(Default)]
struct Turn {
    /// The messages before the model answers.
    inputs: Vec<ModelMessage>,
    /// The results of the tools, by call id.
    results: Vec<(String, ToolOutcome)>,
    /// The unanswered call.
    open: Option<String>,
    answers: i64,
}

/// Role of an error that the loop returns instead of a tool result; only its beginning is compared.
const REFUSED: &str = "refused";

/// A message in the compared form: role, text and calls.
type Row = (String, String, Vec<(String, String, String)>);

/// Splits a conversation into runs. A run starts when the model answers after another party's message, or answers
/// again.
fn turns(session: &str, conversation: &Conversation) -> Vec<Turn> {
    let mut turns = vec![Turn::default()];
    for (at, message) in conversation.messages.iter().enumerate() {
        let number = turns.len();
        let turn = turns.last_mut().expect("there is at least one");
        match message {
            ModelMessage::Assistant { calls, .. } => {
                turn.answers += 1;
                let paired = conversation.results(at);
                for (place, result) in paired.into_iter().enumerate() {
                    let id = format!("{session}-{number}~{}.{}", turn.answers, place + 1);
                    match result.map(outcome) {
                        Some(outcome) => turn.results.push((id, outcome)),
                        None => drop(turn.open.get_or_insert(id)),
                    }
                }
                if calls.is_empty() || turn.open.is_some() {
                    turns.push(Turn::default());
                }
            }
            ModelMessage::Tool { .. } => {}
            message => {
                if turn.answers > 0 {
                    turns.push(Turn::default());
                }
                turns.last_mut().expect("there is at least one").inputs.push(message.clone());
            }
        }
    }
    turns.retain(|turn| turn.answers > 0 || !turn.inputs.is_empty());
    turns
}

fn outcome(result: &ModelMessage) -> ToolOutcome {
    match result {
        ModelMessage::Tool { content, is_error: true, .. } => {
            ToolOutcome::failed(Failure::Tool, content)
        }
        ModelMessage::Tool { content, .. } => ToolOutcome::text(content),
        other => panic!("{other:?} is not a result"),
    }
}

/// A replay without an answer where the next recorded message is not the model's.
struct Strict {
    replay: Replay,
    by_id: HashMap<String, Vec<bool>>,
}

impl Strict {
    fn new(conversations: Vec<Conversation>) -> Strict {
        let spoken = |conversation: &Conversation| {
            let messages = conversation.messages.iter();
            let spoken = messages.filter(|it| !matches!(it, ModelMessage::Tool { .. }));
            spoken.map(|it| matches!(it, ModelMessage::Assistant { .. })).collect()
        };
        let by_id = conversations.iter().map(|it| (it.id.clone(), spoken(it))).collect();
        Strict { replay: Replay::new("replay", conversations), by_id }
    }
}

impl ModelProvider for Strict {
    fn id(&self) -> &str {
        "replay"
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let messages = request.messages.iter();
        let spoken = messages.filter(|it| !matches!(it, ModelMessage::Tool { .. })).count();
        match self.by_id.get(&request.model).and_then(|answers| answers.get(spoken)) {
            Some(true) => self.replay.stream(request),
            _ => {
                let silent = ModelError::new(
                    ModelErrorKind::NoRecording,
                    "the recording has no answer here",
                );
                stream::iter([Err(silent)]).boxed()
            }
        }
    }
}

/// Tools with all names that are called. They return the recorded results.
fn tools(conversations: &[Conversation], results: HashMap<String, ToolOutcome>) -> Tools {
    let tools = Tools::new();
    let results = Arc::new(results);
    let names: BTreeSet<&str> = calls_of(conversations).map(|call| call.name.as_str()).collect();
    for name in names {
        let mut declaration = ToolDeclaration::new(name, "As it was recorded.", json!({}));
        declaration.effect = Effect::ReadOnly;
        let results = Arc::clone(&results);
        let gives = Function::untyped(declaration, move |invocation: Invocation| {
            let given = results.get(&invocation.call_id).cloned();
            async move {
                match given {
                    Some(given) => given,
                    None => std::future::pending().await,
                }
            }
        });
        tools.add(gives).expect("it is a tool");
    }
    tools
}

fn calls_of(conversations: &[Conversation]) -> impl Iterator<Item = &ModelCall> {
    conversations.iter().flat_map(|it| &it.messages).flat_map(|message| match message {
        ModelMessage::Assistant { calls, .. } => calls.as_slice(),
        _ => &[],
    })
}

/// Every n-th conversation of a file, with valid tool names.
fn read(path: &Path, every: usize) -> Vec<Conversation> {
    let all = read_conversations(path).expect("the recordings can be read");
    let mut some: Vec<Conversation> = all.into_iter().step_by(every).collect();
    for message in some.iter_mut().flat_map(|it| &mut it.messages) {
        if let ModelMessage::Assistant { calls, .. } = message {
            for call in calls {
                call.name.retain(|c| !matches!(c, '$' | '{' | '}'));
            }
        }
    }
    some
}

fn is_json(arguments: &str) -> bool {
    arguments.trim().is_empty() || serde_json::from_str::<serde_json::Value>(arguments).is_ok()
}

/// The expected messages of a conversation, and the intended differences.
fn expected(conversation: &Conversation) -> (Vec<Row>, ReplayCounts) {
    let mut held = ReplayCounts { conversations: 1, ..ReplayCounts::default() };
    let mut rows: Vec<Row> = Vec::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        match message {
            ModelMessage::System { text } => rows.push(("system".into(), text.clone(), vec![])),
            ModelMessage::User { text } => rows.push(("user".into(), text.clone(), vec![])),
            ModelMessage::Tool { .. } => {}
            ModelMessage::Assistant { text, calls, .. } => {
                held.answers += 1;
                let output =
                    calls.iter().map(|it| (it.id.clone(), it.name.clone(), it.arguments.clone()));
                rows.push(("assistant".into(), text.clone(), output.collect()));
                let results = conversation.results(at);
                if results.iter().any(Option::is_none) {
                    held.unanswered += 1;
                    continue;
                }
                for (call, result) in calls.iter().zip(results) {
                    let (role, content) = match result {
                        _ if !is_json(&call.arguments) => {
                            held.unread += 1;
                            (REFUSED, format!("{}: the arguments are not JSON", call.name))
                        }
                        Some(ModelMessage::Tool { content, .. }) => ("tool", content.clone()),
                        other => panic!("{other:?} is not a result"),
                    };
                    held.results += 1;
                    rows.push((role.to_owned(), content, vec![]));
                }
            }
        }
    }
    (rows, held)
}

/// The stored messages of a session.
async fn on_record(abide: &Abide, session: &str) -> Vec<Row> {
    let sql = "SELECT * FROM agent_state WHERE session_id = :sid AND kind <> 'memory' ORDER BY id";
    let entries: Vec<AgentState> =
        abide.sql(sql).param("sid", session).fetch().await.expect("the query succeeds");
    entries
        .into_iter()
        .map(|entry| {
            let data = entry.data.as_ref().map(Json::value).unwrap_or_default();
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            let calls = data["calls"].as_array().into_iter().flatten();
            let calls = calls.map(|call| {
                (text(&call["provider_call_id"]), text(&call["name"]), text(&call["arguments"]))
            });
            (entry.role, entry.content.unwrap_or_default(), calls.collect())
        })
        .collect()
}

/// Runs a conversation.
async fn hold(abide: &Abide, session: &str, conversation: &Conversation) {
    let new = CreateSession::new(session).id(session);
    abide.call(new).await.expect("it is created");
    for (number, mut turn) in turns(session, conversation).into_iter().enumerate() {
        let input = match turn.inputs.pop() {
            Some(ModelMessage::User { text }) if turn.answers > 0 => Some(text),
            other => {
                turn.inputs.extend(other);
                None
            }
        };
        for message in turn.inputs {
            let (role, text) = match message {
                ModelMessage::System { text } => ("system", text),
                ModelMessage::User { text } => ("user", text),
                other => panic!("unexpected message {other:?}"),
            };
            abide
                .call(AppendMessage::new(session, role, text))
                .await
                .expect("the message is appended");
        }
        if turn.answers == 0 {
            continue;
        }
        let id = format!("{session}-{}", number + 1);
        let run = StartRun { input, ..StartRun::new(session).id(&id) };
        abide.call(run).await.expect("the run starts");
        if let Some(open) = turn.open {
            let sql = "SELECT call_id FROM tool_calls WHERE call_id = :id AND status = 'claimed'";
            let mut calls =
                abide.subscribe(sql).param("id", open).await.expect("the subscription starts");
            while calls.rows().len() == 0 {
                calls.try_next().await.expect("the file is open");
            }
            abide.call(AbortRun::new(&id)).await.expect("the runtime runs");
        }
        let mut events =
            RunEvents::subscribe(abide, &id, 0).await.expect("the subscription starts");
        while events.next().await.expect("the stream continues").is_some() {}
    }
}

/// Resumes every run that pauses.
async fn resume_all(abide: Abide) {
    let sql = "SELECT id, turn FROM runs WHERE status = 'waiting' AND reason = 'pause'";
    let mut paused = abide.subscribe(sql).await.expect("the subscription starts");
    while let Some(Ok(_)) = paused.next().await {
        for (id, _) in paused.typed_rows::<(String, i64)>().expect("they are rows") {
            // The rows can be older than the end of an aborted run.
            let _ = abide.call(ResumeRun::new(&id)).await;
        }
    }
}

/// Registers the agent of a conversation: its instructions, and a model with its name.
async fn register(abide: &Abide, name: &str, conversation: &Conversation, pause: &[PauseRule]) {
    let definition = AgentDefinition {
        name: name.to_owned(),
        tools: vec!["*".to_owned()],
        config: AgentConfig {
            model: Some(conversation.id.clone()),
            recursion_limit: Some(10_000),
            tool_token_limit_before_evict: Some(10_000_000),
            ..AgentConfig::default()
        },
        limits: Limits { tool_calls: Some(10_000), ..Limits::default() },
        // The replay compares whole requests.
        profile: Some(Profile::Custom(Box::new(CustomProfile {
            context: ContextOverrides {
                compaction: Some(false),
                window_tokens: Some(1_000_000_000),
                ..ContextOverrides::default()
            },
            memory: MemoryOverrides {
                namespace: Some(MEMORY.to_owned()),
                ..MemoryOverrides::default()
            },
            watchdog: WatchdogOverrides { enabled: Some(false), ..WatchdogOverrides::default() },
            ..CustomProfile::default()
        }))),
        instructions: conversation.system.clone(),
        pause: pause.to_vec(),
        ..AgentDefinition::default()
    };
    abide.call(definition.to_register()).await.expect("the agent is valid");
}

/// The memory that all agents share.
const MEMORY: &str = "recorded";

/// Facts, so that agents have something to read.
async fn remember(abide: &Abide) {
    let facts = ["order", "flight", "page"].map(|key| NewMemory {
        key: key.to_owned(),
        value: format!("Something about the {key}."),
        confidence: None,
        source_seq: None,
    });
    abide.call(SaveMemories::new(MEMORY, facts.to_vec())).await.expect("they are saved");
}

/// Runs every n-th conversation of a file, and compares the result with the recording.
async fn held(path: &Path, every: usize) -> ReplayCounts {
    held_with(path, every, &[]).await
}

/// Like [`held`], with rules that pause every run. Each pause ends at once.
async fn held_with(path: &Path, every: usize, pause: &[PauseRule]) -> ReplayCounts {
    let conversations = read(path, every);
    let folder = temporary_folder();
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let names: Vec<String> = (0..conversations.len()).map(|at| format!("c{at}")).collect();
    let results = names.iter().zip(&conversations).flat_map(|(name, it)| turns(name, it));
    let results = results.flat_map(|turn| turn.results).collect();
    let tools = tools(&conversations, results);
    let surroundings = ConfigContext::of_process();
    let mut models = Models::new(ModelsConfig::default(), &surroundings).expect("it is valid");
    let strict = Arc::new(Strict::new(conversations.clone()));
    models.add(strict, Vec::new(), 0).expect("the id is unique");
    let catalog = Catalog::new(folder.path(), tools.clone());
    let settings = Settings::named("runtime");
    let runtime = Runtime::new(abide.clone(), models, tools, catalog, settings);
    runtime.register().await.expect("the tools are registered");
    remember(&abide).await;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let driving =
        tokio::spawn(async move { runtime.run(stopped).await.expect("the runtime runs") });
    let resuming = tokio::spawn(resume_all(abide.clone()));
    let one = |(name, conversation): (String, &Conversation)| {
        let abide = abide.clone();
        let conversation = conversation.clone();
        let pause = pause.to_vec();
        async move {
            register(&abide, &name, &conversation, &pause).await;
            hold(&abide, &name, &conversation).await;
            compare(&on_record(&abide, &name).await, &conversation)
        }
    };
    let ones: Vec<_> = names.into_iter().zip(&conversations).map(one).collect();
    let mut sum = ReplayCounts::default();
    let mut holding = stream::iter(ones).buffer_unordered(AT_ONCE);
    while let Some(held) = holding.next().await {
        sum += held;
    }
    stop.cancel();
    driving.await.expect("the task succeeds");
    resuming.abort();
    let sql = "SELECT count(*) FROM agent_state WHERE kind = 'memory'";
    let reads: Vec<(i64,)> = abide.sql(sql).fetch().await.expect("they are counted");
    sum.reads = usize::try_from(reads[0].0).expect("a count");
    abide.close().await;
    sum
}

fn compare(found: &[Row], conversation: &Conversation) -> ReplayCounts {
    let (rows, held) = expected(conversation);
    for (at, (found, row)) in found.iter().zip(&rows).enumerate() {
        let same = match row.0.as_str() {
            REFUSED => found.0 == "tool" && found.1.starts_with(&row.1),
            _ => found == row,
        };
        assert!(same, "{} at {at}: {found:?}, not {row:?}", conversation.id);
    }
    assert_eq!(found.len(), rows.len(), "{}", conversation.id);
    held
}

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

#[tokio::test]
async fn every_conversation_of_the_fixture_is_reproduced() {
    let held = held(&in_repository("tests/fixtures/conversations.jsonl.zst"), 1).await;
    println!("{held:?}");
    assert_eq!((held.conversations, held.answers, held.reads), (24, 326, READS));
}

/// How often the agents of the fixture read their facts: once for each run.
const READS: usize = 163;

/// Resuming equals never having paused.
#[tokio::test]
async fn every_conversation_is_reproduced_with_a_pause_at_every_stage() {
    use PauseStage::{AfterAgent, AfterLoop, AfterTools, BeforeGuardrails};
    let rules = [BeforeGuardrails, AfterAgent, AfterTools, AfterLoop].map(|at| PauseRule {
        at,
        tools: Vec::new(),
        iteration: None,
        tokens: None,
    });
    let held = held_with(&in_repository("tests/fixtures/conversations.jsonl.zst"), 1, &rules).await;
    assert_eq!((held.conversations, held.answers, held.reads), (24, 326, READS));
    let Some(folder) = conversations() else { return };
    for path in std::fs::read_dir(folder).expect("the folder can be read") {
        held_with(&path.expect("the folder can be read").path(), 6 * EVERY, &rules).await;
    }
}

/// The unpublished conversations. Without them it says so past the capture of the test harness.
fn conversations() -> Option<PathBuf> {
    let folder = abide_tests::recordings().map(|data| data.join("conversations"));
    if folder.is_none() {
        let why = "skipped: unpublished recordings of conversations (ABIDE_EXTERNAL_FIXTURES)";
        writeln!(std::io::stdout(), "{why}").expect("stdout can be written");
    }
    folder
}

#[tokio::test]
async fn unpublished_conversations_are_reproduced() {
    let Some(folder) = conversations() else { return };
    let every = if std::env::var_os(ALL).is_some() { 1 } else { EVERY };
    let entries = std::fs::read_dir(folder).expect("the folder can be read");
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    let mut sum = ReplayCounts::default();
    for path in paths {
        sum += held(&path, every).await;
    }
    println!("every {every}: {sum:?}");
    match every {
        1 => assert_eq!((sum.conversations, sum.answers), (1_734, 22_577)),
        _ => assert!(sum.conversations >= 1_734 / EVERY, "{sum:?}"),
    }
}
