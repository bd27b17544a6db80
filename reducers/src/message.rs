//! Messages and other entries of a session's state: one `agent_state` row each, in order of arrival.
//!
//! The driver of a run stores its state in the data of entries: the calls that a model requests, their results, changes of
//! the active agent. Only entries that it writes under its lease count, so no other caller can make a run call a tool.

use abide_schema::caller::Caller;
use abide_schema::reducer::{Nullable, RowVisibility};
use abide_schema::{Abort, Code, Context, Json, Micros, Module, Refusal, Seq, limits, reducer};
use serde::{Deserialize, Serialize};
use serde_json::Value as JsonValue;

use crate::check;
use crate::run::drive::find_claimed;
use crate::run::{Run, active_agent};
use crate::session::{self, Session, SessionStatus};

pub(crate) mod rows;

pub use rows::AgentState;
use rows::{NewEntry, append};

/// The result of `append_message`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Appended {
    /// The id of the `agent_state` row.
    pub id: i64,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("message")
        .visible::<AgentState>(RowVisibility::InScope)
        .copied(("agent_state", "content"), &[("run_events", "data"), ("runs", "output")])
        .copied(("agent_state", "data"), &[("run_events", "data")])
        .reducer(append_message::definition().wrapping(limits::RECORD_DEPTH))
}

/// Appends a message, or another entry, to a session. The first one activates a new session. A session that
/// is being cancelled accepts no more entries with the role `user`. Instructions to the model, with the role `system`, need
/// the role `agent`, `app` or `admin`.
///
/// With `run_id` and `run_fencing_token` it is an entry of the driver of a run. Only its `data` has an effect on the run.
#[reducer(roles(app, agent, supervisor))]
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
    #[id(Run)] run_id: Option<String>,
    /// The fencing token of the claim of the run. An unrestricted caller that restores a conversation may omit it.
    run_fencing_token: Option<i64>,
) -> Result<Appended, Abort> {
    check::name("role", &role)?;
    let kind = kind.unwrap_or_else(|| rows::MESSAGE.to_owned());
    check::name("kind", &kind)?;
    check_author(ctx, &session_id, &role, run_id.as_deref(), run_fencing_token)?;
    // A user message requests new work. Other entries report on work in progress and are accepted until it ends.
    let session = match role.as_str() {
        "user" => session::find_accepting(ctx, &session_id)?,
        _ => session::open(ctx, &session_id)?,
    };
    if let (Some(run_id), Some(data), "tool") = (&run_id, &data, role.as_str()) {
        active_agent::apply(ctx, run_id, data)?;
    }
    let data = data.map(Json::from);
    let entry = append(ctx, &session, NewEntry { role, kind, content: content.0, data, run_id })?;
    if session.status == SessionStatus::Created {
        session::to_status(ctx, session, SessionStatus::Active, |_| {})?;
    } else {
        // Buffered: many messages of a group write the row of their session once.
        session::touch(ctx, session)?;
    }
    Ok(Appended { id: entry.id })
}

impl AppendMessage {
    /// Returns the row that the call has written, from its result and the time and the event of its commit. A driver that has
    /// written an entry knows the row without reading it.
    #[must_use]
    pub fn row(&self, appended: &Appended, created_at: Micros, seq: Seq) -> AgentState {
        let entry = NewEntry {
            role: self.role.clone(),
            kind: self.kind.clone().unwrap_or_else(|| rows::MESSAGE.to_owned()),
            content: self.content.0.clone(),
            data: self.data.clone().map(Json::from),
            run_id: self.run_id.clone(),
        };
        entry.into_row(self.session_id.clone(), appended.id, created_at, seq)
    }
}

/// Checks that an entry of a run is written by its driver, and instructions by a caller that may give them.
fn check_author(
    ctx: &mut Context<'_>,
    session_id: &str,
    role: &str,
    run_id: Option<&str>,
    fencing_token: Option<i64>,
) -> Result<(), Abort> {
    let is_trusted = ctx.caller.is_unrestricted();
    match (run_id, fencing_token) {
        (Some(run_id), Some(token)) => {
            let run = find_claimed(ctx, run_id, token)?;
            if run.session_id != session_id {
                let detail = format!("run {} belongs to another session", run.id);
                let hint = "a driver writes to the session of its run only";
                return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
            }
            Ok(())
        }
        (Some(_), None) if is_trusted => Ok(()),
        (None, None) if role != "system" || is_trusted || gives_instructions(ctx.caller) => Ok(()),
        (None, None) => {
            let detail = format!("the role {} may not write system messages", ctx.caller.role());
            let hint = "use the role user, or the name of the author";
            Err(Refusal::new(Code::Denied, detail).hint(hint).into())
        }
        _ => {
            let detail = "run_id and run_fencing_token must be given together";
            let hint = "the driver of a run gives both; other callers omit both";
            Err(Refusal::new(Code::BadArguments, detail).hint(hint).into())
        }
    }
}

/// Returns `true` if the built-in role of a caller may write instructions: it runs agents, or can do everything within
/// its scope.
fn gives_instructions(caller: &Caller) -> bool {
    [Caller::ADMIN, "app", "agent"].contains(&caller.role())
}
