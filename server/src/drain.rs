//! The time between the request to stop and the end of the sockets: the server begins nothing new, and finishes what has
//! begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_engine::Engine;
use abide_schema::{Code, Refusal};

/// The reducers that begin work. A process that is about to stop would leave it, or its worker could not report it.
const REDUCERS_THAT_BEGIN_WORK: &[&str] =
    &["claim_next_run", "claim_next_tool_call", "claim_run", "claim_tool_call", "start_run"];

/// Tells a server that it is about to stop. Clones share it.
///
/// After [`Drain::begin`], `/ready` answers 503, so that load balancers send requests elsewhere. Calls that claim work or
/// start runs are refused with `unavailable`, and clients repeat them; a request that repeats an answered one gets its
/// answer. Sockets stay open for everything else: results, heartbeats, queries. The server ends with the future that
/// [`serve_with`](crate::serve_with) gets.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    has_begun: Arc<AtomicBool>,
}

impl Drain {
    /// Begins to drain the server of this engine.
    pub fn begin(&self, engine: &Engine) {
        self.has_begun.store(true, Ordering::Release);
        engine.refuse_calls_of(REDUCERS_THAT_BEGIN_WORK);
    }

    /// Checks that the server is not about to stop.
    ///
    /// # Errors
    /// `unavailable` if it is.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if !self.has_begun.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Refusal::new(Code::Unavailable, "the server is about to stop")
            .hint("send new work to another server, or to this one when it has started again"))
    }
}
