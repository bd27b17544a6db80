//! The pause of the writer after a group, while a checkpoint needs a larger part of the disk's speed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest pause after a group. It bounds what a call waits for, and how late the writer sees that it should stop.
pub(crate) const MAX_PAUSE: Duration = Duration::from_millis(20);

/// Whether the writer pauses after each group. The checkpointer decides.
#[derive(Debug, Default)]
pub(crate) struct WriterPause {
    is_on: Mutex<bool>,
    ended: Condvar,
}

impl WriterPause {
    /// From here on the writer pauses.
    pub(crate) fn start(&self) {
        *self.lock() = true;
    }

    /// Ends the pauses, and the current one.
    pub(crate) fn end(&self) {
        *self.lock() = false;
        self.ended.notify_all();
    }

    /// Waits for the end of the pauses, at most for this time. Returns at once if there are none.
    pub(crate) fn wait(&self, most: Duration) {
        let waited = self.ended.wait_timeout_while(self.lock(), most, |is_on| *is_on);
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
