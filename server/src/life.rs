//! The phases of a running server, and who is still inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Where the server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It takes requests.
    Open,
    /// It finishes what is in flight.
    Draining,
    /// Whoever is still inside is put out.
    Over,
}

/// The phase and the room, as every connection sees them.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    phase: Arc<watch::Sender<Phase>>,
    connections: u32,
    room: Arc<Semaphore>,
    websockets: Arc<AtomicUsize>,
}

/// A connection's place. Held until its last task has ended, also past an upgrade.
pub(crate) type Place = Arc<OwnedSemaphorePermit>;

/// A WebSocket that is counted.
#[derive(Debug)]
pub(crate) struct CountedWebSocket(Arc<AtomicUsize>);

impl Drop for CountedWebSocket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Life {
    /// A server with room for so many connections.
    pub(crate) fn new(connections: u32) -> Life {
        Life {
            phase: Arc::new(watch::Sender::new(Phase::Open)),
            connections,
            room: Arc::new(Semaphore::new(connections as usize)),
            websockets: Arc::default(),
        }
    }

    /// How many connections it has room for.
    pub(crate) fn room(&self) -> u32 {
        self.connections
    }

    /// A place, if there is one.
    pub(crate) fn enter(&self) -> Option<Place> {
        Arc::clone(&self.room).try_acquire_owned().ok().map(Arc::new)
    }

    /// Connections that are open, of every kind.
    pub(crate) fn connections(&self) -> usize {
        self.connections as usize - self.room.available_permits()
    }

    /// WebSockets that are open.
    pub(crate) fn websockets(&self) -> usize {
        self.websockets.load(Ordering::Relaxed)
    }

    pub(crate) fn count_websocket(&self) -> CountedWebSocket {
        self.websockets.fetch_add(1, Ordering::Relaxed);
        CountedWebSocket(Arc::clone(&self.websockets))
    }

    /// Moves on to a phase.
    pub(crate) fn go(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Waits until a phase has come.
    pub(crate) async fn until(&self, phase: Phase) {
        // The sender is in `self`, so it cannot be gone.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Waits until nobody is inside.
    pub(crate) async fn empty(&self) {
        // The semaphore is never closed.
        let _ = self.room.acquire_many(self.connections).await;
    }
}
