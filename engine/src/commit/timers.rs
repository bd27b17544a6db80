//! Deadlines: rows that are due at a time, and the calls made when it has come.
//!
//! The due times are in the rows, as modules declare ([`Deadline`]); this module keeps only, for each kind, a
//! lower bound of the next due time. So a million waiting rows cost nothing: the index
//! is read when the bound is reached, and only for as many rows as one transaction processes.
//!
//! The writer checks before each of its transactions. Due rows run first, as ordinary calls of the
//! caller `system`, so no call sees a state with overdue rows (unless more are
//! due than one transaction processes). A row's due time is in the event's arguments: a replay runs the
//! same calls again without a clock. Rows that became due while no process had the file open run at the start.

use std::time::Duration;

use abide_schema::reducer::Deadline;
use abide_schema::{Code, Micros, Module, Refusal, Value, limits};
use abide_store::{StoreError, Writer};
use serde_json::{Map, Value as JsonValue};

use crate::commit::overlay::NetChange;

/// The longest sleep of the writer while rows wait: the machine's clock may be changed, or the
/// machine suspended, and neither ends a wait.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Pause of a kind after a storage error.
const REST_MS: i64 = 1_000;

/// A due row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DueRow {
    /// Its kind, as index.
    kind: usize,
    /// The reducer to call.
    pub(crate) reducer: &'static str,
    /// The row's key and due time, by name.
    pub(crate) arguments: JsonValue,
    at: Micros,
}

/// One deadline: rows of one table with due times in one column.
#[derive(Debug)]
struct DeadlineQueue {
    deadline: Deadline,
    column: usize,
    /// The query for the rows due first.
    sql: String,
    /// No row is due before this time. `None` if no rows wait.
    next: Option<Micros>,
    /// Rows whose call was refused or left them due: skipped while they still wait.
    skipped: Vec<SkippedRow>,
    /// Rows processed by the last transaction, which should no longer wait.
    done: Vec<JsonValue>,
}

/// A skipped row.
#[derive(Debug)]
struct SkippedRow {
    arguments: JsonValue,
    /// The reason, until it was logged: a row that moved on in the same transaction is not logged.
    unlogged: Option<Refusal>,
}

impl DeadlineQueue {
    fn new(deadline: Deadline) -> DeadlineQueue {
        let column = deadline.table.column(deadline.column);
        let column = column.expect("a deadline's column was looked up when it was declared");
        let sql = deadline.query();
        let next = Some(Micros(i64::MIN));
        DeadlineQueue { deadline, column, sql, next, skipped: Vec::new(), done: Vec::new() }
    }

    /// The arguments of the call for one row: `(time, key…)`.
    fn arguments(&self, row: &[Value]) -> JsonValue {
        let table = self.deadline.table;
        let names = table.key.iter().map(|at| table.columns[*at].name);
        let names = std::iter::once(self.deadline.column).chain(names);
        let named = names.zip(row).map(|(name, cell)| (name.to_owned(), cell.to_json()));
        JsonValue::Object(named.collect::<Map<_, _>>())
    }

    /// Adds the due rows, and records when to look again.
    fn look(
        &mut self,
        kind: usize,
        store: &Writer,
        now: Micros,
        into: &mut Vec<DueRow>,
    ) -> Result<(), StoreError> {
        // The processed rows, the skipped ones, and one more to know when to look again.
        let max = self.deadline.per_commit;
        let rows = max + self.skipped.len() + 1;
        let mut found = Vec::new();
        store.run(&self.sql, &[Value::Integer(rows as i64)], &mut |row| {
            if let [Value::Integer(at), ..] = row {
                found.push((Micros(*at), self.arguments(row)));
            }
        })?;
        let in_vain = std::mem::take(&mut self.done).into_iter();
        let in_vain = in_vain.filter(|done| found.iter().any(|(_, arguments)| arguments == done));
        self.skipped.extend(
            in_vain.map(|arguments| SkippedRow { arguments, unlogged: Some(why_not_done()) }),
        );
        self.skipped
            .retain(|skipped| found.iter().any(|(_, arguments)| *arguments == skipped.arguments));
        for SkippedRow { arguments, unlogged } in &mut self.skipped {
            if let Some(refusal) = unlogged.take() {
                let reducer = self.deadline.reducer.name;
                tracing::error!(reducer, %arguments, %refusal, "a deadline call was refused");
            }
        }
        self.next = None;
        if self.skipped.len() >= limits::DUE_STUCK {
            return Ok(());
        }
        let mut taken = 0;
        for (at, arguments) in found {
            if self.skipped.iter().any(|skipped| skipped.arguments == arguments) {
                continue;
            }
            if at > now || taken == max {
                self.next = Some(at);
                break;
            }
            taken += 1;
            into.push(DueRow { kind, reducer: self.deadline.reducer.name, arguments, at });
        }
        Ok(())
    }
}

/// A reducer that leaves its row due would be called again and again for ever, with an event each time. (The same
/// happens for a row that only the index of a damaged file contains.)
fn why_not_done() -> Refusal {
    Refusal::new(Code::Internal, "the reducer left its deadline due")
}

/// All deadlines. See the module.
#[derive(Debug)]
pub(crate) struct Timers {
    kinds: Vec<DeadlineQueue>,
}

impl Timers {
    /// The deadlines of these modules.
    pub(crate) fn new(modules: &[Module]) -> Timers {
        let deadlines = modules.iter().flat_map(|module| &module.deadlines);
        Timers { kinds: deadlines.map(|deadline| DeadlineQueue::new(*deadline)).collect() }
    }

    /// Time until something is due; `None` if no rows wait.
    pub(crate) fn sleep(&self, now: Micros) -> Option<Duration> {
        let next = self.kinds.iter().filter_map(|kind| kind.next).min()?;
        let us = u64::try_from(next.0.saturating_sub(now.0)).unwrap_or(0);
        Some(Duration::from_micros(us).min(LONGEST_SLEEP))
    }

    /// The rows due now, in order of their due times: as many as one transaction processes.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) fn due(&mut self, store: &Writer, now: Micros) -> Result<Vec<DueRow>, StoreError> {
        let mut due = Vec::new();
        for (at, kind) in self.kinds.iter_mut().enumerate() {
            if kind.next.is_some_and(|next| next <= now) {
                kind.look(at, store, now, &mut due)?;
            }
            kind.done.clear();
        }
        due.sort_by_key(|due| due.at);
        for left in due.drain(limits::DUE_PER_COMMIT.min(due.len())..) {
            let kind = &mut self.kinds[left.kind];
            kind.next = Some(kind.next.map_or(left.at, |next| next.min(left.at)));
        }
        Ok(due)
    }

    /// Processes the changes of a transaction: a row may be due earlier than the bound.
    pub(crate) fn note(&mut self, changes: &[NetChange]) {
        for change in changes {
            let Some(new) = &change.new else { continue };
            for kind in &mut self.kinds {
                if kind.deadline.table.name != change.table.name {
                    continue;
                }
                if let Value::Integer(at) = new[kind.column] {
                    let at = Micros(at);
                    // The condition decides whether the row waits; an unnecessary look is harmless.
                    kind.next = Some(kind.next.map_or(at, |next| next.min(at)));
                }
            }
        }
    }

    /// Records that a row was processed.
    pub(crate) fn done(&mut self, due: &DueRow) {
        self.kinds[due.kind].done.push(due.arguments.clone());
    }

    /// Records that a row was not processed. After a transient storage error it is retried
    /// later; after a refusal it is skipped, because the reducer would refuse again.
    pub(crate) fn refused(&mut self, due: &DueRow, refusal: &Refusal, now: Micros) {
        let kind = &mut self.kinds[due.kind];
        if refusal.code.retryable() {
            kind.next = Some(now.plus_ms(REST_MS));
            return;
        }
        let (arguments, unlogged) = (due.arguments.clone(), Some(refusal.clone()));
        kind.skipped.push(SkippedRow { arguments, unlogged });
        // Rows behind it may be due as well.
        kind.next = Some(now);
    }

    /// Pauses all deadlines: the storage could not be read.
    pub(crate) fn rest(&mut self, now: Micros) {
        for kind in &mut self.kinds {
            kind.next = kind.next.map(|next| next.max(now.plus_ms(REST_MS)));
        }
    }
}
