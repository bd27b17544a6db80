//! Sends a request to the model, records the streamed chunks of the answer as events, and records the answer.
//!
//! Chunks are recorded in groups: while one write is in flight, the next chunks are buffered. A single run
//! therefore publishes each chunk immediately, and a thousand concurrent runs do not need a thousand writes per
//! token.

use std::pin::Pin;

use abide_client::{Call, ModelUsage, NewRunEvent, RunEventKind};
use abide_models::{
    Chain, ModelCall, ModelError, ModelEvent, ModelMessage, ModelProvider as _, ModelRequest,
    ModelResponse, ModelSelection, ToolSpec,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::definition::ModelChoice;
use crate::driver::Driver;
use crate::guardrail::{GuardrailAt, denied};
use crate::run_lease::run_event;
use crate::step::{Failure, Step, StepError, overtime};
use crate::transcript::{self, AssistantEntry, PARTIAL, RequestedCall};
use crate::{delegate, next_step, plan, stopped, tool_calls};

/// The instruction that the model receives when it must not call more tools.
const NO_MORE_CALLS: &str = "The tool call limit is reached. Answer with what you have.";

/// Sends the request and records the answer.
pub(crate) async fn ask(driver: &mut Driver) -> Step {
    if let Some(message) = refused_request(driver) {
        let said = AssistantEntry { run_id: driver.run.id.clone(), ..AssistantEntry::default() };
        let call = driver.message("assistant", message, &said).into();
        return driver.record(&[token(message)], None, vec![call]).await;
    }
    let left = driver.definition.limits.tool_calls() - driver.run.tool_calls;
    let allowed = usize::try_from(left).unwrap_or(0);
    let request = request(driver, allowed > 0);
    let chain = chain(driver)?;
    let answered = listen(driver, chain.stream(request)).await?;
    put_on_record(driver, answered, allowed).await
}

/// The guardrail message that replaces the request when a guardrail denies the user's last message.
fn refused_request(driver: &Driver) -> Option<&str> {
    let last = driver.entries.iter().rev().find(|entry| entry.role == "user")?;
    let text = last.content.as_deref().unwrap_or_default();
    denied(&driver.definition.middleware, GuardrailAt::Request, text)
}

/// Builds the request for the model.
fn request(driver: &Driver, may_call: bool) -> ModelRequest {
    let (definition, config) = (&driver.definition, &driver.definition.config);
    let mut messages = transcript::messages(&driver.entries);
    let tools = if may_call { specs(driver) } else { Vec::new() };
    if !may_call {
        messages.push(ModelMessage::System { text: NO_MORE_CALLS.to_owned() });
    }
    ModelRequest {
        system: definition.instructions.clone(),
        messages,
        tools,
        temperature: config.temperature,
        max_tokens: config.max_tokens,
        response_schema: definition.response_format.clone(),
        ..ModelRequest::default()
    }
}

/// The tools that the model sees, including the blocked ones.
fn specs(driver: &Driver) -> Vec<ToolSpec> {
    let declared = tool_calls::view(driver).map(|view| view.declarations()).unwrap_or_default();
    let own = declared.into_iter().map(|tool| ToolSpec {
        name: tool.name,
        description: tool.description,
        parameters: tool.parameters,
    });
    own.chain(delegate::spec(driver)).chain(plan::spec(driver.definition.planning)).collect()
}

/// The models to try, in order.
fn chain(driver: &Driver) -> Step<Chain> {
    let config = &driver.definition.config;
    let first = ModelChoice { provider: config.provider.clone(), model: config.model.clone() };
    let mut candidates = Vec::new();
    for choice in std::iter::once(&first).chain(&config.fallbacks) {
        let wanted =
            ModelSelection { provider: choice.provider.clone(), model: choice.model.clone() };
        let resolved = driver.shared.models.resolve(&wanted);
        let resolved =
            resolved.map_err(|why| StepError::Failed(Failure::new(why.code(), why.to_string())))?;
        if driver.definition.limits.cost_usd.is_some() && resolved.price.is_none() {
            // A cost limit cannot be enforced for a model without a price.
            let why = format!("the run has a cost limit, but {resolved:?} has no price");
            return Err(StepError::Failed(Failure::new("price_unknown", why)));
        }
        candidates.push(resolved);
    }
    Ok(Chain::new(candidates, driver.shared.settings.retry))
}

/// An answer, with the chunks that are not recorded yet.
struct UnsavedResponse {
    answer: ModelResponse,
    rest: Vec<NewRunEvent>,
}

type Writing<'a> = Pin<Box<dyn Future<Output = Step> + Send + 'a>>;

/// Records the chunks of an answer as they arrive, until the answer is complete.
async fn listen(driver: &Driver, mut stream: abide_models::ModelStream) -> Step<UnsavedResponse> {
    let (mut gathered, mut said): (Vec<NewRunEvent>, String) = (Vec::new(), String::new());
    let mut writing: Option<Writing<'_>> = None;
    let since = driver.run.events + 1;
    let answer = loop {
        tokio::select! {
            biased;
            () = driver.stop.cancelled() => {
                keep_partial(driver, gathered, &said).await;
                return Err(StepError::Aborted);
            }
            () = driver.until_deadline() => {
                keep_partial(driver, gathered, &said).await;
                return Err(overtime());
            }
            written = async { writing.as_mut().expect("a write").await }, if writing.is_some() => {
                writing = None;
                written?;
            }
            event = stream.next() => match event {
                Some(Ok(ModelEvent::Answer(answer))) => break answer,
                Some(Ok(event)) => {
                    match &event {
                        ModelEvent::Text(text) => said.push_str(text),
                        ModelEvent::Restarted(_) => said.clear(),
                        _ => {}
                    }
                    gather(&mut gathered, event, since);
                }
                Some(Err(error)) => return Err(failed(&error)),
                None => {
                    let why = "the model's stream ended without an answer";
                    return Err(StepError::Failed(Failure::new("invalid_response", why)));
                }
            },
        }
        if writing.is_none() && !gathered.is_empty() {
            let events = std::mem::take(&mut gathered);
            writing = Some(Box::pin(async move { driver.record(&events, None, Vec::new()).await }));
        }
    };
    if let Some(writing) = writing {
        writing.await?;
    }
    Ok(UnsavedResponse { answer, rest: gathered })
}

/// Adds an event of the model to the buffer. Consecutive chunks of the same kind are joined. The answer's first
/// event has the number `since`.
fn gather(gathered: &mut Vec<NewRunEvent>, event: ModelEvent, since: i64) {
    let (kind, text) = match event {
        ModelEvent::Text(text) => (RunEventKind::Token, text),
        ModelEvent::Reasoning(text) => (RunEventKind::Reasoning, text),
        ModelEvent::Restarted(restart) => {
            let data = json!({"since": since, "error": restart.error.message,
                "code": restart.error.code(),
                "provider": restart.provider, "model": restart.model, "attempt": restart.attempt});
            gathered.push(run_event(RunEventKind::Restart, data));
            return;
        }
        // The call is published with the answer, when its arguments are recorded.
        ModelEvent::Call(_) | ModelEvent::Answer(_) => return,
    };
    if let Some(last) = gathered.last_mut().filter(|last| last.kind == kind)
        && let Some(Value::String(content)) = last.data.get_mut("content")
    {
        content.push_str(&text);
        return;
    }
    gathered.push(run_event(kind, json!({"content": text})));
}

fn token(text: &str) -> NewRunEvent {
    run_event(RunEventKind::Token, json!({"content": text}))
}

fn failed(error: &ModelError) -> StepError {
    StepError::Failed(Failure::new(error.code(), error.message.clone()))
}

/// Records the text of an interrupted answer, so that later runs see it. Text that a guardrail denies is dropped.
async fn keep_partial(driver: &Driver, gathered: Vec<NewRunEvent>, said: &str) {
    let mut calls = Vec::new();
    if !said.is_empty()
        && denied(&driver.definition.middleware, GuardrailAt::Response, said).is_none()
    {
        let iteration = driver.run.iterations + 1;
        let whole = AssistantEntry {
            run_id: driver.run.id.clone(),
            iteration,
            ..AssistantEntry::default()
        };
        calls.push(driver.message("assistant", said, &whole).kind(PARTIAL).into());
    }
    if !(gathered.is_empty() && calls.is_empty()) {
        // The run fails anyway, so an error while recording its last text is ignored.
        let _ = driver.record(&gathered, None, calls).await;
    }
}

/// Records an answer in one batch: the message, its usage and its tool calls.
async fn put_on_record(
    driver: &mut Driver,
    UnsavedResponse { answer, rest: mut events }: UnsavedResponse,
    allowed: usize,
) -> Step {
    let iteration = driver.run.iterations + 1;
    let calls = asked(driver, iteration, &answer.calls);
    let denied = denied(&driver.definition.middleware, GuardrailAt::Response, &answer.text);
    let (text, original) = match denied {
        Some(instead) => (instead.to_owned(), Some(answer.text.clone())),
        None => (answer.text.clone(), None),
    };
    events.push(usage(&answer));
    if let Some(failure) = stopped::failure(&answer) {
        let spent = spent(&answer, calls.len());
        return end_incomplete(driver, (&answer, text, original), failure, (&events, &spent)).await;
    }
    let mut requests = Vec::new();
    for (at, asked) in calls.iter().enumerate() {
        let arguments = tool_calls::arguments_or_text(&asked.arguments);
        let data = json!({"name": asked.name, "args": arguments, "id": asked.call_id});
        events.push(run_event(RunEventKind::ToolCall, data));
        let request = match at < allowed {
            true => tool_calls::to_request(driver, asked),
            false => {
                Err("This call was skipped: the run has reached its tool call limit.".to_owned())
            }
        };
        match request {
            Ok(request) => requests.push(request),
            Err(text) => {
                let (event, result) = driver.result(asked, &text, true, 1);
                events.push(event);
                requests.push(result);
            }
        }
    }
    let spent = spent(&answer, calls.len());
    let said = AssistantEntry {
        run_id: driver.run.id.clone(),
        iteration,
        calls,
        reasoning: answer.reasoning,
        carry: answer.carry,
        provider: answer.provider,
        model: answer.model,
        past_limit: past_limit(driver, allowed),
        stop: stopped::reason(&answer.stop),
        original,
    };
    let message = Call::of(driver.message("assistant", text, &said));
    let all: Vec<Call> = std::iter::once(message.clone()).chain(requests).collect();
    match driver.record(&events, Some(&spent), all).await {
        // The batch was refused because of one call. Record the answer alone; the calls are requested one by one.
        Err(StepError::Refused(error))
            if error.code().is_some_and(tool_calls::is_for_the_model) =>
        {
            driver.record(&events, Some(&spent), vec![message]).await
        }
        recorded => recorded,
    }
}

/// Ends the run after an answer that is not complete. The text stays in the session; calls do not run.
async fn end_incomplete(
    driver: &Driver,
    (answer, text, original): (&ModelResponse, String, Option<String>),
    failure: Failure,
    (events, spent): (&[NewRunEvent], &ModelUsage),
) -> Step {
    let said = AssistantEntry {
        run_id: driver.run.id.clone(),
        iteration: driver.run.iterations + 1,
        reasoning: answer.reasoning.clone(),
        provider: answer.provider.clone(),
        model: answer.model.clone(),
        stop: stopped::reason(&answer.stop),
        original,
        ..AssistantEntry::default()
    };
    let message = (!text.is_empty()).then(|| driver.message("assistant", text, &said));
    let message = message.map(|message| Call::of(message.kind(PARTIAL)));
    let failed = driver.run_lease.failed(failure.code, failure.message);
    let all = message.into_iter().chain([failed.into()]).collect();
    driver.record(events, Some(spent), all).await?;
    Err(StepError::Ended)
}

/// How many answers the model has given since the tool call limit was reached, including this one.
fn past_limit(driver: &Driver, allowed: usize) -> i64 {
    match next_step::last_answer(&driver.run, &driver.entries) {
        _ if allowed > 0 => 0,
        Some((_, said)) => said.past_limit + 1,
        None => 1,
    }
}

/// The tool calls of an answer, with ids assigned by this runtime.
fn asked(driver: &Driver, iteration: i64, calls: &[ModelCall]) -> Vec<RequestedCall> {
    let named = calls.iter().enumerate().map(|(at, call)| RequestedCall {
        call_id: driver.run_lease.call_id(format_args!("{iteration}.{}", at + 1)),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
        provider_call_id: call.id.clone(),
    });
    named.collect()
}

fn usage(answer: &ModelResponse) -> NewRunEvent {
    let usage = &answer.usage;
    let data = json!({
        "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens, "reasoning_tokens": usage.reasoning_tokens,
        "completeness": usage.completeness, "estimated_cost": answer.cost_micros.map(dollars),
        "provider": answer.provider, "model": answer.model});
    run_event(RunEventKind::Usage, data)
}

/// Converts microdollars to dollars.
fn dollars(micros: i64) -> f64 {
    micros as f64 / 1e6
}

fn spent(answer: &ModelResponse, calls: usize) -> ModelUsage {
    let count = |tokens: Option<u64>| tokens.and_then(|tokens| i64::try_from(tokens).ok());
    ModelUsage {
        iteration: true,
        tool_calls: i64::try_from(calls).unwrap_or(i64::MAX),
        input_tokens: count(answer.usage.input_tokens),
        output_tokens: count(answer.usage.output_tokens),
        cost_micros: answer.cost_micros,
    }
}
