//! Regression: with one commit per run, ten thousand runs needed ten thousand commits every few seconds, and the
//! last renewals came too late. With one batch for all, a single run that had ended would have cost all others
//! their leases.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use abide_client::arguments::{ClaimRun, CreateSession, RegisterAgent, StartRun};
use abide_client::{Abide, Call, Config, Error};
use abide_engine::Engine;
use abide_server::AccessConfig;
use serde_json::Map;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{HeldLeases, LEASES_PER_BATCH, Lease, LeaseKeeper};
use crate::run::lease::RunLease;

/// Starts runs for one driver, each in its own session.
async fn drive(abide: &Abide, runs: usize) -> Vec<RunLease> {
    abide.call(RegisterAgent::new("clerk", Map::new())).await.expect("the agent is valid");
    let mut calls: Vec<Call> = Vec::new();
    for number in 0..runs {
        let id = format!("s{number}");
        calls.push(Call::from(CreateSession::new("clerk").id(&id)));
        calls.push(Call::from(StartRun::new(&id).id(&id)));
        calls.push(Call::from(ClaimRun::new(id, "me", 60_000)));
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
        abide.call(run_leases[gone].fail("over", "it is over")).await.expect("the run ends");
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

/// The time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn order(held: &HeldLeases) -> Vec<String> {
    held.by_expiry()
        .into_iter()
        .map(|lease| match lease {
            Lease::Run(run) => run.run_id,
            Lease::Call(call) => call.call_id,
        })
        .collect()
}

/// Leases were renewed in the order of their ids. When renewals are late, those that expire first were lost, although others
/// had time.
#[tokio::test]
async fn leases_that_expire_first_are_renewed_first() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let run_leases = drive(&abide, 3).await;
    let held = HeldLeases::default();
    run_leases.iter().cloned().rev().for_each(|lease| held.hold_run(lease));
    assert_eq!(order(&held), ["s2", "s1", "s0"]);
    held.renew(&abide, Duration::from_secs(600)).await.expect("the database is open");
    held.hold_run(run_leases[0].clone());
    assert_eq!(order(&held), ["s1", "s2", "s0"], "the first is younger than the renewal");
    abide.close().await;
}

/// The thread that renews leases ended silently when its connection was closed: the runtime claimed further runs, and lost
/// each of them after the time of a lease.
#[tokio::test]
async fn nothing_is_claimed_while_leases_cannot_be_renewed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("abide.db");
    let abide = Abide::open(&path).expect("the file opens");
    let leases = Arc::<HeldLeases>::default();
    leases.hold_run(drive(&abide, 1).await.remove(0));
    timeout(PATIENCE, leases.until_renewed()).await.expect("a claim is possible");
    let keeper =
        LeaseKeeper::start(&abide, &leases, Duration::from_millis(30)).expect("a thread starts");
    abide.close().await;
    let fails = async { leases.is_failing.subscribe().wait_for(|fails| *fails).await.map(drop) };
    timeout(PATIENCE, fails).await.expect("it is noticed at once").expect("the sender lives");
    assert!(futures_util::FutureExt::now_or_never(leases.until_renewed()).is_none());
    keeper.stop().await;
}

/// Without a lease there was nothing to renew, so the next attempt succeeded although no server answered: the runtime claimed
/// again, once for each failure.
#[tokio::test]
async fn without_leases_claims_wait_for_an_answer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("abide.db");
    let abide = Abide::open(&path).expect("the file opens");
    let leases = HeldLeases::default();
    let lease = Duration::from_secs(600);
    leases.note_renewal(Some(&Error::Closed));
    leases.renew(&abide, lease).await.expect("the engine answers");
    abide.close().await;
    leases.renew(&abide, lease).await.expect_err("nothing answers");
    leases.note_renewal(None);
    leases.renew(&abide, lease).await.expect("nothing is asked if the last renewal has succeeded");
}

/// Forwards connections to a server until it is told to stop. Then they stay open, and nothing arrives.
async fn forward(listener: TcpListener, server: SocketAddr, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    while let Some(Ok((mut client, _))) = stop.run_until_cancelled(listener.accept()).await {
        let stop = stop.clone();
        connections.spawn(async move {
            let mut server = TcpStream::connect(server).await.expect("the server listens");
            let copied = copy_bidirectional(&mut client, &mut server);
            if stop.run_until_cancelled(copied).await.is_none() {
                std::future::pending::<()>().await;
            }
        });
    }
    std::future::pending::<()>().await;
}

/// The renewals of a connection whose server was gone without closing it timed out one after the other, for longer than a lease.
#[tokio::test]
async fn a_connection_that_does_not_answer_is_given_up() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let engine = Engine::open(folder.path().join("abide.db"), Config::default().into());
    let engine = engine.expect("the file opens");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = TcpListener::bind(any).await.expect("a port is free");
    let server = listener.local_addr().expect("it is bound");
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let served = abide_server::serve(engine.clone(), listener, AccessConfig::loopback(), stopped);
    let served = tokio::spawn(served);
    let listener = TcpListener::bind(any).await.expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let silent = CancellationToken::new();
    let forwarded = tokio::spawn(forward(listener, server, silent.clone()));
    let abide = Abide::connect(&url).await.expect("it connects");
    let leases = HeldLeases::default();
    // Otherwise nothing is sent without a lease.
    leases.note_renewal(Some(&Error::Closed));
    leases.renew(&abide, PATIENCE).await.expect("the server answers");
    silent.cancel();
    let ended =
        timeout(PATIENCE, leases.renew_until_closed(&abide, Duration::from_millis(300))).await;
    let ended = ended.expect("another connection is tried");
    assert!(matches!(ended, Error::TimedOut { .. }), "{ended}");
    forwarded.abort();
    stop.cancel();
    served.await.expect("no panic").expect("it has served");
}

/// A panic of that thread was seen when the runtime was stopped.
#[tokio::test(start_paused = true)]
async fn renewal_continues_after_a_panic() {
    let leases = HeldLeases::default();
    let mut attempts = 0;
    let attempt = async || {
        attempts += 1;
        if attempts == 1 {
            panic!("a defect");
        }
        assert!(*leases.is_failing.borrow(), "nothing was claimed meanwhile");
        leases.note_renewal(None);
        std::future::pending::<Error>().await
    };
    tokio::select! {
        () = leases.renew_for_ever(Duration::from_secs(1), attempt) => {}
        () = async {
            let _ = leases.is_failing.subscribe().wait_for(|fails| *fails).await;
            leases.until_renewed().await;
        } => {}
    }
    assert_eq!(attempts, 2);
}
