//! A fair queue with one lane per caller, served round-robin: a caller that floods the queue
//! delays only itself.
//!
//! Deficit round robin (Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round-Robin", SIGCOMM
//! 1995) in the form that lets a lane overdraw: a lane is served until its credit is
//! used up, and an overdraft is subtracted at its next turn. Each step has constant cost, however many lanes there are.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Items with their weights, in lanes.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    /// The engine's own items, served before all others: they are few, or weigh nothing.
    own: VecDeque<(T, usize)>,
    callers: HashMap<Arc<str>, CallerQueue<T>>,
    /// Callers with waiting items, the next one first.
    turn: VecDeque<Arc<str>>,
    weight: usize,
    len: usize,
    /// The credit of a lane per turn.
    quantum: usize,
}

/// The waiting items of one caller; never empty.
#[derive(Debug)]
struct CallerQueue<T> {
    items: VecDeque<(T, usize)>,
    weight: usize,
    credit: isize,
}

impl<T> FairQueue<T> {
    /// An empty queue. At its turn a lane may take this weight, at least one item.
    pub(crate) fn new(quantum: usize) -> FairQueue<T> {
        FairQueue {
            own: VecDeque::new(),
            callers: HashMap::new(),
            turn: VecDeque::new(),
            weight: 0,
            len: 0,
            quantum: quantum.max(1),
        }
    }

    /// Adds an item after those of the same caller; without a caller it is the engine's own.
    pub(crate) fn push(&mut self, caller: Option<&str>, item: T, weight: usize) {
        self.weight += weight;
        self.len += 1;
        let Some(caller) = caller else { return self.own.push_back((item, weight)) };
        if let Some(lane) = self.callers.get_mut(caller) {
            lane.items.push_back((item, weight));
            lane.weight += weight;
            return;
        }
        let name: Arc<str> = caller.into();
        let lane = CallerQueue { items: VecDeque::from([(item, weight)]), weight, credit: 0 };
        self.callers.insert(Arc::clone(&name), lane);
        self.turn.push_back(name);
    }

    /// Takes the next item, with its weight.
    pub(crate) fn pop(&mut self) -> Option<(T, usize)> {
        let (_, item, weight) = self.pop_next(&|_| false)?;
        Some((item, weight))
    }

    /// Takes the next item of a caller that is not `waiting`, with that caller.
    pub(crate) fn pop_unless(
        &mut self,
        waiting: impl Fn(&str) -> bool,
    ) -> Option<(Option<Arc<str>>, T)> {
        self.pop_next(&waiting).map(|(caller, item, _)| (caller, item))
    }

    fn pop_next(&mut self, waiting: &dyn Fn(&str) -> bool) -> Option<(Option<Arc<str>>, T, usize)> {
        let next = match self.own.pop_front() {
            Some((item, weight)) => (None, item, weight),
            None => self.pop_caller(waiting)?,
        };
        self.weight -= next.2;
        self.len -= 1;
        Some(next)
    }

    fn pop_caller(
        &mut self,
        waiting: &dyn Fn(&str) -> bool,
    ) -> Option<(Option<Arc<str>>, T, usize)> {
        let mut passed = 0;
        loop {
            let alone = self.turn.len() == 1;
            let name = Arc::clone(self.turn.front()?);
            if waiting(&name) {
                passed += 1;
                if passed > self.turn.len() {
                    return None;
                }
                self.turn.rotate_left(1);
                continue;
            }
            passed = 0;
            let name = &name;
            let lane = self.callers.get_mut(name).expect("a lane in turn is there");
            if lane.credit <= 0 {
                lane.credit += self.quantum.cast_signed();
                if lane.credit <= 0 && !alone {
                    self.turn.rotate_left(1);
                    continue;
                }
            }
            let (item, weight) = lane.items.pop_front().expect("a lane in turn has items");
            lane.weight -= weight;
            lane.credit -= weight.max(1).cast_signed();
            if lane.items.is_empty() {
                self.callers.remove(name);
                self.turn.pop_front();
            } else if alone {
                // No other lane waited, so the overdraft is void.
                lane.credit = lane.credit.max(0);
            } else if lane.credit <= 0 {
                self.turn.rotate_left(1);
            }
            return Some((Some(Arc::clone(name)), item, weight));
        }
    }

    /// The engine's own last item, if it still waits.
    pub(crate) fn last_own(&mut self) -> Option<&mut T> {
        self.own.back_mut().map(|(item, _)| item)
    }

    /// The weight of all waiting items.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// The weight of a caller's waiting items.
    pub(crate) fn weight_of(&self, caller: &str) -> usize {
        self.callers.get(caller).map_or(0, |lane| lane.weight)
    }

    /// The number of waiting items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(lanes: &mut FairQueue<char>) -> String {
        std::iter::from_fn(|| lanes.pop()).map(|(item, _)| item).collect()
    }

    #[test]
    fn callers_take_turns_and_each_keeps_its_order() {
        let mut lanes = FairQueue::new(1);
        "abc".chars().for_each(|item| lanes.push(Some("flood"), item, 1));
        "xy".chars().for_each(|item| lanes.push(Some("ann"), item, 1));
        lanes.push(None, '!', 0);
        assert_eq!((lanes.len(), lanes.weight(), lanes.weight_of("ann")), (6, 5, 2));
        assert_eq!(order(&mut lanes), "!axbyc");
        assert_eq!((lanes.len(), lanes.weight()), (0, 0));
    }

    #[test]
    fn turns_are_measured_by_weight() {
        let mut lanes = FairQueue::new(4);
        "ABC".chars().for_each(|item| lanes.push(Some("heavy"), item, 8));
        "abcdefghi".chars().for_each(|item| lanes.push(Some("light"), item, 1));
        // The overdraft of the heavy lane is subtracted at its next turn.
        assert_eq!(order(&mut lanes), "AabcdefghBiC");
    }

    #[test]
    fn a_lane_alone_has_no_overdraft() {
        let mut lanes = FairQueue::new(1);
        "abcd".chars().for_each(|item| lanes.push(Some("first"), item, 100));
        assert_eq!(lanes.pop(), Some(('a', 100)));
        assert_eq!(lanes.pop(), Some(('b', 100)));
        "xyz".chars().for_each(|item| lanes.push(Some("second"), item, 1));
        assert_eq!(order(&mut lanes), "cxyzd");
    }

    proptest! {
        /// While two lanes have items, neither gets more than a quantum and one item more than the
        /// other (the bound of the paper); nothing is lost, and each lane keeps its order.
        #[test]
        fn no_lane_gets_more_than_its_share(
            weights in prop::collection::vec((0_usize..3, 1_usize..40), 1..200),
            quantum in 1_usize..30,
        ) {
            let names = ["ann", "bob", "cyd"];
            let mut lanes = FairQueue::new(quantum);
            for (number, (who, weight)) in weights.iter().enumerate() {
                lanes.push(Some(names[*who]), (*who, number), *weight);
            }
            let (mut given, mut last) = ([0_usize; 3], [None; 3]);
            let count = |who| weights.iter().filter(|(of, _)| *of == who).count();
            let mut left = [count(0), count(1), count(2)];
            while let Some(((who, number), weight)) = lanes.pop() {
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
            prop_assert_eq!((lanes.len(), lanes.weight(), lanes.turn.len()), (0, 0, 0));
        }
    }
}
