//! `abide demo`: replays recorded conversations of real agents through a real server, which is killed midway.
//!
//! One process runs all clients of the server: an app for each conversation, some workers and a supervisor. Each
//! has its own connection. A ledger in this process, which survives the kill, has every acknowledged write and
//! every tool execution. At the end the file is compared with the ledger.

mod app;
mod audit;
mod context;
mod fixture;
mod ledger;
mod progress;
mod recording;
mod report;
mod script;
mod server;
mod supervisor;
mod worker;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use abide_schema::{Code, Refusal};
use clap::Args;
use serde_json::{Value as JsonValue, json};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};

use crate::connect::check_folder;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};
use crate::signals;
use crate::terminal::Terminal;
use context::DemoContext;
use ledger::Counts;
use progress::Progress;
use report::Report;
use script::Script;
use server::Server;

/// Arguments of `abide demo`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// Play only the first N conversations
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    conversations: Option<u32>,

    /// Play other recordings: a .jsonl or .jsonl.zst file, or a folder of such files
    #[arg(long, value_name = "DIR|FILE")]
    data: Option<PathBuf>,

    /// Keep the database as this new file
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  abide demo
  abide demo --keep demo.db && abide sql --db demo.db 'SELECT status, count(*) FROM tool_calls
    GROUP BY status'
  abide demo --data recordings/ --conversations 200

Plays recorded sessions, messages, tool calls and handoffs through a server, kills the server with
SIGKILL halfway, and starts it again. Then it checks that every acknowledged write is in the file
and that no tool ran twice. If a check fails the exit code is 4.";

/// Number of workers.
const WORKERS: usize = 4;

/// Number of concurrent conversations.
const APPS: usize = 64;

/// The event and the duration of the kill.
struct KillReport {
    at_event: i64,
    back_after_ms: u64,
}

/// Replays, kills the server, continues, and compares.
///
/// # Errors
/// A write was lost, duplicated or changed; or the demo could not run.
pub(crate) async fn run(options: &Options, args: Demo) -> Result<(), Failure> {
    if options.db.is_some() {
        let detail = "the demo starts a server of its own, on a new file";
        return Err(Failure::usage(detail, "name the file with --keep"));
    }
    let max = args.conversations.and_then(|max| usize::try_from(max).ok());
    let recordings = fixture::read_recordings(args.data.as_deref(), max)?;
    let folder = tempfile::tempdir()
        .map_err(|why| Failure::system("no temporary folder can be created", &why))?;
    let db = match &args.keep {
        Some(keep) => check_new_file(keep)?,
        None => folder.path().join("demo.db"),
    };
    let kept = args.keep.as_ref().map(|keep| keep.display().to_string());
    if !options.json {
        print_line(report::opening_line(recordings.len() as u64, kept.as_deref()))?;
    }
    // Installed first, so that an interrupt leaves no server and no folder behind.
    let stop = signals::stop_requested()?;
    let report = tokio::select! {
        report = run_and_audit(options, &args, recordings, &db) => report?,
        () = stop => {
            let detail = "the demo was interrupted, so nothing was verified";
            let why = Refusal::new(Code::Conflict, detail)
                .hint("run it again; its server and its temporary files are removed");
            return Err(why.into());
        }
    };
    if options.json {
        print_json(&report)?;
    } else {
        print_line(report.render(Terminal::from_stdout()))?;
    }
    if report.is_good() {
        return Ok(());
    }
    let why = Refusal::new(Code::Conflict, report.describe_faults());
    Err(Failure::Unverified(why.hint("run the demo with --keep FILE --json to list them")))
}

async fn run_and_audit(
    options: &Options,
    args: &Demo,
    recordings: Vec<recording::Recording>,
    db: &Path,
) -> Result<Report, Failure> {
    let mut server = Server::start(db).await?;
    let context = Arc::new(DemoContext::new(Script::new(recordings), server.url()));
    let progress = Progress::new(context.script.parts.len() as u64, options.json);
    let shown = tokio::spawn(progress.clone().follow(context.ledger.subscribe_to_counts()));

    let began = Instant::now();
    let played = play_and_kill(&context, &mut server, &progress).await;
    let played_ms = elapsed_ms(began);
    shown.abort();
    let kill = played?;
    progress.show_comparison();

    let (clients, clients_resumed) = context.count_clients();
    context.close().await;
    server.stop().await?;
    let counts = *context.ledger.subscribe_to_counts().borrow();
    let audit =
        audit::audit_file(options.config(), db, &context.script, context.ledger.acknowledged())
            .await?;
    progress.clear();
    let (tool_calls_run, tool_calls_run_twice) = context.ledger.count_executions();
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        data: args.data.as_ref().map_or("built in".to_owned(), |data| data.display().to_string()),
        file: args.keep.as_ref().map(|keep| keep.display().to_string()),
        sessions: counts.sessions,
        messages: counts.messages,
        tool_calls: counts.calls,
        tool_calls_pending: audit.pending,
        handoffs: counts.handoffs,
        killed_at_event: kill.at_event,
        back_after_ms: kill.back_after_ms,
        clients,
        clients_resumed,
        deltas: counts.deltas,
        claims_lost_to_others: counts.races_lost,
        acknowledged: counts.acknowledged,
        acknowledged_lost: audit.lost,
        tool_calls_run,
        tool_calls_run_twice,
        differing_from_recording: audit.differing,
        events: audit.events,
        head: audit.head,
        played_ms,
    })
}

/// Runs all clients, and kills the server when half of all events are acknowledged.
async fn play_and_kill(
    context: &Arc<DemoContext>,
    server: &mut Server,
    progress: &Progress,
) -> Result<KillReport, Failure> {
    register_tools(context).await?;
    let mut helpers = spawn_helpers(context);
    let mut apps = spawn_apps(context);
    let half = (context.script.expected_events() / 2).max(1);
    let mut counts = context.ledger.subscribe_to_counts();
    let mut kill = None;
    loop {
        tokio::select! {
            () = wait_until_acknowledged(&mut counts, half), if kill.is_none() => {
                kill = Some(kill_and_restart(context, server, progress).await?);
            }
            app = apps.join_next() => match app {
                Some(ended) => unwrap_joined(ended)??,
                None => break,
            },
            Some(ended) = helpers.join_next() => match unwrap_joined(ended)?? {},
            died = server.wait_until_died() => return Err(died),
        }
    }
    helpers.shutdown().await;
    match kill {
        Some(kill) => Ok(kill),
        // The replay finished before the kill.
        None => kill_and_restart(context, server, progress).await,
    }
}

/// Waits until this many writes are acknowledged. `wait_for` returns a lock on the counts, which must be released
/// before the server is killed.
async fn wait_until_acknowledged(counts: &mut watch::Receiver<Counts>, acknowledged: u64) {
    // The context holds the sender.
    let _ = counts.wait_for(|counts| counts.acknowledged >= acknowledged).await;
}

async fn kill_and_restart(
    context: &DemoContext,
    server: &mut Server,
    progress: &Progress,
) -> Result<KillReport, Failure> {
    let at_event = context.ledger.subscribe_to_counts().borrow().head.0;
    progress.show_kill(at_event, None);
    let killed = Instant::now();
    server.kill().await?;
    server.start_again().await?;
    context.announce_restart();
    let back_after_ms = elapsed_ms(killed);
    progress.show_kill(at_event, Some(back_after_ms));
    Ok(KillReport { at_event, back_after_ms })
}

async fn register_tools(context: &DemoContext) -> Result<(), Failure> {
    let client = context.connect().await?;
    for tool in &context.script.tools {
        let arguments = json!({"name": tool, "effect": "at_most_once"});
        client.call::<JsonValue>("register_tool", arguments).await?;
    }
    client.close().await;
    Ok(())
}

fn spawn_helpers(context: &Arc<DemoContext>) -> JoinSet<Result<Infallible, Failure>> {
    let mut helpers = JoinSet::new();
    for number in 1..=WORKERS {
        let context = Arc::clone(context);
        helpers.spawn(async move { worker::run(&context, &format!("worker-{number}")).await });
    }
    let context = Arc::clone(context);
    helpers.spawn(async move { supervisor::run(&context).await });
    helpers
}

fn spawn_apps(context: &Arc<DemoContext>) -> JoinSet<Result<(), Failure>> {
    let room = Arc::new(Semaphore::new(APPS));
    let mut apps = JoinSet::new();
    for number in 0..context.script.parts.len() {
        let context = Arc::clone(context);
        let room = Arc::clone(&room);
        apps.spawn(async move {
            // The semaphore is never closed.
            let _place = room.acquire().await;
            app::run(&context, &context.script.parts[number]).await
        });
    }
    apps
}

fn unwrap_joined<T>(ended: Result<T, JoinError>) -> Result<T, Refusal> {
    ended.map_err(|why| {
        Refusal::new(Code::Internal, format!("a client of the demo panicked: {why}"))
    })
}

/// Checks that a file does not exist: sessions of an earlier demo have the same ids.
fn check_new_file(path: &Path) -> Result<PathBuf, Failure> {
    check_folder(path)?;
    if path.exists() {
        let detail = format!("{} exists already", path.display());
        return Err(Refusal::new(Code::Conflict, detail)
            .hint("give --keep the name of a file that does not exist")
            .into());
    }
    Ok(path.to_owned())
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
