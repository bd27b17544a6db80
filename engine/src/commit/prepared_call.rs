//! A call that waits for the writer.

use std::fmt;

use abide_schema::event::Hash;
use abide_schema::reducer::Call;

use crate::commit::outcome::EchoedArguments;

/// A call that is decoded, checked, and hashed.
pub(crate) struct PreparedCall {
    pub(crate) reducer: &'static str,
    pub(crate) call: Box<dyn Call>,
    /// Canonical JSON.
    pub(crate) arguments: String,
    /// SHA-256 of `arguments`.
    pub(crate) digest: Hash,
    /// The arguments that the result may repeat.
    pub(crate) echo: EchoedArguments,
}

impl fmt::Debug for PreparedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.reducer, self.arguments)
    }
}
