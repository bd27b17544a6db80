//! Whether the engine can still be believed. A failed sync or write latches: nothing more is accepted
//! until the file is opened again, because nothing is known any more about what is on the disk.

use std::sync::{Arc, OnceLock};

use abide_schema::{Code, Refusal};

use crate::hub::Hub;

/// The latch.
#[derive(Debug)]
pub(crate) struct Health {
    poisoned: OnceLock<String>,
    hub: Arc<Hub>,
}

impl Health {
    /// In good health; who listens at the hub is told when that ends.
    pub(crate) fn new(hub: Arc<Hub>) -> Health {
        Health { poisoned: OnceLock::new(), hub }
    }

    /// Latches, with the reason. Only the first reason is kept, and told to all who listen: nothing will
    /// come any more.
    pub(crate) fn poison(&self, why: &dyn std::fmt::Display) {
        let why = why.to_string();
        tracing::error!(%why, "the storage failed; the engine refuses writes until reopened");
        let first = self.poisoned.set(why).is_ok();
        if let (true, Err(refusal)) = (first, self.check()) {
            self.hub.end(&refusal);
        }
    }

    /// The refusal that everybody gets once it has latched.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        match self.poisoned.get() {
            None => Ok(()),
            Some(why) => {
                let detail =
                    format!("the storage failed earlier ({why}); nothing more is accepted");
                Err(Refusal::new(Code::Poisoned, detail)
                    .hint("repair the disk and start the server again"))
            }
        }
    }
}
