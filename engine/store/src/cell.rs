//! Conversion between our cells and SQLite's.

use std::sync::Arc;

use abide_schema::{Row, Value, ValueRef as CellRef};
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Result, Statement};

use crate::error::StoreError;

/// A cell to bind without a copy.
struct BoundCell<'a>(&'a Value);

impl ToSql for BoundCell<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.0 {
            Value::Null => ValueRef::Null,
            Value::Integer(n) => ValueRef::Integer(*n),
            Value::Real(x) => ValueRef::Real(*x),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// Binds the first parameters of a statement.
pub(crate) fn bind(statement: &mut CachedStatement<'_>, values: &[Value]) -> Result<()> {
    for (at, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, BoundCell(value))?;
    }
    Ok(())
}

/// Binds the parameters at these positions.
pub(crate) fn bind_some(
    statement: &mut CachedStatement<'_>,
    values: &[Value],
    at: impl Fn(usize) -> bool,
) -> Result<()> {
    for (place, value) in values.iter().enumerate().filter(|(place, _)| at(*place)) {
        statement.raw_bind_parameter(place + 1, BoundCell(value))?;
    }
    Ok(())
}

/// Binds one parameter.
pub(crate) fn bind_one(statement: &mut Statement<'_>, at: usize, value: &Value) -> Result<()> {
    statement.raw_bind_parameter(at, BoundCell(value))
}

/// Reads a cell that will be compared with others. Text that is not UTF-8 cannot be compared, and a
/// query can produce it (`concat(x'ff')`).
pub(crate) fn read_exactly(cell: ValueRef<'_>) -> std::result::Result<Value, StoreError> {
    match read(cell) {
        Value::Blob(_) if matches!(cell, ValueRef::Text(_)) => {
            let message = "a text value is not valid UTF-8".to_owned();
            Err(StoreError::Sql { message, offset: None })
        }
        value => Ok(value),
    }
}

/// Returns a copy of a cell, as [`borrow`] reads it.
pub(crate) fn read(cell: ValueRef<'_>) -> Value {
    borrow(cell).to_value()
}

/// Reads a cell in place. Text that is not UTF-8 (SQLite does not check) becomes a blob instead of an error,
/// so that users can inspect it.
pub(crate) fn borrow(cell: ValueRef<'_>) -> CellRef<'_> {
    match cell {
        ValueRef::Null => CellRef::Null,
        ValueRef::Integer(n) => CellRef::Integer(n),
        ValueRef::Real(x) => CellRef::Real(x),
        ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => CellRef::Text(text),
            Err(_) => CellRef::Blob(bytes),
        },
        ValueRef::Blob(bytes) => CellRef::Blob(bytes),
    }
}

/// Reads the first `width` cells of a result row.
pub(crate) fn read_row(row: &rusqlite::Row<'_>, width: usize) -> Result<Row> {
    (0..width).map(|at| row.get_ref(at).map(read)).collect::<Result<Arc<[Value]>>>()
}
