//! Cancels the job of a caller that no longer waits for its result.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_store::{InterruptHandle, Reader};

/// A job on its way through a reader.
#[derive(Debug)]
enum Progress {
    Waiting,
    /// It runs on the reader of this handle.
    Running(InterruptHandle),
    /// It has ended, or must not start.
    Over,
}

/// The reader's end.
#[derive(Debug)]
pub(super) struct Cancellation(Arc<Mutex<Progress>>);

/// The caller's end: dropping it cancels the job, unless it has ended.
#[derive(Debug)]
#[must_use = "dropping it cancels the job"]
pub(super) struct CancelOnDrop(Arc<Mutex<Progress>>);

impl Cancellation {
    pub(super) fn new() -> (Cancellation, CancelOnDrop) {
        let progress = Arc::new(Mutex::new(Progress::Waiting));
        (Cancellation(Arc::clone(&progress)), CancelOnDrop(progress))
    }

    /// The reader begins the job. `false` if the caller has gone.
    pub(super) fn begin(&self, reader: &Reader) -> bool {
        let mut progress = lock(&self.0);
        let waits = matches!(*progress, Progress::Waiting);
        if waits {
            *progress = Progress::Running(reader.interrupt_handle());
        }
        waits
    }

    /// The reader has ended the job: its next one is not concerned.
    pub(super) fn end(&self) {
        let mut progress = lock(&self.0);
        if let Progress::Running(reader) = &*progress {
            reader.resume();
        }
        *progress = Progress::Over;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let mut progress = lock(&self.0);
        match &*progress {
            Progress::Waiting => *progress = Progress::Over,
            // The handle is used while the lock is held, so the reader cannot have begun another job.
            Progress::Running(reader) => reader.cancel(),
            Progress::Over => {}
        }
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}
