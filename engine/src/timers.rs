//! What time itself does: rows that wait for a moment, and the calls that are made when it has come.
//!
//! The moments stand in the rows, as modules declare ([`Deadline`]); here is only, for each kind, a
//! bound before which nothing is due. So a million rows that wait cost nothing to anybody: the index
//! is looked at when the bound is reached, and never for more rows than one transaction takes.
//!
//! The writer asks before each of its transactions. What is due runs first, as ordinary calls of the
//! caller `system`, so a call never sees a world in which something was due before it (unless more was
//! due than one transaction takes). A row's moment stands in the event's arguments: a replay runs the
//! same calls again and asks no clock. What came due while nobody had the file open is due at the start.

use std::time::Duration;

use abide_schema::reducer::Deadline;
use abide_schema::{Code, Micros, Module, Refusal, Value, limits};
use abide_store::{StoreError, Writer};
use serde_json::{Map, Value as JsonValue};

use crate::overlay::NetChange;

/// How long the writer sleeps at most while something waits: the machine's clock may be set, or the
/// machine be put to sleep, and no wait would hear of it.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How long a kind rests after the storage could not take it on.
const REST_MS: i64 = 1_000;

/// A row whose moment has come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Due {
    /// Which kind, by its place.
    kind: usize,
    /// The reducer to be called.
    pub(crate) reducer: &'static str,
    /// The row's key and its moment, by name.
    pub(crate) arguments: JsonValue,
    at: Micros,
}

/// Rows of one table that wait for the moment in one column.
#[derive(Debug)]
struct Kind {
    deadline: Deadline,
    column: usize,
    /// The first rows that wait, by their moments.
    sql: String,
    /// Nothing is due before it. `None` where nothing waits.
    next: Option<Micros>,
    /// What was refused, or done in vain: passed over as long as it still waits.
    stuck: Vec<Stuck>,
    /// What the last transaction did, and should wait no more.
    done: Vec<JsonValue>,
}

/// A row that is passed over.
#[derive(Debug)]
struct Stuck {
    arguments: JsonValue,
    /// Why, until it was told: a row that moved on in the same transaction is no news.
    untold: Option<Refusal>,
}

impl Kind {
    fn new(deadline: Deadline) -> Kind {
        let column = deadline.table.column(deadline.column);
        let column = column.expect("a deadline's column was looked up when it was declared");
        let sql = deadline.query();
        let next = Some(Micros(i64::MIN));
        Kind { deadline, column, sql, next, stuck: Vec::new(), done: Vec::new() }
    }

    /// The arguments of the call for one row: `(moment, key…)`.
    fn arguments(&self, row: &[Value]) -> JsonValue {
        let table = self.deadline.table;
        let names = table.key.iter().map(|at| table.columns[*at].name);
        let names = std::iter::once(self.deadline.column).chain(names);
        let named = names.zip(row).map(|(name, cell)| (name.to_owned(), cell.to_json()));
        JsonValue::Object(named.collect::<Map<_, _>>())
    }

    /// Adds what is due, and notes when to look again.
    fn look(
        &mut self,
        kind: usize,
        store: &Writer,
        now: Micros,
        into: &mut Vec<Due>,
    ) -> Result<(), StoreError> {
        // As many as are taken, those that are passed over, and the one that tells when to look again.
        let most = self.deadline.per_commit;
        let rows = most + self.stuck.len() + 1;
        let mut found = Vec::new();
        store.run(&self.sql, &[Value::Integer(rows as i64)], &mut |row| {
            if let [Value::Integer(at), ..] = row {
                found.push((Micros(*at), self.arguments(row)));
            }
        })?;
        let in_vain = std::mem::take(&mut self.done).into_iter();
        let in_vain = in_vain.filter(|done| found.iter().any(|(_, arguments)| arguments == done));
        self.stuck
            .extend(in_vain.map(|arguments| Stuck { arguments, untold: Some(in_vain_why()) }));
        self.stuck.retain(|stuck| found.iter().any(|(_, arguments)| *arguments == stuck.arguments));
        for Stuck { arguments, untold } in &mut self.stuck {
            if let Some(refusal) = untold.take() {
                let reducer = self.deadline.reducer.name;
                tracing::error!(reducer, %arguments, %refusal, "what is due is refused");
            }
        }
        self.next = None;
        if self.stuck.len() >= limits::DUE_STUCK {
            return Ok(());
        }
        let mut taken = 0;
        for (at, arguments) in found {
            if self.stuck.iter().any(|stuck| stuck.arguments == arguments) {
                continue;
            }
            if at > now || taken == most {
                self.next = Some(at);
                break;
            }
            taken += 1;
            into.push(Due { kind, reducer: self.deadline.reducer.name, arguments, at });
        }
        Ok(())
    }
}

/// A reducer that leaves its row due would be called again and again, an event each time, for ever. (So
/// would one whose row an index of a damaged file still names.)
fn in_vain_why() -> Refusal {
    Refusal::new(Code::Internal, "it was done, and is due all the same")
}

/// Everything that waits for a moment. See the module.
#[derive(Debug)]
pub(crate) struct Timers {
    kinds: Vec<Kind>,
}

impl Timers {
    /// The deadlines of these modules.
    pub(crate) fn new(modules: &[Module]) -> Timers {
        let deadlines = modules.iter().flat_map(|module| &module.deadlines);
        Timers { kinds: deadlines.map(|deadline| Kind::new(*deadline)).collect() }
    }

    /// How long nothing is due; `None` where nothing waits at all.
    pub(crate) fn sleep(&self, now: Micros) -> Option<Duration> {
        let next = self.kinds.iter().filter_map(|kind| kind.next).min()?;
        let us = u64::try_from(next.0.saturating_sub(now.0)).unwrap_or(0);
        Some(Duration::from_micros(us).min(LONGEST_SLEEP))
    }

    /// What is due now, in the order of the moments: as much as one transaction takes.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) fn due(&mut self, store: &Writer, now: Micros) -> Result<Vec<Due>, StoreError> {
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

    /// Takes in what a transaction changed: something may be due earlier than was known.
    pub(crate) fn note(&mut self, changes: &[NetChange]) {
        for change in changes {
            let Some(new) = &change.new else { continue };
            for kind in &mut self.kinds {
                if kind.deadline.table.name != change.table.name {
                    continue;
                }
                if let Value::Integer(at) = new[kind.column] {
                    let at = Micros(at);
                    // Whether the row waits is the condition's to say; looking once too often is harmless.
                    kind.next = Some(kind.next.map_or(at, |next| next.min(at)));
                }
            }
        }
    }

    /// Takes in that a row was taken on.
    pub(crate) fn done(&mut self, due: &Due) {
        self.kinds[due.kind].done.push(due.arguments.clone());
    }

    /// Takes in that a row was not taken on. What the storage refused for now is tried again in a
    /// while, what the reducer refused is passed over: it would say the same again.
    pub(crate) fn refused(&mut self, due: &Due, refusal: &Refusal, now: Micros) {
        let kind = &mut self.kinds[due.kind];
        if refusal.code.retryable() {
            kind.next = Some(now.plus_ms(REST_MS));
            return;
        }
        let (arguments, untold) = (due.arguments.clone(), Some(refusal.clone()));
        kind.stuck.push(Stuck { arguments, untold });
        // What stands behind it may be due as well.
        kind.next = Some(now);
    }

    /// Everything rests for a while: the storage could not be asked.
    pub(crate) fn rest(&mut self, now: Micros) {
        for kind in &mut self.kinds {
            kind.next = kind.next.map(|next| next.max(now.plus_ms(REST_MS)));
        }
    }
}
