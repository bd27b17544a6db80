//! Whether the engine can still be believed. A failed sync or write latches: nothing more is accepted
//! until the file is opened again, because nothing is known any more about what is on the disk.

use std::sync::OnceLock;

use abide_schema::{Code, Refusal};

/// The latch.
#[derive(Debug, Default)]
pub(crate) struct Health {
    poisoned: OnceLock<String>,
}

impl Health {
    /// Latches, with the reason. Only the first reason is kept.
    pub(crate) fn poison(&self, why: &dyn std::fmt::Display) {
        let why = why.to_string();
        tracing::error!(%why, "the storage failed; the engine refuses writes until reopened");
        let _ = self.poisoned.set(why);
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
