//! Cancellation of calls. A call that is not claimed is cancelled immediately. A worker that runs one
//! is asked to stop; it acknowledges, or ends the call as usual, or vanishes.

use abide_schema::reducer::ReducerResult;
use abide_schema::{Abort, Code, Context, Refusal, Seq, reducer};

use super::holder::settlement_hint;
use super::{ToolCall, ToolCallStatus, find, finish, holds_claim, not_held, save};
use crate::cleanup::rows::Room;
use crate::{approval, exchange, lease, run};

/// Cancels a call. A worker that runs it is asked to stop.
#[reducer(roles(app, agent, supervisor))]
pub fn cancel_tool_call(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    /// Why it is cancelled.
    reason: Option<String>,
) -> Result<ReducerResult<ToolCall>, Abort> {
    let mut call = find(ctx, &call_id)?;
    match call.status {
        ToolCallStatus::Pending | ToolCallStatus::AwaitingApproval => {
            call.error = reason.or(call.error);
            let questions = exchange::rows::find_questions(ctx, &call)?;
            let call = drop_waiting(ctx, call)?;
            for question in questions {
                drop_waiting(ctx, question)?;
            }
            run::continue_if_decided(ctx, &call.session_id)?;
            Ok(ReducerResult::Fresh(call))
        }
        ToolCallStatus::Claimed if call.cancel_requested_at.is_none() => {
            call.error = reason.or(call.error);
            let mut call = ask_to_stop(ctx, call)?;
            lease::hide_token(ctx, &mut call.fencing_token)?;
            Ok(ReducerResult::Fresh(call))
        }
        ToolCallStatus::Claimed | ToolCallStatus::Cancelled => {
            lease::hide_token(ctx, &mut call.fencing_token)?;
            Ok(ReducerResult::Duplicate(call.seq, call))
        }
        ToolCallStatus::Unknown => {
            let detail = format!("call {call_id} cannot be cancelled: it may have run");
            Err(Refusal::new(Code::Conflict, detail).hint(settlement_hint(&call_id)).into())
        }
        status => {
            let detail = format!("call {call_id} is {status} and cannot be cancelled");
            let hint = "only a call that has not ended can be cancelled";
            Err(Refusal::new(Code::Conflict, detail).hint(hint).into())
        }
    }
}

/// Confirms that a call was stopped as requested: the tool did not run, or its effects were
/// undone. Otherwise the holder completes or fails the call as usual.
#[reducer(roles(app, agent, worker))]
pub fn acknowledge_cancel(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
) -> Result<ReducerResult<ToolCall>, Abort> {
    let mut call = find(ctx, &call_id)?;
    if !holds_claim(ctx, &call, fencing_token)? {
        let again =
            call.status == ToolCallStatus::Cancelled && call.fencing_token == Some(fencing_token);
        if again && lease::is_holder(ctx, fencing_token)? {
            return Ok(ReducerResult::Duplicate(call.seq, call));
        }
        return Err(not_held(ctx, &call, fencing_token)?.into());
    }
    if call.cancel_requested_at.is_none() {
        let detail = format!("no cancellation of call {call_id} was requested");
        return Err(Refusal::new(Code::Conflict, detail)
            .hint("use fail_tool_call; with retryable=true another worker can retry it")
            .into());
    }
    call.status = ToolCallStatus::Cancelled;
    finish::end(ctx, call).map(ReducerResult::Fresh)
}

/// Asks workers to stop that run calls of a session, and cancels its unclaimed calls, if an event up to `up_to`
/// requested them: as many as there is room for. Running calls come first: a call whose worker was asked to stop is not
/// retried.
pub(crate) fn some_of_session(
    ctx: &mut Context<'_>,
    session_id: &str,
    up_to: Seq,
    room: &mut Room,
) -> Result<(), Abort> {
    use ToolCallStatus::{AwaitingApproval, Claimed, Pending};
    // One at a time, because each can have megabytes. A call that was handled is not found again.
    let next = "WHERE session_id = ?1 AND status = ?2 AND cancel_requested_at IS NULL
        ORDER BY rowid LIMIT 1";
    for status in [Claimed, Pending, AwaitingApproval] {
        while room.is_left() {
            let params = [session_id.into(), status.as_str().into()];
            let call = ctx.find::<ToolCall>(next, &params)?.pop();
            let Some(call) = call.filter(|call| call.created_seq <= up_to) else { break };
            room.take(1, call.bytes());
            match status {
                Claimed => ask_to_stop(ctx, call)?,
                _ => drop_waiting(ctx, call)?,
            };
        }
    }
    Ok(())
}

fn drop_waiting(ctx: &mut Context<'_>, mut call: ToolCall) -> Result<ToolCall, Abort> {
    if call.status == ToolCallStatus::AwaitingApproval {
        ctx.without_policies(|ctx| approval::cancel(ctx, &call.call_id))?;
    }
    call.status = ToolCallStatus::Cancelled;
    call.cancel_requested_at = Some(ctx.now);
    call.retry_at = None;
    let call = save(ctx, call)?;
    exchange::rows::resume_asker(ctx, &call)?;
    Ok(call)
}

fn ask_to_stop(ctx: &mut Context<'_>, mut call: ToolCall) -> Result<ToolCall, Abort> {
    call.cancel_requested_at = Some(ctx.now);
    save(ctx, call)
}
