//! Every recorded conversation, held again by the real runtime over a real file: the user says what it said, the
//! model answers what it answered, each tool gives what it gave. What is on record then is what was recorded.
//!
//! Where a recording holds what the loop does not do, the difference is told, counted and held to:
//! - arguments that are no JSON reach no tool: the model is told so (one of the recorded agents wrote Python there);
//! - a placeholder in a tool's name (`${shell}`) loses its signs: no provider takes such a name;
//! - a call that was never answered is one that still runs when its run is aborted.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_agent::{
    AgentConfig, AgentDefinition, Catalog, Limits, Runtime, Settings, until_turn_ends,
};
use abide_client::{Abide, AgentState, Json, Message, NewRun, NewSession};
use abide_models::{
    Conversation, ModelCall, ModelError, ModelErrorKind, ModelMessage, ModelProvider, ModelRequest,
    ModelStream, Models, ModelsConfig, Replay, Surroundings, read_conversations,
};
use abide_tools::{Effect, Failure, Function, Invocation, ToolDeclaration, ToolOutcome, Tools};
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Conversations that are held at once: they share commits.
const AT_ONCE: usize = 40;

/// Of the recordings beside this repository every so many is held, unless all are asked for.
const EVERY: usize = 30;

/// Asks for all of them.
const ALL: &str = "ABIDE_ALL_RECORDINGS";

/// What was held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    conversations: usize,
    answers: usize,
    results: usize,
    /// Calls whose arguments are no JSON.
    unread: usize,
    /// Runs that ended with a call that was never answered.
    unanswered: usize,
}

impl std::ops::AddAssign for Held {
    fn add_assign(&mut self, other: Held) {
        self.conversations += other.conversations;
        self.answers += other.answers;
        self.results += other.results;
        self.unread += other.unread;
        self.unanswered += other.unanswered;
    }
}

/// One run of a conversation.
#[derive(Default)]
struct Turn {
    /// What is said before the model answers.
    says: Vec<ModelMessage>,
    /// What the tools give, by the id of the call.
    results: Vec<(String, ToolOutcome)>,
    /// The call that is never answered.
    open: Option<String>,
    answers: i64,
}

/// Stands for the role of what the loop itself tells the model in a tool's place: how that begins is expected.
const REFUSED: &str = "refused";

/// A message as it is compared: who, what, and which calls.
type Row = (String, String, Vec<(String, String, String)>);

/// The runs that a conversation is made of: each begins where the model speaks after somebody else did, or once more.
fn turns(session: &str, conversation: &Conversation) -> Vec<Turn> {
    let mut turns = vec![Turn::default()];
    for (at, message) in conversation.messages.iter().enumerate() {
        let number = turns.len();
        let turn = turns.last_mut().expect("there is one");
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
            said => {
                if turn.answers > 0 {
                    turns.push(Turn::default());
                }
                turns.last_mut().expect("there is one").says.push(said.clone());
            }
        }
    }
    turns.retain(|turn| turn.answers > 0 || !turn.says.is_empty());
    turns
}

fn outcome(result: &ModelMessage) -> ToolOutcome {
    match result {
        ModelMessage::Tool { content, is_error: true, .. } => {
            ToolOutcome::failed(Failure::Tool, content)
        }
        ModelMessage::Tool { content, .. } => ToolOutcome::text(content),
        other => panic!("{other:?} is no result"),
    }
}

/// A replay that is silent where the recording has no answer, although there is one further on: the user spoke.
struct Strict {
    replay: Replay,
    by_id: HashMap<String, Vec<bool>>,
}

impl Strict {
    fn of(conversations: Vec<Conversation>) -> Strict {
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
                let silent = ModelError::new(ModelErrorKind::NoRecording, "nobody answered here");
                stream::iter([Err(silent)]).boxed()
            }
        }
    }
}

/// Tools of all names that are called, which give what was recorded.
fn tools(conversations: &[Conversation], results: HashMap<String, ToolOutcome>) -> Tools {
    let (tools, results) = (Tools::new(), Arc::new(results));
    let names: BTreeSet<&str> = calls_of(conversations).map(|call| call.name.as_str()).collect();
    for name in names {
        let mut declaration = ToolDeclaration::new(name, "As it was recorded.", json!({}));
        declaration.effect = Effect::ReadOnly;
        let results = Arc::clone(&results);
        let gives = Function::of(declaration, move |invocation: Invocation| {
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

/// The conversations of a file, every so many of them, with names of tools that are names.
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

/// What must be on record of a conversation, and what differs by design.
fn expected(conversation: &Conversation) -> (Vec<Row>, Held) {
    let mut held = Held { conversations: 1, ..Held::default() };
    let mut rows: Vec<Row> = Vec::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        match message {
            ModelMessage::System { text } => rows.push(("system".into(), text.clone(), vec![])),
            ModelMessage::User { text } => rows.push(("user".into(), text.clone(), vec![])),
            ModelMessage::Tool { .. } => {}
            ModelMessage::Assistant { text, calls, .. } => {
                held.answers += 1;
                let told =
                    calls.iter().map(|it| (it.id.clone(), it.name.clone(), it.arguments.clone()));
                rows.push(("assistant".into(), text.clone(), told.collect()));
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
                        other => panic!("{other:?} is no result"),
                    };
                    held.results += 1;
                    rows.push((role.to_owned(), content, vec![]));
                }
            }
        }
    }
    (rows, held)
}

/// What is on record of a session.
async fn on_record(abide: &Abide, session: &str) -> Vec<Row> {
    let sql = "SELECT * FROM agent_state WHERE session_id = :sid ORDER BY id";
    let entries: Vec<AgentState> =
        abide.sql(sql).param("sid", session).fetch().await.expect("it can be read");
    let row = |entry: AgentState| {
        let data = entry.data.as_ref().map(Json::value).unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let calls = data["calls"].as_array().into_iter().flatten();
        let calls = calls.map(|call| {
            (text(&call["provider_call_id"]), text(&call["name"]), text(&call["arguments"]))
        });
        (entry.role, entry.content.unwrap_or_default(), calls.collect())
    };
    entries.into_iter().map(row).collect()
}

/// Holds a conversation, run by run.
async fn hold(abide: &Abide, session: &str, conversation: &Conversation) {
    let new = NewSession { id: Some(session.to_owned()), ..NewSession::of(session) };
    abide.create_session(new).await.expect("it is made");
    for (number, mut turn) in turns(session, conversation).into_iter().enumerate() {
        let input = match turn.says.pop() {
            Some(ModelMessage::User { text }) if turn.answers > 0 => Some(text),
            other => {
                turn.says.extend(other);
                None
            }
        };
        for said in turn.says {
            let said = match said {
                ModelMessage::System { text } => Message::system(text),
                ModelMessage::User { text } => Message::user(text),
                other => panic!("{other:?} is said by no one"),
            };
            abide.append_message(session, said).await.expect("it is taken");
        }
        if turn.answers == 0 {
            continue;
        }
        let id = format!("{session}-{}", number + 1);
        let run = NewRun { input, id: Some(id.clone()), ..NewRun::of(session) };
        abide.start_run(run).await.expect("it begins");
        if let Some(open) = turn.open {
            let sql = "SELECT call_id FROM tool_calls WHERE call_id = :id AND status = 'claimed'";
            let mut calls = abide.subscribe(sql).param("id", open).await.expect("it is followed");
            while calls.rows().len() == 0 {
                calls.next().await.expect("the file is open");
            }
            abide.abort_run(&id).await.expect("it runs");
        }
        until_turn_ends(abide, &id, 0).await.expect("it ends");
    }
}

/// The agent of a conversation: its instructions, and a model of its name.
async fn register(abide: &Abide, name: &str, conversation: &Conversation) {
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
        instructions: conversation.system.clone(),
        ..AgentDefinition::default()
    };
    abide.register_agent(definition.to_register()).await.expect("it is one");
}

/// Holds the conversations of a file, every so many of them, and compares each with what was recorded.
async fn held(path: &Path, every: usize) -> Held {
    let conversations = read(path, every);
    let folder = tempfile::tempdir().expect("there is room");
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let names: Vec<String> = (0..conversations.len()).map(|at| format!("c{at}")).collect();
    let results = names.iter().zip(&conversations).flat_map(|(name, it)| turns(name, it));
    let results = results.flat_map(|turn| turn.results).collect();
    let tools = tools(&conversations, results);
    let surroundings = Surroundings::of_process();
    let mut models = Models::new(ModelsConfig::default(), &surroundings).expect("it is right");
    let strict = Arc::new(Strict::of(conversations.clone()));
    models.add(strict, Vec::new(), 0).expect("it is the only one");
    let catalog = Catalog::new(folder.path(), tools.clone());
    let settings = Settings::named("house");
    let runtime = Runtime::new(abide.clone(), models, tools, catalog, settings);
    runtime.register().await.expect("the tools are");
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let driving = tokio::spawn(async move { runtime.run(stopped).await.expect("it runs") });
    let one = |(name, conversation): (String, &Conversation)| {
        let (abide, conversation) = (abide.clone(), conversation.clone());
        async move {
            register(&abide, &name, &conversation).await;
            hold(&abide, &name, &conversation).await;
            compare(&on_record(&abide, &name).await, &conversation)
        }
    };
    let ones: Vec<_> = names.into_iter().zip(&conversations).map(one).collect();
    let mut sum = Held::default();
    let mut holding = stream::iter(ones).buffer_unordered(AT_ONCE);
    while let Some(held) = holding.next().await {
        sum += held;
    }
    stop.cancel();
    driving.await.expect("it ends well");
    abide.close().await;
    sum
}

fn compare(found: &[Row], conversation: &Conversation) -> Held {
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

fn beside(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

#[tokio::test]
async fn every_conversation_of_the_fixture_is_held_again() {
    let held = held(&beside("tests/fixtures/conversations.jsonl.zst"), 1).await;
    println!("{held:?}");
    assert_eq!((held.conversations, held.answers), (24, 326));
}

#[tokio::test]
async fn conversations_beside_the_repository_are_held_again() {
    let folder = beside("../shared/data/conversations");
    if !folder.is_dir() {
        println!("left out: the recordings that are not in this repository");
        return;
    }
    let every = if std::env::var_os(ALL).is_some() { 1 } else { EVERY };
    let entries = std::fs::read_dir(folder).expect("the folder can be read");
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    let mut sum = Held::default();
    for path in paths {
        sum += held(&path, every).await;
    }
    println!("every {every}: {sum:?}");
    match every {
        1 => assert_eq!((sum.conversations, sum.answers), (1_734, 22_577)),
        _ => assert!(sum.conversations >= 1_734 / EVERY, "{sum:?}"),
    }
}
