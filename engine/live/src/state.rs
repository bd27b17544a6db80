//! What is remembered of one binding's result from commit to commit. All of it can be had again from the
//! tables, so it may be dropped at any moment; without it a delta costs more and is the same.

use std::collections::HashMap;

use abide_schema::{Row, Value};

use crate::exact::Exact;
use crate::tally::Known;

/// Rows or groups that are remembered of one binding.
const ENTRIES: usize = 10_000;
/// Bytes that are remembered of one binding.
const BYTES: usize = 1 << 20;
/// Bytes of an entry beside its cells: the map's slot, the row's header, the counters.
const ENTRY_BYTES: usize = 128;

/// What is remembered.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) memory: Memory,
    bytes: usize,
}

/// By what the rule needs.
#[derive(Debug, Default)]
pub(crate) enum Memory {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The rows that were last shown, in order.
    Rows(Vec<Row>),
    /// What is known of the groups that commits have touched, by the group's values.
    Groups(HashMap<Exact, Known>),
}

impl State {
    /// Bytes that it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets everything.
    pub(crate) fn forget(&mut self) {
        *self = State::default();
    }

    /// The rows last shown, if they are remembered. They must be given back.
    pub(crate) fn take_rows(&mut self) -> Option<Vec<Row>> {
        match std::mem::take(self).memory {
            Memory::Rows(rows) => Some(rows),
            Memory::Nothing | Memory::Groups(_) => None,
        }
    }

    /// Remembers the rows that are shown now, unless they are many.
    pub(crate) fn keep_rows(&mut self, rows: Vec<Row>) {
        self.forget();
        let bytes = rows.iter().map(|row| row_bytes(row)).sum();
        if rows.len() <= ENTRIES && bytes <= BYTES {
            *self = State { memory: Memory::Rows(rows), bytes };
        }
    }

    /// What is remembered of a group. It must be given back.
    pub(crate) fn take_group(&mut self, group: &Row) -> Option<Known> {
        let Memory::Groups(groups) = &mut self.memory else { return None };
        let taken = groups.remove(&Exact(group.clone()))?;
        self.bytes = self.bytes.saturating_sub(row_bytes(group) + taken.bytes());
        Some(taken)
    }

    /// Remembers a group. Where there are too many, those known so far are forgotten.
    pub(crate) fn keep_group(&mut self, group: Row, known: Known) {
        let bytes = row_bytes(&group) + known.bytes();
        if bytes > BYTES {
            return;
        }
        if self.bytes + bytes > BYTES {
            self.forget();
        }
        if !matches!(&self.memory, Memory::Groups(groups) if groups.len() < ENTRIES) {
            *self = State { memory: Memory::Groups(HashMap::new()), bytes: 0 };
        }
        if let Memory::Groups(groups) = &mut self.memory {
            groups.insert(Exact(group), known);
            self.bytes += bytes;
        }
    }
}

/// Bytes of a row that is remembered, about.
pub(crate) fn row_bytes(row: &[Value]) -> usize {
    ENTRY_BYTES + row.iter().map(|cell| size_of::<Value>() + cell.size()).sum::<usize>()
}
