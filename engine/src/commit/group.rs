//! A group: the units that share one record in the journal, so that one sync makes all of them durable.
//!
//! It is not SQLite's transaction, which holds many groups (`open_rows`). `writer` runs groups, and splits those that must run
//! again.

use abide_schema::{Refusal, limits};

use crate::commit::timers::DueRow;
use crate::commit::unit::{ReplyEnvelope, Unit, UnitOutcome};

/// Units that become durable together. Each is answered for itself.
#[derive(Debug)]
pub(crate) struct CommitGroup {
    pub(crate) units: Vec<Unit>,
    /// Whether each unit runs on a savepoint of its own: one was refused after it had written.
    pub(crate) on_savepoints: bool,
    /// Answers to units of an earlier group. They leave together with those of this group.
    pub(crate) held_answers: Vec<ReplyEnvelope>,
}

impl CommitGroup {
    pub(crate) fn new(units: Vec<Unit>, held_answers: Vec<ReplyEnvelope>) -> CommitGroup {
        CommitGroup { units, on_savepoints: false, held_answers }
    }

    /// The same units, each on its own savepoint.
    pub(crate) fn with_savepoints(self) -> CommitGroup {
        CommitGroup { on_savepoints: true, ..self }
    }

    /// The units after the first ones, if there are any. The held answers leave with the first ones.
    pub(crate) fn split_off(&mut self, first: usize) -> Option<CommitGroup> {
        let rest = self.units.split_off(first);
        let on_savepoints = self.on_savepoints;
        (!rest.is_empty())
            .then(|| CommitGroup { on_savepoints, ..CommitGroup::new(rest, Vec::new()) })
    }

    /// Takes the calls for due rows out of the group.
    pub(crate) fn take_due(&mut self) -> Vec<DueRow> {
        let due = self.units.extract_if(.., |unit| unit.due.is_some());
        due.filter_map(|unit| unit.due).map(|due| *due).collect()
    }

    /// Each unit alone. The held answers leave with the last one.
    pub(crate) fn split(self) -> Vec<CommitGroup> {
        let mut groups: Vec<CommitGroup> =
            self.units.into_iter().map(|unit| CommitGroup::new(vec![unit], Vec::new())).collect();
        if let Some(last) = groups.last_mut() {
            last.held_answers = self.held_answers;
        }
        groups
    }

    /// The same refusal for every unit.
    pub(crate) fn all_refused(&self, refusal: &Refusal) -> Vec<UnitOutcome> {
        self.units.iter().map(|_| UnitOutcome::Refused(refusal.clone())).collect()
    }

    /// Its weight in the queue of unsynced commits: one, and more if it is large, so that a sync, which
    /// all callers wait for, never covers many megabytes.
    pub(crate) fn weight(&self) -> usize {
        1 + self.units.iter().map(Unit::bytes).sum::<usize>() / limits::UNSYNCED_UNIT_BYTES
    }
}
