//! The thread that checkpoints the WAL into the file, off the writer's thread.
//!
//! A checkpoint next to a busy writer never copies the whole WAL, and SQLite restarts a WAL only when all of it is
//! copied. Without a pause of the writer the WAL would grow without bound. So the thread copies the WAL next to the
//! writer until little is left, and leaves the rest to the writer, which commits its open transaction before. If the
//! WAL grows about as fast as it is copied, the writer slows down until the copy is done. Otherwise the rest would be
//! large, and callers wait while the writer copies the rest.
//!
//! SQLite copies no page that is newer than the oldest snapshot, and does not restart a WAL that a snapshot uses. When
//! the WAL has become long because of that, the thread ends the queries that hold snapshots ([`ReaderDrain`]).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use abide_schema::{Seq, limits};
use abide_store::{Checkpointer, Store, StoreError};
use tokio::sync::watch;

use crate::commit::jobs::WriterJob;
use crate::commit::queue::Queue;
use crate::fault_points::{self, FaultPoint};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ports::{EngineThread, StepScheduler};
use crate::queries::reader_drain::ReaderDrain;
use crate::threads::Threads;

/// Interval between checks of the WAL size and of the files. At 100 MB/s the WAL grows by ten megabytes in between.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The writer copies the rest when at most this much is left.
const BLOCKING_BYTES: u64 = 2 << 20;

/// Maximum passes next to the writer. Each pass copies what was written during the pass before it. If so many are
/// not enough, the disk is hardly faster than the slowed writer, which then copies more than [`BLOCKING_BYTES`].
const PASSES: usize = 8;

/// A pass reduces the bytes that wait by this factor. If it does not, the writer slows down.
const MIN_REDUCTION: u64 = 4;

/// The WAL or the journal is long from this many times the size that triggers a checkpoint: several checkpoints had no
/// effect.
const LONG_FACTOR: u64 = 4;

/// Maximum number of times that queries are ended and what their snapshots held back is copied, before queries wait for
/// the last copy.
const MAX_DRAINS: usize = 3;

/// Maximum passes while queries wait.
const DRAINED_PASSES: usize = 2;

/// The running thread.
#[derive(Debug)]
pub(crate) struct CheckpointThread {
    stop: Arc<StopSignal>,
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
    /// The writer pauses after each group while the WAL grows about as fast as it is copied.
    pub(crate) writer_pause: Arc<WriterPause>,
    pub(crate) drain: Arc<ReaderDrain>,
}

impl CheckpointConfig {
    /// Fails the engine if a file of the database was removed or replaced, even while nothing is written.
    fn check_files(&self) {
        if let (Ok(()), Some(file)) = (self.health.check(), self.store.displaced()) {
            self.health.displaced(file);
        }
    }

    /// `true` if the WAL or the journal has at least `times` the bytes that trigger a checkpoint.
    fn reaches(&self, times: u64, wal_bytes: u64) -> bool {
        let journal_bytes = self.metrics.journal_bytes.get();
        wal_bytes >= times.saturating_mul(self.store.checkpoint_bytes())
            || journal_bytes >= times.saturating_mul(limits::CHECKPOINT_JOURNAL_BYTES)
    }
}

impl CheckpointThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: the system has no room for it.
    pub(crate) fn start(
        checkpointer: Checkpointer,
        config: CheckpointConfig,
        threads: &Threads,
    ) -> Result<CheckpointThread, StoreError> {
        let stop = Arc::<StopSignal>::default();
        let thread_stop = Arc::clone(&stop);
        let health = Arc::clone(&config.health);
        let connection = Arc::new(Mutex::new(Some(checkpointer)));
        let thread_connection = Arc::clone(&connection);
        let thread = threads.thread(EngineThread::Checkpoint, move || {
            let checkpointer = thread_connection.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(checkpointer) = &*checkpointer {
                run(checkpointer, &config, &thread_stop);
            }
        });
        let thread = Mutex::new(Some(thread.start()?));
        Ok(CheckpointThread { stop, health, thread, connection })
    }

    /// Stops the thread and returns its connection.
    fn stop(&self) -> Option<Checkpointer> {
        self.stop.set();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic in it has already failed the engine, and was logged.
            let _ = thread.join();
        }
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let checkpointer = connection.take()?;
        if fault_points::refuses_checkpoint(self.health.check().is_err()) {
            leave_wal(&checkpointer);
            return None;
        }
        Some(checkpointer)
    }

    /// Stops the thread and checkpoints the rest, so that the file is complete without a WAL. Returns whether it is.
    pub(crate) fn finish(&self) -> bool {
        let Some(checkpointer) = self.stop() else { return false };
        match checkpointer.truncate() {
            Ok(is_complete) => is_complete,
            Err(error) => {
                // The WAL stays, and is read at the next start.
                tracing::warn!(name: "checkpoint_failed", %error, "the final checkpoint failed");
                leave_wal(&checkpointer);
                false
            }
        }
    }
}

fn leave_wal(checkpointer: &Checkpointer) {
    if let Err(error) = checkpointer.leave_wal() {
        tracing::error!(
            name: "checkpoint_unlimited",
            %error,
            "SQLite may checkpoint the rest of the WAL"
        );
    }
}

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Tells the thread to stop.
#[derive(Debug, Default)]
struct StopSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    fn set(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until it is set, at most for this time. Returns whether it is.
    fn wait(&self, max: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), max, |is_set| !*is_set);
        let (is_set, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *is_set
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(checkpointer: &Checkpointer, config: &CheckpointConfig, stop: &StopSignal) {
    let mut checked_to = Seq::ZERO;
    let mut failing = false;
    let mut long_from = LONG_FACTOR;
    loop {
        let directed = config.scheduler.wait(EngineThread::Checkpoint);
        let interval = if directed { Duration::ZERO } else { CHECK_INTERVAL };
        if stop.wait(interval) {
            return;
        }
        config.check_files();
        let seq = *config.durable.borrow();
        let poisoned = fault_points::refuses_checkpoint(config.health.check().is_err());
        if seq == checked_to || poisoned {
            continue;
        }
        checked_to = seq;
        match checkpointer.wal_size() {
            Ok(wal) if config.reaches(1, wal.waiting) => {
                if !config.reaches(LONG_FACTOR, wal.total) {
                    long_from = LONG_FACTOR;
                }
                // A test that schedules the steps does not run the readers meanwhile.
                let ends_queries = !directed && config.reaches(long_from, wal.total);
                if ends_queries {
                    // If the WAL does not restart, the next drain waits until twice as much has accumulated.
                    long_from = long_from.saturating_mul(2);
                    config.metrics.draining_checkpoints_total.add(1);
                }
                let copied = checkpoint(checkpointer, config, ends_queries);
                // A full disk usually stays full: warn once.
                let was_reported = std::mem::replace(&mut failing, copied.is_err());
                match copied {
                    Ok(CopyResult::Copied) => config.metrics.checkpoints_total.add(1),
                    Ok(CopyResult::Blocked) => {}
                    // A sync of the WAL may have failed: it must not be checkpointed or extended any more.
                    Err(StoreError::Broken(why)) => config.health.poison(&why),
                    Err(_) if was_reported => {}
                    Err(error) => tracing::warn!(
                        name: "checkpoint_failed",
                        %error,
                        "a checkpoint failed and will be retried"
                    ),
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(
                name: "wal_unreadable",
                %error,
                "the WAL could not be read"
            ),
        }
    }
}

/// Copies the WAL next to the writer, and lets the writer copy the rest. With `ends_queries` it ends the queries whose
/// snapshots prevent that.
fn checkpoint(
    checkpointer: &Checkpointer,
    config: &CheckpointConfig,
    ends_queries: bool,
) -> Result<CopyResult, StoreError> {
    config.scheduler.at_fault_point(FaultPoint::Checkpoint);
    if ends_queries {
        end_old_snapshots(checkpointer, config)?;
    }
    // From here on no query begins until the writer has copied the rest. Then the WAL restarts with the next commit.
    let drained = ends_queries.then(|| config.drain.drain());
    let passes = if ends_queries { DRAINED_PASSES } else { PASSES };
    let copied = copy_next_to_writer(checkpointer, config, passes)?;
    // Not if a snapshot prevents it: if it ended before the writer's turn, the writer would copy everything.
    if copied == CopyResult::Copied {
        // A closed queue: the engine ends, and its last checkpoint copies everything.
        let _ = config.jobs.push(None, WriterJob::Checkpoint(drained), 0);
    }
    Ok(copied)
}

/// Ends the queries whose snapshots prevent a checkpoint, and copies what they held back. Queries run during the copy,
/// which takes long, so another long one may begin and prevent the rest.
fn end_old_snapshots(
    checkpointer: &Checkpointer,
    config: &CheckpointConfig,
) -> Result<(), StoreError> {
    for _ in 0..MAX_DRAINS {
        drop(config.drain.drain());
        if copy_next_to_writer(checkpointer, config, PASSES)? == CopyResult::Copied {
            break;
        }
    }
    Ok(())
}

/// How far the WAL was copied next to the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyResult {
    /// Little is left, or as little as possible next to this writer.
    Copied,
    /// An old snapshot prevents much of it.
    Blocked,
}

/// Copies the WAL until little is left, or until an old snapshot prevents more.
fn copy_next_to_writer(
    checkpointer: &Checkpointer,
    config: &CheckpointConfig,
    passes: usize,
) -> Result<CopyResult, StoreError> {
    let copied = copy_in_passes(checkpointer, &config.writer_pause, passes);
    config.writer_pause.end();
    copied
}

fn copy_in_passes(
    checkpointer: &Checkpointer,
    writer_pause: &WriterPause,
    passes: usize,
) -> Result<CopyResult, StoreError> {
    let mut left = checkpointer.wal_size()?.waiting;
    for _ in 0..passes {
        let has_copied = checkpointer.copy_and_sync()?;
        let before = std::mem::replace(&mut left, checkpointer.wal_size()?.waiting);
        if left <= BLOCKING_BYTES {
            break;
        }
        if !has_copied {
            return Ok(CopyResult::Blocked);
        }
        if left > before / MIN_REDUCTION {
            writer_pause.start();
        }
    }
    Ok(CopyResult::Copied)
}

/// The longest pause after a group. It bounds what a call waits for, and how late the writer sees that it should stop.
pub(crate) const MAX_PAUSE: Duration = Duration::from_millis(20);

/// Whether the writer pauses after each group. The checkpointer decides.
#[derive(Debug, Default)]
pub(crate) struct WriterPause {
    is_on: Mutex<bool>,
    ended: Condvar,
}

impl WriterPause {
    /// Makes the writer pause after each group from here on.
    pub(crate) fn start(&self) {
        *self.lock() = true;
    }

    /// Ends the pauses, and the current one.
    pub(crate) fn end(&self) {
        *self.lock() = false;
        self.ended.notify_all();
    }

    /// Waits for the end of the pauses, at most for this time. Returns at once if there are none.
    pub(crate) fn wait(&self, max: Duration) {
        let waited = self.ended.wait_timeout_while(self.lock(), max, |is_on| *is_on);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_on.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_writer_waits_only_during_pauses_and_not_after_their_end() {
        let pause = WriterPause::default();
        let begun = Instant::now();
        pause.wait(LONG);
        pause.start();
        pause.wait(Duration::from_millis(2));
        assert!(begun.elapsed() >= Duration::from_millis(2), "it did not wait");
        std::thread::scope(|scope| {
            scope.spawn(|| pause.wait(LONG));
            pause.end();
        });
        pause.wait(LONG);
        assert!(begun.elapsed() < LONG, "it waited longer than the pauses");
    }
}
