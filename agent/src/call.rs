//! Tool calls: asked for, claimed, run, and put on record; and what the model is told of them.

use abide_client::{Abide, Call, Code, Error, NewToolCall, Session, ToolCall, ToolCallStatus};
use abide_json_integers as integers;
use abide_tools::{Cut, Effect, Failure, Invocation, ToolOutcome, ToolView};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::delegate;
use crate::drive::{Driver, Halt, Step, overtime};
use crate::plan::{self, Planned};
use crate::transcript::AskedCall;

/// The tools of the run's agent.
pub(crate) fn view(driver: &Driver) -> Option<ToolView> {
    driver.shop.tools.view(driver.definition.selection()).ok()
}

/// What is not ours to mend and not the run's end: the model is told, and may do otherwise.
pub(crate) fn is_for_the_model(code: Code) -> bool {
    matches!(code, Code::BadArguments | Code::NotFound | Code::LimitExceeded | Code::CallIdConflict)
}

/// A text as arguments; as itself, if it is no JSON or has integers that would lose digits.
pub(crate) fn arguments_or_text(text: &str) -> Value {
    let exact = integers::check(text).ok().and_then(|()| serde_json::from_str(text).ok());
    exact.unwrap_or_else(|| json!(text))
}

/// The call that asks for a tool call, or what the model is told instead.
pub(crate) fn to_request(driver: &Driver, asked: &AskedCall) -> Result<Call, String> {
    let arguments = match asked.name.as_str() {
        delegate::TOOL => delegate::admit(driver, &asked.arguments)?,
        plan::TOOL => plan::admit(driver, &asked.arguments)?,
        name => {
            let view = view(driver).ok_or("the tools of this agent are not there")?;
            let admitted = view.admit(name, &asked.arguments);
            admitted.map_err(|outcome| outcome.text)?.arguments
        }
    };
    let request = NewToolCall {
        call_id: asked.call_id.clone(),
        session_id: driver.run.session_id.clone(),
        tool_name: asked.name.clone(),
        arguments,
        provider_call_id: Some(asked.provider_call_id.clone()).filter(|id| !id.is_empty()),
        claim_lease_ms: None,
        needs_approval: driver.definition.interrupt_on.get(&asked.name).map(|it| it.0),
    };
    Ok(driver.hold.request(&request))
}

/// Runs what can be run, so many at a time. When the run's time is up, the tools are asked to stop, and what nobody
/// has begun is not begun.
pub(crate) async fn run_all(driver: &Driver, session: &Session, ready: Vec<ToolCall>) -> Step {
    let at_once = driver.definition.limits.parallel_tools();
    let stop = driver.stop.child_token();
    // A plan is changed by one after the other, in the order of the calls.
    let (plans, others): (Vec<_>, Vec<_>) =
        ready.into_iter().partition(|call| call.tool_name == plan::TOOL);
    for call in plans {
        run(driver, session, call, &stop).await?;
    }
    let runs = others.into_iter().map(|call| run(driver, session, call, &stop));
    let mut running = stream::iter(runs).buffer_unordered(at_once);
    let mut deadline = std::pin::pin!(driver.until_deadline());
    loop {
        tokio::select! {
            biased;
            ran = running.next() => match ran {
                Some(ran) => ran?,
                None => break,
            },
            () = &mut deadline, if !stop.is_cancelled() => stop.cancel(),
        }
    }
    match stop.is_cancelled() && !driver.stop.is_cancelled() {
        true => Err(overtime()),
        false => Ok(()),
    }
}

/// Claims a call, runs it, and puts on record what came of it.
async fn run(driver: &Driver, session: &Session, call: ToolCall, stop: &CancellationToken) -> Step {
    let (abide, settings) = (&driver.abide, &driver.shop.settings);
    if stop.is_cancelled() {
        return give_up(driver, &call).await;
    }
    let claim = abide.claim_tool_call(&call.call_id).lease(settings.lease).worker(&settings.driver);
    let claimed: ToolCall = match claim.await {
        Ok(claimed) => claimed.into_inner(),
        // Somebody else was faster, or it is to wait: what it is now, the next look tells.
        Err(error) if is_settled_elsewhere(&error) => return Ok(()),
        Err(error) => return Err(Halt::Refused(error)),
    };
    if claimed.tool_name == plan::TOOL {
        return plan(driver, &claimed).await;
    }
    let cancel = stop.child_token();
    let outcome =
        keep(driver, &claimed, invoke(driver, session, &claimed, &cancel), &cancel).await?;
    report(driver, &claimed, outcome).await
}

/// Changes the plan, and tells of it, all or nothing.
async fn plan(driver: &Driver, claimed: &ToolCall) -> Step {
    let Planned { outcome, events } = plan::run(driver, claimed).await?;
    if outcome.is_error {
        return report(driver, claimed, outcome).await;
    }
    let done = driver.abide.complete_tool_call(claimed, result_of(&outcome));
    match driver.record(&events, None, vec![Call::from(done)]).await {
        // What the call is now, the next look tells.
        Err(Halt::Refused(error)) if error.code().is_some() => Ok(()),
        recorded => recorded,
    }
}

fn result_of(outcome: &ToolOutcome) -> Value {
    json!({"text": outcome.text, "content": outcome.content, "exit_code": outcome.exit_code})
}

/// Takes back a call that nobody has begun.
async fn give_up(driver: &Driver, call: &ToolCall) -> Step {
    let cancel = driver.abide.cancel_tool_call(&call.call_id);
    match cancel.reason("the run ended before it").await {
        // An abort has taken it back already, or somebody has begun it after all.
        Err(error) if error.code().is_some() => Ok(()),
        cancelled => cancelled.map(drop).map_err(Halt::Refused),
    }
}

fn is_settled_elsewhere(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(Code::Conflict | Code::LeaseLost | Code::LimitExceeded | Code::Overloaded)
    )
}

async fn invoke(
    driver: &Driver,
    session: &Session,
    claimed: &ToolCall,
    cancel: &CancellationToken,
) -> ToolOutcome {
    let name = claimed.tool_name.as_str();
    if name == delegate::TOOL {
        return delegate::run(driver, claimed, cancel).await;
    }
    let admitted = match view(driver) {
        Some(view) => view.admit_value(name, claimed.arguments.value()),
        None => Err(ToolOutcome::failed(Failure::Unavailable, format!("{name} is not there"))),
    };
    match admitted {
        Ok(admitted) => {
            let invocation = Invocation {
                call_id: claimed.call_id.clone(),
                arguments: admitted.arguments,
                context: driver.context(session),
                cancel: cancel.clone(),
            };
            admitted.tool.run(invocation).await
        }
        Err(outcome) => outcome,
    }
}

/// Holds a call's lease while its tool runs. When it is lost, or nobody wants the call any more, the
/// tool is asked to stop.
async fn keep(
    driver: &Driver,
    claimed: &ToolCall,
    running: impl Future<Output = ToolOutcome>,
    cancel: &CancellationToken,
) -> Step<ToolOutcome> {
    let lease = driver.shop.settings.lease;
    let mut beat = tokio::time::interval(lease / 3);
    beat.tick().await;
    let mut running = std::pin::pin!(running);
    let grace = driver.shop.settings.grace;
    let mut too_late = std::pin::pin!(async {
        cancel.cancelled().await;
        tokio::time::sleep(grace).await;
    });
    loop {
        tokio::select! {
            outcome = &mut running => return Ok(outcome),
            () = &mut too_late => {
                let text = format!("{} was asked to stop and did not", claimed.tool_name);
                return Ok(ToolOutcome::failed(Failure::Lost, text));
            }
            _ = beat.tick() => {
                match driver.abide.heartbeat_tool_call(claimed).lease(lease).await {
                    Ok(held) if held.cancel_requested_at.is_some() => cancel.cancel(),
                    Ok(_) => {}
                    Err(error) if error.code().is_some() => cancel.cancel(),
                    // The line is down; the lease says how long that may last.
                    Err(_) => {}
                }
            }
        }
    }
}

async fn report(driver: &Driver, claimed: &ToolCall, outcome: ToolOutcome) -> Step {
    let abide = &driver.abide;
    let token = claimed.fencing_token.unwrap_or_default();
    let call_id = claimed.call_id.as_str();
    let (failure, effect) = (outcome.failure, effect(driver, claimed));
    let sent = match failure {
        None if !outcome.is_error => complete(abide, claimed, result_of(&outcome)).await,
        // Nobody knows whether it took effect, and it must not run twice. That is not ours to settle:
        // the lease runs out, and the call is unknown.
        Some(failure) if failure.leaves_open() && effect == Effect::AtMostOnce => return Ok(()),
        // What changes nothing has done nothing. Of all else that was stopped midway nobody can say so.
        Some(Failure::Cancelled) if effect == Effect::ReadOnly => {
            let told = json!({"call_id": call_id, "fencing_token": token});
            let acknowledge = Call::new("acknowledge_cancel", told);
            // It may be the run's time that stopped it, and nobody's request.
            let cancel = Call::from(abide.cancel_tool_call(call_id));
            abide.batch([cancel, acknowledge]).await.map(drop)
        }
        failure => {
            let again = failure == Some(Failure::Unavailable);
            let request = abide.fail_tool_call(claimed, beginning(&outcome.text));
            if again { request.retryable().await.map(drop) } else { request.await.map(drop) }
        }
    };
    match sent {
        // What it is now, the next look tells; a lost lease is on record.
        Err(error) if error.code().is_some() => Ok(()),
        sent => sent.map_err(Halt::Refused),
    }
}

/// Puts a result on record; where it is too large for that, or has integers that are not kept, the call fails and says so.
/// Left as it was it would count as one whose worker vanished, and run again.
async fn complete(abide: &Abide, claimed: &ToolCall, result: Value) -> Result<(), Error> {
    let text = result.to_string();
    if let Err(found) = integers::check(&text) {
        let told = format!("{} ran, and its result cannot be kept: {found}", claimed.tool_name);
        return abide.fail_tool_call(claimed, &told).await.map(drop);
    }
    let bytes = text.len();
    let completed = match bytes > RESULT_BYTES {
        true => None,
        false => Some(abide.complete_tool_call(claimed, result).await),
    };
    match completed {
        Some(Err(error)) if error.code() == Some(Code::LimitExceeded) => {}
        Some(completed) => return completed.map(drop),
        None => {}
    }
    let told = format!(
        "{} ran, and answered with {bytes} bytes, which is more than can be kept: ask it for less",
        claimed.tool_name
    );
    abide.fail_tool_call(claimed, &told).await.map(drop)
}

/// Bytes of a result as JSON: those of a call (`CALL_BYTES` in `schema/src/limits.rs`), with room for its other arguments.
const RESULT_BYTES: usize = (8 << 20) - (64 << 10);

/// Bytes of an error that are kept.
const ERROR_BYTES: usize = 256 << 10;

/// The beginning of an error that is longer than is kept.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(ERROR_BYTES)]
}

/// What running a call twice would mean; where its tool is not there any more, the worst.
fn effect(driver: &Driver, claimed: &ToolCall) -> Effect {
    match claimed.tool_name.as_str() {
        delegate::TOOL => return Effect::Idempotent,
        plan::TOOL => return Effect::ReadOnly,
        _ => {}
    }
    let tool = driver.shop.tools.get(&claimed.tool_name);
    tool.map_or(Effect::AtMostOnce, |tool| tool.declaration().effect)
}

/// What the model is told of a call that has ended: text, whether it went wrong, exit code.
pub(crate) fn outcome(driver: &Driver, call: &ToolCall) -> (String, bool, i32) {
    let (text, is_error, exit_code) = match call.status {
        ToolCallStatus::Succeeded => {
            let result = call.result.as_ref().map(abide_client::Json::value).unwrap_or_default();
            let exit_code = result["exit_code"].as_i64().and_then(|it| i32::try_from(it).ok());
            let text = match &result {
                // Of a worker of its own, whose results have a shape of their own.
                Value::Object(object) if object.contains_key("text") => text_of(&object["text"]),
                other => text_of(other),
            };
            (text, false, exit_code.unwrap_or(0))
        }
        ToolCallStatus::Rejected => (
            format!("Rejected: {}", call.error.as_deref().unwrap_or("no reason was given")),
            true,
            1,
        ),
        ToolCallStatus::Cancelled => ("The call was cancelled.".to_owned(), true, 1),
        _ => (call.error.clone().unwrap_or_else(|| "The call failed.".to_owned()), true, 1),
    };
    let cut = match driver.definition.config.tool_token_limit_before_evict {
        Some(most) => Cut { max_chars: usize::MAX, max_tokens: Some(most) },
        None => Cut::default(),
    };
    (cut.apply(&text, &call.call_id).text, is_error, exit_code)
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
