//! How a runtime stops, in two steps: it drains, so that what runs can end, and then it stops.

use std::sync::{Arc, OnceLock};

use abide_programs::EndSignal;
use tokio_util::sync::CancellationToken;

/// The request to stop a runtime, or a worker for tool calls. Clones share it.
///
/// After [`Shutdown::drain`] nothing new begins: no run is claimed, no call, and no model is asked. Steps in progress go
/// on: a model answers, tools and programs end, and what they have done is recorded. A run is released after its step, and
/// the next runtime continues it. The runtime returns when no step is left. [`Shutdown::stop`] ends what is left then:
/// tools are dropped, as by a crash, and command-line programs get a signal and some time.
#[derive(Clone, Debug)]
pub struct Shutdown {
    stop: CancellationToken,
    /// A child of `stop`: what stops has begun to drain.
    drain: CancellationToken,
    signal: Arc<OnceLock<EndSignal>>,
}

impl Shutdown {
    /// Begins nothing new from now on.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Ends what is left.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends what is left; command-line programs get this signal instead of SIGTERM.
    pub fn stop_with(&self, signal: EndSignal) {
        // The first one counts.
        let _ = self.signal.set(signal);
        self.stop();
    }

    /// Returns `true` if nothing new may begin.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    /// Waits until nothing new may begin.
    pub async fn draining(&self) {
        self.drain.cancelled().await;
    }

    /// Waits until what is left must end.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Returns a token that is cancelled when what is left must end.
    pub(crate) fn stop_token(&self) -> CancellationToken {
        self.stop.child_token()
    }

    /// Returns the signal for command-line programs.
    pub(crate) fn signal(&self) -> EndSignal {
        self.signal.get().copied().unwrap_or_default()
    }
}

impl Default for Shutdown {
    fn default() -> Shutdown {
        Shutdown::from(CancellationToken::new())
    }
}

/// Stops without draining, when the token is cancelled. The token itself stays as it is: it can end more than the runtime.
impl From<CancellationToken> for Shutdown {
    fn from(token: CancellationToken) -> Shutdown {
        let stop = token.child_token();
        Shutdown { drain: stop.child_token(), stop, signal: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drain cancelled the token that the shutdown was made from, and so stopped what it should have waited for.
    #[test]
    fn a_drain_stops_nothing_and_cancels_no_token_of_the_program() {
        let token = CancellationToken::new();
        let shutdown = Shutdown::from(token.clone());
        let stop = shutdown.stop_token();
        assert!(!shutdown.is_draining());
        shutdown.drain();
        assert!(shutdown.is_draining() && !stop.is_cancelled());
        shutdown.stop();
        assert!(stop.is_cancelled() && !token.is_cancelled());
    }

    #[test]
    fn a_token_that_is_cancelled_drains_and_stops() {
        let token = CancellationToken::new();
        let shutdown = Shutdown::from(token.clone());
        let clone = shutdown.clone();
        token.cancel();
        assert!(clone.is_draining() && shutdown.stop_token().is_cancelled());
    }
}
