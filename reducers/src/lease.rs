//! Leases: ownership of claimed rows. A claim's fencing token is the seq of its event, so the log identifies
//! the holder: the caller of that event. Another identity gains nothing by guessing or learning a token.

use abide_schema::{Abort, Code, Context, Refusal, Seq};

/// Returns `true` if the caller is the identity that made the claim with this token.
pub(crate) fn is_holder(ctx: &mut Context<'_>, fencing_token: i64) -> Result<bool, Abort> {
    let holder = ctx.caller_of(Seq(fencing_token))?;
    Ok(holder.is_some_and(|holder| holder == ctx.caller.id()))
}

/// Returns the refusal of a caller that has never held the lease.
pub(crate) fn not_the_holder(what: &str) -> Refusal {
    let detail = format!("the lease on {what} is held by another identity");
    Refusal::new(Code::Denied, detail)
        .hint("claim it with this identity first, when that lease has expired")
}

/// Returns the refusal of such a caller when nothing holds a lease any more. `state` is what became of the row.
pub(crate) fn was_not_the_holder(what: &str, state: &str) -> Refusal {
    let detail = format!("{what} is {state}, and its lease was held by another identity");
    Refusal::new(Code::Denied, detail)
}

/// Removes the token from a result for a restricted caller who is not the holder.
pub(crate) fn hide_token(
    ctx: &mut Context<'_>,
    fencing_token: &mut Option<i64>,
) -> Result<(), Abort> {
    if let Some(token) = *fencing_token
        && !ctx.caller.is_unrestricted()
        && !is_holder(ctx, token)?
    {
        *fencing_token = None;
    }
    Ok(())
}
