//! The thread that makes groups durable ([`Syncer`]): it releases their replies and deltas only then.
//! [`Engine::apply`](crate::Engine::apply) has its reply before.
//!
//! A reply goes back to the task that waits in `Inner::submit`, a delta to the publisher
//! (`subscriptions/publisher.rs`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abide_schema::{Refusal, Seq};
use abide_store::Segment;
use tokio::sync::watch;

use crate::commit::queue::Queue;
use crate::commit::unit::ReplyEnvelope;
use crate::fault_points::{self, FaultPoint};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ports::{EngineThread, StepScheduler};
use crate::subscriptions::hub::Hub;
use crate::subscriptions::publisher::Publication;
use crate::subscriptions::shared_delta::Deltas;

/// A group that the writer has finished: its record is in the journal and not known to be synced. Without events it
/// only has answers, which leave after those of the groups before it.
#[derive(Debug)]
pub(crate) struct Commit {
    /// The last seq of the log after the group. Its replies refer to the state up to here.
    pub(crate) to: Seq,
    pub(crate) answers: Vec<ReplyEnvelope>,
    pub(crate) deltas: Deltas,
    /// Where its record is; `None` if it has no events.
    pub(crate) segment: Option<Arc<Segment>>,
}

impl Commit {
    /// A fault point: a correct build sends nothing here.
    pub(crate) fn release_early(&mut self, hub: &Hub, metrics: &Metrics) {
        if fault_points::answers_before_sync() {
            self.answers.drain(..).for_each(ReplyEnvelope::send);
        }
        if fault_points::publishes_before_sync() {
            hub.publish(self.to, &std::mem::take(&mut self.deltas), metrics);
        }
    }
}

/// A sync that takes longer is logged. A healthy disk takes milliseconds, so there is at most one such record a second.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// Makes the records of commits durable.
pub(crate) type SyncFn = Box<dyn Fn(&[Commit]) -> std::io::Result<()> + Send>;

/// Syncs each segment that has a record of these commits.
pub(crate) fn sync_segments(commits: &[Commit]) -> std::io::Result<()> {
    segments_of(commits).into_iter().try_for_each(|segment| segment.sync())
}

/// Returns the segments that have a record of these commits.
fn segments_of(commits: &[Commit]) -> Vec<&Arc<Segment>> {
    let mut segments: Vec<&Arc<Segment>> = Vec::new();
    for segment in commits.iter().filter_map(|commit| commit.segment.as_ref()) {
        if !segments.last().is_some_and(|last| Arc::ptr_eq(last, segment)) {
            segments.push(segment);
        }
    }
    segments
}

/// The sync thread. It ends when its queue is closed and drained.
pub(crate) struct Syncer {
    pub(crate) commits: Arc<Queue<Commit>>,
    pub(crate) to_publish: Arc<Queue<Publication>>,
    pub(crate) sync: SyncFn,
    /// The database, if it was removed or replaced.
    pub(crate) displaced: Box<dyn Fn() -> Option<PathBuf> + Send>,
    /// The last durable event.
    pub(crate) durable: watch::Sender<Seq>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) scheduler: Arc<dyn StepScheduler>,
}

impl Syncer {
    pub(crate) fn run(self) {
        let mut commits = Vec::new();
        loop {
            self.scheduler.wait(EngineThread::Sync);
            self.commits.take(usize::MAX, &mut commits);
            let Some(last) = commits.last() else { break };
            let begun = Instant::now();
            let outcome = self.make_durable(last.to, &commits);
            if outcome.is_err() {
                // Wakes waiters for states that will never be durable, so that they see the error.
                self.durable.send_modify(|_| {});
            }
            self.scheduler.at_fault_point(FaultPoint::Durable);
            // All replies are sent before the first delta, because the queue of the publisher may be full.
            for commit in &mut commits {
                self.answer(std::mem::take(&mut commit.answers), &outcome);
            }
            self.scheduler.at_fault_point(FaultPoint::Answered);
            for Commit { to, deltas, .. } in commits.drain(..) {
                if outcome.is_ok() {
                    self.publish(Publication { to, deltas, begun });
                }
            }
        }
        self.to_publish.close();
    }

    /// One sync for all waiting commits. It is never retried.
    fn make_durable(&self, to: Seq, commits: &[Commit]) -> Result<(), Refusal> {
        self.health.check()?;
        if *self.durable.borrow() >= to {
            return Ok(());
        }
        let started = Instant::now();
        self.scheduler.at_fault_point(FaultPoint::Sync);
        let synced = fault_points::sync_outcome((self.sync)(commits));
        self.scheduler.at_fault_point(FaultPoint::Synced);
        if let Err(error) = synced {
            self.health.poison(&error);
            return self.health.check();
        }
        self.check_files(commits);
        self.health.check()?;
        let took = started.elapsed();
        self.metrics.sync_seconds.add(took);
        if took >= SLOW_SYNC {
            let duration_ms = took.as_millis();
            tracing::warn!(name: "slow_sync", duration_ms, "a sync of the journal was slow: all callers wait for it");
        }
        self.durable.send_replace(to);
        Ok(())
    }

    /// Fails the engine if the database or the journal of these commits was removed or replaced: what was synced is
    /// then lost when the process ends, so it is not acknowledged.
    fn check_files(&self, commits: &[Commit]) {
        let segments = segments_of(commits);
        let displaced = segments.into_iter().find(|segment| !segment.is_in_place());
        if let Some(segment) = displaced {
            self.health.displaced(segment.path());
        } else if let Some(database) = (self.displaced)() {
            self.health.displaced(&database);
        }
    }

    fn answer(&self, answers: Vec<ReplyEnvelope>, outcome: &Result<(), Refusal>) {
        for ReplyEnvelope { reply, outcome: answer } in answers {
            ReplyEnvelope { reply, outcome: outcome.clone().and(answer) }.send();
        }
    }

    /// Passes a commit to the publisher. Commits with deltas wait while its queue is full, so that commits do not run
    /// further ahead of subscribers. Commits without subscribers wait for nothing, and consecutive ones are merged.
    fn publish(&self, commit: Publication) {
        if !commit.deltas.is_empty() {
            return self.to_publish.push_wait(commit, 1);
        }
        self.to_publish.push_or_merge(commit, |last, commit| {
            if !last.deltas.is_empty() {
                return Some(commit);
            }
            last.to = commit.to;
            None
        });
    }
}

/// Returns when a state is durable.
///
/// # Errors
/// The state will never be durable: the storage or a thread of the engine has failed.
pub(crate) async fn reached(
    durable: &watch::Receiver<Seq>,
    seq: Seq,
    health: &Health,
) -> Result<(), Refusal> {
    // The sync thread ends normally only when everything that was committed is durable.
    if is_reached(durable, seq, health).await? {
        Ok(())
    } else {
        Err(health.fail_for_dropped_reply())
    }
}

/// Waits until a state is durable, which may be a future one. `false` if the sync thread has ended before.
///
/// # Errors
/// The storage or a thread of the engine has failed.
pub(crate) async fn is_reached(
    durable: &watch::Receiver<Seq>,
    seq: Seq,
    health: &Health,
) -> Result<bool, Refusal> {
    let mut durable = durable.clone();
    loop {
        if *durable.borrow_and_update() >= seq {
            return Ok(true);
        }
        health.check()?;
        if durable.changed().await.is_err() {
            return Ok(false);
        }
    }
}
