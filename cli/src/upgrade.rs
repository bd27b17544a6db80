//! `abide upgrade`: converts a file to the layout of new files.

use std::path::PathBuf;
use std::time::Duration;

use abide_engine::{OpenError, verify_file};
use abide_schema::{Code, Refusal};
use abide_store::{PageLayout, UpgradePlan, plan_upgrade, upgrade};
use clap::Args;
use serde_json::{Value as JsonValue, json};

use crate::failure::Failure;
use crate::global_options::Options;
use crate::log_progress::{draw_progress, start_spinner};
use crate::output::{print_json, print_line};

/// Arguments of `abide upgrade`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Upgrade {
    /// The database file; no process may have it open
    file: PathBuf,

    /// Only print what the conversion needs
    #[arg(long)]
    plan: bool,
}

const EXAMPLES: &str = "\
A file keeps the layout of its pages from its creation. In that of new files, deleted
data gives its space back to the system. The conversion writes the whole file once; if
the process or the machine stops meanwhile, the file has its old layout, with the -wal
file next to it. The file is verified before and after a conversion, and its log and its
rows stay the same.

The command also migrates the tables to the versions of this program, as every command
that opens the file to write. If a server was killed, the command, also with --plan,
first applies the server's journal to the file.

Examples:
  abide upgrade agents.db --plan          # time and free disk that it needs
  abide upgrade agents.db";

/// Bytes of a file that one second of conversion, or of verification, processes: an assumption for a slow disk, so that the
/// printed time is rather too long than too short.
const BYTES_PER_SECOND: u64 = 50 << 20;

/// States what the conversion needs, and converts the file unless it is only to be planned.
///
/// # Errors
/// The file cannot be opened, does not verify, or is open in another process; or the disk is too small.
pub(crate) fn run(options: &Options, args: Upgrade) -> Result<(), Failure> {
    let Upgrade { file, plan: only_plan } = args;
    let modules = abide_engine::Config::from(options.config()).modules;
    let plan = plan_upgrade(&file, modules.clone()).map_err(|error| error.to_refusal())?;
    let UpgradePlan { now, needed_bytes, available_bytes } = plan;
    let name = file.display();
    if !options.json {
        print_line(format!("{name}: {}", layout_text(&now)))?;
        if now.is_current() {
            return print_line("It has the layout of new files: there is nothing to convert.");
        }
        print_line(format!(
            "The conversion needs {} of disk ({} are free) and about {}.",
            megabytes(needed_bytes),
            megabytes(available_bytes),
            time_text(expected_time(&now)),
        ))?;
    }
    if now.is_current() || only_plan {
        return if options.json { print_json(&report(&plan, None)) } else { Ok(()) };
    }
    if available_bytes < needed_bytes {
        let detail = format!(
            "the conversion of {name} needs {}, and its disk has {}",
            megabytes(needed_bytes),
            megabytes(available_bytes)
        );
        return Err(Refusal::new(Code::DiskFull, detail).hint("free some space").into());
    }
    let spinner = start_spinner(options)?;
    let before = verify_file(&file, modules.clone(), &mut draw_progress(&spinner))?;
    let converted = upgrade(&file, modules.clone()).map_err(|error| match error {
        OpenError::InUse { .. } => {
            let refusal = error.to_refusal();
            refusal.hint("end the process that has it open, and convert the file then")
        }
        error => error.to_refusal(),
    })?;
    let after = verify_file(&file, modules, &mut draw_progress(&spinner))?;
    spinner.finish_and_clear();
    if before.hash != after.hash {
        let detail = format!("{name} has another log than before its conversion");
        let hint = "restore it from a backup, and report this as a bug";
        return Err(Failure::Unverified(Refusal::new(Code::Internal, detail).hint(hint)));
    }
    if options.json {
        print_json(&report(&plan, Some(&converted)))
    } else {
        print_line(format!("Converted: {}  ·  chain ok", layout_text(&converted)))
    }
}

fn report(plan: &UpgradePlan, converted: Option<&PageLayout>) -> JsonValue {
    json!({
        "current": plan.now.is_current(),
        "before": layout_json(&plan.now),
        "after": converted.map(layout_json),
        "needed_bytes": plan.needed_bytes,
        "available_bytes": plan.available_bytes,
        "expected_seconds": expected_time(&plan.now).as_secs(),
    })
}

fn layout_json(layout: &PageLayout) -> JsonValue {
    let PageLayout { page_bytes, pages, free_pages, is_incremental } = layout;
    json!({
        "page_bytes": page_bytes,
        "pages": pages,
        "free_pages": free_pages,
        "incremental": is_incremental,
    })
}

fn layout_text(layout: &PageLayout) -> String {
    let free_bytes = layout.free_pages * layout.page_bytes;
    format!(
        "{} in pages of {} bytes, {} of them unused",
        megabytes(layout.bytes()),
        layout.page_bytes,
        megabytes(free_bytes)
    )
}

/// Two verifications, and a conversion that writes each page twice.
fn expected_time(layout: &PageLayout) -> Duration {
    Duration::from_secs(1 + 4 * layout.bytes() / BYTES_PER_SECOND)
}

fn time_text(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
