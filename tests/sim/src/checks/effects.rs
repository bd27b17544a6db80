//! Each effect that must not happen twice happens once at most, whoever crashed and however often it was
//! asked for. Counted in the world outside, where workers run them.

use std::collections::BTreeMap;

use super::Finding;

const NAME: &str = "effects at most once";

/// What workers really did: of each call, whether it may be done again, and how often it was.
#[derive(Clone, Debug, Default)]
pub struct Effects(BTreeMap<String, (bool, u32)>);

impl Effects {
    /// A worker runs a call's effect.
    pub fn ran(&mut self, call_id: &str, once: bool) {
        self.0.entry(call_id.to_owned()).or_insert((once, 0)).1 += 1;
    }

    /// How many were run.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.values().map(|(_, times)| times).sum()
    }

    /// Holds the world to it.
    ///
    /// # Errors
    /// The first call that was run twice.
    pub fn check(&self) -> Result<(), Finding> {
        let twice = self.0.iter().find(|(_, (once, times))| *once && *times > 1);
        match twice {
            Some((call_id, (_, times))) => {
                Err(Finding::new(NAME, format!("{call_id} was run {times} times")))
            }
            None => Ok(()),
        }
    }
}
