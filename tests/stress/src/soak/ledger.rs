//! The responses that clients received and the effects that workers ran: the expected content of
//! the file.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use abide_sim::checks::effects::Effects;
use serde_json::Value as JsonValue;

/// One acknowledged call.
#[derive(Clone, Debug)]
pub(crate) struct Acknowledged {
    /// The caller's identity in the log.
    pub(crate) identity: &'static str,
    pub(crate) request_id: String,
    pub(crate) reducer: String,
    pub(crate) arguments: JsonValue,
    pub(crate) seq: i64,
    pub(crate) result: JsonValue,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    output: Mutex<Vec<Acknowledged>>,
    effects: Mutex<Effects>,
    refused: AtomicU64,
    shown: AtomicU64,
    stopped: AtomicBool,
}

impl Ledger {
    pub(crate) fn add(&self, output: Acknowledged) {
        lock(&self.output).push(output);
    }

    pub(crate) fn output(&self) -> Vec<Acknowledged> {
        lock(&self.output).clone()
    }

    /// The number of acknowledged calls.
    pub(crate) fn count(&self) -> usize {
        lock(&self.output).len()
    }

    /// Records that a worker ran an effect; `once` if it must not run twice.
    pub(crate) fn note_run(&self, call_id: &str, once: bool) {
        lock(&self.effects).note_run(call_id, once);
    }

    pub(crate) fn effects(&self) -> Effects {
        lock(&self.effects).clone()
    }

    /// Records a refusal by a rule.
    pub(crate) fn note_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Records that a tenant received rows, all of them its own.
    pub(crate) fn note_rows(&self, rows: usize) {
        self.shown.fetch_add(rows as u64, Ordering::Relaxed);
    }

    pub(crate) fn row_count(&self) -> u64 {
        self.shown.load(Ordering::Relaxed)
    }

    /// Stops all clients after their current operation.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
