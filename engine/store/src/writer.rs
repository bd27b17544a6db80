//! The connection that writes rows, events and undo images, inside transactions of its caller.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use abide_schema::event::{Event, Hash};
use abide_schema::seeded::{SeededBug, makes};
use abide_schema::{Code, Micros, Module, Row, Seq, Table as _, TableSpec, Value, limits};
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, StatementStatus};

use crate::cell;
use crate::cell_bytes::changed_columns;
use crate::checkpoint::checkpoint;
use crate::deferred;
use crate::error::StoreError;
use crate::functions;
use crate::interrupt::{Interrupt, QueryLimits};
use crate::journal::record::{LayoutId, OPERATIONS_START, RecordLayout};
use crate::journal::row_operations::{Applier, RowOperations};
use crate::layout::Layout;
use crate::migrate::{self, VersionStart};
use crate::system::{self, RequestIdRow, decode_event};

/// The SQL of one table, built once.
#[derive(Debug)]
struct TableSql {
    get: String,
    insert: String,
    delete: String,
    /// By the set of changed columns.
    updates: RefCell<HashMap<u64, String>>,
}

impl TableSql {
    fn new(table: &TableSpec) -> TableSql {
        let name = table.name;
        let columns: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
        let marks: Vec<String> = (1..=columns.len()).map(|at| format!("?{at}")).collect();
        let by_key = by_key(table, |nth, _| nth);
        let all = columns.join(", ");
        let marks = marks.join(", ");
        TableSql {
            get: format!("SELECT {all} FROM {name} WHERE {by_key}"),
            // OR FAIL, here and in the triggers, which then run before the row is written (`Layout::check_triggers`). A
            // statement about one row leaves nothing behind in either case, but with the default, ABORT, SQLite copies
            // every page that it touches to be able to undo half a statement.
            insert: format!("INSERT OR FAIL INTO {name} ({all}) VALUES ({marks})"),
            delete: format!("DELETE FROM {name} WHERE {by_key}"),
            updates: RefCell::default(),
        }
    }
}

/// `key1 = ?a AND key2 = ?b`. `place` maps the index in the key and the index in the row, both from
/// 0, to a parameter's number.
fn by_key(table: &TableSpec, place: impl Fn(usize, usize) -> usize) -> String {
    let terms: Vec<String> = table
        .key
        .iter()
        .enumerate()
        .map(|(nth, at)| format!("{} = ?{}", table.columns[*at].name, place(nth, *at) + 1))
        .collect();
    terms.join(" AND ")
}

/// An update of some columns of the row with a key. Each parameter has the number of its column.
fn update_sql(table: &TableSpec, changed: u64) -> String {
    let set: Vec<String> = (0..table.columns.len())
        .filter(|at| changed & (1 << at) != 0)
        .map(|at| format!("{} = ?{}", table.columns[at].name, at + 1))
        .collect();
    let by_key = by_key(table, |_, at| at);
    format!("UPDATE OR FAIL {} SET {} WHERE {by_key}", table.name, set.join(", "))
}

/// The end of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHead {
    /// The last event; 0 if there is none.
    pub seq: Seq,
    /// Its time.
    pub at: Micros,
    /// Its hash; `None` if there is no event.
    pub hash: Option<Hash>,
}

/// The connection that writes.
#[derive(Debug)]
pub struct Writer {
    connection: Connection,
    tables: HashMap<&'static str, TableSql>,
    interrupt: Interrupt,
    /// Steps of all statements so far.
    steps: Cell<u64>,
    /// Bytes of the rows that were read so far.
    bytes_read: Cell<u64>,
    /// The layout of the records.
    layout: RecordLayout,
    layout_id: LayoutId,
    /// The open group.
    group: RefCell<Option<OpenGroup>>,
}

/// A group of calls in the open transaction.
#[derive(Debug)]
struct OpenGroup {
    operations: RowOperations,
    has_savepoint: bool,
    /// Whether it may have changed rows.
    has_written: bool,
}

impl Writer {
    pub(crate) fn new(mut connection: Connection, layout: &Layout) -> Result<Writer, StoreError> {
        let tables = system::tables().into_iter().chain(layout.tables());
        let tables = tables.map(|table| (table.name, TableSql::new(table))).collect();
        // The undo images of one commit are one value, so the limit is SQLite's maximum.
        let interrupt = functions::install(&mut connection, usize::MAX)?;
        let layout = RecordLayout::new(layout);
        Ok(Writer {
            connection,
            tables,
            layout_id: layout.id(),
            layout,
            interrupt,
            steps: Cell::default(),
            bytes_read: Cell::default(),
            group: RefCell::default(),
        })
    }

    /// Steps of SQLite's virtual machine of all statements so far. They measure the cost of a call
    /// without a clock.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Bytes of the rows that [`Writer::get`] and [`Writer::find`] have read so far. With the steps they measure how long
    /// calls block others, and how much memory they take.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.get()
    }

    fn count_bytes(&self, row: &[Value]) {
        let bytes: usize = row.iter().map(Value::size).sum();
        self.bytes_read.set(self.bytes_read.get() + bytes as u64);
    }

    fn count(&self, steps: u64) {
        self.steps.set(self.steps.get() + steps);
    }

    /// Adds the steps of a statement.
    fn count_statement(&self, statement: &CachedStatement<'_>) {
        let steps = statement.reset_status(StatementStatus::VmStep);
        self.count(u64::try_from(steps).unwrap_or(0));
    }

    /// Limits all following statements together; the statement that exceeds the limits fails with
    /// [`StoreError::Interrupted`]. `None` lifts the limits. Only for statements that read: SQLite
    /// rolls back the whole transaction around an interrupted write.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn allow(&self, limits: Option<&QueryLimits>) -> Result<(), StoreError> {
        self.interrupt.allow(&self.connection, limits)
    }

    /// The end of the log.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn head(&self) -> Result<LogHead, StoreError> {
        let sql = "SELECT seq, at, hash FROM events ORDER BY seq DESC LIMIT 1";
        let row = self.connection.query_row(sql, [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, Hash>(2)?))
        });
        Ok(match row.optional()? {
            Some((seq, at, hash)) => LogHead { seq: Seq(seq), at: Micros(at), hash: Some(hash) },
            None => LogHead { seq: Seq::ZERO, at: Micros(0), hash: None },
        })
    }

    /// Starts a transaction, with the write lock from the start.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another process writes.
    pub fn begin(&self) -> Result<(), StoreError> {
        self.execute("BEGIN IMMEDIATE", &[])
    }

    /// Commits the transaction: its pages are in the WAL, not yet on the disk.
    ///
    /// # Errors
    /// [`StoreError`]; the transaction is then still open, or rolled back. After [`StoreError::Full`] its
    /// pages can be complete in the WAL without being in the WAL's index, which SQLite writes last: a crash then makes
    /// them part of the file. That is harmless, because the journal has the same groups.
    pub fn commit(&self) -> Result<(), StoreError> {
        self.execute("COMMIT", &[])
    }

    /// Starts a group in the open transaction, which starts here if there is none. From here on the row operations are
    /// recorded. With a savepoint, a rollback of the group leaves the groups before it; but SQLite then copies every
    /// page that the group changes.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another process writes.
    pub fn begin_group(&self, has_savepoint: bool) -> Result<(), StoreError> {
        if self.connection.is_autocommit() {
            self.begin()?;
        }
        if has_savepoint {
            self.execute("SAVEPOINT commit_group", &[])?;
        }
        let operations = RowOperations::new(self.layout_id);
        self.group.replace(Some(OpenGroup { operations, has_savepoint, has_written: false }));
        Ok(())
    }

    /// Takes the record of the open group for the journal: its row operations, after room for the header of the record.
    ///
    /// # Errors
    /// [`StoreError::Constraint`] if a deferred constraint is violated: SQLite itself would check it only at
    /// COMMIT, after the group was acknowledged.
    pub fn take_record(&self) -> Result<Vec<u8>, StoreError> {
        if deferred::violates_foreign_keys(&self.connection) {
            let message = "FOREIGN KEY constraint failed".to_owned();
            return Err(StoreError::Constraint { message });
        }
        let mut group = self.group.borrow_mut();
        let group = group.as_mut().expect("a group is open");
        let next = RowOperations::new(self.layout_id);
        Ok(std::mem::replace(&mut group.operations, next).into_record())
    }

    /// Ends the open group. Its rows stay in the transaction.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn end_group(&self) -> Result<(), StoreError> {
        match self.group.take() {
            Some(OpenGroup { has_savepoint: true, .. }) => {
                self.execute("RELEASE commit_group", &[])
            }
            _ => Ok(()),
        }
    }

    /// Rolls back the open group. If it has written rows and has no savepoint, the whole transaction is rolled back, as
    /// SQLite itself does after some errors; see [`Writer::transaction_is_gone`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn roll_back_group(&self) -> Result<(), StoreError> {
        let Some(OpenGroup { has_savepoint, has_written, .. }) = self.group.take() else {
            return Ok(());
        };
        if self.connection.is_autocommit() {
            return Ok(());
        }
        let keeps_rows = makes(SeededBug::GroupNotRolledBack);
        if !has_savepoint {
            return if has_written && !keeps_rows { self.rollback() } else { Ok(()) };
        }
        if !keeps_rows {
            self.execute("ROLLBACK TO commit_group", &[])?;
        }
        self.execute("RELEASE commit_group", &[])
    }

    /// Applies the row operations in the records of groups again, in a new transaction: SQLite rolled theirs back.
    ///
    /// # Errors
    /// [`StoreError`]; the transaction is then rolled back.
    pub fn apply_again<'a>(
        &self,
        records: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), StoreError> {
        self.begin()?;
        let mut applier = Applier::new(self.layout.clone());
        for record in records {
            if let Err(error) = applier.apply(&self.connection, &record[OPERATIONS_START..]) {
                self.rollback()?;
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Checkpoints as much of the WAL as readers allow, between two transactions; `true` if that was all.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn checkpoint(&self) -> Result<bool, StoreError> {
        checkpoint(&self.connection, "PASSIVE")
    }

    /// Records a row operation of the open group.
    fn record(&self, operation: impl FnOnce(&mut RowOperations)) {
        if let Some(group) = &mut *self.group.borrow_mut() {
            operation(&mut group.operations);
            group.has_written = true;
        }
    }

    /// Rolls the transaction back, unless SQLite has already done so.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn rollback(&self) -> Result<(), StoreError> {
        if self.connection.is_autocommit() { Ok(()) } else { self.execute("ROLLBACK", &[]) }
    }

    /// Whether SQLite rolled the transaction back after an error.
    #[must_use]
    pub fn transaction_is_gone(&self) -> bool {
        self.connection.is_autocommit()
    }

    /// Sets the savepoint of a unit, which SQL calls `call`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn begin_unit(&self) -> Result<(), StoreError> {
        if let Some(group) = &mut *self.group.borrow_mut() {
            group.operations.begin_unit();
        }
        self.execute("SAVEPOINT call", &[])
    }

    /// Releases the savepoint of a unit: its rows stay.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn keep_unit(&self) -> Result<(), StoreError> {
        self.execute("RELEASE call", &[])
    }

    /// Rolls back to the savepoint of a unit and releases it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn undo_unit(&self) -> Result<(), StoreError> {
        if let Some(group) = &mut *self.group.borrow_mut() {
            group.operations.undo_unit();
            // Earlier writes are still recorded.
            group.has_written = !group.operations.is_empty();
        }
        self.execute("ROLLBACK TO call", &[])?;
        self.execute("RELEASE call", &[])
    }

    /// The row with a primary key.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn get(&self, table: &TableSpec, key: &[Value]) -> Result<Option<Row>, StoreError> {
        let mut statement = self.connection.prepare_cached(&self.sql(table).get)?;
        cell::bind(&mut statement, key)?;
        let mut rows = statement.raw_query();
        let found = rows.next()?.map(|row| cell::read_row(row, table.columns.len())).transpose();
        drop(rows);
        self.count_statement(&statement);
        let found: Option<Row> = found?;
        found.iter().for_each(|row| self.count_bytes(row));
        Ok(found)
    }

    /// The rows of `SELECT * FROM table <clause>`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn find(
        &self,
        table: &TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<Vec<Row>, StoreError> {
        let mut found = Vec::new();
        let sql = format!("SELECT * FROM {} {clause}", table.name);
        self.run(&sql, params, &mut |row| {
            self.count_bytes(row);
            found.push(row.into());
        })?;
        Ok(found)
    }

    /// Inserts a row and returns it. A NULL key of a numbered table becomes the next number.
    ///
    /// # Errors
    /// [`StoreError::Constraint`] and the other variants.
    pub fn insert(&self, table: &TableSpec, mut row: Vec<Value>) -> Result<Row, StoreError> {
        row.iter().try_for_each(|cell| check_value(table.name, cell.size()))?;
        self.execute(&self.sql(table).insert, &row)?;
        if table.numbered() {
            row[table.key[0]] = Value::Integer(self.connection.last_insert_rowid());
        }
        self.record(|group| group.insert(table.name, &row));
        Ok(row.into())
    }

    /// Updates a row, keeping its key. Only changed columns are written, so that indexes and
    /// triggers on other columns do no work.
    ///
    /// # Errors
    /// [`StoreError::Constraint`] and the other variants.
    pub fn update(
        &self,
        table: &TableSpec,
        old: &[Value],
        new: &[Value],
    ) -> Result<(), StoreError> {
        let changed = changed_columns(old, new);
        if changed == 0 {
            return Ok(());
        }
        new.iter().try_for_each(|cell| check_value(table.name, cell.size()))?;
        let mut updates = self.sql(table).updates.borrow_mut();
        let sql = updates.entry(changed).or_insert_with(|| update_sql(table, changed));
        let mut statement = self.connection.prepare_cached(sql)?;
        cell::bind_some(&mut statement, new, |at| {
            changed & (1 << at) != 0 || table.key.contains(&at)
        })?;
        let done = statement.raw_execute();
        self.count_statement(&statement);
        done?;
        self.record(|group| group.update(table, new, changed));
        Ok(())
    }

    /// Deletes the row with a key.
    ///
    /// # Errors
    /// [`StoreError::Constraint`] and the other variants.
    pub fn delete(&self, table: &TableSpec, key: &[Value]) -> Result<(), StoreError> {
        self.execute(&self.sql(table).delete, key)?;
        self.record(|group| group.delete(table.name, key));
        Ok(())
    }

    /// Appends an event to the log. Its arguments are in `arguments`, and those of `event` itself are not read. `repeated`
    /// are the places in them, in order, that rows of its call may repeat: the journal has such a text once.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn append_event(
        &self,
        event: &Event,
        arguments: &str,
        repeated: impl Iterator<Item = Range<usize>>,
    ) -> Result<(), StoreError> {
        check_value("events", event.outcome.len())?;
        let mut statement = self.connection.prepare_cached(&self.tables["events"].insert)?;
        // Bound one by one: an event is the largest row of a call, and is not copied.
        statement.raw_bind_parameter(1, event.seq.0)?;
        statement.raw_bind_parameter(2, event.at.0)?;
        statement.raw_bind_parameter(3, event.session_id.as_deref())?;
        statement.raw_bind_parameter(4, event.reducer.as_str())?;
        statement.raw_bind_parameter(5, event.caller.as_str())?;
        statement.raw_bind_parameter(6, event.request_id.as_deref())?;
        statement.raw_bind_parameter(7, arguments)?;
        statement.raw_bind_parameter(8, event.outcome.as_str())?;
        statement.raw_bind_parameter(9, event.prev_hash.as_slice())?;
        statement.raw_bind_parameter(10, event.hash.as_slice())?;
        statement.raw_bind_parameter(11, event.authority.as_deref())?;
        statement.raw_bind_parameter(12, event.salt.as_slice())?;
        statement.raw_bind_parameter(13, event.rows_hash.as_slice())?;
        statement.raw_execute()?;
        self.record(|group| group.insert_event("events", event, arguments, repeated));
        Ok(())
    }

    /// One event of the log.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn event(&self, seq: Seq) -> Result<Option<Event>, StoreError> {
        let mut found = None;
        let sql = "SELECT * FROM events WHERE seq = ?1";
        self.run(sql, &[Value::Integer(seq.0)], &mut |row| found = decode_event(row))?;
        Ok(found)
    }

    /// Returns the last of the events of `reducer` that follow an event in its session without another one between them.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn last_of_run(
        &self,
        session_id: &str,
        after: Seq,
        reducer: &str,
    ) -> Result<Option<Seq>, StoreError> {
        let mut found = None;
        let sql = "SELECT max(seq) FROM events WHERE session_id = ?1 AND seq > ?2 AND seq < coalesce(
            (SELECT seq FROM events WHERE session_id = ?1 AND seq > ?2 AND reducer <> ?3 ORDER BY seq LIMIT 1),
            9223372036854775807)";
        let params = [Value::from(session_id), Value::Integer(after.0), Value::from(reducer)];
        self.run(sql, &params, &mut |row| {
            if let Some(Value::Integer(seq)) = row.first() {
                found = Some(Seq(*seq));
            }
        })?;
        Ok(found)
    }

    /// The caller of an event.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn caller_of(&self, seq: Seq) -> Result<Option<String>, StoreError> {
        let mut found = None;
        let sql = "SELECT caller FROM events WHERE seq = ?1";
        self.run(sql, &[Value::Integer(seq.0)], &mut |row| {
            if let [Value::Text(caller)] = row {
                found = Some(caller.clone());
            }
        })?;
        Ok(found)
    }

    /// The row of a request id, if it was used before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn request(
        &self,
        caller: &str,
        request_id: &str,
    ) -> Result<Option<RequestIdRow>, StoreError> {
        let Some(row) = self.get(RequestIdRow::SPEC, &[caller.into(), request_id.into()])? else {
            return Ok(None);
        };
        match RequestIdRow::from_row(&row) {
            Ok(request) if request.event_seqs().is_some() => Ok(Some(request)),
            _ => {
                let why = format!("the stored events of request id {request_id:?} are unreadable");
                Err(StoreError::Unreadable(why))
            }
        }
    }

    /// Records a request id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn remember_request(&self, request: RequestIdRow) -> Result<(), StoreError> {
        let row = request.into_row();
        self.execute(&self.tables["request_ids"].insert, &row)?;
        self.record(|group| group.insert("request_ids", &row));
        Ok(())
    }

    /// Stores a commit's undo images of one table: at most [`limits::UNDO_IMAGES_BYTES`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn log_changes(
        &self,
        table: &TableSpec,
        from: Seq,
        to: Seq,
        images: Vec<u8>,
    ) -> Result<(), StoreError> {
        check_length(
            format_args!("the former content of the rows of {}", table.name),
            images.len(),
            limits::UNDO_IMAGES_BYTES,
        )?;
        let row =
            [Value::Integer(to.0), table.name.into(), Value::Integer(from.0), Value::Blob(images)];
        self.execute(&self.tables["change_log"].insert, &row)?;
        self.record(|group| group.insert("change_log", &row));
        Ok(())
    }

    /// Deletes undo images up to a seq. The change log is complete from there on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn prune_change_log(&self, up_to: Seq) -> Result<(), StoreError> {
        Ok(migrate::prune_change_log(&self.connection, up_to)?)
    }

    /// Returns after which events the file reached the versions of these modules.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn version_starts(&self, modules: &[Module]) -> Result<Vec<VersionStart>, StoreError> {
        Ok(migrate::version_starts(&self.connection, modules)?)
    }

    /// Stores after which event the file reached a version of a module. A replay into a new file copies it from the
    /// replayed file: its own log has the same events, and they must run by the same rules when it is replayed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn set_version_start(&self, start: &VersionStart) -> Result<(), StoreError> {
        let VersionStart { module, version, after } = start;
        Ok(migrate::set_version_start(&self.connection, module, *version, *after)?)
    }

    /// Runs any statement, handing each result row over. The statement is kept prepared. Returns the
    /// steps that it took.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn run(
        &self,
        sql: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<RunSteps, StoreError> {
        self.interrupt.take_worked();
        self.interrupt.take_visible_worked();
        let steps = run(&self.connection, sql, params, each)?;
        self.count(steps);
        let all = steps + self.interrupt.take_worked();
        Ok(RunSteps { all, visible: self.interrupt.take_visible_worked() })
    }

    fn execute(&self, sql: &str, params: &[Value]) -> Result<(), StoreError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        cell::bind(&mut statement, params)?;
        let done = statement.raw_execute();
        self.count_statement(&statement);
        done?;
        Ok(())
    }

    fn sql(&self, table: &TableSpec) -> &TableSql {
        self.tables.get(table.name).expect("a reducer uses tables of a registered module only")
    }
}

/// The steps of a statement.
#[derive(Clone, Copy, Debug)]
pub struct RunSteps {
    /// Steps of SQLite's virtual machine, with the work of functions as steps.
    pub all: u64,
    /// Those for rows that a restricted caller sees; see [`VISIBLE_FUNCTION`](crate::VISIBLE_FUNCTION).
    pub visible: u64,
}

/// Returns the statement that reads a table in the order of its primary key.
pub(crate) fn select_in_order(table: &TableSpec) -> String {
    let keys: Vec<&str> = table.key.iter().map(|at| table.columns[*at].name).collect();
    format!("SELECT * FROM {} ORDER BY {}", table.name, keys.join(", "))
}

/// Refuses a value that is longer than a query reads.
fn check_value(table: &str, bytes: usize) -> Result<(), StoreError> {
    check_length(format_args!("a value of {table}"), bytes, limits::QUERY_VALUE_BYTES)
}

/// Refuses what is longer than whoever reads it allows.
fn check_length(what: fmt::Arguments<'_>, bytes: usize, max: usize) -> Result<(), StoreError> {
    if bytes <= max {
        return Ok(());
    }
    let code = Code::LimitExceeded.as_str();
    let message = format!("{code}: {what} has {bytes} bytes; the limit is {max}");
    Err(StoreError::Constraint { message })
}

/// Runs any statement on a connection and calls `each` with every row. Returns its steps.
pub(crate) fn run(
    connection: &Connection,
    sql: &str,
    params: &[Value],
    each: &mut dyn FnMut(&[Value]),
) -> Result<u64, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let done = step_through(&mut statement, params, each);
    // Also read after an error, so that the next run of the statement counts only its own steps.
    let steps = statement.reset_status(StatementStatus::VmStep);
    done?;
    Ok(u64::try_from(steps).unwrap_or(0))
}

fn step_through(
    statement: &mut CachedStatement<'_>,
    params: &[Value],
    each: &mut dyn FnMut(&[Value]),
) -> Result<(), StoreError> {
    cell::bind(statement, params)?;
    let width = statement.column_count();
    let mut cells = Vec::with_capacity(width);
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        cells.clear();
        for at in 0..width {
            cells.push(cell::read_exactly(row.get_ref(at)?)?);
        }
        each(&cells);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::open::{Store, Tuning};

    /// No query, no reader of the log and no recovery could read such a value.
    #[test]
    fn a_value_that_no_query_reads_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("abide.db");
        let store = Store::open(&path, Layout::default(), Tuning::default()).expect("it opens");
        let writer = store.writer().expect("it connects");
        let row = |bytes: usize| {
            let fingerprint = Value::Blob(vec![7; bytes]);
            vec![Value::from("local"), Value::from(bytes.to_string()), fingerprint, "[]".into()]
        };
        let table = RequestIdRow::SPEC;
        writer.insert(table, row(limits::QUERY_VALUE_BYTES)).expect("it is read");
        let refused = writer.insert(table, row(limits::QUERY_VALUE_BYTES + 1)).expect_err("long");
        assert_eq!(refused.to_refusal().code, Code::LimitExceeded);
    }

    #[test]
    fn a_statement_is_prepared_once_whatever_values_it_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("abide.db");
        let store = Store::open(&path, Layout::default(), Tuning::default()).expect("it opens");
        let writer = store.writer().expect("it connects");
        for sql in [
            "SELECT seq FROM events WHERE seq > ?1 ORDER BY seq LIMIT ?2",
            "SELECT seq FROM events WHERE session_id = ?1 AND seq BETWEEN ?1 AND ?2 ORDER BY seq",
        ] {
            for last in 1..4 {
                let values = [Value::Integer(0), Value::Integer(last)];
                writer.run(sql, &values, &mut |_| {}).expect("it runs");
                let statement = writer.connection.prepare_cached(sql).expect("it is cached");
                assert_eq!(statement.get_status(StatementStatus::RePrepare), 0, "{sql}");
            }
        }
    }
}
