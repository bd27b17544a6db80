//! The answer of a model while it arrives: its chunks are recorded as events.
//!
//! Chunks are recorded in groups: while one write is in flight, the next chunks are buffered. A single run
//! therefore publishes each chunk immediately, and a thousand concurrent runs do not need a thousand writes per
//! token. Text that a response guardrail may still deny is held back ([`HeldAnswer`]). The complete answer is recorded in
//! `model/answer.rs`.

use std::pin::Pin;

use abide_client::arguments::NewRunEvent;
use abide_client::rows::RunEventKind;
use abide_models::{ModelError, ModelEvent, ModelResponse};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::context::entry::{AssistantEntry, PARTIAL};
use crate::middleware;
use crate::middleware::held::HeldAnswer;
use crate::middleware::streaming::Published;
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::{RunFailure, Step, StepError, overtime};

/// A complete answer, with what is not recorded of it yet.
pub(crate) struct ArrivedAnswer {
    pub(crate) answer: ModelResponse,
    /// The events of chunks that are not recorded yet.
    pub(crate) unrecorded: Vec<NewRunEvent>,
    /// The text that guardrails have not cleared yet.
    pub(crate) uncleared_text: String,
    /// The reasoning that guardrails have not cleared yet.
    pub(crate) uncleared_reasoning: String,
}

type Writing<'a> = Pin<Box<dyn Future<Output = Step> + Send + 'a>>;

/// Records the chunks of an answer as they arrive and as guardrails clear them, until the answer is complete.
pub(crate) async fn listen(
    driver: &Driver,
    mut stream: abide_models::ModelStream,
) -> Step<ArrivedAnswer> {
    let mut events: Vec<NewRunEvent> = Vec::new();
    let redactor = middleware::redaction::answer_redactor(driver);
    let mut held = HeldAnswer::new(driver.guardrails(), redactor, is_held_whole(driver));
    let mut writing: Option<Writing<'_>> = None;
    let published = Published::for_run(driver);
    let since = first_event(driver, published);
    let answer = loop {
        tokio::select! {
            biased;
            () = driver.stop.cancelled() => {
                keep_partial(driver, events, held.released()).await;
                return Err(StepError::Aborted);
            }
            () = driver.until_deadline() => {
                keep_partial(driver, events, held.released()).await;
                return Err(overtime());
            }
            written = async { writing.as_mut().expect("a write").await }, if writing.is_some() => {
                writing = None;
                written?;
            }
            event = stream.next() => match event {
                Some(Ok(ModelEvent::Answer(answer))) => break answer,
                Some(Ok(event)) => {
                    add_chunk(&mut events, &mut held, event, since, published.reasoning);
                }
                Some(Err(error)) => return Err(model_failure(&error)),
                None => {
                    let why = "the model's stream ended without an answer";
                    return Err(StepError::Failed(RunFailure::new("invalid_response", why)));
                }
            },
        }
        if published.tokens && writing.is_none() && !events.is_empty() {
            let group = std::mem::take(&mut events);
            writing = Some(Box::pin(async move { driver.record(&group, None, Vec::new()).await }));
        }
    };
    if let Some(writing) = writing {
        writing.await?;
    }
    let (uncleared_text, uncleared_reasoning) = held.into_rest();
    Ok(ArrivedAnswer { answer, unrecorded: events, uncleared_text, uncleared_reasoning })
}

/// Returns `true` if no part of an answer leaves before middleware has changed it: middleware in Rust can change all of
/// it, and the values of JSON can only be redacted when it is complete.
pub(crate) fn is_held_whole(driver: &Driver) -> bool {
    let is_json = driver.agent.definition.response_format.is_some();
    middleware::hooks::hold_answers(driver)
        || is_json && middleware::redaction::answer_redactor(driver).is_some()
}

/// Returns the number of an answer's first event. The status that announces the request comes before it.
fn first_event(driver: &Driver, published: Published) -> i64 {
    driver.state.run.events + 1 + i64::from(published.status)
}

/// Adds an event of the model to those that are not recorded yet, as far as guardrails have cleared it. The answer's first event has the
/// number `since`; `reasons` states whether reasoning is published.
fn add_chunk(
    events: &mut Vec<NewRunEvent>,
    held: &mut HeldAnswer<'_>,
    event: ModelEvent,
    since: i64,
    reasons: bool,
) {
    match event {
        ModelEvent::Text(text) => {
            if let Some(text) = held.add(&text) {
                push(events, RunEventKind::Token, &text);
            }
        }
        ModelEvent::Reasoning(text) => {
            if let Some(text) = held.reason(text).filter(|_| reasons) {
                push(events, RunEventKind::Reasoning, &text);
            }
        }
        ModelEvent::Restarted(restart) => {
            held.restart();
            let data = json!({"since": since, "error": restart.error.message,
                "code": restart.error.code(),
                "provider": restart.provider, "model": restart.model, "attempt": restart.attempt});
            events.push(run_event(RunEventKind::Restart, data));
        }
        // The call is published with the answer, when its arguments are recorded.
        ModelEvent::Call(_) | ModelEvent::Answer(_) => {}
    }
}

/// Adds a chunk of text. Consecutive chunks of the same kind are joined.
pub(crate) fn push(events: &mut Vec<NewRunEvent>, kind: RunEventKind, text: &str) {
    if let Some(last) = events.last_mut().filter(|last| last.kind == kind)
        && let Some(Value::String(content)) = last.data.get_mut("content")
    {
        content.push_str(text);
        return;
    }
    events.push(run_event(kind, json!({"content": text})));
}

/// Returns the failure of a run whose model did not answer, after all attempts of [`abide_models::Chain`].
fn model_failure(error: &ModelError) -> StepError {
    StepError::Failed(RunFailure::new(error.code(), error.message.clone()))
}

/// Records the text of an interrupted answer, so that later runs see it. Text that no guardrail has cleared is dropped.
async fn keep_partial(driver: &Driver, events: Vec<NewRunEvent>, text: &str) {
    let mut calls = Vec::new();
    if !text.is_empty() {
        let iteration = driver.state.run.iterations + 1;
        let entry = AssistantEntry {
            run_id: driver.state.run.id.clone(),
            iteration,
            ..AssistantEntry::default()
        };
        calls.push(driver.message("assistant", text, &entry).kind(PARTIAL).into());
    }
    if !(events.is_empty() && calls.is_empty()) {
        // The run fails anyway, so an error while recording its last text is ignored.
        let _ = driver.record(&events, None, calls).await;
    }
}
