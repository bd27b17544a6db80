//! How a call ends or is retried: reported by its holder, after expiry, or by settlement.

use abide_schema::reducer::ReducerResult;
use abide_schema::seeded::{SeededBug, makes};
use abide_schema::{Abort, Code, Context, Json, Micros, Refusal, reducer};
use serde_json::{Value as JsonValue, json};

use super::{
    LostLease, Outcome, ToolCall, ToolCallStatus, find, find_pinned, holder, holds_claim,
    lost_lease, not_held, save,
};
use crate::exchange::rows::{self, Progress};
use crate::tool::{self, Tool};
use crate::{check, lease, run, session};

/// A holder's report on a call.
struct Report {
    /// `None`: the holder does not know it.
    outcome: Option<Outcome>,
    result: Option<Json>,
    error: Option<String>,
}

impl Report {
    /// Returns `true` if the call has ended with exactly this report, or was put back with it.
    fn is_recorded_in(&self, call: &ToolCall) -> bool {
        let is_recorded = match call.status {
            ToolCallStatus::Succeeded => self.outcome == Some(Outcome::Succeeded),
            ToolCallStatus::Failed | ToolCallStatus::Pending => {
                self.outcome != Some(Outcome::Succeeded)
            }
            ToolCallStatus::Unknown => self.outcome.is_none(),
            _ => false,
        };
        is_recorded && call.result == self.result && call.error == self.error
    }
}

/// Completes a call. Only the identity that claimed it can, with the capability that the tool requires. If the
/// session has ended meanwhile, the result is stored but not delivered.
#[reducer(roles(app, agent, worker))]
pub fn complete_tool_call(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// The result.
    result: JsonValue,
) -> Result<ReducerResult<ToolCall>, Abort> {
    let mut call = find(ctx, &call_id)?;
    let report =
        Report { outcome: Some(Outcome::Succeeded), result: Some(Json::from(result)), error: None };
    if !holds_claim(ctx, &call, fencing_token)? {
        return handle_late_report(ctx, call, fencing_token, report);
    }
    call.status = ToolCallStatus::Succeeded;
    call.result = report.result;
    call.error = None;
    end(ctx, call).map(ReducerResult::Fresh)
}

/// Fails a call; if the holder declares it retryable, the call becomes pending again. If its tool may have had its effect and must not
/// run twice, the call becomes unknown, and waits for its settlement. Only the identity that claimed it can, with the capability that
/// the tool requires.
#[reducer(roles(app, agent, worker))]
pub fn fail_tool_call(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// Why it failed.
    error: String,
    /// Whether the call becomes pending again, if its retry policy permits another attempt.
    retryable: Option<bool>,
    /// The exit code of the tool's program, or 128 plus its signal: the result is `{exit_code}`.
    exit_code: Option<i64>,
    /// Whether the tool may have had its effect: then the call becomes unknown, unless its tool may run again.
    may_have_run: Option<bool>,
) -> Result<ReducerResult<ToolCall>, Abort> {
    let mut call = find(ctx, &call_id)?;
    let tool = find_pinned(ctx, &call)?;
    let is_unknown = may_have_run == Some(true) && !tool.effect.may_run_again();
    let result = exit_code.map(|code| Json::from(json!({ "exit_code": code })));
    let outcome = (!is_unknown).then_some(Outcome::Failed);
    let report = Report { outcome, result, error: Some(error) };
    if !holds_claim(ctx, &call, fencing_token)? {
        return handle_late_report(ctx, call, fencing_token, report);
    }
    let retry = tool.retry();
    call.result = report.result;
    call.error = report.error;
    call.status = match retryable {
        _ if is_unknown => ToolCallStatus::Unknown,
        Some(true) if call.cancel_requested_at.is_some() => ToolCallStatus::Cancelled,
        Some(true) if count_attempts(ctx, &call)? < retry.max_attempts() => {
            call = schedule_retry(call, &retry, ctx.now);
            ToolCallStatus::Pending
        }
        _ => ToolCallStatus::Failed,
    };
    end(ctx, call).map(ReducerResult::Fresh)
}

/// Settles the unknown outcome of a call. The first settlement counts; an identical one
/// changes nothing. Refused while the caller that started the run of the call may not start runs of its agents. Requires the capability that the tool requires.
#[reducer(roles(app, supervisor))]
pub fn settle_tool_call(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    /// The real outcome.
    outcome: Outcome,
    /// The result, if it succeeded.
    result: Option<JsonValue>,
    /// Why it failed, if it failed.
    error: Option<String>,
    /// Evidence for the outcome.
    evidence: Option<JsonValue>,
) -> Result<ReducerResult<ToolCall>, Abort> {
    let mut call = find(ctx, &call_id)?;
    let entitled = find_pinned(ctx, &call)?.required_capability;
    let what = format!("settling a call of {}", call.tool_name);
    check::capability(ctx.caller, entitled.as_deref(), &what)?;
    let report = match outcome {
        Outcome::Succeeded if error.is_some() => {
            let detail = "error is not valid with outcome=succeeded";
            let hint = "give result, or outcome=failed";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
        }
        Outcome::Failed if result.is_some() => {
            let detail = "result is not valid with outcome=failed";
            let hint = "give error, or outcome=succeeded";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
        }
        _ => Report { outcome: Some(outcome), result: result.map(Json::from), error },
    };
    let evidence = evidence.map(Json::from);
    if call.status != ToolCallStatus::Unknown {
        let status = call.status;
        let is_same = report.is_recorded_in(&call) && evidence == call.evidence;
        return match &call.settled_by {
            Some(_) if is_same => Ok(ReducerResult::Duplicate(call.seq, call)),
            Some(by) if report.is_recorded_in(&call) => {
                let detail =
                    format!("call {call_id} was settled as {status} by {by}, with other evidence");
                Err(Refusal::new(Code::Conflict, detail)
                    .hint("the first settlement stands; tool_calls has its evidence")
                    .into())
            }
            Some(by) => {
                let detail = format!("call {call_id} was settled as {status} by {by}");
                Err(Refusal::new(Code::Conflict, detail).into())
            }
            None => {
                let detail =
                    format!("call {call_id} is {status}; only an unknown call can be settled");
                Err(Refusal::new(Code::Conflict, detail).into())
            }
        };
    }
    run::starter::check_continues(ctx, &call.session_id)?;
    call.status = match outcome {
        Outcome::Succeeded => ToolCallStatus::Succeeded,
        Outcome::Failed => ToolCallStatus::Failed,
    };
    call.result = report.result;
    call.error = report.error;
    call.evidence = evidence;
    call.settled_by = Some(ctx.caller.id().to_owned());
    let call = save(ctx, call)?;
    run::continue_if_decided(ctx, &call.session_id)?;
    Ok(ReducerResult::Fresh(call))
}

/// Handles the expired lease of a call: its worker is assumed to have vanished.
#[reducer]
pub fn lapse_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    lease_expires_at: Micros,
) -> Result<ToolCall, Abort> {
    let call = find(ctx, &call_id)?;
    let is_claimed = call.status == ToolCallStatus::Claimed;
    if !is_claimed || call.lease_expires_at != Some(lease_expires_at) || ctx.now < lease_expires_at
    {
        return Err(check::not_due(&call_id, lease_expires_at).into());
    }
    insert_lost_lease(ctx, &call)?;
    let tool = find_pinned(ctx, &call)?;
    let progress = rows::find_progress(ctx, &call.call_id)?;
    let mut after = after_lapse(&tool, &call, &progress, ctx.now);
    // The error of an earlier attempt, which did not run, is not the reason.
    let is_unknown = after.status == ToolCallStatus::Unknown;
    if is_unknown && call.cancel_requested_at.is_none() {
        after.error = None;
    }
    end(ctx, after)
}

/// Returns the status of a claimed call after its lease expired, by the policy of its tool: a call that must not run
/// twice is unknown; otherwise it is retried, unless it was cancelled or has no attempts left. A call whose server works on
/// a task does not run again: the next worker continues with the task.
pub(super) fn after_lapse(
    pinned: &Tool,
    call: &ToolCall,
    progress: &Progress,
    now: Micros,
) -> ToolCall {
    let mut after = call.clone();
    let retry = pinned.retry();
    let may_go_on =
        progress.has_task || pinned.effect.may_run_again() || makes(SeededBug::EffectRetried);
    after.status = if !may_go_on {
        ToolCallStatus::Unknown
    } else if call.cancel_requested_at.is_some() {
        ToolCallStatus::Cancelled
    } else if progress.has_task || call.attempt - progress.requests_for_input < retry.max_attempts()
    {
        after = schedule_retry(after, &retry, now);
        ToolCallStatus::Pending
    } else {
        let max = retry.max_attempts();
        after.error = Some(format!("the worker vanished in attempt {} of {max}", call.attempt));
        ToolCallStatus::Failed
    };
    after
}

/// Stores a lost lease, for later reports of its holder.
pub(super) fn insert_lost_lease(ctx: &mut Context<'_>, call: &ToolCall) -> Result<(), Abort> {
    let lost_at = call.lease_expires_at.unwrap_or(ctx.now);
    let seq = ctx.seq;
    let lost = LostLease {
        call_id: call.call_id.clone(),
        fencing_token: call.fencing_token.unwrap_or_default(),
        session_id: call.session_id.clone(),
        attempt: call.attempt,
        claimed_by: call.claimed_by.clone(),
        lost_at,
        outcome: None,
        result: None,
        error: None,
        reported_at: None,
        seq,
    };
    ctx.without_policies(|ctx| ctx.insert(lost)).map(drop)
}

/// Writes a call that has ended. If its session only waited for that, it ends.
pub(super) fn end(ctx: &mut Context<'_>, call: ToolCall) -> Result<ToolCall, Abort> {
    let call = save(ctx, call)?;
    if call.cancel_requested_at.is_some() {
        session::end_if_stopped(ctx, &call.session_id)?;
    }
    if call.status == ToolCallStatus::Unknown {
        run::suspend_for_call(ctx, &call.session_id)?;
    }
    Ok(call)
}

/// Returns the attempts of a call, without those that only continued it with answers.
fn count_attempts(ctx: &mut Context<'_>, call: &ToolCall) -> Result<i64, Abort> {
    Ok(call.attempt - rows::find_progress(ctx, &call.call_id)?.requests_for_input)
}

fn schedule_retry(mut call: ToolCall, retry: &tool::Retry, now: Micros) -> ToolCall {
    let wait_ms = retry.wait_ms(call.attempt);
    call.retry_at = (wait_ms > 0).then(|| now.plus_ms(wait_ms));
    call.lease_expires_at = None;
    call
}

/// Handles a report by a caller that does not hold the call: a repeated one, or one that is too late.
fn handle_late_report(
    ctx: &mut Context<'_>,
    call: ToolCall,
    fencing_token: i64,
    report: Report,
) -> Result<ReducerResult<ToolCall>, Abort> {
    let Some(mut lost) = lost_lease(ctx, &call, fencing_token)? else {
        let again = call.fencing_token == Some(fencing_token) && report.is_recorded_in(&call);
        if again && lease::is_holder(ctx, fencing_token)? {
            return Ok(ReducerResult::Duplicate(call.seq, call));
        }
        return Err(not_held(ctx, &call, fencing_token)?.into());
    };
    if !lease::is_holder(ctx, fencing_token)? {
        // Reports of other callers are not stored.
        return Err(not_held(ctx, &call, fencing_token)?.into());
    }
    let id = &call.call_id;
    let status = call.status;
    let lost_at = lost.lost_at;
    let detail = format!("the lease on call {id} ran out at {lost_at}; the call is {status}");
    let hint = if status == ToolCallStatus::Unknown {
        "the report is stored in unknown_tool_calls; record an outcome with settle_tool_call"
    } else {
        holder::DISCARD
    };
    let refusal = Refusal::new(Code::LeaseLost, detail).hint(hint);
    if lost.reported_at.is_some() {
        return Err(refusal.into());
    }
    lost.outcome = report.outcome;
    lost.result = report.result;
    lost.error = report.error;
    lost.reported_at = Some(ctx.now);
    lost.seq = ctx.seq;
    ctx.without_policies(|ctx| ctx.update(&lost))?;
    Ok(ReducerResult::Refused(refusal))
}
