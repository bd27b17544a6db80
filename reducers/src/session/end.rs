//! How a session ends: with its run and its handoff. A cleanup ends its calls, timers and child sessions.

use abide_schema::{Abort, Context};

use super::{Session, SessionStatus, to_status};
use crate::tool_call::{self, ToolCallStatus};
use crate::{handoff, run};

/// The `error_code` of a cancelled session.
pub(crate) const CANCELLED: &str = "cancelled";

/// Marks one session as cancelled, and ends it if nothing of it runs. A cleanup ends its calls, timers and child
/// sessions.
pub(crate) fn mark_cancelled(
    ctx: &mut Context<'_>,
    mut session: Session,
    reason: Option<&str>,
) -> Result<Session, Abort> {
    session.cancel_requested_at = Some(ctx.now);
    session.cancel_reason = reason.map(str::to_owned);
    if !tool_call::has_any(ctx, &session.id, ToolCallStatus::Claimed)? {
        return end_cancelled(ctx, session);
    }
    // Marked first: the end of its run must not end it before its workers have stopped.
    session.updated_at = ctx.now;
    session.seq = ctx.seq;
    ctx.update(&session)?;
    end_contents(ctx, &session)?;
    if session.status == SessionStatus::HandedOff {
        return to_status(ctx, session, SessionStatus::Active, |_| {});
    }
    Ok(session)
}

/// Called after a call of a cancelled session has stopped: if it was the last, the session ends.
pub(crate) fn end_if_stopped(ctx: &mut Context<'_>, id: &str) -> Result<(), Abort> {
    ctx.without_policies(|ctx| match ctx.get::<Session>(id)? {
        Some(session)
            if session.cancel_requested_at.is_some()
                && !session.status.is_terminal()
                && !tool_call::has_any(ctx, id, ToolCallStatus::Claimed)? =>
        {
            end_cancelled(ctx, session).map(drop)
        }
        _ => Ok(()),
    })
}

fn end_cancelled(ctx: &mut Context<'_>, session: Session) -> Result<Session, Abort> {
    let reason = session.cancel_reason.clone();
    end(ctx, session, SessionStatus::Failed, |session| {
        session.error_code = Some(CANCELLED.to_owned());
        session.error_message.clone_from(&reason);
        session.reason = reason;
    })
}

/// Completes or fails a session. A cleanup ends its contents.
pub(crate) fn end(
    ctx: &mut Context<'_>,
    session: Session,
    status: SessionStatus,
    with: impl FnOnce(&mut Session),
) -> Result<Session, Abort> {
    let session = to_status(ctx, session, status, with)?;
    end_contents(ctx, &session)?;
    Ok(session)
}

/// Ends the run and the handoff of a session, even if its caller cannot see them.
fn end_contents(ctx: &mut Context<'_>, session: &Session) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        run::stop::abort_of_session(ctx, &session.id, session.cancel_requested_at.is_some())?;
        handoff::cancel_of_session(ctx, &session.id)
    })
}
