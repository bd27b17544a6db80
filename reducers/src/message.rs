//! Messages and other entries of a session's state: one `agent_state` row each, in order of arrival.

use abide_schema::reducer::{Nullable, RowVisibility};
use abide_schema::{Abort, Context, Json, Micros, Module, Seq, reducer, table};
use serde::{Deserialize, Serialize};
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
    /// The author's role: system, user, assistant, tool, or any other name that a framework uses.
    pub role: String,
    /// The kind of entry: `message`, or another kind.
    pub kind: String,
    /// The text.
    pub content: Option<String>,
    /// Other data: tool calls, names, usage.
    pub data: Option<Json>,
    /// When it was written.
    pub created_at: Micros,
    /// The event that wrote it.
    pub seq: Seq,
}

/// The result of `append_message`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Appended {
    /// The id of the `agent_state` row.
    pub id: i64,
}

/// The module.
#[must_use]
pub fn module() -> Module {
    Module::new("message")
        .visible::<AgentState>(RowVisibility::InScope)
        .copied(("agent_state", "content"), &[("run_events", "data"), ("runs", "output")])
        .copied(("agent_state", "data"), &[("run_events", "data")])
        .reducer(append_message::definition())
}

/// Appends a message, or another entry, to a session. The first one activates a new session. A session that
/// is being cancelled accepts no more entries with the role `user`.
#[reducer]
pub fn append_message(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    /// The author's role: `system`, `user`, `assistant`, `tool`, or any other name that a framework uses.
    role: String,
    /// The text.
    content: Nullable<String>,
    /// The kind of entry; `message` if omitted.
    kind: Option<String>,
    /// Other data: tool calls, names, usage.
    data: Option<JsonValue>,
) -> Result<Appended, Abort> {
    check::name("role", &role)?;
    let kind = kind.unwrap_or_else(|| "message".to_owned());
    check::name("kind", &kind)?;
    // A user message requests new work. Other entries report on work in progress and are accepted until it ends.
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

/// Adds an entry to an open session.
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
