//! Large messages are processed in turns. Parsing, canonicalising and hashing a large call takes
//! milliseconds of CPU time; a few hundred of them at once would delay every small call for as long as all of
//! them take together. So the large messages of one tenant are processed one after the other, of which each caller has at
//! most one at a time, and all of them leave half of the processors to other work.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;

use abide_engine::Tenants;
use abide_schema::caller::Caller;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;

/// The turns. Clones share them.
#[derive(Clone, Debug)]
pub struct ParseTurns(Arc<State>);

#[derive(Debug)]
struct State {
    all: Arc<Semaphore>,
    tenants: Semaphores,
    callers: Semaphores,
    /// Names the tenant of a caller.
    names: Tenants,
}

/// A semaphore for each caller, or each tenant, with a large message.
#[derive(Debug, Default)]
struct Semaphores(Mutex<HashMap<String, Weak<Semaphore>>>);

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct ParseTurn {
    _of_all: OwnedSemaphorePermit,
    _of_tenant: OwnedSemaphorePermit,
    _of_caller: OwnedSemaphorePermit,
}

/// Number of tracked names above which idle ones are removed.
const REMEMBERED: usize = 1_024;

impl ParseTurns {
    /// For this machine.
    #[must_use]
    pub fn new(names: &Tenants) -> ParseTurns {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        ParseTurns::with_permits(processors.div_ceil(2), names)
    }

    fn with_permits(permits: usize, names: &Tenants) -> ParseTurns {
        ParseTurns(Arc::new(State {
            all: Arc::new(Semaphore::new(permits)),
            tenants: Semaphores::default(),
            callers: Semaphores::default(),
            names: names.clone(),
        }))
    }

    /// Waits for the turn of a message of this size. Small messages do not wait, and get no turn.
    pub async fn acquire(&self, caller: &Caller, bytes: usize) -> Option<ParseTurn> {
        if bytes < limits::LARGE_BYTES {
            return None;
        }
        // The turns of the caller and of its tenant first: then only one message of each caller waits for its tenant's turn,
        // only one of each tenant waits for a global turn, and these are granted in order of request.
        let state = &self.0;
        let _of_caller = state.callers.get(caller.quota_key()).acquire_owned().await.ok()?;
        let tenant = state.names.key(caller);
        let _of_tenant = state.tenants.get(&tenant).acquire_owned().await.ok()?;
        let _of_all = Arc::clone(&state.all).acquire_owned().await.ok()?;
        Some(ParseTurn { _of_all, _of_tenant, _of_caller })
    }
}

impl Semaphores {
    fn get(&self, name: &str) -> Arc<Semaphore> {
        // Every change is one step, so a poisoned lock is consistent.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(name).and_then(Weak::upgrade) {
            return known;
        }
        if all.len() >= REMEMBERED {
            all.retain(|_, known| known.strong_count() > 0);
        }
        let new = Arc::new(Semaphore::new(1));
        all.insert(name.to_owned(), Arc::downgrade(&new));
        new
    }
}

/// Polls work once within the turn, and completes it afterwards: a call reaches the engine's queue
/// in its first poll.
pub async fn begin<T>(permit: Option<ParseTurn>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let begun = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
    drop(permit);
    match begun {
        Poll::Ready(done) => done,
        Poll::Pending => work.await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use abide_schema::caller::Scope;

    use super::*;

    /// A caller whose name is `tenant/id`.
    fn caller(name: &str) -> Caller {
        let (tenant, id) = name.split_once('/').expect("it names a tenant");
        let scope = Scope::from([("tenant".to_owned(), tenant.to_owned())]);
        Caller::with(id, "app", BTreeSet::new(), scope)
    }

    /// Each identity had a turn of its own: a tenant with many tokens delayed the large messages of others.
    #[tokio::test]
    async fn tenants_take_turns_except_for_small_messages() {
        let limiter = ParseTurns::with_permits(1, &Tenants::default());
        let order = Mutex::new(Vec::new());
        let flood = caller("zeta/0");
        let ann = caller("acme/ann");
        let first = limiter.acquire(&flood, limits::LARGE_BYTES).await;
        assert!(first.is_some());
        assert!(limiter.acquire(&ann, limits::LARGE_BYTES - 1).await.is_none(), "it is small");
        let wait = |who: &'static str| {
            let limiter = limiter.clone();
            let order = &order;
            async move {
                let permit = limiter.acquire(&caller(who), limits::LARGE_BYTES).await;
                order.lock().expect("no thread panics").push(who);
                drop(permit);
            }
        };
        let free = async { drop(first) };
        // Polled in this order: all wait before the first turn ends.
        tokio::join!(
            wait("zeta/0"),
            wait("zeta/0"),
            wait("zeta/1"),
            wait("zeta/2"),
            wait("acme/ann"),
            free
        );
        let order = order.into_inner().expect("no thread panics");
        assert_eq!(order[0], "acme/ann");
        assert_eq!(order[1..], ["zeta/1", "zeta/2", "zeta/0", "zeta/0"]);
    }

    #[tokio::test]
    async fn a_turn_ends_when_the_work_waits() {
        let limiter = ParseTurns::with_permits(1, &Tenants::default());
        let ann = caller("acme/ann");
        let (started, hear) = tokio::sync::oneshot::channel();
        let permit = limiter.acquire(&ann, limits::LARGE_BYTES).await;
        let waits = begin(permit, async { hear.await.expect("the sender is alive") });
        let next = async {
            let permit = limiter.acquire(&ann, limits::LARGE_BYTES).await;
            assert!(permit.is_some(), "the turn ends when the first waits for its answer");
            started.send(7).expect("the receiver is alive");
        };
        assert_eq!(tokio::join!(waits, next).0, 7);
    }
}
