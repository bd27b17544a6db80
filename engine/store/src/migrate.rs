//! Creation and migration of tables, and the start of a timeline, in the first transaction of an
//! opening. Each module has a version and the steps between versions; the newest declaration is
//! complete. A test of every module proves that the steps lead to the declaration.

use std::path::Path;

use abide_log::TableDigest;
use abide_schema::event::Hash;
use abide_schema::{Module, Seq, TableSpec};
use rusqlite::{Connection, OptionalExtension as _, params};
use sha2::{Digest as _, Sha256};

use crate::error::{OpenError, StoreError};
use crate::history::HistoryBeforeStep;
use crate::journal::record::{Migration, RecordContent};
use crate::layout::{APPLICATION_ID, FORMAT_VERSION, Layout, create_view};
use crate::stored_schema::StoredSchema;
use crate::system;
use crate::timelines::Timelines;
use crate::writer;

/// What the first transaction of an opening has done.
#[derive(Debug)]
pub(crate) struct MigratedFile {
    pub(crate) timelines: Timelines,
    /// The number of the opening.
    pub(crate) epoch: u64,
    /// The records of the migrations since the last event, also of earlier openings that wrote no event.
    pub(crate) migrations: Vec<Vec<u8>>,
}

/// Migrates the tables of a file to their declarations and starts a timeline, in one transaction.
pub(crate) fn migrate(
    connection: &mut Connection,
    path: &Path,
    layout: &Layout,
    log_id: Option<&str>,
    timeline: Option<String>,
) -> Result<MigratedFile, OpenError> {
    let to_open_error =
        |why: rusqlite::Error| OpenError::Store { path: path.to_owned(), why: why.into() };
    let found: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(to_open_error)?;
    let transaction = connection
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(to_open_error)?;
    if found == 0 {
        create_tables(&transaction, &system::tables()).map_err(to_open_error)?;
        let log_id = log_id.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
        set_meta(&transaction, "log_id", &log_id).map_err(to_open_error)?;
        set_meta(&transaction, "change_log_floor", "0").map_err(to_open_error)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(to_open_error)?;
        transaction.pragma_update(None, "user_version", FORMAT_VERSION).map_err(to_open_error)?;
    }
    let mut migrated = Vec::new();
    for module in &layout.modules {
        let from = migrate_module(&transaction, path, module)?;
        migrated.extend(from.map(|from| (module, from)));
    }
    StoredSchema::read(&transaction).map_err(to_open_error)?.check(path, layout)?;
    let mut records = Vec::new();
    for (module, from) in migrated {
        let rows = digest_rows(&transaction, module)
            .map_err(|why| OpenError::Store { path: path.to_owned(), why })?;
        let sql = digest_statements(module, from);
        let name = module.name.to_owned();
        let migration = Migration { module: name, from, to: module.version, sql, rows };
        records.push(RecordContent::Migration(migration).encode());
    }
    let migrations = keep_migrations(&transaction, records).map_err(to_open_error)?;
    let (timelines, epoch) = start_timeline(&transaction, timeline).map_err(to_open_error)?;
    transaction.commit().map_err(to_open_error)?;
    Ok(MigratedFile { timelines, epoch, migrations })
}

/// Returns the timelines with a new one, and the number of this opening. The id of a timeline follows from the log and the
/// number; two copies that are opened apart from each other have the same number, so it also has random bytes.
fn start_timeline(
    connection: &Connection,
    id: Option<String>,
) -> rusqlite::Result<(Timelines, u64)> {
    let epoch = epoch(connection)? + 1;
    let id = match id {
        Some(id) => id,
        None => {
            let log_id = meta(connection, "log_id")?.unwrap_or_default();
            timeline_id(&log_id, epoch, uuid::Uuid::new_v4().as_bytes())
        }
    };
    Ok((continue_on(connection, epoch, head(connection)?, &id)?, epoch))
}

/// The digits of a timeline's id. They distinguish histories, and are not a secret.
const TIMELINE_DIGITS: usize = 16;

fn timeline_id(log_id: &str, epoch: u64, random: &[u8; 16]) -> String {
    let mut digest = Sha256::new_with_prefix("abide.timeline.v1\n");
    add_text(&mut digest, log_id);
    digest.update(epoch.to_be_bytes());
    digest.update(random);
    hex::encode(&digest.finalize()[..TIMELINE_DIGITS / 2])
}

/// Stores the number of an opening, and the timeline that it started after an event.
pub(crate) fn continue_on(
    connection: &Connection,
    epoch: u64,
    after: Seq,
    id: &str,
) -> rusqlite::Result<Timelines> {
    let stored = meta(connection, "timelines")?;
    let timelines = Timelines::continued(stored.as_deref(), after, id.to_owned());
    set_meta(connection, "timelines", &timelines.to_text())?;
    set_meta(connection, "epoch", &epoch.to_string())?;
    Ok(timelines)
}

/// Returns the number of openings of the file for writing.
pub(crate) fn epoch(connection: &Connection) -> rusqlite::Result<u64> {
    Ok(number(connection, "epoch")?.unwrap_or(0).unsigned_abs())
}

/// Stores the records of migrations, and returns all since the last event. A process can end before its journal has
/// them, and the next one then writes them.
fn keep_migrations(connection: &Connection, new: Vec<Vec<u8>>) -> rusqlite::Result<Vec<Vec<u8>>> {
    let head = head(connection)?.to_string();
    let stored = meta(connection, "migrations")?.unwrap_or_default();
    let mut records: Vec<Vec<u8>> = match stored.split_once(':') {
        Some((after, records)) if after == head => {
            records.split_whitespace().filter_map(|record| hex::decode(record).ok()).collect()
        }
        _ => Vec::new(),
    };
    records.extend(new);
    let texts: Vec<String> = records.iter().map(hex::encode).collect();
    set_meta(connection, "migrations", &format!("{head}:{}", texts.join(" ")))?;
    Ok(records)
}

/// Migrates the tables of a module to its version, unless they have it. Returns the version before, which is 0 if the file
/// did not have the module.
pub(crate) fn migrate_module(
    connection: &Connection,
    path: &Path,
    module: &Module,
) -> Result<Option<u32>, OpenError> {
    let to_open_error =
        |why: rusqlite::Error| OpenError::Store { path: path.to_owned(), why: why.into() };
    let found = version_of(connection, module).map_err(to_open_error)?;
    if found == Some(module.version) {
        return Ok(None);
    }
    match found {
        None => {
            create_tables(connection, &module.tables).map_err(to_open_error)?;
            for (name, select) in &module.views {
                connection.execute_batch(&create_view(name, select)).map_err(to_open_error)?;
            }
        }
        Some(found) if found > module.version => {
            return Err(OpenError::Newer {
                path: path.to_owned(),
                what: format!("module {}", module.name),
                found: found.into(),
                known: module.version.into(),
            });
        }
        Some(found) => {
            for step in module.steps.iter().filter(|step| step.to > found) {
                run_step(connection, step.sql).map_err(to_open_error)?;
            }
        }
    }
    for version in later_versions(found, module) {
        let head = head(connection).map_err(to_open_error)?;
        set_version_start(connection, module.name, version, head).map_err(to_open_error)?;
    }
    let fact = format!("module.{}", module.name);
    set_meta(connection, &fact, &module.version.to_string()).map_err(to_open_error)?;
    Ok(Some(found.unwrap_or(0)))
}

/// Whether programs that open a file today refuse it once its tables have the versions of these modules. They accept the
/// tables of a module that they do not have, but neither a later version of a module, nor a trigger or a view of another.
pub(crate) fn ends_older_programs(
    connection: &Connection,
    modules: &[Module],
) -> rusqlite::Result<bool> {
    let format: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if format == 0 {
        return Ok(false);
    }
    for module in modules {
        let found = version_of(connection, module)?;
        if found != Some(module.version) && (found.is_some() || has_triggers_or_views(module)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a program without a module refuses a file with its tables.
pub(crate) fn has_triggers_or_views(module: &Module) -> bool {
    !module.views.is_empty() || module.tables.iter().any(|table| !table.triggers.is_empty())
}

/// Runs a step of a module. What a client has received before it can no longer be continued by changes of rows.
fn run_step(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    let history = HistoryBeforeStep::keep(connection, sql)?;
    connection.execute_batch(sql)?;
    history.convert(connection)?;
    set_meta(connection, "last_step", &head(connection)?.to_string())
}

/// Returns the digest of the statements that lead to a module's tables from a version of them, or from nothing.
pub(crate) fn digest_statements(module: &Module, from: u32) -> Hash {
    let mut digest = Sha256::new_with_prefix("abide.migration.v1\n");
    if from == 0 {
        module
            .tables
            .iter()
            .flat_map(|table| table.ddl())
            .for_each(|sql| add_text(&mut digest, &sql));
        for (name, select) in &module.views {
            add_text(&mut digest, &create_view(name, select));
        }
    } else {
        let steps = module.steps.iter().filter(|step| step.to > from);
        steps.for_each(|step| add_text(&mut digest, step.sql));
    }
    digest.finalize().into()
}

/// Adds the length of a text and its bytes.
fn add_text(digest: &mut Sha256, text: &str) {
    digest.update((text.len() as u64).to_be_bytes());
    digest.update(text);
}

/// Returns the digest of all rows of a module's tables: over the digests of the tables, in the order of the
/// declaration.
pub(crate) fn digest_rows(connection: &Connection, module: &Module) -> Result<Hash, StoreError> {
    let mut module_digest = Sha256::new();
    for table in &module.tables {
        let mut rows = TableDigest::new(table);
        writer::run(connection, &writer::select_in_order(table), &[], &mut |row| rows.add(row))?;
        let (_, table_digest) = rows.finish();
        module_digest.update(table_digest);
    }
    Ok(module_digest.finalize().into())
}

/// Returns the version of a module's tables in a file; `None` if it has none.
pub(crate) fn version_of(
    connection: &Connection,
    module: &Module,
) -> rusqlite::Result<Option<u32>> {
    module_version(connection, module.name)
}

/// Returns the version of a module's tables in a file; `None` if it has none.
pub(crate) fn module_version(
    connection: &Connection,
    module: &str,
) -> rusqlite::Result<Option<u32>> {
    let found = number(connection, &format!("module.{module}"))?;
    Ok(found.and_then(|found| u32::try_from(found).ok()))
}

/// Ends the history that can be queried. The state at the head is the first one that can be read.
pub(crate) fn drop_history(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM change_log", [])?;
    set_meta(connection, "change_log_floor", &head(connection)?.to_string())
}

/// Deletes the undo images up to an event, from which the others are then complete.
pub(crate) fn prune_change_log(connection: &Connection, up_to: Seq) -> rusqlite::Result<()> {
    let sql = "DELETE FROM change_log WHERE seq <= ?1";
    connection.prepare_cached(sql)?.execute([up_to.0])?;
    set_meta(connection, "change_log_floor", &up_to.0.to_string())
}

/// The first event from which the undo images are complete.
pub(crate) fn change_log_floor(connection: &Connection) -> rusqlite::Result<Seq> {
    Ok(Seq(number(connection, "change_log_floor")?.unwrap_or(0)))
}

/// The versions of a module that a file does not have yet.
fn later_versions(found: Option<u32>, module: &Module) -> std::ops::RangeInclusive<u32> {
    // Before the first version there were no rules.
    found.unwrap_or(0).max(1) + 1..=module.version
}

pub(crate) fn head(connection: &Connection) -> rusqlite::Result<Seq> {
    connection.query_row("SELECT coalesce(max(seq), 0) FROM events", [], |row| row.get(0)).map(Seq)
}

/// Stores after which event a file reached a version of a module; nothing if it had no event. The events up to that one
/// ran by the rules before that version, in a replay too.
pub(crate) fn set_version_start(
    connection: &Connection,
    module: &str,
    version: u32,
    after: Seq,
) -> rusqlite::Result<()> {
    if after == Seq::ZERO {
        return Ok(());
    }
    set_meta(connection, &format!("module.{module}.{version}"), &after.0.to_string())
}

/// Returns after which event a file reached each version of these modules; versions that it had before its first event
/// are omitted. A version that the file has not reached starts after its last event.
pub(crate) fn version_starts(
    connection: &Connection,
    modules: &[Module],
) -> rusqlite::Result<Vec<VersionStart>> {
    let mut all = Vec::new();
    for module in modules {
        let found = version_of(connection, module)?;
        for version in 2..=module.version {
            let after = if later_versions(found, module).contains(&version) {
                head(connection)?
            } else {
                let stored = number(connection, &format!("module.{}.{version}", module.name))?;
                Seq(stored.unwrap_or(0))
            };
            if after > Seq::ZERO {
                all.push(VersionStart { module: module.name, version, after });
            }
        }
    }
    Ok(all)
}

/// The point in a log from which on a file is at a version of a module. A rule that changes with the version applies to
/// later events only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionStart {
    /// The module's name.
    pub module: &'static str,
    /// The version.
    pub version: u32,
    /// The last event before the file reached the version.
    pub after: Seq,
}

/// Makes tables with their indexes and triggers.
pub(crate) fn create_tables(
    connection: &Connection,
    tables: &[&'static TableSpec],
) -> rusqlite::Result<()> {
    tables
        .iter()
        .flat_map(|table| table.ddl())
        .try_for_each(|statement| connection.execute_batch(&statement))
}

fn number(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    Ok(meta(connection, name)?.and_then(|text| text.parse().ok()))
}

/// A fact about the file.
pub(crate) fn meta(connection: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached("SELECT value FROM meta WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()
}

/// Sets a metadata value of the file.
pub(crate) fn set_meta(connection: &Connection, name: &str, value: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES (?1, ?2)")?
        .execute(params![name, value])
        .map(drop)
}
