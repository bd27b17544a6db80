//! A fair queue: tenants take turns, and within the turns of a tenant its callers do. A caller that floods the queue
//! delays only itself, and a tenant gains no share by creating further identities.
//!
//! Deficit round robin (Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round-Robin", SIGCOMM
//! 1995) in the form that lets a lane overdraw: a lane is served until its credit is
//! used up, and an overdraft is subtracted at its next turn. Each step has constant cost, however many lanes there are.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use abide_schema::caller::Caller;

use crate::access::tenants::Tenants;

/// The items that an empty queue of a caller keeps memory for.
const KEPT_ITEMS: usize = 16;

/// Whose turn an item takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Turn {
    /// See [`Tenants::key`].
    pub(crate) tenant: Arc<str>,
    /// See [`Caller::quota_key`].
    pub(crate) caller: Arc<str>,
}

impl Turn {
    /// Returns the turn of a caller. One without a scope is a tenant of its own.
    pub(crate) fn from_caller(caller: &Caller, tenants: &Tenants) -> Turn {
        let name: Arc<str> = caller.quota_key().into();
        let is_scoped = !caller.checked_as().scope().is_empty();
        let tenant = if is_scoped { tenants.key(caller).into() } else { Arc::clone(&name) };
        Turn { tenant, caller: name }
    }

    /// Returns the turn of work for several callers of a tenant.
    pub(crate) fn from_tenant(tenant: &str) -> Turn {
        Turn { tenant: tenant.into(), caller: Caller::SYSTEM.into() }
    }
}

/// An item of the queue.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    /// `None` for an item of the engine itself.
    pub(crate) turn: Option<Turn>,
    pub(crate) item: T,
    pub(crate) weight: usize,
    /// Whether it uses the reserve of its tenant.
    pub(crate) is_reserved: bool,
}

/// Items with their weights, in lanes.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    /// The engine's own items, served before all others: they are few, or weigh nothing.
    own: VecDeque<Entry<T>>,
    tenants: Lanes<TenantQueue<T>>,
    weight: usize,
    len: usize,
    /// The credit of a lane per turn.
    quantum: usize,
}

/// The waiting items of one tenant; never empty.
#[derive(Debug)]
struct TenantQueue<T> {
    callers: Lanes<CallerQueue<T>>,
    /// The weight of the items that use its reserve.
    reserved: usize,
}

/// The waiting items of one caller; never empty.
#[derive(Debug)]
struct CallerQueue<T> {
    items: VecDeque<Entry<T>>,
    weight: usize,
}

impl<T> Default for TenantQueue<T> {
    fn default() -> TenantQueue<T> {
        TenantQueue { callers: Lanes::default(), reserved: 0 }
    }
}

impl<T> Default for CallerQueue<T> {
    fn default() -> CallerQueue<T> {
        CallerQueue { items: VecDeque::new(), weight: 0 }
    }
}

impl<T> TenantQueue<T> {
    fn pop(&mut self, quantum: usize) -> Served<Entry<T>> {
        let entry = self
            .callers
            .pop(quantum, |_| false, CallerQueue::pop)
            .expect("a tenant in turn has items");
        if entry.is_reserved {
            self.reserved -= entry.weight;
        }
        Served { weight: entry.weight, is_last: self.callers.is_empty(), item: entry }
    }
}

impl<T> CallerQueue<T> {
    fn pop(&mut self) -> Served<Entry<T>> {
        let entry = self.items.pop_front().expect("a caller in turn has items");
        self.weight -= entry.weight;
        let is_last = self.items.is_empty();
        if is_last {
            // The lane may be kept for the next caller.
            self.items.shrink_to(KEPT_ITEMS);
        }
        Served { weight: entry.weight, is_last, item: entry }
    }
}

impl<T> FairQueue<T> {
    /// Creates an empty queue. At its turn a lane may take this weight, at least one item.
    pub(crate) fn new(quantum: usize) -> FairQueue<T> {
        FairQueue {
            own: VecDeque::new(),
            tenants: Lanes::default(),
            weight: 0,
            len: 0,
            quantum: quantum.max(1),
        }
    }

    /// Adds an item after those of the same caller.
    pub(crate) fn push(&mut self, entry: Entry<T>) {
        self.weight += entry.weight;
        self.len += 1;
        match self.caller_of(&entry) {
            Some(caller) => caller.items.push_back(entry),
            None => self.own.push_back(entry),
        }
    }

    /// Puts items back that were taken and not processed, in the order in which they were taken. They are again the
    /// first of their callers, and their tenants have the next turns. Only the tenant and the caller whose turn has
    /// `ended` come after all others.
    pub(crate) fn put_back(&mut self, entries: Vec<Entry<T>>, ended: Option<&Turn>) {
        let mut tenants = Vec::new();
        let mut callers: HashMap<Arc<str>, Vec<Arc<str>>> = HashMap::new();
        let mut seen = HashSet::new();
        for turn in entries.iter().filter_map(|entry| entry.turn.as_ref()) {
            if seen.insert(turn.clone()) {
                let tenant_callers = callers.entry(Arc::clone(&turn.tenant)).or_default();
                if tenant_callers.is_empty() {
                    tenants.push(Arc::clone(&turn.tenant));
                }
                tenant_callers.push(Arc::clone(&turn.caller));
            }
        }
        for entry in entries.into_iter().rev() {
            self.weight += entry.weight;
            self.len += 1;
            if let Some(turn) = &entry.turn {
                self.tenants.refund(&turn.tenant, entry.weight, self.quantum);
                let tenant = self.tenants.enter(&turn.tenant);
                tenant.callers.refund(&turn.caller, entry.weight, self.quantum);
            }
            match self.caller_of(&entry) {
                Some(caller) => caller.items.push_front(entry),
                None => self.own.push_front(entry),
            }
        }
        for name in &tenants {
            let first = callers.remove(name).expect("the tenant has a caller");
            let ended = ended.filter(|ended| ended.tenant == *name);
            let tenant = self.tenants.enter(name);
            tenant.callers.reorder(first, ended.map(|ended| &ended.caller));
        }
        self.tenants.reorder(tenants, ended.map(|ended| &ended.tenant));
    }

    /// Returns the queue of the caller of an item, which is counted there.
    fn caller_of(&mut self, entry: &Entry<T>) -> Option<&mut CallerQueue<T>> {
        let turn = entry.turn.as_ref()?;
        let tenant = self.tenants.enter(&turn.tenant);
        if entry.is_reserved {
            tenant.reserved += entry.weight;
        }
        let caller = tenant.callers.enter(&turn.caller);
        caller.weight += entry.weight;
        Some(caller)
    }

    /// Takes the next item.
    pub(crate) fn pop(&mut self) -> Option<Entry<T>> {
        self.pop_unless(|_| false)
    }

    /// Takes the next item of a tenant that is not `waiting`.
    pub(crate) fn pop_unless(&mut self, waiting: impl Fn(&str) -> bool) -> Option<Entry<T>> {
        let quantum = self.quantum;
        let entry = match self.own.pop_front() {
            Some(entry) => entry,
            None => self.tenants.pop(quantum, waiting, |tenant| tenant.pop(quantum))?,
        };
        self.weight -= entry.weight;
        self.len -= 1;
        Some(entry)
    }

    /// Returns the engine's own last item, if it still waits.
    pub(crate) fn last_own(&mut self) -> Option<&mut T> {
        self.own.back_mut().map(|entry| &mut entry.item)
    }

    /// Returns the weight of all waiting items.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Returns the weight of a caller's waiting items.
    pub(crate) fn weight_of(&self, turn: &Turn) -> usize {
        let tenant = self.tenants.get(&turn.tenant);
        let caller = tenant.and_then(|tenant| tenant.callers.get(&turn.caller));
        caller.map_or(0, |caller| caller.weight)
    }

    /// Returns the weight of a tenant's waiting items that use its reserve.
    pub(crate) fn reserved_by(&self, tenant: &str) -> usize {
        self.tenants.get(tenant).map_or(0, |tenant| tenant.reserved)
    }

    /// Returns the number of waiting items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Lanes that are served in turns.
#[derive(Debug)]
struct Lanes<L> {
    all: HashMap<Arc<str>, Lane<L>>,
    /// The names of all lanes, the next one first.
    turn: VecDeque<Arc<str>>,
    /// An empty queue for the next lane: most calls are the only ones of their callers, and would allocate one each.
    spare: Option<L>,
}

#[derive(Debug)]
struct Lane<L> {
    queue: L,
    credit: isize,
}

/// What a lane gave at its turn.
struct Served<X> {
    item: X,
    weight: usize,
    /// Whether the lane is empty now.
    is_last: bool,
}

impl<L> Default for Lanes<L> {
    fn default() -> Lanes<L> {
        Lanes { all: HashMap::new(), turn: VecDeque::new(), spare: None }
    }
}

impl<L: Default> Lanes<L> {
    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn get(&self, name: &str) -> Option<&L> {
        self.all.get(name).map(|lane| &lane.queue)
    }

    /// Returns the queue of a lane. A new lane has the last turn.
    fn enter(&mut self, name: &Arc<str>) -> &mut L {
        let lane = self.all.entry(Arc::clone(name)).or_insert_with(|| {
            self.turn.push_back(Arc::clone(name));
            Lane { queue: self.spare.take().unwrap_or_default(), credit: 0 }
        });
        &mut lane.queue
    }

    /// Takes an item of the first lane that is not `waiting`.
    fn pop<X>(
        &mut self,
        quantum: usize,
        waiting: impl Fn(&str) -> bool,
        take: impl FnOnce(&mut L) -> Served<X>,
    ) -> Option<X> {
        let mut passed = 0;
        loop {
            let is_alone = self.turn.len() == 1;
            let name = self.turn.front()?;
            if waiting(name) {
                passed += 1;
                if passed > self.turn.len() {
                    return None;
                }
                self.turn.rotate_left(1);
                continue;
            }
            passed = 0;
            let lane = self.all.get_mut(name).expect("a lane in turn is there");
            if lane.credit <= 0 {
                lane.credit += quantum.cast_signed();
                if lane.credit <= 0 && !is_alone {
                    self.turn.rotate_left(1);
                    continue;
                }
            }
            let served = take(&mut lane.queue);
            lane.credit -= served.weight.max(1).cast_signed();
            if served.is_last {
                self.spare = self.all.remove(name).map(|lane| lane.queue);
                self.turn.pop_front();
            } else if is_alone {
                // No other lane waited, so the overdraft is void.
                lane.credit = lane.credit.max(0);
            } else if lane.credit <= 0 {
                self.turn.rotate_left(1);
            }
            return Some(served.item);
        }
    }

    /// Returns the credit of an item that comes back to a lane that still has others.
    fn refund(&mut self, name: &str, weight: usize, quantum: usize) {
        if let Some(lane) = self.all.get_mut(name) {
            let credit = lane.credit + weight.max(1).cast_signed();
            lane.credit = credit.min(quantum.cast_signed());
        }
    }

    /// Gives these lanes the next turns, in this order, and ends the turn of another one.
    fn reorder(&mut self, first: Vec<Arc<str>>, ended: Option<&Arc<str>>) {
        let moved: HashSet<&Arc<str>> = first.iter().chain(ended).collect();
        self.turn.retain(|name| !moved.contains(name));
        let first = first.iter().filter(|name| Some(*name) != ended);
        first.rev().for_each(|name| self.turn.push_front(Arc::clone(name)));
        let Some(name) = ended else { return };
        if let Some(lane) = self.all.get_mut(name) {
            lane.credit = lane.credit.min(0);
            self.turn.push_back(Arc::clone(name));
        }
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the turn of a caller, as `tenant/caller`; `""` is the engine.
    fn turn(name: &str) -> Option<Turn> {
        let (tenant, caller) = name.split_once('/').unwrap_or((name, ""));
        (!name.is_empty()).then(|| Turn { tenant: tenant.into(), caller: caller.into() })
    }

    fn entry<T>(name: &str, item: T, weight: usize) -> Entry<T> {
        Entry { turn: turn(name), item, weight, is_reserved: false }
    }

    /// Adds an item for each character.
    fn push(queue: &mut FairQueue<char>, name: &str, items: &str, weight: usize) {
        items.chars().for_each(|item| queue.push(entry(name, item, weight)));
    }

    fn order(queue: &mut FairQueue<char>) -> String {
        std::iter::from_fn(|| queue.pop()).map(|entry| entry.item).collect()
    }

    #[test]
    fn callers_take_turns_and_each_keeps_its_order() {
        let mut queue = FairQueue::new(1);
        push(&mut queue, "flood", "abc", 1);
        push(&mut queue, "ann", "xy", 1);
        push(&mut queue, "", "!", 0);
        let ann = turn("ann").expect("it has a name");
        assert_eq!((queue.len(), queue.weight(), queue.weight_of(&ann)), (6, 5, 2));
        assert_eq!(order(&mut queue), "!axbyc");
        assert_eq!((queue.len(), queue.weight()), (0, 0));
    }

    /// Each identity had a turn of its own, so a tenant whose admin created 24 tokens had 24 of 25 turns: the writes of
    /// another tenant waited for a second.
    #[test]
    fn further_identities_add_no_turn() {
        let mut queue = FairQueue::new(1);
        for (number, items) in ["ae", "bf", "cg", "dh"].into_iter().enumerate() {
            push(&mut queue, &format!("zeta/{number}"), items, 1);
        }
        push(&mut queue, "acme/ann", "uvw", 1);
        push(&mut queue, "acme/bob", "xyz", 1);
        assert_eq!(order(&mut queue), "aubxcvdyewfzgh");
    }

    #[test]
    fn turns_are_measured_by_weight() {
        let mut queue = FairQueue::new(4);
        push(&mut queue, "heavy", "ABC", 8);
        push(&mut queue, "light", "abcdefghi", 1);
        // The overdraft of the heavy lane is subtracted at its next turn.
        assert_eq!(order(&mut queue), "AabcdefghBiC");
    }

    #[test]
    fn a_lane_alone_has_no_overdraft() {
        let mut queue = FairQueue::new(1);
        push(&mut queue, "first", "abcd", 100);
        assert_eq!(queue.pop().map(|entry| entry.item), Some('a'));
        assert_eq!(queue.pop().map(|entry| entry.item), Some('b'));
        push(&mut queue, "second", "xyz", 1);
        assert_eq!(order(&mut queue), "cxyzd");
    }

    #[test]
    fn items_that_are_put_back_keep_their_turns() {
        let mut queue = FairQueue::new(1);
        push(&mut queue, "zeta/1", "ac", 9);
        push(&mut queue, "zeta/2", "bd", 9);
        push(&mut queue, "acme/ann", "xy", 1);
        push(&mut queue, "blue/bob", "u", 1);
        let mut taken: Vec<Entry<char>> = std::iter::from_fn(|| queue.pop()).collect();
        let items: String = taken.iter().map(|entry| entry.item).collect();
        assert_eq!(items, "axuybcd");
        let first = taken.remove(0);
        // These came meanwhile.
        push(&mut queue, "zeta/1", "e", 9);
        push(&mut queue, "cyan/cyd", "s", 1);
        queue.put_back(taken, first.turn.as_ref());
        let zeta = turn("zeta/1").expect("it has a name");
        assert_eq!((queue.len(), queue.weight(), queue.weight_of(&zeta)), (8, 40, 18));
        assert_eq!(order(&mut queue), "xusbycde", "zeta and its first caller had their turn");
        push(&mut queue, "", "!?", 0);
        let own = queue.pop().expect("it waits");
        queue.put_back(vec![own], turn("zeta/1").as_ref());
        assert_eq!(order(&mut queue), "!?", "a lane that is gone has no turn");
    }

    proptest! {
        /// While two lanes have items, neither gets more than a quantum and one item more than the other (the bound of
        /// the paper), tenants as well as the callers of one; nothing is lost, and each caller keeps its order.
        #[test]
        fn no_lane_gets_more_than_its_share(
            weights in prop::collection::vec((0_usize..3, 1_usize..40), 1..200),
            quantum in 1_usize..30,
            callers_of_a_tenant in any::<bool>(),
        ) {
            let names = if callers_of_a_tenant { ["acme/ann", "acme/bob", "acme/cyd"] } else { ["ann", "bob", "cyd"] };
            let mut queue = FairQueue::new(quantum);
            for (number, (who, weight)) in weights.iter().enumerate() {
                queue.push(entry(names[*who], (*who, number), *weight));
            }
            let (mut given, mut last) = ([0_usize; 3], [None; 3]);
            let count = |who| weights.iter().filter(|(of, _)| *of == who).count();
            let mut left = [count(0), count(1), count(2)];
            while let Some(Entry { item: (who, number), weight, .. }) = queue.pop() {
                prop_assert!(last[who] < Some(number), "in order");
                last[who] = Some(number);
                given[who] += weight;
                left[who] -= 1;
                for other in 0..3 {
                    if left[other] > 0 && left[who] > 0 {
                        let ahead = given[who].saturating_sub(given[other]);
                        prop_assert!(ahead <= 2 * (quantum + 40), "{given:?} of {quantum}");
                    }
                }
            }
            prop_assert_eq!(left, [0; 3]);
            prop_assert_eq!((queue.len(), queue.weight(), queue.tenants.turn.len()), (0, 0, 0));
        }
    }
}
