//! Callers that flood: one exceeds its rate limit and receives 429 with Retry-After; one without a
//! rate limit fills the writer's queue and receives 503.

use std::time::Instant;

use serde_json::json;
use tokio::task::JoinSet;

use super::bounds;
use super::stage::OverloadFixture;
use crate::CheckResult;
use crate::figures::{count, figure};
use crate::http::Http;

/// Connections of the rate-limited caller.
const LIMITED: usize = 8;
/// Connections of the caller without a rate limit: with a call of [`LARGE_BYTES`] on each, several
/// times the size of the queue.
const UNLIMITED: usize = 256;
/// The size of each of its calls.
const LARGE_BYTES: usize = 256 << 10;
/// The rate limit in calls per second, as set by the stage.
const RATE: f64 = 50.0;

/// The result of a flood.
#[derive(Clone, Copy, Debug, Default)]
struct FloodCounts {
    answered: u64,
    refused: u64,
}

/// Runs both floods.
pub(crate) async fn run(fixture: &mut OverloadFixture) -> CheckResult {
    let small = json!({"session_id": "flooded", "role": "user", "content": "again"}).to_string();
    let caller = fixture.caller();
    let begun = Instant::now();
    let came = flood(fixture, &fixture.flooder, LIMITED, &small, 429).await?;
    let seconds = begun.elapsed().as_secs_f64();
    fixture.hold_waits("flood over the rate limit", &caller.stop()?, bounds::FACTOR)?;
    println!(
        "flood     over the rate limit: {} calls completed, {} refused with 429 and Retry-After",
        count(came.answered),
        count(came.refused)
    );
    figure("calls over the rate limit, refused with 429 and Retry-After", count(came.refused));
    // The full burst at once, then the rate per second.
    let max = RATE * (seconds + 2.0);
    if came.refused == 0 || came.answered as f64 > max {
        return Err(format!("{came:?} in {seconds:.1} s, with a rate limit of {RATE}/s"));
    }
    let large = json!({"session_id": "flooded", "role": "user",
        "content": "m".repeat(LARGE_BYTES)});
    let caller = fixture.caller();
    let came = flood(fixture, &fixture.admin, UNLIMITED, &large.to_string(), 503).await?;
    let waits = caller.stop()?;
    println!(
        "flood     without a rate limit: {} calls completed, {} refused with 503 and Retry-After",
        count(came.answered),
        count(came.refused)
    );
    figure("calls over the queue limit, refused with 503 and Retry-After", count(came.refused));
    if came.refused == 0 {
        return Err("the writer's queue was never full".to_owned());
    }
    fixture.hold_percentile(
        "flood of the queue",
        &waits,
        bounds::FEW_CALLS_PERCENTILE,
        bounds::STORM_FACTOR,
        bounds::FLOOD_MS.max((bounds::FLOOD_SYNCS * fixture.sync_ms).min(bounds::FLOOD_MOST_MS)),
    )?;
    let subscribers = (fixture.size.connections as u64) * bounds::CONNECTION_BYTES;
    let messages = (3 * fixture.size.oversize + UNLIMITED / 8) as u64 * bounds::MESSAGE_BYTES;
    fixture.hold_memory("flood", bounds::REST_BYTES + subscribers + messages)
}

/// Connections that call as fast as responses arrive. A refusal must be the expected one with
/// Retry-After; these clients ignore it.
async fn flood(
    fixture: &OverloadFixture,
    token: &str,
    number: usize,
    body: &str,
    refusal: u16,
) -> CheckResult<FloodCounts> {
    let until = Instant::now() + fixture.size.flood;
    let mut all = JoinSet::new();
    for _ in 0..number {
        let mut http = fixture.http(token).await?;
        let body = body.to_owned();
        all.spawn(async move {
            let mut came = FloodCounts::default();
            while Instant::now() < until {
                send_one(&mut http, &body, refusal, &mut came).await?;
            }
            Ok::<FloodCounts, String>(came)
        });
    }
    let mut sum = FloodCounts::default();
    while let Some(came) = all.join_next().await {
        let came = came.map_err(|why| why.to_string())??;
        sum.answered += came.answered;
        sum.refused += came.refused;
    }
    Ok(sum)
}

async fn send_one(
    http: &mut Http,
    body: &str,
    refusal: u16,
    came: &mut FloodCounts,
) -> CheckResult {
    let answer = http
        .post("/v1/call/append_message", body)
        .await
        .map_err(|why| format!("a flooding connection failed: {why}"))?;
    match (answer.status, answer.retry_after) {
        (200, _) => came.answered += 1,
        (status, Some(_)) if status == refusal => came.refused += 1,
        _ => return Err(format!("unexpected response to a flood: {answer}")),
    }
    Ok(())
}
