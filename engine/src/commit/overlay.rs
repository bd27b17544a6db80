//! The rows that the open group has read and changed so far. In this file a transaction is the open group, not
//! SQLite's transaction, which holds many.
//!
//! It is three things at once: a cache, so that a row is read from SQLite once; the buffer of
//! touches, so that a row touched by many calls is written once; and the record of net changes
//! (old, new) for undo images and live deltas. A touch is a change that need not be written at once
//! (`Context::touch`).

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use abide_schema::{Row, TableSpec, Value};
use abide_store::change_log;

/// The key of a row: its table and the bytes of its primary key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RowKey {
    table: &'static str,
    key: Arc<[u8]>,
}

impl RowKey {
    fn new<'a>(table: &'static TableSpec, key: impl IntoIterator<Item = &'a Value>) -> RowKey {
        let mut bytes = Vec::with_capacity(40);
        change_log::encode_cells(0, key, &mut bytes);
        RowKey { table: table.name, key: bytes.into() }
    }
}

/// One row as the transaction sees it.
#[derive(Clone, Debug)]
struct RowState {
    table: &'static TableSpec,
    /// Before the transaction.
    old: Option<Row>,
    /// Now.
    new: Option<Row>,
    /// The row in SQLite: differs from `new` while a touch is not written yet.
    stored: Option<Row>,
}

/// Whether SQLite already has a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowWrite {
    /// It was written.
    Done,
    /// It is a touch, which is written before the next read of many rows or at the end of the transaction.
    Deferred,
}

/// A row's net change.
#[derive(Clone, Debug)]
pub(crate) struct NetChange {
    pub(crate) table: &'static TableSpec,
    pub(crate) old: Option<Row>,
    pub(crate) new: Option<Row>,
}

/// The rows of one transaction. See the module.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    rows: HashMap<RowKey, RowState>,
    /// The rows that this transaction changed, in order, so that everything derived from them is
    /// deterministic. A row may occur twice. Large rows that were only read are here, too, so that they are not kept.
    changed: Vec<RowKey>,
    /// Touched rows that may still have to be written. Every read of many rows writes them first. A separate list,
    /// because a search among all changed rows would make a call that changes n rows and reads n times
    /// quadratic.
    unwritten: Vec<RowKey>,
    /// While a unit may have to be rolled back: the state of each row before the unit changed it. Not the journal of
    /// the store.
    undo: Option<Vec<(RowKey, RowState)>>,
}

/// Rows kept from one transaction to the next. Agents often use the same few sessions.
const CACHED_ROWS: usize = 4_096;

/// The largest kept row in bytes, to bound memory.
const CACHED_ROW_BYTES: usize = 1_024;

impl Overlay {
    /// Returns the row of a key, if known: `Some(None)` is a row known not to exist.
    pub(crate) fn get(&self, table: &'static TableSpec, key: &[Value]) -> Option<Option<Row>> {
        self.rows.get(&RowKey::new(table, key)).map(|state| state.new.clone())
    }

    /// Records a row that was read.
    pub(crate) fn record_read(
        &mut self,
        table: &'static TableSpec,
        key: &[Value],
        row: Option<Row>,
    ) {
        let row_key = RowKey::new(table, key);
        if bytes_of(&row) > CACHED_ROW_BYTES {
            // Checked at the end of the transaction, and not kept.
            self.changed.push(row_key.clone());
        }
        let state = RowState { table, old: row.clone(), new: row.clone(), stored: row };
        self.rows.entry(row_key).or_insert(state);
    }

    /// Returns SQLite's version of a known row.
    pub(crate) fn stored(&self, table: &'static TableSpec, key: &[Value]) -> Option<Row> {
        self.rows.get(&RowKey::new(table, key))?.stored.clone()
    }

    /// Records a changed row. `before` is its old state, for a row that is not known yet.
    pub(crate) fn record_change(
        &mut self,
        table: &'static TableSpec,
        key: &[Value],
        before: Option<Row>,
        new: Option<Row>,
        write: RowWrite,
    ) {
        let row_key = RowKey::new(table, key);
        let state = self.rows.entry(row_key.clone()).or_insert_with(|| RowState {
            table,
            old: before.clone(),
            new: before.clone(),
            stored: before,
        });
        if let Some(undo) = &mut self.undo {
            undo.push((row_key.clone(), state.clone()));
        }
        if state.old == state.new {
            self.changed.push(row_key.clone());
        }
        state.new = new;
        match write {
            RowWrite::Done => state.stored.clone_from(&state.new),
            RowWrite::Deferred => self.unwritten.push(row_key),
        }
    }

    /// Writes the touched rows in the order in which they were touched. `write` gets the row in SQLite and the new one.
    ///
    /// After an error, the row that failed and those after it stay unwritten, and the next call writes them. If they
    /// counted as written, a caller that ignores the error could commit the record of a change that the table does not
    /// have.
    ///
    /// # Errors
    /// The first error of `write`.
    pub(crate) fn write_touched<E>(
        &mut self,
        mut write: impl FnMut(&'static TableSpec, &Row, &Row) -> Result<(), E>,
    ) -> Result<(), E> {
        for (at, key) in self.unwritten.iter().enumerate() {
            let Some(state) = self.rows.get_mut(key) else { continue };
            // A row that was deleted after its touch has nothing to write.
            let (Some(stored), Some(new)) = (&state.stored, &state.new) else { continue };
            let is_written = Arc::ptr_eq(stored, new);
            if is_written {
                continue;
            }
            if let Err(error) = write(state.table, stored, new) {
                self.unwritten.drain(..at);
                return Err(error);
            }
            if let Some(undo) = &mut self.undo {
                undo.push((key.clone(), state.clone()));
            }
            state.stored.clone_from(&state.new);
        }
        self.unwritten.clear();
        Ok(())
    }

    /// From here on changes can be rolled back.
    pub(crate) fn begin_unit(&mut self) {
        self.undo = Some(Vec::new());
    }

    /// Keeps the changes since `begin_unit`.
    pub(crate) fn keep_unit(&mut self) {
        self.undo = None;
    }

    /// Rolls back the changes since `begin_unit`.
    pub(crate) fn undo_unit(&mut self) {
        for (key, state) in self.undo.take().unwrap_or_default().into_iter().rev() {
            if state.new != state.stored {
                // Touched before the unit, and possibly written by it.
                self.unwritten.push(key.clone());
            }
            self.rows.insert(key, state);
        }
    }

    /// Returns the net changes of the transaction, in the order of the first change of each row.
    pub(crate) fn changes(&self) -> Vec<NetChange> {
        let mut seen = HashSet::with_capacity(self.changed.len());
        self.changed
            .iter()
            .filter(|key| seen.insert(*key))
            .filter_map(|key| self.rows.get(key))
            .filter(|state| state.old != state.new)
            .map(|state| NetChange {
                table: state.table,
                old: state.old.clone(),
                new: state.new.clone(),
            })
            .collect()
    }

    /// The transaction was committed: its rows are now the old ones. Small recently used rows
    /// are kept.
    pub(crate) fn group_finished(&mut self) {
        self.undo = None;
        self.unwritten.clear();
        if self.rows.len() > CACHED_ROWS {
            self.forget();
            return;
        }
        for key in self.changed.drain(..) {
            let MapEntry::Occupied(mut entry) = self.rows.entry(key) else { continue };
            let RowState { table, old, new, stored } = entry.get_mut();
            if new.is_none() || table.numbered() || bytes_of(new) > CACHED_ROW_BYTES {
                entry.remove();
            } else {
                old.clone_from(new);
                stored.clone_from(new);
            }
        }
    }

    /// The transaction was rolled back: forgets everything.
    pub(crate) fn forget(&mut self) {
        *self = Overlay::default();
    }
}

fn bytes_of(row: &Option<Row>) -> usize {
    row.iter().flat_map(|row| row.iter()).map(Value::size).sum()
}

#[cfg(test)]
mod tests {
    //! Rows kept from one transaction to the next are bounded, even if all calls are refused: calls
    //! that named missing rows, or read large rows and were refused, once left rows in memory for ever.

    use std::convert::Infallible;

    use abide_schema::Table as _;
    use abide_store::RequestIdRow;

    use super::*;

    /// Writes all touched rows. Returns the first cell of each.
    fn write_all(overlay: &mut Overlay) -> Vec<Value> {
        let mut cells = Vec::new();
        let written: Result<(), Infallible> = overlay.write_touched(|_, _, row| {
            cells.push(row[0].clone());
            Ok(())
        });
        let Ok(()) = written;
        cells
    }

    fn row(cell: i64) -> Option<Row> {
        Some(Row::from([Value::Integer(cell)]))
    }

    fn key(nth: usize) -> [Value; 2] {
        [Value::from("local"), Value::Integer(i64::try_from(nth).unwrap_or(0))]
    }

    #[test]
    fn missing_rows_are_not_cached_without_limit() {
        let mut overlay = Overlay::default();
        for nth in 0..10 * CACHED_ROWS {
            overlay.record_read(RequestIdRow::SPEC, &key(nth), None);
            overlay.group_finished();
            assert!(overlay.rows.len() <= CACHED_ROWS);
        }
    }

    #[test]
    fn large_unmodified_rows_are_not_cached() {
        let mut overlay = Overlay::default();
        for (nth, bytes) in [CACHED_ROW_BYTES / 2, CACHED_ROW_BYTES * 2].into_iter().enumerate() {
            let row = Row::from([Value::Blob(vec![0; bytes])]);
            overlay.record_read(RequestIdRow::SPEC, &key(nth), Some(row));
        }
        overlay.group_finished();
        assert!(overlay.get(RequestIdRow::SPEC, &key(0)).is_some());
        assert!(overlay.get(RequestIdRow::SPEC, &key(1)).is_none());
    }

    /// Each read of many rows writes the touched ones first. A search for them among all changed rows
    /// once made cancelling 9,001 sessions take 37 s.
    #[test]
    fn flushing_touches_does_not_scan_all_changed_rows() {
        let mut overlay = Overlay::default();
        for nth in 0..1_000 {
            overlay.record_change(RequestIdRow::SPEC, &key(nth), row(0), row(1), RowWrite::Done);
            overlay.record_change(
                RequestIdRow::SPEC,
                &key(nth),
                row(1),
                row(2),
                RowWrite::Deferred,
            );
            overlay.record_change(
                RequestIdRow::SPEC,
                &key(nth),
                row(2),
                row(3),
                RowWrite::Deferred,
            );
            assert_eq!(write_all(&mut overlay), [Value::Integer(3)]);
            assert!(overlay.unwritten.is_empty());
        }
        assert_eq!(overlay.changes().len(), 1_000);
    }

    /// A unit writes a row touched by an earlier one, and is rolled back: the row must be written again.
    #[test]
    fn a_touch_survives_the_rollback_of_the_unit_that_wrote_it() {
        let mut overlay = Overlay::default();
        overlay.record_change(RequestIdRow::SPEC, &key(1), row(0), row(1), RowWrite::Deferred);
        overlay.begin_unit();
        assert_eq!(write_all(&mut overlay), [Value::Integer(1)]);
        overlay.record_change(RequestIdRow::SPEC, &key(1), row(1), row(2), RowWrite::Deferred);
        overlay.undo_unit();
        assert_eq!(write_all(&mut overlay), [Value::Integer(1)]);
        assert!(write_all(&mut overlay).is_empty());
    }

    /// All touched rows once counted as stored before the first was written. When that failed in a read of another
    /// unit, they were in the change log and in no table.
    #[test]
    fn a_touched_row_is_stored_only_when_it_was_written() {
        let mut overlay = Overlay::default();
        for nth in 0..3 {
            let cell = i64::try_from(nth).unwrap_or(0);
            overlay.record_change(
                RequestIdRow::SPEC,
                &key(nth),
                row(cell),
                row(10 + cell),
                RowWrite::Deferred,
            );
        }
        let written = overlay.write_touched(|_, _, row| {
            if row[0] == Value::Integer(11) { Err("it violates a constraint") } else { Ok(()) }
        });
        assert_eq!(written, Err("it violates a constraint"));
        assert_eq!(write_all(&mut overlay), [Value::Integer(11), Value::Integer(12)]);
        assert_eq!(overlay.changes().len(), 3);
    }
}
