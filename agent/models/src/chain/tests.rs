//! Retries and fallbacks, with a virtual clock.

use std::sync::{Arc, Mutex};

use expect_test::{Expect, expect};
use tokio::time::Instant;

use super::*;
use crate::{ModelCall, ModelErrorKind, Script, StructuredOutput, answer_of};

/// The behaviour of a provider at one attempt.
#[derive(Clone)]
enum Does {
    Answers,
    Fails(ModelErrorKind),
    /// Refuses, with a retry delay in seconds.
    Refuses(u64),
    /// Sends some output, then fails.
    Breaks,
    /// Ends the stream without output.
    Vanishes,
}

/// A provider that behaves as scripted and records the requests.
struct Actor {
    id: &'static str,
    acts: Mutex<Vec<Does>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl ModelProvider for Actor {
    fn id(&self) -> &str {
        self.id
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        self.asked
            .lock()
            .expect("no thread panicked")
            .push(format!("{}/{}", self.id, request.model));
        let mut acts = self.acts.lock().expect("no thread panicked");
        let act = if acts.is_empty() { Does::Answers } else { acts.remove(0) };
        let answers = Script::from_text("answers: [{ text: Good. }]").expect("it is a script");
        let fails = |kind| Err(ModelError::new(kind, "it fails"));
        let events = match act {
            Does::Answers => return answers.named(self.id).stream(request),
            Does::Fails(kind) => vec![fails(kind)],
            Does::Refuses(seconds) => {
                let retry_after = Some(Duration::from_secs(seconds));
                let refusal = ModelError::new(ModelErrorKind::RateLimited, "it is asked too often");
                vec![Err(ModelError { retry_after, ..refusal })]
            }
            Does::Breaks => {
                let call = ModelCall { id: "c".into(), name: "f".into(), arguments: "{}".into() };
                let output = [ModelEvent::Text("Go".into()), ModelEvent::Call(call)];
                output.into_iter().map(Ok).chain([fails(ModelErrorKind::InvalidResponse)]).collect()
            }
            Does::Vanishes => Vec::new(),
        };
        stream::iter(events).boxed()
    }
}

/// The events of a chain, with their times.
async fn output(candidates: Vec<(&'static str, Vec<Does>)>, retry: Retry) -> String {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let candidates = candidates.into_iter().map(|(id, acts)| {
        let actor = Actor { id, acts: Mutex::new(acts), asked: Arc::clone(&asked) };
        Resolved {
            provider: Arc::new(actor),
            model: format!("{id}-model"),
            price: None,
            structured_output: StructuredOutput::Native,
        }
    });
    let chain = Chain::new(candidates.collect(), retry);
    let began = Instant::now();
    let mut stream = chain.stream(ModelRequest::default());
    let mut lines = Vec::new();
    while let Some(event) = stream.next().await {
        let event = match event {
            Ok(ModelEvent::Answer(answer)) => format!("answer of {}", answer.provider),
            Ok(ModelEvent::Restarted(restart)) => {
                let Restart { error, provider, model, attempt, after } = restart;
                format!("{}: attempt {attempt} at {provider}/{model} after {after:?}", error.code())
            }
            Ok(event) => format!("{event:?}"),
            Err(error) => format!("error {}", error.code()),
        };
        lines.push(format!("{:?} {event}", began.elapsed()));
    }
    lines.push(format!("asked: {}", asked.lock().expect("no thread panicked").join(", ")));
    lines.join("\n")
}

async fn check(candidates: Vec<(&'static str, Vec<Does>)>, expected: Expect) {
    expected.assert_eq(&output(candidates, Retry::default()).await);
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_is_returned() {
    check(
        vec![("a", vec![]), ("b", vec![])],
        expect![[r#"
        0ns Text("Good.")
        0ns answer of a
        asked: a/a-model"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn delays_double_and_then_the_next_candidate_is_tried() {
    let failing = || vec![Does::Fails(ModelErrorKind::Unavailable); 3];
    check(
        vec![("a", failing()), ("b", failing())],
        expect![[r#"
        0ns unavailable: attempt 2 at a/a-model after 1s
        1s unavailable: attempt 3 at a/a-model after 2s
        3s unavailable: attempt 4 at b/b-model after 0ns
        3s unavailable: attempt 5 at b/b-model after 1s
        4s unavailable: attempt 6 at b/b-model after 2s
        6s error unavailable
        asked: a/a-model, a/a-model, a/a-model, b/b-model, b/b-model, b/b-model"#]],
    )
    .await;
}

/// Tokio's timers have a resolution of milliseconds, so no event is early.
#[tokio::test(start_paused = true)]
async fn a_retry_delay_is_respected() {
    check(
        vec![("a", vec![Does::Refuses(40)])],
        expect![[r#"
        0ns rate_limited: attempt 2 at a/a-model after 40s
        40s Text("Good.")
        40s answer of a
        asked: a/a-model, a/a-model"#]],
    )
    .await;
}

/// A long delay is not awaited if another candidate may answer.
#[tokio::test(start_paused = true)]
async fn a_long_retry_delay_skips_the_candidate() {
    check(
        vec![("a", vec![Does::Refuses(3600)]), ("b", vec![])],
        expect![[r#"
        0ns rate_limited: attempt 2 at b/b-model after 0ns
        0ns Text("Good.")
        0ns answer of b
        asked: a/a-model, b/b-model"#]],
    )
    .await;
    check(
        vec![("a", vec![Does::Refuses(3600)])],
        expect![[r#"
        0ns error rate_limited
        asked: a/a-model"#]],
    )
    .await;
}

/// A restart event separates the output of two attempts.
#[tokio::test(start_paused = true)]
async fn a_failure_in_the_middle_is_reported() {
    check(
        vec![("a", vec![Does::Breaks, Does::Vanishes])],
        expect![[r#"
        0ns Text("Go")
        0ns Call(ModelCall { id: "c", name: "f", arguments: "{}" })
        0ns invalid_response: attempt 2 at a/a-model after 1s
        1s invalid_response: attempt 3 at a/a-model after 2s
        3s Text("Good.")
        3s answer of a
        asked: a/a-model, a/a-model, a/a-model"#]],
    )
    .await;
}

/// The reaction to each kind of failure: retry, next candidate, or error.
#[tokio::test(start_paused = true)]
async fn each_kind_of_error_has_its_reaction() {
    let mut table = Vec::new();
    for kind in ModelErrorKind::ALL {
        let output =
            output(vec![("a", vec![Does::Fails(kind)]), ("b", vec![])], Retry::default()).await;
        let consequence = match output.lines().last().expect("there is a last line") {
            "asked: a/a-model, a/a-model" => "again",
            "asked: a/a-model, b/b-model" => "next",
            "asked: a/a-model" => "end",
            other => other,
        };
        table.push(format!("{kind}: {consequence}"));
    }
    expect![[r#"
        rate_limited: again
        overloaded: again
        unavailable: again
        stalled: again
        invalid_response: again
        unauthorized: next
        bad_request: end
        context_too_long: next
        no_recording: end
        cancelled: end"#]]
    .assert_eq(&table.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn without_retries_each_candidate_is_tried_once() {
    let failing = vec![Does::Fails(ModelErrorKind::Overloaded)];
    let output = output(vec![("a", failing), ("b", vec![])], Retry::never()).await;
    assert!(output.ends_with("asked: a/a-model, b/b-model"), "{output}");
}

/// Delays with a seed differ from each other, are between half and all of their value, and are reproducible.
#[test]
fn delays_with_a_seed() {
    let waits = |seed: Option<u64>| -> Vec<Duration> {
        let retry = Retry { seed, ..Retry::default() };
        (1..=9).map(|made| retry.wait(made, made)).collect()
    };
    let whole = waits(None);
    let seconds: Vec<u64> = whole.iter().map(Duration::as_secs).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    let some = waits(Some(7));
    assert_eq!(some, waits(Some(7)));
    assert_ne!(some, waits(Some(8)));
    assert!(some.iter().zip(&whole).all(|(some, whole)| some <= whole && *some >= *whole / 2));
    assert_eq!(Retry::default().wait(u32::MAX, 1), Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_stream_cancels_the_delay() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let acts = Mutex::new(vec![Does::Refuses(50)]);
    let actor = Arc::new(Actor { id: "a", acts, asked: Arc::clone(&asked) });
    let chain = Chain::new(
        vec![Resolved {
            provider: actor,
            model: "m".into(),
            price: None,
            structured_output: StructuredOutput::Native,
        }],
        Retry::default(),
    );
    let mut stream = chain.stream(ModelRequest::default());
    stream.next().await.expect("a restart is reported").expect("no error");
    drop(stream);
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(asked.lock().expect("no thread panicked").len(), 1);
    let answer =
        answer_of(chain.stream(ModelRequest::default())).await.expect("there is an answer");
    assert_eq!((answer.text.as_str(), chain.id()), ("Good.", "a"));
}

/// The first candidate is more expensive and fails: the price of the second applies.
#[tokio::test(start_paused = true)]
async fn an_answer_has_the_price_of_the_candidate_that_gave_it() {
    let candidate = |text: &str, dollars: f64| {
        let price =
            serde_json::json!({"input_per_million": dollars, "output_per_million": dollars});
        Resolved {
            provider: Arc::new(Script::from_text(text).expect("it is a script")),
            model: "m".into(),
            price: Some(serde_json::from_value(price).expect("it is a price")),
            structured_output: StructuredOutput::Native,
        }
    };
    let fails = "answers: [{ text: Hm., error: { kind: unauthorized } }]";
    let answers = "answers: [{ text: Yes., usage: { input_tokens: 30, output_tokens: 12 } }]";
    let candidates = vec![candidate(fails, 100.0), candidate(answers, 0.5)];
    let chain = Chain::new(candidates, Retry::default());
    let answer =
        answer_of(chain.stream(ModelRequest::default())).await.expect("there is an answer");
    assert_eq!(answer.cost_micros, Some(21));
}
