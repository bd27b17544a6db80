//! What ends with a run: its driver is asked to stop, its session is released, its request for a supervisor is withdrawn. The
//! reducers (`run/end.rs`) and cleanups that call this handle the runs that it delegated.

use abide_schema::{Abort, Context};
use serde_json::json;

use super::delegated_session::LeftCalls;
use super::{
    Run, RunEventKind, RunStatus, add_consequence, add_status, delegated_session, find_active,
    save, wait,
};
use crate::cleanup::{self, Task};
use crate::session::{self, Session, SessionStatus};
use crate::{budget, delegation, handoff};

/// The code of an aborted run.
pub(super) const ABORTED: &str = "aborted";

/// The message of a run that was aborted without a reason.
pub(super) const ABORTED_MESSAGE: &str = "the run was aborted";

/// The reason for aborting delegated runs.
pub(crate) const CUT_OFF: &str = "the run that delegated it has ended";

/// Returns `true` if a run is active, and its driver was not asked to stop.
pub(crate) fn may_continue(run: &Run) -> bool {
    !run.status.is_terminal() && run.abort_requested_at.is_none()
}

/// Aborts the run of a session that has ended or is about to end. A cleanup aborts the runs that it delegated; if
/// the session is cancelled, the session's own cleanup does, because it reaches their sessions.
pub(crate) fn abort_of_session(
    ctx: &mut Context<'_>,
    session_id: &str,
    is_cancelled: bool,
) -> Result<(), Abort> {
    let Some(run) = find_active(ctx, session_id)?.filter(may_continue) else { return Ok(()) };
    let delegated = (!is_cancelled).then(|| Task::delegated(&run));
    let run = stop(ctx, run, Some("the session has ended"))?;
    match delegated {
        Some(task) if delegation::has_delegated(ctx, &run.id)? => cleanup::defer(ctx, task),
        _ => Ok(()),
    }
}

/// As [`stop`], for a run whose session goes on: a session that rested because the run waited is active again.
pub(crate) fn stop_alone(
    ctx: &mut Context<'_>,
    run: Run,
    reason: Option<&str>,
) -> Result<Run, Abort> {
    let waited = run.status == RunStatus::Waiting;
    let run = stop(ctx, run, reason)?;
    withdraw_handoff(ctx, &run)?;
    if waited {
        wake_session(ctx, &run)?;
    }
    Ok(run)
}

/// Withdraws the request for a supervisor that a call of the run waits for. Nobody would get the answer, and no other run could
/// start before it.
fn withdraw_handoff(ctx: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    handoff::withdraw_of_calls(ctx, &run.session_id)
}

/// Activates the session of a run that no longer waits, unless it rests for another reason.
fn wake_session(ctx: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let Some(session) = ctx.without_policies(|ctx| ctx.get::<Session>(&run.session_id))? else {
        return Ok(());
    };
    let because_of_run = session.reason.as_deref().is_some_and(|reason| {
        reason.strip_prefix("run ").is_some_and(|rest| {
            rest.strip_prefix(run.id.as_str()).is_some_and(|it| it.starts_with(" waits for "))
        })
    });
    if session.status != SessionStatus::Suspended || !because_of_run {
        return Ok(());
    }
    ctx.without_policies(|ctx| {
        session::to_status(ctx, session, SessionStatus::Active, |_| {}).map(drop)
    })
}

/// Marks a run as aborted, and ends it if it has no driver. The caller handles the runs that it delegated.
pub(crate) fn stop(
    ctx: &mut Context<'_>,
    mut run: Run,
    reason: Option<&str>,
) -> Result<Run, Abort> {
    run.abort_requested_at.get_or_insert(ctx.now);
    if run.driver.is_some() {
        run.reason = reason.map(str::to_owned);
    } else {
        budget::release(ctx, &run)?;
        if run.status == RunStatus::Waiting {
            // The turn has ended with its interrupt; the end of the run is reported in a new turn.
            run.turn += 1;
        }
        let message = reason.unwrap_or(ABORTED_MESSAGE);
        fail(ctx, &mut run, RunStatus::Aborted, ABORTED, message)?;
    }
    let has_ended = run.status.is_terminal();
    let run = save(ctx, run)?;
    if has_ended {
        delegated_session::end(ctx, &run, LeftCalls::AreCancelled)?;
        wait::wake_above(ctx, &run)?;
    }
    Ok(run)
}

/// The code of a run that was exported and continues elsewhere.
pub(crate) const MOVED: &str = "moved";

/// Ends a waiting run that continues elsewhere. The caller handles the runs that it delegated.
pub(crate) fn end_moved(ctx: &mut Context<'_>, mut run: Run, why: &str) -> Result<(), Abort> {
    run.abort_requested_at = Some(ctx.now);
    budget::release(ctx, &run)?;
    // The turn has ended with its interrupt.
    run.turn += 1;
    fail(ctx, &mut run, RunStatus::Aborted, MOVED, why)?;
    let run = save(ctx, run)?;
    delegated_session::end(ctx, &run, LeftCalls::AreCancelled)?;
    withdraw_handoff(ctx, &run)?;
    wake_session(ctx, &run)
}

/// The code of a run that has reached its time limit. Drivers use the same.
const OVERDUE: &str = "execution_timeout";
const OVERDUE_MESSAGE: &str = "the run has reached its time limit";

/// Ends a run that waits at its time limit. The caller handles its calls and the runs that it delegated.
pub(super) fn end_overdue(ctx: &mut Context<'_>, mut run: Run) -> Result<Run, Abort> {
    budget::release(ctx, &run)?;
    // The turn has ended with its interrupt.
    run.turn += 1;
    fail(ctx, &mut run, RunStatus::Failed, OVERDUE, OVERDUE_MESSAGE)?;
    let run = save(ctx, run)?;
    delegated_session::end(ctx, &run, LeftCalls::AreCancelled)?;
    withdraw_handoff(ctx, &run)?;
    wake_session(ctx, &run)?;
    wait::wake_above(ctx, &run)?;
    Ok(run)
}

/// Ends a run with an error. The caller saves it.
pub(super) fn fail(
    ctx: &mut Context<'_>,
    run: &mut Run,
    to: RunStatus,
    code: &str,
    message: &str,
) -> Result<(), Abort> {
    run.status = to;
    run.error_code = Some(code.to_owned());
    run.error_message = Some(message.to_owned());
    add_status(ctx, run, "idle")?;
    add_consequence(ctx, run, RunEventKind::Error, json!({"message": message, "code": code}))?;
    let reason = (to == RunStatus::Aborted).then(|| message.to_owned());
    run.close(ctx.now, reason);
    Ok(())
}
