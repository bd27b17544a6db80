//! How long the change log is kept: how far back a client can resume, and the past be asked.
//!
//! It is pruned after commits, a bounded slice at a time: whatever is set, and however much more was kept
//! before, no commit waits for more than a few milliseconds of it.

use std::time::Duration;

use abide_schema::{Micros, Seq, Value, limits};
use abide_store::{StoreError, Writer};

/// Events whose undo images one commit prunes at most: twice as many as the fullest commit adds.
const SLICE: i64 = 2_000;

/// How long the change log is kept. What is past either bound is forgotten; with neither, nothing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// For so many events.
    pub events: Option<u64>,
    /// For so long.
    pub age: Option<Duration>,
}

impl Default for Retention {
    /// For [`limits::CHANGE_LOG_EVENTS`] events, however old.
    fn default() -> Retention {
        Retention { events: Some(limits::CHANGE_LOG_EVENTS), age: None }
    }
}

/// The change log as the writer knows it.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    retention: Retention,
    /// From where on it is whole.
    floor: Seq,
    /// When the first event above the floor ran, once that was looked up.
    oldest_at: Option<Micros>,
}

impl ChangeLog {
    pub(crate) fn new(retention: Retention, floor: Seq) -> ChangeLog {
        ChangeLog { retention, floor, oldest_at: None }
    }

    pub(crate) fn floor(&self) -> Seq {
        self.floor
    }

    /// Forgets a slice of what is past its time, in a transaction of its own.
    pub(crate) fn prune(
        &mut self,
        store: &Writer,
        head: Seq,
        now: Micros,
    ) -> Result<(), StoreError> {
        let most = Seq(self.floor.0.saturating_add(SLICE).min(head.0));
        let by_age = self.past_its_age(store, now, most)?;
        let floor = self.past_its_count(head).max(by_age).min(most);
        if floor <= self.floor {
            return Ok(());
        }
        store.begin()?;
        store.set_change_log_floor(floor)?;
        store.prune_change_log(floor)?;
        store.commit()?;
        (self.floor, self.oldest_at) = (floor, None);
        Ok(())
    }

    /// Up to where there are too many; the floor itself as long as hardly any are.
    fn past_its_count(&self, head: Seq) -> Seq {
        let Some(events) = self.retention.events else { return self.floor };
        let events = i64::try_from(events).unwrap_or(i64::MAX);
        let floor = Seq(head.0.saturating_sub(events));
        // Not at every commit: a transaction costs the same for one as for a thousand.
        let step = (events / 8).clamp(1, SLICE / 2);
        if floor.0 < self.floor.0.saturating_add(step) { self.floor } else { floor }
    }

    /// Up to where they are too old; the floor itself as long as hardly any are.
    fn past_its_age(&mut self, store: &Writer, now: Micros, most: Seq) -> Result<Seq, StoreError> {
        let Some(age) = self.retention.age else { return Ok(self.floor) };
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let oldest_at = match self.oldest_at {
            Some(at) => at,
            None => {
                let sql = "SELECT at FROM events WHERE seq = ?1";
                let Some(at) = integer(store, sql, &[self.floor.0 + 1])? else {
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
        let last = integer(store, sql, &[self.floor.0, most.0, now.0.saturating_sub(age)])?;
        Ok(last.map_or(self.floor, Seq))
    }
}

/// The integer that a statement yields.
fn integer(store: &Writer, sql: &str, params: &[i64]) -> Result<Option<i64>, StoreError> {
    let params: Vec<Value> = params.iter().map(|n| Value::Integer(*n)).collect();
    let mut found = None;
    store.run(sql, &params, &mut |row| {
        if let [Value::Integer(n)] = row {
            found = Some(*n);
        }
    })?;
    Ok(found)
}
