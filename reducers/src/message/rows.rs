//! The row of a session's entry, its author, and what writes it.

use abide_schema::{Abort, Context, Json, Micros, Seq, table};
use serde_json::Value as JsonValue;

use crate::session::Session;

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
    /// The run whose driver wrote it, under its lease. Null for an entry of another caller: its data has no effect on a run.
    pub run_id: Option<String>,
}

/// The kind of an entry for which no other kind is given.
pub(super) const MESSAGE: &str = "message";

/// An entry to append.
pub(crate) struct NewEntry {
    pub(crate) role: String,
    pub(crate) kind: String,
    pub(crate) content: Option<String>,
    pub(crate) data: Option<Json>,
    /// The run whose driver writes it.
    pub(crate) run_id: Option<String>,
}

impl NewEntry {
    /// An entry of a caller that is not the driver of a run.
    pub(crate) fn new(
        role: &str,
        kind: &str,
        content: Option<String>,
        data: Option<Json>,
    ) -> NewEntry {
        NewEntry { role: role.to_owned(), kind: kind.to_owned(), content, data, run_id: None }
    }

    /// Returns the row of the entry in a session, with its number and the time and the event that write it.
    pub(super) fn into_row(
        self,
        session_id: String,
        id: i64,
        created_at: Micros,
        seq: Seq,
    ) -> AgentState {
        let NewEntry { role, kind, content, data, run_id } = self;
        AgentState { id, session_id, role, kind, content, data, created_at, seq, run_id }
    }
}

/// Adds an entry to an open session.
pub(crate) fn append(
    ctx: &mut Context<'_>,
    session: &Session,
    entry: NewEntry,
) -> Result<AgentState, Abort> {
    // The insertion assigns the number.
    ctx.insert(entry.into_row(session.id.clone(), 0, ctx.now, ctx.seq))
}

/// Returns the run that the data of an entry names: itself, or in the id of a call, which is `<run>~<rest>` without `~` in the
/// rest.
pub(crate) fn run_in_data(data: &JsonValue) -> Option<String> {
    data["run_id"]
        .as_str()
        .or_else(|| data["call_id"].as_str()?.rsplit_once('~').map(|(run, _)| run))
        .map(str::to_owned)
}
