//! Sessions: one row each, from created to completed or failed.
//!
//! ```text
//! created ─▶ active ◀─▶ suspended          created may go anywhere, active likewise;
//!               ▲ │                         suspended and handed_off come back to active
//!               │ ▼                         or end; completed and failed are for ever
//!            handed_off      ─▶ completed, failed
//! ```
//!
//! The transition table exists here for the error message, and again in a trigger for the
//! guarantee; a test keeps the two consistent.
//!
//! A cancellation is first recorded on the row: workers that run calls of the session are
//! asked to stop, and the session ends when the last of them has. An idle one ends immediately. Its child
//! sessions follow in steps, see [`mod@cleanup`].

use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{Abort, Code, Context, Json, Module, Refusal, reducer};
use serde_json::Value as JsonValue;

use crate::cleanup::{self, Task};
use crate::{check, run};

pub(crate) mod create;

mod ancestors;
mod end;
mod rows;
pub(crate) mod scope;
pub(crate) mod update;

pub(crate) use ancestors::{find_accepting, is_closing};
pub(crate) use create::{NewSession, create_child, insert};
pub use create::{create_session, open_session};
use end::{CANCELLED, end};
pub(crate) use end::{end_if_stopped, mark_cancelled};
use rows::wrong_status;
pub use rows::{Session, SessionStatus};
pub(crate) use rows::{
    begin_copy, end_copy, fail_copy, find, next_made_for, open, to_status, touch,
};
pub use update::update_session;

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("session")
        .visible::<Session>(RowVisibility::InScope)
        .sessions::<Session>()
        .reducer(create_session::definition())
        .reducer(open_session::definition())
        .reducer(update_session::definition())
        .reducer(suspend_session::definition())
        .reducer(resume_session::definition())
        .reducer(complete_session::definition())
        .reducer(fail_session::definition())
        .reducer(cancel_session::definition())
}

/// Suspends a session until something arrives for it. One that is suspended because a call of it waits for a decision is not
/// continued by the decision.
#[reducer(roles(app, agent, supervisor))]
pub fn suspend_session(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    reason: Option<String>,
) -> Result<Session, Abort> {
    if reason.as_ref().is_some_and(|reason| reason.starts_with(run::CALL_WAITS)) {
        let detail = format!("reason must not begin with {:?}", run::CALL_WAITS);
        let hint = "the engine gives this reason to sessions that it suspends itself";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
    }
    let mut session = find(ctx, &session_id)?;
    if run::is_suspended_for_call(&session) {
        session.reason = reason;
        session.updated_at = ctx.now;
        session.seq = ctx.seq;
        ctx.update(&session)?;
        return Ok(session);
    }
    to_status(ctx, session, SessionStatus::Suspended, |session| session.reason = reason)
}

/// Resumes a suspended session. Refused if the caller that started its run may no longer start runs of the agent.
#[reducer(roles(app, agent, supervisor))]
pub fn resume_session(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    reason: Option<String>,
) -> Result<Session, Abort> {
    let session = find(ctx, &session_id)?;
    if session.status != SessionStatus::Suspended {
        return Err(wrong_status(&session, "resumed").into());
    }
    run::starter::check_continues(ctx, &session_id)?;
    let session =
        to_status(ctx, session, SessionStatus::Active, |session| session.reason = reason)?;
    run::continue_if_decided(ctx, &session_id)?;
    Ok(session)
}

/// Completes a session. Its unclaimed calls are cancelled, workers of claimed ones are asked to stop.
#[reducer(roles(app, agent))]
pub fn complete_session(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    result: Option<JsonValue>,
) -> Result<Session, Abort> {
    let session = find(ctx, &session_id)?;
    let session = end(ctx, session, SessionStatus::Completed, |session| {
        session.result = result.map(Json::from);
    })?;
    cleanup::begin(ctx, Task::end(&session_id))?;
    Ok(session)
}

/// Fails a session. Its unclaimed calls are cancelled, workers of claimed ones are asked to stop.
#[reducer(roles(app, agent))]
pub fn fail_session(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    /// Why it failed, for programs.
    code: String,
    /// Why it failed, for people.
    message: String,
) -> Result<Session, Abort> {
    check::name("code", &code)?;
    let session = find(ctx, &session_id)?;
    let session = end(ctx, session, SessionStatus::Failed, |session| {
        session.error_code = Some(code);
        session.error_message = Some(message);
    })?;
    cleanup::begin(ctx, Task::end(&session_id))?;
    Ok(session)
}

/// Cancels a session and its child sessions. Without running workers it ends
/// immediately: `failed`, with the code `cancelled`. Otherwise its workers are asked to stop, and it
/// ends when the last of them has. If it has more rows than one transaction should end, the rest follows
/// in steps; no new work starts for it or its child sessions from now on.
#[reducer(roles(app, supervisor))]
pub fn cancel_session(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    reason: Option<String>,
) -> Result<ReducerResult<Session>, Abort> {
    let session = find(ctx, &session_id)?;
    let cancelled = session.error_code.as_deref() == Some(CANCELLED);
    if session.cancel_requested_at.is_some() && (cancelled || !session.status.is_terminal()) {
        return Ok(ReducerResult::Duplicate(session.seq, session));
    }
    if session.status.is_terminal() {
        return Err(wrong_status(&session, "cancelled").into());
    }
    let session = mark_cancelled(ctx, session, reason.as_deref())?;
    cleanup::begin(ctx, Task::cancel(&session_id, reason.as_deref()))?;
    Ok(ReducerResult::Fresh(session))
}
