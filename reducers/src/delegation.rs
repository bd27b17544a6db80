//! Delegation: a run that is started for a tool call of another run, in its own session.
//!
//! The identity of the child follows from the call that it is started for. Its session has the id of the call, its
//! run `<call>~run`; the call in turn is `<parent run>~<rest>`, see [`DERIVED`]. So a child belongs to exactly one
//! call, and no caller can create it in advance. Depth and descendants are counted in the rows here; they do not
//! depend on values that callers set.

use abide_schema::reducer::{DERIVED, ReducerResult, RowVisibility};
use abide_schema::{Abort, Code, Context, Micros, Module, Refusal, Value, limits, reducer};
use serde_json::{Value as JsonValue, json};

use crate::agent::{AgentRevision, RunPurpose};
use crate::run::{self, NewRun, Run, RunEventKind};
use crate::tool_call::{self, ToolCall};
use crate::{agent, check, lease, session};

mod rows;

pub use rows::Delegation;
pub(crate) use rows::{active_children, has_delegated, is_cut_off, next_child};

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("delegation")
        .visible::<Delegation>(RowVisibility::InScope)
        .reducer(start_child_run::definition())
}

/// Starts a run of another agent for a tool call that the caller holds and that a run requested. The child
/// has its own session under the session of the call, with the same scope. The same call again returns the same
/// run. Depth and number of the descendants of one run are limited.
#[reducer(roles(app, agent))]
pub fn start_child_run(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    fencing_token: i64,
    agent: String,
    input: String,
    /// Time limit of the child in milliseconds. It never exceeds what is left of the parent's time limit.
    deadline_ms: Option<i64>,
) -> Result<ReducerResult<Run>, Abort> {
    let call = tool_call::find_claimed(ctx, &call_id, fencing_token)?;
    let mut parent = find_requester(ctx, &call)?;
    let id = format!("{call_id}{DERIVED}run");
    if let Some(mut before) = ctx.get::<Run>(&id)? {
        lease::hide_token(ctx, &mut before.fencing_token)?;
        return repeat_delegation(before, &call, &parent, &agent);
    }
    let starter = run::starter::find_starter(ctx, &parent.id)?;
    let scope = session::find(ctx, &call.session_id)?.scope;
    agent::find_ready(ctx, &agent, RunPurpose::Delegation, &starter, &scope)?;
    let place = check_admission(ctx, &parent)?;
    let above = session::find_accepting(ctx, &call.session_id)?;
    let child = session::create_child(ctx, call_id.clone(), agent.clone(), &above)?;
    let new = NewRun {
        id: Some(id.clone()),
        agent: agent.clone(),
        purpose: RunPurpose::Delegation,
        starter,
        input: Some(input.clone()),
        parent_id: Some(parent.id.clone()),
        deadline_at: child_deadline(ctx, &parent, deadline_ms)?,
    };
    let data = json!({"from_agent": parent.agent, "to_agent": agent, "task": input,
        "run_id": id, "session_id": child.id});
    // Before the events of the child, which the parent reports, too.
    run::add_consequence(ctx, &mut parent, RunEventKind::Delegation, data)?;
    let parent = run::save(ctx, parent)?;
    let child = run::begin(ctx, child, new)?;
    insert_row(ctx, &child, &parent, place, Some(call_id))?;
    ctx.about(&call.session_id);
    Ok(ReducerResult::Fresh(child))
}

/// When a child must have ended: by its own limit, by that of its parent, and by that of the parent's agent.
fn child_deadline(
    ctx: &mut Context<'_>,
    parent: &Run,
    deadline_ms: Option<i64>,
) -> Result<Option<Micros>, Abort> {
    let own = check::time_after("deadline_ms", ctx.now, deadline_ms)?;
    let of_agent = agent::time_limit(ctx, &parent.agent, parent.revision, parent.created_at)?;
    Ok([own, parent.deadline_at, of_agent].into_iter().flatten().min())
}

/// Returns the run that requested a call. Only the holder of a run can request a call with its id.
fn find_requester(ctx: &mut Context<'_>, call: &ToolCall) -> Result<Run, Abort> {
    let run = match call.call_id.rsplit_once(DERIVED) {
        Some((run, _)) => ctx.get::<Run>(run)?,
        None => None,
    };
    match run.filter(|run| run.session_id == call.session_id) {
        Some(run) => Ok(run),
        None => {
            let detail = format!("call {} was not requested by a run", call.call_id);
            let hint = "a run requests its calls with run_id and run_fencing_token";
            Err(Refusal::new(Code::BadTransition, detail).hint(hint).into())
        }
    }
}

/// Returns an existing child run, if it is the one that would be started.
fn repeat_delegation(
    before: Run,
    call: &ToolCall,
    parent: &Run,
    agent: &str,
) -> Result<ReducerResult<Run>, Abort> {
    let is_same = before.session_id == call.call_id
        && before.parent_id.as_deref() == Some(&parent.id)
        && before.agent == agent;
    if is_same {
        return Ok(ReducerResult::Duplicate(before.seq, before));
    }
    let detail = format!("run {} exists, and was not started for call {}", before.id, call.call_id);
    let hint = "one tool call starts one run; request another call for another run";
    Err(Refusal::new(Code::Conflict, detail).hint(hint).into())
}

/// A child's position in the tree: the root run, and the number of ancestors.
pub(crate) struct TreePosition {
    root_id: String,
    depth: i64,
}

/// Admits one more run under a parent, if the parent is active and the limits allow it.
pub(crate) fn check_admission(ctx: &mut Context<'_>, parent: &Run) -> Result<TreePosition, Abort> {
    if !run::stop::may_continue(parent) || is_cut_off(ctx, &parent.id)? {
        let detail =
            format!("run {} has ended or is being aborted, and cannot delegate", parent.id);
        let hint = "start_run starts a run that does not depend on another one";
        return Err(Refusal::new(Code::BadTransition, detail).hint(hint).into());
    }
    let above = ctx.without_policies(|ctx| ctx.get::<Delegation>(&parent.id))?;
    let (root_id, depth) =
        above.map_or((parent.id.clone(), 1), |above| (above.root_id, above.depth + 1));
    let limits = tree_limits(ctx, &root_id)?;
    if depth > limits.depth {
        let detail =
            format!("run {} is {} deep; the limit is {}", parent.id, depth - 1, limits.depth);
        let hint =
            "limits.delegation_depth of the first agent sets it, up to the limit of the server";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
    }
    // All runs of one tree are within the scope of its root.
    let of_root = "WHERE root_id = ?1";
    let count = ctx.count_everywhere::<Delegation>(of_root, &[Value::from(root_id.as_str())])?;
    let max = limits.descendants;
    if count >= max {
        let detail = format!("run {root_id} has {count} descendants; the limit is {max}");
        let hint = "limits.descendants of its agent sets it, up to the limit of the server";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
    }
    Ok(TreePosition { root_id, depth })
}

/// The limits of a tree of runs.
struct TreeLimits {
    depth: i64,
    descendants: i64,
}

/// Returns the limits of a tree, from the definition of the root's agent.
fn tree_limits(ctx: &mut Context<'_>, root_id: &str) -> Result<TreeLimits, Abort> {
    let defined = ctx.without_policies(|ctx| {
        let Some(root) = ctx.get::<Run>(root_id)? else { return Ok(None) };
        ctx.get::<AgentRevision>((root.agent.as_str(), root.revision))
    })?;
    let definition = defined.map(|defined| defined.definition.value()).unwrap_or_default();
    let own = &definition["limits"];
    Ok(TreeLimits {
        depth: lower_limit(&own["delegation_depth"], limits::DELEGATION_DEPTH),
        descendants: lower_limit(&own["descendants"], limits::RUN_DESCENDANTS),
    })
}

/// Returns the limit that a definition sets, or `max` if it sets none or a higher one.
fn lower_limit(own: &JsonValue, max: i64) -> i64 {
    own.as_i64().map_or(max, |own| own.clamp(0, max))
}

/// Records a run as a descendant of its parent.
pub(crate) fn insert_row(
    ctx: &mut Context<'_>,
    child: &Run,
    parent: &Run,
    TreePosition { root_id, depth }: TreePosition,
    call_id: Option<String>,
) -> Result<(), Abort> {
    let row = Delegation {
        session_id: child.session_id.clone(),
        run_id: child.id.clone(),
        parent_id: parent.id.clone(),
        root_id,
        call_id,
        depth,
        created_at: ctx.now,
        seq: ctx.seq,
    };
    ctx.insert(row).map(drop)
}
