//! Limits of a tool: concurrent calls, and attempts per period. Pending
//! calls wait; a claim that comes too early is refused and can be retried.
//!
//! Running calls are counted from the calls themselves, attempts from one row each, so
//! there is no counter that could drift. Tools without limits have no overhead.

use abide_schema::{Abort, Code, Context, Micros, Refusal, Seq, Value, table};

use super::ToolCall;
use crate::tool::{Rate, Tool};

/// A claim of a rate-limited tool; deleted after the rate period.
#[table(name = "tool_claims", without_rowid, shared)]
pub struct ToolClaim {
    /// The tool.
    #[column(key, references = "tools(name)")]
    pub tool_name: String,
    /// The claim.
    #[column(key)]
    pub seq: Seq,
    /// When it was claimed.
    pub at: Micros,
}

/// Old claims deleted by a new one: more than it adds, so that they do not accumulate.
const FORGOTTEN_AT_ONCE: i64 = 4;

/// Why no call of a tool can be claimed now, if a limit is reached.
pub(super) fn find_reached_limit(
    ctx: &mut Context<'_>,
    tool: &Tool,
) -> Result<Option<Refusal>, Abort> {
    if tool.limits.is_none() {
        return Ok(None);
    }
    let name = &tool.name;
    let limits = tool.limits();
    if let Some(max) = limits.concurrency {
        // Reads at most as many as the limit, even if more run because the limit was higher before.
        let running = "WHERE rowid IN (SELECT rowid FROM tool_calls
            WHERE status = 'claimed' AND tool_name = ?1 LIMIT ?2)";
        let params = [Value::from(name.as_str()), max.into()];
        let running = ctx.count_everywhere::<ToolCall>(running, &params)?;
        if running >= max {
            let detail = format!("{name} allows {max} concurrent calls, and all are running");
            let hint = "claim again when one of them has ended";
            return Ok(Some(Refusal::new(Code::RateLimited, detail).hint(hint)));
        }
    }
    let Some(Rate { calls, per_ms }) = limits.rate else { return Ok(None) };
    let nth_last = "WHERE tool_name = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2";
    let params = [name.as_str().into(), (calls - 1).into()];
    let nth_last = ctx.without_policies(|ctx| ctx.find::<ToolClaim>(nth_last, &params))?;
    let free_at = nth_last.first().map(|claim| claim.at.plus_ms(per_ms));
    Ok(free_at.filter(|free_at| ctx.now < *free_at).map(|free_at| {
        let detail =
            format!("{name} allows {calls} attempts in {per_ms} ms, the next at {free_at}");
        Refusal::new(Code::RateLimited, detail).hint("claim again at that time")
    }))
}

/// Records the start of an attempt.
pub(super) fn record_attempt(ctx: &mut Context<'_>, tool: &Tool) -> Result<(), Abort> {
    let Some(Rate { per_ms, .. }) = tool.limits.as_ref().and_then(|_| tool.limits().rate) else {
        return Ok(());
    };
    let seq = ctx.seq;
    let at = ctx.now;
    let over = Micros(at.0.saturating_sub(per_ms.saturating_mul(1_000)));
    // In order of seq. A condition on the time would scan all of them if none is old.
    let oldest = "WHERE tool_name = ?1 ORDER BY seq LIMIT ?2";
    let params = [tool.name.as_str().into(), FORGOTTEN_AT_ONCE.into()];
    ctx.without_policies(|ctx| {
        ctx.insert(ToolClaim { tool_name: tool.name.clone(), seq, at })?;
        let oldest = ctx.find::<ToolClaim>(oldest, &params)?;
        for claim in oldest.into_iter().filter(|claim| claim.at <= over) {
            ctx.delete::<ToolClaim>((claim.tool_name, claim.seq.0))?;
        }
        Ok(())
    })
}
