//! The holder of a call: who may end it, or extend its lease, and with which fencing token.

use abide_schema::seeded::{SeededBug, makes};
use abide_schema::{Abort, Caller, Code, Context, Refusal};

use super::{LostLease, ToolCall, ToolCallStatus, find, find_pinned};
use crate::{check, lease};

/// Loads a call, if the caller holds it with this token.
pub(crate) fn find_claimed(
    ctx: &mut Context<'_>,
    call_id: &str,
    fencing_token: i64,
) -> Result<ToolCall, Abort> {
    let call = find(ctx, call_id)?;
    if holds_claim(ctx, &call, fencing_token)? {
        Ok(call)
    } else {
        Err(not_held(ctx, &call, fencing_token)?.into())
    }
}

/// Returns `true` if the caller holds the call with this token. A holder without the required capability is denied.
pub(super) fn holds_claim(
    ctx: &mut Context<'_>,
    call: &ToolCall,
    fencing_token: i64,
) -> Result<bool, Abort> {
    let Some(current) = call.fencing_token else { return Ok(false) };
    let is_fenced = current != fencing_token && !makes(SeededBug::NoFencing);
    if call.status != ToolCallStatus::Claimed || is_fenced || !lease::is_holder(ctx, current)? {
        return Ok(false);
    }
    if !ctx.caller.can(Caller::EVERY_CAPABILITY) {
        let required = find_pinned(ctx, call)?.required_capability;
        let what = format!("running a call of {}", call.tool_name);
        check::capability(ctx.caller, required.as_deref(), &what)?;
    }
    Ok(true)
}

/// Returns why a caller cannot end a call, or extend its lease, with a token. The current or former holder learns how
/// the lease was lost; other callers learn only that they do not hold it.
pub(super) fn not_held(
    ctx: &mut Context<'_>,
    call: &ToolCall,
    fencing_token: i64,
) -> Result<Refusal, Abort> {
    let Some(current) = call.fencing_token else { return Ok(never_claimed(call)) };
    let was_holder = lease::is_holder(ctx, current)?
        || (lost_lease(ctx, call, fencing_token)?.is_some()
            && lease::is_holder(ctx, fencing_token)?);
    if was_holder {
        return Ok(claim_lost(call, fencing_token));
    }
    let what = format!("call {}", call.call_id);
    Ok(match call.status {
        ToolCallStatus::Claimed => lease::not_the_holder(&what),
        status => {
            let refusal = lease::was_not_the_holder(&what, status.as_str());
            match status {
                ToolCallStatus::Pending => refusal.hint("claim it with this identity first"),
                ToolCallStatus::Unknown => refusal.hint(settlement_hint(&call.call_id)),
                _ => refusal,
            }
        }
    })
}

/// Returns the lease of a call that was lost, by its token.
pub(super) fn lost_lease(
    ctx: &mut Context<'_>,
    call: &ToolCall,
    fencing_token: i64,
) -> Result<Option<LostLease>, Abort> {
    let key = (call.call_id.as_str(), fencing_token);
    ctx.without_policies(|ctx| ctx.get::<LostLease>(key))
}

/// Returns the refusal for a call that no worker has claimed, so that no token is valid.
fn never_claimed(call: &ToolCall) -> Refusal {
    let detail = format!("call {} is {} and was never claimed", call.call_id, call.status);
    let refusal = Refusal::new(Code::Conflict, detail);
    if call.status.is_terminal() {
        refusal
    } else {
        refusal.hint("claim it first, when it is pending")
    }
}

/// Returns the refusal for the current or former holder.
fn claim_lost(call: &ToolCall, fencing_token: i64) -> Refusal {
    let id = &call.call_id;
    let status = call.status;
    let holder = call.claimed_by.as_deref().unwrap_or("no worker");
    match (status, call.fencing_token == Some(fencing_token)) {
        (ToolCallStatus::Claimed, false) => {
            lease_lost(format!("call {id} is claimed by {holder} under another token"))
        }
        (ToolCallStatus::Pending | ToolCallStatus::AwaitingApproval, _) => {
            lease_lost(format!("call {id} is {status} and not claimed"))
        }
        (ToolCallStatus::Unknown, _) => {
            lease_lost(format!("the lease of {holder} on call {id} has ended"))
        }
        (_, true) => Refusal::new(Code::Conflict, format!("call {id} is {status} already")),
        (_, false) => lease_lost(format!("call {id} is {status} under another token")),
    }
}

/// Returns the hint for a call with the status `unknown`: its worker disappeared, and only a person can find out
/// whether it ran.
pub(super) fn settlement_hint(call_id: &str) -> String {
    let argument = check::shell_word(&format!("call_id={call_id}"));
    let command = format!("abide call settle_tool_call {argument}");
    format!(
        "find out whether it ran, then record the outcome with `{command} outcome=succeeded` or `{command} outcome=failed`"
    )
}

/// The hint of a lost lease.
pub(super) const DISCARD: &str = "another worker may repeat this call; discard this result";

fn lease_lost(detail: String) -> Refusal {
    Refusal::new(Code::LeaseLost, detail).hint(DISCARD)
}
