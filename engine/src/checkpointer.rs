//! The thread that moves the WAL into the file, away from the writer.
//!
//! A checkpoint beside a busy writer never catches up with it, and a WAL that is never caught up with
//! never starts over: it would grow for ever, and growing it costs more than overwriting it. So the
//! thread moves the bulk freely and then holds the writer back for the little that came meanwhile.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use abide_schema::{Seq, limits};
use abide_store::{Checkpointer, StoreError};
use tokio::sync::watch;

use crate::metrics::Metrics;

/// How often the thread looks whether enough has come together. At 100 MB/s the WAL grows by ten
/// megabytes in between.
const LOOK: Duration = Duration::from_millis(100);

/// The running thread.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<Checkpointer>>>,
}

impl Checkpoints {
    pub(crate) fn start(
        checkpointer: Checkpointer,
        durable: watch::Receiver<Seq>,
        metrics: &Arc<Metrics>,
        gate: Arc<Mutex<()>>,
    ) -> Checkpoints {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (stopped, metrics) = (Arc::clone(&stop), Arc::clone(metrics));
        let thread = std::thread::Builder::new().name("abide-checkpoint".to_owned());
        let thread = thread.spawn(move || run(checkpointer, &durable, &metrics, &gate, &stopped));
        let thread = Mutex::new(Some(thread.expect("the system has room for a thread")));
        Checkpoints { stop, thread }
    }

    /// Stops the thread and returns its connection.
    fn stop(&self) -> Option<Checkpointer> {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.and_then(|thread| thread.join().ok())
    }

    /// Stops the thread and moves all that is left, so that the file is whole by itself.
    pub(crate) fn finish(&self) {
        let Some(checkpointer) = self.stop() else { return };
        if let Err(error) = checkpointer.truncate() {
            // The WAL stays, and is read at the next start.
            tracing::warn!(%error, "the last checkpoint failed");
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(
    checkpointer: Checkpointer,
    durable: &watch::Receiver<Seq>,
    metrics: &Metrics,
    gate: &Mutex<()>,
    stop: &(Mutex<bool>, Condvar),
) -> Checkpointer {
    let mut looked_at = Seq::ZERO;
    let mut stopped = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !*stopped {
        (stopped, _) = stop.1.wait_timeout(stopped, LOOK).unwrap_or_else(PoisonError::into_inner);
        let seq = *durable.borrow();
        if seq == looked_at {
            continue;
        }
        looked_at = seq;
        match checkpointer.waiting_bytes() {
            Ok(bytes) if bytes >= limits::CHECKPOINT_WAL_BYTES => {
                match checkpoint(&checkpointer, gate) {
                    Ok(_) => metrics.checkpoints_total.add(1),
                    Err(error) => tracing::warn!(%error, "a checkpoint failed; the next may not"),
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the WAL could not be looked at"),
        }
    }
    drop(stopped);
    checkpointer
}

fn checkpoint(checkpointer: &Checkpointer, gate: &Mutex<()>) -> Result<bool, StoreError> {
    checkpointer.passive()?;
    let _held = gate.lock().unwrap_or_else(PoisonError::into_inner);
    checkpointer.passive()
}
