//! The phases of a running server, and its open connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Phase of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It accepts requests.
    Open,
    /// It finishes requests in progress.
    Draining,
    /// Remaining connections are closed.
    Over,
}

/// The phase and the connection limit, as shared by every connection.
#[derive(Clone, Debug)]
pub(crate) struct Lifecycle {
    phase: Arc<watch::Sender<Phase>>,
    connections: u32,
    room: Arc<Semaphore>,
    websockets: Arc<AtomicUsize>,
}

/// A connection's permit. Held until its last task has ended, even after an upgrade.
pub(crate) type ConnectionPermit = Arc<OwnedSemaphorePermit>;

/// A counted WebSocket.
#[derive(Debug)]
pub(crate) struct CountedWebSocket(Arc<AtomicUsize>);

impl Drop for CountedWebSocket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lifecycle {
    /// For a server with this many connections.
    pub(crate) fn new(connections: u32) -> Lifecycle {
        Lifecycle {
            phase: Arc::new(watch::Sender::new(Phase::Open)),
            connections,
            room: Arc::new(Semaphore::new(connections as usize)),
            websockets: Arc::default(),
        }
    }

    /// The maximum number of connections.
    pub(crate) fn room(&self) -> u32 {
        self.connections
    }

    /// Takes a permit, if one is available.
    pub(crate) fn enter(&self) -> Option<ConnectionPermit> {
        Arc::clone(&self.room).try_acquire_owned().ok().map(Arc::new)
    }

    /// The number of open connections of any kind.
    pub(crate) fn connections(&self) -> usize {
        self.connections as usize - self.room.available_permits()
    }

    /// The number of open WebSockets.
    pub(crate) fn websockets(&self) -> usize {
        self.websockets.load(Ordering::Relaxed)
    }

    pub(crate) fn count_websocket(&self) -> CountedWebSocket {
        self.websockets.fetch_add(1, Ordering::Relaxed);
        CountedWebSocket(Arc::clone(&self.websockets))
    }

    /// Enters a phase.
    pub(crate) fn go(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Waits for a phase.
    pub(crate) async fn until(&self, phase: Phase) {
        // `self` holds the sender, so it cannot be dropped.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Waits until all connections are closed.
    pub(crate) async fn empty(&self) {
        // The semaphore is never closed.
        let _ = self.room.acquire_many(self.connections).await;
    }
}
