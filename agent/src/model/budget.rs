//! Budgets: the usage of an answer is reserved before the model is asked, in the budgets of the run and of all runs
//! above it in the delegation.

use std::sync::atomic::Ordering;

use abide_client::arguments::ReserveUsage;
use abide_client::rows::Run;
use abide_client::{Code, Error, Subscription};
use abide_models::{Completeness, ModelRequest, Price, Usage};
use serde_json::json;

use crate::run::driver::Driver;
use crate::run::step::{RunFailure, Step, StepError, overtime};

/// Characters per token, as an estimate.
const CHARS_PER_TOKEN: usize = 4;

/// Tokens of an answer whose request sets no `max_tokens`, as an estimate.
const ANSWER_TOKENS: u64 = 512;

/// Reserves the estimated usage of a request. Waits while reservations of other runs leave too little.
pub(crate) async fn reserve(driver: &Driver, request: &ModelRequest, price: Option<Price>) -> Step {
    let limits = &driver.own_definition.limits;
    let is_limited = limits.tokens.is_some() || limits.cost_usd.is_some();
    if !(is_limited || driver.state.run.parent_id.is_some())
        || driver.has_no_budget.load(Ordering::Relaxed)
    {
        return Ok(());
    }
    let reservation = estimate_reservation(driver, request, price);
    let mut subscription: Option<Subscription> = None;
    loop {
        match driver.abide.call(reservation.clone()).await {
            Ok(reserved) => {
                driver.has_no_budget.store(reserved.value.budgets == 0, Ordering::Relaxed);
                return Ok(());
            }
            Err(error) if error.code() == Some(Code::LimitExceeded) => {
                return Err(limit_reached(driver, &error).await?);
            }
            // Reservations of other runs leave too little. They change the budgets when they are settled.
            Err(error) if error.code() == Some(Code::RateLimited) => {}
            // This includes the other temporary refusals: what ends them does not change the budgets.
            Err(error) => return Err(error.into()),
        }
        let changes = match &mut subscription {
            Some(changes) => changes,
            None => subscription.insert(subscribe_to_budgets(driver).await?),
        };
        // The first update is the current state, which may differ from the state of the refusal.
        tokio::select! {
            update = changes.try_next() => {
                update?.ok_or(Error::Closed)?;
            }
            () = driver.stop.cancelled() => return Err(StepError::Aborted),
            () = driver.shutdown.draining() => return Err(StepError::Released),
            () = driver.until_deadline() => return Err(overtime()),
        }
    }
}

/// Returns the tokens of a request, as an estimate.
pub(crate) fn input_tokens(request: &ModelRequest) -> i64 {
    let chars = json!(request).to_string().chars().count();
    i64::try_from(chars / CHARS_PER_TOKEN).unwrap_or(i64::MAX)
}

/// Returns the call that reserves the estimated usage of a request. The cost is omitted if the price is unknown.
fn estimate_reservation(
    driver: &Driver,
    request: &ModelRequest,
    price: Option<Price>,
) -> ReserveUsage {
    let input = input_tokens(request).unsigned_abs();
    let output = request.max_tokens.map_or(ANSWER_TOKENS, u64::from);
    let usage = Usage {
        input_tokens: Some(input),
        output_tokens: Some(output),
        completeness: Completeness::Complete,
        ..Usage::default()
    };
    // The reducer refuses larger amounts.
    let max = i64::from(u32::MAX);
    let tokens = i64::try_from(input + output).unwrap_or(max).min(max);
    let cost = price.and_then(|price| price.cost_micros(&usage)).map(|cost| cost.min(max));
    ReserveUsage {
        cost_micros: cost,
        ..ReserveUsage::new(&driver.run_lease.run_id, driver.run_lease.fencing_token, tokens)
    }
}

/// Returns the ids of the run and of the runs above it.
async fn find_run_chain(driver: &Driver) -> Result<Vec<String>, Error> {
    let mut ids = vec![driver.state.run.id.clone()];
    let mut parent_id = driver.state.run.parent_id.clone();
    while let Some(id) = parent_id {
        let sql = "SELECT * FROM runs WHERE id = :id";
        let found: Vec<Run> = driver.abide.sql(sql).param("id", &id).fetch().await?;
        parent_id = found.into_iter().next().and_then(|run| run.parent_id);
        ids.push(id);
    }
    Ok(ids)
}

/// Subscribes to the budgets of the run and of the runs above it: to what a reservation depends on.
async fn subscribe_to_budgets(driver: &Driver) -> Result<Subscription, Error> {
    let ids = find_run_chain(driver).await?;
    let names: Vec<String> = (0..ids.len()).map(|at| format!(":id{at}")).collect();
    let sql = format!(
        "SELECT run_id, tokens, cost_micros, reserved_tokens, reserved_cost_micros \
         FROM run_budgets WHERE run_id IN ({})",
        names.join(", ")
    );
    let mut subscribe = driver.abide.subscribe(sql);
    for (at, id) in ids.iter().enumerate() {
        subscribe = subscribe.param(&format!("id{at}"), id);
    }
    subscribe.await
}

/// Returns the failure of a run for which a budget is used up: `token_limit` or `cost_limit`. The error does not say
/// which, but the budget does, because what a run has consumed only grows.
async fn limit_reached(driver: &Driver, error: &Error) -> Step<StepError> {
    let message = match error {
        Error::Refused(refusal) => refusal.detail.clone(),
        other => other.to_string(),
    };
    let ids = json!(find_run_chain(driver).await?).to_string();
    let sql = "SELECT run_id FROM run_budgets WHERE tokens >= token_limit \
               AND run_id IN (SELECT value FROM json_each(:ids))";
    let found: Vec<(String,)> = driver.abide.sql(sql).param("ids", ids).fetch().await?;
    let code = if found.is_empty() { "cost_limit" } else { "token_limit" };
    Ok(StepError::Failed(RunFailure::new(code, message)))
}
