//! Mutation tests of the checkers: known bugs are seeded one after the other, and each must be
//! found by a checker within a number of seeds.

use std::panic::{self, AssertUnwindSafe};

use abide_schema::seeded::{self, SeededBug};

use crate::checks::Finding;
use crate::crash::{self, Case};
use crate::disk::{Fault, Kind};
use crate::sim;

/// The number of simulator seeds within which a bug must be found.
pub const SEEDS: u64 = 60;

/// How a bug was found.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The finding of the checker.
    pub finding: Finding,
    /// The command that reproduces it.
    pub by: String,
}

/// Seeds a bug and searches for it: with the simulator, and with the crash tests where the disk
/// must fail at a specific point.
#[must_use]
pub fn hunt(bug: SeededBug) -> Option<Caught> {
    seeded::make(Some(bug));
    let caught = known(bug).and_then(by_cases).or_else(by_seeds).or_else(by_faults);
    seeded::make(None);
    caught
}

/// The fault that found a bug before, for bugs that no seed of the simulator finds: tried first, because the search for
/// it takes minutes. After a change of the engine it can be another one.
fn known(bug: SeededBug) -> Option<[Case; 1]> {
    match bug {
        SeededBug::WalNotRewritten => {
            Some([Case::new(Fault::Fail { kind: Kind::Sync, nth: 68, lasting: false }, 68)])
        }
        SeededBug::OldRoundBelieved => Some([Case::new(Fault::Crash { step: 641 }, 166)]),
        _ => None,
    }
}

fn by_seeds() -> Option<Caught> {
    (1..=SEEDS).find_map(|seed| {
        let finding = finding_of(|| sim::run(seed, false).map(drop))?;
        Some(Caught { finding, by: format!("sim --seed {seed}") })
    })
}

fn by_faults() -> Option<Caught> {
    let whole = crash::measure().ok()?;
    let syncs = whole.tally.calls[Kind::Sync as usize];
    let faults = (1..=syncs)
        .map(|nth| Fault::Fail { kind: Kind::Sync, nth, lasting: false })
        .chain((1..=whole.tally.steps).step_by(20).map(|step| Fault::Crash { step }));
    by_cases(faults.zip(1..).map(|(fault, seed)| Case::new(fault, seed)))
}

fn by_cases(cases: impl IntoIterator<Item = Case>) -> Option<Caught> {
    cases.into_iter().find_map(|case| {
        let finding = finding_of(|| crash::run(case).map(drop))?;
        Some(Caught { finding, by: format!("crash {case}") })
    })
}

fn finding_of(run: impl FnOnce() -> Result<(), Finding>) -> Option<Finding> {
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.err(),
        Err(_) => Some(Finding::new("an assertion", "it panicked")),
    }
}
