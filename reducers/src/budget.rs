//! Budgets: the tokens and the cost that a run and all runs that it delegates may consume together. A definition sets
//! them (`limits.tokens`, `limits.cost_usd`).
//!
//! A driver reserves an estimate before it asks a model, and settles it with the reported usage. Concurrent runs of a
//! tree therefore do not all spend the same remainder. A run has at most one reservation: it asks one model at a time.

use abide_schema::reducer::RowVisibility;
use abide_schema::{Abort, Code, Context, Micros, Module, Refusal, Seq, limits, table};

use crate::agent::AgentRevision;
use crate::run::Run;

/// The budget of a run. The row is written when the run, or a run below it, first asks a model.
#[table(name = "run_budgets", without_rowid, index(session_id))]
pub struct RunBudget {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Maximum number of tokens; null if there is no such limit.
    pub token_limit: Option<i64>,
    /// Maximum cost in millionths of a dollar; null if there is no such limit.
    pub cost_limit_micros: Option<i64>,
    /// Tokens that the run and the runs below it have consumed. An answer of unknown usage counts as estimated.
    pub tokens: i64,
    /// The cost that the run and the runs below it have consumed.
    pub cost_micros: i64,
    /// Tokens that are reserved for answers in progress.
    pub reserved_tokens: i64,
    /// The cost that is reserved for answers in progress.
    pub reserved_cost_micros: i64,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// The reservation of a run for the answer that it waits for.
#[table(name = "reservations", without_rowid, index(session_id))]
pub struct Reservation {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Tokens.
    pub tokens: i64,
    /// Cost in millionths of a dollar.
    pub cost_micros: i64,
    /// When it was reserved.
    pub created_at: Micros,
    /// The event that reserved it.
    pub seq: Seq,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("budget")
        .visible::<RunBudget>(RowVisibility::InScope)
        .visible::<Reservation>(RowVisibility::InScope)
}

/// An amount of tokens and of cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) tokens: i64,
    pub(crate) cost_micros: i64,
}

/// Reserves an amount in the budgets of a run and of the runs above it. Returns the number of these budgets.
pub(crate) fn reserve(ctx: &mut Context<'_>, run: &Run, amount: Amount) -> Result<usize, Abort> {
    ctx.without_policies(|ctx| {
        release_amount(ctx, run)?;
        let mut budgets = Vec::new();
        for run in find_chain(ctx, run)? {
            budgets.extend(find_or_define(ctx, &run)?);
        }
        for budget in &budgets {
            budget.check(amount)?;
        }
        for budget in &mut budgets {
            budget.reserved_tokens += amount.tokens;
            budget.reserved_cost_micros += amount.cost_micros;
            save(ctx, budget.clone())?;
        }
        if !budgets.is_empty() {
            ctx.insert(Reservation {
                run_id: run.id.clone(),
                session_id: run.session_id.clone(),
                tokens: amount.tokens,
                cost_micros: amount.cost_micros,
                created_at: ctx.now,
                seq: ctx.seq,
            })?;
        }
        Ok(budgets.len())
    })
}

/// Adds what an answer has consumed to the budgets of a run and of the runs above it. A value that the provider did
/// not report counts as reserved.
pub(crate) fn settle(
    ctx: &mut Context<'_>,
    run: &Run,
    tokens: Option<i64>,
    cost_micros: Option<i64>,
) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        let reserved = release_amount(ctx, run)?;
        let is_alone = run.parent_id.is_none() && reserved.is_none();
        if is_alone && ctx.get::<RunBudget>(&run.id)?.is_none() {
            return Ok(());
        }
        let reserved = reserved.unwrap_or_default();
        for run in find_chain(ctx, run)? {
            let Some(mut budget) = ctx.get::<RunBudget>(&run.id)? else { continue };
            budget.tokens += tokens.unwrap_or(reserved.tokens);
            budget.cost_micros += cost_micros.unwrap_or(reserved.cost_micros);
            save(ctx, budget)?;
        }
        Ok(())
    })
}

/// Releases the reservation of a run whose answer will not arrive.
pub(crate) fn release(ctx: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    ctx.without_policies(|ctx| release_amount(ctx, run)).map(drop)
}

fn release_amount(ctx: &mut Context<'_>, run: &Run) -> Result<Option<Amount>, Abort> {
    let Some(Reservation { tokens, cost_micros, .. }) = ctx.get::<Reservation>(&run.id)? else {
        return Ok(None);
    };
    for run in find_chain(ctx, run)? {
        let Some(mut budget) = ctx.get::<RunBudget>(&run.id)? else { continue };
        budget.reserved_tokens -= tokens;
        budget.reserved_cost_micros -= cost_micros;
        save(ctx, budget)?;
    }
    ctx.delete::<Reservation>(&run.id)?;
    Ok(Some(Amount { tokens, cost_micros }))
}

/// Sets what an imported run had consumed, with the runs below it, if its definition has a budget.
pub(crate) fn restore(
    ctx: &mut Context<'_>,
    run: &Run,
    tokens: i64,
    cost_micros: i64,
) -> Result<(), Abort> {
    ctx.without_policies(|ctx| {
        let Some(mut budget) = find_or_define(ctx, run)? else { return Ok(()) };
        budget.tokens = budget.tokens.max(tokens);
        budget.cost_micros = budget.cost_micros.max(cost_micros);
        save(ctx, budget)
    })
}

/// Returns a run and the runs above it.
fn find_chain(ctx: &mut Context<'_>, run: &Run) -> Result<Vec<Run>, Abort> {
    let mut chain = vec![run.clone()];
    let mut above = run.parent_id.clone();
    while let Some(id) = above
        && chain.len() <= limits::DELEGATION_DEPTH as usize
    {
        let Some(run) = ctx.get::<Run>(&id)? else { break };
        above = run.parent_id.clone();
        chain.push(run);
    }
    Ok(chain)
}

/// Returns the budget of a run, if its definition sets one.
fn find_or_define(ctx: &mut Context<'_>, run: &Run) -> Result<Option<RunBudget>, Abort> {
    if let Some(budget) = ctx.get::<RunBudget>(&run.id)? {
        return Ok(Some(budget));
    }
    let Some(defined) = ctx.get::<AgentRevision>((run.agent.as_str(), run.revision))? else {
        return Ok(None);
    };
    let limits = &defined.definition.value()["limits"];
    let token_limit = limits["tokens"].as_i64();
    let dollars = limits["cost_usd"].as_f64();
    let cost_limit_micros = dollars.map(|dollars| (dollars * 1e6).round() as i64);
    if token_limit.is_none() && cost_limit_micros.is_none() {
        return Ok(None);
    }
    Ok(Some(RunBudget {
        run_id: run.id.clone(),
        session_id: run.session_id.clone(),
        token_limit,
        cost_limit_micros,
        tokens: run.input_tokens + run.output_tokens,
        cost_micros: run.cost_micros.unwrap_or(0),
        reserved_tokens: 0,
        reserved_cost_micros: 0,
        updated_at: ctx.now,
        seq: ctx.seq,
    }))
}

fn save(ctx: &mut Context<'_>, mut budget: RunBudget) -> Result<(), Abort> {
    budget.updated_at = ctx.now;
    budget.seq = ctx.seq;
    match ctx.get::<RunBudget>(&budget.run_id)? {
        Some(_) => ctx.update(&budget),
        None => ctx.insert(budget).map(drop),
    }
}

/// One of the resources that a budget limits.
struct Resource {
    unit: &'static str,
    limit: Option<i64>,
    spent: i64,
    reserved: i64,
    requested: i64,
}

impl RunBudget {
    /// Refuses an amount if the budget is used up, or if it is too small next to the reservations of other runs. A
    /// single answer may exceed it: its usage is known only afterwards.
    fn check(&self, amount: Amount) -> Result<(), Refusal> {
        let run = &self.run_id;
        let resources = [
            Resource {
                unit: "tokens",
                limit: self.token_limit,
                spent: self.tokens,
                reserved: self.reserved_tokens,
                requested: amount.tokens,
            },
            Resource {
                unit: "millionths of a dollar",
                limit: self.cost_limit_micros,
                spent: self.cost_micros,
                reserved: self.reserved_cost_micros,
                requested: amount.cost_micros,
            },
        ];
        for Resource { unit, limit, spent, reserved, requested } in resources {
            let Some(limit) = limit else { continue };
            if spent >= limit {
                let detail = format!("run {run} has reached its limit of {limit} {unit}");
                let hint = "limits.tokens and limits.cost_usd of its agent include delegated runs";
                return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint));
            }
            if reserved > 0 && spent.saturating_add(reserved).saturating_add(requested) > limit {
                let left = limit - spent;
                let detail = format!(
                    "run {run} has {left} {unit} left, of which {reserved} are reserved by other requests"
                );
                let hint = "reserve again when run_budgets has changed";
                return Err(Refusal::new(Code::RateLimited, detail).hint(hint));
            }
        }
        Ok(())
    }
}
