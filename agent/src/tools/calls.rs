//! The tool calls of a run, from the answer that requests them to their recorded outcomes: admission, claim, execution, and what is
//! recorded.
//!
//! Three places check a call. [`to_request`] admits what a model wrote: the agent has the tool, and the arguments fit. The reducer
//! `request_tool_call` checks the arguments by the registered version of the tool, and decides whether the call waits for an
//! approval. [`invoke`] admits the stored arguments once more before the tool runs: an approver may have changed them, and the tool
//! may have changed since. Which calls run, and when, is decided in `run/decide.rs`; what the model gets of them is made in
//! `tools/delivery.rs`.

use abide_client::arguments::{CancelToolCall, ClaimToolCall, RequestToolCall};
use abide_client::rows::{ToolCall, ToolCallStatus};
use abide_client::{Call, Code, Error};
use abide_definitions::middleware::Middleware;
use abide_tools::{Effect, Exchange, Failure, Invocation, ToolOutcome, tool_matches};
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use crate::context::entry::{CallResult, RequestedCall};
use crate::middleware::observability::ToolTimer;
use crate::middleware::streaming;
use crate::run::driver::Driver;
use crate::run::lease::millis;
use crate::run::step::{Step, StepError, overtime};
use crate::run::step_batch::{RecordedStep, StepBatch};
use crate::tools::approval::{check_approved, decision_event, needs_approval};
use crate::tools::claimed::ClaimedCall;
use crate::tools::exchange::CallLog;
use crate::tools::executor::Executor;
use crate::tools::runtime_tool::{CallOrder, RunningCall, RuntimeTool};
use crate::tools::{delivery, repeated};
use crate::{middleware, run, tools};

/// Returns `true` if the refusal of a request is the result of its call: the model can react to it. Other refusals end
/// the run.
pub(crate) fn is_for_the_model(code: Code) -> bool {
    matches!(code, Code::BadArguments | Code::NotFound | Code::LimitExceeded | Code::CallIdConflict)
}

/// Admits a call that a model has written. Returns the reducer call that requests it. `claims`: it also claims the call, if the run
/// does not have to stop.
///
/// # Errors
/// The text for the model: why the call is not admitted.
pub(crate) fn to_request(
    driver: &Driver,
    call: &RequestedCall,
    claims: bool,
) -> Result<RequestToolCall, String> {
    let arguments = Executor::for_tool(driver, &call.name).admit(driver, call)?;
    let session_id = &driver.state.run.session_id;
    let settings = &driver.shared.settings;
    let request = RequestToolCall {
        claim_lease_ms: claims.then(|| millis(settings.lease)),
        worker: claims.then(|| settings.driver.clone()),
        provider_call_id: Some(call.provider_call_id.clone()).filter(|id| !id.is_empty()),
        needs_approval: driver.agent.definition.approval_of(&call.name),
        ..RequestToolCall::new(&call.call_id, session_id, &call.name, arguments)
    };
    Ok(driver.run_lease.request(request))
}

/// Returns `true` if the only call of an answer can be claimed with its request. The calls of several wait for each
/// other's approvals, a run can pause before they start, and tools of the runtime read the answer.
pub(crate) fn starts_at_once(driver: &Driver, calls: &[RequestedCall]) -> bool {
    let [call] = calls else { return false };
    matches!(Executor::for_tool(driver, &call.name), Executor::Process(_))
        && !needs_approval(driver, &call.name)
        && !driver.shutdown.is_draining()
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
    let (in_order, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|call| {
        Executor::for_tool(driver, &call.tool_name).order() == CallOrder::InSequence
    });
    let mut deadline = std::pin::pin!(driver.until_deadline());
    let mut delivered = None;
    // An approver has seen the approved calls in the order of the answer: their effects follow in this order, and before all others.
    for (calls, at_once) in [(approved, 1), (in_order, 1), (others, at_once)] {
        let runs = calls.into_iter().map(|call| run(driver, call, &stop));
        let mut running = stream::iter(runs).buffer_unordered(at_once);
        loop {
            tokio::select! {
                // At the deadline too, an outcome that is there is recorded first.
                biased;
                ran = running.next() => match ran {
                    Some(ran) => delivered = ran?.or(delivered),
                    None => break,
                },
                () = &mut deadline, if !stop.is_cancelled() => stop.cancel(),
            }
        }
    }
    let is_overtime = stop.is_cancelled() && !driver.stop.is_cancelled();
    if is_overtime { Err(overtime()) } else { Ok(delivered) }
}

/// Claims a call, unless it was claimed with its request, runs it, and records the result.
async fn run(
    driver: &Driver,
    call: ToolCall,
    stop: &CancellationToken,
) -> Step<Option<RecordedStep>> {
    let is_claimed = call.status == ToolCallStatus::Claimed;
    if repeated::was_cancelled(driver, &call) {
        return repeated::cancel(driver, &call).await.map(|()| None);
    }
    if stop.is_cancelled() && !is_claimed {
        return cancel_unclaimed(driver, &call).await.map(|()| None);
    }
    // It stays pending for the next driver.
    if driver.shutdown.is_draining() && !is_claimed {
        return Ok(None);
    }
    let claimed = if is_claimed { Ok(call) } else { claim(driver, &call).await };
    let claimed = match claimed {
        Ok(claimed) => claimed,
        // Another worker claimed it, or it has to wait. The next step reads its current state.
        Err(error) if is_settled_elsewhere(&error) => return Ok(None),
        Err(error) => return Err(StepError::Refused(error)),
    };
    if repeated::was_rejected(driver, &claimed) {
        return match repeated::hand_off(driver, &claimed).await? {
            Some(outcome) => record_outcome(driver, &claimed, outcome, None).await,
            None => Ok(None),
        };
    }
    let cancel = stop.child_token();
    match Executor::for_tool(driver, &claimed.tool_name) {
        Executor::Runtime(tool) => run_runtime_tool(driver, tool, &claimed, &cancel).await,
        executor => run_user_tool(driver, &executor, &claimed, &cancel).await,
    }
}

/// Runs a claimed call of a tool of the runtime, and records its outcome.
async fn run_runtime_tool(
    driver: &Driver,
    tool: &dyn RuntimeTool,
    claimed: &ToolCall,
    cancel: &CancellationToken,
) -> Step<Option<RecordedStep>> {
    let timer = ToolTimer::start(driver);
    let running = tool.run(RunningCall { driver, claimed, cancel });
    let outcome = match claimed_call(driver, claimed).keep(running, cancel).await {
        Ok(ran) => ran?,
        Err(lost) => Some(lost),
    };
    let Some(outcome) = outcome else { return Ok(None) };
    timer.count_call(&claimed.tool_name, &outcome);
    record_outcome(driver, claimed, outcome, None).await
}

/// Runs a claimed call of a tool of the user, and records its outcome.
async fn run_user_tool(
    driver: &Driver,
    executor: &Executor<'_>,
    claimed: &ToolCall,
    cancel: &CancellationToken,
) -> Step<Option<RecordedStep>> {
    if executor.waits_for_disk() {
        driver.until_durable().await?;
    }
    let log = CallLog::for_call(&driver.abide, claimed);
    let timer = ToolTimer::start(driver);
    let outcome = match log.load(&driver.shared.settings, claimed).await? {
        Ok(exchange) => {
            let running = invoke(driver, claimed, exchange, cancel);
            claimed_call(driver, claimed).keep(running, cancel).await.unwrap_or_else(|lost| lost)
        }
        Err(outcome) => outcome,
    };
    if outcome.failure == Some(Failure::Suspended) {
        return Ok(None);
    }
    timer.count_call(&claimed.tool_name, &outcome);
    record_outcome(driver, claimed, outcome, Some(&log)).await
}

/// Claims a call. The first claim of an approved call also publishes the decision. Later attempts need no second
/// approval.
async fn claim(driver: &Driver, call: &ToolCall) -> Result<ToolCall, Error> {
    if call.attempt == 0 && driver.agent.definition.asks_for(&call.tool_name) {
        check_approved(driver, call).await?;
    }
    let settings = &driver.shared.settings;
    let claim =
        ClaimToolCall::new(&call.call_id).lease_ms(millis(settings.lease)).worker(&settings.driver);
    if call.attempt > 0 || !needs_approval(driver, &call.tool_name) {
        return Ok(driver.abide.call(claim).await?.into_inner());
    }
    let changed = tools::approval::changed_arguments(driver, call).await?;
    let event = decision_event(call, "approved", changed);
    let record = driver.run_lease.record(&[event], None, settings.lease);
    let batch = driver.abide.batch([Call::from(record), Call::from(claim)]).await?;
    let claimed = batch.into_inner().pop().map(|it| it.result).unwrap_or_default();
    serde_json::from_value(claimed).map_err(|why| Error::Protocol { why: why.to_string() })
}

/// Cancels a call that is not claimed, because the run ends before it starts.
async fn cancel_unclaimed(driver: &Driver, call: &ToolCall) -> Step {
    let cancel = CancelToolCall::new(&call.call_id).reason("the run ended before the call started");
    match driver.abide.call(cancel).await {
        // An abort has already cancelled it, or another worker has claimed it.
        Err(error) if error.code().is_some() => Ok(()),
        cancelled => cancelled.map(drop).map_err(StepError::Refused),
    }
}

/// Returns `true` if a refused claim needs nothing from this driver: another worker has the call, or a limit of its
/// tool holds it back.
fn is_settled_elsewhere(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        code.is_temporary()
            || matches!(code, Code::Conflict | Code::LeaseLost | Code::LimitExceeded)
    })
}

/// Runs the tool of a claimed call, with the stored arguments.
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

/// Records the outcome of a call, with the exchange that it had with a server. Returns the step that has given the result to the
/// model, if it is part of the same commit.
async fn record_outcome(
    driver: &Driver,
    claimed: &ToolCall,
    mut outcome: ToolOutcome,
    exchange: Option<&CallLog>,
) -> Step<Option<RecordedStep>> {
    middleware::hooks::after_tool(driver, &claimed.tool_name, &mut outcome);
    middleware::redaction::redact_outcome(driver, &mut outcome);
    let executor = Executor::for_tool(driver, &claimed.tool_name);
    let effect = executor.effect();
    let again = retries(driver, claimed, &executor, outcome.failure);
    let delivery = if is_only(driver, claimed) && !outcome.is_error {
        Some(delivery_step(driver, claimed, &outcome).await?)
    } else {
        None
    };
    let call = ClaimedCall { exchange, ..claimed_call(driver, claimed) };
    let recorded = call.record(&outcome, effect, again, delivery).await;
    recorded.map_err(StepError::Refused)
}

/// Returns `true` if the model's answer has no other call, so that the result is delivered with the outcome. The
/// results of several calls are delivered together, in order, after the last of them. The answer of a call that was
/// claimed with its request may not be read yet; it has no other call.
fn is_only(driver: &Driver, claimed: &ToolCall) -> bool {
    let answer = driver.state.last_answer();
    answer.is_none_or(|(_, answer)| {
        let is_of_it = answer.calls.iter().any(|call| call.call_id == claimed.call_id);
        !is_of_it || answer.calls.len() == 1
    })
}

/// Returns the step that gives a result to the model.
async fn delivery_step(
    driver: &Driver,
    claimed: &ToolCall,
    outcome: &ToolOutcome,
) -> Step<StepBatch> {
    let result = CallResult::ok(outcome.text.as_str(), outcome.exit_code);
    let mut result = delivery::for_model(driver, &claimed.call_id, result);
    result.approved_arguments = tools::approval::changed_arguments(driver, claimed).await?;
    let call = RequestedCall {
        call_id: claimed.call_id.clone(),
        name: claimed.tool_name.clone(),
        arguments: String::new(),
        provider_call_id: claimed.provider_call_id.clone().unwrap_or_default(),
    };
    let (event, message) = driver.result_records(&call, &result);
    Ok(driver.step_batch(&[event], None, vec![message.into()]))
}

/// Returns a call that this driver has claimed, with what renews its lease and records its outcome.
fn claimed_call<'a>(driver: &'a Driver, call: &'a ToolCall) -> ClaimedCall<'a> {
    let settings = &driver.shared.settings;
    let leases = &driver.shared.leases;
    ClaimedCall { abide: &driver.abide, settings, leases, call, exchange: None }
}

/// Returns `true` if `tool_retry` lets a failed call run again. The tool's own retry policy limits the attempts, too,
/// and a call that must not run twice never does; nor do the tools of the runtime. The attempts are counted in the row
/// of the call.
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
    let may_repeat = executor.runtime_tool().is_none() && executor.effect() != Effect::AtMostOnce;
    if !(may_help && may_repeat) {
        return false;
    }
    driver.middleware().any(|entry| {
        let Middleware::ToolRetry(retry) = entry else { return false };
        let is_for_tool = retry.tools.is_empty()
            || retry.tools.iter().any(|name| tool_matches(name, &claimed.tool_name));
        is_for_tool && retry.attempts.is_none_or(|max| claimed.attempt < max)
    })
}
