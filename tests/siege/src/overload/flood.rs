//! Callers that flood: one beyond its allowance, who is told 429 and when to come again; and one without any
//! allowance, who fills the queue of the writer and is told 503.

use std::time::Instant;

use serde_json::json;
use tokio::task::JoinSet;

use super::bounds;
use super::stage::Stage;
use crate::Told;
use crate::figures::{count, figure};
use crate::http::Http;

/// Connections of the one with an allowance.
const LIMITED: usize = 8;
/// Connections of the one without: with a call of [`LARGE_BYTES`] on each, several times what the queue holds.
const UNLIMITED: usize = 256;
/// What each call of that one brings.
const LARGE_BYTES: usize = 256 << 10;
/// Calls a second of the allowance, as the stage gave it.
const RATE: f64 = 50.0;

/// What came of a flood.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    answered: u64,
    refused: u64,
}

/// Floods, twice.
pub(crate) async fn run(stage: &mut Stage) -> Told {
    let small = json!({"session_id": "flooded", "role": "user", "content": "again"}).to_string();
    let caller = stage.caller();
    let (begun, came) = (Instant::now(), flood(stage, &stage.flooder, LIMITED, &small, 429).await?);
    let seconds = begun.elapsed().as_secs_f64();
    stage.hold_waits("flood beyond a rate", &caller.stop()?, bounds::FACTOR)?;
    println!(
        "flood     beyond a rate: {} calls answered, {} refused with 429 and Retry-After",
        count(came.answered),
        count(came.refused)
    );
    figure("calls beyond a rate, refused with 429 and Retry-After", count(came.refused));
    // A whole allowance at once, and then so many a second.
    let most = RATE * (seconds + 2.0);
    if came.refused == 0 || came.answered as f64 > most {
        return Err(format!("{came:?} in {seconds:.1} s, of a rate of {RATE} a second"));
    }
    let large = json!({"session_id": "flooded", "role": "user",
        "content": "m".repeat(LARGE_BYTES)});
    let caller = stage.caller();
    let came = flood(stage, &stage.admin, UNLIMITED, &large.to_string(), 503).await?;
    let waits = caller.stop()?;
    println!(
        "flood     without a rate: {} calls answered, {} refused with 503 and Retry-After",
        count(came.answered),
        count(came.refused)
    );
    figure("calls beyond the queue, refused with 503 and Retry-After", count(came.refused));
    if came.refused == 0 {
        return Err("the queue of the writer is never full".to_owned());
    }
    stage.hold_waits_above("flood of the queue", &waits, bounds::STORM_FACTOR, bounds::FLOOD_MS)?;
    let crowd = (stage.size.connections as u64) * bounds::CONNECTION_BYTES;
    let messages = (3 * stage.size.oversize + UNLIMITED / 8) as u64 * bounds::MESSAGE_BYTES;
    stage.hold_memory("flood", bounds::REST_BYTES + crowd + messages)
}

/// So many connections that call as fast as they are answered. A refusal must be the expected one, and
/// say when to come again; nobody here does as he is told.
async fn flood(stage: &Stage, token: &str, number: usize, body: &str, refusal: u16) -> Told<Came> {
    let (until, mut all) = (Instant::now() + stage.size.flood, JoinSet::new());
    for _ in 0..number {
        let (mut http, body) = (stage.http(token).await?, body.to_owned());
        all.spawn(async move {
            let mut came = Came::default();
            while Instant::now() < until {
                one(&mut http, &body, refusal, &mut came).await?;
            }
            Ok::<Came, String>(came)
        });
    }
    let mut sum = Came::default();
    while let Some(came) = all.join_next().await {
        let came = came.map_err(|why| why.to_string())??;
        sum.answered += came.answered;
        sum.refused += came.refused;
    }
    Ok(sum)
}

async fn one(http: &mut Http, body: &str, refusal: u16, came: &mut Came) -> Told {
    let answer = http.post("/v1/call/append_message", body).await;
    let answer = answer.map_err(|why| format!("a flood is cut off: {why}"))?;
    match (answer.status, answer.retry_after) {
        (200, _) => came.answered += 1,
        (status, Some(_)) if status == refusal => came.refused += 1,
        _ => return Err(format!("a flood is answered {answer}")),
    }
    Ok(())
}
