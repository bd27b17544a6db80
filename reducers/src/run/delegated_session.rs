//! The session of a delegated run ends with the run: no other run starts in it.

use abide_schema::{Abort, Context};

use super::{Run, RunStatus};
use crate::cleanup::{Task, defer};
use crate::handoff;
use crate::session::{self, Session, SessionStatus};
use crate::timer::{self, TimerStatus};
use crate::tool_call::{self, ToolCallStatus};

/// What ends the calls that are left in a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LeftCalls {
    /// Nothing: the run is done, or its abort has ended them.
    Stay,
    /// The cleanup of the run.
    AreCancelled,
}

/// Ends the session of a run that has ended, if the run was delegated and the session has not ended. A cancelled session ends
/// when its workers have stopped.
pub(super) fn end(ctx: &mut Context<'_>, run: &Run, calls: LeftCalls) -> Result<(), Abort> {
    if run.parent_id.is_none() || !run.status.is_terminal() {
        return Ok(());
    }
    ctx.without_policies(|ctx| {
        let Some(session) = ctx.get::<Session>(&run.session_id)?.filter(goes_on) else {
            return Ok(());
        };
        if needs_cleanup(ctx, &session.id, calls)? {
            defer(ctx, Task::end(&session.id))?;
        }
        let session = match session.status {
            SessionStatus::HandedOff => {
                handoff::cancel_of_session(ctx, &session.id)?;
                session::to_status(ctx, session, SessionStatus::Active, |_| {})?
            }
            _ => session,
        };
        let status = match run.status {
            RunStatus::Done => SessionStatus::Completed,
            _ => SessionStatus::Failed,
        };
        session::to_status(ctx, session, status, |session| {
            session.result.clone_from(&run.output);
            session.error_code.clone_from(&run.error_code);
            session.error_message.clone_from(&run.error_message);
        })
        .map(drop)
    })
}

fn goes_on(session: &Session) -> bool {
    !session.status.is_terminal() && session.cancel_requested_at.is_none()
}

/// Returns `true` if calls or timers of the session are left for a cleanup.
fn needs_cleanup(ctx: &mut Context<'_>, session_id: &str, calls: LeftCalls) -> Result<bool, Abort> {
    use ToolCallStatus::{AwaitingApproval, Claimed, Pending};
    for status in [AwaitingApproval, Claimed, Pending] {
        if calls == LeftCalls::Stay && tool_call::has_any(ctx, session_id, status)? {
            return Ok(true);
        }
    }
    timer::has_any(ctx, session_id, TimerStatus::Pending)
}
