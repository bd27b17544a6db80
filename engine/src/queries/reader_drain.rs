//! Ends the snapshots that prevent SQLite from starting a long WAL again.
//!
//! SQLite starts the WAL again from its beginning only if all of it is in the file and no snapshot uses it. Queries of seconds
//! that overlap never leave such a moment, so the WAL grows as long as they go on. When the WAL is long, the checkpointer
//! *drains* the readers: no query begins, running queries have some time to end, and the others are interrupted.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use abide_store::InterruptHandle;

use crate::locks::{Condvar, Mutex, MutexGuard};

/// The time that running queries have to end. An ordinary query takes some milliseconds.
const GRACE: Duration = Duration::from_millis(100);

/// The longest wait for interrupted queries. Some work has no limits and is not interrupted: reads of the change log, planning,
/// and checks of arguments that readers make for the writer.
const INTERRUPT_WAIT: Duration = Duration::from_millis(500);

/// The queries that run, and whether new ones wait.
#[derive(Debug, Default)]
pub(crate) struct ReaderDrain {
    state: Mutex<DrainState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct DrainState {
    /// The number of drains that have not ended.
    drains: usize,
    next_key: u64,
    running: BTreeMap<u64, InterruptHandle>,
}

/// A query that runs.
#[derive(Debug)]
#[must_use = "dropping it ends the query for a drain"]
pub(crate) struct AdmittedQuery {
    drain: Arc<ReaderDrain>,
    key: u64,
}

/// No query begins until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets queries begin"]
pub(crate) struct DrainedReaders(Arc<ReaderDrain>);

impl ReaderDrain {
    /// Registers a query on the reader of this handle, after the end of a drain.
    pub(crate) fn admit(self: &Arc<Self>, reader: InterruptHandle) -> AdmittedQuery {
        let waited = self.changed.wait_while(self.lock(), |state| state.drains > 0);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        // An interrupt of an earlier query must not end this one.
        reader.resume_after_checkpoint();
        let key = state.next_key;
        state.next_key += 1;
        state.running.insert(key, reader);
        AdmittedQuery { drain: Arc::clone(self), key }
    }

    /// Returns when no query runs, or when those that run do not end in time.
    pub(crate) fn drain(self: &Arc<Self>) -> DrainedReaders {
        let mut state = self.lock();
        state.drains += 1;
        let drained = DrainedReaders(Arc::clone(self));
        state = self.wait_for_end(state, GRACE);
        state.running.values().for_each(InterruptHandle::interrupt_for_checkpoint);
        drop(self.wait_for_end(state, INTERRUPT_WAIT));
        drained
    }

    fn wait_for_end<'a>(
        &self,
        state: MutexGuard<'a, DrainState>,
        most: Duration,
    ) -> MutexGuard<'a, DrainState> {
        let waited =
            self.changed.wait_timeout_while(state, most, |state| !state.running.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, DrainState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AdmittedQuery {
    fn drop(&mut self) {
        self.drain.lock().running.remove(&self.key);
        self.drain.changed.notify_all();
    }
}

impl Drop for DrainedReaders {
    fn drop(&mut self) {
        self.0.lock().drains -= 1;
        self.0.changed.notify_all();
    }
}
