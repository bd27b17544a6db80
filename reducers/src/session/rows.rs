//! The row of a session, its status, and what reads and writes it.

use abide_schema::{Abort, Code, Context, Json, Micros, Refusal, Seq, TextEnum, table};

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

    /// Returns `true` if the status is final.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, SessionStatus::Completed | SessionStatus::Failed)
    }

    /// Returns `true` if a session may change from this status to another. Keeping the status is not a transition.
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

/// The reason of a session while its history is copied.
const COPYING: &str = "the copy of the history is in progress";

impl Session {
    /// Returns `true` if its history is still being copied. No other call sets the reason of a new session.
    pub(crate) fn is_being_copied(&self) -> bool {
        self.status == SessionStatus::Created && self.reason.as_deref() == Some(COPYING)
    }

    /// Returns the bytes of its values that have no small limit.
    pub(crate) fn bytes(&self) -> usize {
        let result = self.result.as_ref().map_or(0, |result| result.as_str().len());
        let error = self.error_message.as_ref().map_or(0, String::len);
        self.metadata.as_str().len() + result + error
    }
}

/// Marks a new session: its history is copied in later transactions.
pub(crate) fn begin_copy(ctx: &mut Context<'_>, session: &mut Session) -> Result<(), Abort> {
    session.reason = Some(COPYING.to_owned());
    ctx.without_policies(|ctx| ctx.update(session))
}

/// Ends the copy of a session's history.
pub(crate) fn end_copy(
    ctx: &mut Context<'_>,
    mut session: Session,
    has_messages: bool,
) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        if has_messages {
            return to_status(ctx, session, SessionStatus::Active, |_| {}).map(drop);
        }
        if session.reason.take().is_some() {
            session.updated_at = ctx.now;
            session.seq = ctx.seq;
            ctx.update(&session)?;
        }
        Ok(())
    })
}

/// Ends the copy of a session's history, because it could not be completed.
pub(crate) fn fail_copy(
    ctx: &mut Context<'_>,
    session: Session,
    code: String,
    message: String,
) -> Result<Session, Abort> {
    to_status(ctx, session, SessionStatus::Failed, |session| {
        session.error_code = Some(code);
        session.error_message = Some(message);
    })
}

/// Loads a session; the event will name it. Refused while its history is copied.
pub(crate) fn find(ctx: &mut Context<'_>, id: &str) -> Result<Session, Abort> {
    let session = ctx.get::<Session>(id)?.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no session {id}"))
            .hint_query("SELECT id, agent, status FROM sessions")
    })?;
    ctx.about(id);
    if session.is_being_copied() {
        let detail = format!("the history of session {id} is still being copied");
        let hint = "the copy goes on while a process has the file open; the same fork_session call again waits for its end";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    Ok(session)
}

/// Loads a session that has not ended; the event will name it.
pub(crate) fn open(ctx: &mut Context<'_>, id: &str) -> Result<Session, Abort> {
    let session = find(ctx, id)?;
    if session.status.is_terminal() {
        let detail = format!("session {id} is {} and accepts nothing more", session.status);
        return Err(Refusal::new(Code::BadTransition, detail).hint("create a new session").into());
    }
    Ok(session)
}

/// Returns the next child session, in the order of ids.
pub(crate) fn next_made_for(
    ctx: &mut Context<'_>,
    parent_id: &str,
    after: &str,
) -> Result<Option<Session>, Abort> {
    let next = "WHERE parent_id = ?1 AND id > ?2 ORDER BY id LIMIT 1";
    Ok(ctx.find::<Session>(next, &[parent_id.into(), after.into()])?.pop())
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
        return Err(wrong_status(&session, status.as_str()).into());
    }
    session.status = status;
    session.reason = None;
    session.updated_at = ctx.now;
    session.seq = ctx.seq;
    with(&mut session);
    ctx.update(&session)?;
    Ok(session)
}

pub(crate) fn wrong_status(session: &Session, what: &str) -> Refusal {
    let id = &session.id;
    let status = session.status;
    let refusal =
        Refusal::new(Code::BadTransition, format!("session {id} is {status} and cannot be {what}"));
    match status {
        SessionStatus::Completed | SessionStatus::Failed => {
            refusal.hint("an ended session cannot change; create a new one")
        }
        SessionStatus::HandedOff => {
            refusal.hint("it continues when a supervisor resolves or rejects its handoff")
        }
        SessionStatus::Created | SessionStatus::Active | SessionStatus::Suspended => refusal,
    }
}

#[cfg(test)]
mod tests;
