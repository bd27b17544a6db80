//! The caller on whose behalf a run works: the one that started the run at the root of its tree. Rules about who may use an agent
//! concern this caller, and not the driver, which acts for every tenant.

use abide_schema::{Abort, Caller, Context, Json, Seq, table};
use serde_json::Value as JsonValue;

use super::{Run, active_agent, find_active};
use crate::agent::{Agent, allow};
use crate::session::Session;

/// The restrictions of the caller that started a run, and of the runs that it delegates. A run without a row was started by an
/// unrestricted caller.
#[table(name = "run_starters", index(session_id))]
pub struct RunStarter {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The caller's id.
    pub caller: String,
    /// The caller's role, capabilities and scope, as in the log.
    pub authority: Json,
    /// The event that started the run.
    pub seq: Seq,
}

/// Returns the caller that started a run.
pub(crate) fn find_starter(ctx: &mut Context<'_>, run_id: &str) -> Result<Caller, Abort> {
    let row = ctx.without_policies(|ctx| ctx.get::<RunStarter>(run_id))?;
    Ok(row.map_or_else(Caller::system, |row| {
        Caller::recorded(&row.caller, Some(row.authority.as_str()))
    }))
}

/// Inserts a new run, which works on behalf of `starter`.
pub(crate) fn insert(ctx: &mut Context<'_>, run: &Run, starter: &Caller) -> Result<(), Abort> {
    ctx.insert(run.clone())?;
    let Some(authority) = starter.authority() else { return Ok(()) };
    let authority: JsonValue = serde_json::from_str(authority).unwrap_or_default();
    let row = RunStarter {
        run_id: run.id.clone(),
        session_id: run.session_id.clone(),
        caller: starter.id().to_owned(),
        authority: Json::from(authority),
        seq: ctx.seq,
    };
    ctx.without_policies(|ctx| ctx.insert(row)).map(drop)
}

/// Refuses to continue a run whose starter, or `by`, may no longer start runs of its agent, or of an agent that has taken over its
/// turn.
pub(crate) fn check_allowed(
    ctx: &mut Context<'_>,
    run: &Run,
    by: Option<&Caller>,
) -> Result<(), Abort> {
    let starter = find_starter(ctx, &run.id)?;
    let mut agents = active_agent::find_names(ctx, &run.id)?;
    agents.insert(0, run.agent.clone());
    for agent in &agents {
        check_agent(ctx, run, agent, &starter)?;
        by.map_or(Ok(()), |by| check_agent(ctx, run, agent, by))?;
    }
    Ok(())
}

/// Refuses to continue the run of a session, if it has one and its starter may no longer start runs of its agents.
pub(crate) fn check_continues(ctx: &mut Context<'_>, session_id: &str) -> Result<(), Abort> {
    let run = ctx.without_policies(|ctx| find_active(ctx, session_id))?;
    run.map_or(Ok(()), |run| check_allowed(ctx, &run, None))
}

/// Refuses to let another agent take over the turn of a run if the starter of the run may not use it.
pub(super) fn check_handoff(ctx: &mut Context<'_>, run: &Run, to: &str) -> Result<(), Abort> {
    let starter = find_starter(ctx, &run.id)?;
    check_agent(ctx, run, to, &starter)
}

fn check_agent(
    ctx: &mut Context<'_>,
    run: &Run,
    agent: &str,
    starter: &Caller,
) -> Result<(), Abort> {
    let (agent, session) = ctx.without_policies(|ctx| -> Result<_, Abort> {
        Ok((ctx.get::<Agent>(agent)?, ctx.get::<Session>(&run.session_id)?))
    })?;
    match (agent, session) {
        (Some(agent), Some(session)) => allow::check(ctx, &agent, starter, &session.scope),
        _ => Ok(()),
    }
}
