//! A read-only connection: snapshots at a seq, queries that callers wrote, and the undo images for
//! resume.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use abide_schema::{Code, Refusal, Row, Seq, TableSpec, Value, ValueRef};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, StatementStatus};

use crate::cell;
use crate::change_log::{self, ChangedRow, Undo};
use crate::error::StoreError;
use crate::functions;
use crate::interrupt::{self, Interrupt, InterruptReason, QueryLimits, RunningStatement};
use crate::migrate;
use crate::writer;

/// Returns the value of a parameter, from its name with the sigil (`None` for a bare `?`) and its
/// number.
pub type Bind<'a> = dyn FnMut(Option<&str>, usize) -> Result<Value, Refusal> + 'a;

/// The operations that the authorizer allows while a statement is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum AuthorizerMode {
    /// Everything: a statement of the engine.
    Off,
    /// Reading: a statement of a caller.
    Reading,
    /// Reading through the views of a past state.
    Past,
}

fn allowed(context: &AuthContext<'_>, past: bool) -> bool {
    match context.action {
        // A table shows the present, so only the views may be queried. (`SELECT count(*)` reads no
        // column of the table behind a view; SQLite reports that as an empty column name without
        // the view's name.)
        AuthAction::Read { column_name, .. } if past && !column_name.is_empty() => {
            context.accessor.is_some() || context.database_name != Some("main")
        }
        AuthAction::Select
        | AuthAction::Read { .. }
        | AuthAction::Function { .. }
        | AuthAction::Recursive => true,
        _ => false,
    }
}

/// A read-only connection.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    /// The mode of the authorizer; an [`AuthorizerMode`].
    guard: Arc<AtomicU8>,
    interrupt: Interrupt,
    /// Steps of queries since they were taken last.
    steps: AtomicU64,
}

impl Reader {
    /// Steps of SQLite's virtual machine in queries since the last call.
    pub fn take_steps(&mut self) -> u64 {
        std::mem::take(self.steps.get_mut())
    }

    pub(crate) fn new(mut connection: Connection) -> Result<Reader, StoreError> {
        let interrupt =
            functions::install(&mut connection, abide_schema::limits::QUERY_VALUE_BYTES)?;
        let guard = Arc::new(AtomicU8::new(AuthorizerMode::Off as u8));
        let in_force = Arc::clone(&guard);
        connection.authorizer(Some(move |context: AuthContext<'_>| {
            let guard = in_force.load(Ordering::Relaxed);
            if guard == AuthorizerMode::Off as u8
                || allowed(&context, guard == AuthorizerMode::Past as u8)
            {
                Authorization::Allow
            } else {
                Authorization::Deny
            }
        }))?;
        Ok(Reader { connection, guard, interrupt, steps: AtomicU64::new(0) })
    }

    /// A handle that stops the queries of this reader from another thread.
    #[must_use]
    pub fn interrupt_handle(&self) -> InterruptHandle {
        InterruptHandle(self.interrupt.clone())
    }

    /// Runs set-up statements, for example to create temporary tables.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn set_up(&self, statements: &[String]) -> Result<(), StoreError> {
        statements.iter().try_for_each(|sql| Ok(self.connection.execute_batch(sql)?))
    }

    /// A snapshot of the current state, held until it is dropped.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn snapshot(&mut self) -> Result<Snapshot<'_>, StoreError> {
        self.connection.prepare_cached("BEGIN")?.execute([])?;
        let mut snapshot =
            Snapshot { reader: self, seq: Seq::ZERO, guard: AuthorizerMode::Reading };
        let sql = "SELECT seq FROM events ORDER BY seq DESC LIMIT 1";
        let mut statement = snapshot.reader.connection.prepare_cached(sql)?;
        let seq = statement.query_row([], |row| row.get(0)).optional()?;
        drop(statement);
        snapshot.seq = Seq(seq.unwrap_or(0));
        Ok(snapshot)
    }
}

/// Stops the queries of a reader.
#[derive(Debug)]
pub struct InterruptHandle(Interrupt);

impl InterruptHandle {
    /// Stops the running query and all later ones.
    pub fn stop(&self) {
        self.0.end();
    }

    /// Stops the running query and all later ones, until [`InterruptHandle::resume`].
    pub fn cancel(&self) {
        self.0.cancel(true);
    }

    /// Allows queries again.
    pub fn resume(&self) {
        self.0.cancel(false);
    }

    /// Stops the running query and all later ones, because its snapshot prevents a checkpoint, until
    /// [`InterruptHandle::resume_after_checkpoint`].
    pub fn interrupt_for_checkpoint(&self) {
        self.0.interrupt_for_checkpoint(true);
    }

    /// Allows queries again.
    pub fn resume_after_checkpoint(&self) {
        self.0.interrupt_for_checkpoint(false);
    }
}

/// A constant state. While it exists, the WAL cannot be reset, so keep it short.
#[derive(Debug)]
pub struct Snapshot<'a> {
    reader: &'a Reader,
    seq: Seq,
    guard: AuthorizerMode,
}

impl Snapshot<'_> {
    /// From here on, callers' statements see tables only through the temporary views that replace
    /// them.
    pub fn only_views(&mut self) {
        self.guard = AuthorizerMode::Past;
    }

    /// The last event of this state.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Prepares one statement of a caller, with its parameters. It can only read.
    ///
    /// # Errors
    /// A [`Refusal`] for the caller.
    pub fn prepare(
        &self,
        sql: &str,
        bind: &mut Bind<'_>,
        limits: QueryLimits,
    ) -> Result<Query<'_>, Refusal> {
        // SQLite also checks the limits while it prepares a statement, because it expands a CTE at
        // each mention.
        let running = self.reader.interrupt.start(&limits);
        let mut statement = self.prepare_guarded(sql, &limits)?;
        if !statement.readonly() {
            let hint = "to change data, call a reducer";
            return Err(Refusal::new(Code::BadSql, "the statement writes").hint(hint));
        }
        if statement.column_count() == 0 {
            return Err(Refusal::new(Code::BadSql, "the statement is not a query")
                .hint("one SELECT, VALUES or WITH"));
        }
        for at in 1..=statement.parameter_count() {
            let value = bind(statement.parameter_name(at), at)?;
            cell::bind_one(&mut statement, at, &value)
                .map_err(|error| StoreError::from(error).to_refusal())?;
        }
        Ok(Query { snapshot: self, statement, limits, running })
    }

    /// Limits all following statements together; beyond the limits they fail with
    /// [`StoreError::Interrupted`]. `None` lifts the limits.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn allow(&self, limits: Option<&QueryLimits>) -> Result<(), StoreError> {
        self.reader.interrupt.allow(&self.reader.connection, limits)
    }

    fn prepare_guarded(
        &self,
        sql: &str,
        limits: &QueryLimits,
    ) -> Result<CachedStatement<'_>, Refusal> {
        self.reader.guard.store(self.guard as u8, Ordering::Relaxed);
        // Prepared again for a past state: the authorizer does not check a cached statement.
        if self.guard == AuthorizerMode::Past {
            self.reader.connection.flush_prepared_statement_cache();
        }
        let statement = self.reader.connection.prepare_cached(sql);
        self.reader.guard.store(AuthorizerMode::Off as u8, Ordering::Relaxed);
        statement.map_err(|error| match StoreError::from(error) {
            StoreError::Sql { message, .. } if message.contains("is prohibited") => {
                Refusal::new(Code::BadSql, "past queries can only read registered tables")
                    .hint("use table names without `main.` and not the engine's own tables")
            }
            StoreError::Sql { message, .. } if message == "not authorized" => {
                Refusal::new(Code::BadSql, "the statement is not read-only")
                    .hint("one SELECT, VALUES or WITH; to change data, call a reducer")
            }
            StoreError::Interrupted => self.interrupted(limits),
            error => error.to_refusal(),
        })
    }

    /// The refusal, if the last statement was interrupted for a checkpoint.
    #[must_use]
    pub fn interrupted_for_checkpoint(&self) -> Option<Refusal> {
        (self.reader.interrupt.reason() == InterruptReason::Checkpoint).then(|| {
            let detail = "the query was ended: its snapshot kept the write-ahead log from \
                          starting again";
            Refusal::new(Code::Overloaded, detail)
                .hint("try again, read in smaller parts, or query a backup")
        })
    }

    /// The refusal of a statement that failed.
    fn refusal(&self, error: rusqlite::Error, limits: &QueryLimits) -> Refusal {
        match StoreError::from(error) {
            StoreError::Interrupted => self.interrupted(limits),
            error => error.to_refusal(),
        }
    }

    /// The refusal of an interrupted statement.
    fn interrupted(&self, limits: &QueryLimits) -> Refusal {
        if let Some(refusal) = self.interrupted_for_checkpoint() {
            return refusal;
        }
        let (detail, hint) = match self.reader.interrupt.reason() {
            InterruptReason::Steps => {
                let detail = format!("the query takes more than {} steps", limits.steps);
                (detail, "add an index or a narrower WHERE, or end the recursion")
            }
            InterruptReason::Memory => {
                let mib = limits.memory_bytes >> 20;
                let detail = format!("the query needs more than {mib} MiB of memory");
                (detail, "sort, group or join fewer rows; add LIMIT to subqueries")
            }
            InterruptReason::Closing => {
                return Refusal::new(Code::Unavailable, "the engine is closing")
                    .hint("open the database again, then retry");
            }
            InterruptReason::Cancelled => {
                return Refusal::new(Code::Unavailable, "the query was cancelled");
            }
            InterruptReason::Time | InterruptReason::Checkpoint | InterruptReason::Nothing => {
                let ms = limits.time.as_millis();
                let detail = format!("the query ran longer than {ms} ms");
                (detail, "add an index or a narrower WHERE")
            }
        };
        Refusal::new(Code::LimitExceeded, detail).hint(hint)
    }

    /// The row with a primary key.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn get(&self, table: &TableSpec, key: &[Value]) -> Result<Option<Row>, StoreError> {
        let terms: Vec<String> = table
            .key
            .iter()
            .enumerate()
            .map(|(nth, at)| format!("{} = ?{}", table.columns[*at].name, nth + 1))
            .collect();
        let sql = format!("SELECT * FROM main.{} WHERE {}", table.name, terms.join(" AND "));
        let mut found = None;
        self.run(&sql, key, &mut |row| found = Some(row.into()))?;
        Ok(found)
    }

    /// The first seq from which the change log is complete: a subscription can resume from it or
    /// from a later one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn change_log_floor(&self) -> Result<Seq, StoreError> {
        Ok(migrate::change_log_floor(&self.reader.connection)?)
    }

    /// The last event before a step of a module last changed tables, if one did: what a client has from that time cannot
    /// be brought up to date with changes.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn last_step(&self) -> Result<Option<Seq>, StoreError> {
        let last = migrate::meta(&self.reader.connection, "last_step")?;
        Ok(last.and_then(|text| text.parse().ok()).map(Seq))
    }

    /// The rows of a table that commits after `from` have changed, each with its state at `from`, in the order of their
    /// first change; `None` if there are more than `limit` changes.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn changed_rows(
        &self,
        table: &TableSpec,
        from: Seq,
        limit: usize,
    ) -> Result<Option<Vec<ChangedRow>>, StoreError> {
        let undo = interrupt::with_undo_images(&self.reader.connection, || {
            self.read_undo(table, from, limit)
        })?;
        let Some(undo) = undo else { return Ok(None) };
        undo.finish(|key| self.get(table, key)).map(Some)
    }

    /// Reads the undo images of a table since an event; `None` if there are more than `limit`.
    fn read_undo(
        &self,
        table: &TableSpec,
        from: Seq,
        limit: usize,
    ) -> Result<Option<Undo>, StoreError> {
        let mut statement = self.reader.connection.prepare_cached(
            "SELECT images FROM main.change_log WHERE table_name = ?1 AND seq > ?2 ORDER BY seq",
        )?;
        let mut rows = statement.query((table.name, from.0))?;
        let mut undo = Undo::default();
        let mut count = 0;
        while let Some(row) = rows.next()? {
            let bytes = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
            for image in change_log::decode(table, bytes)? {
                undo.add(table, image);
                count += 1;
            }
            if count > limit {
                return Ok(None);
            }
        }
        Ok(Some(undo))
    }

    /// Runs any statement of the engine and calls `each` with every row.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn run(
        &self,
        sql: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<(), StoreError> {
        writer::run(&self.reader.connection, sql, params, each).map(drop)
    }
}

/// A statement of a caller that is ready to run.
pub struct Query<'a> {
    snapshot: &'a Snapshot<'a>,
    statement: CachedStatement<'a>,
    limits: QueryLimits,
    running: RunningStatement<'a>,
}

impl fmt::Debug for Query<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Query<'_> {
    /// Returns the names of the columns.
    #[must_use]
    pub fn columns(&self) -> Vec<String> {
        let names = self.statement.column_names();
        names.take(self.limits.columns).map(str::to_owned).collect()
    }

    /// Runs the statement and returns its rows.
    ///
    /// # Errors
    /// A [`Refusal`] for the caller.
    pub fn collect(self) -> Result<Vec<Row>, Refusal> {
        let mut rows = Vec::new();
        self.for_each_row(&mut |row| {
            rows.push(row.cells().map(ValueRef::to_value).collect());
            ControlFlow::Continue(())
        })?;
        Ok(rows)
    }

    /// Runs the statement and passes each row to `each`, until it breaks.
    ///
    /// # Errors
    /// A [`Refusal`] for the caller. `each` may have had rows before it.
    pub fn for_each_row(
        mut self,
        each: &mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), Refusal> {
        let max = abide_schema::limits::QUERY_VALUE_BYTES;
        if self.limits.value_bytes >= max {
            return self.read_rows(each);
        }
        self.limit_values(self.limits.value_bytes)?;
        let done = self.read_rows(each);
        self.limit_values(max)?;
        done
    }

    fn limit_values(&self, bytes: usize) -> Result<(), Refusal> {
        interrupt::set_value_bytes(&self.snapshot.reader.connection, bytes)
            .map_err(|error| StoreError::from(error).to_refusal())
    }

    fn read_rows(
        &mut self,
        each: &mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), Refusal> {
        let Query { snapshot, statement, limits, running } = self;
        let width = limits.columns.min(statement.column_count());
        let mut row_count = 0;
        let mut bytes = 0;
        let mut rows = statement.raw_query();
        loop {
            let row = match rows.next() {
                Ok(Some(row)) => RowRef { row, width },
                Ok(None) => break,
                Err(error) => return Err(snapshot.refusal(error, limits)),
            };
            row_count += 1;
            bytes += row.cells().map(ValueRef::size).sum::<usize>();
            if row_count > limits.rows || bytes > limits.bytes {
                let rows = limits.rows;
                let bytes = limits.bytes;
                let detail = format!("the result exceeds {rows} rows or {bytes} bytes");
                return Err(Refusal::new(Code::LimitExceeded, detail)
                    .hint("reduce it with LIMIT or a narrower WHERE"));
            }
            if each(row).is_break() {
                break;
            }
            if limits.of_each_row {
                running.restart(limits);
            }
        }
        drop(rows);
        let steps = statement.reset_status(StatementStatus::VmStep);
        snapshot.reader.steps.fetch_add(u64::try_from(steps).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }
}

/// A row of a query that runs. Its cells are in SQLite's memory until the next row is read.
#[derive(Clone, Copy, Debug)]
pub struct RowRef<'a> {
    row: &'a rusqlite::Row<'a>,
    width: usize,
}

impl<'a> RowRef<'a> {
    /// Returns the cells.
    pub fn cells(self) -> impl Iterator<Item = ValueRef<'a>> {
        (0..self.width).map(move |at| {
            let cell = self.row.get_ref(at).expect("a row has the columns of its statement");
            cell::borrow(cell)
        })
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // Temporary tables may have been written; nothing of a snapshot is kept.
        if let Err(error) = self.reader.connection.execute_batch("ROLLBACK") {
            tracing::warn!(
                name: "read_not_ended",
                %error,
                "a read transaction did not end cleanly"
            );
        }
    }
}
