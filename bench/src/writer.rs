//! How long single calls block the writer: a validation of arguments, and the cancellation of a session with
//! thousands of descendants.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abide_engine::{Config, Engine, EngineThread, FaultPoint, StepScheduler};
use abide_json_schema::{Failure, Schema};
use abide_schema::wire::BatchCall;
use abide_schema::{Caller, limits};
use clap::Args;
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::statistics::thousands;

/// Options of `writer`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of descendants of the cancelled session.
    #[arg(long, default_value_t = 9_001)]
    descendants: usize,
    /// Recordings of MCP over stdio, one message per line, with tools and their calls.
    #[arg(long)]
    mcp: Vec<PathBuf>,
    /// The folder for the file.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
}

/// Runs the measurement.
pub(crate) fn run(options: &Options) {
    measure_validation(&options.mcp);
    Runtime::new().expect("a runtime starts").block_on(measure_cancellation(options));
}

/// Measures how long arguments block a thread whose schema takes very many steps to validate: with the budget of the
/// writer, and with the larger budget of a reader, which validates what the writer gives up. Also counts the steps of
/// the tool calls in recordings.
fn measure_validation(recordings: &[PathBuf]) {
    // Four alternatives, each of which validates `child` by all four again: 4^36 ways for 36 levels.
    let alternatives = ["a", "b", "c", "d"].map(
        |name| json!({"properties": {"child": {"$ref": "#/$defs/f"}, name: {"type": "string"}}}),
    );
    let recursive_schema = json!({"$defs": {"f": {"oneOf": alternatives}}, "$ref": "#/$defs/f"});
    let nested_objects = (0..36).fold(json!({}), |inner, _| json!({"child": inner}));
    let pattern_schema = json!({"properties": {"text": {"pattern": "^([a-z]+ ){0,60}[0-9]$"}}});
    let long_text = json!({"text": "x ".repeat(200_000)});
    let unique_schema = json!({"properties": {"items": {"uniqueItems": true}}});
    let many_items = json!({"items": (0..400_000).collect::<Vec<usize>>()});
    let hostile = [
        ("alternatives that refer to the schema", recursive_schema, nested_objects),
        ("a pattern over a long text", pattern_schema, long_text),
        ("unique items", unique_schema, many_items),
    ];
    println!("validation of hostile arguments, longest of 20 evaluations, ms");
    for (name, schema, arguments) in hostile {
        let schema = Schema::compile(&schema).expect("it is a schema");
        let writer_ms = longest_check_ms(&schema, &arguments, limits::WRITER_STEPS);
        let reader_ms = longest_check_ms(&schema, &arguments, limits::TOOL_SCHEMA_STEPS);
        println!(
            "  {name:<38} {} steps, on the writer {writer_ms:.3}   {} steps, on a reader {reader_ms:.2}",
            thousands(limits::WRITER_STEPS as f64),
            thousands(limits::TOOL_SCHEMA_STEPS as f64),
        );
    }
    for path in recordings {
        measure_recorded(&fs::read_to_string(path).expect("the recording can be read"));
    }
}

/// Returns the time of the longest of 20 validations, in milliseconds. A validation stops after `steps`.
fn longest_check_ms(schema: &Schema, arguments: &JsonValue, steps: u64) -> f64 {
    (0..20)
        .map(|_| {
            let start = Instant::now();
            // The result of the validation does not matter.
            let _ = schema.check(arguments, steps);
            start.elapsed().as_secs_f64() * 1e3
        })
        .fold(0.0, f64::max)
}

/// Prints how many steps the tool calls of a recording need at most.
fn measure_recorded(lines: &str) {
    let messages = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<JsonValue>(&line[line.find('{')?..]).ok());
    let mut schemas = Vec::new();
    let mut steps = Vec::new();
    for message in messages {
        for tool in message["result"]["tools"].as_array().into_iter().flatten() {
            schemas.push((tool["name"].clone(), tool["inputSchema"].clone()));
        }
        let params = &message["params"];
        let schema = schemas.iter().find(|(name, _)| *name == params["name"]);
        if let (Some((_, schema)), "tools/call") =
            (schema, message["method"].as_str().unwrap_or_default())
        {
            let schema = Schema::compile(schema).expect("a recorded schema is valid");
            steps.extend(count_steps(&schema, &params["arguments"]));
        }
    }
    let bytes = schemas.iter().map(|(_, schema)| schema.to_string().len()).max().unwrap_or(0);
    println!(
        "  recorded: {} tools, the largest schema {} bytes; {} calls, at most {} steps",
        schemas.len(),
        thousands(bytes as f64),
        steps.len(),
        thousands(steps.iter().copied().max().unwrap_or(0) as f64),
    );
}

/// Returns the smallest number of steps with which the validation completes; `None` if the budget of a reader is not
/// enough.
fn count_steps(schema: &Schema, arguments: &JsonValue) -> Option<u64> {
    (1..limits::TOOL_SCHEMA_STEPS)
        .find(|steps| schema.check(arguments, *steps) != Err(Failure::OverBudget))
}

/// Measures each transaction from its start to its commit.
#[derive(Debug, Default)]
struct LockTimes(Mutex<Transactions>);

#[derive(Debug, Default)]
struct Transactions {
    /// When the open transaction began.
    begun: Option<Instant>,
    durations: Vec<Duration>,
}

impl LockTimes {
    fn lock(&self) -> MutexGuard<'_, Transactions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StepScheduler for LockTimes {
    fn wait(&self, _: EngineThread) -> bool {
        false
    }

    fn at_fault_point(&self, point: FaultPoint) {
        let mut transactions = self.lock();
        match point {
            FaultPoint::Begun => transactions.begun = Some(Instant::now()),
            FaultPoint::Appended => {
                let begun = transactions.begun.take();
                transactions.durations.extend(begun.map(|begun| begun.elapsed()));
            }
            _ => {}
        }
    }
}

fn create_session(id: &str, parent: Option<&str>) -> BatchCall {
    BatchCall {
        reducer: "create_session".to_owned(),
        args: json!({"agent": "bench", "id": id, "parent_id": parent}),
    }
}

async fn measure_cancellation(options: &Options) {
    let folder = TempDir::new_in(&options.dir).expect("a folder can be made");
    let lock_times = Arc::new(LockTimes::default());
    let mut config = Config::new(abide_reducers::modules());
    config.scheduler = Arc::clone(&lock_times) as Arc<dyn StepScheduler>;
    let engine = Engine::open(folder.path().join("abide.db"), config).expect("the engine opens");
    let admin = Caller::local();
    let mut calls = vec![create_session("top", None)];
    for nth in 0..options.descendants {
        // Children and grandchildren of the top session.
        let parent = if nth % 3 == 2 { format!("d{}", nth - 1) } else { "top".to_owned() };
        calls.push(create_session(&format!("d{nth}"), Some(&parent)));
    }
    for batch in calls.chunks(500) {
        engine.batch(&admin, batch, None).await.expect("sessions are made");
    }
    lock_times.lock().durations.clear();
    let start = Instant::now();
    let args = json!({"session_id": "top"});
    engine.call(&admin, "cancel_session", &args, None).await.expect("the session is cancelled");
    let answered = start.elapsed();
    let open = "SELECT (SELECT count(*) FROM cleanups)
        + (SELECT count(*) FROM sessions WHERE status <> 'failed')";
    loop {
        let left = engine.query(&admin, open, &serde_json::Map::new(), None).await;
        if left.expect("the query succeeds").rows[0][0] == 0.into() {
            break;
        }
    }
    let all = start.elapsed();
    engine.close();
    let transactions = lock_times.lock();
    let longest = transactions.durations.iter().copied().max().unwrap_or_default();
    println!(
        "\ncancel_session with {} descendants: answered after {:.1} ms, all ended after {:.0} ms; \
         {} transactions, the longest held the writer {:.1} ms",
        thousands(options.descendants as f64),
        answered.as_secs_f64() * 1e3,
        all.as_secs_f64() * 1e3,
        transactions.durations.len(),
        longest.as_secs_f64() * 1e3,
    );
}
