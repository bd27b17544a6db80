//! Starting a run, by a caller or for a delegation.

use abide_schema::reducer::ReducerResult;
use abide_schema::{Abort, Caller, Code, Context, Micros, Refusal, reducer};

use super::active_agent::last_of_session;
use super::{Run, RunStatus, add_status, find_active, list, save, starter};
use crate::agent::RunPurpose;
use crate::message::rows::{NewEntry, append};
use crate::session::{self, Session, SessionStatus};
use crate::{agent, check, claim_queue, lease};

/// Starts a run of a session's agent. `input` is the user's message. Another agent is accepted only if it took over the turn of
/// the last run in the session by a handoff. A run for a delegation is started by `start_child_run` instead. The definition of the agent says who may start its
/// runs: `allow`.
/// A session has one run at a time. The same `id` for the same session is the same run.
#[reducer(roles(app, agent))]
pub fn start_run(
    ctx: &mut Context<'_>,
    /// The session.
    #[id(Session)]
    session_id: String,
    /// The agent; the session's own if omitted.
    agent: Option<String>,
    /// The user's message.
    input: Option<String>,
    /// An id chosen by the caller. The same id means the same run.
    #[id(new, Run)]
    id: Option<String>,
    /// Time limit of the run in milliseconds.
    deadline_ms: Option<i64>,
) -> Result<ReducerResult<Run>, Abort> {
    if let Some(id) = &id {
        check::name("id", id)?;
        if let Some(before) = ctx.get::<Run>(id)? {
            return repeat_start(ctx, before, &session_id, agent.as_deref());
        }
    }
    let session = session::find_accepting(ctx, &session_id)?;
    let agent = agent.unwrap_or_else(|| session.agent.clone());
    let deadline_at = check::time_after("deadline_ms", ctx.now, deadline_ms)?;
    let purpose = RunPurpose::Session;
    let starter = ctx.caller.clone();
    let new = NewRun { id, agent, purpose, starter, input, parent_id: None, deadline_at };
    begin(ctx, session, new).map(ReducerResult::Fresh)
}

/// Attributes of a new run.
pub(crate) struct NewRun {
    pub(crate) id: Option<String>,
    pub(crate) agent: String,
    pub(crate) purpose: RunPurpose,
    /// The caller on whose behalf it works.
    pub(crate) starter: Caller,
    pub(crate) input: Option<String>,
    pub(crate) parent_id: Option<String>,
    pub(crate) deadline_at: Option<Micros>,
}

/// Starts a run in a session without one: decides its revision, time limit and first event. Nobody drives it yet; a driver claims it
/// with `claim_run` or `claim_next_run` (`run/drive.rs`).
pub(crate) fn begin(
    ctx: &mut Context<'_>,
    session: Session,
    NewRun { id, agent, purpose, starter, input, parent_id, deadline_at }: NewRun,
) -> Result<Run, Abort> {
    let session_id = session.id.clone();
    let agent = agent::find_ready(ctx, &agent, purpose, &starter, &session.scope)?;
    if purpose == RunPurpose::Session {
        check_owner(ctx, &session, &agent.name)?;
    }
    if let Some(active) = ctx.without_policies(|ctx| find_active(ctx, &session_id))? {
        return Err(session_has_run(ctx, &session_id, &active)?.into());
    }
    let session = open(ctx, session, input)?;
    let now = ctx.now;
    let seq = ctx.seq;
    let deadline_at = must_end(ctx, &agent.name, agent.revision, now, deadline_at)?;
    let mut run = Run {
        id: id.unwrap_or_else(|| ctx.new_id("run")),
        session_id,
        agent: agent.name,
        revision: agent.revision,
        parent_id,
        status: RunStatus::Running,
        reason: None,
        driver: None,
        fencing_token: None,
        lease_expires_at: None,
        turn: 1,
        iterations: 0,
        tool_calls: 0,
        input_tokens: 0,
        output_tokens: 0,
        usage_missing: 0,
        cost_micros: None,
        events: 0,
        deadline_at,
        abort_requested_at: None,
        output: None,
        error_code: None,
        error_message: None,
        created_at: now,
        ended_at: None,
        updated_at: now,
        seq,
        waited_us: None,
        waiting_since: None,
    };
    starter::insert(ctx, &run, &starter)?;
    claim_queue::set(ctx, run.entry(), true)?;
    list::insert_entries(ctx, &run.listed())?;
    add_status(ctx, &mut run, "thinking")?;
    session::touch(ctx, session)?;
    save(ctx, run)
}

/// Refuses a run of an agent to which neither the session belongs nor the conversation was handed over.
fn check_owner(ctx: &mut Context<'_>, session: &Session, agent: &str) -> Result<(), Abort> {
    let Session { id, agent: owner, .. } = session;
    if owner == agent || last_of_session(ctx, id)?.is_some_and(|active| active == agent) {
        return Ok(());
    }
    let detail = format!("session {id} belongs to agent {owner}, not to agent {agent}");
    let hint = format!("create a session of agent {agent}, or start a run of agent {owner}");
    Err(Refusal::new(Code::BadTransition, detail).hint(hint).into())
}

/// When a run must have ended, whether it waits or not: at the given time, or earlier by the limit of its agent.
pub(crate) fn must_end(
    ctx: &mut Context<'_>,
    agent: &str,
    revision: i64,
    began_at: Micros,
    deadline_at: Option<Micros>,
) -> Result<Option<Micros>, Abort> {
    let of_agent = agent::time_limit(ctx, agent, revision, began_at)?;
    Ok(deadline_at.into_iter().chain(of_agent).min())
}

/// Returns the refusal if a session already has a run; names the run only if the caller may see it.
fn session_has_run(
    ctx: &mut Context<'_>,
    session_id: &str,
    active: &Run,
) -> Result<Refusal, Abort> {
    let Some(Run { id, status, reason, .. }) = ctx.get::<Run>(&active.id)? else {
        let detail = format!("session {session_id} has a run");
        return Ok(Refusal::new(Code::Conflict, detail).hint("wait until it ends"));
    };
    let detail = format!("session {session_id} has run {id}, which is {status}");
    let advice = match reason.filter(|_| status == RunStatus::Waiting) {
        Some(reason) => format!("it continues after the {reason} that it waits for"),
        None => "wait until it ends".to_owned(),
    };
    let hint = format!("{advice}; `abide agent abort {id}` ends it");
    Ok(Refusal::new(Code::Conflict, detail).hint(hint))
}

/// Activates the session of a new run, with the user's message.
fn open(ctx: &mut Context<'_>, session: Session, input: Option<String>) -> Result<Session, Abort> {
    if session.status == SessionStatus::HandedOff {
        let detail = format!("session {} is handed off to a supervisor", session.id);
        let hint = format!(
            "a supervisor answers it with `abide call claim_handoff` and `abide call resolve_handoff` or \
             `abide call reject_handoff`; the handoff is listed by `abide sql \"SELECT id, status FROM handoff_requests \
             WHERE session_id = '{}' AND status IN ('pending', 'claimed')\"`",
            session.id.replace('\'', "''")
        );
        return Err(Refusal::new(Code::BadTransition, detail).hint(hint).into());
    }
    if let Some(input) = input {
        append(ctx, &session, NewEntry::new("user", "message", Some(input), None))?;
    }
    match session.status {
        SessionStatus::Active => Ok(session),
        _ => session::to_status(ctx, session, SessionStatus::Active, |_| {}),
    }
}

fn repeat_start(
    ctx: &mut Context<'_>,
    mut before: Run,
    session_id: &str,
    agent: Option<&str>,
) -> Result<ReducerResult<Run>, Abort> {
    ctx.about(&before.session_id);
    let is_same = before.session_id == session_id && before.parent_id.is_none();
    if is_same && agent.is_none_or(|agent| agent == before.agent) {
        lease::hide_token(ctx, &mut before.fencing_token)?;
        return Ok(ReducerResult::Duplicate(before.seq, before));
    }
    let detail = if before.session_id == session_id {
        format!("run {} belongs to another agent or parent", before.id)
    } else {
        format!("run {} belongs to another session", before.id)
    };
    Err(Refusal::new(Code::Conflict, detail).hint("omit id to get a generated one").into())
}
