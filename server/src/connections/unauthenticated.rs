//! Unauthenticated connections: limited per address and in total, and closed after a few seconds.
//!
//! A connection uses a descriptor before its first request is complete. A client that opens thousands and
//! sends half a request head on each would use up all descriptors. At the limit of an address, or of all, the oldest
//! connection that has had its minimum time is closed in favour of the new one.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::limits;

/// Unauthenticated connections. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct UnauthenticatedConnections(Arc<State>);

#[derive(Debug)]
struct State {
    per_address: usize,
    total: usize,
    waiting: Mutex<PendingState>,
    /// One of them was closed or authenticated.
    left: Notify,
}

#[derive(Debug, Default)]
struct PendingState {
    next: u64,
    count: usize,
    /// Number of queued connections, by address.
    queued: HashMap<IpAddr, usize>,
    /// By address, then in order of arrival.
    addresses: HashMap<IpAddr, BTreeMap<u64, PendingEntry>>,
}

#[derive(Debug)]
struct PendingEntry {
    since: Instant,
    close: Arc<Notify>,
}

/// An unauthenticated connection.
#[derive(Debug)]
pub(crate) struct UnauthenticatedConnection {
    all: UnauthenticatedConnections,
    address: IpAddr,
    number: u64,
    since: Instant,
    close: Arc<Notify>,
}

impl UnauthenticatedConnections {
    /// For a server with this many connections.
    pub(crate) fn new(connections: u32) -> UnauthenticatedConnections {
        let total = (connections as usize / 2).max(1);
        let per_address = limits::UNAUTHENTICATED_PER_ADDRESS.min(total.div_ceil(2));
        let waiting = Mutex::default();
        let left = Notify::new();
        UnauthenticatedConnections(Arc::new(State { per_address, total, waiting, left }))
    }

    /// Admits a connection if it does not have to wait.
    pub(crate) fn enter_now(&self, address: IpAddr) -> Option<UnauthenticatedConnection> {
        self.try_enter(counted_network(address)).ok()
    }

    /// Queues a connection; `None` if too many of its address, or in total, are queued.
    pub(crate) fn queue(&self, address: IpAddr) -> Option<QueuedConnection> {
        let address = counted_network(address);
        let mut waiting = self.lock();
        let all: usize = waiting.queued.values().sum();
        let own = waiting.queued.entry(address).or_default();
        if all >= limits::UNAUTHENTICATED_QUEUE || *own >= limits::UNAUTHENTICATED_QUEUE_PER_ADDRESS
        {
            if *own == 0 {
                waiting.queued.remove(&address);
            }
            return None;
        }
        *own += 1;
        Some(QueuedConnection { all: self.clone(), address })
    }

    /// Admits a connection. At the limit, waits until another one leaves or can be closed.
    async fn enter(&self, address: IpAddr) -> UnauthenticatedConnection {
        loop {
            let left = self.0.left.notified();
            match self.try_enter(address) {
                Ok(connection) => return connection,
                Err(next) => {
                    tokio::select! {
                        () = left => {}
                        () = sleep_until(next) => {}
                    }
                }
            }
        }
    }

    /// Admits a connection, or returns when the next one may be closed for it.
    fn try_enter(&self, address: IpAddr) -> Result<UnauthenticatedConnection, Instant> {
        let mut waiting = self.lock();
        let own = waiting.addresses.get(&address).map_or(0, BTreeMap::len);
        let crowded = if own >= self.0.per_address {
            Some(address)
        } else if waiting.count >= self.0.total {
            let longest = waiting.addresses.iter().max_by_key(|(_, entries)| entries.len());
            longest.map(|(address, _)| *address)
        } else {
            None
        };
        if let Some(crowded) = crowded {
            let oldest = waiting.addresses.get(&crowded).and_then(BTreeMap::first_key_value);
            if let Some((number, entry)) = oldest {
                let due = entry.since + limits::UNAUTHENTICATED_MIN_TIME;
                if Instant::now() < due {
                    return Err(due);
                }
                let number = *number;
                let close = Arc::clone(&entry.close);
                waiting.remove(crowded, number);
                close.notify_one();
            }
        }
        let number = waiting.next;
        let since = Instant::now();
        let close = Arc::new(Notify::new());
        waiting.next += 1;
        waiting.count += 1;
        let entry = PendingEntry { since, close: Arc::clone(&close) };
        waiting.addresses.entry(address).or_default().insert(number, entry);
        drop(waiting);
        Ok(UnauthenticatedConnection { all: self.clone(), address, number, since, close })
    }

    fn lock(&self) -> MutexGuard<'_, PendingState> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingState {
    /// Removes a connection; returns whether it existed.
    fn remove(&mut self, address: IpAddr, number: u64) -> bool {
        let Some(entries) = self.addresses.get_mut(&address) else { return false };
        let was = entries.remove(&number).is_some();
        if entries.is_empty() {
            self.addresses.remove(&address);
        }
        self.count -= usize::from(was);
        was
    }
}

/// A queued connection.
#[derive(Debug)]
pub(crate) struct QueuedConnection {
    all: UnauthenticatedConnections,
    address: IpAddr,
}

impl QueuedConnection {
    /// Waits until it is admitted.
    pub(crate) async fn enter(self) -> UnauthenticatedConnection {
        self.all.enter(self.address).await
    }
}

impl Drop for QueuedConnection {
    fn drop(&mut self) {
        let mut waiting = self.all.lock();
        if let Some(own) = waiting.queued.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                waiting.queued.remove(&self.address);
            }
        }
    }
}

impl UnauthenticatedConnection {
    /// The connection is authenticated.
    pub(crate) fn mark_admitted(&self) {
        let was = self.all.lock().remove(self.address, self.number);
        if was {
            self.all.0.left.notify_waiters();
        }
    }

    /// Returns when the connection must be closed: another one needs its place, or its time is over. Never returns for
    /// an authenticated one.
    pub(crate) async fn wait_until_overdue(&self) {
        tokio::select! {
            () = self.close.notified() => return,
            () = sleep_until(self.since + limits::UNAUTHENTICATED_TIMEOUT) => {}
        }
        if !self.is_pending() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns when the connection must be closed by a server that stops: a request that is on its way has arrived by then.
    /// Never returns for an authenticated one.
    pub(crate) async fn wait_until_overdue_at_stop(&self) {
        sleep(limits::UNAUTHENTICATED_MIN_TIME).await;
        if !self.is_pending() {
            std::future::pending::<()>().await;
        }
    }

    fn is_pending(&self) -> bool {
        let waiting = self.all.lock();
        let own = waiting.addresses.get(&self.address);
        own.is_some_and(|entries| entries.contains_key(&self.number))
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        self.mark_admitted();
    }
}

/// Returns the unit of counting for an address: for IPv6 the network, since each host has 2^64 addresses in it.
fn counted_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    async fn is_closed(connection: &UnauthenticatedConnection) -> bool {
        tokio::time::timeout(Duration::from_millis(1), connection.wait_until_overdue())
            .await
            .is_ok()
    }

    /// 10,000 incomplete request heads blocked all other clients for 30 seconds.
    #[tokio::test(start_paused = true)]
    async fn the_oldest_connections_of_a_crowded_address_are_closed() {
        let pending_connections = UnauthenticatedConnections::new(8);
        let begun = Instant::now();
        let mut held = Vec::new();
        for _ in 0..100 {
            held.push(pending_connections.enter(address(1)).await);
            assert!(pending_connections.lock().count <= 2, "the limit per address");
        }
        assert!(
            begun.elapsed() <= 50 * (limits::UNAUTHENTICATED_MIN_TIME + Duration::from_millis(1))
        );
        assert!(is_closed(&held[0]).await && !is_closed(&held[99]).await);
        let before = Instant::now();
        let other = pending_connections.enter(address(2)).await;
        assert_eq!(before.elapsed(), Duration::ZERO, "another address does not wait");
        other.mark_admitted();
        // tidy: on the paused clock of the test, it takes no time
        sleep(limits::UNAUTHENTICATED_TIMEOUT).await;
        assert!(is_closed(&held[99]).await, "its time is over");
        assert!(!is_closed(&other).await, "it is authenticated");
        drop((held, other));
        assert!(
            pending_connections.lock().addresses.is_empty()
                && pending_connections.lock().count == 0
        );
    }

    #[tokio::test(start_paused = true)]
    async fn authenticated_connections_are_not_evicted() {
        let pending_connections = UnauthenticatedConnections::new(8);
        let first = pending_connections.enter(address(1)).await;
        let second = pending_connections.enter(address(1)).await;
        let third = async {
            let third = pending_connections.enter(address(1)).await;
            assert!(!is_closed(&first).await && !is_closed(&second).await);
            third
        };
        let shows = async {
            tokio::task::yield_now().await;
            first.mark_admitted();
        };
        let before = Instant::now();
        tokio::join!(third, shows);
        assert!(
            before.elapsed() < limits::UNAUTHENTICATED_MIN_TIME,
            "it waits for a place, not for the timeout"
        );
    }

    #[test]
    fn queued_connections_are_limited_per_address_and_in_total() {
        let pending_connections = UnauthenticatedConnections::new(8);
        let queue = |last: u8| -> Vec<QueuedConnection> {
            (0..limits::UNAUTHENTICATED_QUEUE)
                .map_while(|_| pending_connections.queue(address(last)))
                .collect()
        };
        let first = queue(1);
        assert_eq!(first.len(), limits::UNAUTHENTICATED_QUEUE_PER_ADDRESS);
        let others: Vec<QueuedConnection> = (2..=255).flat_map(&queue).collect();
        assert_eq!(first.len() + others.len(), limits::UNAUTHENTICATED_QUEUE);
        assert!(queue(255).is_empty() && pending_connections.lock().queued.len() < 255);
        drop(first);
        assert_eq!(
            queue(255).len(),
            limits::UNAUTHENTICATED_QUEUE_PER_ADDRESS,
            "there is room again"
        );
        drop(others);
        assert!(pending_connections.lock().queued.is_empty());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let of = |text: &str| counted_network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
