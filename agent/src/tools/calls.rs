//! Tool calls: requesting, claiming, running and recording them, and the text that the model gets for each.

use abide_client::arguments::{
    AcknowledgeCancel, CancelToolCall, ClaimToolCall, RequestSupervisorHandoff, RequestToolCall,
};
use abide_client::{
    Call, Code, Error, Json, NewRunEvent, Refusal, RunEventKind, ToolCall, ToolCallStatus,
};
use abide_definitions::middleware::{Middleware, ToolRetry};
use abide_tools::{Effect, Exchange, Failure, Invocation, ToolOutcome};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::context::entry::{CallResult, CallStatus, HandoffEntry, RequestedCall};
use crate::context::truncation::Truncation;
use crate::delegation::handoff;
use crate::middleware::observability::ToolTimer;
use crate::middleware::streaming;
use crate::run::driver::Driver;
use crate::run::lease::{fencing_token, millis, run_event};
use crate::run::step::{Step, StepError, overtime};
use crate::run::step_batch::{RecordedStep, StepBatch};
use crate::tools::approval::needs_approval;
use crate::tools::claimed::ClaimedCall;
use crate::tools::exchange::CallLog;
use crate::tools::executor::Executor;
use crate::tools::runtime_tool::{CallOrder, RunningCall, RuntimeTool};
use crate::{middleware, run, tools};

/// The text of a call that the model requests past the limit.
const SKIPPED: &str = "This call was skipped: the run has reached its tool call limit.";

/// Errors that the model can react to. They are returned to the model instead of ending the run.
pub(crate) fn is_for_the_model(code: Code) -> bool {
    matches!(code, Code::BadArguments | Code::NotFound | Code::LimitExceeded | Code::CallIdConflict)
}

/// The reducer call that requests a tool call, or the error text for the model. `claims`: it also claims the call, if the
/// run does not have to stop.
pub(crate) fn to_request(
    driver: &Driver,
    asked: &RequestedCall,
    claims: bool,
) -> Result<RequestToolCall, String> {
    let arguments = Executor::of(driver, &asked.name).admit(driver, asked)?;
    let (session_id, settings) = (&driver.state.run.session_id, &driver.shared.settings);
    let request = RequestToolCall {
        claim_lease_ms: claims.then(|| millis(settings.lease)),
        worker: claims.then(|| settings.driver.clone()),
        provider_call_id: Some(asked.provider_call_id.clone()).filter(|id| !id.is_empty()),
        needs_approval: driver.agent.definition.interrupt_on.get(&asked.name).map(|it| it.0),
        ..RequestToolCall::new(&asked.call_id, session_id, &asked.name, arguments)
    };
    Ok(driver.run_lease.request(request))
}

/// Whether the only call of an answer can be claimed with its request. The calls of several wait for each other's approvals,
/// a run can pause before they start, and tools of the runtime read the answer.
pub(crate) fn starts_at_once(driver: &Driver, calls: &[RequestedCall]) -> bool {
    let [asked] = calls else { return false };
    matches!(Executor::of(driver, &asked.name), Executor::Process(_))
        && !needs_approval(driver, &asked.name)
        && !run::pause::may_be_demanded(driver)
}

/// Runs the calls that are ready: first those that were approved, one after the other, then the others, up to the
/// parallelism limit. At the run's deadline, running tools are asked to stop, and calls that are not claimed are cancelled.
///
/// Returns the step that has given the result of the answer's only call to the model, if it is recorded.
pub(crate) async fn run_all(driver: &Driver, ready: Vec<ToolCall>) -> Step<Option<RecordedStep>> {
    streaming::runs(driver, &ready).await?;
    let at_once = driver.agent.definition.settings().limits.parallel_tools.max(1);
    let stop = driver.stop.child_token();
    let (approved, others): (Vec<_>, Vec<_>) =
        ready.into_iter().partition(|call| needs_approval(driver, &call.tool_name));
    let (in_order, others): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|call| Executor::of(driver, &call.tool_name).order() == CallOrder::InSequence);
    let mut deadline = std::pin::pin!(driver.until_deadline());
    let mut delivered = None;
    for (calls, at_once) in [(approved, 1), (in_order, 1), (others, at_once)] {
        let runs = calls.into_iter().map(|call| run(driver, call, &stop));
        let mut running = stream::iter(runs).buffer_unordered(at_once);
        loop {
            tokio::select! {
                biased;
                ran = running.next() => match ran {
                    Some(ran) => delivered = ran?.or(delivered),
                    None => break,
                },
                () = &mut deadline, if !stop.is_cancelled() => stop.cancel(),
            }
        }
    }
    match stop.is_cancelled() && !driver.stop.is_cancelled() {
        true => Err(overtime()),
        false => Ok(delivered),
    }
}

/// Claims a call, unless it was claimed with its request, runs it, and records the result.
async fn run(
    driver: &Driver,
    call: ToolCall,
    stop: &CancellationToken,
) -> Step<Option<RecordedStep>> {
    let is_claimed = call.status == ToolCallStatus::Claimed;
    let recorded = driver.shared.recorded_outcomes.get(&call.call_id);
    if recorded.is_some_and(|outcome| outcome.failure == Some(Failure::Cancelled)) {
        return cancel(driver, &call).await.map(|()| None);
    }
    if stop.is_cancelled() && !is_claimed {
        return give_up(driver, &call).await.map(|()| None);
    }
    let claimed = match is_claimed {
        true => Ok(call),
        false => claim(driver, &call).await,
    };
    let claimed = match claimed {
        Ok(claimed) => claimed,
        // Another worker claimed it, or it has to wait. The next step reads its current state.
        Err(error) if is_settled_elsewhere(&error) => return Ok(None),
        Err(error) => return Err(StepError::Refused(error)),
    };
    if recorded.is_some_and(|outcome| outcome.failure == Some(Failure::Denied)) {
        return hand_off(driver, &claimed).await;
    }
    let cancel = stop.child_token();
    match Executor::of(driver, &claimed.tool_name) {
        Executor::Runtime(tool) => run_of_runtime(driver, tool, &claimed, &cancel).await,
        executor => run_of_user(driver, &executor, &claimed, &cancel).await,
    }
}

/// Runs a claimed call of a tool of the runtime, and records its outcome.
async fn run_of_runtime(
    driver: &Driver,
    tool: &dyn RuntimeTool,
    claimed: &ToolCall,
    cancel: &CancellationToken,
) -> Step<Option<RecordedStep>> {
    let timer = ToolTimer::start(driver);
    let running = tool.run(RunningCall { driver, claimed, cancel });
    let outcome = match held(driver, claimed).keep(running, cancel).await {
        Ok(ran) => ran?,
        Err(lost) => Some(lost),
    };
    let Some(outcome) = outcome else { return Ok(None) };
    timer.ended(&claimed.tool_name, &outcome);
    report(driver, claimed, outcome, None).await
}

/// Runs a claimed call of a tool of the user, and records its outcome.
async fn run_of_user(
    driver: &Driver,
    executor: &Executor<'_>,
    claimed: &ToolCall,
    cancel: &CancellationToken,
) -> Step<Option<RecordedStep>> {
    if executor.waits_for_disk() {
        driver.until_durable().await?;
    }
    let log = CallLog::of(&driver.abide, claimed);
    let timer = ToolTimer::start(driver);
    let outcome = match log.load(&driver.shared.settings, claimed).await? {
        Ok(exchange) => {
            let running = invoke(driver, claimed, exchange, cancel);
            held(driver, claimed).keep(running, cancel).await.unwrap_or_else(|lost| lost)
        }
        Err(outcome) => outcome,
    };
    if outcome.failure == Some(Failure::Suspended) {
        return Ok(None);
    }
    timer.ended(&claimed.tool_name, &outcome);
    report(driver, claimed, outcome, Some(&log)).await
}

/// Claims a call. For one that was approved, the decision is published with the first claim.
async fn claim(driver: &Driver, call: &ToolCall) -> Result<ToolCall, Error> {
    if call.attempt == 0 && driver.agent.definition.asks_for(&call.tool_name) {
        check_approval(driver, call).await?;
    }
    let settings = &driver.shared.settings;
    let claim =
        ClaimToolCall::new(&call.call_id).lease_ms(millis(settings.lease)).worker(&settings.driver);
    if call.attempt > 0 || !needs_approval(driver, &call.tool_name) {
        return Ok(driver.abide.call(claim).await?.into_inner());
    }
    let changed = tools::approval::changed_arguments(driver, call).await?;
    let event = decided(call, "approved", changed);
    let record = driver.run_lease.record(&[event], None, settings.lease);
    let batch = driver.abide.batch([Call::of(record), Call::of(claim)]).await?;
    let claimed = batch.into_inner().pop().map(|it| it.result).unwrap_or_default();
    let unread = |why: serde_json::Error| Error::Protocol { why: why.to_string() };
    serde_json::from_value(claimed).map_err(unread)
}

/// Checks that a call was approved which the definition does not run without an approval.
async fn check_approval(driver: &Driver, call: &ToolCall) -> Result<(), Error> {
    let sql = "SELECT 1 FROM approvals WHERE call_id = :id AND status = 'approved'";
    let found: Vec<(i64,)> = driver.abide.sql(sql).param("id", &call.call_id).fetch().await?;
    if !found.is_empty() {
        return Ok(());
    }
    let detail = format!("call {} of {} has no approval", call.call_id, call.tool_name);
    let hint = "the definition of the agent demands one (interrupt_on)";
    Err(Error::Refused(Refusal::new(Code::Denied, detail).hint(hint)))
}

/// The event for a decision on a call, with the arguments that the approver has changed.
pub(crate) fn decided(
    call: &ToolCall,
    decision: &str,
    approved_arguments: Option<Value>,
) -> NewRunEvent {
    let mut data = json!({"status": "tool_approval", "tool_call_id": call.call_id,
        "tool_name": call.tool_name, "decision": decision});
    if let Some(why) = &call.error {
        data["comment"] = json!(why);
    }
    if let Some(arguments) = approved_arguments {
        data["approved_args"] = arguments;
    }
    run_event(RunEventKind::Status, data)
}

/// Cancels a call that is not claimed.
async fn give_up(driver: &Driver, call: &ToolCall) -> Step {
    let cancel = CancelToolCall::new(&call.call_id).reason("the run ended before the call started");
    match driver.abide.call(cancel).await {
        // An abort has already cancelled it, or another worker has claimed it.
        Err(error) if error.code().is_some() => Ok(()),
        cancelled => cancelled.map(drop).map_err(StepError::Refused),
    }
}

/// Cancels a call that was cancelled in the run that this one repeats.
async fn cancel(driver: &Driver, call: &ToolCall) -> Step {
    let mut calls = vec![Call::of(CancelToolCall::new(&call.call_id))];
    if call.status == ToolCallStatus::Claimed {
        calls.push(AcknowledgeCancel::new(&call.call_id, fencing_token(call)).into());
    }
    driver.abide.batch(calls).await.map(drop).map_err(StepError::Refused)
}

/// Hands the session off for a call that a supervisor has rejected in the run that this one repeats. The repetition rejects it.
async fn hand_off(driver: &Driver, claimed: &ToolCall) -> Step<Option<RecordedStep>> {
    let request = RequestSupervisorHandoff {
        call_id: Some(claimed.call_id.clone()),
        call_fencing_token: Some(fencing_token(claimed)),
        ..RequestSupervisorHandoff::new(&claimed.session_id, "recorded", "recorded")
    };
    match driver.record(&[], None, vec![request.into()]).await {
        // Another handoff of the session is open. The call asks when it has ended.
        Err(StepError::Refused(error)) if error.code() == Some(Code::Conflict) => {
            let outcome = ToolOutcome::failed(Failure::Unavailable, error.to_string());
            report(driver, claimed, outcome, None).await
        }
        recorded => recorded.map(|()| None),
    }
}

fn is_settled_elsewhere(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        code.is_temporary()
            || matches!(code, Code::Conflict | Code::LeaseLost | Code::LimitExceeded)
    })
}

async fn invoke(
    driver: &Driver,
    claimed: &ToolCall,
    exchange: Exchange,
    cancel: &CancellationToken,
) -> ToolOutcome {
    match driver.agent.tools.admit_value(&claimed.tool_name, claimed.arguments.value()) {
        Ok(admitted) => {
            let invocation = Invocation {
                call_id: claimed.call_id.clone(),
                arguments: admitted.arguments,
                context: driver.tool_context(),
                cancel: cancel.clone(),
                exchange,
            };
            admitted.tool.run(invocation).await
        }
        Err(outcome) => outcome,
    }
}

/// Records the outcome of a call, with the exchange that it had with a server.
async fn report(
    driver: &Driver,
    claimed: &ToolCall,
    mut outcome: ToolOutcome,
    exchange: Option<&CallLog>,
) -> Step<Option<RecordedStep>> {
    middleware::hooks::after_tool(driver, &claimed.tool_name, &mut outcome);
    middleware::redaction::outcome(driver, &mut outcome);
    let executor = Executor::of(driver, &claimed.tool_name);
    let effect = executor.effect();
    let again = retries(driver, claimed, &executor, outcome.failure);
    let delivers = is_only(driver, claimed) && !outcome.is_error;
    let delivery = match delivers {
        true => Some(delivery(driver, claimed, &outcome).await?),
        false => None,
    };
    let held = ClaimedCall { exchange, ..held(driver, claimed) };
    let recorded = held.record(&outcome, effect, again, delivery).await;
    recorded.map_err(StepError::Refused)
}

/// Whether the model's answer has no other call, so that the result is delivered with the outcome. The results of several calls
/// are delivered together, in order, after the last of them. The answer of a call that was claimed with its request may not be
/// read yet; it has no other call.
fn is_only(driver: &Driver, claimed: &ToolCall) -> bool {
    let answer = driver.state.last_answer();
    answer.is_none_or(|(_, answer)| {
        let is_of_it = answer.calls.iter().any(|call| call.call_id == claimed.call_id);
        !is_of_it || answer.calls.len() == 1
    })
}

/// The step that gives a result to the model.
async fn delivery(driver: &Driver, claimed: &ToolCall, outcome: &ToolOutcome) -> Step<StepBatch> {
    let result = CallResult::ok(outcome.text.as_str(), outcome.exit_code);
    let mut result = for_model(driver, &claimed.call_id, result);
    result.approved_arguments = tools::approval::changed_arguments(driver, claimed).await?;
    let asked = RequestedCall {
        call_id: claimed.call_id.clone(),
        name: claimed.tool_name.clone(),
        arguments: String::new(),
        provider_call_id: claimed.provider_call_id.clone().unwrap_or_default(),
    };
    let (event, message) = driver.result(&asked, &result);
    Ok(driver.step_batch((&[event], None), vec![message.into()]))
}

fn held<'a>(driver: &'a Driver, call: &'a ToolCall) -> ClaimedCall<'a> {
    let settings = &driver.shared.settings;
    let leases = &driver.shared.leases;
    ClaimedCall { abide: &driver.abide, settings, leases, call, exchange: None }
}

/// Whether `tool_retry` lets a failed call run again. The tool's own retry policy limits the attempts, too, and a call
/// that must not run twice never does; nor do the tools of the runtime. The attempts are counted in the row of the call.
fn retries(
    driver: &Driver,
    claimed: &ToolCall,
    executor: &Executor<'_>,
    failure: Option<Failure>,
) -> bool {
    let may_help = matches!(
        failure,
        None | Some(Failure::Tool | Failure::TimedOut | Failure::Lost | Failure::Panicked)
    );
    let selects = |name: &String| match name.strip_suffix('*') {
        Some(prefix) => claimed.tool_name.starts_with(prefix),
        None => *name == claimed.tool_name,
    };
    let mut rules = driver.middleware().filter_map(|entry| match entry {
        Middleware::ToolRetry(retry) => Some(retry),
        _ => None,
    });
    let applies = |retry: &ToolRetry| {
        (retry.tools.is_empty() || retry.tools.iter().any(selects))
            && retry.attempts.is_none_or(|max| claimed.attempt < max)
    };
    let may_repeat = executor.runtime_tool().is_none() && executor.effect() != Effect::AtMostOnce;
    may_help && may_repeat && rules.any(applies)
}

/// The outcome of a finished call, for the model: text, whether it is an error, and exit code.
fn result(driver: &Driver, call: &ToolCall) -> CallResult {
    let result = match call.status {
        ToolCallStatus::Succeeded => {
            let result = call.result.as_ref().map(Json::value);
            let exit_code = exit_code(result.as_ref()).unwrap_or(0);
            CallResult::ok(success_text(result, call.settled_by.is_some()), exit_code)
        }
        ToolCallStatus::Rejected => {
            let why = call.error.as_deref().unwrap_or("no reason given");
            CallResult::without_success(CallStatus::Rejected, format!("Rejected: {why}"))
        }
        ToolCallStatus::Cancelled => {
            let has_effect = Executor::of(driver, &call.tool_name).effect() != Effect::ReadOnly;
            CallResult::without_success(CallStatus::Cancelled, cancelled_text(call, has_effect))
        }
        _ => {
            let why = call.error.clone().unwrap_or_else(|| "The call failed.".to_owned());
            let exit_code = exit_code(call.result.as_ref().map(Json::value).as_ref());
            CallResult { exit_code: exit_code.unwrap_or(1), ..CallResult::error(why) }
        }
    };
    for_model(driver, &call.call_id, result)
}

/// What a model gets of a call.
pub(crate) struct Delivery {
    pub(crate) result: CallResult,
    /// The change of the active agent, which takes effect with the message of the result.
    pub(crate) handoff: Option<HandoffEntry>,
}

/// What the model gets of a finished call, with the arguments that its approver has changed.
pub(crate) async fn deliver(driver: &Driver, call: &ToolCall) -> Step<Delivery> {
    let mut result = result(driver, call);
    if call.status != ToolCallStatus::Rejected {
        result.approved_arguments = tools::approval::changed_arguments(driver, call).await?;
    }
    let Some(tool) = Executor::of(driver, &call.tool_name).runtime_tool() else {
        return Ok(Delivery { result, handoff: None });
    };
    let result = tool.checked(driver, call, result).await?;
    if !tool.changes_agent() || result.is_error() {
        return Ok(Delivery { result, handoff: None });
    }
    Ok(match handoff::accept(driver, call).await? {
        Ok(handoff) => Delivery { result, handoff: Some(handoff) },
        Err(why) => Delivery { result: CallResult::error(why), handoff: None },
    })
}

/// Says whether a cancelled call has begun, and whether it may have taken effect: a model repeats a call that did not run.
fn cancelled_text(call: &ToolCall, has_effect: bool) -> &'static str {
    match (call.attempt, has_effect) {
        (0, _) => "The call was cancelled before it began: it did not run.",
        (_, false) => "The call was cancelled while it ran.",
        (_, true) => {
            "The call was cancelled while it ran. It may have taken effect: find out before you repeat it."
        }
    }
}

/// The exit code in the result of a call.
fn exit_code(result: Option<&Value>) -> Option<i32> {
    result?["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok())
}

/// The result of a call past the limit of tool calls.
pub(crate) fn skipped() -> CallResult {
    CallResult::without_success(CallStatus::Skipped, SKIPPED)
}

/// A result as the model may see it: redacted, and shortened.
fn for_model(driver: &Driver, call_id: &str, result: CallResult) -> CallResult {
    let text = middleware::redaction::result(driver, result.text);
    let cut = match driver.agent.definition.config.tool_token_limit_before_evict {
        Some(max) => Truncation { max_chars: usize::MAX, max_tokens: Some(max) },
        None => Truncation::default(),
    };
    let shortened = cut.apply(&text, call_id);
    let text = match shortened.left_out {
        0 => shortened.text,
        // A cut in personal data hides it from the rules for requests.
        _ => cut.apply(&middleware::redaction::for_model(driver, &text), call_id).text,
    };
    CallResult { text, ..result }
}

/// The text of a call that succeeded, from its result.
fn success_text(result: Option<Value>, is_settled: bool) -> String {
    match result {
        // The result comes from an external worker and may have any shape.
        Some(Value::Object(object)) if object.contains_key("text") => text_of(&object["text"]),
        Some(other) => text_of(&other),
        None if is_settled => SETTLED.to_owned(),
        None => text_of(&Value::Null),
    }
}

/// The text of a call that a person has settled as succeeded, without a result. Without it the model could call the tool again.
const SETTLED: &str = "The call was interrupted. It was confirmed later that it has succeeded. \
     Its output is not known.";

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The model saw `null`, as for a tool without output.
    #[test]
    fn a_call_that_was_settled_without_a_result_has_a_text() {
        for (result, is_settled, expected) in [
            (None, true, SETTLED),
            (None, false, "null"),
            (Some(json!({"text": "It is paid."})), true, "It is paid."),
            (Some(json!("It is paid.")), true, "It is paid."),
        ] {
            assert_eq!(success_text(result, is_settled), expected);
        }
    }
}
