//! A bounded queue in front of a thread: of the writer, of the sync thread, of the publisher, and of the readers, which
//! share one and take single items. The others take what waits at once, so groups grow while a sync is in flight.
//! Tenants and their callers share it fairly (see [`crate::commit::fair_queue`]), and a caller that fills it leaves
//! room for the others. Here it is decided whether an item has room, there whose turn it is.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use abide_schema::{Code, Refusal};

use crate::commit::fair_queue::{Entry, FairQueue, Turn};
use crate::locks::{Condvar, Mutex, MutexGuard};

/// A turn takes this fraction of the queue: sixteen ordinary calls.
const TURNS: usize = 1_024;

/// Reciprocal of the reserve of each tenant when the queue is full, for its callers with few items. All reserves
/// together are as large as the queue.
const SHARES: usize = 64;

/// A bounded queue with one taker, or several of single items.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// One for each taker: an item arrived, or the queue was closed.
    filled: Vec<Condvar>,
    /// An item was taken.
    drained: Condvar,
    weight_max: usize,
    /// Maximum number of a tenant's items in progress.
    turns_max: usize,
}

#[derive(Debug)]
struct State<T> {
    items: FairQueue<T>,
    /// Number of each tenant's items in progress, for takers of single items.
    taken: HashMap<Arc<str>, usize>,
    /// Which takers wait for an item, and were not woken for one.
    idle: Vec<bool>,
    closed: bool,
    /// The taker is gone: waiting and new items are dropped.
    abandoned: bool,
}

/// An item in progress. Dropping it allows the next one of the same tenant.
#[derive(Debug)]
pub(crate) struct TakenItem<'a, T> {
    queue: &'a Queue<T>,
    tenant: Option<Arc<str>>,
}

impl<T> Drop for TakenItem<'_, T> {
    fn drop(&mut self) {
        let Some(tenant) = &self.tenant else { return };
        let mut state = self.queue.lock();
        let Some(taken) = state.taken.get_mut(tenant) else { return };
        let was_at_limit = *taken == self.queue.turns_max;
        *taken -= 1;
        if *taken == 0 {
            state.taken.remove(tenant);
        }
        if was_at_limit && state.items.len() > 0 {
            self.queue.wake_one(state);
        }
    }
}

/// Why an item was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rejected<T> {
    /// The queue is full.
    Full(T),
    /// The taker has ended or is ending.
    Closed(T),
}

/// Where an item has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// In the reserve of its tenant.
    Reserved,
}

impl<T> Queue<T> {
    /// Creates a queue with a maximum weight. The producer defines the weight of an item.
    pub(crate) fn new(weight_max: usize) -> Queue<T> {
        Queue::shared(1, weight_max, usize::MAX)
    }

    /// Returns a queue for several takers of single items ([`Queue::take_one`]), with a limit of items in progress per
    /// tenant.
    pub(crate) fn shared(takers: usize, weight_max: usize, turns_max: usize) -> Queue<T> {
        let items = FairQueue::new(weight_max / TURNS);
        let taken = HashMap::new();
        let idle = vec![false; takers];
        let state = State { items, taken, idle, closed: false, abandoned: false };
        Queue {
            state: Mutex::new(state),
            filled: (0..takers).map(|_| Condvar::new()).collect(),
            drained: Condvar::new(),
            weight_max,
            turns_max,
        }
    }

    /// Adds an item of a caller, or of the engine itself, or refuses it immediately if there is no room. An item
    /// heavier than the whole queue is accepted when the queue is empty; an item without weight is always
    /// accepted.
    pub(crate) fn push(
        &self,
        turn: Option<&Turn>,
        item: T,
        weight: usize,
    ) -> Result<(), Rejected<T>> {
        let mut state = self.lock();
        if state.closed {
            return Err(Rejected::Closed(item));
        }
        let is_reserved = match self.room_for(&state.items, turn, weight) {
            Some(Room::Free) => false,
            Some(Room::Reserved) => true,
            None => return Err(Rejected::Full(item)),
        };
        state.items.push(Entry { turn: turn.cloned(), item, weight, is_reserved });
        self.wake_one(state);
        Ok(())
    }

    /// `true` if an item of a caller would be accepted now.
    pub(crate) fn accepts(&self, turn: &Turn, weight: usize) -> bool {
        let state = self.lock();
        // A closed queue refuses the item itself.
        state.closed || self.room_for(&state.items, Some(turn), weight).is_some()
    }

    fn room_for(&self, items: &FairQueue<T>, turn: Option<&Turn>, weight: usize) -> Option<Room> {
        if weight == 0 || self.has_room(items, weight) {
            return Some(Room::Free);
        }
        let turn = turn?;
        let reserve = self.weight_max / SHARES;
        // A caller that fills the queue leaves the reserve to the other callers of its tenant.
        let has_few = items.weight_of(turn) + weight <= reserve;
        let fits = items.reserved_by(&turn.tenant) + weight <= reserve
            && items.weight() + weight <= 2 * self.weight_max;
        (has_few && fits).then_some(Room::Reserved)
    }

    /// Puts items back that were taken and not processed, also if the queue is closed. See [`FairQueue::put_back`].
    pub(crate) fn put_back(&self, entries: Vec<Entry<T>>, ended: Option<&Turn>) {
        let mut state = self.lock();
        state.items.put_back(entries, ended);
        self.wake_one(state);
    }

    /// Adds an item of the engine itself, and waits for room. Only a thread may call this, never a task.
    pub(crate) fn push_wait(&self, item: T, weight: usize) {
        let mut state = self.lock();
        while !self.has_room(&state.items, weight) && !state.closed {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.abandoned {
            // Dropped outside the lock: dropping an item may access this queue.
            drop(state);
            return drop(item);
        }
        state.items.push(Entry { turn: None, item, weight, is_reserved: false });
        self.wake_one(state);
    }

    /// Waits until all items are taken, or the queue is closed. Only a thread may call this, never a task.
    pub(crate) fn wait_until_taken(&self) {
        let mut state = self.lock();
        while state.items.len() > 0 && !state.closed {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds an item of the engine itself without weight, unless it can be merged with the last waiting
    /// one: `merge` merges the two, or returns it.
    pub(crate) fn push_or_merge(&self, item: T, merge: impl FnOnce(&mut T, T) -> Option<T>) {
        let mut state = self.lock();
        if state.abandoned {
            drop(state);
            return drop(item);
        }
        let unmerged = match state.items.last_own() {
            Some(last) => merge(last, item),
            None => Some(item),
        };
        if let Some(item) = unmerged {
            state.items.push(Entry { turn: None, item, weight: 0, is_reserved: false });
        }
        self.wake_one(state);
    }

    fn has_room(&self, items: &FairQueue<T>, weight: usize) -> bool {
        items.weight() == 0 || items.weight() + weight <= self.weight_max
    }

    /// Waits for an item, then takes items in turns until their weight reaches `weight`. Empty once
    /// the queue is closed and drained. Only one thread may call this.
    pub(crate) fn take(&self, weight: usize, into: &mut Vec<T>) {
        while self.take_within(None, weight, into) && into.is_empty() {}
    }

    /// Like [`Queue::take`], with a timeout: then nothing is taken. `false` once the queue is closed
    /// and drained.
    pub(crate) fn take_within(
        &self,
        wait: Option<Duration>,
        weight: usize,
        into: &mut Vec<T>,
    ) -> bool {
        let mut state = self.lock();
        if state.items.len() == 0 && !state.closed {
            state = self.wait_for_item(state, 0, wait);
        }
        let open = !state.closed || state.items.len() > 0;
        let mut taken = 0;
        while taken < weight {
            let Some(entry) = state.items.pop() else { break };
            taken += entry.weight.max(1);
            into.push(entry.item);
        }
        drop(state);
        self.drained.notify_all();
        open
    }

    /// Waits for an item of a tenant below its limit of items in progress, and takes it. `None` once the queue is
    /// closed and drained. Each taker has its own number.
    pub(crate) fn take_one(&self, taker: usize) -> Option<(T, TakenItem<'_, T>)> {
        let mut state = self.lock();
        loop {
            let State { items, taken, closed, .. } = &mut *state;
            let is_waiting =
                |tenant: &str| taken.get(tenant).is_some_and(|taken| *taken >= self.turns_max);
            if let Some(entry) = items.pop_unless(is_waiting) {
                let tenant = entry.turn.map(|turn| turn.tenant);
                if let Some(tenant) = &tenant {
                    *taken.entry(Arc::clone(tenant)).or_default() += 1;
                }
                drop(state);
                self.drained.notify_all();
                return Some((entry.item, TakenItem { queue: self, tenant }));
            }
            if *closed && items.len() == 0 {
                // Other takers may wait for the tenant of the last item.
                self.wake_all();
                return None;
            }
            state = self.wait_for_item(state, taker, None);
        }
    }

    /// Waits until the taker is woken, or for that long.
    fn wait_for_item<'a>(
        &self,
        mut state: MutexGuard<'a, State<T>>,
        taker: usize,
        wait: Option<Duration>,
    ) -> MutexGuard<'a, State<T>> {
        state.idle[taker] = true;
        let filled = &self.filled[taker];
        let mut state = match wait {
            None => filled.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(wait) => {
                filled.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.idle[taker] = false;
        state
    }

    /// Wakes the first idle taker for an item. Always the first, so that one query after the other uses one
    /// connection, with its caches, and the others stay closed.
    fn wake_one(&self, mut state: MutexGuard<'_, State<T>>) {
        let Some(taker) = state.idle.iter().position(|idle| *idle) else { return };
        state.idle[taker] = false;
        drop(state);
        self.filled[taker].notify_one();
    }

    fn wake_all(&self) {
        self.filled.iter().for_each(Condvar::notify_all);
    }

    /// `true` if the queue accepts nothing more.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Closes the queue. Waiting items can still be taken.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake_all();
        self.drained.notify_all();
    }

    /// Closes the queue and drops all waiting and future items: the taker has
    /// panicked. The waiter of an item observes that its reply was dropped.
    pub(crate) fn abandon(&self) {
        let mut left = Vec::new();
        let mut state = self.lock();
        state.closed = true;
        state.abandoned = true;
        while let Some(entry) = state.items.pop() {
            left.push(entry.item);
        }
        drop(state);
        self.wake_all();
        self.drained.notify_all();
        drop(left);
    }

    /// Returns the weight of all waiting items.
    pub(crate) fn weight(&self) -> usize {
        self.lock().items.weight()
    }

    /// Returns the number of waiting items.
    pub(crate) fn len(&self) -> usize {
        self.lock().items.len()
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Every change is one step, so a poisoned lock is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the refusal of items while the queues are closed.
pub(crate) fn closing() -> Refusal {
    Refusal::new(Code::Unavailable, "the engine is closing")
        .hint("open the database again, then retry")
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use std::thread;

    use super::*;

    /// Returns the turn of a caller of its own tenant.
    fn turn(name: &str) -> Turn {
        Turn { tenant: name.into(), caller: name.into() }
    }

    #[test]
    fn the_queue_is_bounded_by_weight_and_ordered() {
        let queue = Queue::new(10);
        assert_eq!(queue.push(Some(&turn("me")), 'a', 4), Ok(()));
        assert_eq!(queue.push(Some(&turn("me")), 'b', 6), Ok(()));
        assert_eq!(queue.push(Some(&turn("me")), 'c', 1), Err(Rejected::Full('c')));
        let mut taken = Vec::new();
        queue.take(5, &mut taken);
        assert_eq!((taken.as_slice(), queue.weight()), (['a', 'b'].as_slice(), 0));
        assert_eq!(
            queue.push(Some(&turn("me")), 'd', 11),
            Ok(()),
            "an empty queue accepts even the heaviest item"
        );
    }

    #[test]
    fn a_closed_queue_drains_and_refuses_new_items() {
        let queue = Queue::new(10);
        assert_eq!(queue.push(Some(&turn("me")), 'a', 1), Ok(()));
        queue.close();
        assert_eq!(queue.push(Some(&turn("me")), 'b', 1), Err(Rejected::Closed('b')));
        let mut taken = Vec::new();
        queue.take(9, &mut taken);
        assert_eq!(taken, ['a']);
        queue.take(9, &mut taken);
        assert_eq!(taken, ['a'], "closed and empty: no waiting");
    }

    #[test]
    fn an_abandoned_queue_drops_waiting_and_new_items() {
        let queue = Queue::new(1);
        let item = Arc::new(());
        assert_eq!(queue.push(Some(&turn("me")), Arc::clone(&item), 1), Ok(()));
        queue.abandon();
        queue.push_wait(Arc::clone(&item), 1);
        queue.push_or_merge(Arc::clone(&item), |_, _| None);
        assert!(matches!(
            queue.push(Some(&turn("me")), Arc::clone(&item), 1),
            Err(Rejected::Closed(_))
        ));
        let mut taken = Vec::new();
        assert!(!queue.take_within(None, 9, &mut taken), "closed and drained");
        assert_eq!((taken.len(), Arc::strong_count(&item)), (0, 1));
    }

    #[test]
    fn weightless_items_are_merged_with_the_last() {
        let queue = Queue::new(2);
        let join = |last: &mut Vec<u8>, item: Vec<u8>| {
            if last.len() < 2 {
                return Some(item);
            }
            last.extend(item);
            None
        };
        queue.push_wait(vec![1], 2);
        queue.push_or_merge(vec![2, 2], join);
        queue.push_or_merge(vec![3], join);
        let mut taken = Vec::new();
        queue.take(usize::MAX, &mut taken);
        assert_eq!(taken, [vec![1], vec![2, 2, 3]], "full, without waiting");
        queue.push_or_merge(vec![4], join);
        queue.take(usize::MAX, &mut taken);
        assert_eq!(taken.last(), Some(&vec![4]), "a taken item is not merged with");
    }

    #[test]
    fn a_timeout_takes_nothing() {
        let queue = Queue::new(10);
        let mut taken = Vec::new();
        assert!(queue.take_within(Some(Duration::ZERO), 9, &mut taken), "the queue is open");
        assert_eq!(queue.push(Some(&turn("me")), 'a', 1), Ok(()));
        queue.close();
        assert!(queue.take_within(Some(Duration::ZERO), 9, &mut taken), "something was left");
        assert_eq!(taken, ['a']);
        assert!(!queue.take_within(Some(Duration::MAX), 9, &mut taken), "closed and drained");
    }

    #[test]
    fn a_full_queue_leaves_room_for_other_callers() {
        let queue = Queue::new(640);
        (0..64).for_each(|number| assert_eq!(queue.push(Some(&turn("flood")), number, 10), Ok(())));
        assert_eq!(queue.push(Some(&turn("flood")), 64, 10), Err(Rejected::Full(64)));
        assert_eq!(queue.push(Some(&turn("ann")), 100, 10), Ok(()), "the caller's reserve");
        assert_eq!(
            queue.push(Some(&turn("ann")), 101, 10),
            Err(Rejected::Full(101)),
            "the reserve is limited"
        );
        let others: Vec<String> = (0..100).map(|number| format!("caller {number}")).collect();
        let room =
            others.iter().filter(|name| queue.push(Some(&turn(name)), 200, 10).is_ok()).count();
        assert_eq!((room, queue.weight()), (63, 1_280), "twice the queue, however many callers");
        let mut taken = Vec::new();
        queue.take(20, &mut taken);
        assert_eq!(taken, [0, 100], "another caller does not wait for the flood");
    }

    /// A tenant that made a token for each 256 kB had room in the reserve with each, until no other tenant had any.
    #[test]
    fn the_identities_of_a_tenant_share_one_reserve() {
        let queue = Queue::new(640);
        let zeta = |caller: &str| Turn { tenant: "zeta".into(), caller: caller.into() };
        (0..64).for_each(|number| assert_eq!(queue.push(Some(&zeta("0")), number, 10), Ok(())));
        assert_eq!(queue.push(Some(&zeta("0")), 64, 10), Err(Rejected::Full(64)));
        assert_eq!(queue.push(Some(&zeta("1")), 100, 10), Ok(()), "it did not fill the queue");
        for other in ["1", "2", "3"] {
            assert_eq!(queue.push(Some(&zeta(other)), 101, 10), Err(Rejected::Full(101)));
        }
        assert_eq!(queue.push(Some(&turn("ann")), 200, 10), Ok(()), "another tenant has its own");
        let mut taken = Vec::new();
        queue.take(30, &mut taken);
        assert_eq!(taken, [0, 200, 100]);
        assert_eq!(queue.push(Some(&zeta("2")), 102, 10), Ok(()), "the reserve is free again");
    }

    #[test]
    fn a_tenant_has_few_items_in_progress() {
        let queue = Queue::shared(2, 10, 1);
        for (caller, item) in [("1", 'a'), ("2", 'b')] {
            let turn = Turn { tenant: "zeta".into(), caller: caller.into() };
            assert_eq!(queue.push(Some(&turn), item, 1), Ok(()));
        }
        assert_eq!(queue.push(Some(&turn("ann")), 'x', 1), Ok(()));
        let first = queue.take_one(0).expect("it waits");
        let second = queue.take_one(1).expect("it waits");
        assert_eq!((first.0, second.0), ('a', 'x'), "zeta's other identity waits");
        drop(first);
        assert_eq!(queue.take_one(0).map(|(item, _)| item), Some('b'));
    }

    #[test]
    fn the_first_idle_taker_gets_the_item() {
        let queue = Queue::shared(3, 10, usize::MAX);
        let idle = |expected: [bool; 3]| {
            while queue.len() > 0 || queue.lock().idle != expected {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            let takers = [0, 1, 2].map(|number| {
                let queue = &queue;
                let taker = scope.spawn(move || queue.take_one(number).map(|(item, _)| item));
                idle([0, 1, 2].map(|other| other <= number));
                taker
            });
            for (item, left) in [('a', [false, true, true]), ('b', [false, false, true])] {
                assert_eq!(queue.push(None, item, 1), Ok(()));
                idle(left);
            }
            queue.close();
            let taken = takers.map(|taker| taker.join().expect("it takes"));
            assert_eq!(taken, [Some('a'), Some('b'), None]);
        });
    }
}
