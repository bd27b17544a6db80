//! The ledger of acknowledged writes and tool executions. It is in this process, which survives the server.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use abide_client::Seq;
use serde_json::Value as JsonValue;
use tokio::sync::watch;

/// An acknowledged write.
#[derive(Debug)]
pub(crate) struct Acknowledged {
    /// Its seq.
    pub(crate) seq: Seq,
    /// The reducer.
    pub(crate) reducer: &'static str,
    /// Its arguments.
    pub(crate) arguments: JsonValue,
}

/// Progress of the demo.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Number of acknowledged writes.
    pub(crate) acknowledged: u64,
    /// The largest acknowledged seq.
    pub(crate) head: Seq,
    /// Completed conversations.
    pub(crate) sessions: u64,
    /// Appended messages.
    pub(crate) messages: u64,
    /// Requested tool calls.
    pub(crate) calls: u64,
    /// Requested handoffs.
    pub(crate) handoffs: u64,
    /// Updates that subscriptions received.
    pub(crate) deltas: u64,
    /// Claims that another worker won.
    pub(crate) races_lost: u64,
}

/// The ledger.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    counts: watch::Sender<Counts>,
    acknowledged: Mutex<Vec<Acknowledged>>,
    runs: Mutex<BTreeMap<String, u64>>,
}

impl Ledger {
    /// Records an acknowledged write.
    pub(crate) fn acknowledge(&self, seq: Seq, reducer: &'static str, arguments: JsonValue) {
        lock(&self.acknowledged).push(Acknowledged { seq, reducer, arguments });
        self.update_counts(|counts| {
            counts.acknowledged += 1;
            counts.head = counts.head.max(seq);
            match reducer {
                "append_message" => counts.messages += 1,
                "request_tool_call" => counts.calls += 1,
                "request_supervisor_handoff" => counts.handoffs += 1,
                _ => {}
            }
        });
    }

    /// Records an execution of a tool.
    pub(crate) fn record_execution(&self, call_id: &str) {
        *lock(&self.runs).entry(call_id.to_owned()).or_default() += 1;
    }

    /// Changes the counts.
    pub(crate) fn update_counts(&self, what: impl FnOnce(&mut Counts)) {
        self.counts.send_modify(what);
    }

    /// The counts, as a watch.
    pub(crate) fn subscribe_to_counts(&self) -> watch::Receiver<Counts> {
        self.counts.subscribe()
    }

    /// All acknowledged writes, by seq.
    pub(crate) fn acknowledged(&self) -> Vec<Acknowledged> {
        let mut all = std::mem::take(&mut *lock(&self.acknowledged));
        all.sort_by_key(|write| write.seq);
        all
    }

    /// Number of executed calls, and number of calls executed more than once.
    pub(crate) fn count_executions(&self) -> (u64, u64) {
        let runs = lock(&self.runs);
        let twice = runs.values().filter(|times| **times > 1).count();
        (runs.len() as u64, twice as u64)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panicked client has already ended the demo.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_of_a_call_is_noticed() {
        let ledger = Ledger::default();
        ledger.record_execution("demo-1/3/0");
        ledger.record_execution("demo-1/5/0");
        assert_eq!(ledger.count_executions(), (2, 0));
        ledger.record_execution("demo-1/3/0");
        assert_eq!(ledger.count_executions(), (2, 1));
    }
}
