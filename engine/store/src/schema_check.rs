//! Compares the complete schema of a file with the declarations of its modules, before SQLite evaluates any expression of
//! the file.
//!
//! A file may come from anywhere. `PRAGMA integrity_check` evaluates the expressions of indexes, their conditions, CHECK
//! constraints and generated columns for each row, and a trigger runs with the first write. One index over
//! `hex(zeroblob(400000000))` costs seconds and a gigabyte for each row. So the declared tables have no other index or
//! trigger than the declared ones, and a file has no other trigger or view, whoever reads it: the server, `verify`,
//! `replay` and `backup` refuse the same files.
//!
//! Tables of modules that were removed stay in a file. Nothing reads or writes them: no expression of theirs is evaluated,
//! as long as they have no foreign key with an action.

use std::path::Path;

use abide_schema::Module;
use rusqlite::Connection;

use crate::connect::{STATEMENT_BYTES, broken, forbid_quoted_texts, limit_untrusted};
use crate::error::{OpenError, StoreError};
use crate::interrupt::set_value_bytes;
use crate::layout::{FORMAT_VERSION, Layout};
use crate::stored_schema::StoredSchema;
use crate::{memory, migrate};

/// Steps of SQLite's virtual machine to migrate tables without rows. The modules of Abide need a few thousand.
const MIGRATION_STEPS: i32 = 50_000_000;

/// Refuses a file whose schema is not the declared one, or, in a file of older modules, does not become it by the
/// steps of the modules. No row is read except the versions of the modules.
///
/// # Errors
/// [`OpenError`].
pub(crate) fn check_schema(
    connection: &Connection,
    path: &Path,
    layout: &Layout,
) -> Result<(), OpenError> {
    let to_open_error = |why: rusqlite::Error| broken(path, why.into());
    let format: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(to_open_error)?;
    if format == 0 {
        // A new file; one of another program is refused before this.
        return Ok(());
    }
    let stored = StoredSchema::read(connection).map_err(to_open_error)?;
    let mut is_current = true;
    for module in &layout.modules {
        is_current &=
            migrate::version_of(connection, module).map_err(to_open_error)? == Some(module.version);
    }
    if is_current {
        return stored.check(path, layout);
    }
    let copy = copy_without_rows(&stored, connection, layout);
    let mut copy = copy.map_err(|why| broken(path, why))?;
    migrate::migrate(&mut copy, path, layout, None, None).map(drop)
}

/// Returns a database in memory with a schema and the versions of a file, and no other row.
pub(crate) fn copy_without_rows(
    stored: &StoredSchema,
    file: &Connection,
    layout: &Layout,
) -> Result<Connection, StoreError> {
    memory::start_counting();
    let mut copy = Connection::open_in_memory()?;
    forbid_quoted_texts(&copy)?;
    limit_untrusted(&copy)?;
    set_value_bytes(&copy, STATEMENT_BYTES)?;
    // A statement such as CREATE TABLE … AS would run a query of the file's author.
    copy.progress_handler(MIGRATION_STEPS, Some(|| true))?;
    for statement in stored.statements() {
        copy.execute_batch(statement)?;
    }
    for Module { name, .. } in &layout.modules {
        let fact = format!("module.{name}");
        if let Some(version) = migrate::meta(file, &fact)? {
            migrate::set_meta(&copy, &fact, &version)?;
        }
    }
    copy.pragma_update(None, "user_version", FORMAT_VERSION)?;
    Ok(copy)
}
