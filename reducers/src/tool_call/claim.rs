//! Taking a call to run it, and holding it while it runs.

use abide_schema::{Abort, Caller, Code, Context, Micros, Refusal, Value, limits, reducer};

use super::{ToolCall, ToolCallStatus, find, finish, is_held, not_held, pace, save};
use crate::check;
use crate::tool::{self, Tool};

/// How long a claim holds unless it says otherwise, in milliseconds (protocol.md).
const LEASE_MS: i64 = 30_000;

/// Takes a pending call to run it. One claimant wins. `worker` is a name to be known by.
#[reducer]
pub fn claim_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    lease_ms: Option<i64>,
    worker: Option<String>,
) -> Result<ToolCall, Abort> {
    let call = find(ctx, &call_id)?;
    let lease_ms = lease_ms.unwrap_or(LEASE_MS);
    check::lease(ctx.now, lease_ms)?;
    let lapsed = call.status == ToolCallStatus::Claimed
        && call.lease_expires_at.is_some_and(|until| until <= ctx.now);
    let (call, pinned) = if lapsed {
        // Time is about to say so itself. If the call may run again, this claim need not wait.
        let pinned = tool::pinned(ctx, &call)?;
        let after = finish::after_lapse(&pinned, &call, ctx.now);
        if after.status != ToolCallStatus::Pending || after.retry_at.is_some() {
            return Err(not_to_be_claimed(&call).into());
        }
        finish::note_lost(ctx, &call)?;
        (after, pinned)
    } else if call.status == ToolCallStatus::Pending && call.retry_at.is_none_or(|at| at <= ctx.now)
    {
        let pinned = tool::pinned(ctx, &call)?;
        (call, pinned)
    } else {
        return Err(not_to_be_claimed(&call).into());
    };
    check_capable(ctx.caller, &pinned, &call)?;
    let tool = tool::find(ctx, &call.tool_name)?;
    if let Some(refusal) = pace::held_up(ctx, &tool)? {
        return Err(refusal.into());
    }
    take_and_save(ctx, &tool, &pinned, call, lease_ms, worker)
}

/// Takes the pending call that has waited longest, of any of these tools, as their pace allows. Where
/// there is none it is `not_found`; where the pace holds back all that wait, `overloaded`; where the caller
/// is not capable of them, `denied`.
#[reducer]
pub fn claim_next_tool_call(
    ctx: &mut Context<'_>,
    tools: Vec<String>,
    lease_ms: Option<i64>,
    worker: Option<String>,
) -> Result<ToolCall, Abort> {
    let lease_ms = lease_ms.unwrap_or(LEASE_MS);
    check::lease(ctx.now, lease_ms)?;
    if tools.is_empty() || tools.len() > limits::TOOLS_OF_A_CLAIM {
        let (count, most) = (tools.len(), limits::TOOLS_OF_A_CLAIM);
        let detail = format!("claim_next_tool_call: {count} tools, 1 to {most} are taken");
        return Err(Refusal::new(Code::BadArguments, detail).into());
    }
    let mut first: Option<(ToolCall, Tool, Tool)> = None;
    let mut held_up = None;
    for name in &tools {
        let tool = tool::find(ctx, name)?;
        let Some(call) = longest_waiting(ctx, name)? else { continue };
        if first.as_ref().is_some_and(|(first, ..)| first.created_seq <= call.created_seq) {
            continue;
        }
        let pinned = tool::pinned(ctx, &call)?;
        let capable = check_capable(ctx.caller, &pinned, &call);
        match capable.err().map_or_else(|| pace::held_up(ctx, &tool), |denied| Ok(Some(denied)))? {
            Some(refusal) => held_up = Some(refusal),
            None => first = Some((call, tool, pinned)),
        }
    }
    let Some((call, tool, pinned)) = first else {
        return Err(held_up.unwrap_or_else(|| nothing_waits(&tools)).into());
    };
    ctx.about(&call.session_id);
    take_and_save(ctx, &tool, &pinned, call, lease_ms, worker)
}

/// Says that the work goes on, and moves the end of the lease. The answer tells whether the call is
/// still wanted: `cancel_requested_at`.
#[reducer]
pub fn heartbeat_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    fencing_token: i64,
    lease_ms: Option<i64>,
) -> Result<ToolCall, Abort> {
    let mut call = find(ctx, &call_id)?;
    if !is_held(&call, fencing_token) {
        return Err(not_held(&call, fencing_token).into());
    }
    let until = check::lease(ctx.now, lease_ms.unwrap_or(LEASE_MS))?;
    let pinned = tool::pinned(ctx, &call)?;
    let until = within_timeout(&pinned, call.claimed_at, until);
    call.lease_expires_at = call.lease_expires_at.max(Some(until));
    save(ctx, call)
}

/// The wait of a call for its next attempt is over: anybody may claim it.
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

/// Holds a worker to what the tool says that it must be capable of.
fn check_capable(caller: &Caller, pinned: &Tool, call: &ToolCall) -> Result<(), Refusal> {
    let what = format!("claiming a call of {}", call.tool_name);
    check::capability(caller, pinned.required_capability.as_deref(), &what)
}

/// Makes a call claimed: by the pace of today's tool, and the rules of the version that it has.
pub(super) fn take(
    ctx: &mut Context<'_>,
    tool: &Tool,
    pinned: &Tool,
    call: &mut ToolCall,
    lease_ms: i64,
    worker: Option<String>,
) -> Result<(), Abort> {
    pace::note(ctx, tool)?;
    call.claimed_at = Some(ctx.now);
    let until = check::lease(ctx.now, lease_ms)?;
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

/// The end of a lease, no later than the tool gives an attempt.
fn within_timeout(pinned: &Tool, since: Option<Micros>, until: Micros) -> Micros {
    match (pinned.timeout_ms, since) {
        (Some(timeout_ms), Some(since)) => until.min(since.plus_ms(timeout_ms)),
        _ => until,
    }
}

/// The first to come of a tool's calls that anybody may claim.
fn longest_waiting(ctx: &mut Context<'_>, tool: &str) -> Result<Option<ToolCall>, Abort> {
    let first = "WHERE status = 'pending' AND lease_expires_at IS NULL AND retry_at IS NULL
        AND tool_name = ?1 ORDER BY rowid LIMIT 1";
    Ok(ctx.find::<ToolCall>(first, &[Value::from(tool)])?.into_iter().next())
}

fn nothing_waits(tools: &[String]) -> Refusal {
    let detail = format!("no call of {} waits to be claimed", tools.join(", "));
    let hint = "abide watch \"SELECT call_id, tool_name FROM tool_calls \
                WHERE status = 'pending' AND retry_at IS NULL\"";
    Refusal::new(Code::NotFound, detail).hint(hint)
}

fn not_to_be_claimed(call: &ToolCall) -> Refusal {
    let id = &call.call_id;
    let holder = call.claimed_by.as_deref().unwrap_or("nobody");
    if call.status == ToolCallStatus::Unknown {
        let detail = format!(
            "call {id} was claimed by {holder}, whose lease has run out; whether it ran is \
             unknown, and {} must not run twice",
            call.tool_name
        );
        return Refusal::new(Code::Conflict, detail)
            .hint("find out, and tell with settle_tool_call");
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
        "watch it with  abide watch \"SELECT status FROM tool_calls WHERE call_id = '{id}'\""
    );
    Refusal::new(Code::Conflict, detail).hint(hint)
}
