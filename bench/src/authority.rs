//! The cost of authorization: claims by 32 workers, with and without a restricted caller. Also the cost of a
//! million waiting timers for other calls, and the delay of timers under load.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abide_engine::{Config, Engine};
use abide_schema::wire::BatchCall;
use abide_schema::{Caller, Code, Value};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value as JsonValue, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::statistics::{median, percentile, thousands};

/// Options of `authority`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A short run that only shows that the benchmark works.
    #[arg(long)]
    quick: bool,
    /// Number of rounds; each contender runs once per round. Medians are reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The folder for the files; it should be on a disk, not in memory.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
}

/// The sizes of a run of the benchmark.
struct Sizes {
    rounds: usize,
    /// Number of timers that never become due.
    waiting: usize,
    /// Number of claimed calls per run.
    calls: usize,
    /// Number of timers that become due under load.
    due: usize,
}

const WORKERS: usize = 32;

/// A kind of worker and its file.
struct Contender {
    name: &'static str,
    /// Whether timers wait in the file.
    crowded: bool,
    worker: Caller,
    runs: Vec<Run>,
}

impl Contender {
    fn new(name: &'static str, crowded: bool, worker: Caller) -> Contender {
        Contender { name, crowded, worker, runs: Vec::new() }
    }
}

struct Run {
    claims_per_second: f64,
    /// Duration of each claim, in milliseconds.
    claim_ms: Vec<f64>,
}

pub(crate) fn run(options: &Options) {
    let sizes = if options.quick {
        Sizes { rounds: 1, waiting: 5_000, calls: 640, due: 100 }
    } else {
        Sizes { rounds: options.rounds, waiting: 1_000_000, calls: 6_400, due: 5_000 }
    };
    let dir = TempDir::new_in(&options.dir).expect("a folder for the files");
    Runtime::new().expect("a tokio runtime").block_on(measure(&sizes, dir.path()));
}

async fn measure(sizes: &Sizes, dir: &Path) {
    let [empty, crowded] = ["empty.db", "crowded.db"].map(|name| open(&dir.join(name)));
    let begun = Instant::now();
    set_distant_timers(&crowded, sizes.waiting).await;
    let set_s = begun.elapsed().as_secs_f64();
    eprintln!("{} timers set in {set_s:.0} s", thousands(sizes.waiting as f64));
    let acme = [("tenant".to_owned(), "acme".to_owned())];
    let restricted = Caller::with("worker", "worker", ["money".to_owned()].into(), acme.into());
    let mut contenders = [
        Contender::new("no timers", false, Caller::local()),
        Contender::new("timers wait", true, Caller::local()),
        Contender::new("timers wait, bounded workers", true, restricted),
    ];
    for round in 0..sizes.rounds {
        for at in 0..contenders.len() {
            // The order rotates between rounds.
            let turn = (at + round) % contenders.len();
            let contender = &mut contenders[turn];
            eprintln!("round {}: {}", round + 1, contender.name);
            let engine = if contender.crowded { &crowded } else { &empty };
            contender.runs.push(measure_claims(engine, &contender.worker, sizes.calls).await);
        }
    }
    print_report(&contenders);
    let late_ms = measure_lateness(&crowded, sizes.due).await;
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(late_ms.iter().copied(), share));
    println!(
        "\n{} timers that became due under load, with {} waiting timers: delayed by {p50:.1} ms (p50), \
         {p99:.1} ms (p99), {max:.1} ms (maximum).",
        thousands(late_ms.len() as f64),
        thousands(sizes.waiting as f64),
    );
    for engine in [empty, crowded] {
        tokio::task::spawn_blocking(move || engine.close()).await.expect("the engine closes");
    }
}

fn open(path: &Path) -> Engine {
    Engine::open(path, Config::new(abide_reducers::modules())).expect("a new file")
}

/// Calls a reducer without a request id. Returns its result.
async fn call(engine: &Engine, caller: &Caller, reducer: &str, args: JsonValue) -> JsonValue {
    let answer = engine
        .call(caller, reducer, &args, None)
        .await
        .unwrap_or_else(|refusal| panic!("{reducer}: {refusal}"));
    serde_json::from_str(&answer.result).expect("a result is JSON")
}

/// Sets timers that are due in years.
async fn set_distant_timers(engine: &Engine, count: usize) {
    let in_ms = 300_000_000_000_u64;
    for at in (0..count).step_by(1_000) {
        let calls = vec![set_timer_call(&json!({"in_ms": in_ms})); 1_000.min(count - at)];
        engine.batch(&Caller::local(), &calls, None).await.expect("the timers are set");
    }
}

fn set_timer_call(args: &JsonValue) -> BatchCall {
    BatchCall { reducer: "set_timer".to_owned(), args: args.clone() }
}

/// Workers claim and complete calls until there are none.
async fn measure_claims(engine: &Engine, worker: &Caller, calls: usize) -> Run {
    let local = Caller::local();
    let tool = json!({"name": "refund", "effect": "idempotent", "required_capability": "money"});
    call(engine, &local, "register_tool", tool).await;
    let new_session = json!({"agent": "bench", "scope": {"tenant": "acme"}});
    let session = call(engine, &local, "create_session", new_session).await;
    let session_id = session["id"].as_str().expect("it has an id");
    for at in (0..calls).step_by(400) {
        let requests: Vec<BatchCall> = (at..calls.min(at + 400))
            .map(|n| BatchCall {
                reducer: "request_tool_call".to_owned(),
                args: json!({"call_id": format!("{session_id}-{n}"), "session_id": session_id,
                "tool_name": "refund", "arguments": {"order": n}}),
            })
            .collect();
        engine.batch(&local, &requests, None).await.expect("the calls are requested");
    }
    let begun = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let engine = engine.clone();
        let worker = worker.clone();
        workers.spawn(async move { claim_until_none(&engine, &worker).await });
    }
    let claim_ms: Vec<f64> = workers.join_all().await.into_iter().flatten().collect();
    assert_eq!(claim_ms.len(), calls, "each call is claimed once");
    Run { claims_per_second: calls as f64 / begun.elapsed().as_secs_f64(), claim_ms }
}

/// One worker. Returns the duration of each of its claims, in milliseconds.
async fn claim_until_none(engine: &Engine, worker: &Caller) -> Vec<f64> {
    let mut claim_ms = Vec::new();
    loop {
        let begun = Instant::now();
        let tools = json!({"tools": ["refund"]});
        let claimed = match engine.call(worker, "claim_next_tool_call", &tools, None).await {
            Err(why) if why.code == Code::NotFound => return claim_ms,
            claimed => claimed.unwrap_or_else(|why| panic!("a claim: {why}")),
        };
        claim_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        let row: JsonValue = serde_json::from_str(&claimed.result).expect("a result is JSON");
        let args = json!({"call_id": row["call_id"], "fencing_token": row["fencing_token"],
            "result": {"done": true}});
        call(engine, worker, "complete_tool_call", args).await;
    }
}

/// The delay of timers while 32 callers write as fast as possible, in milliseconds.
async fn measure_lateness(engine: &Engine, count: usize) -> Vec<f64> {
    let local = Caller::local();
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for _ in 0..WORKERS {
        let engine = engine.clone();
        let stop = Arc::clone(&stop);
        let local = local.clone();
        load.spawn(async move {
            let session = call(&engine, &local, "create_session", json!({"agent": "load"})).await;
            while !stop.load(Ordering::Relaxed) {
                let text = "Where is my parcel? ".repeat(15);
                let args = json!({"session_id": session["id"], "role": "user", "content": text});
                call(&engine, &local, "append_message", args).await;
            }
        });
    }
    // The timers are due over three seconds, after one second.
    let due =
        |n: usize| set_timer_call(&json!({"in_ms": 1_000 + n * 3_000 / count, "name": "due"}));
    for at in (0..count).step_by(500) {
        let timers: Vec<BatchCall> = (at..count.min(at + 500)).map(due).collect();
        engine.batch(&local, &timers, None).await.expect("the timers are set");
    }
    let fired = "SELECT fired_at - due_at FROM timers WHERE status = 'fired' AND name = 'due'";
    let late_ms = loop {
        let found =
            engine.query(&local, fired, &Map::new(), None).await.expect("the query is valid");
        if found.rows.len() == count {
            let late = found.rows.iter().map(|row| match row[0] {
                Value::Integer(us) => us as f64 / 1e3,
                _ => f64::NAN,
            });
            break late.collect();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    stop.store(true, Ordering::Relaxed);
    load.join_all().await;
    late_ms
}

fn print_report(contenders: &[Contender]) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["32 workers", "claims/s", "ratio", "claim p50", "claim p99"]);
    let pace =
        |contender: &Contender| median(contender.runs.iter().map(|run| run.claims_per_second));
    let alone = contenders.first().map_or(f64::NAN, pace);
    for contender in contenders {
        let ms = |share| {
            median(contender.runs.iter().map(|run| percentile(run.claim_ms.clone(), share)))
        };
        table.add_row([
            contender.name.to_owned(),
            thousands(pace(contender)),
            format!("{:.2}", pace(contender) / alone),
            format!("{:.2} ms", ms(0.5)),
            format!("{:.2} ms", ms(0.99)),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
}
