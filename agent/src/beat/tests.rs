//! One by one, ten thousand runs took ten thousand commits every few seconds, and the last of them came too late;
//! in one batch, a single run that had ended meanwhile would have cost all others their leases.

use std::time::Duration;

use abide_client::{Abide, Call, Hold, NewAgent, NewRun, NewSession};

use super::{TOGETHER, prolong};

/// Runs of a driver, each in a session of its own.
async fn drive(abide: &Abide, runs: usize) -> Vec<Hold> {
    abide.register_agent(NewAgent::of("clerk", Default::default())).await.expect("it is one");
    let mut calls: Vec<Call> = Vec::new();
    for number in 0..runs {
        let id = format!("s{number}");
        let session = NewSession { id: Some(id.clone()), ..NewSession::of("clerk") };
        calls.push(abide.create_session(session).into());
        let run = NewRun { id: Some(id.clone()), ..NewRun::of(&id) };
        calls.push(abide.start_run(run).into());
        calls.push(abide.claim_run(&id, "me", Duration::from_secs(60)).into());
    }
    for together in calls.chunks(900) {
        abide.batch(together.to_vec()).await.expect("they begin");
    }
    let sql = "SELECT id, fencing_token FROM runs ORDER BY created_at, id";
    let held: Vec<(String, i64)> = abide.sql(sql).fetch().await.expect("it can be read");
    let holds = held.into_iter().map(|(run_id, fencing_token)| Hold { run_id, fencing_token });
    holds.collect()
}

async fn number(abide: &Abide, sql: &str) -> i64 {
    let rows: Vec<(i64,)> = abide.sql(sql).fetch().await.expect("it can be read");
    rows[0].0
}

#[tokio::test]
async fn a_run_that_is_refused_costs_no_other_its_lease() {
    let folder = tempfile::tempdir().expect("there is room");
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let runs = TOGETHER + 20;
    let holds = drive(&abide, runs).await;
    // Two have ended since it was asked which there are: one in each batch.
    for gone in [7, TOGETHER + 3] {
        abide.batch([holds[gone].failed("over", "it is over")]).await.expect("it ends");
    }
    let latest = "SELECT max(lease_expires_at) FROM runs";
    let before = number(&abide, latest).await;
    prolong(&abide, &holds, Duration::from_secs(600)).await.expect("it is there");
    let sql = format!("SELECT count(*) FROM runs WHERE lease_expires_at > {before}");
    assert_eq!(number(&abide, &sql).await, i64::try_from(runs).expect("it fits") - 2);
    abide.close().await;
}
