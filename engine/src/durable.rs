//! The thread that makes commits durable, and only then lets anybody hear of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abide_live::BindingId;
use abide_schema::seeded::{Bug, makes};
use abide_schema::work::SharedWork;
use abide_schema::{Refusal, Seq};
use tokio::sync::{oneshot, watch};

use crate::execute::CallDone;
use crate::health::Health;
use crate::hub::{Hub, SharedDelta};
use crate::metrics::Metrics;
use crate::ports::{Point, Stage, Turns};
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
    /// Work that is to be done first: nothing of the unit was done yet, and no reply was sent.
    pub(crate) deferred: Vec<(usize, SharedWork)>,
}

/// A transaction that is in the WAL.
#[derive(Debug)]
pub(crate) struct Commit {
    /// The head after it. Answers speak of the state up to here.
    pub(crate) to: Seq,
    pub(crate) answers: Vec<Answer>,
    pub(crate) deltas: Vec<(BindingId, Arc<SharedDelta>)>,
}

/// Returns when every commit that was complete before the call is on the disk.
pub(crate) type MakeDurable = Box<dyn Fn() -> std::io::Result<()> + Send>;

/// The sync thread. It ends when its queue is closed and drained.
pub(crate) struct Syncer {
    pub(crate) commits: Arc<Queue<Commit>>,
    pub(crate) to_publish: Arc<Queue<Published>>,
    pub(crate) sync: MakeDurable,
    /// The last event that is on the disk.
    pub(crate) durable: watch::Sender<Seq>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) turns: Arc<dyn Turns>,
}

/// A commit on its way to its subscribers.
pub(crate) type Published = (Seq, Vec<(BindingId, Arc<SharedDelta>)>);

impl Syncer {
    pub(crate) fn run(self) {
        let mut commits = Vec::new();
        loop {
            self.turns.wait(Stage::Sync);
            self.commits.take(usize::MAX, &mut commits);
            let Some(last) = commits.last() else { break };
            let outcome = self.make_durable(last.to);
            if outcome.is_err() {
                // Whoever waits for what will never be durable looks up, and sees why.
                self.durable.send_modify(|_| {});
            }
            self.turns.reach(Point::Durable);
            // All answers before the first delta: that may have to wait for room.
            for commit in &mut commits {
                self.answer(std::mem::take(&mut commit.answers), &outcome);
            }
            self.turns.reach(Point::Answered);
            for Commit { to, deltas, .. } in commits.drain(..) {
                if outcome.is_ok() {
                    self.pass_on((to, deltas));
                }
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
        self.turns.reach(Point::Sync);
        let synced = (self.sync)();
        self.turns.reach(Point::Synced);
        if let Err(error) = synced.or_else(ignored) {
            self.health.poison(&error);
            return self.health.check();
        }
        self.metrics.syncs_total.add(1);
        let us = started.elapsed().as_micros();
        self.metrics.sync_us_total.add(u64::try_from(us).unwrap_or(u64::MAX));
        self.durable.send_replace(to);
        Ok(())
    }

    fn answer(&self, answers: Vec<Answer>, outcome: &Result<(), Refusal>) {
        for Answer { reply, outcome: answer } in answers {
            // Who does not wait any more has gone away; what was done stays done.
            let _ = reply.send(outcome.clone().and(answer));
        }
    }

    /// To the publisher. Deltas wait where it has as many as it may: commits do not run further ahead of
    /// who listens. One that nobody listens to waits for nothing, and two of them in a row are one.
    fn pass_on(&self, commit: Published) {
        if !commit.1.is_empty() {
            return self.to_publish.push_wait(commit, 1);
        }
        self.to_publish.join(commit, |(to, deltas), commit| {
            if !deltas.is_empty() {
                return Some(commit);
            }
            *to = commit.0;
            None
        });
    }
}

/// Returns when a state is on the disk.
///
/// # Errors
/// It never will be: the storage has failed, or a thread of the engine has.
pub(crate) async fn reached(
    durable: &watch::Receiver<Seq>,
    seq: Seq,
    health: &Health,
) -> Result<(), Refusal> {
    let mut durable = durable.clone();
    loop {
        if *durable.borrow_and_update() >= seq {
            return Ok(());
        }
        health.check()?;
        // The sync thread ends in order only when everything that was committed is durable.
        durable.changed().await.map_err(|_| health.dropped())?;
    }
}

/// For the seeded bug that takes a failed sync for a good one.
fn ignored(error: std::io::Error) -> std::io::Result<()> {
    if makes(Bug::SyncErrorIgnored) { Ok(()) } else { Err(error) }
}

/// What it costs to wake a connection and to write to its socket, whatever is written. Measured
/// (`abide-bench -- live`): it was five to ten microseconds, most of it the system's.
const DELIVERY: Duration = Duration::from_micros(10);
/// Pauses below this are not worth a sleep.
const PAUSE_LEAST: Duration = Duration::from_micros(100);
/// The longest that a commit waits for the one before it to be delivered.
const PAUSE_MOST: Duration = Duration::from_millis(10);

/// The thread that fills the outboxes. Apart from the sync thread, so that ten thousand listeners do
/// not hold up the next acknowledgement.
///
/// Where commits come faster than all who listen can be written to, it leaves deliveries half of the
/// machine and lets commits gather meanwhile: their frames then leave in one write for each
/// connection. Otherwise those who listen would slow down those who call, and with them themselves. A
/// commit that follows none so closely never waits.
pub(crate) fn publish(queue: &Queue<Published>, hub: &Hub, metrics: &Metrics, turns: &dyn Turns) {
    let mut commits = Vec::new();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    loop {
        turns.wait(Stage::Publish);
        queue.take(usize::MAX, &mut commits);
        if commits.is_empty() {
            return;
        }
        turns.reach(Point::Publish);
        let frames = || turns.reach(Point::Frames);
        let published =
            commits.drain(..).map(|(to, deltas)| hub.publish_in(to, &deltas, metrics, &frames));
        let widest = published.max().unwrap_or_default();
        let pause = pause(widest, processors);
        if pause >= PAUSE_LEAST {
            std::thread::sleep(pause);
        }
    }
}

/// Twice what the deliveries take.
fn pause(connections: usize, processors: usize) -> Duration {
    let connections = u32::try_from(connections).unwrap_or(u32::MAX);
    let processors = u32::try_from(processors).unwrap_or(u32::MAX);
    (DELIVERY.saturating_mul(2).saturating_mul(connections) / processors).min(PAUSE_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_long_as_there_is_to_deliver() {
        for (connections, processors, expected) in [
            (0, 2, Duration::ZERO),
            (1, 2, DELIVERY),
            (100, 2, 100 * DELIVERY),
            (100, 8, 25 * DELIVERY),
            (10_000, 2, PAUSE_MOST),
            (usize::MAX, 1, PAUSE_MOST),
        ] {
            let told = pause(connections, processors);
            assert_eq!(told, expected, "{connections} connections, {processors} processors");
        }
    }
}
