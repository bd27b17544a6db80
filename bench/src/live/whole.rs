//! Part 1, through the whole engine: the cost of subscriptions for the writer if a call does not affect them, and
//! the memory per subscription including its connection. A separate process, to measure its memory.

use std::time::Instant;

use abide_engine::{Config, Connection, Engine, SubscribeRequest, Update};
use abide_schema::reducer::Caller;
use clap::Args;
use serde_json::{Map, Value as JsonValue, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::Scope;
use super::help_desk;
use super::process::{resident_bytes, run_child};
use super::report::{format_count, format_figure, format_table};
use crate::cpu;
use crate::statistics::median;

/// Options of the process.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of subscriptions.
    #[arg(long)]
    subscriptions: usize,
    /// Number of calls per turn.
    #[arg(long)]
    calls: usize,
    /// The folder for the files.
    #[arg(long)]
    dir: std::path::PathBuf,
}

/// Number of turns for the engine with subscriptions and the one without.
const TURNS: usize = 40;
/// Subscriptions per connection: the maximum.
const OF_ONE: usize = abide_schema::limits::SUBSCRIPTIONS_PER_CONNECTION;

/// Measures and prints the results as JSON.
pub(crate) fn measure(options: &Options) {
    let runtime = Runtime::new().expect("a tokio runtime");
    let dir = TempDir::new_in(&options.dir).expect("a folder for the files");
    let open = |name: &str| {
        let config = Config::new(vec![help_desk::module()]);
        Engine::open(dir.path().join(name), config).expect("the engine opens")
    };
    let alone = open("alone.db");
    let watched = open("watched.db");
    // Start threads and fill caches before the memory is measured.
    runtime.block_on(async {
        call(&alone, 10).await;
        call(&watched, 10).await;
        drop(subscribe(&watched, 0, 1).await);
    });
    let before = resident_bytes();
    let started = Instant::now();
    let connections = runtime.block_on(subscribe_all(&watched, options.subscriptions));
    let subscribe_s = started.elapsed().as_secs_f64();
    let bytes = (resident_bytes() - before) / options.subscriptions as f64;
    let mut without_us = Vec::new();
    let mut with_us = Vec::new();
    for _ in 0..TURNS {
        for (engine, found) in [(&alone, &mut without_us), (&watched, &mut with_us)] {
            let before = cpu::thread_seconds("abide-writer");
            runtime.block_on(call(engine, options.calls));
            let seconds = cpu::thread_seconds("abide-writer") - before;
            found.push(seconds * 1e6 / options.calls as f64);
        }
    }
    let started = Instant::now();
    drop(connections);
    // Dropped subscriptions are removed in order, before later calls run.
    runtime.block_on(call(&watched, 1));
    let unsubscribe_s = started.elapsed().as_secs_f64();
    let found = json!({
        "without_us": median(without_us), "with_us": median(with_us), "bytes": bytes,
        "subscribe_s": subscribe_s, "unsubscribe_s": unsubscribe_s,
    });
    println!("{found}");
    [alone, watched].iter().for_each(Engine::close);
}

async fn call(engine: &Engine, calls: usize) {
    let caller = Caller::new("bench");
    let args = json!({"id": "c"});
    for _ in 0..calls {
        engine.call(&caller, "count", &args, None).await.expect("the call succeeds");
    }
}

async fn subscribe_all(engine: &Engine, subscriptions: usize) -> Vec<Connection> {
    let tasks = (0..subscriptions).step_by(OF_ONE).map(|first| {
        let engine = engine.clone();
        let end = subscriptions.min(first + OF_ONE);
        tokio::spawn(async move { subscribe(&engine, first, end).await })
    });
    let mut connections = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        connections.push(task.await.expect("the subscriptions start"));
    }
    connections
}

async fn subscribe(engine: &Engine, first: usize, end: usize) -> Connection {
    let mut connection = engine.connect(&Caller::local());
    let sql = "SELECT id, value FROM counters WHERE id = :id";
    for n in first..end {
        let params = Map::from_iter([("id".to_owned(), JsonValue::from(format!("x_{n:07}")))]);
        let id = format!("q{n}");
        let begun = connection.subscribe(&SubscribeRequest::new(&id, sql, &params)).await;
        begun.expect("the query can be live");
        let update = connection.next().await;
        assert!(matches!(update, Update::Snapshot(_)), "{update:?}");
    }
    connection
}

/// The section of the report.
pub(crate) fn format_section(scope: &Scope) -> String {
    let (subscriptions, calls) = if scope.quick { (200, 3) } else { (100_000, 50) };
    eprintln!("part 1: the whole engine");
    let found = run_child(&[
        "live-whole",
        &format!("--subscriptions={subscriptions}"),
        &format!("--calls={calls}"),
        &format!("--dir={}", scope.dir.display()),
    ]);
    let number = |name: &str| found[name].as_f64().unwrap_or(f64::NAN);
    let row = vec![
        format_count(subscriptions),
        format_figure(number("without_us"), 1),
        format_figure(number("with_us"), 1),
        format_figure(number("bytes"), 0),
        format_figure(number("subscribe_s"), 2),
        format_figure(number("unsubscribe_s"), 2),
    ];
    let header = [
        "subscriptions",
        "writer CPU µs/call with none",
        "with them",
        "bytes for each",
        "subscribe all, s",
        "unsubscribe all, s",
    ];
    format!(
        "The same through the whole engine, with {} subscriptions on each connection. The table has the writer \
         thread's processor time for a call, measured alternately with and without subscriptions, and the memory \
         of a subscription in the engine and in its connection. Each subscription starts with a snapshot: the \
         rows of its result.\n\n{}",
        format_count(OF_ONE),
        format_table(&header, [row]),
    )
}
