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
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, limits, reducer, table,
};
use serde_json::Value as JsonValue;

use crate::cleanup::{self, Task};
use crate::tool_call::{ToolCallStatus, cancel};
use crate::{check, handoff, run};

pub(crate) mod scope;

/// Status of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum SessionStatus {
    /// Created, no message yet.
    Created,
    /// The agent is working.
    Active,
    /// Suspended until something arrives.
    Suspended,
    /// Handed off to a supervisor.
    HandedOff,
    /// Completed.
    Completed,
    /// Failed or cancelled.
    Failed,
}

/// The `error_code` of a cancelled session.
const CANCELLED: &str = "cancelled";

impl SessionStatus {
    /// Every status.
    pub const ALL: [SessionStatus; 6] = [
        SessionStatus::Created,
        SessionStatus::Active,
        SessionStatus::Suspended,
        SessionStatus::HandedOff,
        SessionStatus::Completed,
        SessionStatus::Failed,
    ];

    /// Whether the status is final.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, SessionStatus::Completed | SessionStatus::Failed)
    }

    /// Whether a session may change from this status to another. Keeping the status is not a transition.
    #[must_use]
    pub fn may_become(self, to: SessionStatus) -> bool {
        use SessionStatus::{Active, Completed, Created, Failed, HandedOff, Suspended};
        match self {
            Created => to != Created,
            Active => !matches!(to, Created | Active),
            Suspended => matches!(to, Active | HandedOff | Completed | Failed),
            HandedOff => matches!(to, Active | Failed),
            Completed | Failed => false,
        }
    }
}

const TRANSITIONS: &str = "CREATE TRIGGER sessions_transition BEFORE UPDATE OF status ON sessions
WHEN OLD.status <> NEW.status AND OLD.status || '>' || NEW.status NOT IN (
  'created>active', 'created>suspended', 'created>handed_off', 'created>completed', 'created>failed',
  'active>suspended', 'active>handed_off', 'active>completed', 'active>failed',
  'suspended>active', 'suspended>handed_off', 'suspended>completed', 'suspended>failed',
  'handed_off>active', 'handed_off>failed')
BEGIN SELECT RAISE(FAIL, 'bad_transition: the status of the session does not allow it'); END";

// All columns except `updated_at` and `seq`, which are written with every message:
// a trigger on them would cost more than the write.
const ENDED: &str = "CREATE TRIGGER sessions_ended BEFORE UPDATE OF
  id, agent, status, parent_id, title, scope, metadata, result, error_code, error_message, reason,
  cancel_requested_at, cancel_reason, created_at ON sessions
WHEN OLD.status = 'completed' OR OLD.status = 'failed'
BEGIN SELECT RAISE(FAIL, 'bad_transition: the session has ended'); END";

/// A session: a durable, addressable unit of an agent's work.
#[table(
    name = "sessions",
    index(parent_id, id, where = "parent_id IS NOT NULL"),
    trigger = TRANSITIONS,
    trigger = ENDED
)]
pub struct Session {
    /// Its id, chosen by the caller, or `s_` and a ULID.
    #[column(key)]
    pub id: String,
    /// The agent that owns it.
    pub agent: String,
    /// Its status.
    pub status: SessionStatus,
    /// The parent session.
    #[column(references = "sessions(id)")]
    pub parent_id: Option<String>,
    /// A title for people.
    pub title: Option<String>,
    /// Application-defined keys, such as a tenant, that decide who can see the session.
    #[column(scope)]
    pub scope: Json,
    /// Other data of the application.
    pub metadata: Json,
    /// Its result.
    pub result: Option<Json>,
    /// Why it failed, for programs; `cancelled` if it was cancelled.
    pub error_code: Option<String>,
    /// Why it failed, for people.
    pub error_message: Option<String>,
    /// The reason for its status, if given.
    pub reason: Option<String>,
    /// When its cancellation was requested. It ends when its workers have stopped.
    pub cancel_requested_at: Option<Micros>,
    /// Why it was cancelled.
    pub cancel_reason: Option<String>,
    /// When it was created.
    pub created_at: Micros,
    /// When it last changed, including its messages.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// The module.
#[must_use]
pub fn module() -> Module {
    Module::new("session")
        .visible::<Session>(RowVisibility::InScope)
        .sessions::<Session>()
        .reducer(create_session::definition())
        .reducer(suspend_session::definition())
        .reducer(resume_session::definition())
        .reducer(complete_session::definition())
        .reducer(fail_session::definition())
        .reducer(cancel_session::definition())
}

/// Creates a session. It gets the scope of the caller and of its parent session; `scope`
/// can add keys, but not remove these.
#[reducer]
pub fn create_session(
    ctx: &mut Context<'_>,
    /// The agent that owns it.
    agent: String,
    /// Its id; generated if omitted.
    #[id(new, Session)]
    id: Option<String>,
    /// A title for people.
    title: Option<String>,
    /// The parent session, for a session that works for another one.
    #[id(Session)]
    parent_id: Option<String>,
    /// Application-defined keys, such as a tenant, that decide who can see the session.
    scope: Option<serde_json::Map<String, JsonValue>>,
    /// Other data to store with it.
    metadata: Option<serde_json::Map<String, JsonValue>>,
) -> Result<Session, Abort> {
    check::name("agent", &agent)?;
    let id = match id {
        Some(id) => {
            check::name("id", &id)?;
            if ctx.get::<Session>(&id)?.is_some() {
                return Err(exists(&id).hint("omit id to get a generated one").into());
            }
            id
        }
        None => ctx.new_id("s"),
    };
    let mut scope = scope.unwrap_or_default();
    if let Some(parent) = &parent_id {
        let parent = wanted(ctx, parent)?;
        check_depth(ctx, &parent)?;
        scope::inherit(&mut scope, &parent)?;
    }
    let metadata = metadata.unwrap_or_default();
    insert(ctx, NewSession { id, agent, title, parent_id, scope, metadata })
}

/// Creates the session of a run that was started for a tool call: its id is that of the call, and it has the scope of
/// the call's session.
pub(crate) fn make_child(
    ctx: &mut Context<'_>,
    id: String,
    agent: String,
    parent: &Session,
) -> Result<Session, Abort> {
    if ctx.get::<Session>(&id)?.is_some() {
        return Err(exists(&id).into());
    }
    check_depth(ctx, parent)?;
    let mut scope = serde_json::Map::new();
    scope::inherit(&mut scope, parent)?;
    let metadata = serde_json::Map::from_iter([("call_id".to_owned(), id.as_str().into())]);
    let parent_id = Some(parent.id.clone());
    insert(ctx, NewSession { id, agent, title: None, parent_id, scope, metadata })
}

fn exists(id: &str) -> Refusal {
    Refusal::new(Code::Conflict, format!("session {id} already exists"))
}

/// Attributes of a new session.
struct NewSession {
    id: String,
    agent: String,
    title: Option<String>,
    parent_id: Option<String>,
    scope: serde_json::Map<String, JsonValue>,
    metadata: serde_json::Map<String, JsonValue>,
}

fn insert(ctx: &mut Context<'_>, new: NewSession) -> Result<Session, Abort> {
    let NewSession { id, agent, title, parent_id, mut scope, metadata } = new;
    scope::confine(&mut scope, ctx.caller)?;
    ctx.about(&id);
    let (now, seq) = (ctx.now, ctx.seq);
    ctx.insert(Session {
        id,
        agent,
        status: SessionStatus::Created,
        parent_id,
        title,
        scope: Json::from(JsonValue::Object(scope)),
        metadata: Json::from(JsonValue::Object(metadata)),
        result: None,
        error_code: None,
        error_message: None,
        reason: None,
        cancel_requested_at: None,
        cancel_reason: None,
        created_at: now,
        updated_at: now,
        seq,
    })
}

/// Suspends a session until something arrives for it.
#[reducer]
pub fn suspend_session(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    reason: Option<String>,
) -> Result<Session, Abort> {
    let session = find(ctx, &session_id)?;
    to_status(ctx, session, SessionStatus::Suspended, |session| session.reason = reason)
}

/// Resumes a suspended session.
#[reducer]
pub fn resume_session(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    reason: Option<String>,
) -> Result<Session, Abort> {
    let session = find(ctx, &session_id)?;
    if session.status != SessionStatus::Suspended {
        return Err(not_from(&session, "resumed").into());
    }
    let session =
        to_status(ctx, session, SessionStatus::Active, |session| session.reason = reason)?;
    run::wake(ctx, &session_id)?;
    Ok(session)
}

/// Completes a session. Its unclaimed calls are cancelled, workers of claimed ones are asked to stop.
#[reducer]
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
#[reducer]
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
#[reducer]
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
        return Err(not_from(&session, "cancelled").into());
    }
    let session = mark_cancelled(ctx, session, reason.as_deref())?;
    cleanup::begin(ctx, Task::cancel(&session_id, reason.as_deref()))?;
    Ok(ReducerResult::Fresh(session))
}

/// Marks one session as cancelled, and ends it if nothing of it runs. A cleanup ends its calls, timers and child
/// sessions.
pub(crate) fn mark_cancelled(
    ctx: &mut Context<'_>,
    mut session: Session,
    reason: Option<&str>,
) -> Result<Session, Abort> {
    session.cancel_requested_at = Some(ctx.now);
    session.cancel_reason = reason.map(str::to_owned);
    if !cancel::any(ctx, &session.id, ToolCallStatus::Claimed)? {
        return end_cancelled(ctx, session);
    }
    release(ctx, &session)?;
    if session.status == SessionStatus::HandedOff {
        return to_status(ctx, session, SessionStatus::Active, |_| {});
    }
    session.updated_at = ctx.now;
    session.seq = ctx.seq;
    ctx.update(&session)?;
    Ok(session)
}

/// The next child session, in the order of ids.
pub(crate) fn next_made_for(
    ctx: &mut Context<'_>,
    parent_id: &str,
    after: &str,
) -> Result<Option<Session>, Abort> {
    Ok(made_for(ctx, parent_id, after, 1)?.pop())
}

/// At most `most` child sessions after an id, in the order of ids.
pub(crate) fn made_for(
    ctx: &mut Context<'_>,
    parent_id: &str,
    after: &str,
    most: usize,
) -> Result<Vec<Session>, Abort> {
    let next = "WHERE parent_id = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
    ctx.find::<Session>(next, &[parent_id.into(), after.into(), (most as i64).into()])
}

/// The session `?1` and its ancestors from which a cancellation would reach it. An ended session stops
/// the propagation.
const ABOVE: &str = "WITH RECURSIVE above(id, parent_id, depth) AS (
  SELECT id, parent_id, 0 FROM sessions WHERE id = ?1
  UNION ALL
  SELECT s.id, s.parent_id, above.depth + 1 FROM above JOIN sessions AS s ON s.id = above.parent_id
  WHERE above.depth < ?2
    AND (s.cancel_requested_at IS NOT NULL OR s.status NOT IN ('completed', 'failed')))
  SELECT id FROM above";

/// Whether a session has ended, is cancelled, or has a cancelled ancestor: then nothing new starts in it. Ancestors
/// are checked only while a cleanup is unfinished; afterwards all descendants are marked.
pub(crate) fn is_closing(ctx: &mut Context<'_>, session: &Session) -> Result<bool, Abort> {
    if session.cancel_requested_at.is_some() || session.status.is_terminal() {
        return Ok(true);
    }
    if session.parent_id.is_none() || !cleanup::are_any(ctx)? {
        return Ok(false);
    }
    let above = format!("WHERE cancel_requested_at IS NOT NULL AND id IN ({ABOVE})");
    let params = [session.id.as_str().into(), limits::SESSION_DEPTH.into()];
    Ok(ctx.count_everywhere::<Session>(&above, &params)? > 0)
}

/// Refuses a session with so many ancestors that checking them would be slow.
fn check_depth(ctx: &mut Context<'_>, parent: &Session) -> Result<(), Abort> {
    if parent.parent_id.is_none() {
        return Ok(());
    }
    let most = limits::SESSION_DEPTH;
    let params = [parent.id.as_str().into(), most.into()];
    let above = ctx.count_everywhere::<Session>(&format!("WHERE id IN ({ABOVE})"), &params)?;
    if above <= most {
        return Ok(());
    }
    let detail = format!("session {} already has {most} ancestors", parent.id);
    Err(Refusal::new(Code::LimitExceeded, detail).into())
}

/// Called after a call of a cancelled session has stopped: if it was the last, the session ends.
pub(crate) fn stopped(ctx: &mut Context<'_>, id: &str) -> Result<(), Abort> {
    ctx.without_policies(|ctx| match ctx.get::<Session>(id)? {
        Some(session)
            if session.cancel_requested_at.is_some()
                && !session.status.is_terminal()
                && !cancel::any(ctx, id, ToolCallStatus::Claimed)? =>
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

/// Loads a session; the event will name it.
pub(crate) fn find(ctx: &mut Context<'_>, id: &str) -> Result<Session, Abort> {
    let session = ctx.get::<Session>(id)?;
    let session = session.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no session {id}"))
            .hint("create it with  abide call create_session")
    })?;
    ctx.about(id);
    Ok(session)
}

/// The same, if it has not ended.
pub(crate) fn open(ctx: &mut Context<'_>, id: &str) -> Result<Session, Abort> {
    let session = find(ctx, id)?;
    if session.status.is_terminal() {
        let detail = format!("session {id} is {} and accepts nothing more", session.status);
        return Err(Refusal::new(Code::BadTransition, detail).hint("create a new session").into());
    }
    Ok(session)
}

/// The same, if it is not cancelled, so that new work can start for it.
pub(crate) fn wanted(ctx: &mut Context<'_>, id: &str) -> Result<Session, Abort> {
    let session = open(ctx, id)?;
    if is_closing(ctx, &session)? {
        let detail = format!("session {id} is being cancelled and accepts no new work");
        return Err(Refusal::new(Code::BadTransition, detail).into());
    }
    Ok(session)
}

/// Records activity in a session without changing anything else.
pub(crate) fn touch(ctx: &mut Context<'_>, mut session: Session) -> Result<(), Abort> {
    session.updated_at = ctx.now;
    session.seq = ctx.seq;
    ctx.touch(session)
}

/// Changes the status of a session and related columns.
pub(crate) fn to_status(
    ctx: &mut Context<'_>,
    mut session: Session,
    status: SessionStatus,
    with: impl FnOnce(&mut Session),
) -> Result<Session, Abort> {
    if !session.status.may_become(status) {
        return Err(not_from(&session, status.as_str()).into());
    }
    session.status = status;
    session.reason = None;
    session.updated_at = ctx.now;
    session.seq = ctx.seq;
    with(&mut session);
    ctx.update(&session)?;
    Ok(session)
}

/// Completes or fails a session. A cleanup ends its contents.
fn end(
    ctx: &mut Context<'_>,
    session: Session,
    status: SessionStatus,
    with: impl FnOnce(&mut Session),
) -> Result<Session, Abort> {
    let session = to_status(ctx, session, status, with)?;
    release(ctx, &session)?;
    Ok(session)
}

/// Ends the run and the handoff of a session, even if its caller cannot see them.
fn release(ctx: &mut Context<'_>, session: &Session) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        run::end::abort_of_session(ctx, &session.id, session.cancel_requested_at.is_some())?;
        handoff::cancel_of_session(ctx, &session.id)
    })
}

fn not_from(session: &Session, what: &str) -> Refusal {
    let (id, status) = (&session.id, session.status);
    let refusal = Refusal::new(
        Code::BadTransition,
        format!("session {id} is {status}, so it cannot be {what}"),
    );
    if status.is_terminal() {
        refusal.hint("an ended session cannot change; create a new one")
    } else {
        refusal
    }
}

#[cfg(test)]
mod tests;
