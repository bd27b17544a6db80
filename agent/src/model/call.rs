//! Sends a request to the model, records the streamed chunks of the answer as events, and records the answer.
//!
//! Chunks are recorded in groups: while one write is in flight, the next chunks are buffered. A single run
//! therefore publishes each chunk immediately, and a thousand concurrent runs do not need a thousand writes per
//! token. Text that a response guardrail may still deny is held back.

use std::collections::BTreeMap;
use std::pin::Pin;

use abide_client::{Call, ModelUsage, NewRunEvent, RunEventKind, ToolCall, ToolCallStatus};
use abide_definitions::agent_tool::RESPONSE;
use abide_models::{
    ModelCall, ModelError, ModelEvent, ModelMessage, ModelRequest, ModelResponse, StructuredOutput,
    ToolSpec,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::context::entry::{AssistantEntry, CallResult, CallStatus, PARTIAL, RequestedCall};
use crate::context::request_size::{self, FittedRequest, RequestSize};
use crate::middleware::held::HeldAnswer;
use crate::middleware::streaming::{self, Published};
use crate::middleware::verdict;
use crate::model::choice::{self, spent};
use crate::model::outgoing::Purpose;
use crate::model::{stopped, structured};
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::{Failure, Step, StepError, overtime};
use crate::run::step_batch::StepCall;
use crate::tools::arguments::arguments_or_text;
use crate::tools::registry;
use crate::watchdog::health::{self, MeasuredRequest};
use crate::{context, memory, middleware, model, plan, tools};

/// The instruction that the model receives when it must not call more tools.
const NO_MORE_CALLS: &str = "The tool call limit is reached. Answer with what you have.";

/// Sends the request and records the answer. Returns its tool call if it is the only one and was claimed with the answer.
pub(crate) async fn ask(driver: &mut Driver) -> Step<Option<ToolCall>> {
    let left =
        driver.agent.definition.settings().limits.tool_calls - driver.state.consumed().tool_calls;
    let allowed = usize::try_from(left).unwrap_or(0);
    let candidates = choice::of_agent(driver)?;
    let output = candidates.structured_output;
    let mut request = request(driver, allowed > 0, output);
    if driver.agent.definition.keeps_plan() {
        let plan = plan::todo_list::current(&driver.abide, &driver.state.run.session_id).await?;
        add_block(&mut request, plan::replan::block(driver, &plan));
    }
    middleware::redaction::request(driver, &mut request);
    if let Err(message) = middleware::hooks::before_model(driver, &mut request) {
        return middleware::request_check::deny(driver, &message).await.map(|()| None);
    }
    let size = RequestSize::of(driver, &candidates.model);
    let estimated = size.estimate.request(&request);
    if context::compaction::advance(driver, &request, size, size.tokens(estimated)).await? {
        return Ok(None);
    }
    let fitted = request_size::fit(driver, &mut request, size, allowed > 0, estimated)?;
    driver.state.has_cut_results |= fitted.cut_results > 0;
    let estimated = fitted.estimated;
    model::budget::reserve(driver, &request, candidates.price).await?;
    let measured = MeasuredRequest::of(driver, &request, estimated);
    streaming::asks(driver, &candidates.model).await?;
    let stream = candidates.ask(driver, Purpose::Answer, request).await?;
    let mut answered = listen(driver, stream).await?;
    answered.rest.extend(fitted.event(driver));
    let answered = AnsweredRequest { answered, allowed, output, fitted, measured };
    put_on_record(driver, answered).await
}

/// Builds the request for the model.
fn request(driver: &Driver, may_call: bool, output: StructuredOutput) -> ModelRequest {
    let (definition, config) = (&driver.agent.definition, &driver.agent.definition.config);
    let mut messages = driver.state.conversation(&definition.settings().context);
    let mut tools = if may_call { specs(driver) } else { Vec::new() };
    let (mut system, mut response_schema) =
        (definition.instructions.clone(), definition.response_format.clone());
    if let Some(schema) = structured::by_tool(driver, output) {
        tools.push(structured::spec(schema));
        let parts = system.into_iter().chain([structured::RESPONSE_RULES.to_owned()]);
        (system, response_schema) = (Some(parts.collect::<Vec<_>>().join("\n\n")), None);
    }
    if let Some(facts) = memory::facts::block(driver) {
        // At the end: the part before it is the same in each run, so providers can cache it.
        system = Some(system.into_iter().chain([facts]).collect::<Vec<_>>().join("\n\n"));
    }
    if !may_call {
        messages.push(ModelMessage::System { text: NO_MORE_CALLS.to_owned() });
    }
    ModelRequest {
        system,
        messages,
        tools,
        temperature: config.temperature,
        max_tokens: config.max_tokens,
        response_schema,
        omitted_answers: driver
            .state
            .context
            .as_ref()
            .map_or(0, |context| usize::try_from(context.answers()).unwrap_or(0)),
        ..ModelRequest::default()
    }
}

/// Adds a block to the instructions of a request.
fn add_block(request: &mut ModelRequest, block: Option<String>) {
    let parts = request.system.take().into_iter().chain(block);
    request.system = Some(parts.collect::<Vec<_>>().join("\n\n")).filter(|it| !it.is_empty());
}

/// The tools that the model sees, including the blocked ones.
fn specs(driver: &Driver) -> Vec<ToolSpec> {
    let own = driver.agent.tools.declarations().into_iter().map(|tool| ToolSpec {
        name: tool.name,
        description: tool.description,
        parameters: tool.parameters,
    });
    own.chain(registry::specs(driver)).collect()
}

/// An answer, and what its request was.
struct AnsweredRequest {
    answered: UnsavedResponse,
    /// How many tool calls the limit allows.
    allowed: usize,
    output: StructuredOutput,
    fitted: FittedRequest,
    /// The watchdog's measurements of the request.
    measured: MeasuredRequest,
}

/// An answer, with the chunks that are not recorded yet.
struct UnsavedResponse {
    answer: ModelResponse,
    rest: Vec<NewRunEvent>,
    /// The text that guardrails have not cleared yet.
    held: String,
    /// The reasoning that guardrails have not cleared yet.
    held_reasoning: String,
}

type Writing<'a> = Pin<Box<dyn Future<Output = Step> + Send + 'a>>;

/// Records the chunks of an answer as they arrive and as guardrails clear them, until the answer is complete.
async fn listen(driver: &Driver, mut stream: abide_models::ModelStream) -> Step<UnsavedResponse> {
    let mut gathered: Vec<NewRunEvent> = Vec::new();
    let redactor = middleware::redaction::of_answers(driver);
    let mut held = HeldAnswer::new(driver.guardrails(), redactor, is_held_whole(driver));
    let mut writing: Option<Writing<'_>> = None;
    let published = Published::of(driver);
    let since = first_event(driver, published);
    let answer = loop {
        tokio::select! {
            biased;
            () = driver.stop.cancelled() => {
                keep_partial(driver, gathered, held.released()).await;
                return Err(StepError::Aborted);
            }
            () = driver.until_deadline() => {
                keep_partial(driver, gathered, held.released()).await;
                return Err(overtime());
            }
            written = async { writing.as_mut().expect("a write").await }, if writing.is_some() => {
                writing = None;
                written?;
            }
            event = stream.next() => match event {
                Some(Ok(ModelEvent::Answer(answer))) => break answer,
                Some(Ok(event)) => {
                    gather(&mut gathered, &mut held, event, (since, published.reasoning));
                }
                Some(Err(error)) => return Err(failed(&error)),
                None => {
                    let why = "the model's stream ended without an answer";
                    return Err(StepError::Failed(Failure::new("invalid_response", why)));
                }
            },
        }
        if published.tokens && writing.is_none() && !gathered.is_empty() {
            let events = std::mem::take(&mut gathered);
            writing = Some(Box::pin(async move { driver.record(&events, None, Vec::new()).await }));
        }
    };
    if let Some(writing) = writing {
        writing.await?;
    }
    let (held, held_reasoning) = held.rest();
    Ok(UnsavedResponse { answer, rest: gathered, held, held_reasoning })
}

/// Whether no part of an answer leaves before middleware has changed it: middleware in Rust can change all of it, and the
/// values of JSON can only be redacted when it is complete.
fn is_held_whole(driver: &Driver) -> bool {
    let is_json = driver.agent.definition.response_format.is_some();
    middleware::hooks::hold_answers(driver)
        || is_json && middleware::redaction::of_answers(driver).is_some()
}

/// Lets the middleware change an answer. Returns the calls that it denies, with the reasons.
///
/// # Errors
/// The text that replaces the answer.
fn filter(
    driver: &Driver,
    answer: &mut ModelResponse,
    (held, held_reasoning): (&mut String, &mut String),
) -> Result<BTreeMap<usize, String>, String> {
    middleware::redaction::answer(driver, answer);
    middleware::hooks::after_model(driver, answer)?;
    let mut refused = BTreeMap::new();
    let calls = answer.calls.iter_mut().enumerate().filter(|(_, call)| call.name != RESPONSE);
    for (at, call) in calls {
        match middleware::hooks::before_tool(driver, &call.name, &mut call.arguments) {
            Ok(false) => {}
            Ok(true) => answer.carry = None,
            Err(why) => drop(refused.insert(at, why)),
        }
    }
    if is_held_whole(driver) {
        held.clone_from(&answer.text);
        *held_reasoning = answer.reasoning.clone().unwrap_or_default();
    }
    Ok(refused)
}

/// The number of an answer's first event. The status that announces the request comes before it.
fn first_event(driver: &Driver, published: Published) -> i64 {
    driver.state.run.events + 1 + i64::from(published.status)
}

/// Adds an event of the model to the buffer, as far as guardrails have cleared it. The answer's first event has the
/// number `since`; `reasons` states whether reasoning is published.
fn gather(
    gathered: &mut Vec<NewRunEvent>,
    held: &mut HeldAnswer<'_>,
    event: ModelEvent,
    (since, reasons): (i64, bool),
) {
    match event {
        ModelEvent::Text(text) => {
            if let Some(text) = held.add(&text) {
                push(gathered, RunEventKind::Token, &text);
            }
        }
        ModelEvent::Reasoning(text) => {
            if let Some(text) = held.reason(text).filter(|_| reasons) {
                push(gathered, RunEventKind::Reasoning, &text);
            }
        }
        ModelEvent::Restarted(restart) => {
            held.restart();
            let data = json!({"since": since, "error": restart.error.message,
                "code": restart.error.code(),
                "provider": restart.provider, "model": restart.model, "attempt": restart.attempt});
            gathered.push(run_event(RunEventKind::Restart, data));
        }
        // The call is published with the answer, when its arguments are recorded.
        ModelEvent::Call(_) | ModelEvent::Answer(_) => {}
    }
}

/// Adds a chunk of text. Consecutive chunks of the same kind are joined.
fn push(gathered: &mut Vec<NewRunEvent>, kind: RunEventKind, text: &str) {
    if let Some(last) = gathered.last_mut().filter(|last| last.kind == kind)
        && let Some(Value::String(content)) = last.data.get_mut("content")
    {
        content.push_str(text);
        return;
    }
    gathered.push(run_event(kind, json!({"content": text})));
}

fn failed(error: &ModelError) -> StepError {
    StepError::Failed(Failure::new(error.code(), error.message.clone()))
}

/// Records the text of an interrupted answer, so that later runs see it. Text that no guardrail has cleared is dropped.
async fn keep_partial(driver: &Driver, gathered: Vec<NewRunEvent>, entry: &str) {
    let mut calls = Vec::new();
    if !entry.is_empty() {
        let iteration = driver.state.run.iterations + 1;
        let whole = AssistantEntry {
            run_id: driver.state.run.id.clone(),
            iteration,
            ..AssistantEntry::default()
        };
        calls.push(driver.message("assistant", entry, &whole).kind(PARTIAL).into());
    }
    if !(gathered.is_empty() && calls.is_empty()) {
        // The run fails anyway, so an error while recording its last text is ignored.
        let _ = driver.record(&gathered, None, calls).await;
    }
}

/// Records an answer in one batch: the message, its usage and its tool calls.
async fn put_on_record(driver: &mut Driver, request: AnsweredRequest) -> Step<Option<ToolCall>> {
    let AnsweredRequest { answered, allowed, output, fitted, measured } = request;
    let UnsavedResponse { mut answer, rest: mut events, mut held, mut held_reasoning } = answered;
    // What middleware leaves of an answer is the decision of the definition. A structured answer that is empty does not
    // match, and the model can correct it.
    let needs_content = stopped::is_empty(&answer)
        && driver.agent.definition.response_format.is_none()
        && !driver.agent.definition.allow_empty_answers;
    // The error of a structured answer can contain its values.
    middleware::redaction::answer(driver, &mut answer);
    let response = structured::by_tool(driver, output)
        .and_then(|schema| structured::of_calls(schema, &answer.calls));
    if let Some(Ok(json)) = &response {
        // The answer is the JSON alone: the other text and calls have no effect.
        (answer.text, held) = (json.clone(), json.clone());
        (answer.calls, answer.carry) = (Vec::new(), None);
    }
    let refused = match filter(driver, &mut answer, (&mut held, &mut held_reasoning)) {
        Ok(refused) => refused,
        Err(message) => return withhold(driver, answer, events, &message).await,
    };
    let text = checked_text(&answer);
    let ruling = verdict::rule_response(driver, &text, !answer.calls.is_empty()).await?;
    if let Some(message) = ruling.denied {
        return withhold(driver, answer, events, &message).await;
    }
    let mut withheld = None;
    if verdict::denies_other(driver, answer.reasoning.as_deref().unwrap_or_default()) {
        // The opaque data contains the reasoning, too.
        let (reasoning, carry) = (answer.reasoning.take(), answer.carry.take());
        withheld = Some(json!({"reasoning": reasoning, "carry": carry}));
    } else if !held_reasoning.is_empty() && Published::of(driver).reasoning {
        push(&mut events, RunEventKind::Reasoning, &held_reasoning);
    }
    if !held.is_empty() {
        push(&mut events, RunEventKind::Token, &held);
    }
    events.push(choice::usage(&answer));
    let iteration = driver.state.run.iterations + 1;
    let withheld = withheld.map(|it| Call::of(driver.run_lease.withhold(iteration, it)));
    if let Some(failure) = stopped::failure(&answer, needs_content) {
        let spent = spent(&answer, answer.calls.len());
        return end_incomplete(driver, answer, failure, (&events, &spent), withheld).await;
    }
    let calls = asked(driver, iteration, &answer.calls);
    let health = health::observe(driver, measured, answer.usage.input_tokens, &calls);
    let wrong = response.and_then(Result::err);
    let mut requests = requests(driver, &calls, (allowed, &refused), wrong.as_deref(), &mut events);
    let refused = refuse(driver, &calls, &refused, &mut events);
    requests.extend(withheld.map(StepCall::from));
    let is_counted = |call: &&RequestedCall| wrong.is_none() || call.name != RESPONSE;
    let spent = spent(&answer, calls.iter().filter(is_counted).count());
    let reported = spent.input_tokens;
    let entry = AssistantEntry {
        run_id: driver.state.run.id.clone(),
        iteration,
        calls,
        reasoning: answer.reasoning,
        carry: answer.carry,
        provider: answer.provider,
        model: answer.model,
        past_limit: past_limit(driver, allowed),
        input_tokens: reported.unwrap_or(0),
        estimated_tokens: reported.map_or(0, |_| i64::try_from(fitted.estimated).unwrap_or(0)),
        cut_results: fitted.cut_results,
        stop: stopped::reason(&answer.stop),
        ..AssistantEntry::default()
    };
    let message = StepCall::from(driver.message("assistant", answer.text, &entry));
    let measured = health.as_ref().map(|health| Call::of(health::record(driver, health)).into());
    let answered = [message].into_iter().chain(measured).chain(refused).collect();
    let claimed = record_answer(driver, (&events, &spent), answered, requests).await?;
    health.into_iter().for_each(|health| driver.health.note(health));
    Ok(claimed)
}

/// The text that guardrails check. An answer in calls of the tool `response` that do not match its schema is a part of it: the
/// message with the error has values of it.
fn checked_text(answer: &ModelResponse) -> String {
    let responses = answer.calls.iter().filter(|call| call.name == RESPONSE);
    let parts = responses.map(|call| call.arguments.as_str());
    let parts = std::iter::once(answer.text.as_str()).filter(|text| !text.is_empty()).chain(parts);
    parts.collect::<Vec<_>>().join("\n")
}

/// Records an answer and requests its calls. Returns the call that was claimed with its request.
async fn record_answer(
    driver: &mut Driver,
    (events, spent): (&[NewRunEvent], &ModelUsage),
    answered: Vec<StepCall>,
    requests: Vec<StepCall>,
) -> Step<Option<ToolCall>> {
    let of_answer = answered.len();
    let all = answered.into_iter().chain(requests).collect();
    let mut batch = driver.step_batch((events, Some(spent)), all);
    match driver.send_step(&batch).await {
        Ok(requested) => {
            let is_held = |row: &ToolCall| {
                row.status == ToolCallStatus::Claimed && row.fencing_token.is_some()
            };
            Ok(requested.into_iter().find(is_held))
        }
        // The batch was refused because of one call. Record the answer alone; the calls are requested one by one.
        Err(StepError::Refused(error))
            if error.code().is_some_and(tools::calls::is_for_the_model) =>
        {
            batch.after.truncate(of_answer);
            driver.send_step(&batch).await.map(|_| None)
        }
        Err(failed) => Err(failed),
    }
}

/// Adds the events of an answer's calls, and returns the reducer calls that request them. `wrong` is the error of a
/// structured answer: the model gets it as the result of that call.
fn requests(
    driver: &Driver,
    calls: &[RequestedCall],
    (allowed, refused): (usize, &BTreeMap<usize, String>),
    wrong: Option<&str>,
    events: &mut Vec<NewRunEvent>,
) -> Vec<StepCall> {
    let (mut requests, claims) = (Vec::new(), tools::calls::starts_at_once(driver, calls));
    for (at, asked) in calls.iter().enumerate() {
        if let Some(wrong) = wrong.filter(|_| asked.name == RESPONSE) {
            // It is to be called once; only the first call counts.
            let (_, result) = match calls[..at].iter().any(|call| call.name == RESPONSE) {
                true => driver.result(asked, &CallResult::ok("ignored: call response once", 0)),
                false => driver.result(asked, &CallResult::error(wrong)),
            };
            requests.push(result.into());
            continue;
        }
        let arguments = arguments_or_text(&asked.arguments);
        let data = json!({"name": asked.name, "args": arguments, "id": asked.call_id});
        events.push(run_event(RunEventKind::ToolCall, data));
        if refused.contains_key(&at) {
            continue;
        }
        let request = match at < allowed {
            true => tools::calls::to_request(driver, asked, claims).map_err(CallResult::error),
            false => Err(tools::calls::skipped()),
        };
        match request {
            Ok(request) => requests.push(request.into()),
            Err(result) => {
                let (event, result) = driver.result(asked, &result);
                events.push(event);
                requests.push(result.into());
            }
        }
    }
    requests
}

/// The results of calls that middleware denies, and their events. They are recorded with the answer, so a call is never
/// requested without its middleware.
fn refuse(
    driver: &Driver,
    calls: &[RequestedCall],
    refused: &BTreeMap<usize, String>,
    events: &mut Vec<NewRunEvent>,
) -> Vec<StepCall> {
    let results = refused.iter().filter_map(|(at, why)| {
        let denied = CallResult::without_success(CallStatus::Rejected, why.as_str());
        let (event, result) = driver.result(calls.get(*at)?, &denied);
        events.push(event);
        Some(result.into())
    });
    results.collect()
}

/// Records an answer that a guardrail denies: the guardrail's message in place of its text. Nothing else of it
/// takes effect; its calls are not run. The original is kept in `withheld_answers`.
pub(crate) async fn withhold(
    driver: &Driver,
    answer: ModelResponse,
    mut events: Vec<NewRunEvent>,
    message: &str,
) -> Step<Option<ToolCall>> {
    push(&mut events, RunEventKind::Token, message);
    events.push(choice::usage(&answer));
    let iteration = driver.state.run.iterations + 1;
    let spent = spent(&answer, 0);
    let entry = AssistantEntry {
        run_id: driver.state.run.id.clone(),
        iteration,
        provider: answer.provider,
        model: answer.model,
        withheld: true,
        stop: stopped::reason(&answer.stop),
        ..AssistantEntry::default()
    };
    let original = json!({"text": answer.text, "reasoning": answer.reasoning,
        "calls": answer.calls, "carry": answer.carry});
    let original = Call::of(driver.run_lease.withhold(iteration, original));
    let message = Call::of(driver.message("assistant", message, &entry));
    driver.record(&events, Some(&spent), vec![original, message]).await.map(|()| None)
}

/// Ends the run after an answer that is not complete. The text stays in the session; calls do not run.
async fn end_incomplete(
    driver: &Driver,
    answer: ModelResponse,
    failure: Failure,
    (events, spent): (&[NewRunEvent], &ModelUsage),
    withheld: Option<Call>,
) -> Step<Option<ToolCall>> {
    let entry = AssistantEntry {
        run_id: driver.state.run.id.clone(),
        iteration: driver.state.run.iterations + 1,
        reasoning: answer.reasoning,
        provider: answer.provider,
        model: answer.model,
        stop: stopped::reason(&answer.stop),
        ..AssistantEntry::default()
    };
    let text = answer.text;
    let message = (!text.is_empty()).then(|| driver.message("assistant", text, &entry));
    let message = message.map(|message| Call::of(message.kind(PARTIAL)));
    let failed = driver.run_lease.failed(failure.code, failure.message);
    let all = withheld.into_iter().chain(message).chain([failed.into()]).collect();
    driver.record(events, Some(spent), all).await?;
    Err(StepError::Ended)
}

/// How many answers the model has given since the tool call limit was reached, including this one.
fn past_limit(driver: &Driver, allowed: usize) -> i64 {
    match driver.state.last_answer() {
        _ if allowed > 0 => 0,
        Some((_, entry)) => entry.past_limit + 1,
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
