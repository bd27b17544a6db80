//! Large messages are processed in turns. Parsing, canonicalising and hashing a large call takes
//! milliseconds of CPU time; a few hundred of them at once would delay every small call for as long as all of
//! them take together. So one caller's large messages are processed one after the other, and all of them leave
//! half of the processors to other work.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;

/// The turns. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ReadLimiter(Arc<State>);

#[derive(Debug)]
struct State {
    all: Arc<Semaphore>,
    /// A semaphore for each caller with a large message, by id.
    callers: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadPermit {
    _of_all: OwnedSemaphorePermit,
    _of_caller: OwnedSemaphorePermit,
}

/// Number of tracked callers above which idle ones are removed.
const REMEMBERED: usize = 1_024;

impl ReadLimiter {
    /// For this machine.
    pub(crate) fn new() -> ReadLimiter {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        ReadLimiter::of(processors.div_ceil(2))
    }

    fn of(read_limiter: usize) -> ReadLimiter {
        ReadLimiter(Arc::new(State {
            all: Arc::new(Semaphore::new(read_limiter)),
            callers: Mutex::default(),
        }))
    }

    /// Waits for the turn of a message of this size. Small messages do not wait, and get no turn.
    pub(crate) async fn permit(&self, caller: &str, bytes: usize) -> Option<ReadPermit> {
        if bytes < limits::LARGE_BYTES {
            return None;
        }
        // The caller's own turn first: then only one message of each caller waits for a global turn, and these are
        // granted in order of request.
        let _of_caller = self.own(caller).acquire_owned().await.ok()?;
        let _of_all = Arc::clone(&self.0.all).acquire_owned().await.ok()?;
        Some(ReadPermit { _of_all, _of_caller })
    }

    fn own(&self, caller: &str) -> Arc<Semaphore> {
        let mut callers = self.0.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = callers.get(caller).and_then(Weak::upgrade) {
            return own;
        }
        if callers.len() >= REMEMBERED {
            callers.retain(|_, own| own.strong_count() > 0);
        }
        let own = Arc::new(Semaphore::new(1));
        callers.insert(caller.to_owned(), Arc::downgrade(&own));
        own
    }
}

/// Polls work once within the turn, and completes it afterwards: a call reaches the engine's queue
/// in its first poll.
pub(crate) async fn begin<T>(permit: Option<ReadPermit>, work: impl Future<Output = T>) -> T {
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
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn callers_take_turns_except_for_small_messages() {
        let (read_limiter, order) = (ReadLimiter::of(1), Mutex::new(Vec::new()));
        let first = read_limiter.permit("flood", limits::LARGE_BYTES).await;
        assert!(first.is_some());
        assert!(read_limiter.permit("ann", limits::LARGE_BYTES - 1).await.is_none(), "it is small");
        let wait = |who: &'static str| {
            let (read_limiter, order) = (read_limiter.clone(), &order);
            async move {
                let permit = read_limiter.permit(who, limits::LARGE_BYTES).await;
                order.lock().expect("no thread panics").push(who);
                drop(permit);
            }
        };
        let free = async { drop(first) };
        // Polled in this order: all wait before the first turn ends.
        tokio::join!(wait("flood"), wait("flood"), wait("ann"), free);
        assert_eq!(*order.lock().expect("no thread panics"), ["ann", "flood", "flood"]);
    }

    #[tokio::test]
    async fn a_turn_ends_when_the_work_waits() {
        let read_limiter = ReadLimiter::of(1);
        let (started, hear) = tokio::sync::oneshot::channel();
        let permit = read_limiter.permit("ann", limits::LARGE_BYTES).await;
        let waits = begin(permit, async { hear.await.expect("the sender is alive") });
        let next = async {
            let permit = read_limiter.permit("ann", limits::LARGE_BYTES).await;
            assert!(permit.is_some(), "the turn ends when the first waits for its answer");
            started.send(7).expect("the receiver is alive");
        };
        assert_eq!(tokio::join!(waits, next).0, 7);
    }
}
