//! Recovery time: servers on files with more and more events are killed under load and started
//! again. Measured is the time from the start of the process until it reports its address.

use std::path::Path;
use std::time::Instant;

use abide_client::{Abide, Call};
use serde_json::json;

use crate::CheckResult;
use crate::arguments::Arguments;
use crate::figures::{count, figure, megabytes};
use crate::server::{Server, raise_open_files};

/// Events in a file, one measurement each.
const SIZES: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// The sizes for CI: a million events take too long to write.
const SHARE: [u64; 3] = [1_000, 10_000, 50_000];
/// The maximum in seconds, for every size.
const GOAL_S: f64 = 1.0;
/// The number of kills of each file; the slowest recovery counts.
const KILLS: usize = 5;
/// Calls in one transaction while a file is filled.
const BATCH: u64 = 500;
/// Sessions of the events.
const SESSIONS: u64 = 1_000;
/// Calls in flight at the kill.
const IN_FLIGHT: u64 = 64;

/// Fills a file step by step, and measures the recovery at each size.
pub(crate) async fn run(mut words: Arguments) -> CheckResult {
    let sizes: &[u64] = if words.has("share") { &SHARE } else { &SIZES };
    words.end()?;
    raise_open_files();
    let folder = tempfile::tempdir().map_err(|why| why.to_string())?;
    let db = folder.path().join("abide.db");
    let mut filled = 0;
    let mut missed = Vec::new();
    for size in sizes {
        filled = fill(&db, filled, *size).await?;
        let slowest = killed(&db).await?;
        let bytes = std::fs::metadata(&db).map_or(0, |file| file.len());
        println!(
            "recovery  {} events, {}: {:.0} ms, the slowest of {KILLS}",
            count(*size),
            megabytes(bytes),
            slowest * 1e3
        );
        figure(
            &format!("recovery of {} events ({})", count(*size), megabytes(bytes)),
            format!("{:.0} ms", slowest * 1e3),
        );
        if slowest > GOAL_S {
            missed.push(*size);
        }
    }
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("recovery took more than {GOAL_S} s for {missed:?}"))
    }
}

/// Adds events to a file, in this process and in large batches.
pub(crate) async fn fill(db: &Path, from: u64, to: u64) -> CheckResult<u64> {
    let begun = Instant::now();
    let abide = Abide::open(db).map_err(|why| why.to_string())?;
    let mut events = from;
    while events < to {
        let last = (events + BATCH).min(to);
        let calls = (events..last).map(|nth| {
            if nth < SESSIONS {
                let args = json!({"agent": "stress", "id": format!("s{nth}")});
                return Call::new("create_session", args);
            }
            let content = format!("{nth}. Where is my parcel? It was to come.");
            let session = format!("s{}", nth % SESSIONS);
            let args = json!({"session_id": session, "role": "user", "content": content});
            Call::new("append_message", args)
        });
        abide.batch(calls.collect::<Vec<_>>()).await.map_err(|why| why.to_string())?;
        events = last;
    }
    abide.close().await;
    let seconds = begun.elapsed().as_secs_f64();
    println!("recovery  {} events written in {seconds:.1} s", count(to - from));
    Ok(events)
}

/// Kills the server under load several times; returns the slowest recovery in seconds.
async fn killed(db: &Path) -> CheckResult<f64> {
    let mut slowest: f64 = 0.0;
    let mut server = Server::start(db)?;
    for kill in 0..KILLS {
        let abide = Abide::connect(&server.url()).await.map_err(|why| why.to_string())?;
        let calls = (0..IN_FLIGHT).map(|nth| {
            let content = "m".repeat(20_000);
            let args = json!({"session_id": format!("s{nth}"), "role": "user", "content": content});
            let call = abide.call_by_name("append_message", args);
            async move { call.await.map(drop).map_err(|why| why.to_string()) }
        });
        // More than one megabyte, so that the WAL has content to recover.
        for call in futures_util::future::join_all(calls).await {
            call?;
        }
        drop(abide);
        server.kill();
        server.start_again()?;
        slowest = slowest.max(server.started_in.as_secs_f64());
        if kill + 1 == KILLS {
            server.stop()?;
        }
    }
    Ok(slowest)
}
