//! How a runtime stops, in two steps: it drains, so that what runs can end, and then it stops.

use std::sync::{Arc, OnceLock};

use abide_programs::EndSignal;
use tokio_util::sync::CancellationToken;

/// The request to stop a runtime, or a worker for tool calls. Clones share it.
///
/// After [`Shutdown::drain`] nothing new begins: no run is claimed, no call, and no model is asked. Steps in progress go on: a
/// model answers, tools and programs end, and what they have done is recorded. A run is released after its step, and the next
/// runtime continues it. The runtime returns when no step is left. [`Shutdown::stop`] ends what is left then: tools are dropped,
/// as by a crash, and command-line programs get a signal and some time.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    drain: CancellationToken,
    stop: CancellationToken,
    signal: Arc<OnceLock<EndSignal>>,
}

impl Shutdown {
    /// Begins nothing new from now on.
    pub fn drain(&self) {
        self.drain.cancel();
    }

    /// Ends what is left.
    pub fn stop(&self) {
        self.drain.cancel();
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

/// Stops without draining, when the token is cancelled.
impl From<CancellationToken> for Shutdown {
    fn from(stop: CancellationToken) -> Shutdown {
        Shutdown { drain: stop.clone(), stop, signal: Arc::default() }
    }
}
