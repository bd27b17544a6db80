//! Mutation tests of the checkers: known bugs are seeded one after the other, and each must be
//! found by a checker within a number of seeds.

use std::panic::{self, AssertUnwindSafe};

use abide_schema::seeded::{self, SeededBug};

use crate::checks::Finding;
use crate::crash::{self, Case};
use crate::disk::{DiskCounts, Fault, Kind};
use crate::sim;

/// The number of simulator seeds within which a bug must be found.
pub const SEEDS: u64 = 60;

/// The number of seeds for each case of [`cases_near`].
const NEAR_SEEDS: u64 = 20;

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
    // Without the bug: with it, the script can fail before the first fault.
    let tally = crash::measure().expect("without a bug, the script passes").tally;
    seeded::make(Some(bug));
    let caught = search_cases(cases_near(bug, &tally))
        .or_else(search_seeds)
        .or_else(|| search_faults(&tally));
    seeded::make(None);
    caught
}

/// Cases near the steps of the script that a bug needs, for bugs that no seed of the simulator finds: tried first, because
/// the search over all steps takes minutes.
fn cases_near(bug: SeededBug, tally: &DiskCounts) -> Vec<Case> {
    let faults: Vec<Fault> = match bug {
        SeededBug::WalNotRewritten | SeededBug::CheckpointAfterError => tally
            .wal_syncs
            .iter()
            .copied()
            .map(|nth| Fault::Fail { kind: Kind::Sync, nth, lasting: false })
            .collect(),
        // A frame is on the disk, and the new header before it is not.
        SeededBug::StaleSegmentApplied => {
            let headers = tally.segment_headers.iter();
            headers
                .flat_map(|step| (step + 1..step + 4).map(|step| Fault::Crash { step }))
                .collect()
        }
        _ => return Vec::new(),
    };
    let seeds = 1..=NEAR_SEEDS;
    seeds.flat_map(|seed| faults.iter().map(move |fault| Case::new(*fault, seed))).collect()
}

fn search_seeds() -> Option<Caught> {
    (1..=SEEDS).find_map(|seed| {
        let finding = run_to_finding(|| sim::run(seed, false).map(drop))?;
        Some(Caught { finding, by: format!("sim --seed {seed}") })
    })
}

fn search_faults(tally: &DiskCounts) -> Option<Caught> {
    let syncs = tally.calls[Kind::Sync as usize];
    let faults = (1..=syncs)
        .map(|nth| Fault::Fail { kind: Kind::Sync, nth, lasting: false })
        .chain((1..=tally.steps).step_by(20).map(|step| Fault::Crash { step }));
    search_cases(faults.zip(1..).map(|(fault, seed)| Case::new(fault, seed)))
}

fn search_cases(cases: impl IntoIterator<Item = Case>) -> Option<Caught> {
    cases.into_iter().find_map(|case| {
        let finding = run_to_finding(|| crash::run(case).map(drop))?;
        Some(Caught { finding, by: format!("crash {case}") })
    })
}

fn run_to_finding(run: impl FnOnce() -> Result<(), Finding>) -> Option<Finding> {
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.err(),
        Err(_) => Some(Finding::new("an assertion", "it panicked")),
    }
}
