//! Claiming a call, and extending its lease while it runs.

use abide_schema::reducer::DERIVED;
use abide_schema::{Abort, Caller, Code, Context, Micros, Refusal, Value, limits, reducer};

use super::holder::settlement_hint;
use super::{
    ToolCall, ToolCallStatus, find, find_pinned, finish, holds_claim, not_held, pace, save,
};
use crate::claim_queue::{self, ClaimBudget, QueueScan};
use crate::run::{self, Run};
use crate::session::{self, Session};
use crate::tool::{self, Tool};
use crate::{check, cleanup, delegation, exchange};

/// Default lease of a claim, in milliseconds.
const LEASE_MS: i64 = 30_000;

/// Claims a pending call to run it. Exactly one claimant wins, and only its identity can end the call. `worker` is a
/// display name, not an identity.
#[reducer(roles(app, agent, worker))]
pub fn claim_tool_call(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    /// Lease time, instead of the default.
    lease_ms: Option<i64>,
    /// A name for the worker.
    worker: Option<String>,
) -> Result<ToolCall, Abort> {
    check::optional_name("worker", worker.as_deref())?;
    let call = find(ctx, &call_id)?;
    let lease_ms = lease_ms.unwrap_or(LEASE_MS);
    check::lease_end(ctx.now, lease_ms)?;
    let lapsed = call.status == ToolCallStatus::Claimed
        && call.lease_expires_at.is_some_and(|until| until <= ctx.now);
    let (call, pinned) = if lapsed {
        // The lease has expired but its deadline has not run yet. If the call can be retried, claim it now.
        let pinned = find_pinned(ctx, &call)?;
        let progress = exchange::rows::find_progress(ctx, &call.call_id)?;
        let after = finish::after_lapse(&pinned, &call, &progress, ctx.now);
        if after.status != ToolCallStatus::Pending || after.retry_at.is_some() {
            return Err(not_to_be_claimed(&call).into());
        }
        finish::insert_lost_lease(ctx, &call)?;
        (after, pinned)
    } else if call.status == ToolCallStatus::Pending && call.retry_at.is_none_or(|at| at <= ctx.now)
    {
        let pinned = find_pinned(ctx, &call)?;
        (call, pinned)
    } else {
        return Err(not_to_be_claimed(&call).into());
    };
    check_capable(ctx.caller, &pinned, &call)?;
    if !may_run(ctx, &call)? {
        let ToolCall { call_id, session_id, .. } = &call;
        let detail =
            format!("call {call_id} is being cancelled with its run or session {session_id}");
        let hint = "claim another call with `abide call claim_next_tool_call`";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    let tool = tool::find(ctx, &call.tool_name)?;
    if let Some(refusal) = pace::find_reached_limit(ctx, &tool)? {
        return Err(refusal.into());
    }
    take_and_save(ctx, &tool, &pinned, call, lease_ms, worker)
}

/// Claims the oldest pending call of any of these tools, within their limits. Refused with `not_found`
/// if there is none, or if the oldest are being cancelled; with `rate_limited` if the limits hold back all of them,
/// and with `denied` if the caller lacks the capability.
#[reducer(roles(app, worker))]
pub fn claim_next_tool_call(
    ctx: &mut Context<'_>,
    /// Names of tools; the oldest pending call of any of them is claimed.
    tools: Vec<String>,
    /// Lease time, instead of the default.
    lease_ms: Option<i64>,
    /// A name for the worker.
    worker: Option<String>,
) -> Result<ToolCall, Abort> {
    check::optional_name("worker", worker.as_deref())?;
    let lease_ms = lease_ms.unwrap_or(LEASE_MS);
    check::lease_end(ctx.now, lease_ms)?;
    if tools.is_empty() || tools.len() > limits::TOOLS_OF_A_CLAIM {
        let count = tools.len();
        let max = limits::TOOLS_OF_A_CLAIM;
        let detail = format!("tools must have 1 to {max} names, not {count}");
        let hint = "name the tools that this worker runs, in several calls if there are more";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
    }
    let mut searches = Vec::with_capacity(tools.len());
    for name in &tools {
        searches.push(ToolSearch::new(tool::find(ctx, name)?));
    }
    search(ctx, &mut searches)?;
    let mut first: Option<Claimable> = None;
    let mut held_up = None;
    for ToolSearch { tool, found, is_closing, .. } in searches {
        let Some(call) = found else {
            held_up = held_up.or_else(|| is_closing.then(|| calls_are_closing(&tool.name)));
            continue;
        };
        if first.as_ref().is_some_and(|first| first.call.created_seq <= call.created_seq) {
            continue;
        }
        let pinned = find_pinned(ctx, &call)?;
        let refusal = match check_capable(ctx.caller, &pinned, &call) {
            Ok(()) => pace::find_reached_limit(ctx, &tool)?,
            Err(denied) => Some(denied),
        };
        match refusal {
            Some(refusal) => held_up = Some(refusal),
            None => first = Some(Claimable { call, tool, pinned }),
        }
    }
    let Some(Claimable { call, tool, pinned }) = first else {
        return Err(held_up.unwrap_or_else(|| nothing_waits(&tools)).into());
    };
    ctx.about(&call.session_id);
    take_and_save(ctx, &tool, &pinned, call, lease_ms, worker)
}

/// A pending call that can be claimed now.
struct Claimable {
    call: ToolCall,
    /// The current version of its tool, whose limits count.
    tool: Tool,
    /// The version that the call was requested with, whose rules count.
    pinned: Tool,
}

/// Extends the lease on a claimed call. In the result, `cancel_requested_at` shows whether the call was
/// cancelled.
#[reducer(roles(app, agent, worker))]
pub fn heartbeat_tool_call(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// Lease time, instead of the default.
    lease_ms: Option<i64>,
) -> Result<ToolCall, Abort> {
    let mut call = find(ctx, &call_id)?;
    if !holds_claim(ctx, &call, fencing_token)? {
        return Err(not_held(ctx, &call, fencing_token)?.into());
    }
    let until = check::lease_end(ctx.now, lease_ms.unwrap_or(LEASE_MS))?;
    let pinned = find_pinned(ctx, &call)?;
    let until = within_timeout(&pinned, call.claimed_at, until);
    call.lease_expires_at = call.lease_expires_at.max(Some(until));
    save(ctx, call)
}

/// Ends a call's wait for its next attempt: it can be claimed again.
#[reducer]
pub fn retry_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    retry_at: Micros,
) -> Result<ToolCall, Abort> {
    let mut call = find(ctx, &call_id)?;
    let waits = call.status == ToolCallStatus::Pending && call.retry_at == Some(retry_at);
    if !waits || ctx.now < retry_at {
        return Err(check::not_due(&call_id, retry_at).into());
    }
    call.retry_at = None;
    save(ctx, call)
}

/// Checks that a worker has the capability that the tool requires.
fn check_capable(caller: &Caller, pinned: &Tool, call: &ToolCall) -> Result<(), Refusal> {
    let what = format!("claiming a call of {}", call.tool_name);
    check::capability(caller, pinned.required_capability.as_deref(), &what)
}

/// Claims a call: with the current limits of the tool, and the rules of the version that the call has.
pub(super) fn take(
    ctx: &mut Context<'_>,
    tool: &Tool,
    pinned: &Tool,
    call: &mut ToolCall,
    lease_ms: i64,
    worker: Option<String>,
) -> Result<(), Abort> {
    pace::record_attempt(ctx, tool)?;
    call.claimed_at = Some(ctx.now);
    let until = check::lease_end(ctx.now, lease_ms)?;
    call.lease_expires_at = Some(within_timeout(pinned, call.claimed_at, until));
    call.retry_at = None;
    call.status = ToolCallStatus::Claimed;
    call.attempt += 1;
    call.fencing_token = Some(ctx.seq.0);
    call.claimed_by = Some(worker.unwrap_or_else(|| ctx.caller.id().to_owned()));
    Ok(())
}

fn take_and_save(
    ctx: &mut Context<'_>,
    tool: &Tool,
    pinned: &Tool,
    mut call: ToolCall,
    lease_ms: i64,
    worker: Option<String>,
) -> Result<ToolCall, Abort> {
    take(ctx, tool, pinned, &mut call, lease_ms, worker)?;
    save(ctx, call)
}

/// Returns the end of a lease, limited by the tool's timeout for an attempt.
fn within_timeout(pinned: &Tool, since: Option<Micros>, until: Micros) -> Micros {
    match (pinned.timeout_ms, since) {
        (Some(timeout_ms), Some(since)) => until.min(since.plus_ms(timeout_ms)),
        _ => until,
    }
}

/// Returns `true` if the call may still run: its session is not ending, and its run was not aborted. Otherwise its
/// cleanup will cancel it shortly.
pub(super) fn may_run(ctx: &mut Context<'_>, call: &ToolCall) -> Result<bool, Abort> {
    ctx.without_policies(|ctx| {
        let Some(session) = ctx.get::<Session>(&call.session_id)? else { return Ok(false) };
        if session::is_closing(ctx, &session)? {
            return Ok(false);
        }
        // A driver that was asked to stop may have requested it afterwards.
        let run = match call.call_id.rsplit_once(DERIVED) {
            Some((run, _)) => ctx.get::<Run>(run)?,
            None => None,
        };
        if run.is_some_and(|run| run.abort_requested_at.is_some()) {
            return Ok(false);
        }
        if !cleanup::has_unfinished(ctx)? {
            return Ok(true);
        }
        if cleanup::is_aborting(ctx, call)? {
            return Ok(false);
        }
        match run::find_active(ctx, &call.session_id)? {
            Some(run) => Ok(!delegation::is_cut_off(ctx, &run.id)?),
            None => Ok(true),
        }
    })
}

/// The search for the longest waiting call of a tool.
struct ToolSearch {
    tool: Tool,
    scan: QueueScan,
    is_over: bool,
    /// The oldest call that the caller may claim.
    found: Option<ToolCall>,
    /// Whether a call was passed over because its session is ending.
    is_closing: bool,
}

impl ToolSearch {
    fn new(tool: Tool) -> ToolSearch {
        let scan = QueueScan::new(claim_queue::tool_queue(&tool.name));
        ToolSearch { tool, scan, is_over: false, found: None, is_closing: false }
    }

    /// Examines the next call. One at a time, because each can have megabytes.
    fn step(&mut self, ctx: &mut Context<'_>, budget: &mut ClaimBudget) -> Result<(), Abort> {
        let tool = self.tool.name.as_str();
        let Some(id) = self.scan.next(ctx, budget, |ctx, behind| {
            let next = "WHERE status = 'pending' AND lease_expires_at IS NULL AND retry_at IS NULL
                AND tool_name = ?1 AND rowid > coalesce((SELECT rowid FROM tool_calls WHERE call_id = ?2), -1)
                ORDER BY rowid LIMIT 1";
            let behind = behind.map_or(Value::Null, Value::from);
            let found = ctx.find::<ToolCall>(next, &[tool.into(), behind])?;
            Ok(found.into_iter().next().map(|call| call.call_id))
        })? else {
            self.is_over = true;
            return Ok(());
        };
        let call = ctx.without_policies(|ctx| ctx.get::<ToolCall>(&*id))?;
        budget.spend(call.as_ref().map_or(0, ToolCall::bytes));
        // A policy can hide it.
        let Some(call) = ctx.get::<ToolCall>(&*id)? else { return Ok(()) };
        if may_run(ctx, &call)? {
            self.found = Some(call);
            self.is_over = true;
        } else {
            self.is_closing = true;
        }
        Ok(())
    }
}

/// Searches the queues of all tools with one budget. They take turns, so that a tool whose first calls cannot be claimed
/// leaves some of it for the others, and each claim begins with another tool.
fn search(ctx: &mut Context<'_>, searches: &mut [ToolSearch]) -> Result<(), Abort> {
    let mut budget = ClaimBudget::new();
    let first = ctx.seq.0.unsigned_abs() as usize % searches.len();
    searches.rotate_left(first);
    while searches.iter().any(|search| !search.is_over) {
        for search in searches.iter_mut().filter(|search| !search.is_over) {
            search.step(ctx, &mut budget)?;
        }
    }
    searches.rotate_right(first);
    Ok(())
}

fn calls_are_closing(tool: &str) -> Refusal {
    let detail = format!(
        "the oldest pending calls of {tool} are being cancelled with their runs or sessions"
    );
    Refusal::new(Code::NotFound, detail).hint("claim again when they are cancelled")
}

fn nothing_waits(tools: &[String]) -> Refusal {
    let detail = format!("there is no pending call of {}", tools.join(", "));
    let hint = "watch for calls: `abide watch \"SELECT call_id, tool_name FROM tool_calls \
                WHERE status = 'pending' AND retry_at IS NULL\"`";
    Refusal::new(Code::NotFound, detail).hint(hint)
}

fn not_to_be_claimed(call: &ToolCall) -> Refusal {
    let id = &call.call_id;
    let holder = call.claimed_by.as_deref().unwrap_or("an unknown worker");
    if call.status == ToolCallStatus::Unknown {
        let detail = format!(
            "call {id} was claimed by {holder}; whether it ran is unknown, and {} must not run twice",
            call.tool_name
        );
        return Refusal::new(Code::Conflict, detail).hint(settlement_hint(id));
    }
    let detail = match (call.status, call.lease_expires_at, call.retry_at) {
        (ToolCallStatus::Claimed, Some(until), _) => {
            format!("call {id} was claimed by {holder} and its lease runs until {until}")
        }
        (ToolCallStatus::Pending, _, Some(until)) => {
            let next = call.attempt + 1;
            format!("call {id} waits until {until} for its attempt {next}")
        }
        (status, ..) => format!("call {id} is {status}"),
    };
    let hint = format!(
        "watch it with `abide watch \"SELECT status FROM tool_calls WHERE call_id = '{id}'\"`"
    );
    Refusal::new(Code::Conflict, detail).hint(hint)
}
