//! At-most-once effects run at most once, through crashes and retries. Counted outside the
//! database, where workers run them.

use std::collections::BTreeMap;

use super::Finding;

const NAME: &str = "effects at most once";

/// The effects that workers ran: for each call whether it must not run twice, and how often it ran.
#[derive(Clone, Debug, Default)]
pub struct Effects(BTreeMap<String, (bool, u32)>);

impl Effects {
    /// Records that a worker ran a call's effect.
    pub fn note_run(&mut self, call_id: &str, once: bool) {
        self.0.entry(call_id.to_owned()).or_insert((once, 0)).1 += 1;
    }

    /// The number of effects that ran.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.values().map(|(_, times)| times).sum()
    }

    /// Checks the counts.
    ///
    /// # Errors
    /// The first call whose effect ran twice.
    pub fn check(&self) -> Result<(), Finding> {
        let twice = self.0.iter().find(|(_, (once, times))| *once && *times > 1);
        match twice {
            Some((call_id, (_, times))) => {
                Err(Finding::new(NAME, format!("{call_id} ran {times} times")))
            }
            None => Ok(()),
        }
    }
}
