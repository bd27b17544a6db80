//! Authenticated connections: the callers of one tenant have a share of them, so that they leave room for others.
//!
//! A connection is counted for the caller of its last request. If the share of a tenant is used up, one of its idle
//! connections is closed for the new one. If none is idle, the request is refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use abide_schema::caller::Caller;
use abide_schema::share::{CommonScopeKeys, NoRoom, ShareKey, Shares};
use abide_schema::{Code, Refusal};
use tokio::sync::Notify;

/// Authenticated connections. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct AuthenticatedConnections(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    shares: Shares,
    common: CommonScopeKeys,
    next: u64,
    /// Its connections, in order of arrival.
    callers: BTreeMap<ShareKey, BTreeMap<u64, Weak<AuthenticatedConnection>>>,
}

/// A connection that is counted once it is authenticated. Every request holds a clone until its response has begun, and
/// a stream or an upgrade until it ends.
#[derive(Debug)]
pub(crate) struct AuthenticatedConnection {
    all: AuthenticatedConnections,
    number: u64,
    counted: Mutex<Option<Counted>>,
    close: Notify,
    /// It serves no further requests; an upgrade may continue.
    has_ended: AtomicBool,
}

/// Whom a connection is counted for.
#[derive(Debug)]
struct Counted {
    caller: Caller,
    key: ShareKey,
}

impl AuthenticatedConnections {
    /// For a server with this many connections.
    pub(crate) fn new(connections: u32) -> AuthenticatedConnections {
        AuthenticatedConnections(Arc::new(Mutex::new(State {
            shares: Shares::new(connections as usize),
            common: CommonScopeKeys::default(),
            next: 0,
            callers: BTreeMap::new(),
        })))
    }

    /// Returns a connection that is not authenticated yet.
    pub(crate) fn new_connection(&self) -> Arc<AuthenticatedConnection> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        Arc::new(AuthenticatedConnection {
            all: self.clone(),
            number,
            counted: Mutex::default(),
            close: Notify::new(),
            has_ended: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Removes a connection, if it is counted.
    fn remove(&mut self, key: &ShareKey, number: u64) {
        let Some(own) = self.callers.get_mut(key) else { return };
        if own.remove(&number).is_some() {
            self.shares.remove(key, 1);
        }
        if own.is_empty() {
            self.callers.remove(key);
        }
    }

    fn add(&mut self, key: &ShareKey, connection: &Arc<AuthenticatedConnection>) {
        self.shares.add(key, 1);
        let own = self.callers.entry(key.clone()).or_default();
        own.insert(connection.number, Arc::downgrade(connection));
    }

    /// Closes the oldest idle connection of a tenant. Returns whether there was one.
    fn close_idle(&mut self, of: &ShareKey) -> bool {
        let common = &self.common;
        let own = self.callers.iter().filter(|(key, _)| common.are_of_one_tenant(of, key));
        let mut own = own.flat_map(|(key, own)| own.iter().map(move |idle| (key, idle)));
        let idle = own.find_map(|(key, (number, connection))| {
            // Only the connection itself holds it: no request does.
            let idle = (connection.strong_count() == 1).then(|| connection.upgrade()).flatten()?;
            (!idle.has_ended.load(Ordering::Relaxed)).then(|| (key.clone(), *number, idle))
        });
        let Some((key, number, idle)) = idle else { return false };
        self.remove(&key, number);
        idle.close.notify_one();
        true
    }

    fn check(&mut self, key: &ShareKey) -> Result<(), Refusal> {
        let Err(why) = self.shares.check(key, 0, &self.common) else { return Ok(()) };
        if self.close_idle(key) {
            return Ok(());
        }
        let (detail, hint) = match why {
            NoRoom::Own => (
                "the callers of your scope have too many connections",
                "close some, or send several requests over one connection",
            ),
            NoRoom::Others => {
                ("the server has reached its connection limit", "try again in a moment")
            }
        };
        Err(Refusal::new(Code::Overloaded, detail).hint(hint))
    }
}

impl AuthenticatedConnection {
    /// A request of this caller was authenticated. Returns whether it is the first one of the connection.
    ///
    /// # Errors
    /// `overloaded` if the callers of its tenant, or all callers, have too many connections.
    pub(crate) fn mark_authenticated(self: &Arc<Self>, caller: &Caller) -> Result<bool, Refusal> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.as_ref().is_some_and(|counted| counted.caller == *caller) {
            return Ok(false);
        }
        let key = ShareKey::for_caller(caller);
        let mut state = self.all.lock();
        let before = counted.as_ref().map(|counted| counted.key.clone());
        if before.as_ref() != Some(&key) {
            state.common.include(&key);
            if let Some(before) = &before {
                state.remove(before, self.number);
            }
            if let Err(refusal) = state.check(&key) {
                before.iter().for_each(|before| state.add(before, self));
                return Err(refusal);
            }
            state.add(&key, self);
        }
        *counted = Some(Counted { caller: caller.clone(), key });
        Ok(before.is_none())
    }

    /// The connection serves no further requests. An upgrade continues.
    pub(crate) fn mark_ended(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Returns when the connection must be closed, because it is idle and another one needs its place.
    pub(crate) async fn wait_until_replaced(&self) {
        self.close.notified().await;
    }
}

impl Drop for AuthenticatedConnection {
    fn drop(&mut self) {
        if let Some(counted) = self.counted.get_mut().unwrap_or_else(PoisonError::into_inner) {
            self.all.lock().remove(&counted.key, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use abide_schema::Scope;
    use futures_util::FutureExt as _;

    use super::*;

    fn caller(scope: &[(&str, &str)]) -> Caller {
        let pairs = scope.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        Caller::with("ann", "worker", BTreeSet::new(), pairs.collect::<Scope>())
    }

    /// Opens connections with a request that does not end until one is refused.
    fn open(
        all: &AuthenticatedConnections,
        caller: &Caller,
    ) -> (Vec<[Arc<AuthenticatedConnection>; 2]>, String) {
        let mut open = Vec::new();
        loop {
            let connection = all.new_connection();
            match connection.mark_authenticated(caller) {
                Ok(is_first) => assert!(is_first),
                Err(refusal) => return (open, refusal.to_string()),
            }
            open.push([Arc::clone(&connection), connection]);
        }
    }

    /// One caller took all connections of the server, and every other caller was refused.
    #[test]
    fn one_tenant_leaves_connections_for_others() {
        let all = AuthenticatedConnections::new(80);
        let a = caller(&[("tenant", "a")]);
        let b = caller(&[("tenant", "b")]);
        let (of_b, why) = open(&all, &b);
        assert_eq!(of_b.len(), 20);
        assert!(why.contains("the callers of your scope have too many connections"), "{why}");
        let narrowed = caller(&[("tenant", "b"), ("desk", "1")]);
        assert_eq!(open(&all, &narrowed).0.len(), 0, "a narrower scope adds none");
        let (of_a, _) = open(&all, &a);
        assert_eq!(of_a.len(), 20);
        let others: Vec<_> = ["c", "d"].map(|name| open(&all, &caller(&[("tenant", name)]))).into();
        let why = &others[1].1;
        assert!(why.contains("the server has reached its connection limit"), "{why}");
        assert_eq!(open(&all, &Caller::local()).0.len(), 10, "the reserve of the operator");
        drop(others);
        assert_eq!(
            of_b[0][0].mark_authenticated(&b),
            Ok(false),
            "the next request of a connection"
        );
        assert_eq!(
            of_b[0][0].mark_authenticated(&caller(&[("tenant", "e")])),
            Ok(false),
            "a proxy's"
        );
        assert_eq!(open(&all, &b).0.len(), 1, "it is counted for the caller of its last request");
        drop((of_a, of_b));
        assert!(all.lock().callers.is_empty() && all.lock().shares.total() == 0);
    }

    #[test]
    fn an_idle_connection_is_closed_for_a_new_one() {
        let all = AuthenticatedConnections::new(80);
        let b = caller(&[("tenant", "b")]);
        let (mut of_b, _) = open(&all, &b);
        let [idle, request] = of_b.swap_remove(3);
        drop(request);
        let new = all.new_connection();
        assert_eq!(new.mark_authenticated(&b), Ok(true));
        assert!(
            idle.wait_until_replaced().now_or_never().is_some()
                && new.wait_until_replaced().now_or_never().is_none()
        );
        let request = Arc::clone(&new);
        drop(idle);
        assert!(all.new_connection().mark_authenticated(&b).is_err(), "none is idle");
        drop((new, request, of_b));
        assert_eq!(all.lock().shares.total(), 0);
    }
}
