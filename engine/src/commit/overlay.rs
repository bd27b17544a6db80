//! The rows that the open group has read and changed so far. In this file a transaction is the open group, not
//! SQLite's transaction, which holds many.
//!
//! It is three things at once: a cache, so that a row is read from SQLite once; the buffer of
//! touches, so that a row touched by many calls is written once; and the record of net changes
//! (old, new) for undo images and live deltas.

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

/// A touched row to be written.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub(crate) table: &'static TableSpec,
    pub(crate) stored: Row,
    pub(crate) row: Row,
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
const KEPT_ROWS: usize = 4_096;

/// The largest kept row in bytes, to bound memory.
const KEPT_ROW_BYTES: usize = 1_024;

impl Overlay {
    /// The row of a key, if known: `Some(None)` is a row known not to exist.
    pub(crate) fn get(&self, table: &'static TableSpec, key: &[Value]) -> Option<Option<Row>> {
        self.rows.get(&RowKey::new(table, key)).map(|state| state.new.clone())
    }

    /// Records a row that was read.
    pub(crate) fn note(&mut self, table: &'static TableSpec, key: &[Value], row: Option<Row>) {
        let place = RowKey::new(table, key);
        if bytes_of(&row) > KEPT_ROW_BYTES {
            // Checked at the end of the transaction, and not kept.
            self.changed.push(place.clone());
        }
        let state = RowState { table, old: row.clone(), new: row.clone(), stored: row };
        self.rows.entry(place).or_insert(state);
    }

    /// SQLite's version of a known row.
    pub(crate) fn stored(&self, table: &'static TableSpec, key: &[Value]) -> Option<Row> {
        self.rows.get(&RowKey::new(table, key))?.stored.clone()
    }

    /// Records a changed row. `before` is its old state, for a row that is not known yet.
    pub(crate) fn change(
        &mut self,
        table: &'static TableSpec,
        key: &[Value],
        before: Option<Row>,
        new: Option<Row>,
        write: RowWrite,
    ) {
        let place = RowKey::new(table, key);
        let state = self.rows.entry(place.clone()).or_insert_with(|| {
            let [old, new, stored] = [before.clone(), before.clone(), before.clone()];
            RowState { table, old, new, stored }
        });
        if let Some(undo) = &mut self.undo {
            undo.push((place.clone(), state.clone()));
        }
        if state.old == state.new {
            self.changed.push(place.clone());
        }
        state.new = new;
        match write {
            RowWrite::Done => state.stored.clone_from(&state.new),
            RowWrite::Deferred => self.unwritten.push(place),
        }
    }

    /// Takes the touched rows to be written.
    pub(crate) fn take_unwritten(&mut self) -> Vec<PendingWrite> {
        let mut touched = Vec::new();
        for place in self.unwritten.drain(..) {
            let Some(state) = self.rows.get_mut(&place) else { continue };
            let (Some(stored), Some(row)) = (&state.stored, &state.new) else { continue };
            if Arc::ptr_eq(stored, row) {
                continue;
            }
            let table = state.table;
            let stored = Arc::clone(stored);
            let row = Arc::clone(row);
            if let Some(undo) = &mut self.undo {
                undo.push((place, state.clone()));
            }
            state.stored = Some(Arc::clone(&row));
            touched.push(PendingWrite { table, stored, row });
        }
        touched
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
        for (place, state) in self.undo.take().unwrap_or_default().into_iter().rev() {
            if state.new != state.stored {
                // Touched before the unit, and possibly written by it.
                self.unwritten.push(place.clone());
            }
            self.rows.insert(place, state);
        }
    }

    /// The net changes of the transaction, in the order of the first change of each row.
    pub(crate) fn changes(&self) -> Vec<NetChange> {
        let mut seen = HashSet::with_capacity(self.changed.len());
        let places = self.changed.iter().filter(|place| seen.insert(*place));
        let states = places.filter_map(|place| self.rows.get(place));
        let changed = states.filter(|state| state.old != state.new);
        let net = changed.map(|state| NetChange {
            table: state.table,
            old: state.old.clone(),
            new: state.new.clone(),
        });
        net.collect()
    }

    /// The transaction was committed: its rows are now the old ones. Small recently used rows
    /// are kept.
    pub(crate) fn group_finished(&mut self) {
        self.undo = None;
        self.unwritten.clear();
        if self.rows.len() > KEPT_ROWS {
            self.forget();
            return;
        }
        for place in self.changed.drain(..) {
            let MapEntry::Occupied(mut entry) = self.rows.entry(place) else { continue };
            let RowState { table, old, new, stored } = entry.get_mut();
            if new.is_none() || table.numbered() || bytes_of(new) > KEPT_ROW_BYTES {
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
mod tests;
