//! The change log: undo images of each commit, and their retention, which decides how far back a client can resume or
//! query.
//!
//! It is pruned after commits, a bounded slice at a time: whatever the setting, and however much was kept
//! before, no commit is delayed by more than a few milliseconds.

use std::time::Duration;

use abide_schema::{Micros, Seq, TableSpec, Value, limits};
use abide_store::{StoreError, Writer, change_log};

use crate::commit::overlay::NetChange;

/// Maximum events pruned after one commit: twice as many as the largest commit adds.
const SLICE: i64 = 2_000;

/// Bytes of undo images after which no further event is pruned after one commit, unless the commit has added more: the
/// log must not grow. To delete a value, SQLite reads all its pages.
const SLICE_BYTES: i64 = 16 << 20;

/// Limits of the change log. Entries beyond either limit are pruned; without limits, none are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Maximum number of events.
    pub events: Option<u64>,
    /// Maximum age.
    pub age: Option<Duration>,
}

impl Default for Retention {
    /// [`limits::CHANGE_LOG_EVENTS`] events, of any age.
    fn default() -> Retention {
        Retention { events: Some(limits::CHANGE_LOG_EVENTS), age: None }
    }
}

/// The writer's view of the change log.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    retention: Retention,
    /// The tables with undo images.
    tables: Vec<&'static TableSpec>,
    /// The log is complete from here on.
    floor: Seq,
    /// Time of the first event above the floor, once looked up.
    oldest_at: Option<Micros>,
    /// Bytes of the undo images since the last commit.
    bytes_added: i64,
}

impl ChangeLog {
    pub(crate) fn new(
        retention: Retention,
        tables: Vec<&'static TableSpec>,
        floor: Seq,
    ) -> ChangeLog {
        ChangeLog { retention, tables, floor, oldest_at: None, bytes_added: 0 }
    }

    pub(crate) fn floor(&self) -> Seq {
        self.floor
    }

    /// Stores the old images of a group, one row per table.
    pub(crate) fn record(
        &mut self,
        store: &Writer,
        changes: &[NetChange],
        from: Seq,
        to: Seq,
    ) -> Result<(), StoreError> {
        for table in &self.tables {
            let mut images = Vec::new();
            for change in changes.iter().filter(|change| change.table.name == table.name) {
                match (&change.old, &change.new) {
                    (Some(old), Some(new)) => {
                        change_log::encode_change(table, old, new, &mut images);
                    }
                    (Some(old), None) => change_log::encode_cells(1, old.iter(), &mut images),
                    (None, Some(new)) => {
                        change_log::encode_cells(0, &table.key_of(new), &mut images);
                    }
                    (None, None) => {}
                }
            }
            if !images.is_empty() {
                self.bytes_added += images.len() as i64;
                store.log_changes(table, from, to, images)?;
            }
        }
        Ok(())
    }

    /// Prunes a slice of expired entries after a commit, in a separate transaction.
    pub(crate) fn prune(
        &mut self,
        store: &Writer,
        head: Seq,
        now: Micros,
    ) -> Result<(), StoreError> {
        let max_bytes = std::mem::take(&mut self.bytes_added).max(SLICE_BYTES);
        let max = Seq(self.floor.0.saturating_add(SLICE).min(head.0));
        let by_age = self.floor_by_age(store, now, max)?;
        let allowed = self.floor_by_count(head).max(by_age).min(max);
        if allowed <= self.floor {
            return Ok(());
        }
        let floor = self.floor_by_bytes(store, allowed, max_bytes)?;
        store.begin()?;
        store.prune_change_log(floor)?;
        store.commit()?;
        self.floor = floor;
        self.oldest_at = None;
        Ok(())
    }

    /// Returns the first floor below which are more than `max_bytes`, or `floor` if that is lower. It is above the
    /// current floor.
    fn floor_by_bytes(
        &self,
        store: &Writer,
        floor: Seq,
        max_bytes: i64,
    ) -> Result<Seq, StoreError> {
        let sql =
            "SELECT seq, length(images) FROM change_log WHERE seq > ?1 AND seq <= ?2 ORDER BY seq";
        let mut last = self.floor.0;
        let mut bytes = 0;
        let mut within = None;
        store.run(sql, &[self.floor.0.into(), floor.0.into()], &mut |row| {
            let [Value::Integer(seq), Value::Integer(length)] = row else { return };
            // An event can have images of several tables, which are deleted together.
            if bytes > max_bytes && *seq > last && within.is_none() {
                within = Some(Seq(last));
            }
            bytes += length;
            last = *seq;
        })?;
        Ok(within.unwrap_or(floor))
    }

    /// Returns the new floor by count; the current floor while only few entries are over the limit.
    fn floor_by_count(&self, head: Seq) -> Seq {
        let Some(events) = self.retention.events else { return self.floor };
        let events = i64::try_from(events).unwrap_or(i64::MAX);
        let floor = Seq(head.0.saturating_sub(events));
        // Not at every commit: a transaction costs the same for one entry as for a thousand.
        let step = (events / 8).clamp(1, SLICE / 2);
        if floor.0 < self.floor.0.saturating_add(step) { self.floor } else { floor }
    }

    /// Returns the new floor by age; the current floor while only few entries are over the limit.
    fn floor_by_age(&mut self, store: &Writer, now: Micros, max: Seq) -> Result<Seq, StoreError> {
        let Some(age) = self.retention.age else { return Ok(self.floor) };
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let oldest_at = match self.oldest_at {
            Some(at) => at,
            None => {
                let sql = "SELECT at FROM events WHERE seq = ?1";
                let Some(at) = read_integer(store, sql, &[self.floor.0 + 1])? else {
                    return Ok(self.floor);
                };
                *self.oldest_at.insert(Micros(at))
            }
        };
        // Not at every commit, as above.
        if now.0.saturating_sub(oldest_at.0) < age.saturating_add(age / 64) {
            return Ok(self.floor);
        }
        let sql = "SELECT seq FROM events WHERE seq > ?1 AND seq <= ?2 AND at <= ?3
            ORDER BY seq DESC LIMIT 1";
        let last = read_integer(store, sql, &[self.floor.0, max.0, now.0.saturating_sub(age)])?;
        Ok(last.map_or(self.floor, Seq))
    }
}

/// Returns the integer that a statement selects, if it selects a row.
fn read_integer(store: &Writer, sql: &str, params: &[i64]) -> Result<Option<i64>, StoreError> {
    let params: Vec<Value> = params.iter().map(|n| Value::Integer(*n)).collect();
    let mut found = None;
    store.run(sql, &params, &mut |row| {
        if let [Value::Integer(n)] = row {
            found = Some(*n);
        }
    })?;
    Ok(found)
}
