//! Paces the wake-ups of subscribers.
//!
//! Woken tasks queue for a processor. Ten thousand subscribers woken at once would delay the answer to
//! another caller's next call by tens of milliseconds. So a part
//! of them is woken, and the next part when half of those have read their outboxes. A subscriber
//! that does not read is not waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Maximum number of woken subscribers that have not read: at five to ten microseconds each, they delay an answer.
/// With 128, a thousand subscribers received a change 7 ms later (18 instead of 11 ms), because switching between
/// the server and its clients costs both. With 1,024 there is no such delay, and the 99th percentile of answers
/// among nine thousand subscribers is mostly 20 ms (50 in two of eight runs) instead of 60.
const AWAKE: u64 = 1_024;
/// Pause between two counts.
const COUNT_INTERVAL: Duration = Duration::from_micros(100);
/// Counts after which subscribers that have not read are no longer waited for: they are blocked elsewhere, mostly
/// by a peer that does not read.
const MAX_COUNTS: u32 = 50;

/// Number of woken subscribers that have read since.
#[derive(Debug, Default)]
pub(crate) struct WakeupCounter(AtomicU64);

impl WakeupCounter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts woken subscribers, and waits if there are too many.
#[derive(Debug)]
pub(crate) struct PacedWakeups<'a> {
    wakeups: &'a WakeupCounter,
    /// The count of readers at the start.
    before: u64,
    woken: u64,
}

impl<'a> PacedWakeups<'a> {
    pub(crate) fn new(wakeups: &'a WakeupCounter) -> PacedWakeups<'a> {
        PacedWakeups { wakeups, before: wakeups.count(), woken: 0 }
    }

    /// Counts one more as woken. Returns when the next one may be woken.
    pub(crate) fn count_woken(&mut self, sleep: &mut dyn FnMut(Duration)) {
        self.woken += 1;
        if self.awake() < AWAKE {
            return;
        }
        for _ in 0..MAX_COUNTS {
            if self.awake() <= AWAKE / 2 {
                return;
            }
            sleep(COUNT_INTERVAL);
        }
        *self = PacedWakeups::new(self.wakeups);
    }

    /// Returns the number that have not read. Subscribers woken by an earlier commit may be counted instead.
    fn awake(&self) -> u64 {
        self.woken.saturating_sub(self.wakeups.count() - self.before)
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;

    /// Wakes `number` subscribers, of which `readers` read at each count; returns the number of pauses.
    fn count_pauses(number: u64, readers: u64) -> u64 {
        let wakeups = WakeupCounter::default();
        let mut pauses = 0;
        let mut pace = PacedWakeups::new(&wakeups);
        for _ in 0..number {
            pace.count_woken(&mut |_| {
                pauses += 1;
                (0..readers).for_each(|_| wakeups.add());
            });
        }
        pauses
    }

    #[test]
    fn wakeups_wait_until_enough_subscribers_have_read() {
        assert_eq!(count_pauses(AWAKE - 1, 0), 0, "a few are woken at once");
        assert_eq!(count_pauses(AWAKE, AWAKE), 1);
        // Half of them at a time, once the maximum is awake.
        assert_eq!(count_pauses(10_000, AWAKE / 2), 1 + (10_000 - AWAKE) / (AWAKE / 2));
    }

    #[test]
    fn subscribers_that_do_not_read_are_not_waited_for() {
        assert_eq!(count_pauses(10_000, 0), 10_000 / AWAKE * u64::from(MAX_COUNTS));
    }
}
