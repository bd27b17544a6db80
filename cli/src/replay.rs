//! `abide replay`: replays a log into a new file, up to any event.

use std::path::{Path, PathBuf};

use abide_engine::{ReplayError, VerifyError};
use abide_schema::{Code, Refusal, Seq};
use clap::Args;
use serde_json::json;

use crate::cells;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::log_progress::{draw_progress, start_spinner};
use crate::output::{print_json, print_line};

/// Arguments of `abide replay`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Replay {
    /// The database file; a server may have it open
    file: PathBuf,

    /// The last event to replay; without it, all of them
    #[arg(
        long,
        value_name = "SEQ",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(0..)
    )]
    to: Option<i64>,

    /// The file to create
    #[arg(long, value_name = "FILE")]
    into: PathBuf,
}

const EXAMPLES: &str = "\
Runs every call of the log again, with its recorded time and ids. Each call must have
the recorded outcome. The new file has the state after the last event that was replayed,
and can be queried and served. A replay of the whole log refuses a file whose rows another
program has changed; --to with an earlier event does not compare the rows. If a server was
killed, the command first applies the server's journal to the file.

Examples:
  abide replay abide.db --to 981002 --into then.db
  abide sql --db then.db \"SELECT status, count(*) FROM sessions GROUP BY status\"";

/// Replays the log.
///
/// # Errors
/// The first difference, with its event or row.
pub(crate) fn run(options: &Options, args: Replay) -> Result<(), Failure> {
    let reached = replay(options, &args.file, &args.into, args.to.map(Seq))?;
    let events = reached.0.unsigned_abs();
    if options.json {
        let into = args.into.display().to_string();
        print_json(&json!({"events": events, "file": into}))
    } else {
        let into = args.into.display();
        print_line(format!(
            "{}  ·  the same outcomes  ·  {into}",
            cells::pluralize(events, "event")
        ))
    }
}

/// Replays a log into a file, and shows the progress.
///
/// # Errors
/// The first difference, with its event or row.
pub(crate) fn replay(
    options: &Options,
    file: &Path,
    into: &Path,
    to: Option<Seq>,
) -> Result<Seq, Failure> {
    let spinner = start_spinner(options)?;
    let mut progress = draw_progress(&spinner);
    let config = abide_engine::Config::from(options.config());
    let reached = abide_engine::replay(file, into, config.modules, to, &mut progress);
    spinner.finish_and_clear();
    reached.map_err(replay_failure)
}

fn replay_failure(error: ReplayError) -> Failure {
    let detail = error.to_string();
    match error {
        ReplayError::Verify(error) => Failure::from(error),
        ReplayError::Open(error) => Failure::from(VerifyError::Open(error)),
        ReplayError::Store(error) => Failure::Refused(error.to_refusal()),
        ReplayError::Beyond { end, .. } => {
            let hint = format!("--to {end} or less; without --to all events are replayed");
            Failure::Refused(Refusal::new(Code::NotFound, detail).hint(hint))
        }
        ReplayError::NotMigrated { .. } => {
            Failure::Refused(Refusal::new(Code::Conflict, detail).hint(
                "use the program that wrote the file, or migrate a copy: `abide upgrade COPY`",
            ))
        }
        _ => Failure::Unverified(
            Refusal::new(Code::Conflict, detail)
                .hint("rows were changed outside of the log, or the reducers have changed since"),
        ),
    }
}
