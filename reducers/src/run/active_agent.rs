//! The agents that have taken over the turn of a run by handoffs. The driver reads the same from the messages of the run; here it
//! is a row, so that rules about the active agent do not read messages.

use abide_schema::{Abort, Context, Json, Seq, Value, table};
use serde_json::{Value as JsonValue, json};

use super::Run;

/// The agents that have taken over the turn of a run. A run without a row is at its own agent.
#[table(name = "active_agents", index(session_id))]
pub struct ActiveAgent {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Their names, in the order of the handoffs. The last one is active.
    pub agents: Json,
    /// The event of the last handoff.
    pub seq: Seq,
}

/// Applies the change of the active agent that the data of a tool message describes, if it does. `run_id` is the run whose driver
/// wrote the message.
pub(crate) fn apply(ctx: &mut Context<'_>, run_id: &str, data: &JsonValue) -> Result<(), Abort> {
    let handoff = &data["handoff"];
    if handoff["run_id"] != run_id {
        return Ok(());
    }
    ctx.without_policies(|ctx| {
        // An unrestricted caller can restore messages of a run that this file does not have.
        let Some(run) = ctx.get::<Run>(run_id)? else { return Ok(()) };
        let before = ctx.get::<ActiveAgent>(run_id)?;
        let mut agents = before.as_ref().map(ActiveAgent::names).unwrap_or_default();
        match handoff["agent"].as_str() {
            Some(agent) => agents.push(agent.to_owned()),
            None => drop(agents.pop()),
        }
        if before.is_some() {
            ctx.delete::<ActiveAgent>(run_id)?;
        }
        if agents.is_empty() {
            return Ok(());
        }
        let row = ActiveAgent {
            run_id: run.id,
            session_id: run.session_id,
            agents: Json::from(json!(agents)),
            seq: ctx.seq,
        };
        ctx.insert(row).map(drop)
    })
}

/// Returns the agents that have taken over the turn of a run, in order.
pub(super) fn find_names(ctx: &mut Context<'_>, run_id: &str) -> Result<Vec<String>, Abort> {
    let row = ctx.without_policies(|ctx| ctx.get::<ActiveAgent>(run_id))?;
    Ok(row.as_ref().map(ActiveAgent::names).unwrap_or_default())
}

/// Returns the agent that was active at the end of the last run in a session.
pub(super) fn last_of_session(
    ctx: &mut Context<'_>,
    session_id: &str,
) -> Result<Option<String>, Abort> {
    let last = "WHERE session_id = ?1 ORDER BY created_at DESC, id DESC LIMIT 1";
    let params = [Value::from(session_id)];
    let run = ctx.without_policies(|ctx| ctx.find::<Run>(last, &params))?.pop();
    let Some(run) = run else { return Ok(None) };
    Ok(Some(find_names(ctx, &run.id)?.pop().unwrap_or(run.agent)))
}

impl ActiveAgent {
    fn names(&self) -> Vec<String> {
        serde_json::from_str(self.agents.as_str()).unwrap_or_default()
    }
}
