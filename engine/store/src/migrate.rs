//! Creation and migration of tables, and the start of a timeline, in the first transaction of an
//! opening. Each module has a version and the steps between versions; the newest declaration is
//! complete. A test of every module proves that the steps lead to the declaration.

use std::path::Path;

use abide_schema::{Module, Seq, TableSpec};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::error::OpenError;
use crate::layout::{APPLICATION_ID, FORMAT_VERSION, Layout, create_view};
use crate::stored_schema::StoredSchema;
use crate::system;
use crate::timelines::Timelines;

/// Migrates the tables of a file to their declarations and starts a timeline, in one transaction.
pub(crate) fn migrate(
    connection: &mut Connection,
    path: &Path,
    layout: &Layout,
    log_id: Option<&str>,
    timeline: Option<String>,
) -> Result<Timelines, OpenError> {
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
    for module in &layout.modules {
        migrate_module(&transaction, path, module)?;
    }
    StoredSchema::read(&transaction).map_err(to_open_error)?.check(path, layout)?;
    let timelines = start_timeline(&transaction, timeline).map_err(to_open_error)?;
    transaction.commit().map_err(to_open_error)?;
    Ok(timelines)
}

fn start_timeline(connection: &Connection, id: Option<String>) -> rusqlite::Result<Timelines> {
    let stored = meta(connection, "timelines")?;
    let timelines = Timelines::continued(stored.as_deref(), head(connection)?, id);
    set_meta(connection, "timelines", &timelines.to_text())?;
    Ok(timelines)
}

fn migrate_module(connection: &Connection, path: &Path, module: &Module) -> Result<(), OpenError> {
    let to_open_error =
        |why: rusqlite::Error| OpenError::Store { path: path.to_owned(), why: why.into() };
    let found = version_of(connection, module).map_err(to_open_error)?;
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
                connection.execute_batch(step.sql).map_err(to_open_error)?;
                drop_history(connection).map_err(to_open_error)?;
            }
        }
    }
    for version in later_versions(found, module) {
        let head = head(connection).map_err(to_open_error)?;
        note_last_before(connection, module.name, version, head).map_err(to_open_error)?;
    }
    let fact = format!("module.{}", module.name);
    set_meta(connection, &fact, &module.version.to_string()).map_err(to_open_error)
}

/// The version of a module's tables in a file; `None` if it has none.
pub(crate) fn version_of(
    connection: &Connection,
    module: &Module,
) -> rusqlite::Result<Option<u32>> {
    let found = number(connection, &format!("module.{}", module.name))?;
    Ok(found.and_then(|found| u32::try_from(found).ok()))
}

/// Ends the history that can be queried: undo images have the columns before a step, and a step changes rows without
/// undo images. The state at the head is the first one that can be read.
fn drop_history(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM change_log", [])?;
    let head = head(connection)?.to_string();
    set_meta(connection, "last_step", &head)?;
    set_meta(connection, "change_log_floor", &head)
}

/// The versions of a module that a file does not have yet.
fn later_versions(found: Option<u32>, module: &Module) -> std::ops::RangeInclusive<u32> {
    // Before the first version there were no rules.
    found.unwrap_or(0).max(1) + 1..=module.version
}

pub(crate) fn head(connection: &Connection) -> rusqlite::Result<Seq> {
    connection.query_row("SELECT coalesce(max(seq), 0) FROM events", [], |row| row.get(0)).map(Seq)
}

/// Stores the last event before a file reached a version of a module, if there is one. The events up to it ran by
/// the rules before that version, in a replay too.
pub(crate) fn note_last_before(
    connection: &Connection,
    module: &str,
    version: u32,
    last: Seq,
) -> rusqlite::Result<()> {
    if last == Seq::ZERO {
        return Ok(());
    }
    set_meta(connection, &format!("module.{module}.{version}"), &last.0.to_string())
}

/// The last event before a file reached each version of these modules. For versions that it has not reached, the
/// last event of the file.
pub(crate) fn last_before(
    connection: &Connection,
    modules: &[Module],
) -> rusqlite::Result<Vec<LastBefore>> {
    let mut all = Vec::new();
    for module in modules {
        let found = version_of(connection, module)?;
        for version in 2..=module.version {
            let last = if later_versions(found, module).contains(&version) {
                head(connection)?
            } else {
                let noted = number(connection, &format!("module.{}.{version}", module.name))?;
                Seq(noted.unwrap_or(0))
            };
            all.push(LastBefore { module: module.name, version, last });
        }
    }
    all.retain(|it| it.last > Seq::ZERO);
    Ok(all)
}

/// The last event before a file reached a version of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastBefore {
    /// The module's name.
    pub module: &'static str,
    /// The version.
    pub version: u32,
    /// The event.
    pub last: Seq,
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
