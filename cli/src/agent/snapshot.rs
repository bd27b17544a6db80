//! `abide agent export`, `import` and `fork`: a run continues in another file, a session continues from an earlier event.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use abide_client::Abide;
use abide_client::arguments::{ExportRun, ForkSession, ImportRun};
use abide_client::rows::RunSnapshot;
use abide_schema::{Code, Refusal, limits};
use clap::Args;

use super::hint::{HintContext, quote};
use super::host::{AgentHost, check_folder_exists, open_project};
use super::run::{close_after, watch};
use crate::call::call_and_print;
use crate::connect::{Access, connect};
use crate::events::stored_session;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{note, print_json};
use crate::reconnect::reporting_reconnects;

/// Arguments of `abide agent export`.
#[derive(Args, Debug)]
pub(super) struct Export {
    /// The id of the run, which waits
    run: String,

    /// Leave the run as it is: both continue independently
    #[arg(long)]
    copy: bool,

    /// A label, which the snapshot keeps
    #[arg(long, value_name = "TEXT")]
    tag: Option<String>,
}

/// Arguments of `abide agent import`.
#[derive(Args, Debug)]
pub(super) struct Import {
    /// The file with the snapshot; `-` is stdin
    file: PathBuf,

    /// The id of the run and of its session here; that of the origin if omitted
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Continue with the definitions of this file, even if they differ
    #[arg(long)]
    any_definition: bool,

    /// Approve every call without asking
    #[arg(long)]
    yes: bool,
}

/// Arguments of `abide agent fork`.
#[derive(Args, Debug)]
pub(super) struct Fork {
    /// The session
    session: String,

    /// The last event of the log that the history includes; without it, the newest
    #[arg(long, value_name = "SEQ")]
    at: Option<i64>,

    /// The id of the new session
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// The title of the new session
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

/// Writes a snapshot of a run to stdout.
///
/// # Errors
/// The call is refused, or the output cannot be written: then the same command prints the same snapshot.
pub(super) async fn export(options: &Options, args: Export) -> Result<(), Failure> {
    let abide = connect(options, Access::Write).await?;
    let export = ExportRun { tag: args.tag, ..ExportRun::new(args.run).copy(args.copy) };
    let exported = abide.call(export).await;
    abide.close().await;
    let snapshot = exported?.into_inner();
    print_json(&snapshot)?;
    if !args.copy {
        note(format!(
            "run {} has ended here; continue it, in one file only, with: `abide agent import --db FILE SNAPSHOT`",
            snapshot.runs.first().map_or("", |run| &run.id)
        ));
    }
    Ok(())
}

/// Creates a session with the history of another one.
///
/// # Errors
/// The call is refused.
pub(super) async fn fork(options: &Options, args: Fork) -> Result<(), Failure> {
    let Fork { session, at, id, title } = args;
    if let Some(at) = at {
        check_begun(options, &session, at).await?;
    }
    call_and_print(options, ForkSession { at, id, title, ..ForkSession::new(session) }).await
}

/// Refuses an event before the session: the fork would be empty.
async fn check_begun(options: &Options, session: &str, at: i64) -> Result<(), Failure> {
    let abide = connect(options, Access::Read).await?;
    let stored = stored_session(&abide, session).await;
    let first = match &stored {
        Ok(stored) => {
            let sql = "SELECT min(seq) FROM events WHERE session_id = :id";
            abide.sql(sql).param("id", stored).fetch::<(Option<i64>,)>().await
        }
        Err(_) => Ok(Vec::new()),
    };
    abide.close().await;
    stored?;
    // A policy can hide the events.
    let first = first?.into_iter().next().and_then(|(first,)| first);
    match first {
        Some(first) if (1..first).contains(&at) => {
            let detail = format!("session {session} begins at event {first}, after event {at}");
            let hint = format!("`abide events --session {}` lists its events", quote(session));
            Err(Refusal::new(Code::BadArguments, detail).hint(hint).into())
        }
        _ => Ok(()),
    }
}

/// Imports a snapshot, and follows its run. With a file, this process drives the run.
///
/// # Errors
/// The snapshot cannot be read or is refused; the run failed, or waits.
pub(super) async fn import(options: &Options, folder: &Path, args: Import) -> Result<(), Failure> {
    // Read first: an unreadable snapshot creates no database file.
    let snapshot = read_snapshot(&args.file)?;
    let project = match options.db {
        Some(_) => {
            check_folder_exists(folder)?;
            Some(open_project(options, folder).await?)
        }
        None => None,
    };
    let abide = connect(options, Access::Create).await?;
    let host = match project {
        Some(project) => {
            let agents: Vec<&str> = snapshot.agents.iter().map(|agent| &*agent.name).collect();
            Some(AgentHost::for_agents(options, project, abide.clone(), &agents).await?)
        }
        None => None,
    };
    let followed = follow(options, folder, &abide, args, snapshot);
    let outcome = reporting_reconnects(abide.link(), options, followed).await;
    if let Some(host) = host {
        close_after(host, outcome.as_ref().err()).await;
    }
    outcome
}

async fn follow(
    options: &Options,
    folder: &Path,
    abide: &Abide,
    args: Import,
    snapshot: RunSnapshot,
) -> Result<(), Failure> {
    let Import { file, id, any_definition, yes } = args;
    let hint = HintContext::for_import(options, folder, &file, id.as_deref(), any_definition);
    let any_definition = any_definition.then_some(true);
    let import =
        ImportRun { session_id: id.clone(), id, any_definition, ..ImportRun::new(snapshot) };
    let run = abide.call(import).await?.into_inner();
    watch(options, abide, &run.id, &hint, yes).await
}

fn read_snapshot(file: &Path) -> Result<RunSnapshot, Failure> {
    let hint = "`abide agent export RUN > FILE` writes a snapshot";
    let mut text = String::new();
    // One byte more than allowed, so that a larger file is noticed without being read.
    let max = limits::CALL_BYTES as u64 + 1;
    let done = match file.to_str() {
        Some("-") => io::stdin().take(max).read_to_string(&mut text),
        _ => fs::File::open(file).and_then(|it| it.take(max).read_to_string(&mut text)),
    };
    let name = file.display();
    done.map_err(|why| Failure::usage(format!("{name} cannot be read: {why}"), hint))?;
    if text.len() > limits::CALL_BYTES {
        let detail = format!("{name} has more than {} bytes", limits::CALL_BYTES);
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
    }
    let parsed = serde_json::from_str(&text);
    parsed.map_err(|why| Failure::usage(format!("{name} is not a snapshot: {why}"), hint))
}
