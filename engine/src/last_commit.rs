//! The last event that the calls of a future have written, for a program that logs its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use abide_schema::Seq;

tokio::task_local! {
    static FOLLOWED: LastCommit;
}

/// The last event that the calls and batches of a future have written, or that of the original call for a duplicate.
///
/// A request of a protocol makes its calls at any depth of its code. So the engine notes them here, and no code on the way passes
/// them on.
#[derive(Clone, Debug, Default)]
pub struct LastCommit(Arc<AtomicI64>);

impl LastCommit {
    /// Runs a future, and notes the calls that it awaits. Those of tasks that it spawns are only noted if they are followed, too.
    pub async fn follow<F: Future>(&self, work: F) -> F::Output {
        FOLLOWED.scope(self.clone(), work).await
    }

    /// Runs a function that polls a future or a stream, as [`LastCommit::follow`] does.
    pub fn follow_poll<T>(&self, poll: impl FnOnce() -> T) -> T {
        FOLLOWED.sync_scope(self.clone(), poll)
    }

    /// Returns where the calls of the current future are noted, if they are.
    #[must_use]
    pub fn current() -> Option<LastCommit> {
        FOLLOWED.try_with(LastCommit::clone).ok()
    }

    /// Returns the event; `None` if no call was noted.
    #[must_use]
    pub fn seq(&self) -> Option<Seq> {
        Some(Seq(self.0.load(Ordering::Relaxed))).filter(|seq| *seq > Seq::ZERO)
    }
}

/// Notes an event that a call or a batch of the current future has written.
pub(crate) fn note(seq: Seq) {
    // Most futures are not followed.
    let _ = FOLLOWED.try_with(|last| last.0.fetch_max(seq.0, Ordering::Relaxed));
}
