//! Verifies an untrusted file: its schema, SQLite's integrity, the hash chain, and references from rows to
//! missing events.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use abide_log::{Chain, ChainBreak, TableDigest};
use abide_schema::event::{Event, Hash};
use abide_schema::{Code, Module, Refusal, Seq, Table as _, TableSpec, Value, integers};
use rusqlite::types::ValueRef;

use crate::cell;
use crate::error::{OpenError, StoreError};
use crate::layout::Layout;
use crate::migrate::{self, VersionStart};
use crate::read_only::{ReadOnlyFile, has_log, open_read_only};
use crate::stored_schema::StoredSchema;
use crate::system::{self, ChangeLogRow, EventRow, MetaRow, RequestIdRow, decode_event};
use crate::writer;

/// The content of a verified file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The number of events, which is also the last seq.
    pub events: Seq,
    /// The hash of the last event. Keep it to detect later changes of anything up to it.
    pub hash: Hash,
    /// The rows of each table of the modules, and of the request ids. Two copies of a file with the same last event have the
    /// same.
    pub tables: Vec<VerifiedTable>,
    /// Tables that no module declares, and their indexes, such as `table notes`: nothing reads them, and they are not
    /// verified.
    pub undeclared: Vec<String>,
}

/// The rows of a table in a verified file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedTable {
    /// The table.
    pub name: &'static str,
    /// The number of its rows.
    pub rows: u64,
    /// Their digest, see [`TableDigest`].
    pub hash: Hash,
}

/// Why verification failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The file cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The hash chain is broken.
    #[error(transparent)]
    Chain(#[from] ChainBreak),
    /// An event is not in a format that Abide writes.
    #[error("event {seq}: the row cannot be read")]
    Unreadable {
        /// The event.
        seq: Seq,
        /// SQLite's error, if SQLite cannot read the row.
        #[source]
        why: Option<StoreError>,
    },
    /// A row was last written by an event that is not in the log: the end of the log is missing.
    #[error("event {seq}: missing, but a row of {table} refers to it")]
    LostTail {
        /// The event that the row names.
        seq: Seq,
        /// The row's table.
        table: String,
    },
    /// The log is sound, but SQLite reports damage elsewhere in the file.
    #[error("the file is damaged: {0}")]
    Damaged(String),
}

impl VerifyError {
    /// The refusal for a user of the command line.
    #[must_use]
    pub fn to_refusal(&self) -> Refusal {
        match self {
            VerifyError::Open(error) => error.to_refusal(),
            VerifyError::Unreadable { why: Some(why), .. } => {
                Refusal::new(Code::Conflict, format!("{self}: {why}"))
            }
            _ => Refusal::new(Code::Conflict, self.to_string())
                .hint("the file was changed outside of Abide; restore a backup that verifies"),
        }
    }
}

/// Verifies the whole log of a file with the tables of `modules`, and checks the rest of it.
///
/// # Errors
/// [`VerifyError`], with the seq of the first invalid event.
pub fn verify_file(
    path: &Path,
    modules: Vec<Module>,
    progress: &mut dyn FnMut(Seq),
) -> Result<Verified, VerifyError> {
    let log = LogFile::open(path, &Layout { modules })?;
    let verified = verify_log(&log, progress);
    log.check_unchanged()?;
    verified
}

fn verify_log(log: &LogFile, progress: &mut dyn FnMut(Seq)) -> Result<Verified, VerifyError> {
    let chain = log.walk::<VerifyError>(&mut |event| {
        progress(event.seq);
        Ok(())
    })?;
    check_tail(log, &chain)?;
    check_soundness(log)?;
    for table in log.declared.values() {
        check_indexes(log, table)?;
        check_rows(log, table)?;
    }
    let tables = log.declared.values().filter(|table| has_same_rows_everywhere(table));
    let tables = tables.map(|table| digest_table(log, table)).collect::<Result<_, _>>()?;
    let undeclared = log.undeclared.clone();
    Ok(Verified { events: chain.seq, hash: chain.hash, tables, undeclared })
}

/// Verifies the log of a copy and SQLite's structures. The rows of the modules are not read: their tables can be of older
/// versions. Returns the id of the log, and its last event.
pub(crate) fn verify_copy(path: &Path, layout: &Layout) -> Result<(String, Seq), VerifyError> {
    let log = LogFile::open(path, layout)?;
    let chain = log.walk::<VerifyError>(&mut |_| Ok(()))?;
    check_tail(&log, &chain)?;
    check_soundness(&log)?;
    Ok((log.log_id, chain.seq))
}

/// Returns `true` if the log alone determines the rows of a table. The chain covers the log itself, undo images depend on how
/// calls were grouped into commits, and each file has metadata of its own.
fn has_same_rows_everywhere(table: &TableSpec) -> bool {
    ![EventRow::SPEC.name, ChangeLogRow::SPEC.name, MetaRow::SPEC.name].contains(&table.name)
}

fn digest_table(log: &LogFile, table: &'static TableSpec) -> Result<VerifiedTable, VerifyError> {
    let mut digest = TableDigest::new(table);
    log.rows(table, &mut |row| digest.add(row))?;
    let (rows, hash) = digest.finish();
    Ok(VerifiedTable { name: table.name, rows, hash })
}

/// A file opened to read its log in one state, even while a server writes.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    connection: ReadOnlyFile,
    log_id: String,
    /// The declared tables by name.
    declared: BTreeMap<&'static str, &'static TableSpec>,
    /// The objects of its schema that no module declares.
    undeclared: Vec<String>,
}

/// The columns of a table as the file has them. They can be of an older version of its module.
#[derive(Debug)]
struct StoredColumns {
    /// None if the file does not have the table.
    names: Vec<String>,
    /// The columns of the primary key, in its order.
    key: Vec<String>,
}

impl StoredColumns {
    /// `true` if they are the declared ones, or the first of them with the same primary key.
    fn are_declared(&self, table: &TableSpec) -> bool {
        let declared = table.columns.iter().map(|column| column.name);
        let key = table.key.iter().map(|at| table.columns[*at].name);
        self.names.len() <= table.columns.len()
            && self.names.iter().zip(declared).all(|(stored, declared)| stored == declared)
            && self.key.iter().eq(key)
    }

    /// Returns the columns that order the rows, as SQL.
    fn order(&self) -> String {
        if self.key.is_empty() {
            return "rowid".to_owned();
        }
        let quoted = self.key.iter().map(|name| format!("\"{}\"", name.replace('"', "\"\"")));
        quoted.collect::<Vec<_>>().join(", ")
    }
}

impl LogFile {
    /// Opens a file without writing to it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path, layout: &Layout) -> Result<LogFile, OpenError> {
        let connection = open_read_only(path, layout)?;
        if !has_log(&connection, path)? {
            return Err(OpenError::Incomplete(path.to_owned()));
        }
        let log_id = migrate::meta(&connection, "log_id")
            .map_err(|why| OpenError::Store { path: path.to_owned(), why: why.into() })?;
        let log_id = log_id.ok_or_else(|| OpenError::NotOurs(path.to_owned()))?;
        let schema = StoredSchema::read(&connection)
            .map_err(|why| OpenError::Store { path: path.to_owned(), why: why.into() })?;
        let undeclared = schema.undeclared(layout);
        let declared = system::tables().into_iter().chain(layout.tables());
        let declared = declared.map(|table| (table.name, table)).collect();
        Ok(LogFile { path: path.to_owned(), connection, log_id, declared, undeclared })
    }

    /// Returns an error if the file was read without locks, because it or its folder is read-only, and another process
    /// has written it: what was read can be wrong.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn check_unchanged(&self) -> Result<(), OpenError> {
        self.connection.check_unchanged()
    }

    /// The log's own id.
    #[must_use]
    pub fn log_id(&self) -> &str {
        &self.log_id
    }

    /// Returns after which events the file reached the versions of these modules.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn version_starts(&self, modules: &[Module]) -> Result<Vec<VersionStart>, VerifyError> {
        migrate::version_starts(&self.connection, modules)
            .map_err(|why| self.unreadable(MetaRow::SPEC, why.into()))
    }

    /// Returns the error of a table that cannot be read: the file is damaged, except if another attempt can succeed.
    fn unreadable(&self, table: &TableSpec, why: StoreError) -> VerifyError {
        let table = table.name;
        match why {
            StoreError::Busy
            | StoreError::Full
            | StoreError::Io(_)
            | StoreError::Unavailable(_) => {
                VerifyError::Open(OpenError::Store { path: self.path.clone(), why })
            }
            // Its own text is that the file is damaged.
            StoreError::Broken(why) => VerifyError::Damaged(format!("table {table}: {why}")),
            why => VerifyError::Damaged(format!("table {table}: {why}")),
        }
    }

    /// The last event's seq as the file has it; no event is checked.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn end(&self) -> Result<Seq, VerifyError> {
        migrate::head(&self.connection).map_err(|why| self.unreadable(EventRow::SPEC, why.into()))
    }

    /// Shows every event, each checked before it is shown. Returns where the chain ends.
    ///
    /// # Errors
    /// [`VerifyError`] at the first invalid event, or an error of `each`.
    pub fn walk<E: From<VerifyError>>(
        &self,
        each: &mut dyn FnMut(&Event) -> Result<(), E>,
    ) -> Result<Chain, E> {
        let mut chain = Chain::start(&self.log_id);
        let unreadable = |seq: Seq| {
            move |why: rusqlite::Error| VerifyError::Unreadable { seq, why: Some(why.into()) }
        };
        let mut statement = self
            .connection
            .prepare("SELECT * FROM events NOT INDEXED ORDER BY seq")
            .map_err(unreadable(Seq(1)))?;
        let columns = statement.column_count();
        let mut rows = statement.raw_query();
        loop {
            let seq = chain.seq.next();
            let Some(row) = rows.next().map_err(unreadable(seq))? else {
                return Ok(chain);
            };
            let cells = cell::read_row(row, columns).map_err(unreadable(seq))?;
            // Text that is not UTF-8 reads as a blob, which would hide that a hash became a text.
            let hashes_are_blobs = ![8_usize, 9, 11, 12]
                .iter()
                .any(|at| matches!(row.get_ref(*at), Ok(ValueRef::Text(_))));
            let event = decode_event(&cells).filter(|_| hashes_are_blobs);
            let event = event.ok_or(VerifyError::Unreadable { seq, why: None })?;
            chain.check(&event).map_err(VerifyError::from)?;
            each(&event)?;
        }
    }

    /// Whether the file has a table. One from before the table was declared has not.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn has(&self, table: &TableSpec) -> Result<bool, VerifyError> {
        Ok(!self.stored_columns(table)?.names.is_empty())
    }

    /// Whether the rows of a table can be compared with those of this version of its module. The table can lack the
    /// last columns, or be missing. `false` if a step that the file lacks changes its primary key or its other columns.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn is_comparable(&self, table: &TableSpec) -> Result<bool, VerifyError> {
        let stored = self.stored_columns(table)?;
        Ok(stored.names.is_empty() || stored.are_declared(table))
    }

    /// All rows of a table, by the primary key that it has in the file. A file without the table has none.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn rows(
        &self,
        table: &TableSpec,
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<(), VerifyError> {
        let stored = self.stored_columns(table)?;
        if stored.names.is_empty() {
            return Ok(());
        }
        let sql = format!("SELECT * FROM {} ORDER BY {}", table.name, stored.order());
        self.run(table, &sql, &[], each)
    }

    fn stored_columns(&self, table: &TableSpec) -> Result<StoredColumns, VerifyError> {
        let sql = "SELECT name, pk FROM pragma_table_info(?1, 'main') ORDER BY cid";
        let mut names = Vec::new();
        let mut key = Vec::new();
        self.run(table, sql, &[table.name.into()], &mut |row| {
            let [Value::Text(name), Value::Integer(place)] = row else { return };
            names.push(name.clone());
            if *place > 0 {
                key.push((*place, name.clone()));
            }
        })?;
        key.sort_unstable();
        Ok(StoredColumns { names, key: key.into_iter().map(|(_, name)| name).collect() })
    }

    /// Runs a statement that reads a table.
    fn run(
        &self,
        table: &TableSpec,
        sql: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<(), VerifyError> {
        let done = writer::run(&self.connection, sql, params, each);
        done.map(drop).map_err(|why| self.unreadable(table, why))
    }

    /// Whether a table of the file has a row with this primary key.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn has_row(&self, table: &TableSpec, key: &[Value]) -> Result<bool, VerifyError> {
        let columns = table.key.iter().map(|at| table.columns[*at].name).enumerate();
        let terms: Vec<String> =
            columns.map(|(nth, column)| format!("{column} = ?{}", nth + 1)).collect();
        let sql = format!("SELECT 1 FROM {} WHERE {}", table.name, terms.join(" AND "));
        let mut is_there = false;
        self.run(table, &sql, key, &mut |_| is_there = true)?;
        Ok(is_there)
    }
}

/// The chain does not show that its end was cut off, but the rows do. A column `seq` of a table that no module declares can
/// be anything.
fn check_tail(log: &LogFile, chain: &Chain) -> Result<(), VerifyError> {
    let connection = &log.connection;
    let mut last = (chain.seq, None);
    for table in log.declared.keys().filter(|name| **name != EventRow::SPEC.name) {
        // A file of older modules lacks tables and columns.
        let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1, 'main') WHERE name = 'seq')";
        let has_seq: bool =
            connection.query_row(sql, [table], |row| row.get(0)).map_err(damaged)?;
        if !has_seq {
            continue;
        }
        let sql = format!("SELECT max(seq) FROM \"{table}\"");
        let named: Option<i64> =
            connection.query_row(&sql, [], |row| row.get(0)).map_err(damaged)?;
        if let Some(named) = named.map(Seq).filter(|named| *named > last.0) {
            last = (named, Some(*table));
        }
    }
    match last {
        (seq, Some(table)) => Err(VerifyError::LostTail { seq, table: table.to_owned() }),
        (_, None) => Ok(()),
    }
}

/// Runs SQLite's integrity check, of the declared tables only if there are others: it evaluates their expressions, and those
/// of other tables are unknown.
fn check_soundness(log: &LogFile) -> Result<(), VerifyError> {
    let stored = "SELECT name FROM sqlite_schema WHERE type = 'table'";
    let mut statement = log.connection.prepare(stored).map_err(damaged)?;
    let names = statement.query_map([], |row| row.get::<_, String>(0)).map_err(damaged)?;
    let names = names.collect::<rusqlite::Result<Vec<_>>>().map_err(damaged)?;
    let (known, others): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| log.declared.contains_key(name.as_str()));
    let checks = if others.iter().all(|name| name.starts_with("sqlite_")) {
        vec!["PRAGMA integrity_check(1)".to_owned()]
    } else {
        known.iter().map(|name| format!("PRAGMA integrity_check({name})")).collect()
    };
    for check in checks {
        let found: String =
            log.connection.query_row(&check, [], |row| row.get(0)).map_err(damaged)?;
        if found != "ok" {
            return Err(VerifyError::Damaged(found));
        }
    }
    Ok(())
}

/// Reads every index of a table to its end. SQLite's integrity check takes an empty page for sound whatever its type is, and
/// the first write to the table then fails.
fn check_indexes(log: &LogFile, table: &'static TableSpec) -> Result<(), VerifyError> {
    if !log.is_comparable(table)? {
        // The conditions of its indexes can be others.
        return Ok(());
    }
    let listed = "SELECT name FROM pragma_index_list(?1) WHERE origin <> 'pk' OR NOT ?2";
    let params = [table.name.into(), Value::Integer(table.without_rowid.into())];
    let mut names = Vec::new();
    log.run(table, listed, &params, &mut |row| {
        if let [Value::Text(name)] = row {
            names.push(name.clone());
        }
    })?;
    for name in names {
        let declared = table.indexes.iter().find(|index| table.index_name(index) == name);
        let condition = declared.and_then(|index| index.condition).unwrap_or("1");
        let table = table.name;
        let sql = format!("SELECT count(*) FROM {table} INDEXED BY \"{name}\" WHERE {condition}");
        writer::run(&log.connection, &sql, &[], &mut |_| {})
            .map_err(|why| damaged(format!("the index {name}: {why}")))?;
    }
    Ok(())
}

/// Checks that the rows to which those of a table refer exist. SQLite's integrity check does not.
fn check_references(log: &LogFile, table: &'static TableSpec) -> Result<(), VerifyError> {
    let sql = "SELECT parent FROM pragma_foreign_key_check(?1) LIMIT 1";
    let mut missing = None;
    log.run(table, sql, &[table.name.into()], &mut |row| {
        if let [Value::Text(parent)] = row {
            missing = Some(parent.clone());
        }
    })?;
    let Some(parent) = missing else { return Ok(()) };
    let what = format!("a row of {} refers to a row of {parent} that is missing", table.name);
    Err(VerifyError::Damaged(what))
}

/// Checks the rows of a table: the conditions of its CHECK constraints, which SQLite's integrity check omits on a connection
/// that only reads, and its columns of JSON.
fn check_rows(log: &LogFile, table: &'static TableSpec) -> Result<(), VerifyError> {
    check_references(log, table)?;
    let stored = log.stored_columns(table)?;
    if !stored.are_declared(table) {
        // The declared conditions are those after a step that the file lacks.
        return Ok(());
    }
    // A file of older modules lacks tables and columns.
    for check in table.checks(&stored.names) {
        let sql = format!("SELECT 1 FROM {} WHERE NOT ({check}) LIMIT 1", table.name);
        let mut fails = false;
        log.run(table, &sql, &[], &mut |_| fails = true)?;
        if fails {
            return Err(VerifyError::Damaged(format!("CHECK constraint failed in {}", table.name)));
        }
    }
    let has_json = table.columns.iter().any(|column| column.json);
    if !has_json {
        return Ok(());
    }
    let mut found = None;
    log.rows(table, &mut |row| {
        found = found.take().or_else(|| unreadable_column(table, row).map(str::to_owned));
    })?;
    match found {
        Some(column) => Err(VerifyError::Damaged(format!(
            "a row of {} has an unreadable value in {column}",
            table.name
        ))),
        None => Ok(()),
    }
}

fn damaged(error: impl std::fmt::Display) -> VerifyError {
    VerifyError::Damaged(error.to_string())
}

/// Returns the first column of JSON whose value cannot be read.
fn unreadable_column(table: &TableSpec, row: &[Value]) -> Option<&'static str> {
    let wrong = table.columns.iter().zip(row).find(|(column, cell)| match cell {
        Value::Text(text) => column.json && integers::check_parses(text).is_err(),
        _ => false,
    });
    if let Some((column, _)) = wrong {
        return Some(column.name);
    }
    let is_request = table.name == RequestIdRow::SPEC.name;
    (is_request && !RequestIdRow::from_row(row).is_ok_and(|row| row.event_seqs().is_some()))
        .then_some("seqs")
}
