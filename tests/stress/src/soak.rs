//! A mixed load on a real server with a small disk, for minutes or a night: the server is killed
//! and stopped at random moments, its disk fills up, its network stalls, cuts connections and goes
//! down. At the end the file and the clients' state are checked with the simulator's checkers.
//!
//! The seed determines the faults, their times and the clients' actions. Thread scheduling is not
//! deterministic.
//!
//! `disk` the disk · `proxy` the network · `clients` the calling clients, `watching` the
//! subscribers · `ledger` the responses · `faults` the faults · `final_checks` the checkers.

mod clients;
mod disk;
mod faults;
mod final_checks;
mod ledger;
mod proxy;
mod watching;

use std::sync::Arc;
use std::time::{Duration, Instant};

use abide_sim::random::Random;
use serde_json::json;
use tokio::task::JoinSet;

use crate::CheckResult;
use crate::arguments::Arguments;
use crate::figures::{count, figure};
use crate::server::{Server, abide, output, raise_open_files};

use clients::{ClientPool, SoakClient};
use disk::SmallVolume;
use faults::FaultInjector;
use ledger::Ledger;
use proxy::Proxy;

/// Clients of all kinds.
const CLIENTS: u64 = 50;

/// The identities, with their arguments for `abide token create`.
const IDENTITIES: [(&str, &[&str]); 7] = [
    ("root", &["--role", "admin", "--capability", "*"]),
    ("app", &["--role", "app"]),
    ("acme", &["--role", "app", "--scope", "tenant=acme"]),
    ("zeta", &["--role", "app", "--scope", "tenant=zeta"]),
    ("worker", &["--role", "worker"]),
    ("supervisor", &["--role", "supervisor", "--capability", "*"]),
    ("auditor", &["--role", "auditor"]),
];

/// Runs the soak test.
pub(crate) async fn run(mut words: Arguments) -> CheckResult {
    let minutes = words.number("minutes")?.unwrap_or(10);
    let seconds = words.number("seconds")?.unwrap_or(60 * minutes);
    let seed = words.number("seed")?.unwrap_or(1);
    let clients = words.number("clients")?.unwrap_or(CLIENTS);
    words.end()?;
    raise_open_files();
    println!("soak      {clients} clients for {seconds} s, seed {seed}");
    let outcome = soak(Duration::from_secs(seconds), seed, clients).await;
    outcome
        .map_err(|why| format!("{why}\nrepeat: cargo xtask soak --seconds {seconds} --seed {seed}"))
}

async fn soak(span: Duration, seed: u64, clients: u64) -> CheckResult {
    let mut random = Random::new(seed);
    let volume = SmallVolume::make(span)?;
    let db = volume.folder().join("abide.db");
    let mut tokens = Vec::new();
    for (name, bounds) in IDENTITIES {
        let mut command = abide()?;
        command.args(["token", "create", name]).args(bounds).arg("--db").arg(&db);
        tokens.push((name, output(&mut command)?.trim().to_owned()));
    }
    let server = Server::start(&db)?;
    let proxy = Proxy::start(server.address, random.draw()).await?;
    let client_pool = ClientPool { url: proxy.url(), tokens, ledger: Arc::default() };
    prepare(&client_pool).await?;

    let mut calling = JoinSet::new();
    let mut watching = Vec::new();
    let mut printing = Vec::new();
    for nth in 0..clients {
        match nth % 10 {
            8 => watching.push(watching::Watcher::start(&client_pool, nth).await?),
            9 => printing.push(watching::Printer::start(&client_pool, nth).await?),
            _ => {
                let client = SoakClient::new(&client_pool, nth, random.draw()).await?;
                calling.spawn(client.live());
            }
        }
    }
    let ends = Instant::now() + span;
    let mut faults = FaultInjector::new(server, proxy, volume, random);
    let outcome = faults.inject_until(ends, &client_pool.ledger).await;
    client_pool.ledger.stop();
    outcome?;
    while let Some(ended) = calling.join_next().await {
        ended.map_err(|why| format!("a client panicked: {why}"))??;
    }
    let counted = final_checks::reach(&mut faults, &client_pool, watching, printing).await?;
    report(&faults, &client_pool.ledger, &counted);
    Ok(())
}

/// Registers the workers' tools.
async fn prepare(client_pool: &ClientPool) -> CheckResult {
    let abide = client_pool.connect("root").await?;
    for tool in [
        json!({"name": "look", "effect": "idempotent",
            "retry": {"max_attempts": 4, "backoff_ms": 300}}),
        json!({"name": "pay", "effect": "at_most_once"}),
        json!({"name": "wire", "effect": "at_most_once", "needs_approval": true,
            "approval": {"expires_after_ms": 20_000}}),
    ] {
        abide.call_by_name("register_tool", tool).await.map_err(|why| why.to_string())?;
    }
    Ok(())
}

fn report(faults: &FaultInjector, ledger: &Ledger, counted: &final_checks::Counted) {
    let did = faults.counts();
    println!("soak      faults: {did}");
    println!("soak      results: {counted}, {} calls refused by rules", count(ledger.refused()));
    figure("server processes killed (SIGKILL, SIGTERM)", format!("{}, {}", did.kills, did.stops));
    figure("periods with a full disk", did.full.map_or("skipped".to_owned(), |n| n.to_string()));
    let (cut, stalled) = faults.proxy().counts();
    figure(
        "connections cut and stalled by the network",
        format!("{}, {}", count(cut), count(stalled)),
    );
    figure("acknowledged calls, all found in the log", count(counted.output));
    figure("events verified and replayed", count(counted.events));
    figure("effects run, at-most-once effects never twice", count(counted.effects));
    figure("converged subscriptions", counted.converged);
    figure("acknowledged bytes, all found in the log", count(counted.bytes));
    figure("rows returned to tenants, none of another tenant", count(ledger.row_count()));
}
