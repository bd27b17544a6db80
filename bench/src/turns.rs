//! Durable turns per second through the SDK, embedded and over WebSocket, compared with the floor.

use std::path::Path;
use std::time::Instant;

use abide_client::Abide;
use abide_engine::{Config, Engine};
use abide_server::AccessConfig;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::payload::Payload;
use crate::statistics::{median, percentile, thousands};
use crate::{cpu, floor};

/// Options of `turns`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of rounds; each contender runs once per round. Medians are reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Total number of turns per run with 64 sessions; a single session makes an eighth of them.
    #[arg(long, default_value_t = 16_000)]
    turns: usize,
    /// Only this contender: embedded or websocket.
    #[arg(long)]
    only: Option<String>,
    /// The folder for the files; it should be on a disk, not in memory.
    #[arg(long, default_value = ".")]
    dir: std::path::PathBuf,
}

/// Bytes of one turn's payload.
const TURN_BYTES: usize = 300 + 200 + 500 + 400;

/// The results of one run.
#[derive(Clone, Debug)]
struct Run {
    turns_per_second: f64,
    /// Duration of each call, in milliseconds.
    call_ms: Vec<f64>,
    calls_per_commit: f64,
    sync_ms: f64,
    /// Processor time of the writer thread per call, in microseconds. It is comparable even if other processes load
    /// the machine.
    writer_us: f64,
    file_bytes: u64,
}

/// A contender's results over all rounds, each run with its own floor.
struct Contender {
    name: &'static str,
    remote: bool,
    sessions: usize,
    runs: Vec<(Run, floor::FloorRun)>,
}

pub(crate) fn run(options: &Options) {
    let contenders = [("embedded", false), ("websocket", true)];
    let mut contenders: Vec<Contender> = contenders
        .into_iter()
        .filter(|(name, _)| options.only.as_deref().is_none_or(|only| only == *name))
        .flat_map(|(name, remote)| [1, 64].map(|sessions| (name, remote, sessions)))
        .map(|(name, remote, sessions)| Contender { name, remote, sessions, runs: Vec::new() })
        .collect();
    let payload = Payload::new();
    let runtime = Runtime::new().expect("a tokio runtime");
    for round in 1..=options.rounds {
        for contender in &mut contenders {
            let share = if contender.sessions == 1 { 8 } else { 1 };
            let turns = (options.turns / share / contender.sessions).max(1);
            eprintln!("round {round}: {}, {} sessions", contender.name, contender.sessions);
            let dir = TempDir::new_in(&options.dir).expect("a folder for the files");
            let ours = runtime.block_on(ours(dir.path(), contender, turns));
            let floor = floor::run(
                &dir.path().join("floor.db"),
                contender.sessions,
                turns,
                ours.calls_per_commit,
                &payload,
            );
            contender.runs.push((ours, floor));
        }
    }
    report(&contenders);
}

async fn ours(dir: &Path, contender: &Contender, turns: usize) -> Run {
    let path = dir.join("abide.db");
    let config = Config::new(abide_reducers::modules());
    let engine = Engine::open(&path, config).expect("the engine opens");
    let embedded = Abide::embed(engine.clone());
    embedded.call_by_name("register_tool", json!({"name": "lookup"})).await.expect("a tool");
    for session in 0..contender.sessions {
        let args = json!({"agent": "bench", "id": format!("s_{session}")});
        embedded.call_by_name("create_session", args).await.expect("a session");
    }
    let mut server = None;
    let mut clients = Vec::new();
    if contender.remote {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let served =
            abide_server::serve(engine.clone(), listener, AccessConfig::loopback(), async {
                let _ = stopped.await;
            });
        server = Some((stop, tokio::spawn(served)));
        for _ in 0..contender.sessions {
            clients.push(Abide::connect(&format!("http://{address}")).await.expect("connects"));
        }
    } else {
        clients = vec![embedded; contender.sessions];
    }
    let (before, cpu_before) = (counters(&engine), cpu::of_threads("abide-writer"));
    let started = Instant::now();
    let tasks: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(session, abide)| tokio::spawn(take_turns(abide, session, turns)))
        .collect();
    let mut call_ms = Vec::new();
    for task in tasks {
        call_ms.extend(task.await.expect("a session"));
    }
    let seconds = started.elapsed().as_secs_f64();
    let (after, cpu_after) = (counters(&engine), cpu::of_threads("abide-writer"));
    if let Some((stop, served)) = server {
        let _ = stop.send(());
        served.await.expect("the server's task").expect("the server ends well");
    }
    tokio::task::spawn_blocking(move || engine.close()).await.expect("the engine closes");
    Run {
        turns_per_second: (contender.sessions * turns) as f64 / seconds,
        call_ms,
        calls_per_commit: (after.calls - before.calls) / (after.commits - before.commits),
        writer_us: (cpu_after - cpu_before) * 1e6 / (after.calls - before.calls),
        sync_ms: (after.sync_us - before.sync_us) / (after.syncs - before.syncs) / 1000.0,
        file_bytes: std::fs::metadata(&path).map_or(0, |file| file.len()),
    }
}

struct Counted {
    calls: f64,
    commits: f64,
    syncs: f64,
    sync_us: f64,
}

fn counters(engine: &Engine) -> Counted {
    let metrics = engine.metrics();
    Counted {
        calls: metrics.calls_total.get() as f64,
        commits: metrics.commits_total.get() as f64,
        syncs: metrics.syncs_total.get() as f64,
        sync_us: metrics.sync_us_total.get() as f64,
    }
}

/// One session's turns. Each call is awaited before the next one.
async fn take_turns(abide: Abide, session: usize, turns: usize) -> Vec<f64> {
    let payload = Payload::new();
    let parse = |text: &str| serde_json::from_str::<JsonValue>(text).expect("payload is JSON");
    let (arguments, result) = (parse(&payload.arguments), parse(&payload.result));
    let id = format!("s_{session}");
    let mut call_ms = Vec::with_capacity(turns * 4);
    for turn in 0..turns {
        let call_id = format!("{id}/{turn}");
        let message =
            |role: &str, content: &str| json!({"session_id": id, "role": role, "content": content});
        let request = json!({"session_id": id, "call_id": call_id, "tool_name": "lookup",
            "arguments": arguments, "claim_lease_ms": 30_000});
        timed(&abide, "append_message", message("user", &payload.user), &mut call_ms).await;
        let token = timed(&abide, "request_tool_call", request, &mut call_ms).await;
        let complete = json!({"call_id": call_id, "fencing_token": token, "result": result});
        timed(&abide, "complete_tool_call", complete, &mut call_ms).await;
        let answer = message("assistant", &payload.assistant);
        timed(&abide, "append_message", answer, &mut call_ms).await;
    }
    call_ms
}

/// Makes a call and returns its seq, which is a claim's fencing token.
async fn timed(abide: &Abide, reducer: &str, args: JsonValue, call_ms: &mut Vec<f64>) -> i64 {
    let started = Instant::now();
    let done = abide.call_by_name(reducer, args).await.expect("the call is done");
    call_ms.push(started.elapsed().as_secs_f64() * 1000.0);
    done.seq.0
}

fn report(contenders: &[Contender]) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "",
        "sessions",
        "turns/s",
        "floor turns/s",
        "ratio",
        "call p50 ms",
        "p99 ms",
        "calls/commit",
        "sync ms",
        "writer CPU us/call",
        "floor",
        "bytes/payload byte",
        "floor",
    ]);
    for contender in contenders {
        let of = |pick: fn(&Run) -> f64| median(contender.runs.iter().map(|(run, _)| pick(run)));
        let floor = median(contender.runs.iter().map(|(_, floor)| floor.turns_per_second));
        let ratios = contender.runs.iter();
        let ratio =
            median(ratios.map(|(run, floor)| run.turns_per_second / floor.turns_per_second));
        let calls = || contender.runs.iter().flat_map(|(run, _)| run.call_ms.iter().copied());
        let (run, beside) = &contender.runs[0];
        let payload = run.call_ms.len() as f64 / 4.0 * TURN_BYTES as f64;
        table.add_row([
            contender.name.to_owned(),
            contender.sessions.to_string(),
            thousands(of(|run| run.turns_per_second)),
            thousands(floor),
            format!("{ratio:.2}"),
            format!("{:.2}", percentile(calls(), 0.5)),
            format!("{:.2}", percentile(calls(), 0.99)),
            format!("{:.1}", of(|run| run.calls_per_commit)),
            format!("{:.2}", of(|run| run.sync_ms)),
            format!("{:.1}", of(|run| run.writer_us)),
            format!("{:.1}", median(contender.runs.iter().map(|(_, floor)| floor.cpu_us))),
            format!("{:.2}", run.file_bytes as f64 / payload),
            format!("{:.2}", beside.file_bytes as f64 / payload),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    println!(
        "A turn is four events: user message 300 B, tool call 200 B, its result 500 B, assistant \
         message 400 B.\nEvery call is awaited and durable before the next one of its session; the \
         floor writes the same rows\nin batches of the same size on one thread, without syncs."
    );
}
