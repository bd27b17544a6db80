//! Regression: with one commit per run, ten thousand runs needed ten thousand commits every few seconds, and the
//! last renewals came too late. With one batch for all, a single run that had ended would have cost all others
//! their leases.

use std::time::Duration;

use abide_client::arguments::{ClaimRun, CreateSession, RegisterAgent, StartRun};
use abide_client::{Abide, Call};
use serde_json::Map;

use super::{HeldLeases, LEASES_PER_BATCH};
use crate::run::lease::RunLease;

/// Starts runs for one driver, each in its own session.
async fn drive(abide: &Abide, runs: usize) -> Vec<RunLease> {
    abide.call(RegisterAgent::new("clerk", Map::new())).await.expect("the agent is valid");
    let mut calls: Vec<Call> = Vec::new();
    for number in 0..runs {
        let id = format!("s{number}");
        calls.push(Call::of(CreateSession::new("clerk").id(&id)));
        calls.push(Call::of(StartRun::new(&id).id(&id)));
        calls.push(Call::of(ClaimRun::new(id, "me", 60_000)));
    }
    for together in calls.chunks(900) {
        abide.batch(together.to_vec()).await.expect("the runs start");
    }
    let sql = "SELECT id, fencing_token FROM runs ORDER BY created_at, id";
    let held: Vec<(String, i64)> = abide.sql(sql).fetch().await.expect("the query succeeds");
    let run_leases =
        held.into_iter().map(|(run_id, fencing_token)| RunLease { run_id, fencing_token });
    run_leases.collect()
}

async fn number(abide: &Abide, sql: &str) -> i64 {
    let rows: Vec<(i64,)> = abide.sql(sql).fetch().await.expect("the query succeeds");
    rows[0].0
}

#[tokio::test]
async fn a_refused_renewal_does_not_affect_other_runs() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let runs = LEASES_PER_BATCH + 20;
    let run_leases = drive(&abide, runs).await;
    // Two runs have ended since the list was read, one in each batch.
    for gone in [7, LEASES_PER_BATCH + 3] {
        abide.call(run_leases[gone].failed("over", "it is over")).await.expect("the run ends");
    }
    let latest = "SELECT max(lease_expires_at) FROM runs";
    let before = number(&abide, latest).await;
    let held = HeldLeases::default();
    run_leases.iter().cloned().for_each(|lease| held.hold_run(lease));
    held.renew(&abide, Duration::from_secs(600)).await.expect("the database is open");
    let sql = format!("SELECT count(*) FROM runs WHERE lease_expires_at > {before}");
    assert_eq!(number(&abide, &sql).await, i64::try_from(runs).expect("it is in range") - 2);
    abide.close().await;
}
