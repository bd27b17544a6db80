//! Effects compared with a simple model: random interleavings of workers, crashes, retries,
//! duplicates, clock jumps and restarts. The model predicts the result of each call and every row,
//! and counts how often each external effect ran.
//!
//! `calls` tool calls, approvals and cancellation · `handoffs` handoffs to supervisors.

mod calls;
mod handoffs;

use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal};
use abide_tests::world::World;
use serde_json::Value as JsonValue;

/// The response to a call: its result and whether it was a retry, or the code of the refusal.
type CallAnswer = Result<(JsonValue, bool), Code>;

async fn call(world: &World, caller: &str, reducer: &str, args: JsonValue) -> CallAnswer {
    let done = world
        .engine()
        .call(&Caller::new(caller), reducer, &args, None)
        .await
        .map_err(|refusal: Refusal| refusal.code)?;
    Ok((serde_json::from_str(&done.result).unwrap(), done.duplicate))
}

/// Rows as text, in a form that a model can predict.
async fn rows(world: &World, sql: &str) -> Vec<String> {
    let rows = world.rows(sql).await;
    rows.iter()
        .map(|row| {
            let cells = row.iter().map(|cell| cell.to_json().to_string());
            cells.collect::<Vec<_>>().join(" ").replace('"', "")
        })
        .collect()
}
