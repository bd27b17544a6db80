//! Requesting a call of a registered tool, with valid arguments, once. This file decides whether the call waits for an approval, is
//! claimed by its requester, or waits for a worker.

use std::sync::Arc;

use abide_schema::reducer::{DERIVED, ReducerResult, check_chosen};
use abide_schema::{Abort, Code, Context, Json, Refusal, Value, reducer};
use serde_json::Value as JsonValue;

use super::{RequestedCall, ToolCall, ToolCallStatus, claim, pace};
use crate::pause::{Pause, PauseStatus};
use crate::run::{self, Run};
use crate::session::{self, Session, SessionStatus};
use crate::tool::{self, Tool};
use crate::{approval, check, claim_queue, lease};

/// Requests a tool call. The same `call_id` with the same session, tool and arguments is the
/// same call and returns the stored row; any difference is a conflict. With `claim_lease_ms`
/// the caller also claims it in the same transaction, if possible: for agents that run their own tools.
/// `needs_approval` requires an approval even if the tool does not.
/// With `run_id` and `run_fencing_token` it is a call of the run that the caller holds: its id is `<run>~<rest>`, which
/// no other row can have.
#[reducer(roles(app, agent))]
pub fn request_tool_call(
    ctx: &mut Context<'_>,
    /// Its id, which the caller derives from session and position. Do not use a model provider's id: those repeat.
    #[id(derived, ToolCall)]
    call_id: String,
    #[id(Session)] session_id: String,
    tool_name: String,
    /// Any JSON; text that is not JSON is sent as a JSON string.
    arguments: JsonValue,
    /// The model provider's id.
    provider_call_id: Option<String>,
    /// Claims the call in the same transaction, for this long: for agents that run their own tools. A call of a run is not
    /// claimed while the run is asked to pause, or while its session is suspended or handed off.
    claim_lease_ms: Option<i64>,
    /// Requires an approval even if the tool does not.
    needs_approval: Option<bool>,
    #[id(Run)] run_id: Option<String>,
    run_fencing_token: Option<i64>,
    /// A name for the worker, if the call is claimed.
    worker: Option<String>,
) -> Result<ReducerResult<ToolCall>, Abort> {
    check::name("call_id", &call_id)?;
    check::optional_name("worker", worker.as_deref())?;
    let run = run_of_call(ctx, &call_id, &session_id, run_id.as_deref(), run_fencing_token)?;
    if let Some(mut stored) = ctx.get::<ToolCall>(&call_id)? {
        ctx.about(&stored.session_id);
        let arguments = Json::from(arguments);
        let needs_approval = needs_approval == Some(true);
        check_same(ctx, &stored, &session_id, &tool_name, &arguments, needs_approval)?;
        lease::hide_token(ctx, &mut stored.fencing_token)?;
        return Ok(ReducerResult::Duplicate(stored.created_seq, stored));
    }
    let session = session::find_accepting(ctx, &session_id)?;
    let tool = tool::find(ctx, &tool_name)?;
    let arguments = Arc::new(arguments);
    tool.check_arguments(ctx, &arguments)?;
    check_count(ctx, &tool, &session_id)?;
    let requested = RequestedCall {
        call_id,
        session_id,
        tool_name,
        tool_version: tool.version,
        arguments: Json::from(&*arguments),
        provider_call_id,
        status: ToolCallStatus::Pending,
    };
    let mut call = requested.into_row(ctx);
    let waits_for_approval = tool.needs_approval || needs_approval == Some(true);
    let is_aborted = run.is_some_and(|run| run.abort_requested_at.is_some());
    if is_aborted {
        // The abort has cancelled the calls of the run. Its driver may not know of it yet, and nothing would end a call that
        // follows.
        call.status = ToolCallStatus::Cancelled;
        call.cancel_requested_at = Some(ctx.now);
        call.error = Some("the run was aborted before the call was requested".to_owned());
        return ctx.insert(call).map(ReducerResult::Fresh).map_err(taken);
    }
    if waits_for_approval {
        call.status = ToolCallStatus::AwaitingApproval;
    } else if let Some(lease_ms) = claim_lease_ms {
        check::lease_end(ctx.now, lease_ms)?;
        if runs_next(ctx, &session, run_id.as_deref())? {
            claim_at_once(ctx, &tool, &mut call, lease_ms, worker)?;
        }
    }
    let call = insert(ctx, call)?;
    if waits_for_approval {
        ctx.without_policies(|ctx| approval::request(ctx, &tool, &call))?;
    }
    session::touch(ctx, session)?;
    if waits_for_approval {
        run::suspend_for_call(ctx, &call.session_id)?;
    }
    Ok(ReducerResult::Fresh(call))
}

/// Returns `true` if the requester runs the call next. The driver of a run first stops where it is asked to.
fn runs_next(
    ctx: &mut Context<'_>,
    session: &Session,
    run_id: Option<&str>,
) -> Result<bool, Abort> {
    let Some(run_id) = run_id else { return Ok(true) };
    let pause = ctx.without_policies(|ctx| ctx.get::<Pause>(run_id))?;
    let must_pause = pause.is_some_and(|pause| pause.status == PauseStatus::Requested);
    Ok(!must_pause && session.status == SessionStatus::Active)
}

/// Claims the new call for its requester, unless a capability or a limit of the tool is in the way.
fn claim_at_once(
    ctx: &mut Context<'_>,
    tool: &Tool,
    call: &mut ToolCall,
    lease_ms: i64,
    worker: Option<String>,
) -> Result<(), Abort> {
    let capable = tool.required_capability.as_deref().is_none_or(|it| ctx.caller.can(it));
    if capable && claim::may_run(ctx, call)? && pace::find_reached_limit(ctx, tool)?.is_none() {
        claim::take(ctx, tool, tool, call, lease_ms, worker)?;
    }
    Ok(())
}

/// Writes a new call, and adds it to the queue of its tool if it can be claimed.
fn insert(ctx: &mut Context<'_>, call: ToolCall) -> Result<ToolCall, Abort> {
    let call = ctx.insert(call).map_err(taken)?;
    if call.is_claimable() {
        claim_queue::set(ctx, call.entry(), true)?;
    }
    Ok(call)
}

/// Returns the run of a call, if it has one: a derived id belongs to its run, and other ids are not derived. So a call belongs to a
/// run if and only if its id says so: no caller can request it in advance.
fn run_of_call(
    ctx: &mut Context<'_>,
    call_id: &str,
    session_id: &str,
    run_id: Option<&str>,
    fencing_token: Option<i64>,
) -> Result<Option<Run>, Abort> {
    let (Some(run_id), Some(fencing_token)) = (run_id, fencing_token) else {
        if run_id.is_some() || fencing_token.is_some() {
            let detail = "run_id and run_fencing_token must be given together";
            let hint = "the driver of a run gives both; other callers omit both";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
        }
        check_chosen(call_id)?;
        return Ok(None);
    };
    let run = run::drive::find_claimed(ctx, run_id, fencing_token)?;
    if run.session_id != session_id {
        let detail = format!("run {} belongs to another session", run.id);
        let hint = "a run requests calls in its own session only";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    // No further separator in the rest, or it would be an id of a child of the run.
    let rest = call_id.strip_prefix(run.id.as_str()).and_then(|it| it.strip_prefix(DERIVED));
    if rest.is_none_or(|rest| rest.is_empty() || rest.contains(DERIVED)) {
        let detail = format!("call_id {call_id} does not belong to run {}", run.id);
        let hint = format!("calls of a run are named {}{DERIVED}<rest>", run.id);
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
    }
    Ok(Some(run))
}

/// Handles a call id that belongs to a call which the caller cannot see.
fn taken(abort: Abort) -> Abort {
    match abort {
        Abort::Refused(mut refusal) if refusal.code == Code::Conflict => {
            refusal.code = Code::CallIdConflict;
            Abort::Refused(refusal)
        }
        abort => abort,
    }
}

/// Checks a tool's limit of calls per session.
fn check_count(ctx: &mut Context<'_>, tool: &Tool, session_id: &str) -> Result<(), Abort> {
    let Some(max) = tool.limits().calls_per_session else { return Ok(()) };
    let params = [Value::from(session_id), Value::from(tool.name.as_str()), max.into()];
    // Reads at most as many as the limit, even if there are more because the limit was higher before. The session
    // belongs to the caller, so all of them do.
    let of_both = "WHERE rowid IN (SELECT rowid FROM tool_calls
        WHERE session_id = ?1 AND tool_name = ?2 LIMIT ?3)";
    let count = ctx.count_everywhere::<ToolCall>(of_both, &params)?;
    if count < max {
        return Ok(());
    }
    let name = &tool.name;
    let detail = format!("session {session_id} has already requested {name} {count} times");
    let hint =
        format!("the limit is {max} calls per session; `abide call register_tool` changes it");
    Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into())
}

/// Checks a repeated request against the first: session, tool and arguments.
fn check_same(
    ctx: &mut Context<'_>,
    stored: &ToolCall,
    session_id: &str,
    tool_name: &str,
    arguments: &Json,
    needs_approval: bool,
) -> Result<(), Abort> {
    let mut differs = Vec::new();
    if stored.session_id != session_id {
        differs.push("session");
    }
    if stored.tool_name != tool_name {
        differs.push("tool");
    }
    // An approver may have changed the arguments; the approval has the requested ones.
    if needs_approval || stored.arguments != *arguments {
        let requested = approval::requested_arguments(ctx, &stored.call_id)?;
        if stored.arguments != *arguments && requested.as_ref() != Some(arguments) {
            differs.push("arguments");
        }
        if needs_approval && requested.is_none() {
            differs.push("approval");
        }
    }
    if differs.is_empty() {
        return Ok(());
    }
    let detail = format!(
        "call id {} is already used by a call with other {}",
        stored.call_id,
        differs.join(", ")
    );
    Err(Refusal::new(Code::CallIdConflict, detail)
        .hint("make call ids from session and position; a provider's id is not unique")
        .into())
}
