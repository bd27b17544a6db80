//! The phases of a running server, and its open connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use abide_schema::Refusal;
use abide_schema::caller::Caller;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::connections::authenticated::{AuthenticatedConnection, AuthenticatedConnections};

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
    /// The number of open connections of any kind.
    open: Arc<AtomicUsize>,
    authenticated: AuthenticatedConnections,
    /// The number of connections that were authenticated.
    in_use: Arc<watch::Sender<usize>>,
    websockets: Arc<AtomicUsize>,
}

/// A connection's permit. Held until its last task has ended, even after an upgrade.
#[derive(Clone, Debug)]
pub struct ConnectionPermit {
    open: Arc<OpenConnection>,
    share: Arc<AuthenticatedConnection>,
}

/// A place of the connection limit that is in use.
#[derive(Debug)]
struct OpenConnection {
    all: Arc<AtomicUsize>,
    in_use: Arc<watch::Sender<usize>>,
    is_authenticated: AtomicBool,
    _place: OwnedSemaphorePermit,
}

impl ConnectionPermit {
    /// A request of the connection was authenticated: the connection now counts as a use of the server, and for the caller.
    ///
    /// # Errors
    /// `overloaded` if the callers of its tenant, or all callers, have too many connections.
    pub(crate) fn mark_authenticated(&self, caller: &Caller) -> Result<(), Refusal> {
        self.share.mark_authenticated(caller)?;
        if !self.open.is_authenticated.swap(true, Ordering::Relaxed) {
            self.open.in_use.send_modify(|in_use| *in_use += 1);
        }
        Ok(())
    }

    /// Returns when the connection must be closed, because it is idle and another one needs its place.
    pub(crate) async fn wait_until_replaced(&self) {
        self.share.wait_until_replaced().await;
    }

    /// The connection serves no further requests. An upgrade continues.
    pub(crate) fn mark_ended(&self) {
        self.share.mark_ended();
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        if *self.is_authenticated.get_mut() {
            self.in_use.send_modify(|in_use| *in_use -= 1);
        }
    }
}

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
            open: Arc::default(),
            authenticated: AuthenticatedConnections::new(connections),
            in_use: Arc::default(),
            websockets: Arc::default(),
        }
    }

    /// Returns the maximum number of connections.
    pub(crate) fn max_connections(&self) -> u32 {
        self.connections
    }

    /// Takes a permit, if one is available.
    pub(crate) fn enter(&self) -> Option<ConnectionPermit> {
        let _place = Arc::clone(&self.room).try_acquire_owned().ok()?;
        self.open.fetch_add(1, Ordering::Relaxed);
        let open = Arc::new(OpenConnection {
            all: Arc::clone(&self.open),
            in_use: Arc::clone(&self.in_use),
            is_authenticated: AtomicBool::new(false),
            _place,
        });
        Some(ConnectionPermit { open, share: self.authenticated.new_connection() })
    }

    /// Returns the number of open connections of any kind.
    pub(crate) fn connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of open WebSockets.
    pub(crate) fn websockets(&self) -> usize {
        self.websockets.load(Ordering::Relaxed)
    }

    pub(crate) fn count_websocket(&self) -> CountedWebSocket {
        self.websockets.fetch_add(1, Ordering::Relaxed);
        CountedWebSocket(Arc::clone(&self.websockets))
    }

    /// Enters a phase.
    pub(crate) fn enter_phase(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Waits for a phase.
    pub(crate) async fn wait_for(&self, phase: Phase) {
        // `self` holds the sender, so it cannot be dropped.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Waits until there has been no authenticated connection for a time: the first time counts until the first one, the
    /// second one from the end of the last one. A stranger who only connects does not keep the server running.
    pub(crate) async fn wait_until_unused(&self, before_first: Duration, after_last: Duration) {
        let mut in_use = self.in_use.subscribe();
        let mut patience = before_first;
        // `self` holds the sender, so it cannot be dropped. Every change restarts the time, also a connection that has
        // ended already.
        loop {
            let is_used = *in_use.borrow_and_update() > 0;
            if is_used {
                let _ = in_use.changed().await;
            } else if timeout(patience, in_use.changed()).await.is_err() {
                return;
            }
            patience = after_last;
        }
    }

    /// Waits until all connections are closed.
    pub(crate) async fn wait_until_empty(&self) {
        // The semaphore is never closed.
        let _ = self.room.acquire_many(self.connections).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const FIRST: Duration = Duration::from_secs(10);
    const LAST: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn a_server_without_connections_is_unused_after_a_time() {
        let lifecycle = Lifecycle::new(4);
        let stranger = lifecycle.enter();
        let begun = Instant::now();
        lifecycle.wait_until_unused(FIRST, LAST).await;
        assert_eq!(begun.elapsed(), FIRST, "a connection without a credential does not count");
        drop(stranger);

        let user = || {
            let user = lifecycle.enter().expect("there is room");
            // Each of its requests is authenticated.
            let caller = Caller::local();
            user.mark_authenticated(&caller).expect("there is room");
            user.mark_authenticated(&caller).expect("it is counted already");
            user
        };
        let first = user();
        let second = user();
        assert_eq!(lifecycle.connections(), 2);
        let minute = Duration::from_secs(60);
        let begun = Instant::now();
        assert!(
            timeout(minute, lifecycle.wait_until_unused(FIRST, LAST)).await.is_err(),
            "it is in use"
        );
        let ends = async {
            drop(first);
            // tidy: on the paused clock of the test, it takes no time
            tokio::time::sleep(minute).await;
            drop(second);
            // tidy: on the paused clock of the test, it takes no time
            tokio::time::sleep(LAST / 2).await;
            drop(user());
        };
        tokio::join!(lifecycle.wait_until_unused(FIRST, LAST), ends);
        assert_eq!(begun.elapsed(), 2 * minute + LAST / 2 + LAST, "since the end of the last one");
    }
}
