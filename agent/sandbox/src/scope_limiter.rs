//! The amount of one kind of work that runs at a time: in total, and for each tenant, so that the work of one tenant leaves
//! room for that of others.
//!
//! A tenant can add keys to the scopes of its sessions, but it cannot omit those of its own scope. So the tenant of a scope
//! consists of the values of those keys that all known scopes have.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// The keys of a session that separate tenants, and their values.
pub type Scope = BTreeMap<String, String>;

/// Maximum numbers at a time. The rest waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "numbers at a time: a map with total and per_scope")]
pub struct Concurrency {
    /// Of all scopes together.
    pub total: NonZeroUsize,
    /// Of the sessions of one tenant: those with the same values of the scope keys that all sessions have. Sessions without a
    /// scope have no limit of their own.
    pub per_scope: NonZeroUsize,
}

impl Concurrency {
    /// These numbers; 0 becomes 1.
    #[must_use]
    pub const fn new(total: usize, per_scope: usize) -> Concurrency {
        Concurrency { total: at_least_one(total), per_scope: at_least_one(per_scope) }
    }
}

const fn at_least_one(number: usize) -> NonZeroUsize {
    match NonZeroUsize::new(number) {
        Some(number) => number,
        None => NonZeroUsize::MIN,
    }
}

/// Permits for one kind of work.
#[derive(Clone, Debug)]
pub struct ScopeLimiter(Arc<Mutex<State>>);

/// The permit for one piece of work, until it is dropped.
#[derive(Debug)]
pub struct ScopePermit {
    limiter: ScopeLimiter,
    ticket: u64,
}

impl Drop for ScopePermit {
    fn drop(&mut self) {
        self.limiter.lock().leave(self.ticket);
    }
}

impl ScopeLimiter {
    /// Creates a limiter with these numbers.
    #[must_use]
    pub fn new(limits: Concurrency) -> ScopeLimiter {
        ScopeLimiter(Arc::new(Mutex::new(State::new(limits))))
    }

    /// Waits until work of this scope may begin. Works that have room begin in the order of arrival.
    pub async fn permit(&self, scope: Scope) -> ScopePermit {
        let (starts, started) = oneshot::channel();
        let ticket = self.lock().enter(scope, starts);
        // If this future is dropped, so is the permit, and its place is free again.
        let permit = ScopePermit { limiter: self.clone(), ticket };
        // The sender is kept until it is used.
        let _ = started.await;
        permit
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The values of the keys that all scopes have.
type Tenant = Vec<String>;

/// A piece of work.
#[derive(Debug)]
struct Work {
    scope: Scope,
    /// Present while it waits.
    starts: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct State {
    limits: Concurrency,
    /// All work, in the order of arrival.
    works: BTreeMap<u64, Work>,
    next_ticket: u64,
    /// How many scopes have a key.
    keys: BTreeMap<String, usize>,
    /// How many scopes have keys.
    scoped: usize,
    /// The keys that all of these have.
    common: Vec<String>,
    /// The number of works that run.
    running: usize,
    running_of: BTreeMap<Tenant, usize>,
    /// The tickets of the works that wait.
    waiting_of: BTreeMap<Tenant, BTreeSet<u64>>,
}

impl State {
    fn new(limits: Concurrency) -> State {
        State {
            limits,
            works: BTreeMap::new(),
            next_ticket: 0,
            keys: BTreeMap::new(),
            scoped: 0,
            common: Vec::new(),
            running: 0,
            running_of: BTreeMap::new(),
            waiting_of: BTreeMap::new(),
        }
    }

    /// Adds work, and starts what has room.
    fn enter(&mut self, scope: Scope, starts: oneshot::Sender<()>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        for key in scope.keys() {
            *self.keys.entry(key.clone()).or_default() += 1;
        }
        self.scoped += usize::from(!scope.is_empty());
        self.find_common_keys();
        self.waiting_of.entry(self.tenant(&scope)).or_default().insert(ticket);
        self.works.insert(ticket, Work { scope, starts: Some(starts) });
        self.start();
        ticket
    }

    /// Removes work that has ended or waits no longer, and starts what has room.
    fn leave(&mut self, ticket: u64) {
        let Some(Work { scope, starts }) = self.works.remove(&ticket) else { return };
        let tenant = self.tenant(&scope);
        match starts {
            Some(_) => self.end_wait(&tenant, ticket),
            None => {
                self.running -= 1;
                decrement(&mut self.running_of, &tenant);
            }
        }
        for key in scope.keys() {
            decrement(&mut self.keys, key);
        }
        self.scoped -= usize::from(!scope.is_empty());
        self.find_common_keys();
        self.start();
    }

    /// Starts the works that have room, the longest waiting first.
    fn start(&mut self) {
        while self.running < self.limits.total.get() {
            let with_room = self.waiting_of.iter().filter(|(tenant, _)| self.has_room(tenant));
            let first = with_room.filter_map(|(tenant, tickets)| Some((*tickets.first()?, tenant)));
            let Some((ticket, tenant)) = first.min() else { return };
            let tenant = tenant.clone();
            self.end_wait(&tenant, ticket);
            self.running += 1;
            *self.running_of.entry(tenant).or_default() += 1;
            let starts = self.works.get_mut(&ticket).and_then(|work| work.starts.take());
            // A work whose future was dropped leaves next.
            let _ = starts.map(|starts| starts.send(()));
        }
    }

    fn has_room(&self, tenant: &Tenant) -> bool {
        let running = self.running_of.get(tenant).copied().unwrap_or_default();
        tenant.is_empty() || running < self.limits.per_scope.get()
    }

    fn end_wait(&mut self, tenant: &Tenant, ticket: u64) {
        if let Some(tickets) = self.waiting_of.get_mut(tenant) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.waiting_of.remove(tenant);
            }
        }
    }

    /// Returns the tenant of a scope; empty for the work of the operator. If no key is common, each scope is a tenant.
    fn tenant(&self, scope: &Scope) -> Tenant {
        if self.common.is_empty() {
            scope.iter().flat_map(|(key, value)| [key.clone(), value.clone()]).collect()
        } else {
            self.common.iter().filter_map(|key| scope.get(key).cloned()).collect()
        }
    }

    fn find_common_keys(&mut self) {
        let common = self.keys.iter().filter(|(_, scopes)| **scopes == self.scoped);
        if common.clone().map(|(key, _)| key).eq(&self.common) {
            return;
        }
        self.common = common.map(|(key, _)| key.clone()).collect();
        self.running_of.clear();
        self.waiting_of.clear();
        for (ticket, work) in &self.works {
            let tenant = self.tenant(&work.scope);
            match work.starts {
                Some(_) => drop(self.waiting_of.entry(tenant).or_default().insert(*ticket)),
                None => *self.running_of.entry(tenant).or_default() += 1,
            }
        }
    }
}

fn decrement<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::FutureExt as _;

    use super::*;

    fn scope(text: &str) -> Scope {
        let parts = text.split_whitespace().filter_map(|part| part.split_once('='));
        parts.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// A permit, or the wait for it.
    type Wait = Pin<Box<dyn Future<Output = ScopePermit>>>;

    fn begin(limiter: &ScopeLimiter, text: &str) -> Result<ScopePermit, Wait> {
        let limiter = limiter.clone();
        let scope = scope(text);
        let mut wait: Wait = Box::pin(async move { limiter.permit(scope).await });
        wait.as_mut().now_or_never().ok_or(wait)
    }

    #[test]
    fn one_tenant_leaves_room_for_others() {
        let limiter = ScopeLimiter::new(Concurrency::new(3, 2));
        let first = begin(&limiter, "tenant=a");
        let second = begin(&limiter, "tenant=a");
        let Err(third) = begin(&limiter, "tenant=a") else { panic!("the tenant has its maximum") };
        let zeta = begin(&limiter, "tenant=z");
        assert!(zeta.is_ok(), "room for another tenant");
        let Err(local) = begin(&limiter, "") else { panic!("all have their maximum") };
        drop(zeta);
        let local = local.now_or_never().expect("room");
        drop(first);
        let third = third.now_or_never().expect("room");
        drop((second, third, local));
        let state = limiter.lock();
        assert!(state.works.is_empty() && state.keys.is_empty() && state.running_of.is_empty());
    }

    /// Each session of the tenant had a scope of its own, and so a limit of its own.
    #[test]
    fn more_keys_give_no_more_room() {
        let limiter = ScopeLimiter::new(Concurrency::new(10, 2));
        let own = ["tenant=a user=1", "tenant=a user=2"].map(|scope| begin(&limiter, scope));
        let other = begin(&limiter, "tenant=z");
        assert!(begin(&limiter, "tenant=a user=3").is_err(), "the tenant has its maximum");
        assert!(begin(&limiter, "tenant=a x=1 y=2").is_err());
        assert!(begin(&limiter, "tenant=z user=1").is_ok());
        drop((own, other));
    }

    /// A wait that ends without a permit frees its place.
    #[test]
    fn a_dropped_wait_blocks_nothing() {
        let limiter = ScopeLimiter::new(Concurrency::new(1, 1));
        let first = begin(&limiter, "tenant=a");
        let Err(second) = begin(&limiter, "tenant=a") else { panic!("there is no room") };
        let Err(third) = begin(&limiter, "tenant=z") else { panic!("there is no room") };
        drop(second);
        drop(first);
        assert!(third.now_or_never().is_some());
        assert!(begin(&limiter, "").is_ok(), "nothing runs");
    }
}
