//! How fast those who listen are woken: no faster than they run.
//!
//! Whoever is woken stands in line for a processor behind all who were woken before. Ten thousand listeners
//! woken at once are tens of milliseconds that the answer to somebody's next call stands behind: so a part
//! of them is woken, and the next when half of those have looked into their outboxes. Nobody waits for one
//! who does not look.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How many may be awake and not have looked: at five to ten microseconds each, what an answer stands
/// behind. With 128 a thousand listeners heard of a change 7 ms later (18 for 11 ms): to and fro between
/// the server and its clients costs both. With 1,024 nobody hears later, and of answers among nine
/// thousand listeners the 99th percentile is mostly 20 ms (in two of eight runs 50) and not 60.
const AWAKE: u64 = 1_024;
/// How long they are given between two counts.
const COUNT: Duration = Duration::from_micros(100);
/// Counts until those who have not looked are left to themselves: they wait for something else, mostly
/// for a peer that does not read.
const COUNTS: u32 = 50;

/// How many, of all who were ever woken, have looked since.
#[derive(Debug, Default)]
pub(crate) struct Looked(AtomicU64);

impl Looked {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts those who are woken, and waits where they are too many.
#[derive(Debug)]
pub(crate) struct Pace<'a> {
    looked: &'a Looked,
    /// How many had looked when this began to count.
    before: u64,
    woken: u64,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(looked: &'a Looked) -> Pace<'a> {
        Pace { looked, before: looked.count(), woken: 0 }
    }

    /// One more was woken. Returns when the next may be.
    pub(crate) fn woke(&mut self, sleep: &mut dyn FnMut(Duration)) {
        self.woken += 1;
        if self.awake() < AWAKE {
            return;
        }
        for _ in 0..COUNTS {
            if self.awake() <= AWAKE / 2 {
                return;
            }
            sleep(COUNT);
        }
        *self = Pace::new(self.looked);
    }

    /// How many have not looked. Those whom an earlier commit woke may have, and are taken for these.
    fn awake(&self) -> u64 {
        self.woken.saturating_sub(self.looked.count() - self.before)
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;

    /// Wakes so many, of whom this many look at each count; how often was slept.
    fn slept(number: u64, look: u64) -> u64 {
        let (looked, mut slept) = (Looked::default(), 0);
        let mut pace = Pace::new(&looked);
        for _ in 0..number {
            pace.woke(&mut |_| {
                slept += 1;
                (0..look).for_each(|_| looked.add());
            });
        }
        slept
    }

    #[test]
    fn the_next_are_woken_when_these_have_looked() {
        assert_eq!(slept(AWAKE - 1, 0), 0, "a few are woken at once");
        assert_eq!(slept(AWAKE, AWAKE), 1);
        // Half of them at a time, from the first time that all are awake.
        assert_eq!(slept(10_000, AWAKE / 2), 1 + (10_000 - AWAKE) / (AWAKE / 2));
    }

    #[test]
    fn who_does_not_look_is_not_waited_for() {
        assert_eq!(slept(10_000, 0), 10_000 / AWAKE * u64::from(COUNTS));
    }
}
