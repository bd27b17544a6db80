//! The connection for live queries: configured like the engine's, and with a count of its work. Nothing is synced,
//! because deltas are measured and not the disk.

use std::path::Path;

use abide_live::{Cost, Sql, SqlError, SqlErrorKind};
use abide_schema::Value;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, StatementStatus, ToSql};

/// A connection, and the number of virtual machine steps of its statements.
pub(crate) struct Database {
    connection: Connection,
    steps: u64,
}

impl Database {
    /// A new file.
    pub(crate) fn create(path: &Path) -> Database {
        let connection = Connection::open(path).expect("a file for the tables");
        let cache_bytes = abide_engine::Tuning::default().writer_cache_bytes;
        let cache = format!("-{}", cache_bytes / 1024);
        for (pragma, value) in [
            ("journal_mode", "WAL"),
            ("synchronous", "OFF"),
            ("foreign_keys", "ON"),
            ("temp_store", "MEMORY"),
            ("cache_size", cache.as_str()),
        ] {
            connection.pragma_update(None, pragma, value).expect("a pragma");
        }
        connection.set_prepared_statement_cache_capacity(1_024);
        Database { connection, steps: 0 }
    }

    /// Runs a statement.
    pub(crate) fn execute(&mut self, sql: &str, params: &[Value]) {
        self.run(sql, params, &mut |_| {}).unwrap_or_else(|why| panic!("{why} in {sql}"));
    }

    /// Runs a query to its end and counts its rows.
    pub(crate) fn count_rows(&mut self, sql: &str, params: &[Value]) -> usize {
        let mut rows = 0;
        let outcome = self.run(sql, params, &mut |_| rows += 1);
        outcome.unwrap_or_else(|why| panic!("{why} in {sql}"));
        rows
    }

    /// The number of steps since the last call.
    pub(crate) fn take_steps(&mut self) -> u64 {
        std::mem::take(&mut self.steps)
    }
}

impl Sql for Database {
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<Cost, SqlError> {
        let broken =
            |why: rusqlite::Error| SqlError { message: why.to_string(), kind: SqlErrorKind::Store };
        let mut prepared = self.connection.prepare_cached(statement).map_err(broken)?;
        for (at, value) in params.iter().enumerate() {
            prepared.raw_bind_parameter(at + 1, Bound(value)).map_err(broken)?;
        }
        let width = prepared.column_count();
        let mut cells = Vec::with_capacity(width);
        let mut rows = prepared.raw_query();
        while let Some(row) = rows.next().map_err(broken)? {
            cells.clear();
            for at in 0..width {
                cells.push(read(row.get_ref(at).map_err(broken)?));
            }
            each(&cells);
        }
        drop(rows);
        let steps = u64::from(prepared.reset_status(StatementStatus::VmStep).unsigned_abs());
        self.steps += steps;
        Ok(Cost::from_steps(steps, 0))
    }
}

struct Bound<'a>(&'a Value);

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.0 {
            Value::Null => ValueRef::Null,
            Value::Integer(n) => ValueRef::Integer(*n),
            Value::Real(x) => ValueRef::Real(*x),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

fn read(cell: ValueRef<'_>) -> Value {
    match cell {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => Value::Integer(n),
        ValueRef::Real(x) => Value::Real(x),
        ValueRef::Text(bytes) => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_owned()),
    }
}
