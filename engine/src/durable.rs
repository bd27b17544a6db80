//! The thread that makes commits durable, and only then lets anybody hear of them.

use std::sync::Arc;
use std::time::Instant;

use abide_live::BindingId;
use abide_schema::{Refusal, Seq};
use abide_store::WalSync;
use tokio::sync::{oneshot, watch};

use crate::execute::CallDone;
use crate::health::Health;
use crate::hub::{Hub, SharedDelta};
use crate::metrics::Metrics;
use crate::queue::Queue;

/// What became of a unit, and who waits to hear it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: oneshot::Sender<Result<UnitDone, Refusal>>,
    pub(crate) outcome: Result<UnitDone, Refusal>,
}

/// What a unit did.
#[derive(Debug)]
pub(crate) struct UnitDone {
    /// One for each call.
    pub(crate) calls: Vec<CallDone>,
    /// Whether an earlier request had done it.
    pub(crate) duplicate: bool,
}

/// A transaction that is in the WAL.
#[derive(Debug)]
pub(crate) struct Commit {
    /// The head after it. Answers speak of the state up to here.
    pub(crate) to: Seq,
    pub(crate) answers: Vec<Answer>,
    pub(crate) deltas: Vec<(BindingId, Arc<SharedDelta>)>,
}

/// The sync thread. It ends when its queue is closed and drained.
#[derive(Debug)]
pub(crate) struct Syncer {
    pub(crate) commits: Arc<Queue<Commit>>,
    pub(crate) to_publish: Arc<Queue<Published>>,
    pub(crate) wal: WalSync,
    /// The last event that is on the disk.
    pub(crate) durable: watch::Sender<Seq>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
}

/// A commit on its way to its subscribers.
pub(crate) type Published = (Seq, Vec<(BindingId, Arc<SharedDelta>)>);

impl Syncer {
    pub(crate) fn run(self) {
        let mut commits = Vec::new();
        loop {
            self.commits.take(usize::MAX, &mut commits);
            let Some(last) = commits.last() else { break };
            let outcome = self.make_durable(last.to);
            for commit in commits.drain(..) {
                self.answer(commit, &outcome);
            }
        }
        self.to_publish.close();
    }

    /// One sync for all commits that wait. It is never tried twice.
    fn make_durable(&self, to: Seq) -> Result<(), Refusal> {
        self.health.check()?;
        if *self.durable.borrow() >= to {
            return Ok(());
        }
        let started = Instant::now();
        if let Err(error) = self.wal.sync() {
            self.health.poison(&error);
            let poisoned = self.health.check();
            if let Err(why) = &poisoned {
                self.hub.end(why);
            }
            return poisoned;
        }
        self.metrics.syncs_total.add(1);
        let us = started.elapsed().as_micros();
        self.metrics.sync_us_total.add(u64::try_from(us).unwrap_or(u64::MAX));
        self.durable.send_replace(to);
        Ok(())
    }

    fn answer(&self, commit: Commit, outcome: &Result<(), Refusal>) {
        for Answer { reply, outcome: answer } in commit.answers {
            // Who does not wait any more has gone away; what was done stays done.
            let _ = reply.send(outcome.clone().and(answer));
        }
        if outcome.is_ok() {
            self.to_publish.push_wait((commit.to, commit.deltas), 1);
        }
    }
}

/// The thread that fills the outboxes. Apart from the sync thread, so that ten thousand listeners do
/// not hold up the next acknowledgement.
pub(crate) fn publish(queue: &Queue<Published>, hub: &Hub, metrics: &Metrics) {
    let mut commits = Vec::new();
    loop {
        queue.take(usize::MAX, &mut commits);
        if commits.is_empty() {
            return;
        }
        for (to, deltas) in commits.drain(..) {
            hub.publish(to, &deltas, metrics);
        }
    }
}
