//! Messages and other entries of a session's state: one `agent_state` row each, in the order they came.

use abide_schema::reducer::{Nullable, Sight};
use abide_schema::{Abort, Context, Json, Micros, Module, Seq, reducer, table};
use serde::Serialize;
use serde_json::Value as JsonValue;

use crate::check;
use crate::session::{self, Session, SessionStatus};

const ENDED: &str = "CREATE TRIGGER agent_state_of_ended BEFORE INSERT ON agent_state
WHEN EXISTS (SELECT 1 FROM sessions WHERE id = NEW.session_id
  AND (status = 'completed' OR status = 'failed'))
BEGIN SELECT RAISE(FAIL, 'bad_transition: the session has ended'); END";

/// One message or state entry of a session.
#[table(name = "agent_state", index(session_id), trigger = ENDED)]
pub struct AgentState {
    /// Its number; later entries have larger ones.
    #[column(key)]
    pub id: i64,
    /// The session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Who speaks: system, user, assistant, tool, or any other name that a framework uses.
    pub role: String,
    /// What it is: `message`, or another kind of entry.
    pub kind: String,
    /// What was said.
    pub content: Option<String>,
    /// Whatever else belongs to it: tool calls, names, usage.
    pub data: Option<Json>,
    /// When.
    pub created_at: Micros,
    /// The event that wrote it.
    pub seq: Seq,
}

/// What `append_message` answers.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Appended {
    /// The number of the `agent_state` row.
    pub id: i64,
}

/// The domain.
#[must_use]
pub fn module() -> Module {
    Module::new("message")
        .seen::<AgentState>(Sight::OfScope)
        .copied(("agent_state", "content"), &[("run_events", "data"), ("runs", "output")])
        .copied(("agent_state", "data"), &[("run_events", "data")])
        .reducer(append_message::definition())
}

/// Appends a message, or another entry, to a session. The first one makes a created session active. A session that
/// is being cancelled takes nothing more of the role `user`.
#[reducer]
pub fn append_message(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    role: String,
    content: Nullable<String>,
    kind: Option<String>,
    data: Option<JsonValue>,
) -> Result<Appended, Abort> {
    check::name("role", &role)?;
    let kind = kind.unwrap_or_else(|| "message".to_owned());
    check::name("kind", &kind)?;
    // What a user says asks for work. All else tells of work that had begun, and is taken until that has ended.
    let session = match role.as_str() {
        "user" => session::wanted(ctx, &session_id)?,
        _ => session::open(ctx, &session_id)?,
    };
    let entry = append(ctx, &session, role, kind, content.0, data.map(Json::from))?;
    if session.status == SessionStatus::Created {
        session::to_status(ctx, session, SessionStatus::Active, |_| {})?;
    } else {
        session::touch(ctx, session)?;
    }
    Ok(Appended { id: entry.id })
}

/// Adds an entry to a session that is open.
pub(crate) fn append(
    ctx: &mut Context<'_>,
    session: &Session,
    role: String,
    kind: String,
    content: Option<String>,
    data: Option<Json>,
) -> Result<AgentState, Abort> {
    let (created_at, seq) = (ctx.now, ctx.seq);
    let session_id = session.id.clone();
    ctx.insert(AgentState { id: 0, session_id, role, kind, content, data, created_at, seq })
}
