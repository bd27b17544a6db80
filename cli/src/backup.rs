//! `abide backup`: copies a file in one consistent state, even while a server writes to it.

use std::path::{Path, PathBuf};

use abide_engine::{BackupError, VerifyError};
use clap::Args;
use serde_json::json;

use crate::cells;
use crate::failure::Failure;
use crate::global_options::Options;
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
command succeeds. A copy that does not verify is removed. If a server was killed, the
command first applies the server's journal to the file that it copies.

Examples:
  abide backup monday.db                  # of abide.db
  abide backup monday.db --db agents.db";

/// Copies the file, and verifies the copy.
///
/// # Errors
/// The file does not exist, the target exists or cannot be written, or the copy does not verify.
pub(crate) fn run(options: &Options, args: Backup) -> Result<(), Failure> {
    if options.db.is_none() && options.is_url_named {
        let detail = "`backup` cannot copy through a server";
        return Err(Failure::usage(detail, "name the file: `abide backup COPY --db FILE`"));
    }
    let from = options.db_or_default();
    let to = args.to;
    let modules = abide_engine::Config::from(options.config()).modules;
    let verified = abide_engine::backup(&from, &to, modules).map_err(|error| match error {
        BackupError::Copy(why) => Failure::from(VerifyError::Open(why)),
        BackupError::Unverified(why) => add_copy_hint(Failure::from(why), &from),
    })?;
    let events = verified.events.0.unsigned_abs();
    if options.json {
        print_json(&json!({
            "backup": to.display().to_string(),
            "of": from.display().to_string(),
            "events": events,
        }))
    } else {
        let events = cells::pluralize(events, "event");
        let to = to.display();
        print_line(format!("{events} from {} to {to}  ·  chain ok", from.display()))
    }
}

/// The failure of a copy that is as wrong as the original.
fn add_copy_hint(failure: Failure, from: &Path) -> Failure {
    let hint =
        format!("the copy is removed; `abide verify {}` checks the original", from.display());
    match failure {
        Failure::Unverified(refusal) => Failure::Unverified(refusal.hint(hint)),
        Failure::Refused(refusal) => Failure::Refused(refusal.hint(hint)),
        other => other,
    }
}
