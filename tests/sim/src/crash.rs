//! A crash at every step: the script runs until the power fails in step 1, 2, 3 … of all disk
//! changes, and again with every call of each kind failing, once or permanently. After each run the
//! file is reopened, every call is retried, and every checker runs.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use crate::checks::{Finding, acknowledged, log, rows};
use crate::disk::{DiskCounts, Fault, Kind, Machine};
use crate::history::History;
use crate::random::Random;
use crate::rig::{Rig, VirtualClock, folder};
use crate::script::ScriptRun;

/// One run: the fault, and the seed for its effects.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The fault.
    pub fault: Fault,
    /// Decides which unsynced data is lost.
    pub seed: u64,
    /// Frames to write to the WAL before the script and the fault start.
    pub frames: u64,
}

impl Case {
    /// A case without preceding frames.
    #[must_use]
    pub fn new(fault: Fault, seed: u64) -> Case {
        Case { fault, seed, frames: 0 }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            Fault::None => write!(f, "--none"),
            Fault::Crash { step } => write!(f, "--step {step}"),
            Fault::Full { bytes } => write!(f, "--full {bytes}"),
            Fault::Fail { kind, nth, lasting } => {
                write!(f, "--fail {kind} --nth {nth}{}", if lasting { " --lasting" } else { "" })
            }
        }?;
        if self.frames > 0 {
            write!(f, " --frames {}", self.frames)?;
        }
        write!(f, " --seed {}", self.seed)
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The counts up to the fault.
    pub tally: DiskCounts,
    /// Acknowledged calls before the fault.
    pub acknowledged: usize,
    /// Recoveries of the file, including those interrupted by another power failure.
    pub recoveries: u64,
}

/// Runs a case: the script until the fault, then several restarts of the file.
///
/// # Errors
/// A checker's finding.
pub fn run(case: Case) -> Result<Outcome, Finding> {
    let mut random = Random::new(case.seed);
    let clock = VirtualClock::new();
    let first = if case.frames > 0 { Fault::None } else { case.fault };
    let mut place = CrashFixture::new(Machine::new(first, case.seed));
    let closes = random.one_in(2);
    let history = play(&place, &clock, case, closes);
    let tally = place.machine.tally();
    let mut outcome = Outcome { tally, acknowledged: history.acknowledged.len(), recoveries: 0 };
    // Sometimes only the process ends and the power fails later, or the power fails again during
    // recovery.
    for _ in 0..random.below(3) {
        let fault = match random.below(6) {
            0 | 1 => Fault::Crash { step: 1 + random.draw() % 60 },
            2 => Fault::Fail { kind: Kind::Sync, nth: 1 + random.draw() % 4, lasting: false },
            _ => Fault::None,
        };
        if random.one_in(2) {
            place.machine.revive(fault);
        } else {
            place = place.after_power_loss(fault, &mut random);
        }
        outcome.recoveries += 1;
        let closes = random.one_in(2);
        recover(&place, &clock, &history, closes)?;
    }
    place = place.after_power_loss(Fault::None, &mut random);
    outcome.recoveries += 1;
    recover(&place, &clock, &history, true)?;
    check_closed(&place.folder)?;
    Ok(outcome)
}

/// The folder of the file, and the machine below it.
struct CrashFixture {
    root: TempDir,
    folder: PathBuf,
    machine: Arc<Machine>,
}

impl CrashFixture {
    fn new(machine: Machine) -> CrashFixture {
        let root = folder();
        let folder = root.path().join("0");
        fs::create_dir(&folder).expect("the folder is new");
        CrashFixture { root, folder, machine: Arc::new(machine) }
    }

    /// The surviving content, on a machine with another fault.
    fn after_power_loss(self, fault: Fault, random: &mut Random) -> CrashFixture {
        let CrashFixture { root, folder: from, machine } = self;
        let count = fs::read_dir(root.path()).map_or(0, Iterator::count);
        let folder = root.path().join(count.to_string());
        fs::create_dir(&folder).expect("the folder is new");
        machine.restart(&folder, random.draw()).expect("the folder takes files");
        drop(from);
        CrashFixture { root, folder, machine: Arc::new(Machine::new(fault, random.draw())) }
    }
}

/// Runs the script until it ends or the fault stops it.
fn play(place: &CrashFixture, clock: &Arc<VirtualClock>, case: Case, closes: bool) -> History {
    // If the file cannot be opened, nothing was acknowledged.
    let Ok(rig) = Rig::open(&place.folder, &place.machine, clock) else {
        return History::default();
    };
    let mut player = ScriptRun::new(&rig);
    if case.frames > 0 {
        player.fill(case.frames);
        place.machine.revive(case.fault);
        // Frames of a refused call that remain in the WAL are visible only if no later frame
        // overwrites them.
        player.gives_up = matches!(case.fault, Fault::Fail { lasting: true, .. });
    }
    // Whether it was stopped follows from the pending requests.
    let _ = player.play();
    let history = player.history;
    end(rig, place, closes);
    history
}

/// Closes the engine, or kills the process.
fn end(rig: Rig, place: &CrashFixture, closes: bool) {
    if closes {
        rig.close();
    } else {
        place.machine.cut_power();
    }
}

/// Opens the file and retries everything.
fn recover(
    place: &CrashFixture,
    clock: &Arc<VirtualClock>,
    history: &History,
    closes: bool,
) -> Result<(), Finding> {
    let rig = match Rig::open(&place.folder, &place.machine, clock) {
        Ok(rig) => rig,
        Err(_) if place.machine.has_failed() => return Ok(()),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|why| format!(": {why}"));
            let what = format!("{error}{}", cause.unwrap_or_default());
            return Err(Finding::new("the file opens again", what));
        }
    };
    let checked = unless_interrupted(&rig, &place.machine, acknowledged::check(&rig, history));
    end(rig, place, closes);
    checked
}

/// A refusal because of a fault is not a finding: the next recovery checks everything again. A power failure
/// that only a reader meets leaves the engine ready.
fn unless_interrupted(
    rig: &Rig,
    machine: &Machine,
    checked: Result<(), Finding>,
) -> Result<(), Finding> {
    if rig.engine().ready().is_err() || machine.is_down() { Ok(()) } else { checked }
}

fn check_closed(folder: &Path) -> Result<(), Finding> {
    let file = folder.join("abide.db");
    log::check(&file)?;
    rows::check(&file, folder)
}

/// Measures the number of steps and calls, in a run without faults.
///
/// # Errors
/// A checker's finding.
pub fn measure() -> Result<Outcome, Finding> {
    run(Case::new(Fault::None, 0))
}

/// Pages of a WAL after which its index grows: the capacity of its first region
/// (<https://www.sqlite.org/walformat.html>).
const INDEXED: u64 = 4_062;

/// The WAL's index cannot grow in the middle of the script: at each call of its first part, after
/// which a checkpoint resets the WAL. The fault occurs once, and the script continues; or it is
/// permanent, and the script ends.
#[must_use]
pub fn full_indexes() -> Vec<Case> {
    let frames = (INDEXED - 80..INDEXED).step_by(8);
    let both = frames.flat_map(|frames| [(frames, false), (frames, true)]);
    let fault = |lasting| Fault::Fail { kind: Kind::Extend, nth: 1, lasting };
    both.map(|(frames, lasting)| Case { fault: fault(lasting), seed: frames, frames }).collect()
}

/// All cases: a crash in each step, each call of each kind failing once and permanently, a disk
/// that is full after each number of bytes, and one without space for the WAL's index.
#[must_use]
pub fn all_cases(tally: &DiskCounts) -> Vec<Case> {
    let mut faults: Vec<Fault> = (1..=tally.steps).map(|step| Fault::Crash { step }).collect();
    for (kind, calls) in Kind::ALL.into_iter().zip(tally.calls) {
        for nth in 1..=calls {
            for lasting in [false, true] {
                faults.push(Fault::Fail { kind, nth, lasting });
            }
        }
    }
    faults.extend((1..=64).map(|nth| Fault::Full { bytes: nth * (32 << 10) }));
    let numbered = faults.into_iter().zip(1..);
    numbered.map(|(fault, seed)| Case::new(fault, seed)).chain(full_indexes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The power failed while a checker read and the writer had nothing to do. The engine was ready, and the refused query was
    /// reported as a lost call.
    #[test]
    fn a_query_that_a_power_failure_interrupts_is_not_a_finding() {
        let place = CrashFixture::new(Machine::new(Fault::None, 1));
        let rig = Rig::open(&place.folder, &place.machine, &VirtualClock::new())
            .expect("a new file opens");
        place.machine.cut_power();
        let checked = acknowledged::check(&rig, &History::default());
        assert!(checked.is_err() && rig.engine().ready().is_ok(), "{checked:?}");
        assert_eq!(unless_interrupted(&rig, &place.machine, checked), Ok(()));
        // Without a fault a finding counts.
        place.machine.revive(Fault::None);
        let lost = Err(Finding::new("a check", "a call is lost"));
        assert_eq!(unless_interrupted(&rig, &place.machine, lost.clone()), lost);
        end(rig, &place, false);
    }
}
