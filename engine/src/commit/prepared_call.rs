//! A call that waits for the writer.

use std::fmt;

use abide_schema::event::Hash;
use abide_schema::reducer::Call;

use crate::commit::outcome::CanonicalArguments;

/// A call that is decoded, checked, and hashed.
pub(crate) struct PreparedCall {
    pub(crate) reducer: &'static str,
    pub(crate) call: Box<dyn Call>,
    pub(crate) arguments: CanonicalArguments,
    /// SHA-256 of the text of the arguments.
    pub(crate) digest: Hash,
}

impl fmt::Debug for PreparedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.reducer, self.arguments.text)
    }
}
