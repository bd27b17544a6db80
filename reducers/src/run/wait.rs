//! How a run waits for a decision, and continues. A driver asks for the wait ([`wait_run()`]); a decision on a call, a
//! settlement, an answered handoff or a resumed session continues it ([`continue_if_decided`]). A run that continues
//! has no driver, so any runtime can claim it.

use abide_schema::{Abort, Context, Micros, Value, reducer};
use serde_json::{Map, Value as JsonValue};

use super::drive::find_continuing;
use super::{
    PAUSED, Run, RunEventKind, RunStatus, WaitLimit, add_consequence, add_status, find_active, save,
};
use crate::session::{self, Session, SessionStatus};
use crate::tool_call::{self, ToolCallStatus};

/// Suspends a run until a decision is made. If it was made meanwhile, the run continues
/// immediately; otherwise it waits without a driver. `interrupt` is the event for consumers.
#[reducer(roles(app, agent))]
pub fn wait_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    fencing_token: i64,
    interrupt: Map<String, JsonValue>,
    /// When the run ends if it still waits: the time limit of an agent that has taken over the turn, if it includes waits.
    ends_at: Option<Micros>,
) -> Result<Run, Abort> {
    let mut run = find_continuing(ctx, &id, fencing_token)?;
    let session = session::find(ctx, &run.session_id)?;
    let is_suspended = session.status == SessionStatus::Suspended;
    let own_reason =
        find_wait_reason(ctx, &session)?.or_else(|| is_suspended.then(|| RESUME.to_owned()));
    let reason = match own_reason {
        Some(reason) => Some(reason),
        None => find_wait_reason_below(ctx, &run)?,
    };
    let Some(reason) = reason else { return Ok(run) };
    limit_wait(ctx, &run, ends_at)?;
    add_consequence(ctx, &mut run, RunEventKind::Interrupt, JsonValue::Object(interrupt))?;
    if session.status == SessionStatus::Active {
        let why = format!("run {id} waits for {reason}");
        session::to_status(ctx, session, SessionStatus::Suspended, |it| it.reason = Some(why))?;
    }
    run.status = RunStatus::Waiting;
    run.reason = Some(reason);
    run.release_driver();
    save(ctx, run)
}

/// Sets or removes the time limit of a wait that begins, besides that of the run.
pub(crate) fn limit_wait(
    ctx: &mut Context<'_>,
    run: &Run,
    ends_at: Option<Micros>,
) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        if ctx.get::<WaitLimit>(&run.id)?.is_some() {
            ctx.delete::<WaitLimit>(&run.id)?;
        }
        let Some(ends_at) = ends_at else { return Ok(()) };
        let run_id = run.id.clone();
        let session_id = run.session_id.clone();
        ctx.insert(WaitLimit { run_id, session_id, ends_at, seq: ctx.seq }).map(drop)
    })
}

/// The reason for which a run waits while its session is suspended.
const RESUME: &str = "resume";

/// Returns the reason for which the run of a session has to wait: `handoff`, `approval` or `settlement`; `None` if it
/// can continue, or if it only waits for a resumption or for a delegated run.
fn find_wait_reason(ctx: &mut Context<'_>, session: &Session) -> Result<Option<String>, Abort> {
    use ToolCallStatus::{AwaitingApproval, Unknown};
    // First: until the supervisor answers, a decision on a call does not continue the run.
    if session.status == SessionStatus::HandedOff {
        return Ok(Some("handoff".to_owned()));
    }
    for (status, reason) in [(AwaitingApproval, "approval"), (Unknown, "settlement")] {
        if tool_call::has_any(ctx, &session.id, status)? {
            return Ok(Some(reason.to_owned()));
        }
    }
    Ok(None)
}

/// Returns the reason for which a run has to wait because a run that it delegated waits; `None` if no such run waits.
fn find_wait_reason_below(ctx: &mut Context<'_>, run: &Run) -> Result<Option<String>, Abort> {
    let waiting = "WHERE status = 'waiting' AND id IN
        (SELECT run_id FROM delegations WHERE parent_id = ?1) ORDER BY id LIMIT 1";
    let params = [Value::from(run.id.as_str())];
    let below = ctx.without_policies(|ctx| ctx.find::<Run>(waiting, &params))?;
    Ok(below.into_iter().next().map(|below| match below.reason.as_deref() {
        // Its own session, or the run itself, would have to be resumed.
        None | Some(RESUME | PAUSED) => DELEGATION.to_owned(),
        Some(reason) => reason.to_owned(),
    }))
}

/// The reason for which a run waits while the session of a run that it delegated is suspended.
const DELEGATION: &str = "delegation";

/// Continues the runs above a run that no longer waits: their drivers look at what else they wait for.
pub(super) fn wake_above(ctx: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let Some(parent_id) = &run.parent_id else { return Ok(()) };
    ctx.without_policies(|ctx| match ctx.get::<Run>(parent_id)? {
        Some(parent) if parent.status == RunStatus::Waiting => {
            continue_run(ctx, &parent.session_id)
        }
        _ => Ok(()),
    })
}

/// Continues a session's run if the last thing that it waited for has arrived, whether
/// the caller can see the run or not. A session without a run that was suspended for it is active again.
pub(crate) fn continue_if_decided(ctx: &mut Context<'_>, session_id: &str) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        continue_run(ctx, session_id)?;
        if find_active(ctx, session_id)?.is_none() {
            activate_session(ctx, session_id)?;
        }
        Ok(())
    })
}

/// The beginning of the reason of a session without a run that is suspended for a decision. No caller can give such a reason:
/// the next decision would make the session active again.
pub(crate) const CALL_WAITS: &str = "a call waits for ";

/// Suspends a session without a run while a call of it waits for a decision, as `wait_run` does for a run.
pub(crate) fn suspend_for_call(ctx: &mut Context<'_>, session_id: &str) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        let Some(session) = ctx.get::<Session>(session_id)? else { return Ok(()) };
        if !matches!(session.status, SessionStatus::Created | SessionStatus::Active)
            || find_active(ctx, session_id)?.is_some()
        {
            return Ok(());
        }
        let Some(what) = find_wait_reason(ctx, &session)? else { return Ok(()) };
        let reason = format!("{CALL_WAITS}{what}");
        session::to_status(ctx, session, SessionStatus::Suspended, |it| it.reason = Some(reason))
            .map(drop)
    })
}

/// Returns `true` if a session is suspended only because a call of it waits for a decision.
pub(crate) fn is_suspended_for_call(session: &Session) -> bool {
    session.status == SessionStatus::Suspended
        && session.reason.as_deref().is_some_and(|reason| reason.starts_with(CALL_WAITS))
}

/// Activates a session without a run that was suspended for the decision on a call.
fn activate_session(ctx: &mut Context<'_>, session_id: &str) -> Result<(), Abort> {
    let Some(session) = ctx.get::<Session>(session_id)? else { return Ok(()) };
    if !is_suspended_for_call(&session) || find_wait_reason(ctx, &session)?.is_some() {
        return Ok(());
    }
    session::to_status(ctx, session, SessionStatus::Active, |_| {}).map(drop)
}

/// Continues the waiting run of a session, unless there is something else to wait for.
fn continue_run(ctx: &mut Context<'_>, session_id: &str) -> Result<(), Abort> {
    let waiting = "WHERE session_id = ?1 AND status IN ('running', 'waiting')";
    let runs = ctx.find::<Run>(waiting, &[Value::from(session_id)])?;
    let Some(mut run) = runs.into_iter().find(|run| run.status == RunStatus::Waiting) else {
        return Ok(());
    };
    let Some(session) = ctx.get::<Session>(session_id)? else { return Ok(()) };
    if run.reason.as_deref() == Some(PAUSED) {
        return Ok(());
    }
    // A suspended session is woken by resume_session; a decision alone does not wake it.
    let needs_resume =
        session.status == SessionStatus::Suspended && run.reason.as_deref() == Some(RESUME);
    if needs_resume || session.status.is_terminal() || find_wait_reason(ctx, &session)?.is_some() {
        return Ok(());
    }
    if session.status == SessionStatus::Suspended {
        session::to_status(ctx, session, SessionStatus::Active, |_| {})?;
    }
    run.status = RunStatus::Running;
    next_turn(ctx, run).map(drop)
}

/// Continues a paused run. Its driver looks at what else it waits for.
pub(crate) fn continue_after_pause(ctx: &mut Context<'_>, mut run: Run) -> Result<Run, Abort> {
    run.status = RunStatus::Running;
    next_turn(ctx, run)
}

/// Starts the next turn of a run that is claimable again.
fn next_turn(ctx: &mut Context<'_>, mut run: Run) -> Result<Run, Abort> {
    run.reason = None;
    run.turn += 1;
    add_status(ctx, &mut run, "resuming")?;
    let run = save(ctx, run)?;
    wake_above(ctx, &run)?;
    Ok(run)
}
