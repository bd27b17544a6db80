//! A call that waits for the writer. `registry` makes it, `execute` runs it.

use std::cell::Cell;
use std::fmt;

use abide_schema::event::Hash;
use abide_schema::reducer::{Call, Context, DecodeArguments, Reply};
use abide_schema::{Abort, CallArguments, Refusal};
use sha2::{Digest as _, Sha256};

/// A call that is decoded, checked, and hashed.
pub(crate) struct PreparedCall {
    pub(crate) reducer: &'static str,
    decode: DecodeArguments,
    /// The reducer's own arguments, until it takes them.
    decoded: Cell<Option<Box<dyn Call>>>,
    pub(crate) arguments: CallArguments,
    /// SHA-256 of the text of the arguments.
    pub(crate) digest: Hash,
}

impl PreparedCall {
    /// Decodes the arguments.
    ///
    /// # Errors
    /// `bad_arguments`.
    pub(crate) fn new(
        reducer: &'static str,
        decode: DecodeArguments,
        arguments: CallArguments,
    ) -> Result<PreparedCall, Refusal> {
        let decoded = Cell::new(Some(decode(&arguments)?));
        let digest = Sha256::digest(arguments.text().as_bytes()).into();
        Ok(PreparedCall { reducer, decode, decoded, arguments, digest })
    }

    /// Decodes the arguments again if a run has taken them, so that the writer need not.
    pub(crate) fn decode_again(&self) {
        let decoded = self.decoded.take().or_else(|| (self.decode)(&self.arguments).ok());
        self.decoded.set(decoded);
    }

    /// Runs the call. The reducer takes the decoded arguments, without a copy, since nearly every call runs once. A call
    /// that runs again is decoded again.
    ///
    /// # Errors
    /// Those of the reducer.
    pub(crate) fn run(&self, context: &mut Context<'_>) -> Result<Reply, Abort> {
        let call = match self.decoded.take() {
            Some(call) => call,
            None => (self.decode)(&self.arguments)?,
        };
        call.run(context)
    }
}

impl fmt::Debug for PreparedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.reducer, self.arguments.text())
    }
}
