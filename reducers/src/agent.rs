//! Agents and their definitions, by name. A definition has revisions; a run keeps the revision that it
//! started with, even if the definition changes meanwhile.
//!
//! The runtime interprets a definition (prompt, tools, limits); here it is a value
//! with a digest. The database only enforces its name, its mode, and increasing revisions.

use std::collections::BTreeMap;

use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{Abort, Caller, Code, Context, Json, Micros, Module, Refusal, limits, reducer};
use serde_json::Value as JsonValue;

use crate::check;

pub(crate) mod allow;
mod rows;

pub use allow::AgentAllow;
pub use rows::{Agent, AgentMode, AgentRevision};

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("agent")
        // Names that a caller may not start are not listed to it.
        .visible::<Agent>(RowVisibility::Where(allow::VISIBLE, &[]))
        // Prompts belong to the operator: tenants see an agent's name, mode and description.
        .visible::<AgentRevision>(RowVisibility::Where(":caller_scope = '{}'", &[]))
        .reducer(register_agent::definition())
        .reducer(retire_agent::definition())
}

/// Registers an agent, or a new revision of one. Registering an identical definition changes nothing.
/// `expected_revision` makes it a conflict if that is no longer the newest: for editors. A retired agent is active again, except
/// one that comes with the runtime, which registers it at every start.
#[reducer]
pub fn register_agent(
    ctx: &mut Context<'_>,
    /// Its name.
    name: String,
    /// Its definition, which the runtime interprets.
    definition: serde_json::Map<String, JsonValue>,
    /// How it can be used; `primary` if omitted.
    mode: Option<AgentMode>,
    /// Its purpose.
    description: Option<String>,
    /// Whether lists omit it.
    hidden: Option<bool>,
    /// Whether it comes with the runtime.
    native: Option<bool>,
    /// The revision that it replaces: a conflict if that is no longer the newest.
    expected_revision: Option<i64>,
) -> Result<ReducerResult<Agent>, Abort> {
    check_unbounded(ctx)?;
    check::name("name", &name)?;
    let definition = Json::from(JsonValue::Object(definition));
    let before = ctx.get::<Agent>(&name)?;
    let revision = before.as_ref().map_or(0, |before| before.revision);
    if let Some(expected) = expected_revision.filter(|expected| *expected != revision) {
        return Err(revision_conflict(&name, revision, expected).into());
    }
    allow::check_definition(&definition.value())?;
    let native = native.unwrap_or(false);
    let registered =
        ctx.without_policies(|ctx| ctx.get::<AgentRevision>((name.as_str(), revision)))?;
    let defined_anew = registered.as_ref().is_none_or(|old| old.definition != definition);
    let mut agent = Agent {
        name,
        revision,
        digest: match registered {
            Some(old) if !defined_anew => old.digest,
            _ => ctx.digest(definition.as_str()),
        },
        mode: mode.unwrap_or(AgentMode::Primary),
        description,
        hidden: hidden.unwrap_or(false),
        native,
        retired_at: before
            .as_ref()
            .filter(|before| before.native && native)
            .and_then(|it| it.retired_at),
        created_at: before.as_ref().map_or(ctx.now, |before| before.created_at),
        updated_at: before.as_ref().map_or(ctx.now, |before| before.updated_at),
        seq: before.as_ref().map_or(ctx.seq, |before| before.seq),
    };
    if let Some(before) = before.as_ref().filter(|before| **before == agent) {
        return Ok(ReducerResult::Duplicate(before.seq, agent));
    }
    check_acyclic(ctx, &agent.name, &definition.value())?;
    agent.revision += i64::from(defined_anew);
    agent.updated_at = ctx.now;
    agent.seq = ctx.seq;
    match before {
        None => drop(ctx.insert(agent.clone())?),
        Some(_) => ctx.update(&agent)?,
    }
    if defined_anew {
        ctx.insert(AgentRevision {
            agent: agent.name.clone(),
            revision: agent.revision,
            digest: agent.digest.clone(),
            definition,
            created_at: agent.updated_at,
            seq: agent.seq,
        })?;
    }
    Ok(ReducerResult::Fresh(agent))
}

/// Retires an agent: it starts no more runs. Active runs continue; registering it again reactivates it. An agent that comes
/// with the runtime stays retired until another definition is registered under its name.
#[reducer]
pub fn retire_agent(ctx: &mut Context<'_>, name: String) -> Result<ReducerResult<Agent>, Abort> {
    check_unbounded(ctx)?;
    let mut agent = find(ctx, &name)?;
    if agent.retired_at.is_some() {
        return Ok(ReducerResult::Duplicate(agent.seq, agent));
    }
    agent.retired_at = Some(ctx.now);
    agent.updated_at = ctx.now;
    agent.seq = ctx.seq;
    ctx.update(&agent)?;
    Ok(ReducerResult::Fresh(agent))
}

/// Refuses a definition that makes an agent delegate to itself, directly or through others: a delegation cycle would
/// stop only at a limit.
fn check_acyclic(ctx: &mut Context<'_>, name: &str, definition: &JsonValue) -> Result<(), Abort> {
    let mut others = 0;
    let cycle = delegation_cycle(name, |next| -> Result<_, Abort> {
        if next == name {
            return Ok(subagents(name, definition));
        }
        others += 1;
        if others > limits::DELEGATED_AGENTS {
            let max = limits::DELEGATED_AGENTS;
            let detail = format!("agent {name} would delegate to more than {max} agents");
            let hint = "indirect delegation counts too";
            return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
        }
        let Some(agent) = ctx.get::<Agent>(next)? else { return Ok(Vec::new()) };
        let found = ctx.get::<AgentRevision>((next, agent.revision))?;
        Ok(found.map_or_else(Vec::new, |found| subagents(next, &found.definition.value())))
    });
    if cycle?.is_none() {
        return Ok(());
    }
    let detail = format!("agent {name} would delegate to itself");
    let hint = "remove the agent from the subagents of every agent that it delegates to";
    Err(Refusal::new(Code::BadArguments, detail).hint(hint).into())
}

/// Returns the delegation cycle that contains an agent: its names in order, with the first one repeated at the end.
/// `None` if there is no such cycle. `delegates` returns the agents that an agent delegates to, and is called once for
/// each.
///
/// # Errors
/// The errors of `delegates`.
pub fn delegation_cycle<E>(
    name: &str,
    mut delegates: impl FnMut(&str) -> Result<Vec<String>, E>,
) -> Result<Option<Vec<String>>, E> {
    let mut before = BTreeMap::new();
    let mut open = vec![name.to_owned()];
    while let Some(at) = open.pop() {
        for to in delegates(&at)? {
            if to != name {
                if !before.contains_key(&to) {
                    before.insert(to.clone(), at.clone());
                    open.push(to);
                }
                continue;
            }
            let mut path = vec![to];
            let mut step = Some(at);
            while let Some(name) = step {
                step = before.remove(&name);
                path.push(name);
            }
            path.reverse();
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns the names of the agents that an agent delegates to, including its inline agents and those that they delegate
/// to. The name of an inline agent begins with that of its parent.
pub(crate) fn subagents(name: &str, definition: &JsonValue) -> Vec<String> {
    let mut names = Vec::new();
    let mut open = vec![(name.to_owned(), definition)];
    while let Some((parent, definition)) = open.pop() {
        for subagent in definition["subagents"].as_array().into_iter().flatten() {
            if let Some(name) = subagent.as_str() {
                names.push(name.to_owned());
            } else if let Some(name) = subagent["name"].as_str() {
                let name = format!("{parent}/{name}");
                names.push(name.clone());
                open.push((name, subagent));
            }
        }
    }
    names
}

/// Agents have no scope: a change by one tenant would affect the others.
fn check_unbounded(ctx: &Context<'_>) -> Result<(), Refusal> {
    if ctx.caller.scope().is_empty() {
        return Ok(());
    }
    let detail = "agents are shared by all tenants, and a caller with a scope cannot change them";
    Err(Refusal::new(Code::Denied, detail).hint("let an identity without a scope register it"))
}

/// Returns the refusal of a change of another revision.
fn revision_conflict(name: &str, newest: i64, expected: i64) -> Refusal {
    if expected == 0 {
        let detail = format!("agent {name} exists, at revision {newest}");
        let hint = format!(
            "choose another name, or change the agent: `PATCH /agents/{name}`, or `register_agent` \
             with expected_revision={newest}"
        );
        return Refusal::new(Code::Conflict, detail).hint(hint);
    }
    let detail = format!("agent {name} is at revision {newest}, not {expected}");
    Refusal::new(Code::Conflict, detail).hint("read it again and retry the change")
}

/// Loads an agent that the caller may know.
pub(crate) fn find(ctx: &mut Context<'_>, name: &str) -> Result<Agent, Abort> {
    let by = ctx.caller.clone();
    match ctx.get::<Agent>(name)? {
        Some(agent) if allow::may_know(ctx, &agent, &by)? => Ok(agent),
        _ => Err(allow::no_such_agent(ctx, name, &by)?.into()),
    }
}

/// Refuses a name whose agent only works for other agents. Any other name is a label, and so is that of an agent that the caller
/// may not know.
pub(crate) fn check_owns_sessions(ctx: &mut Context<'_>, name: &str) -> Result<(), Abort> {
    let by = ctx.caller.clone();
    match ctx.get::<Agent>(name)? {
        Some(agent) if allow::may_know(ctx, &agent, &by)? => {
            check_mode(&agent, RunPurpose::Session)
        }
        _ => Ok(()),
    }
}

/// Returns `true` if the caller may know the agent for which a tool stands. A caller with a scope cannot tell a hidden
/// agent from none.
pub(crate) fn is_known(ctx: &mut Context<'_>, name: &str) -> Result<bool, Abort> {
    let by = ctx.caller.clone();
    match ctx.without_policies(|ctx| ctx.get::<Agent>(name))? {
        Some(agent) => allow::may_know(ctx, &agent, &by),
        None => Ok(by.scope().is_empty()),
    }
}

/// Refuses an agent whose mode does not permit a use.
fn check_mode(agent: &Agent, purpose: RunPurpose) -> Result<(), Abort> {
    let (fits, what, hint) = match purpose {
        RunPurpose::Delegation => {
            let hint = "set mode to subagent or all";
            (agent.mode.is_subagent(), "be given tasks by another agent", hint)
        }
        RunPurpose::Session => {
            (agent.mode.is_primary(), "own a session", "set mode to primary or all")
        }
    };
    if fits {
        return Ok(());
    }
    let detail = format!("agent {} is {} and cannot {what}", agent.name, agent.mode);
    Err(Refusal::new(Code::BadTransition, detail).hint(hint).into())
}

/// When a run of a revision that began then must have ended even if it waits: if its agent has a time limit, and the time that
/// the run waits counts. Otherwise the driver knows the time that is left.
pub(crate) fn time_limit(
    ctx: &mut Context<'_>,
    agent: &str,
    revision: i64,
    began_at: Micros,
) -> Result<Option<Micros>, Abort> {
    let defined = ctx.without_policies(|ctx| ctx.get::<AgentRevision>((agent, revision)))?;
    let limits = defined.map(|it| it.definition.value()["limits"].take()).unwrap_or_default();
    if limits["wall_clock_counts_waits"] != true {
        return Ok(None);
    }
    let seconds = limits["wall_clock_seconds"].as_i64();
    Ok(seconds.map(|seconds| began_at.plus_ms(seconds.saturating_mul(1_000))))
}

/// Returns the refusal of a run of a retired agent.
pub(crate) fn agent_retired(name: &str) -> Refusal {
    let detail = format!("agent {name} is retired and cannot start runs");
    let hint = "use another agent, or restore its file; `register_agent` registers it again";
    Refusal::new(Code::BadTransition, detail).hint(hint)
}

/// What a run is started for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunPurpose {
    /// A session of the agent.
    Session,
    /// A task of another agent, or a turn that another agent hands over.
    Delegation,
}

/// Loads an agent that can start a run in a session. `starter` is the caller on whose behalf the run works: for a delegation it is
/// the one that started the run at the root.
pub(crate) fn find_ready(
    ctx: &mut Context<'_>,
    name: &str,
    purpose: RunPurpose,
    starter: &Caller,
    session_scope: &Json,
) -> Result<Agent, Abort> {
    let Some(agent) = ctx.get::<Agent>(name)? else {
        return Err(allow::no_such_agent(ctx, name, starter)?.into());
    };
    allow::check(ctx, &agent, starter, session_scope)?;
    if agent.retired_at.is_some() {
        return Err(agent_retired(name).into());
    }
    check_mode(&agent, purpose)?;
    Ok(agent)
}
