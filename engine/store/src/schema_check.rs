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

use std::collections::BTreeSet;
use std::path::Path;

use abide_schema::Module;
use rusqlite::Connection;
use rusqlite::limits::Limit;

use crate::connect::{broken, forbid_quoted_texts};
use crate::error::{OpenError, StoreError};
use crate::interrupt::set_value_bytes;
use crate::layout::{FORMAT_VERSION, Layout};
use crate::{memory, migrate, system};

/// Bytes of one statement of a schema, and of one value while the schema of an older file is migrated.
const STATEMENT_BYTES: usize = 1 << 20;

/// Steps of SQLite's virtual machine to migrate tables without rows. The modules of Abide need a few thousand.
const MIGRATION_STEPS: i32 = 50_000_000;

/// Tables that SQLite itself makes, for example on ANALYZE.
const OF_SQLITE: [&str; 3] = [
    "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
    "CREATE TABLE sqlite_sequence(name,seq)",
];

/// Limits what the statements of a file's schema can cost when SQLite parses them, and the bytes of a value that is read.
pub(crate) fn limit_untrusted(connection: &Connection) -> rusqlite::Result<()> {
    set_value_bytes(connection, abide_schema::limits::QUERY_VALUE_BYTES)?;
    let bytes = i32::try_from(STATEMENT_BYTES).expect("it is small");
    connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, bytes).map(drop)
}

/// Refuses a file whose schema is not the declared one, or, in a file of an older version, does not become it by the
/// steps of the modules. No row is read except the versions of the modules.
///
/// # Errors
/// [`OpenError`].
pub(crate) fn check_schema(
    connection: &Connection,
    path: &Path,
    layout: &Layout,
) -> Result<(), OpenError> {
    let store = |why: rusqlite::Error| broken(path, why.into());
    let format: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(store)?;
    if format == 0 {
        // A new file; one of another program is refused before this.
        return Ok(());
    }
    let stored = StoredSchema::read(connection).map_err(store)?;
    let mut is_current = format == FORMAT_VERSION;
    for module in &layout.modules {
        is_current &=
            migrate::version_of(connection, module).map_err(store)? == Some(module.version);
    }
    if is_current {
        return stored.check(path, layout);
    }
    let copy = stored.copy_without_rows(connection, format, layout);
    let mut copy = copy.map_err(|why| broken(path, why))?;
    migrate::migrate(&mut copy, path, layout, None, None).map(drop)
}

/// The statements of a schema.
pub(crate) struct StoredSchema(Vec<StoredObject>);

struct StoredObject {
    /// `table`, `index`, `trigger` or `view`.
    kind: String,
    name: String,
    /// The table of an index or a trigger.
    table: String,
    sql: String,
}

impl StoredSchema {
    /// Reads the schema in an order in which its statements can run.
    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<StoredSchema> {
        let mut statement = connection.prepare(
            "SELECT type, name, tbl_name, sql FROM main.sqlite_schema WHERE sql IS NOT NULL
             ORDER BY type <> 'table', type <> 'view', rowid",
        )?;
        let objects = statement.query_map([], |row| {
            Ok(StoredObject {
                kind: row.get(0)?,
                name: row.get(1)?,
                table: row.get(2)?,
                sql: row.get(3)?,
            })
        })?;
        let mut objects = objects.collect::<rusqlite::Result<Vec<_>>>()?;
        objects.retain(|object| !OF_SQLITE.contains(&object.sql.as_str()));
        Ok(StoredSchema(objects))
    }

    /// Refuses a declared statement that is missing, and any other statement that can be evaluated.
    pub(crate) fn check(&self, path: &Path, layout: &Layout) -> Result<(), OpenError> {
        let differs = |table: &str| {
            Err(OpenError::TableDiffers { path: path.to_owned(), table: table.to_owned() })
        };
        let mut stored: BTreeSet<String> =
            self.0.iter().map(|object| without_layout(&object.sql)).collect();
        let mut declared_names = BTreeSet::new();
        for table in system::tables().into_iter().chain(layout.tables()) {
            declared_names.insert(table.name);
            for statement in table.ddl() {
                if !stored.remove(&without_layout(&statement)) {
                    return differs(table.name);
                }
            }
        }
        for (name, select) in layout.views() {
            declared_names.insert(name);
            if !stored.remove(&without_layout(&migrate::create_view(name, select))) {
                return differs(name);
            }
        }
        for object in &self.0 {
            if !stored.contains(&without_layout(&object.sql)) {
                continue;
            }
            if declared_names.contains(object.table.as_str()) {
                return differs(&object.table);
            }
            if object.kind == "trigger" || object.kind == "view" {
                return Err(OpenError::Undeclared {
                    path: path.to_owned(),
                    kind: object.kind.clone(),
                    name: object.name.clone(),
                });
            }
        }
        Ok(())
    }

    /// Returns a database in memory with this schema and the versions of a file, and no other row.
    fn copy_without_rows(
        &self,
        file: &Connection,
        format: i64,
        layout: &Layout,
    ) -> Result<Connection, StoreError> {
        memory::count();
        let mut copy = Connection::open_in_memory()?;
        forbid_quoted_texts(&copy)?;
        limit_untrusted(&copy)?;
        set_value_bytes(&copy, STATEMENT_BYTES)?;
        // A statement such as CREATE TABLE … AS would run a query of the file's author.
        copy.progress_handler(MIGRATION_STEPS, Some(|| true))?;
        for object in &self.0 {
            copy.execute_batch(&object.sql)?;
        }
        for Module { name, .. } in &layout.modules {
            let fact = format!("module.{name}");
            if let Some(version) = migrate::meta(file, &fact)? {
                migrate::set_meta(&copy, &fact, &version)?;
            }
        }
        copy.pragma_update(None, "user_version", format)?;
        Ok(copy)
    }
}

/// A statement without the white space that has no meaning: SQLite stores the text as given, and `ALTER TABLE` breaks
/// lines elsewhere.
fn without_layout(sql: &str) -> String {
    if sql.contains("--") || sql.contains("/*") {
        // The end of a line is the end of a comment.
        return sql.to_owned();
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$' || !c.is_ascii();
    let mut text = String::with_capacity(sql.len());
    let mut quote = None;
    let mut was_space = false;
    for c in sql.chars() {
        if quote.is_none() && c.is_ascii_whitespace() {
            was_space = true;
            continue;
        }
        if std::mem::take(&mut was_space) && is_word(c) && text.ends_with(is_word) {
            text.push(' ');
        }
        text.push(c);
        quote = match (quote, c) {
            (Some(end), c) if c == end => None,
            (None, '\'' | '"' | '`') => Some(c),
            (None, '[') => Some(']'),
            (quote, _) => quote,
        };
    }
    text
}
