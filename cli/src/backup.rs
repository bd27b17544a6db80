//! `abide backup`: copies a file in one consistent state, even while a server writes to it.

use std::path::PathBuf;

use abide_engine::verify_file;
use clap::Args;
use serde_json::json;

use crate::cells;
use crate::failure::Failure;
use crate::global_options::{DEFAULT_URL, Options};
use crate::output::{print_json, print_line};

/// Arguments of `abide backup`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Backup {
    /// The file to create; it must not exist
    to: PathBuf,
}

const EXAMPLES: &str = "\
The copy is one consistent state, even while a server writes, and is verified before the
command succeeds.

Examples:
  abide backup monday.db                  # of abide.db
  abide backup monday.db --db agents.db";

/// Copies the file, then verifies the copy.
///
/// # Errors
/// The file does not exist, the target exists or cannot be written, or the copy does not verify.
pub(crate) fn run(options: &Options, args: Backup) -> Result<(), Failure> {
    if options.db.is_none() && options.url != DEFAULT_URL {
        let detail = "`backup` cannot copy through a server";
        return Err(Failure::usage(detail, "name the file: `abide backup COPY --db FILE`"));
    }
    let (from, to) = (options.db_or_default(), args.to);
    let modules = abide_engine::Config::from(options.config()).modules;
    abide_store::backup(&from, &to, modules.clone()).map_err(|error| error.to_refusal())?;
    let verified = verify_file(&to, modules, &mut |_| {})?;
    let events = verified.events.0.unsigned_abs();
    if options.json {
        print_json(&json!({
            "backup": to.display().to_string(),
            "of": from.display().to_string(),
            "events": events,
        }))
    } else {
        let (events, to) = (cells::counted(events, "event"), to.display());
        print_line(format!("{events} from {} to {to}  ·  chain ok", from.display()))
    }
}
