//! Whether the engine is still trustworthy. A failed sync or write, or a panic in one of its threads, poisons it
//! permanently: it refuses everything until the file is reopened, because the state on disk, or the state
//! left by the thread, is unknown.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use abide_schema::{Code, Refusal};
use tokio::sync::watch;

use crate::subscriptions::hub::Hub;

/// Why the engine is poisoned.
#[derive(Debug)]
enum Failure {
    /// The storage failed, with its error.
    Storage(String),
    /// A thread panicked. The message is in the engine's log only.
    Panic,
    /// A file of the database was removed or replaced: what is written to it is lost when the process ends.
    Displaced,
}

/// The poison state.
#[derive(Debug)]
pub(crate) struct Health {
    failed: OnceLock<Failure>,
    /// Whether it is poisoned, to wait for.
    is_poisoned: watch::Sender<bool>,
    hub: Arc<Hub>,
}

impl Health {
    /// Healthy; subscribers at the hub are notified when that ends.
    pub(crate) fn new(hub: Arc<Hub>) -> Health {
        Health { failed: OnceLock::new(), is_poisoned: watch::Sender::new(false), hub }
    }

    /// Poisons the engine with a reason. Only the first reason is kept. All subscribers are notified, because
    /// nothing will be published any more.
    pub(crate) fn poison(&self, why: &dyn std::fmt::Display) {
        let why = why.to_string();
        tracing::error!(
            name: "storage_failed",
            %why,
            "the storage failed; all requests are refused until a restart"
        );
        self.latch(Failure::Storage(why));
    }

    /// Poisons the engine because a thread has panicked.
    pub(crate) fn panicked(&self) {
        self.latch(Failure::Panic);
    }

    /// Poisons the engine because a file was removed or replaced while it was open.
    pub(crate) fn displaced(&self, file: &Path) {
        let file = file.display();
        let what = "the file was removed or replaced; all requests are refused until a restart";
        tracing::error!(name: "file_displaced", %file, "{what}");
        self.latch(Failure::Displaced);
    }

    /// Returns the refusal for a dropped reply: only a panicking thread drops one, possibly before it
    /// poisons the engine.
    pub(crate) fn fail_for_dropped_reply(&self) -> Refusal {
        self.panicked();
        self.refusal().unwrap_or_else(panicked)
    }

    /// The refusal of every request once the engine is poisoned.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        self.refusal().map_or(Ok(()), Err)
    }

    /// The refusal of every request once the engine is poisoned, as an option.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.failed.get().map(|failure| match failure {
            Failure::Panic => panicked(),
            Failure::Displaced => {
                let detail = "the database file was removed or replaced while it was open; all \
                              requests are refused";
                Refusal::new(Code::EngineFailed, detail)
                    .hint("stop the process, put the right file in its place, and start again")
            }
            Failure::Storage(why) => {
                let detail =
                    format!("the storage failed earlier ({why}); all requests are refused");
                Refusal::new(Code::EngineFailed, detail)
                    .hint("repair the disk and start the server again")
            }
        })
    }

    /// Waits until it is poisoned.
    pub(crate) async fn poisoned(&self) {
        // `self` holds the sender, so it cannot be dropped.
        let _ = self.is_poisoned.subscribe().wait_for(|is_poisoned| *is_poisoned).await;
    }

    fn latch(&self, failure: Failure) {
        let first = self.failed.set(failure).is_ok();
        if let (true, Some(refusal)) = (first, self.refusal()) {
            self.hub.end(&refusal);
            self.is_poisoned.send_replace(true);
        }
    }
}

fn panicked() -> Refusal {
    Refusal::new(Code::EngineFailed, "the engine failed internally; all requests are refused").hint(
        "start the server again, then repeat the call with its request id; \
             see the engine's log for the cause",
    )
}
