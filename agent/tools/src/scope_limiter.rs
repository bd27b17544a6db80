//! How much of one kind of work runs at a time: in total, and for each scope, so that the work of one tenant leaves room
//! for that of others.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum numbers at a time. The rest waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "numbers at a time: a map with total and per_scope")]
pub struct Concurrency {
    /// Of all scopes together.
    pub total: NonZeroUsize,
    /// Of the sessions of one scope. Those without a scope have no limit of their own.
    pub per_scope: NonZeroUsize,
}

impl Concurrency {
    /// These numbers; 0 becomes 1.
    #[must_use]
    pub const fn of(total: usize, per_scope: usize) -> Concurrency {
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
#[derive(Debug)]
pub struct ScopeLimiter {
    total: Arc<Semaphore>,
    per_scope: usize,
    /// A semaphore for each scope with work.
    scopes: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The permit for one piece of work, until it is dropped.
#[derive(Debug)]
pub struct ScopePermit {
    _of_scope: Option<OwnedSemaphorePermit>,
    _of_total: Option<OwnedSemaphorePermit>,
}

/// Number of known scopes above which those without work are removed.
const REMEMBERED: usize = 1_024;

impl ScopeLimiter {
    /// A limiter with these numbers.
    #[must_use]
    pub fn new(limits: Concurrency) -> ScopeLimiter {
        let most = |number: NonZeroUsize| number.get().min(Semaphore::MAX_PERMITS);
        ScopeLimiter {
            total: Arc::new(Semaphore::new(most(limits.total))),
            per_scope: most(limits.per_scope),
            scopes: Mutex::default(),
        }
    }

    /// Waits until work of this scope may begin.
    pub async fn permit(&self, scope: &Map<String, Value>) -> ScopePermit {
        // That of the scope first: then a scope has few in the queue for the total, which is served in order. No
        // semaphore is ever closed, so `ok` loses nothing.
        let _of_scope = match scope.is_empty() {
            true => None,
            false => self.own(scope).acquire_owned().await.ok(),
        };
        let _of_total = Arc::clone(&self.total).acquire_owned().await.ok();
        ScopePermit { _of_scope, _of_total }
    }

    fn own(&self, scope: &Map<String, Value>) -> Arc<Semaphore> {
        // `Map` is sorted by key, so equal scopes have equal texts.
        let name = Value::Object(scope.clone()).to_string();
        let mut scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = scopes.get(&name).and_then(Weak::upgrade) {
            return own;
        }
        if scopes.len() >= REMEMBERED {
            scopes.retain(|_, own| own.strong_count() > 0);
        }
        let own = Arc::new(Semaphore::new(self.per_scope));
        scopes.insert(name, Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use serde_json::json;

    use super::*;

    #[test]
    fn one_scope_leaves_room_for_others() {
        let limiter = ScopeLimiter::new(Concurrency::of(3, 2));
        let begin = |scope: Value| {
            let scope = scope.as_object().cloned().unwrap_or_default();
            limiter.permit(&scope).now_or_never()
        };
        let acme = || begin(json!({"tenant": "acme"}));
        let (first, second) = (acme().expect("room"), acme().expect("room"));
        assert!(acme().is_none(), "the scope has its maximum");
        let zeta = begin(json!({"tenant": "zeta"})).expect("room for another scope");
        assert!(begin(json!({})).is_none(), "all have their maximum");
        drop(zeta);
        let local = begin(json!({})).expect("room");
        drop(first);
        assert!(acme().is_some());
        drop((second, local));
        assert!(limiter.scopes.lock().expect("no panic").values().all(|it| it.strong_count() == 0));
    }
}
