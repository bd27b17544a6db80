//! `abide verify`: checks a file.

use std::path::PathBuf;

use abide_engine::{VerifiedTable, verify_file};
use abide_schema::{Code, Refusal};
use clap::Args;
use serde_json::json;

use crate::cells;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::log_progress::{draw_progress, start_spinner};
use crate::output::{note, print_json, print_line};
use crate::printable::shorten;
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

    /// As --replay, and print a digest of the rows of each table
    #[arg(long)]
    rows: bool,
}

const EXAMPLES: &str = "\
Recomputes every hash from the first event to the last, checks that each event that
a row names exists, and runs SQLite's integrity check. Keep the head that is printed:
it proves later that no event up to it was changed. An event commits to the rows that
its call has written: copies with the same head have the same rows, and so the same
digests of --rows.

If a server was killed, the command first applies the server's journal to the file.

Examples:
  abide verify abide.db
  abide verify abide.db --replay
  abide verify abide.db --rows
  abide verify abide.db --json | jq -r .head >> kept-elsewhere";

/// Recomputes every hash of the log, and checks the rest of the file.
///
/// # Errors
/// The first error, with its seq.
pub(crate) fn run(options: &Options, args: Verify) -> Result<(), Failure> {
    let spinner = start_spinner(options)?;
    let modules = abide_engine::Config::from(options.config()).modules;
    let verified = verify_file(&args.file, modules, &mut draw_progress(&spinner));
    spinner.finish_and_clear();
    let verified = verified?;
    let is_replayed = args.replay || args.rows;
    if is_replayed {
        let folder = tempfile::tempdir().map_err(|why| {
            let detail = format!("no temporary folder for the replay: {why}");
            Failure::Refused(
                Refusal::new(Code::DiskFull, detail)
                    .hint("TMPDIR names the folder for temporary files"),
            )
        })?;
        replay::replay(options, &args.file, &folder.path().join("replay.db"), None)?;
    }
    warn_of_undeclared(&verified.undeclared);
    let events = verified.events.0.unsigned_abs();
    let head = hex::encode(verified.hash);
    if options.json {
        let tables = verified.tables.iter().map(|table| {
            let VerifiedTable { name, rows, hash } = table;
            json!({"table": name, "rows": rows, "hash": hex::encode(hash)})
        });
        let tables = args.rows.then(|| tables.collect::<Vec<_>>());
        let report = json!({
            "verified": true,
            "replayed": is_replayed,
            "tables": tables,
            "undeclared": verified.undeclared,
            "file": args.file.display().to_string(),
            "events": events,
            "head": head,
        });
        print_json(&report)
    } else {
        if args.rows {
            for VerifiedTable { name, rows, hash } in &verified.tables {
                print_line(format!("{}  {rows:>10}  {name}", hex::encode(hash)))?;
            }
        }
        let replayed = if is_replayed { "  ·  rows ok" } else { "" };
        print_line(format!(
            "{}  ·  chain ok{replayed}  ·  head {head}",
            cells::pluralize(events, "event")
        ))
    }
}

/// Maximum number of undeclared tables and indexes that are named, and bytes of each name.
const NAMED: usize = 20;
const NAME_BYTES: usize = 200;

/// Names what was not verified, because no module of this program declares it.
fn warn_of_undeclared(undeclared: &[String]) {
    for object in undeclared.iter().take(NAMED) {
        let object = shorten(object, NAME_BYTES);
        note(format!("warning: no module of this program declares {object}: it is not verified"));
    }
    if let Some(more) = undeclared.len().checked_sub(NAMED).filter(|more| *more > 0) {
        note(format!("warning: {more} more tables and indexes are not declared"));
    }
}
