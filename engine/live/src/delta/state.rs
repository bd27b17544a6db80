//! The cached state of one binding's result between commits. It can be rebuilt from the tables, so
//! it may be dropped at any time; without it a delta is slower but the same.

use std::collections::HashMap;

use abide_schema::Row;

use crate::delta::accumulator::{GroupState, row_bytes};
use crate::delta::exact::ExactRow;

/// Cached rows or groups of one binding.
const ENTRIES: usize = 10_000;
/// Cached bytes of one binding.
const BYTES: usize = 1 << 20;

/// The cached state.
#[derive(Debug, Default)]
pub(crate) struct RuleState {
    pub(crate) memory: RememberedRows,
    bytes: usize,
}

/// The state by rule.
#[derive(Debug, Default)]
pub(crate) enum RememberedRows {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The last result, in order.
    Rows(Vec<Row>),
    /// The groups that commits touched, by the group's values.
    Groups(HashMap<ExactRow, GroupState>),
}

impl RuleState {
    /// Returns its approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets everything.
    pub(crate) fn forget(&mut self) {
        *self = RuleState::default();
    }

    /// Takes the last result, if cached. The caller must put it back.
    pub(crate) fn take_rows(&mut self) -> Option<Vec<Row>> {
        match std::mem::take(self).memory {
            RememberedRows::Rows(rows) => Some(rows),
            RememberedRows::Nothing | RememberedRows::Groups(_) => None,
        }
    }

    /// Caches the current result, unless it is too large.
    pub(crate) fn keep_rows(&mut self, rows: Vec<Row>) {
        self.forget();
        let bytes = rows.iter().map(|row| row_bytes(row)).sum();
        if rows.len() <= ENTRIES && bytes <= BYTES {
            *self = RuleState { memory: RememberedRows::Rows(rows), bytes };
        }
    }

    /// Takes the state of a group. The caller must put it back.
    pub(crate) fn take_group(&mut self, group: &Row) -> Option<GroupState> {
        let RememberedRows::Groups(groups) = &mut self.memory else { return None };
        let taken = groups.remove(&ExactRow(group.clone()))?;
        self.bytes = self.bytes.saturating_sub(row_bytes(group) + taken.bytes());
        Some(taken)
    }

    /// Caches a group. If there are too many, the previous ones are dropped.
    pub(crate) fn keep_group(&mut self, group: Row, known: GroupState) {
        let bytes = row_bytes(&group) + known.bytes();
        if bytes > BYTES {
            return;
        }
        if self.bytes + bytes > BYTES {
            self.forget();
        }
        if !matches!(&self.memory, RememberedRows::Groups(groups) if groups.len() < ENTRIES) {
            *self = RuleState { memory: RememberedRows::Groups(HashMap::new()), bytes: 0 };
        }
        if let RememberedRows::Groups(groups) = &mut self.memory {
            groups.insert(ExactRow(group), known);
            self.bytes += bytes;
        }
    }
}
