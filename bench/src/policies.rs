//! The cost of policies: the same query and the same commit by an unrestricted caller and by one that is restricted
//! to its tenant, alternating in one run. The ratio is reported.

use std::time::{Duration, Instant};

use abide_engine::{Config, Engine, SubscribeRequest};
use abide_schema::wire::BatchCall;
use abide_schema::{Caller, Scope};
use clap::Args;
use serde_json::{Map, Value as JsonValue, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::statistics::{median, percentile, thousands};

/// Options of `policies`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of tenants; each has the same number of sessions.
    #[arg(long, default_value_t = 20)]
    tenants: usize,
    /// Sessions per tenant.
    #[arg(long, default_value_t = 10)]
    sessions: usize,
    /// Messages per session.
    #[arg(long, default_value_t = 200)]
    messages: usize,
    /// How often each caller runs each query and makes each commit.
    #[arg(long, default_value_t = 2_000)]
    rounds: usize,
    /// Number of live queries of each kind during the commits.
    #[arg(long, default_value_t = 50)]
    listeners: usize,
    /// The folder for the file.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: std::path::PathBuf,
}

/// The queries: name, SQL, and whether they have a session parameter.
const QUERIES: [(&str, &str); 4] = [
    ("one session's messages", "SELECT * FROM agent_state WHERE session_id = :sid ORDER BY id"),
    ("one session", "SELECT * FROM sessions WHERE id = :sid"),
    (
        "a session's last messages",
        "SELECT id, role, content FROM agent_state WHERE session_id = :sid ORDER BY id DESC LIMIT 20",
    ),
    (
        "a join of both",
        "SELECT s.status, m.id, m.content FROM sessions s JOIN agent_state m ON m.session_id = s.id
           WHERE s.id = :sid",
    ),
];

/// Runs the measurement.
pub(crate) fn run(options: &Options) {
    let runtime = Runtime::new().expect("a runtime starts");
    let folder = TempDir::new_in(&options.dir).expect("a folder can be made");
    let config = Config::new(abide_reducers::modules());
    let engine = Engine::open(folder.path().join("abide.db"), config).expect("the engine opens");
    runtime.block_on(async {
        fill(&engine, options).await;
        println!("a query by the engine, µs");
        for (name, sql) in QUERIES {
            measure_query(&engine, options, name, sql).await;
        }
        println!("\na commit of a batch of 8 messages, ms, with live queries on the session");
        measure_commits(&engine, options).await;
    });
    engine.close();
}

/// A caller of the first tenant.
fn tenant_caller() -> Caller {
    let scope: Scope = [("tenant".to_owned(), "t0".to_owned())].into();
    Caller::with("bench", "agent", ["*".to_owned()].into(), scope)
}

async fn fill(engine: &Engine, options: &Options) {
    let admin = Caller::local();
    for tenant in 0..options.tenants {
        for session in 0..options.sessions {
            let id = format!("t{tenant}-s{session}");
            let scope = json!({"tenant": format!("t{tenant}"), "region": "eu"});
            let args = json!({"agent": "bench", "id": id, "scope": scope});
            engine.call(&admin, "create_session", &args, None).await.expect("a session is made");
            let calls: Vec<BatchCall> = (0..options.messages).map(|_| message(&id)).collect();
            for batch in calls.chunks(100) {
                engine.batch(&admin, batch, None).await.expect("messages are written");
            }
        }
    }
}

fn message(session: &str) -> BatchCall {
    let content: String = "Where is my parcel? ".chars().cycle().take(300).collect();
    let args = json!({"session_id": session, "role": "user", "content": content});
    BatchCall { reducer: "append_message".to_owned(), args }
}

fn session_params(session: usize) -> Map<String, JsonValue> {
    json!({"sid": format!("t0-s{session}")}).as_object().cloned().unwrap_or_default()
}

async fn measure_query(engine: &Engine, options: &Options, name: &str, sql: &str) {
    let callers = [Caller::local(), tenant_caller()];
    let mut times: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for round in 0..options.rounds {
        let params = session_params(round % options.sessions);
        for turn in 0..2 {
            // The callers alternate in going first.
            let nth = (round + turn) % 2;
            let start = Instant::now();
            let answer = engine.query(&callers[nth], sql, &params, None).await;
            times[nth].push(micros(start.elapsed()));
            assert!(!answer.expect("the query succeeds").rows.is_empty(), "{name} has rows");
        }
    }
    print_comparison(name, &times);
}

async fn measure_commits(engine: &Engine, options: &Options) {
    let callers = [Caller::local(), tenant_caller()];
    let mut connections = Vec::new();
    for (nth, caller) in callers.iter().enumerate() {
        let mut connection = engine.connect(caller);
        for listener in 0..options.listeners {
            let params = session_params(nth);
            let sql = format!("{} -- {listener}", QUERIES[listener % 2].1);
            let id = format!("q{listener}");
            let wanted = SubscribeRequest::new(&id, &sql, &params);
            connection.subscribe(&wanted).await.expect("the subscription starts");
        }
        connections.push(connection);
    }
    let mut times: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for round in 0..(options.rounds / 4).max(1) {
        for turn in 0..2 {
            let nth = (round + turn) % 2;
            // A session that only the live queries of this kind watch.
            let calls: Vec<BatchCall> = (0..8).map(|_| message(&format!("t0-s{nth}"))).collect();
            let start = Instant::now();
            engine.batch(&callers[nth], &calls, None).await.expect("the messages are written");
            times[nth].push(micros(start.elapsed()) / 1_000.0);
            for connection in &mut connections {
                while connection.try_next().is_some() {}
            }
        }
    }
    print_comparison("8 messages", &times);
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn print_comparison(name: &str, [without, with]: &[Vec<f64>; 2]) {
    let without_p50 = median(without.iter().copied());
    let without_p99 = percentile(without.iter().copied(), 0.99);
    let with_p50 = median(with.iter().copied());
    let with_p99 = percentile(with.iter().copied(), 0.99);
    let ratio = 100.0 * (with_p50 / without_p50 - 1.0);
    println!(
        "  {name:<28} without {:>8} (p99 {:>8})   with {:>8} (p99 {:>8})   {ratio:+.1} %",
        format_time(without_p50),
        format_time(without_p99),
        format_time(with_p50),
        format_time(with_p99),
    );
}

fn format_time(time: f64) -> String {
    if time < 100.0 { format!("{time:.2}") } else { thousands(time) }
}
