//! A crash at every step: the script is run until the power fails in step 1, 2, 3 … of all that changes
//! the disk, and again with every call of each kind failing, once or from then on. After each the
//! file is opened again, asked everything again, and held to every checker.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use crate::checks::{Finding, acknowledged, log, rows};
use crate::disk::{Fault, Kind, Machine, Tally};
use crate::history::History;
use crate::random::Random;
use crate::rig::{Rig, VirtualClock, folder};
use crate::script::Player;

/// One run: what goes wrong, and what it takes with it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What goes wrong.
    pub fault: Fault,
    /// Decides what is lost.
    pub seed: u64,
    /// Frames that the WAL has before the script begins, and before anything goes wrong.
    pub frames: u64,
}

impl Case {
    /// A case of the script alone.
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

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was counted until the fault.
    pub tally: Tally,
    /// Calls that were answered with a yes before it.
    pub told: usize,
    /// How often the file was recovered: again where the power failed while it was.
    pub recoveries: u64,
}

/// Runs a case: the script until the fault, then several further lives of the file.
///
/// # Errors
/// What a checker found.
pub fn run(case: Case) -> Result<Outcome, Finding> {
    let mut random = Random::new(case.seed);
    let clock = VirtualClock::new();
    let first = if case.frames > 0 { Fault::None } else { case.fault };
    let mut place = Place::new(Machine::new(first, case.seed));
    let closes = random.one_in(2);
    let history = play(&place, &clock, case, closes);
    let tally = place.machine.tally();
    let mut outcome = Outcome { tally, told: history.told.len(), recoveries: 0 };
    // Now and then it is only the process that ends, and the power fails later; or the power fails
    // again while the file is being recovered.
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

/// Where the file lies, and the machine under it.
struct Place {
    root: TempDir,
    folder: PathBuf,
    machine: Arc<Machine>,
}

impl Place {
    fn new(machine: Machine) -> Place {
        let root = folder();
        let folder = root.path().join("0");
        fs::create_dir(&folder).expect("the folder is new");
        Place { root, folder, machine: Arc::new(machine) }
    }

    /// What is left of it, on a machine that goes wrong in another way.
    fn after_power_loss(self, fault: Fault, random: &mut Random) -> Place {
        let Place { root, folder: from, machine } = self;
        let count = fs::read_dir(root.path()).map_or(0, Iterator::count);
        let folder = root.path().join(count.to_string());
        fs::create_dir(&folder).expect("the folder is new");
        machine.restart(&folder, random.draw()).expect("the folder takes files");
        drop(from);
        Place { root, folder, machine: Arc::new(Machine::new(fault, random.draw())) }
    }
}

/// Plays the script until it ends, by itself or by the fault.
fn play(place: &Place, clock: &Arc<VirtualClock>, case: Case, closes: bool) -> History {
    // Where the file cannot even be opened nothing was told.
    let Ok(rig) = Rig::open(&place.folder, &place.machine, clock) else {
        return History::default();
    };
    let mut player = Player::new(&rig);
    if case.frames > 0 {
        player.fill(case.frames);
        place.machine.revive(case.fault);
        // What is left in the WAL of a refused call is seen where nothing comes after it.
        player.gives_up = matches!(case.fault, Fault::Fail { lasting: true, .. });
    }
    // That it was stopped is known from what is open.
    let _ = player.play();
    let history = player.history;
    end(rig, place, closes);
    history
}

/// In good order, or as a killed process does.
fn end(rig: Rig, place: &Place, closes: bool) {
    if closes {
        rig.close();
    } else {
        place.machine.cut_power();
    }
}

/// Opens what is left and asks everything again. Where something goes wrong on the way, what it says
/// until then is heard all the same.
fn recover(
    place: &Place,
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
            return Err(Finding::new("it opens again", what));
        }
    };
    let checked = acknowledged::check(&rig, history);
    let checked = if rig.engine().ready().is_err() { Ok(()) } else { checked };
    end(rig, place, closes);
    checked
}

fn check_closed(folder: &Path) -> Result<(), Finding> {
    let file = folder.join("abide.db");
    log::check(&file)?;
    rows::check(&file, folder)
}

/// What the whole range is, from a run in which nothing fails.
///
/// # Errors
/// What a checker found even so.
pub fn measure() -> Result<Outcome, Finding> {
    run(Case::new(Fault::None, 0))
}

/// Pages of a WAL after which its index grows: the first region's (<https://www.sqlite.org/walformat.html>).
const INDEXED: u64 = 4_062;

/// The index of the WAL finds no room in the middle of the script: at one call after the other of its
/// first part, after which a checkpoint lets the WAL start over. Once, and the script goes on; or from then
/// on, and that is its end.
#[must_use]
pub fn full_indexes() -> Vec<Case> {
    let frames = (INDEXED - 80..INDEXED).step_by(8);
    let both = frames.flat_map(|frames| [(frames, false), (frames, true)]);
    let fault = |lasting| Fault::Fail { kind: Kind::Extend, nth: 1, lasting };
    let case = |(frames, lasting)| Case { fault: fault(lasting), seed: frames, frames };
    both.map(case).collect()
}

/// Every case: a crash in each step, each call of each kind failing once and from then on, a disk that is
/// full after each so many bytes, and one that has no room for the WAL's index.
#[must_use]
pub fn all_cases(tally: &Tally) -> Vec<Case> {
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
