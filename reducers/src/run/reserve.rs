//! Reserving the usage of an answer before the model is asked.

use abide_schema::{Abort, Context, reducer};
use serde::{Deserialize, Serialize};

use super::Run;
use super::drive::find_continuing;
use crate::{budget, check};

/// The result of `reserve_usage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReservedUsage {
    /// The number of budgets that the usage is reserved in: the run's own, and those of the runs that delegated it. If
    /// it is 0, nothing limits the run.
    pub budgets: usize,
}

/// Reserves an estimate of the usage of an answer in the budgets of the run and of the runs that delegated it, before
/// the model is asked. It replaces the run's former reservation. `record_run` with `spent` settles it. Refused
/// with `limit_exceeded` if a budget is used up, and with `rate_limited` if reservations of other runs leave too little.
#[reducer(roles(app, agent))]
pub fn reserve_usage(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// Estimated input and output tokens.
    tokens: i64,
    /// Estimated cost in millionths of a dollar, if the price is known.
    cost_micros: Option<i64>,
) -> Result<ReservedUsage, Abort> {
    let run = find_continuing(ctx, &id, fencing_token)?;
    let counts = 0..=i64::from(u32::MAX);
    check::in_range("tokens", Some(tokens), &counts)?;
    check::in_range("cost_micros", cost_micros, &counts)?;
    let amount = budget::Amount { tokens, cost_micros: cost_micros.unwrap_or(0) };
    Ok(ReservedUsage { budgets: budget::reserve(ctx, &run, amount)? })
}
