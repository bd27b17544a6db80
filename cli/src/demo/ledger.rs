//! What the play is held to at the end: every acknowledged write, and every time a tool was run. It
//! lives in this process, which survives the server.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use abide_client::Seq;
use serde_json::Value as JsonValue;
use tokio::sync::watch;

/// A write that the server said is durable.
#[derive(Debug)]
pub(crate) struct Acknowledged {
    /// Its place in the log, as it was told.
    pub(crate) seq: Seq,
    /// The rule that ran.
    pub(crate) reducer: &'static str,
    /// With these arguments.
    pub(crate) arguments: JsonValue,
}

/// How far the play is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Writes that were acknowledged.
    pub(crate) acknowledged: u64,
    /// The largest seq among them.
    pub(crate) head: Seq,
    /// Conversations played to their end.
    pub(crate) sessions: u64,
    /// Messages appended.
    pub(crate) messages: u64,
    /// Tool calls asked for.
    pub(crate) calls: u64,
    /// Handoffs asked for.
    pub(crate) handoffs: u64,
    /// Updates that subscriptions were given.
    pub(crate) deltas: u64,
    /// Claims that another worker had won.
    pub(crate) races_lost: u64,
}

/// The books.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    counts: watch::Sender<Counts>,
    acknowledged: Mutex<Vec<Acknowledged>>,
    runs: Mutex<BTreeMap<String, u64>>,
}

impl Ledger {
    /// The server said that this is durable.
    pub(crate) fn acknowledge(&self, seq: Seq, reducer: &'static str, arguments: JsonValue) {
        lock(&self.acknowledged).push(Acknowledged { seq, reducer, arguments });
        self.count(|counts| {
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

    /// A tool is run, with all that it does to the world.
    pub(crate) fn run(&self, call_id: &str) {
        *lock(&self.runs).entry(call_id.to_owned()).or_default() += 1;
    }

    /// Something is counted.
    pub(crate) fn count(&self, what: impl FnOnce(&mut Counts)) {
        self.counts.send_modify(what);
    }

    /// The counts, now and as they change.
    pub(crate) fn counts(&self) -> watch::Receiver<Counts> {
        self.counts.subscribe()
    }

    /// All acknowledged writes, by their place.
    pub(crate) fn acknowledged(&self) -> Vec<Acknowledged> {
        let mut all = std::mem::take(&mut *lock(&self.acknowledged));
        all.sort_by_key(|write| write.seq);
        all
    }

    /// How many calls were run, and how many of them more than once.
    pub(crate) fn runs(&self) -> (u64, u64) {
        let runs = lock(&self.runs);
        let twice = runs.values().filter(|times| **times > 1).count();
        (runs.len() as u64, twice as u64)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panicked with it has ended the play already.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_of_a_call_is_noticed() {
        let ledger = Ledger::default();
        ledger.run("demo-1/3/0");
        ledger.run("demo-1/5/0");
        assert_eq!(ledger.runs(), (2, 0));
        ledger.run("demo-1/3/0");
        assert_eq!(ledger.runs(), (2, 1));
    }
}
