//! `abide upgrade`: migrates the tables of a file to the versions of this program, and converts the file to the layout of new
//! files; or says what that would do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_engine::{LockState, OpenError, verify_file};
use abide_schema::{Code, Module, Refusal};
use abide_store::{
    FORMAT_VERSION, PageLayout, PlannedMigration, PlannedStep, UpgradePlan, convert, migrate_file,
    plan_upgrade,
};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Value as JsonValue, json};

use crate::cells;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::log_progress::{draw_progress, start_spinner};
use crate::output::{print_json, print_line};

/// Arguments of `abide upgrade`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Upgrade {
    /// The database file; to upgrade it, no process may have it open
    file: PathBuf,

    /// Change nothing, and say whether this program can open the file, what it would migrate, and what that needs
    #[arg(long)]
    check: bool,

    /// Do not copy the file before
    #[arg(long)]
    no_backup: bool,
}

const EXAMPLES: &str = "\
Every command that opens a file to write migrates its tables to the versions of this program and
of its modules. If older programs refuse the file afterwards, it is copied first, to a file next
to it, and the copy is verified. This command does that too, and also converts a file whose pages
have an older layout: in that of new files, deleted data gives its space back to the system. The
conversion writes the whole file once, and the file is verified before and after it. If the
process or the machine stops, the file is what it was, with the -wal file next to it.

--check can be used while a server has the file open, and in a folder that is read-only. Its exit
code is 1 if this program cannot open the file.

Examples:
  abide upgrade agents.db --check         # what, how long, and whether there is a way back
  abide upgrade agents.db
  abide upgrade agents.db --no-backup     # the file has a backup elsewhere";

/// Bytes that one second of a copy, a migration or a verification processes: an assumption for a slow disk, so that the
/// printed time is rather too long than too short.
const BYTES_PER_SECOND: u64 = 50 << 20;

/// States what the upgrade does and needs, and does it unless it is only to be checked.
///
/// # Errors
/// The file cannot be opened, does not verify, or is open in another process; or the disk is too small.
pub(crate) fn run(options: &Options, args: Upgrade) -> Result<(), Failure> {
    let Upgrade { file, check, no_backup } = args;
    let modules = abide_engine::Config::from(options.config()).modules;
    let plan = match plan_upgrade(&file, modules.clone()) {
        Ok(plan) => plan,
        Err(error) if check => return print_refused(options, &file, &error),
        Err(error) => return Err(error.to_refusal().into()),
    };
    let has_backup = plan.has_backup() && !no_backup;
    let report = Report { file: &file, plan: &plan, has_backup };
    if !options.json {
        report.print()?;
    }
    if check || plan.is_empty() {
        return if options.json { print_json(&report.to_json()) } else { Ok(()) };
    }
    if plan.available_bytes < report.needed_bytes() {
        let detail = format!(
            "the upgrade of {} needs {}, and its disk has {}",
            file.display(),
            megabytes(report.needed_bytes()),
            megabytes(plan.available_bytes)
        );
        let hint = "free some space; the file was not changed";
        return Err(Refusal::new(Code::DiskFull, detail).hint(hint).into());
    }
    let spinner = start_spinner(options)?;
    let done = upgrade(&file, &plan, &modules, has_backup, &spinner)?;
    spinner.finish_and_clear();
    if options.json {
        let mut result = report.to_json();
        result["backup"] = done.backup.map(|it| it.display().to_string()).into();
        result["after"] = done.layout.as_ref().map(layout_json).into();
        return print_json(&result);
    }
    if let Some(backup) = &done.backup {
        print_line(format!("Backup: {}, verified", backup.display()))?;
    }
    for PlannedMigration { module, to, .. } in &plan.migrations {
        print_line(format!("Migrated: {module} has version {to}"))?;
    }
    if let Some(layout) = &done.layout {
        print_line(format!("Converted: {}  ·  chain ok", layout_text(layout)))?;
    }
    Ok(())
}

/// What an upgrade has done.
struct Upgraded {
    backup: Option<PathBuf>,
    /// The layout after a conversion.
    layout: Option<PageLayout>,
}

fn upgrade(
    file: &Path,
    plan: &UpgradePlan,
    modules: &[Module],
    has_backup: bool,
    spinner: &ProgressBar,
) -> Result<Upgraded, Failure> {
    let mut backup = None;
    if !plan.migrations.is_empty() {
        backup = migrate_file(file, modules.to_vec(), has_backup).map_err(to_refusal)?;
    }
    if plan.now.is_current() {
        return Ok(Upgraded { backup, layout: None });
    }
    let before = verify_file(file, modules.to_vec(), &mut draw_progress(spinner))?;
    let needs_backup = has_backup && backup.is_none();
    let (layout, copy) = convert(file, modules.to_vec(), needs_backup).map_err(to_refusal)?;
    let after = verify_file(file, modules.to_vec(), &mut draw_progress(spinner))?;
    if before.hash != after.hash {
        let detail = format!("{} has another log than before its conversion", file.display());
        let hint = "restore it from a backup, and report this as a bug";
        return Err(Failure::Unverified(Refusal::new(Code::Internal, detail).hint(hint)));
    }
    Ok(Upgraded { backup: backup.or(copy), layout: Some(layout) })
}

fn to_refusal(error: OpenError) -> Refusal {
    let refusal = error.to_refusal();
    match error {
        OpenError::InUse { .. } => {
            refusal.hint("end the process that has it open, and upgrade the file then")
        }
        _ => refusal,
    }
}

/// Says that this program cannot open a file, and the format of the file if it is known.
fn print_refused(options: &Options, file: &Path, error: &OpenError) -> Result<(), Failure> {
    let format = match error {
        OpenError::Newer { what, found, .. } if what == "its format" => Some(*found),
        OpenError::Former { found, .. } => Some(*found),
        OpenError::Newer { .. } | OpenError::TableDiffers { .. } | OpenError::Undeclared { .. } => {
            Some(FORMAT_VERSION)
        }
        _ => None,
    };
    let refusal = error.to_refusal();
    if options.json {
        print_json(&json!({
            "file": file.display().to_string(),
            "opens": false,
            "format": format,
            "error": {"code": refusal.code, "detail": refusal.detail, "hint": refusal.hint},
        }))?;
        return Err(Failure::Reported);
    }
    if let Some(format) = format {
        print_line(format!(
            "{}: format {format}; this program has format {FORMAT_VERSION}",
            file.display()
        ))?;
    }
    Err(refusal.into())
}

/// What an upgrade would do.
struct Report<'a> {
    file: &'a Path,
    plan: &'a UpgradePlan,
    has_backup: bool,
}

impl Report<'_> {
    fn backup_bytes(&self) -> u64 {
        if self.has_backup { self.plan.backup_bytes } else { 0 }
    }

    fn needed_bytes(&self) -> u64 {
        self.backup_bytes() + self.plan.migration_bytes + self.plan.conversion_bytes
    }

    /// A copy that is read again; a migration that reads and writes; and two verifications and a conversion that writes each
    /// page twice.
    fn expected_time(&self) -> Duration {
        let UpgradePlan { now, migration_bytes, .. } = self.plan;
        let converted = if now.is_current() { 0 } else { 4 * now.bytes() };
        let bytes = 3 * self.backup_bytes() + 2 * migration_bytes + converted;
        Duration::from_secs(1 + bytes / BYTES_PER_SECOND)
    }

    /// Says who has the file open.
    fn in_use(&self) -> Option<String> {
        match LockState::read(self.file) {
            Ok(LockState::Held(Some(holder))) => Some(format!("process {}", holder.pid)),
            Ok(LockState::Held(None)) => Some("a process".to_owned()),
            _ => None,
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let Report { file, plan, .. } = self;
        let events = cells::pluralize(plan.events.0.unsigned_abs(), "event");
        print_line(format!(
            "{}: format {FORMAT_VERSION}, {events}, {}",
            file.display(),
            layout_text(&plan.now)
        ))?;
        if plan.unapplied_events > 0 {
            let events = cells::pluralize(plan.unapplied_events, "event");
            print_line(format!(
                "Its server was killed: the next start takes {events} from the journal."
            ))?;
        }
        if !plan.unknown_modules.is_empty() {
            let names = plan.unknown_modules.join(", ");
            print_line(format!(
                "This program does not have the modules {names}: their tables stay."
            ))?;
        }
        if plan.is_empty() {
            return print_line(
                "This program opens it as it is: there is nothing to migrate or convert.",
            );
        }
        for migration in &plan.migrations {
            self.print_migration(migration)?;
        }
        if !plan.now.is_current() {
            print_line(
                "Conversion to the page layout of new files; only `abide upgrade` does it.",
            )?;
        }
        let needed = self.needed_bytes();
        print_line(format!(
            "It takes about {} and at most about {} of disk ({} are free): {} for the backup, {} to migrate, {} to convert.",
            time_text(self.expected_time()),
            megabytes(needed),
            megabytes(plan.available_bytes),
            megabytes(self.backup_bytes()),
            megabytes(plan.migration_bytes),
            megabytes(plan.conversion_bytes),
        ))?;
        if plan.available_bytes < needed {
            print_line("The disk is too small: free some space first.")?;
        }
        print_line(match (plan.keeps_older_programs(), self.has_backup) {
            (true, _) => "Downgrade: possible. Programs that open the file now open it afterwards.",
            (false, true) => {
                "Downgrade: not possible. Programs that open the file now refuse it afterwards; the backup is the way back."
            }
            (false, false) => {
                "Downgrade: not possible, and there is no backup. Programs that open the file now refuse it afterwards."
            }
        })?;
        if let Some(holder) = self.in_use() {
            print_line(format!("In use by {holder}: stop it before the upgrade."))?;
        }
        if !plan.is_writable {
            print_line(
                "It cannot be written here: check the permissions of the file and of its folder.",
            )?;
        }
        Ok(())
    }

    fn print_migration(&self, migration: &PlannedMigration) -> Result<(), Failure> {
        let PlannedMigration { module, from, steps, .. } = migration;
        let mut from = *from;
        for PlannedStep { to, changes } in steps {
            let changes = match changes.as_slice() {
                [] => "changes rows or rules, and no table".to_owned(),
                changes => changes.join(", "),
            };
            print_line(if from == 0 {
                format!("Module {module} is new: {changes}")
            } else {
                format!("Migration {module} {from} to {to}: {changes}")
            })?;
            from = *to;
        }
        Ok(())
    }

    fn to_json(&self) -> JsonValue {
        let Report { file, plan, .. } = self;
        let migrations = plan.migrations.iter().map(|migration| {
            let PlannedMigration { module, from, to, steps, keeps_older_programs, table_bytes } =
                migration;
            let steps = steps.iter().map(|step| json!({"to": step.to, "changes": step.changes}));
            json!({
                "module": module,
                "from": from,
                "to": to,
                "steps": steps.collect::<Vec<_>>(),
                "keeps_older_programs": keeps_older_programs,
                "table_bytes": table_bytes,
            })
        });
        json!({
            "file": file.display().to_string(),
            "opens": true,
            "format": FORMAT_VERSION,
            "events": plan.events,
            "unapplied_events": plan.unapplied_events,
            "migrations": migrations.collect::<Vec<_>>(),
            "unknown_modules": plan.unknown_modules,
            "current": plan.is_empty(),
            "before": layout_json(&plan.now),
            "after": null,
            "backup": null,
            "backup_bytes": self.backup_bytes(),
            "migration_bytes": plan.migration_bytes,
            "conversion_bytes": plan.conversion_bytes,
            "needed_bytes": self.needed_bytes(),
            "available_bytes": plan.available_bytes,
            "expected_seconds": self.expected_time().as_secs(),
            "downgrade": plan.keeps_older_programs(),
            "in_use": self.in_use().is_some(),
            "writable": plan.is_writable,
        })
    }
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

fn time_text(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
