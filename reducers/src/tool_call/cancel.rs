//! Calls that nobody wants any more. What nobody has begun is cancelled at once. A worker that is at
//! it is asked to stop, on record; it acknowledges, or ends the call as it would have, or vanishes.

use abide_schema::reducer::Answer;
use abide_schema::{Abort, Code, Context, Refusal, Value, reducer};

use super::{ToolCall, ToolCallStatus, find, finish, is_held, not_held, save};
use crate::{approval, run};

/// Says that a call is not wanted any more.
#[reducer]
pub fn cancel_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    reason: Option<String>,
) -> Result<Answer<ToolCall>, Abort> {
    let mut call = find(ctx, &call_id)?;
    match call.status {
        ToolCallStatus::Pending | ToolCallStatus::AwaitingApproval => {
            call.error = reason.or(call.error);
            let call = drop_waiting(ctx, call)?;
            run::wake(ctx, &call.session_id)?;
            Ok(Answer::Fresh(call))
        }
        ToolCallStatus::Claimed if call.cancel_requested_at.is_none() => {
            call.error = reason.or(call.error);
            ask_to_stop(ctx, call).map(Answer::Fresh)
        }
        ToolCallStatus::Claimed | ToolCallStatus::Cancelled => {
            Ok(Answer::Duplicate(call.seq, call))
        }
        ToolCallStatus::Unknown => {
            let detail = format!("call {call_id} may have run already, it can only be settled");
            Err(Refusal::new(Code::Conflict, detail)
                .hint("find out, and tell with settle_tool_call")
                .into())
        }
        status => {
            let detail = format!("call {call_id} is {status}, there is nothing to cancel");
            Err(Refusal::new(Code::Conflict, detail).into())
        }
    }
}

/// The holder of a call that was asked to stop says that it has: the tool did not run, or what it did
/// is undone. Where that is not so, the holder completes or fails the call as ever.
#[reducer]
pub fn acknowledge_cancel(
    ctx: &mut Context<'_>,
    call_id: String,
    fencing_token: i64,
) -> Result<Answer<ToolCall>, Abort> {
    let mut call = find(ctx, &call_id)?;
    if !is_held(&call, fencing_token) {
        let again =
            call.status == ToolCallStatus::Cancelled && call.fencing_token == Some(fencing_token);
        if again {
            return Ok(Answer::Duplicate(call.seq, call));
        }
        return Err(not_held(&call, fencing_token).into());
    }
    if call.cancel_requested_at.is_none() {
        let detail = format!("nobody has asked to cancel call {call_id}");
        return Err(Refusal::new(Code::Conflict, detail)
            .hint("fail_tool_call gives up a call; with retryable=true another may try it")
            .into());
    }
    call.status = ToolCallStatus::Cancelled;
    finish::end(ctx, call).map(Answer::Fresh)
}

/// Cancels what nobody has begun of a session, and asks for the rest to stop.
pub(crate) fn of_session(ctx: &mut Context<'_>, session_id: &str) -> Result<(), Abort> {
    let open = "WHERE session_id = ?1 AND status IN ('pending', 'awaiting_approval', 'claimed')";
    for call in ctx.find::<ToolCall>(open, &[Value::from(session_id)])? {
        if call.status != ToolCallStatus::Claimed {
            drop_waiting(ctx, call)?;
        } else if call.cancel_requested_at.is_none() {
            ask_to_stop(ctx, call)?;
        }
    }
    Ok(())
}

/// How many calls of a session run.
pub(crate) fn running(ctx: &mut Context<'_>, session_id: &str) -> Result<i64, Abort> {
    let running = "WHERE session_id = ?1 AND status = 'claimed'";
    ctx.beyond_policies(|ctx| ctx.count::<ToolCall>(running, &[Value::from(session_id)]))
}

fn drop_waiting(ctx: &mut Context<'_>, mut call: ToolCall) -> Result<ToolCall, Abort> {
    if call.status == ToolCallStatus::AwaitingApproval {
        ctx.beyond_policies(|ctx| approval::cancel(ctx, &call.call_id))?;
    }
    call.status = ToolCallStatus::Cancelled;
    call.cancel_requested_at = Some(ctx.now);
    call.retry_at = None;
    save(ctx, call)
}

fn ask_to_stop(ctx: &mut Context<'_>, mut call: ToolCall) -> Result<ToolCall, Abort> {
    call.cancel_requested_at = Some(ctx.now);
    save(ctx, call)
}
