//! A driver ends in the middle of an answer: the next one announces that the answer starts again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_agent::{Catalog, RunEvents, Runtime, Settings};
use abide_client::Abide;
use abide_client::arguments::{CreateSession, StartRun};
use abide_client::rows::RunEventKind;
use abide_models::{
    ModelEvent, ModelProvider, ModelRequest, ModelResponse, ModelStream, Stop, Usage,
};
use abide_tools::Tools;
use futures_util::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use crate::fixture::{answering, temporary_folder};

/// A model that says the first word and then nothing, the first time it is asked; then it answers.
struct Stuck {
    asked: Arc<AtomicBool>,
}

impl ModelProvider for Stuck {
    fn id(&self) -> &str {
        "stuck"
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let first = stream::iter([Ok(ModelEvent::Text("Let me ".to_owned()))]);
        if !self.asked.swap(true, Ordering::Relaxed) {
            return first.chain(stream::pending()).boxed();
        }
        let answer = ModelResponse {
            text: "Let me look.".to_owned(),
            reasoning: None,
            calls: Vec::new(),
            stop: Stop::End,
            usage: Usage::default(),
            cost_micros: None,
            provider: "stuck".to_owned(),
            model: request.model,
            carry: None,
        };
        let rest = [ModelEvent::Text("look.".to_owned()), ModelEvent::Answer(answer)];
        first.chain(stream::iter(rest.map(Ok))).boxed()
    }
}

/// Drives the runs of a file until a query has a row.
async fn drive(abide: &Abide, folder: &std::path::Path, asked: &Arc<AtomicBool>, until: &str) {
    let tools = Tools::new();
    let models = answering(Stuck { asked: Arc::clone(asked) });
    let catalog = Catalog::new(folder, tools.clone());
    let runtime = Runtime::new(abide.clone(), models, tools, catalog, Settings::named("runtime"));
    runtime.register().await.expect("it is registered");
    let stop = CancellationToken::new();
    let waits = async {
        let session = CreateSession::new("default").id("s1");
        let _ = abide.call(session).await;
        let _ = abide.call(StartRun::new("s1").id("r1").input("Hello.")).await;
        let mut rows = abide.subscribe(until).await.expect("the subscription starts");
        while rows.rows().len() == 0 {
            rows.try_next().await.expect("the file is open");
        }
        stop.cancel();
    };
    let (driven, ()) = tokio::join!(runtime.run(stop.clone()), waits);
    driven.expect("the runtime runs");
}

/// Regression: the first words of the answer were delivered twice, and nothing said so.
#[tokio::test]
async fn an_answer_that_starts_again_is_announced() {
    let folder = temporary_folder();
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let asked = Arc::new(AtomicBool::new(false));
    drive(&abide, folder.path(), &asked, "SELECT id FROM run_events WHERE kind = 'token'").await;
    drive(&abide, folder.path(), &asked, "SELECT id FROM runs WHERE ended_at IS NOT NULL").await;
    let mut events = RunEvents::subscribe(&abide, "r1", 0).await.expect("the subscription starts");
    let mut output = Vec::new();
    let mut pieces = Vec::new();
    while let Some(event) = events.next().await.expect("the stream continues") {
        if let Some(since) = event.void_since() {
            pieces.retain(|(number, _)| *number < since);
        }
        if event.kind == RunEventKind::Token {
            pieces.push((event.number, event.data["content"].as_str().unwrap_or("").to_owned()));
        }
        output.push(format!("{} {}", event.kind, event.data));
    }
    let text: String = pieces.into_iter().map(|(_, piece)| piece).collect();
    assert_eq!(text, "Let me look.", "{output:#?}");
    let restart = "restart {\"code\":\"runtime_restarted\",\
        \"error\":\"the runtime ended during the answer\",\"since\":2}";
    assert_eq!(output.iter().filter(|event| *event == restart).count(), 1, "{output:#?}");
    abide.close().await;
}
