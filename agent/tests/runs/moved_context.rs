//! State that moves with a run in addition to its messages: the summary, the plan, the facts of its session and the measurements of
//! the watchdog. At every boundary, the next request of a run that moved is the one of a run that stayed; and a fork
//! continues with the request of its origin.

use abide_client::arguments::{
    ExportRun, ForkSession, ImportRun, NewMemory, SaveMemories, StartRun,
};
use abide_client::rows::RunSnapshot;
use abide_client::{Abide, Code};
use abide_models::{
    Completeness, ModelCall, ModelEvent, ModelMessage, ModelProvider, ModelRequest, ModelResponse,
    ModelStream, RequestPurpose, Script, Stop, StructuredOutput, Usage,
};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::fixture::{FixtureOptions, RuntimeFixture, answering};
use crate::moved::until_paused;
use crate::pauses::{EVERYWHERE, attend};
use crate::scripted_model::{Walker, Watched, add_read};

/// A small window, a plan, and facts that belong to the session.
const DEFINITION: &str = "tools: [read]
planning: true
limits: { tool_calls: 1000 }
profile:
  base: fast
  memory: { scope: session }
  context: { window_tokens: 4000, compact_above_tokens: 2000, compact_to_tokens: 1500, summary_token_limit: 300, \
chunk_tokens: 900, last_answers: 2, \
reduce_results: { \"*\": summarize_archive } }
";

/// A walker that also writes a plan, saves and searches facts, and fetches an archived result.
#[derive(Clone)]
struct Clerk(Walker);

impl Clerk {
    fn new() -> Clerk {
        Clerk(Walker::new(10))
    }

    /// The calls that the walker does not make.
    fn calls(request: &ModelRequest) -> Vec<(&'static str, Value)> {
        let answers = |message: &&ModelMessage| matches!(message, ModelMessage::Assistant { .. });
        match request.omitted_answers + request.messages.iter().filter(answers).count() {
            0 => {
                let todos = json!([{"id": 1, "title": "Read", "status": "in-progress"},
                    {"id": 2, "title": "Report"}]);
                let plan = json!({"operation": "write", "todos": todos});
                vec![
                    ("manage_todo_list", plan),
                    ("save_memory", json!({"key": "language", "value": "German"})),
                    ("save_memory", json!({"key": "word", "value": "swordfish"})),
                ]
            }
            3 => {
                let todos =
                    json!([{"id": 1, "status": "completed"}, {"id": 2, "status": "in-progress"}]);
                let search = ("search_memories", json!({"query": "swordfish"}));
                vec![("manage_todo_list", json!({"operation": "update", "todos": todos})), search]
            }
            7 => {
                let shown = json!(request.messages).to_string();
                let id = shown.split("executionId:'").nth(1).and_then(|it| it.split('\'').next());
                let id = id.expect("a result is archived");
                vec![("get_tool_response", json!({"id": id, "length": 100}))]
            }
            _ => Vec::new(),
        }
    }
}

impl ModelProvider for Clerk {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn structured_output(&self) -> StructuredOutput {
        self.0.structured_output()
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let calls = match request.purpose {
            RequestPurpose::Answer => Clerk::calls(&request),
            RequestPurpose::Summary => Vec::new(),
        };
        if calls.is_empty() {
            return self.0.stream(request);
        }
        let calls = calls.into_iter().enumerate().map(|(at, (name, arguments))| ModelCall {
            id: format!("own_{at}"),
            name: name.to_owned(),
            arguments: arguments.to_string(),
        });
        let answer = ModelResponse {
            text: String::new(),
            reasoning: None,
            calls: calls.collect(),
            stop: Stop::ToolUse,
            usage: Usage { completeness: Completeness::Unavailable, ..Usage::default() },
            provider: "walker".to_owned(),
            model: request.model.clone(),
            carry: None,
            cost_micros: None,
        };
        self.0.seen.lock().expect("no panic").push(request);
        stream::iter([Ok(ModelEvent::Answer(answer))]).boxed()
    }
}

async fn open(clerk: &Clerk, pauses: &str) -> RuntimeFixture {
    let definition = format!("{DEFINITION}{pauses}");
    let mut options = FixtureOptions::new(&definition, "answers: []");
    options.models = answering(clerk.clone());
    add_read(&options.tools, 700);
    let fixture = options.open().await;
    assert_eq!(*fixture.problems.borrow(), []);
    fixture
}

/// The requests of a model, as text.
fn requests(clerk: &Clerk) -> Vec<String> {
    let seen = clerk.0.seen.lock().expect("no panic");
    seen.iter().map(|request| serde_json::to_string_pretty(request).expect("JSON")).collect()
}

async fn numbers(abide: &Abide, sql: &str) -> Vec<i64> {
    abide.sql(sql).fetch().await.expect("the query succeeds")
}

#[tokio::test]
async fn at_every_boundary_the_next_request_of_a_moved_run_is_that_of_one_that_stayed() {
    let unpaused = Clerk::new();
    let fixture = open(&unpaused, "").await;
    fixture.begin("Read all pages.").await;
    attend(&fixture.abide, "r1").await;
    fixture.close().await;

    let stayed = Clerk::new();
    let fixture = open(&stayed, EVERYWHERE).await;
    fixture.begin("Read all pages.").await;
    let pauses = attend(&fixture.abide, "r1").await;
    let summaries = numbers(&fixture.abide, "SELECT count(*) FROM context_summaries").await;
    assert!(summaries[0] > 1, "it is compacted {} times", summaries[0]);
    fixture.close().await;
    let expected = requests(&stayed);
    assert_eq!(expected, requests(&unpaused), "a pause changes no request");
    let last = expected.last().expect("a request");
    for part in ["Current plan, version 2", "parts are done"] {
        assert!(last.contains(part), "the last request has no {part}: {last}");
    }
    assert!(!expected.iter().any(|request| request.contains("There is no fact about this")));
    assert!(expected.iter().any(|request| request.contains("SUMMARIZED executionId")));

    let moved = Clerk::new();
    let mut fixture = open(&moved, EVERYWHERE).await;
    fixture.begin("Read all pages.").await;
    let mut moves = 0;
    while until_paused(&fixture.abide, "r1").await {
        let snapshot = fixture.abide.call(ExportRun::new("r1")).await.expect("it is paused");
        let text = serde_json::to_string(&snapshot.value).expect("it is JSON");
        let snapshot: RunSnapshot = serde_json::from_str(&text).expect("it is a snapshot");
        fixture.close().await;
        fixture = open(&moved, EVERYWHERE).await;
        fixture.abide.call(ImportRun::new(snapshot)).await.expect("it is whole");
        moves += 1;
    }
    let found = requests(&moved);
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found, expected, "request {at}");
    }
    assert_eq!((found.len(), moves), (expected.len(), pauses));
    let versions = numbers(&fixture.abide, "SELECT version FROM plans").await;
    assert_eq!(versions, [2]);
    fixture.close().await;
}

/// Facts that sessions share stay in their file: a run that moves reads those of its new file. One that is paused keeps
/// what it has read, even if the facts have changed since.
#[tokio::test]
async fn a_moved_run_reads_the_shared_facts_of_its_new_file() {
    let script = "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, { text: Paid. }]";
    let definition = "tools: [pay]\nprofile: fast\npause: [{ at: after_tools }]\n";
    let home = async || {
        let watched = Watched::new(Script::from_text(script).expect("it is valid"));
        let options = FixtureOptions::new(definition, "answers: []");
        let models = answering(watched.clone());
        (watched, FixtureOptions { models, ..options }.open().await)
    };
    let learn = async |fixture: &RuntimeFixture, city: &str| {
        let fact = NewMemory {
            key: "city".to_owned(),
            value: city.to_owned(),
            confidence: None,
            source_seq: None,
        };
        let saved = fixture.abide.call(SaveMemories::new("clerk", vec![fact])).await;
        saved.expect("it is saved");
    };
    let read = |watched: &Watched| {
        let requests = watched.requests().into_iter();
        let system = requests.map(|request| request.system.unwrap_or_default());
        let cities = ["Bonn", "Ulm", "Trier"];
        let city = |system: String| cities.into_iter().find(|city| system.contains(city));
        system.map(city).collect::<Vec<_>>()
    };
    let (watched, origin) = home().await;
    learn(&origin, "Bonn").await;
    origin.begin("Pay.").await;
    assert!(until_paused(&origin.abide, "r1").await);
    learn(&origin, "Ulm").await;
    let copy = ExportRun::new("r1").copy(true);
    let copy = origin.abide.call(copy).await.expect("it is paused").into_inner();
    attend(&origin.abide, "r1").await;
    assert_eq!(read(&watched), [Some("Bonn"), Some("Bonn")]);
    origin.close().await;

    let (watched, target) = home().await;
    learn(&target, "Trier").await;
    target.abide.call(ImportRun::new(copy)).await.expect("it is whole");
    attend(&target.abide, "r1").await;
    assert_eq!(read(&watched), [Some("Trier")]);
    target.close().await;
}

#[tokio::test]
async fn a_fork_continues_with_the_request_of_its_origin() {
    let clerk = Clerk::new();
    let fixture = open(&clerk, EVERYWHERE).await;
    fixture.begin("Read all pages.").await;
    attend(&fixture.abide, "r1").await;
    let fork = ForkSession { id: Some("f1".to_owned()), ..ForkSession::new("s1") };
    fixture.abide.call(fork).await.expect("it is forked");
    let before = requests(&clerk).len();
    for (session, run) in [("s1", "r2"), ("f1", "r3")] {
        let start = StartRun::new(session).id(run).input("Go on.");
        fixture.abide.call(start).await.expect("it starts");
        attend(&fixture.abide, run).await;
    }
    // The calls of a fork have ids of their own.
    let found: Vec<String> = requests(&clerk)[before..]
        .iter()
        .map(|request: &String| -> String {
            let mut parts = request.split("executionId:'");
            let first = parts.next().unwrap_or_default().to_owned();
            let rest = parts.filter_map(|part| Some(part.split_once('\'')?.1));
            rest.fold(first, |text, part| format!("{text}executionId:{part}"))
        })
        .collect();
    assert!(found[0].contains("parts are done"), "{}", found[0]);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0], found[1]);
    // The rows of the fork are its own: a change of one session does not reach the other one.
    let spaces = numbers(&fixture.abide, "SELECT count(DISTINCT space) FROM memories").await;
    assert_eq!(spaces, [2]);
    // An event before all of that: a fork has what there was then.
    let first = "SELECT min(seq) FROM context_summaries WHERE session_id = 's1'";
    let at = numbers(&fixture.abide, first).await[0];
    for (id, at, expected) in [("f2", at - 1, 0), ("f3", at, 1)] {
        let fork = ForkSession { id: Some(id.to_owned()), at: Some(at), ..ForkSession::new("s1") };
        fixture.abide.call(fork).await.expect("it is forked");
        let sql = format!("SELECT count(*) FROM context_summaries WHERE session_id = '{id}'");
        assert_eq!(numbers(&fixture.abide, &sql).await, [expected], "{id}");
    }
    // The same fork again is the same copy, and its id is taken for any other.
    let again = ForkSession { id: Some("f1".to_owned()), ..ForkSession::new("s1") };
    assert!(fixture.abide.call(again.clone()).await.expect("it exists").duplicate);
    let other = ForkSession { title: Some("Another.".to_owned()), ..again };
    let refused = fixture.abide.call(other).await.expect_err("its id is taken");
    assert_eq!(refused.code(), Some(Code::Conflict));
    fixture.close().await;
}
