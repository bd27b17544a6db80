//! Selects the denied attempts to record: some of each caller's, so that a flood of them writes a
//! bounded number of rows; each record has the number of unrecorded ones.

use std::collections::HashMap;

use abide_schema::reducer::Caller;
use abide_schema::{Code, Micros, Module, Refusal, limits};
use serde_json::{Value as JsonValue, json};

/// A caller's attempts.
#[derive(Debug)]
struct AttemptCounter {
    /// How many can be recorded now.
    left: u32,
    /// When `left` was last refilled.
    since: Micros,
    missed: u64,
}

/// A denied attempt.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    pub(crate) caller: Caller,
    /// The reducer, or the other kind of request.
    pub(crate) what: String,
    pub(crate) why: String,
}

impl Denial {
    /// Returns the denied attempt of a refused unit; `None` if it was refused for another reason.
    pub(crate) fn from_refusal(
        caller: &Caller,
        reducers: &[&'static str],
        refusal: &Refusal,
    ) -> Option<Denial> {
        if refusal.code != Code::Denied || caller.id() == Caller::SYSTEM {
            return None;
        }
        let what = match reducers {
            [one] => (*one).to_owned(),
            several => format!("a batch of {}", several.len()),
        };
        Some(Denial { caller: caller.clone(), what, why: refusal.detail.clone() })
    }
}

/// Denied attempts by caller. See the module.
#[derive(Debug)]
pub(crate) struct Denials {
    /// The reducers that record them.
    pub(crate) denial_recorders: Vec<&'static str>,
    callers: HashMap<String, AttemptCounter>,
}

impl Denials {
    pub(crate) fn new(modules: &[Module]) -> Denials {
        let recorders = modules.iter().flat_map(|module| &module.denial_recorders);
        Denials {
            denial_recorders: recorders.map(|definition| definition.name).collect(),
            callers: HashMap::new(),
        }
    }

    /// Counts an attempt. Returns the record to write, or `None` if there were too many of this caller's.
    pub(crate) fn admit(&mut self, denial: &Denial, now: Micros) -> Option<JsonValue> {
        if self.denial_recorders.is_empty() || !self.has_room(denial.caller.quota_key(), now) {
            return None;
        }
        let attempts =
            self.callers.entry(denial.caller.quota_key().to_owned()).or_insert_with(|| {
                AttemptCounter { left: limits::DENIALS_AT_ONCE, since: now, missed: 0 }
            });
        attempts.refill(now);
        if attempts.left == 0 {
            attempts.missed += 1;
            return None;
        }
        attempts.left -= 1;
        let missed = std::mem::take(&mut attempts.missed);
        let Denial { caller, what, why } = denial;
        Some(json!({"caller": caller.id(), "what": what, "why": why, "missed": missed}))
    }

    /// `true` if a caller can be tracked. Callers without recent attempts are forgotten.
    fn has_room(&mut self, caller: &str, now: Micros) -> bool {
        if self.callers.len() >= limits::DENIED_CALLERS && !self.callers.contains_key(caller) {
            self.callers.retain(|_, attempts| {
                attempts.refill(now);
                attempts.left < limits::DENIALS_AT_ONCE
            });
        }
        self.callers.len() < limits::DENIED_CALLERS || self.callers.contains_key(caller)
    }
}

impl AttemptCounter {
    fn refill(&mut self, now: Micros) {
        let passed_ms = now.0.saturating_sub(self.since.0) / 1_000;
        let more = passed_ms / limits::DENIAL_EVERY_MS;
        if more > 0 {
            let left = i64::from(self.left) + more;
            self.left = left.min(limits::DENIALS_AT_ONCE.into()) as u32;
            self.since = self.since.plus_ms(more * limits::DENIAL_EVERY_MS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denials() -> Denials {
        Denials { denial_recorders: vec!["record"], callers: HashMap::new() }
    }

    fn by(caller: &str) -> Denial {
        Denial { caller: Caller::new(caller), what: "x".to_owned(), why: "y".to_owned() }
    }

    #[test]
    fn a_flood_is_recorded_in_part_and_counted_completely() {
        let mut denials = denials();
        let start = Micros(1_000_000_000);
        let mut recorded = 0;
        let mut missed = 0;
        // One per millisecond for an hour, and one more at the end.
        let moments = (0..3_600_000).chain([3_600_000 + limits::DENIAL_EVERY_MS]);
        for ms in moments {
            if let Some(record) = denials.admit(&by("ann"), start.plus_ms(ms)) {
                recorded += 1;
                missed += record["missed"].as_i64().expect("it is a number");
            }
        }
        let bound = i64::from(limits::DENIALS_AT_ONCE) + 3_600_000 / limits::DENIAL_EVERY_MS + 1;
        assert!(recorded <= bound, "{recorded} of at most {bound}");
        assert_eq!(recorded + missed, 3_600_001);
        assert!(denials.admit(&by("bob"), start).is_some(), "another caller is not concerned");
    }

    #[test]
    fn only_idle_callers_are_forgotten() {
        let mut denials = denials();
        let start = Micros(0);
        for n in 0..limits::DENIED_CALLERS {
            assert!(denials.admit(&by(&n.to_string()), start).is_some());
        }
        assert!(denials.admit(&by("one more"), start).is_none());
        assert!(denials.admit(&by("0"), start).is_some());
        let later = start.plus_ms(2 * limits::DENIAL_EVERY_MS);
        assert!(denials.admit(&by("one more"), later).is_some());
        assert_eq!(denials.callers.len(), 1);
    }
}
