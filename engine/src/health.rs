//! Whether the engine can still be believed. A failed sync or write, and a panic in one of its threads, latch:
//! nothing more is accepted until the file is opened again, because it is not known any more what is on the
//! disk, or what the thread left half done.

use std::sync::{Arc, OnceLock};

use abide_schema::{Code, Refusal};

use crate::hub::Hub;

/// Why the engine accepts nothing more.
#[derive(Debug)]
enum Failure {
    /// The storage failed, with its words.
    Storage(String),
    /// A thread panicked. Its words are in the log and not for callers.
    Panic,
}

/// The latch.
#[derive(Debug)]
pub(crate) struct Health {
    failed: OnceLock<Failure>,
    hub: Arc<Hub>,
}

impl Health {
    /// In good health; who listens at the hub is told when that ends.
    pub(crate) fn new(hub: Arc<Hub>) -> Health {
        Health { failed: OnceLock::new(), hub }
    }

    /// Latches, with the reason. Only the first reason is kept, and told to all who listen: nothing will
    /// come any more.
    pub(crate) fn poison(&self, why: &dyn std::fmt::Display) {
        let why = why.to_string();
        tracing::error!(%why, "the storage failed; the engine refuses writes until reopened");
        self.latch(Failure::Storage(why));
    }

    /// Latches because a thread has panicked.
    pub(crate) fn panicked(&self) {
        self.latch(Failure::Panic);
    }

    /// What is told where a reply was dropped without an answer: only a thread that panics drops one. It may
    /// not have come to latching yet.
    pub(crate) fn dropped(&self) -> Refusal {
        self.panicked();
        self.refusal().unwrap_or_else(panicked)
    }

    /// The refusal that everybody gets once it has latched.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        self.refusal().map_or(Ok(()), Err)
    }

    /// The same, where there is one.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.failed.get().map(|failure| match failure {
            Failure::Panic => panicked(),
            Failure::Storage(why) => {
                let detail =
                    format!("the storage failed earlier ({why}); nothing more is accepted");
                Refusal::new(Code::Poisoned, detail)
                    .hint("repair the disk and start the server again")
            }
        })
    }

    fn latch(&self, failure: Failure) {
        let first = self.failed.set(failure).is_ok();
        if let (true, Some(refusal)) = (first, self.refusal()) {
            self.hub.end(&refusal);
        }
    }
}

fn panicked() -> Refusal {
    Refusal::new(Code::Poisoned, "the engine failed inside; nothing more is accepted").hint(
        "start the server again, then repeat the call with its request id; \
             the cause is in the server's log",
    )
}
