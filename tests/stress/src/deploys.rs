//! Deploys: a server with agents is stopped with SIGTERM at a random moment, while ten of its tools run, three workers (one
//! of each SDK, each in its own process) run calls, and more calls arrive; then it is started again. All tools must not run
//! twice. At the end no call is unknown, each ran exactly once, each acknowledged write is there, and every process has ended
//! without an error.
//!
//! The seed determines the durations of the tools and the moments of the signals.
//!
//! `load` the calls that arrive · `effects` what the tools have done · `worker` the processes of the workers · `tool` the
//! program of the agents' tool

mod effects;
mod load;
pub(crate) mod tool;
pub(crate) mod worker;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::time::Duration;

use abide_client::{Abide, Subscription};
use abide_sim::random::Random;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::CheckResult;
use crate::arguments::Arguments;
use crate::figures::{count, figure};
use crate::pace::pause;
use crate::server::{Server, raise_open_files};

use effects::Effects;
use load::Load;

/// Stops of the server.
const ROUNDS: u64 = 5;
/// The longest time of a tool, in seconds.
const TOOL_S: u64 = 20;
/// The same for CI.
const SHARE: (u64, u64) = (1, 2);
/// Tools of agents that run when the signal comes.
const RUNS: usize = 10;
/// The time that a server has: `--drain`, whose default is 25 s, and 15 s.
const STOP: Duration = Duration::from_secs(40);
/// The longest time between two processes.
const GAP_MS: u64 = 2_000;
/// The time for everything else, such as the end of all runs.
const PATIENCE: Duration = Duration::from_secs(180);

/// Stops a server again and again.
pub(crate) async fn run(mut words: Arguments) -> CheckResult {
    let (rounds, seconds) = if words.has("share") { SHARE } else { (ROUNDS, TOOL_S) };
    let rounds = words.number("rounds")?.unwrap_or(rounds);
    let seconds = words.number("seconds")?.unwrap_or(seconds).max(1);
    let seed = words.number("seed")?.unwrap_or(1);
    words.end()?;
    raise_open_files();
    println!("deploys   {rounds} stops, tools of up to {seconds} s, seed {seed}");
    deploy(rounds, 1_000 * seconds, seed).await.map_err(|why| {
        format!(
            "{why}\nrepeat: cargo xtask deploys --rounds {rounds} --seconds {seconds} --seed {seed}"
        )
    })
}

async fn deploy(rounds: u64, most_ms: u64, seed: u64) -> CheckResult {
    let mut random = Random::new(seed);
    let folder = tempfile::tempdir().map_err(|why| why.to_string())?;
    let effects = Effects::make(&folder.path().join("effects"))?;
    write_project(&folder, &effects, most_ms, seed)?;
    let agents = ["--agents".to_owned(), folder.path().display().to_string()];
    let mut server = Server::start_with(&folder.path().join("abide.db"), &agents)?;
    let builder = Abide::builder(&server.url()).deadline(PATIENCE);
    let abide = builder.connect().await.map_err(|why| format!("{why:#}"))?;
    load::prepare(&abide).await?;
    let workers = worker::start_all(&server.url(), &effects)?;
    let load = Load::start(&abide, most_ms, &mut random);

    let mut slowest = Duration::ZERO;
    for round in 1..=rounds {
        start_runs(&abide, round).await?;
        within("ten running tools and three workers", until_all_run(&abide)).await?;
        // Each of the ten takes at least half of the longest time.
        pause(Duration::from_millis(random.draw() % (most_ms / 2))).await;
        let took = server.stop_within(STOP).await?;
        slowest = slowest.max(took);
        pause(Duration::from_millis(random.draw() % GAP_MS)).await;
        server.start_again()?;
        println!("deploys   stop {round} of {rounds} took {:.1} s", took.as_secs_f64());
    }

    let written = within("the end of the calls", load.stop()).await?;
    let open = "SELECT id FROM runs WHERE status <> 'done'";
    within("the end of the runs", until(&abide, open, |rows| rows.rows().next().is_none())).await?;
    for worker in workers {
        within("the end of the workers", worker.stop()).await?;
    }
    let calls = check_calls(&abide, &effects, rounds).await?;
    written.check(&abide).await?;
    abide.close().await;
    server.stop_within(STOP).await?;
    let events = server.verify()?;
    figure("servers stopped while ten tools and three workers ran", rounds);
    figure("slowest of these stops, of 40 s", format!("{:.1} s", slowest.as_secs_f64()));
    figure("tool calls over these stops, none unknown, each run exactly once", count(calls));
    figure("events of these servers, verified and replayed", count(events));
    Ok(())
}

/// Writes the project of an agent that calls its tool once, and then answers.
fn write_project(folder: &TempDir, effects: &Effects, most_ms: u64, seed: u64) -> CheckResult {
    let own = env::current_exe().map_err(|why| why.to_string())?;
    let (most_ms, seed) = (most_ms.to_string(), seed.to_string());
    let ledger = effects.file(tool::NAME).display().to_string();
    let command = json!([own.display().to_string(), tool::VERB, ledger, most_ms, seed]);
    let config = format!(
        "models:\n  providers: [{{ id: clerk, kind: script, script: answers.yaml, models: [clerk] }}]\n\
         programs:\n  - {{ name: {}, description: Pays., effect: at_most_once, stdin: empty, command: {command} }}\n",
        tool::NAME
    );
    let answers = format!(
        "repeat: true\nanswers: [{{ calls: [{{ name: {}, arguments: {{}} }}] }}, {{ text: It is paid. }}]\n",
        tool::NAME
    );
    let clerk = format!("tools: [{}]\nconfig: {{ provider: clerk }}\n", tool::NAME);
    let write = |path: &Path, text: &str| {
        fs::write(path, text).map_err(|why| format!("{}: {why}", path.display()))
    };
    let agents = folder.path().join("agents");
    fs::create_dir(&agents).map_err(|why| format!("{}: {why}", agents.display()))?;
    write(&folder.path().join("abide.yaml"), &config)?;
    write(&folder.path().join("answers.yaml"), &answers)?;
    write(&agents.join("clerk.yaml"), &clerk)
}

async fn start_runs(abide: &Abide, round: u64) -> CheckResult {
    for nth in 0..RUNS {
        let id = format!("{round}-{nth}");
        for (reducer, args) in [
            ("create_session", json!({"agent": "clerk", "id": id})),
            ("start_run", json!({"session_id": id, "id": id, "input": "Pay."})),
        ] {
            let called = abide.call_by_name(reducer, args).await;
            called.map_err(|why| format!("{reducer}: {why:#}"))?;
        }
    }
    Ok(())
}

/// Waits until the tools of all new runs are claimed, and each worker has a call.
async fn until_all_run(abide: &Abide) -> CheckResult {
    let claimed = "SELECT tool_name, call_id FROM tool_calls WHERE status = 'claimed'";
    until(abide, claimed, |rows| {
        let rows: Vec<(String, String)> = rows.typed_rows().unwrap_or_default();
        let has = |tool: &str| rows.iter().filter(|(name, _)| name == tool).count();
        has(tool::NAME) >= RUNS && worker::LANGUAGES.into_iter().all(|language| has(language) > 0)
    })
    .await
}

/// Waits until the result of a query fulfils a condition.
async fn until(abide: &Abide, sql: &str, is_done: impl Fn(&Subscription) -> bool) -> CheckResult {
    let mut rows = abide.subscribe(sql).await.map_err(|why| format!("{why:#}"))?;
    while !is_done(&rows) {
        let update = rows.try_next().await.map_err(|why| format!("{why:#}"))?;
        update.ok_or_else(|| format!("a subscription has ended: {sql}"))?;
    }
    Ok(())
}

async fn within<T>(what: &str, work: impl Future<Output = CheckResult<T>>) -> CheckResult<T> {
    let ended = timeout(PATIENCE, work).await;
    ended.map_err(|_| format!("{what}: not within {} s", PATIENCE.as_secs()))?
}

/// Checks that every call has succeeded with its first attempt, and that its tool ran once. Returns the number of calls.
async fn check_calls(abide: &Abide, effects: &Effects, rounds: u64) -> CheckResult<u64> {
    let unknown = abide.sql("SELECT count(*) FROM tool_calls WHERE status = 'unknown'");
    let (unknown,): (i64,) = unknown.fetch_one().await.map_err(|why| format!("{why:#}"))?;
    if unknown != 0 {
        return Err(format!("{unknown} calls are unknown"));
    }
    let calls = abide.sql("SELECT call_id, tool_name, status, attempt FROM tool_calls");
    let calls: Vec<(String, String, String, i64)> =
        calls.fetch().await.map_err(|why| format!("{why:#}"))?;
    for (call_id, tool, status, attempt) in &calls {
        if (status.as_str(), *attempt) != ("succeeded", 1) {
            return Err(format!("call {call_id} of {tool} is {status} after attempt {attempt}"));
        }
    }
    let paid = calls.iter().filter(|(_, tool, ..)| tool == tool::NAME).count();
    if paid as u64 != rounds * RUNS as u64 {
        return Err(format!("{paid} calls of agents in {rounds} rounds"));
    }
    let expected: BTreeSet<&str> = calls.iter().map(|(call_id, ..)| call_id.as_str()).collect();
    effects.check(&expected)?;
    Ok(expected.len() as u64)
}
