//! A bounded queue in front of one thread, which takes everything that waits at once: that is how
//! batches grow by themselves while a sync is in flight.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use crate::locks::{Condvar, Mutex, MutexGuard};

/// A bounded queue with one taker.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// Something came, or the queue was closed.
    filled: Condvar,
    /// Something was taken.
    drained: Condvar,
    weight_max: usize,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<(T, usize)>,
    weight: usize,
    closed: bool,
}

/// Why an item was not taken in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rejected<T> {
    /// Too much waits already.
    Full(T),
    /// The taker is gone or going.
    Closed(T),
}

impl<T> Queue<T> {
    /// A queue that holds up to this much weight. What an item weighs is its giver's affair.
    pub(crate) fn new(weight_max: usize) -> Queue<T> {
        let state = State { items: VecDeque::new(), weight: 0, closed: false };
        Queue {
            state: Mutex::new(state),
            filled: Condvar::new(),
            drained: Condvar::new(),
            weight_max,
        }
    }

    /// Adds an item, or says at once that there is no room. One that is heavier than the whole queue
    /// is taken when the queue is empty; for one that weighs nothing there is always room.
    pub(crate) fn push(&self, item: T, weight: usize) -> Result<(), Rejected<T>> {
        let mut state = self.lock();
        if state.closed {
            return Err(Rejected::Closed(item));
        }
        if weight > 0 && state.weight > 0 && state.weight + weight > self.weight_max {
            return Err(Rejected::Full(item));
        }
        state.weight += weight;
        state.items.push_back((item, weight));
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// Adds an item, waiting for room. Only a thread may call this, never a task.
    pub(crate) fn push_wait(&self, item: T, weight: usize) {
        let mut state = self.lock();
        while state.weight > 0 && state.weight + weight > self.weight_max && !state.closed {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.weight += weight;
        state.items.push_back((item, weight));
        drop(state);
        self.filled.notify_one();
    }

    /// Waits for something, then takes items in order until their weight reaches `weight`. Empty once
    /// the queue is closed and drained.
    pub(crate) fn take(&self, weight: usize, into: &mut Vec<T>) {
        while self.take_within(None, weight, into) && into.is_empty() {}
    }

    /// The same, but waits no longer than this: then nothing is taken. False once the queue is closed
    /// and drained.
    pub(crate) fn take_within(
        &self,
        wait: Option<Duration>,
        weight: usize,
        into: &mut Vec<T>,
    ) -> bool {
        let mut state = self.lock();
        if state.items.is_empty() && !state.closed {
            state = match wait {
                None => self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(wait) => {
                    let waited = self.filled.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let open = !state.closed || !state.items.is_empty();
        let mut taken = 0;
        while taken < weight {
            let Some((item, weighs)) = state.items.pop_front() else { break };
            state.weight -= weighs;
            taken += weighs.max(1);
            into.push(item);
        }
        drop(state);
        self.drained.notify_all();
        open
    }

    /// Takes nothing more in. What waits is still taken out.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
        self.drained.notify_all();
    }

    /// The weight that waits.
    pub(crate) fn weight(&self) -> usize {
        self.lock().weight
    }

    /// How many items wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().items.len()
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // A panic elsewhere leaves the queue whole: every change to it is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_by_weight_and_drained_in_order() {
        let queue = Queue::new(10);
        assert_eq!(queue.push('a', 4), Ok(()));
        assert_eq!(queue.push('b', 6), Ok(()));
        assert_eq!(queue.push('c', 1), Err(Rejected::Full('c')));
        let mut taken = Vec::new();
        queue.take(5, &mut taken);
        assert_eq!((taken.as_slice(), queue.weight()), (['a', 'b'].as_slice(), 0));
        assert_eq!(queue.push('d', 11), Ok(()), "alone, even the heaviest has room");
    }

    #[test]
    fn closing_lets_what_waits_out_and_nothing_in() {
        let queue = Queue::new(10);
        assert_eq!(queue.push('a', 1), Ok(()));
        queue.close();
        assert_eq!(queue.push('b', 1), Err(Rejected::Closed('b')));
        let mut taken = Vec::new();
        queue.take(9, &mut taken);
        assert_eq!(taken, ['a']);
        queue.take(9, &mut taken);
        assert_eq!(taken, ['a'], "closed and empty: no waiting");
    }

    #[test]
    fn a_wait_ends_with_nothing() {
        let queue = Queue::new(10);
        let mut taken = Vec::new();
        assert!(queue.take_within(Some(Duration::ZERO), 9, &mut taken), "it is open");
        assert_eq!(queue.push('a', 1), Ok(()));
        queue.close();
        assert!(queue.take_within(Some(Duration::ZERO), 9, &mut taken), "something was left");
        assert_eq!(taken, ['a']);
        assert!(!queue.take_within(Some(Duration::MAX), 9, &mut taken), "closed and drained");
    }
}
