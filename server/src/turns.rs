//! Large messages are read by turns. To take a large call apart, bring it into canonical form and hash it takes
//! milliseconds of a processor; a few hundred of them at once would keep every small call waiting for as long as all of
//! them take together. So one caller's large messages go one after the other, and all of them leave
//! half of the processors to everything else.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;

/// Whose turn it is. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<State>);

#[derive(Debug)]
struct State {
    all: Arc<Semaphore>,
    /// Of each caller who has a large message, by id: room for one.
    callers: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _of_all: OwnedSemaphorePermit,
    _of_caller: OwnedSemaphorePermit,
}

/// Callers that are remembered before those are forgotten who have no message any more.
const REMEMBERED: usize = 1_024;

impl Turns {
    /// For this machine.
    pub(crate) fn new() -> Turns {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Turns::of(processors.div_ceil(2))
    }

    fn of(turns: usize) -> Turns {
        Turns(Arc::new(State { all: Arc::new(Semaphore::new(turns)), callers: Mutex::default() }))
    }

    /// Waits until a message of so many bytes may be read. A small one need not wait, and has no turn.
    pub(crate) async fn turn(&self, caller: &str, bytes: usize) -> Option<Turn> {
        if bytes < limits::LARGE_BYTES {
            return None;
        }
        // His own first: whoever waits for a turn of all is then the only one of his caller, and they are
        // given out in the order in which they are asked for.
        let _of_caller = self.own(caller).acquire_owned().await.ok()?;
        let _of_all = Arc::clone(&self.0.all).acquire_owned().await.ok()?;
        Some(Turn { _of_all, _of_caller })
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

/// Does within the turn what can be done at once, and the rest after it: a call reaches the engine's queue
/// when it is polled first.
pub(crate) async fn begin<T>(turn: Option<Turn>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let begun = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
    drop(turn);
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
    async fn callers_take_turns_and_small_messages_none() {
        let (turns, order) = (Turns::of(1), Mutex::new(Vec::new()));
        let first = turns.turn("flood", limits::LARGE_BYTES).await;
        assert!(first.is_some());
        assert!(turns.turn("ann", limits::LARGE_BYTES - 1).await.is_none(), "it is small");
        let wait = |who: &'static str| {
            let (turns, order) = (turns.clone(), &order);
            async move {
                let turn = turns.turn(who, limits::LARGE_BYTES).await;
                order.lock().expect("nobody panics").push(who);
                drop(turn);
            }
        };
        let free = async { drop(first) };
        // Polled in this order: all wait before the first turn is over.
        tokio::join!(wait("flood"), wait("flood"), wait("ann"), free);
        assert_eq!(*order.lock().expect("nobody panics"), ["ann", "flood", "flood"]);
    }

    #[tokio::test]
    async fn a_turn_ends_where_the_waiting_begins() {
        let turns = Turns::of(1);
        let (told, hear) = tokio::sync::oneshot::channel();
        let turn = turns.turn("ann", limits::LARGE_BYTES).await;
        let waits = begin(turn, async { hear.await.expect("somebody tells") });
        let next = async {
            let turn = turns.turn("ann", limits::LARGE_BYTES).await;
            assert!(turn.is_some(), "the first only waits for its answer");
            told.send(7).expect("somebody hears");
        };
        assert_eq!(tokio::join!(waits, next).0, 7);
    }
}
