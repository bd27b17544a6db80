//! `abide verify`: checks a file.

use std::path::PathBuf;
use std::time::Duration;

use abide_engine::{OpenError, VerifyError, verify_file};
use abide_schema::{Code, Refusal, Seq};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::cells;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{say, say_json};
use crate::replay;

/// Arguments of `abide verify`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Verify {
    /// The database file; a server may have it open
    file: PathBuf,

    /// Also replay the log, and compare every row with the result
    #[arg(long)]
    replay: bool,
}

const EXAMPLES: &str = "\
Recomputes every hash from the first event to the last, checks that each event that
a row names exists, and runs SQLite's integrity check. Keep the head that is printed:
it proves later that no event up to it was changed.

Examples:
  abide verify abide.db
  abide verify abide.db --replay
  abide verify abide.db --json | jq -r .head >> kept-elsewhere";

/// The count is drawn once per this many events: drawing every event would be slower than the verification.
const DRAW_EVERY: i64 = 1_024;

/// Recomputes every hash of the log, and checks the rest of the file.
///
/// # Errors
/// The first error, with its seq.
pub(crate) fn run(options: &Options, args: Verify) -> Result<(), Failure> {
    let spinner = spinner(options)?;
    let verified = verify_file(&args.file, &mut drawing(&spinner));
    spinner.finish_and_clear();
    let verified = verified.map_err(failure)?;
    if args.replay {
        let folder = tempfile::tempdir().map_err(|why| {
            let detail = format!("no temporary folder for the replay: {why}");
            Failure::Refused(
                Refusal::new(Code::DiskFull, detail)
                    .hint("TMPDIR names the folder for temporary files"),
            )
        })?;
        replay::replay(options, &args.file, &folder.path().join("replay.db"), None)?;
    }
    let events = verified.events.0.unsigned_abs();
    let head = hex::encode(verified.hash);
    if options.json {
        let told = json!({
            "verified": true,
            "replayed": args.replay,
            "file": args.file.display().to_string(),
            "events": events,
            "head": head,
        });
        say_json(&told)
    } else {
        let replayed = if args.replay { "  ·  rows ok" } else { "" };
        say(format!("{}  ·  chain ok{replayed}  ·  head {head}", cells::counted(events, "event")))
    }
}

/// The spinner for a walk through the events.
///
/// # Errors
/// Never; the template is a constant.
pub(crate) fn spinner(options: &Options) -> Result<ProgressBar, Failure> {
    let spinner = ProgressBar::new_spinner();
    if options.json {
        spinner.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{spinner} {human_pos} events").map_err(|why| {
        Failure::usage(format!("the progress bar has no style: {why}"), "report this as a bug")
    })?;
    spinner.set_style(style);
    spinner.enable_steady_tick(Duration::from_millis(200));
    Ok(spinner)
}

/// Draws the count of events from time to time.
pub(crate) fn drawing(spinner: &ProgressBar) -> impl FnMut(Seq) {
    let spinner = spinner.clone();
    move |seq| {
        if seq.0 % DRAW_EVERY == 0 {
            spinner.set_position(seq.0.unsigned_abs());
        }
    }
}

/// A missing file, or a file of another program, is refused; a damaged file has failed verification.
pub(crate) fn failure(error: VerifyError) -> Failure {
    let refusal = error.to_refusal();
    match error {
        VerifyError::Open(OpenError::Store { .. }) => {
            let hint = "the file is damaged; restore a backup that verifies";
            Failure::Unverified(refusal.hint(hint))
        }
        VerifyError::Open(_) => Failure::Refused(refusal),
        _ => Failure::Unverified(refusal),
    }
}
