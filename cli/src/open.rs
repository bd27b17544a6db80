//! `abide open`: opens a file for the programs of this user, which share one engine. The first process that opens the
//! file is the engine; the others print how to reach it. The SDKs start this command.

mod detach;
pub(crate) mod engine_listener;
mod holder;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use abide_engine::{Engine, Holder, LockState, OpenError};
use abide_protocols::AgentProtocols;
use abide_schema::{Code, Refusal};
use abide_server::Services;
use clap::Args;
use serde_json::{Value as JsonValue, json};
use tokio::time::Instant;

use crate::connect::check_folder;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};
use crate::{serve, signals, stderr};
use engine_listener::EngineListener;
use holder::OpenReply;

/// Arguments of `abide open`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Open {
    /// The database file; it is created if it does not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Listen on a loopback port instead of a Unix socket
    #[arg(long)]
    loopback: bool,

    /// Only find a process that has the file open, and start none
    #[arg(long, hide = true)]
    join: bool,
}

const EXAMPLES: &str = "\
Examples:
  abide open agents.db --json              # prints the socket and a token, and serves it
  abide open agents.db --json --loopback   # prints a URL and a token

It prints one line and closes stdout. If another process has opened the file with this command,
it prints how to reach that process, and exits. Otherwise it is the engine: it leaves the session
of the terminal and stops two seconds after the last connection has ended. Only processes of the
same user can connect; they are admins, as with --db. With ABIDE_LOG it keeps stderr open for its
log.";

/// How long an engine of another process may take to stop, and to start for a command that only joins it.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a process that does not share its engine may keep the file, such as a short command with `--db`.
const PATIENCE_UNSHARED: Duration = Duration::from_secs(1);

/// Prints how to reach the engine of a file, and is the engine if there is none.
///
/// # Errors
/// The file cannot be opened, or a process has it open that does not share its engine.
pub(crate) async fn run(options: &Options, args: Open) -> Result<(), Failure> {
    if !args.join
        && let Some(ended) = detach::from_terminal()?
    {
        return ended;
    }
    // Before there is anything to remove.
    let mut stop = Box::pin(signals::stop_requested()?);
    let opened = tokio::select! {
        opened = find_or_start(options, &args) => opened,
        () = &mut stop => Err(stopped_refusal(&args)),
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(refusal) => {
            if options.json {
                print_json(&problem_json(&refusal))?;
            }
            return Err(refusal.into());
        }
    };
    match opened {
        Opened::Found(holder) => print(options, &holder, false),
        Opened::Started(engine, listening) => {
            serve_until_unused(options, engine, *listening, stop).await
        }
    }
}

/// The engine of a file.
enum Opened {
    /// An engine of another process.
    Found(Holder),
    /// An engine of this process.
    Started(Engine, Box<EngineListener>),
}

async fn find_or_start(options: &Options, args: &Open) -> Result<Opened, Refusal> {
    if options.db.is_some() {
        let detail = "the file is an argument of `abide open`, not the option --db";
        return Err(Refusal::new(Code::BadArguments, detail).hint("abide open agents.db"));
    }
    check_folder(&args.file)?;
    let begun = Instant::now();
    let mut unused_listener = None;
    // Those that had the file while this process waited for it.
    let mut former = Vec::new();
    loop {
        // Without permission to read the lock, the error of opening the file is the better one.
        let state = LockState::read(&args.file).unwrap_or(LockState::Free(None));
        if let LockState::Held(Some(holder)) = &state {
            if holder.is_foreign && !holder.is_brief {
                return Err(foreign_engine_refusal(args, holder));
            }
            // A command that joins a server does not wait for its migration.
            let until = args.join.then(|| begun + PATIENCE);
            match holder::ask(holder, until).await {
                OpenReply::Ready => return Ok(Opened::Found(holder.clone())),
                OpenReply::OtherUser => return Err(foreign_engine_refusal(args, holder)),
                OpenReply::None => {}
            }
        }
        if args.join {
            return Err(not_served_refusal(args));
        }
        let (LockState::Free(holder) | LockState::Held(holder)) = state;
        former.extend(holder);
        let listening = match unused_listener.take() {
            Some(listening) => listening,
            None => EngineListener::new(args.loopback).await?,
        };
        let mut config = abide_engine::Config::from(options.config());
        config.tuning.holder = Some(listening.holder().clone());
        #[cfg(debug_assertions)]
        let config = serve::fault::arm_requested_panic(config);
        // It waits a quarter of a second for a process that has the file.
        match Engine::open(&args.file, config) {
            Ok(engine) => {
                // This process has the file, so their sockets are of no use.
                former.iter().for_each(engine_listener::remove_left_behind);
                return Ok(Opened::Started(engine, Box::new(listening)));
            }
            Err(OpenError::InUse { holder, .. }) if may_wait(holder.as_deref(), begun) => {
                former.extend(holder.map(|holder| *holder));
                unused_listener = Some(listening);
            }
            Err(why) => return Err(why.to_refusal()),
        }
    }
}

/// Whether a process that has the file is about to share it or to close it.
fn may_wait(holder: Option<&Holder>, begun: Instant) -> bool {
    let patience = match holder {
        Some(holder) if holder.is_shared() => PATIENCE,
        // A server runs until it is stopped.
        Some(holder) if holder.is_reachable() => Duration::ZERO,
        Some(_) | None => PATIENCE_UNSHARED,
    };
    begun.elapsed() < patience
}

fn foreign_engine_refusal(args: &Open, holder: &Holder) -> Refusal {
    let file = args.file.display();
    let detail = format!("{file} is in use by process {} of another user", holder.pid);
    Refusal::new(Code::FileLocked, detail)
        .hint("run this program as that user, or use `abide serve` with tokens")
}

fn not_served_refusal(args: &Open) -> Refusal {
    let file = args.file.display();
    Refusal::new(Code::Unavailable, format!("no server has {file} open at the moment"))
        .hint("start the server again, and repeat the command")
}

fn stopped_refusal(args: &Open) -> Refusal {
    let file = args.file.display();
    Refusal::new(
        Code::Unavailable,
        format!("a signal stopped this process before it opened {file}"),
    )
    .hint("open it again")
}

/// Serves until the last user has left.
async fn serve_until_unused(
    options: &Options,
    engine: Engine,
    listening: EngineListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    // The program that started this process may have ended; another one may be connected already.
    match print(options, listening.holder(), true) {
        Ok(()) | Err(Failure::OutputClosed) => {}
        Err(failure) => return Err(failure),
    }
    detach::close_streams()?;
    let EngineListener { listener, folder, .. } = listening;
    let ends = engine.clone();
    let health = engine.clone();
    let ended = async move {
        tokio::select! {
            () = stop => {}
            // A failed engine refuses everything. The programs that use it start the next one.
            () = health.failed() => {}
        }
    };
    let protocols = Arc::new(AgentProtocols::default());
    let services = Services {
        protocols: Some(protocols),
        dropped_log_records: stderr::dropped_lines(),
        ..Services::default()
    };
    abide_server::serve_shared(ends, listener, services, ended).await;
    // Programs that open the file from now on wait until it is closed.
    drop(folder);
    let healthy = engine.ready();
    serve::close(&engine).await;
    Ok(healthy?)
}

/// Prints how to reach an engine.
fn print(options: &Options, holder: &Holder, started: bool) -> Result<(), Failure> {
    if options.json {
        let mut line = json!(holder);
        line["started"] = started.into();
        return print_json(&line);
    }
    let Holder { version, pid, socket, url, .. } = holder;
    let address = socket.as_ref().or(url.as_ref()).map_or("", String::as_str);
    print_line(format!("abide {version}  ·  process {pid}  ·  {address}"))
}

/// A failure as the programs that start this command read it.
fn problem_json(refusal: &Refusal) -> JsonValue {
    let Refusal { code, detail, hint, .. } = refusal;
    json!({"error": {"code": code, "detail": detail, "hint": hint}})
}
