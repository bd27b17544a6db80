//! The thread that checkpoints the WAL into the file, off the writer's thread.
//!
//! A checkpoint next to a busy writer never copies the whole WAL, and SQLite restarts a WAL only when all of it is
//! copied. Without a pause of the writer the WAL would grow without bound. So the thread copies the WAL next to the
//! writer until little is left, and leaves the rest to the writer, which commits its open transaction before.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use abide_schema::{Seq, limits};
use abide_store::{Checkpointer, Store, StoreError};
use tokio::sync::watch;

use crate::commit::jobs::WriterJob;
use crate::commit::queue::Queue;
use crate::commit::writer::WriterThread;
use crate::fault_points::{self, FaultPoint};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ports::{EngineThread, StepScheduler};
use crate::threads::Threads;

/// Interval between checks of the WAL size and of the files. At 100 MB/s the WAL grows by ten megabytes in between.
const LOOK: Duration = Duration::from_millis(100);

/// The writer copies the rest when at most this much is left.
const BLOCKING_BYTES: u64 = 2 << 20;

/// Maximum passes next to the writer. Each pass copies what was written during the pass before it. If so many are
/// not enough, the disk is hardly faster than the writer, which then copies more than [`BLOCKING_BYTES`].
const PASSES: usize = 8;

/// The running thread.
#[derive(Debug)]
pub(crate) struct CheckpointThread {
    stop: Arc<(Mutex<bool>, Condvar)>,
    health: Arc<Health>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The thread's connection: a panic of the thread does not close it, which might checkpoint the WAL.
    connection: Arc<Mutex<Option<Checkpointer>>>,
}

/// Parameters of the thread.
pub(crate) struct CheckpointConfig {
    /// The last durable event.
    pub(crate) durable: watch::Receiver<Seq>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<Health>,
    /// The writer's queue.
    pub(crate) jobs: Arc<Queue<WriterJob>>,
    pub(crate) store: Arc<Store>,
    pub(crate) scheduler: Arc<dyn StepScheduler>,
}

impl CheckpointConfig {
    /// The configuration for the thread of a writer.
    pub(crate) fn of_writer(
        writer: &WriterThread,
        durable: &watch::Receiver<Seq>,
        store: &Arc<Store>,
    ) -> CheckpointConfig {
        CheckpointConfig {
            durable: durable.clone(),
            metrics: Arc::clone(&writer.metrics),
            health: Arc::clone(&writer.health),
            jobs: Arc::clone(&writer.jobs),
            store: Arc::clone(store),
            scheduler: Arc::clone(&writer.scheduler),
        }
    }
}

impl CheckpointConfig {
    /// Fails the engine if a file of the database was removed or replaced, even while nothing is written.
    fn check_files(&self) {
        if let (Ok(()), Some(file)) = (self.health.check(), self.store.displaced()) {
            self.health.displaced(file);
        }
    }

    /// Whether recovery after a crash would take long.
    fn journal_is_long(&self) -> bool {
        self.metrics.journal_bytes.get() >= limits::CHECKPOINT_JOURNAL_BYTES
    }
}

impl CheckpointThread {
    pub(crate) fn start(
        checkpointer: Checkpointer,
        config: CheckpointConfig,
        threads: &Threads,
    ) -> CheckpointThread {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (stopped, health) = (Arc::clone(&stop), Arc::clone(&config.health));
        let connection = Arc::new(Mutex::new(Some(checkpointer)));
        let its = Arc::clone(&connection);
        let thread = threads.spawn(EngineThread::Checkpoint, move || {
            let checkpointer = its.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(checkpointer) = &*checkpointer {
                run(checkpointer, &config, &stopped);
            }
        });
        CheckpointThread { stop, health, thread: Mutex::new(Some(thread)), connection }
    }

    /// Stops the thread and returns its connection.
    fn stop(&self) -> Option<Checkpointer> {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.map(JoinHandle::join);
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let checkpointer = connection.take()?;
        if fault_points::refuses_checkpoint(self.health.check().is_err()) {
            leave_wal(&checkpointer);
            return None;
        }
        Some(checkpointer)
    }

    /// Stops the thread and checkpoints the rest, so that the file is complete without a WAL. `true` if it is.
    pub(crate) fn finish(&self) -> bool {
        let Some(checkpointer) = self.stop() else { return false };
        match checkpointer.truncate() {
            Ok(is_complete) => is_complete,
            Err(error) => {
                // The WAL stays, and is read at the next start.
                tracing::warn!(%error, "the final checkpoint failed");
                leave_wal(&checkpointer);
                false
            }
        }
    }
}

fn leave_wal(checkpointer: &Checkpointer) {
    if let Err(error) = checkpointer.leave_wal() {
        tracing::error!(%error, "SQLite may checkpoint the rest of the WAL");
    }
}

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(checkpointer: &Checkpointer, config: &CheckpointConfig, stop: &(Mutex<bool>, Condvar)) {
    let (mut looked_at, mut failing) = (Seq::ZERO, false);
    loop {
        let directed = config.scheduler.wait(EngineThread::Checkpoint);
        let mut stopped = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !*stopped && !directed {
            let waited = stop.1.wait_timeout(stopped, LOOK);
            (stopped, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if *stopped {
            return;
        }
        drop(stopped);
        config.check_files();
        let seq = *config.durable.borrow();
        let poisoned = fault_points::refuses_checkpoint(config.health.check().is_err());
        if seq == looked_at || poisoned {
            continue;
        }
        looked_at = seq;
        match checkpointer.waiting_bytes() {
            Ok(bytes) if bytes >= config.store.checkpoint_bytes() || config.journal_is_long() => {
                let moved = checkpoint(checkpointer, config);
                // A full disk usually stays full: warn once.
                let was_reported = std::mem::replace(&mut failing, moved.is_err());
                match moved {
                    Ok(()) => config.metrics.checkpoints_total.add(1),
                    // A sync of the WAL may have failed: it must not be checkpointed or extended any more.
                    Err(StoreError::Broken(why)) => config.health.poison(&why),
                    Err(_) if was_reported => {}
                    Err(error) => tracing::warn!(%error, "a checkpoint failed and will be retried"),
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the WAL could not be read"),
        }
    }
}

fn checkpoint(checkpointer: &Checkpointer, config: &CheckpointConfig) -> Result<(), StoreError> {
    config.scheduler.at_fault_point(FaultPoint::Checkpoint);
    let mut left = u64::MAX;
    for _ in 0..PASSES {
        checkpointer.passive()?;
        let before = std::mem::replace(&mut left, checkpointer.waiting_bytes()?);
        // A reader of an old snapshot, or a writer that is faster than the disk, keeps it from falling.
        if left <= BLOCKING_BYTES || left >= before {
            break;
        }
    }
    // A closed queue: the engine ends, and its last checkpoint copies everything.
    let _ = config.jobs.push(None, WriterJob::Checkpoint, 0);
    Ok(())
}
