//! The complete answer of a model: guardrails and middleware change or deny it, then one batch records it, with its
//! usage and the requests of its tool calls.
//!
//! This file decides which calls of an answer are requested, and with which ids. The reducer `request_tool_call`
//! decides whether a call waits for an approval (`reducers/src/tool_call/request.rs`). `run/decide.rs` decides what the
//! calls need next.

use std::collections::BTreeMap;

use abide_client::Call;
use abide_client::arguments::{ModelUsage, NewRunEvent};
use abide_client::rows::{RunEventKind, ToolCall, ToolCallStatus};
use abide_definitions::agent_tool::RESPONSE;
use abide_models::{ModelCall, ModelResponse, StructuredOutput};
use serde_json::json;

use crate::context::entry::{AssistantEntry, CallResult, CallStatus, PARTIAL, RequestedCall};
use crate::context::request_size::FittedRequest;
use crate::middleware::streaming::Published;
use crate::middleware::verdict;
use crate::model::choice::{self, spent};
use crate::model::stream::{ArrivedAnswer, is_held_whole, push};
use crate::model::{stopped, structured};
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::{RunFailure, Step, StepError};
use crate::run::step_batch::StepCall;
use crate::tools::arguments::arguments_or_text;
use crate::watchdog::{self, MeasuredRequest};
use crate::{middleware, tools};

/// An answer, and what its request was.
pub(crate) struct AnsweredRequest {
    pub(crate) answered: ArrivedAnswer,
    /// How many tool calls the limit allows.
    pub(crate) allowed: usize,
    /// How the model gives a structured answer.
    pub(crate) output: StructuredOutput,
    pub(crate) fitted: FittedRequest,
    /// The watchdog's measurements of the request.
    pub(crate) measured: MeasuredRequest,
}

/// Records an answer in one batch: the message, its usage and its tool calls. Returns the only call if it was claimed with its
/// request.
pub(crate) async fn record(
    driver: &mut Driver,
    request: AnsweredRequest,
) -> Step<Option<ToolCall>> {
    let AnsweredRequest { answered, allowed, output, fitted, measured } = request;
    let ArrivedAnswer {
        mut answer,
        unrecorded: mut events,
        mut uncleared_text,
        mut uncleared_reasoning,
    } = answered;
    // What middleware leaves of an answer is the decision of the definition. A structured answer that is empty does not
    // match, and the model can correct it.
    let needs_content = stopped::is_empty(&answer)
        && driver.agent.definition.response_format.is_none()
        && !driver.agent.definition.allow_empty_answers;
    // The error of a structured answer can contain its values.
    middleware::redaction::redact_answer(driver, &mut answer);
    let response = structured::by_tool(driver, output)
        .and_then(|schema| structured::answer_in_calls(schema, &answer.calls));
    if let Some(Ok(json)) = &response {
        // The answer is the JSON alone: the other text and calls have no effect.
        answer.text.clone_from(json);
        uncleared_text.clone_from(json);
        answer.calls = Vec::new();
        answer.carry = None;
    }
    let denied_calls = match apply_middleware(
        driver,
        &mut answer,
        &mut uncleared_text,
        &mut uncleared_reasoning,
    ) {
        Ok(denied) => denied,
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
        withheld =
            Some(json!({"reasoning": answer.reasoning.take(), "carry": answer.carry.take()}));
    } else if !uncleared_reasoning.is_empty() && Published::for_run(driver).reasoning {
        push(&mut events, RunEventKind::Reasoning, &uncleared_reasoning);
    }
    if !uncleared_text.is_empty() {
        push(&mut events, RunEventKind::Token, &uncleared_text);
    }
    events.push(choice::usage(&answer));
    let iteration = driver.state.run.iterations + 1;
    let withheld = withheld.map(|it| Call::from(driver.run_lease.withhold(iteration, it)));
    if let Some(failure) = stopped::failure(&answer, needs_content) {
        let spent = spent(&answer, answer.calls.len());
        return end_incomplete(driver, answer, failure, &events, &spent, withheld).await;
    }
    let calls = with_ids(driver, iteration, &answer.calls);
    let health = watchdog::observe(driver, measured, answer.usage.input_tokens, &calls);
    let wrong = response.and_then(Result::err);
    let mut requests =
        request_calls(driver, &calls, allowed, &denied_calls, wrong.as_deref(), &mut events);
    let denials = deny_calls(driver, &calls, &denied_calls, &mut events);
    requests.extend(withheld.map(StepCall::from));
    let counted_calls =
        calls.iter().filter(|call| wrong.is_none() || call.name != RESPONSE).count();
    let spent = spent(&answer, counted_calls);
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
    let measured =
        health.as_ref().map(|health| Call::from(watchdog::record(driver, health)).into());
    let answered = [message].into_iter().chain(measured).chain(denials).collect();
    let claimed = record_answer(driver, &events, &spent, answered, requests).await?;
    health.into_iter().for_each(|health| driver.health.note(health));
    Ok(claimed)
}

/// Lets the middleware change an answer. Returns the positions of the calls that it denies, with the reasons.
///
/// # Errors
/// The text that replaces the answer.
fn apply_middleware(
    driver: &Driver,
    answer: &mut ModelResponse,
    uncleared_text: &mut String,
    uncleared_reasoning: &mut String,
) -> Result<BTreeMap<usize, String>, String> {
    middleware::redaction::redact_answer(driver, answer);
    middleware::hooks::after_model(driver, answer)?;
    let mut denied = BTreeMap::new();
    let calls = answer.calls.iter_mut().enumerate().filter(|(_, call)| call.name != RESPONSE);
    for (at, call) in calls {
        match middleware::hooks::before_tool(driver, &call.name, &mut call.arguments) {
            Ok(false) => {}
            Ok(true) => answer.carry = None,
            Err(why) => {
                denied.insert(at, why);
            }
        }
    }
    if is_held_whole(driver) {
        uncleared_text.clone_from(&answer.text);
        *uncleared_reasoning = answer.reasoning.clone().unwrap_or_default();
    }
    Ok(denied)
}

/// Returns the text that guardrails check. An answer in calls of the tool `response` that do not match its schema is a
/// part of it: the message with the error has values of it.
fn checked_text(answer: &ModelResponse) -> String {
    let responses = answer.calls.iter().filter(|call| call.name == RESPONSE);
    let parts = responses.map(|call| call.arguments.as_str());
    let parts = std::iter::once(answer.text.as_str()).filter(|text| !text.is_empty()).chain(parts);
    parts.collect::<Vec<_>>().join("\n")
}

/// Records an answer and requests its calls. Returns the call that was claimed with its request.
async fn record_answer(
    driver: &mut Driver,
    events: &[NewRunEvent],
    spent: &ModelUsage,
    answered: Vec<StepCall>,
    requests: Vec<StepCall>,
) -> Step<Option<ToolCall>> {
    let of_answer = answered.len();
    let all = answered.into_iter().chain(requests).collect();
    let mut batch = driver.step_batch(events, Some(spent), all);
    match driver.send_step(&batch).await {
        Ok(requested) => Ok(requested
            .into_iter()
            .find(|row| row.status == ToolCallStatus::Claimed && row.fencing_token.is_some())),
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
fn request_calls(
    driver: &Driver,
    calls: &[RequestedCall],
    allowed: usize,
    denied: &BTreeMap<usize, String>,
    wrong: Option<&str>,
    events: &mut Vec<NewRunEvent>,
) -> Vec<StepCall> {
    let mut requests = Vec::new();
    let claims = tools::calls::starts_at_once(driver, calls);
    for (at, call) in calls.iter().enumerate() {
        if let Some(wrong) = wrong.filter(|_| call.name == RESPONSE) {
            // It is to be called once; only the first call counts.
            let is_repeated = calls[..at].iter().any(|call| call.name == RESPONSE);
            let (_, result) = if is_repeated {
                driver.result_records(call, &CallResult::ok("ignored: call response once", 0))
            } else {
                driver.result_records(call, &CallResult::error(wrong))
            };
            requests.push(result.into());
            continue;
        }
        let arguments = arguments_or_text(&call.arguments);
        let data = json!({"name": call.name, "args": arguments, "id": call.call_id});
        events.push(run_event(RunEventKind::ToolCall, data));
        if denied.contains_key(&at) {
            continue;
        }
        let request = if at < allowed {
            tools::calls::to_request(driver, call, claims).map_err(CallResult::error)
        } else {
            Err(tools::delivery::skipped())
        };
        match request {
            Ok(request) => requests.push(request.into()),
            Err(result) => {
                let (event, result) = driver.result_records(call, &result);
                events.push(event);
                requests.push(result.into());
            }
        }
    }
    requests
}

/// Adds the events for the results of calls that middleware denies, and returns the messages with these results: the
/// model gets the reason as the result of the call. `denied` has the reasons by the position of the call.
///
/// They are part of the batch that records the answer. If they came later, the next driver after a crash would find the
/// calls without a result, and request them without asking the middleware again.
fn deny_calls(
    driver: &Driver,
    calls: &[RequestedCall],
    denied: &BTreeMap<usize, String>,
    events: &mut Vec<NewRunEvent>,
) -> Vec<StepCall> {
    let mut messages = Vec::new();
    for (at, why) in denied {
        let rejected = CallResult::without_success(CallStatus::Rejected, why.as_str());
        let (event, message) = driver.result_records(&calls[*at], &rejected);
        events.push(event);
        messages.push(message.into());
    }
    messages
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
    let original = Call::from(driver.run_lease.withhold(iteration, original));
    let message = Call::from(driver.message("assistant", message, &entry));
    driver.record(&events, Some(&spent), vec![original, message]).await.map(|()| None)
}

/// Ends the run after an answer that is not complete. The text stays in the session; calls do not run.
async fn end_incomplete(
    driver: &Driver,
    answer: ModelResponse,
    failure: RunFailure,
    events: &[NewRunEvent],
    spent: &ModelUsage,
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
    let message = message.map(|message| Call::from(message.kind(PARTIAL)));
    let failed = driver.run_lease.fail(failure.code, failure.message);
    let all = withheld.into_iter().chain(message).chain([failed.into()]).collect();
    driver.record(events, Some(spent), all).await?;
    Err(StepError::Ended)
}

/// Returns how many answers the model has given since the tool call limit was reached, including this one.
fn past_limit(driver: &Driver, allowed: usize) -> i64 {
    match driver.state.last_answer() {
        _ if allowed > 0 => 0,
        Some((_, entry)) => entry.past_limit + 1,
        None => 1,
    }
}

/// Returns the tool calls of an answer, with ids assigned by this runtime.
fn with_ids(driver: &Driver, iteration: i64, calls: &[ModelCall]) -> Vec<RequestedCall> {
    let named = calls.iter().enumerate().map(|(at, call)| RequestedCall {
        call_id: driver.run_lease.call_id(format_args!("{iteration}.{}", at + 1)),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
        provider_call_id: call.id.clone(),
    });
    named.collect()
}
