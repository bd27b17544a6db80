//! A driver does not read its own writes, and sees what others write in the meantime.

use std::time::Duration;

use abide_client::arguments::{AppendMessage, PauseRun};
use abide_client::{Abide, Config};
use abide_engine::Engine;
use abide_models::{ModelMessage, RequestPurpose};
use abide_tools::{Effect, Function, ToolContext};
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::fixture::{FixtureOptions, answering};
use crate::scripted_model::{Walker, add_read};

/// Number of queries of a run whose model calls a tool in this number of turns.
async fn queries(turns: usize) -> i64 {
    let mut options = FixtureOptions::new("tools: [read]\n", "answers: []\n");
    options.models = answering(Walker::new(turns));
    // The runtime looks for runs again after this time.
    options.settings.reload_interval = Duration::from_secs(3_600);
    add_read(&options.tools, 100);
    let file = options.folder.path().join("abide.db");
    let engine = Engine::open(file, Config::default().into()).expect("the file opens");
    let fixture = options.open_file(Abide::embed(engine.clone())).await;
    let before = engine.metrics().queries_total.get();
    let run = fixture.begin("Read.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.kind.as_str(), "done");
    let queries = engine.metrics().queries_total.get() - before;
    fixture.close().await;
    i64::try_from(queries).expect("it is small")
}

/// A step read four rows that the driver had just written. Each read made the writer commit to SQLite first.
#[tokio::test]
async fn a_step_reads_nothing() {
    let turns = 10;
    let few = queries(2).await;
    let many = queries(2 + turns).await;
    assert!(few > 0, "the start of a run reads its rows");
    // The runtime looks for tasks of tools without a run in the background, before or after the count begins.
    let more = usize::try_from(many - few).unwrap_or(0);
    assert!(more < turns, "{few} queries, and {many} with {turns} more turns");
}

#[derive(Deserialize, JsonSchema)]
struct Page {
    #[expect(dead_code, reason = "the model sends it")]
    page: usize,
}

/// The messages of each request of a run, and kind and reason of the run's last event. The tool `read` does `tool` before
/// it returns.
async fn run_with_tool(
    tool: impl Fn(Abide) -> BoxFuture<'static, ()> + Send + Sync + 'static,
) -> (Vec<Vec<ModelMessage>>, String) {
    let mut options = FixtureOptions::new("tools: [read]\n", "answers: []\n");
    let walker = Walker::new(2);
    options.models = answering(walker.clone());
    let abide = Abide::open(options.folder.path().join("abide.db")).expect("the file opens");
    let client = abide.clone();
    let read = move |_: Page, _: ToolContext| {
        let done = tool(client.clone());
        async move {
            done.await;
            Ok::<_, String>("read".to_owned())
        }
    };
    let read = Function::new("read", "Reads a page.", read).effect(Effect::ReadOnly);
    options.tools.add(read).expect("the tool is valid");
    let fixture = options.open_file(abide).await;
    let run = fixture.begin("Read.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    fixture.close().await;
    let requests = walker.requests(RequestPurpose::Answer);
    let messages = requests.into_iter().map(|request| request.messages).collect();
    (messages, format!("{} {}", last.kind, last.data["reason"]))
}

#[tokio::test]
async fn the_next_request_has_a_message_that_arrives_while_a_tool_runs() {
    let (requests, last) = run_with_tool(|abide| {
        Box::pin(async move {
            let message = AppendMessage::new("s1", "user", "Hurry.".to_owned());
            abide.call(message).await.expect("it is appended");
        })
    })
    .await;
    assert_eq!(last, "done null");
    let hurries = requests.iter().map(|messages| {
        messages.iter().filter(|it| **it == ModelMessage::User { text: "Hurry.".into() }).count()
    });
    assert_eq!(hurries.collect::<Vec<_>>(), [0, 1, 2]);
}

#[tokio::test]
async fn a_run_pauses_after_the_tool_that_requests_it() {
    let (requests, last) = run_with_tool(|abide| {
        Box::pin(async move {
            abide.call(PauseRun::new("r1")).await.expect("it is requested");
        })
    })
    .await;
    assert_eq!((requests.len(), last.as_str()), (1, "interrupt \"pause\""));
}
