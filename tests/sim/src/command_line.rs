//! The command line and its output.

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use abide_sim::crash::{self, Case, Outcome};
use abide_sim::disk::{Fault, Kind};
use abide_sim::keep;
use abide_sim::sim::{self, Report};

const USAGE: &str = "abide-sim crash [--all | --stride N]      every case, or every Nth (60)
abide-sim crash --step N --seed S         the power fails in step N
abide-sim crash --fail KIND --nth N [--lasting] --seed S
abide-sim crash --full BYTES --seed S     --frames N: the WAL has N frames before
abide-sim bugs [--only NAME]              seeded bugs, if compiled in
abide-sim sim [--seeds N | --seed N [--tell]]    seeds 1 to N (200), or one seed
abide-sim keep --into FOLDER              write a file of the current format";

/// The arguments of a command: flags with an optional value.
struct Arguments(BTreeMap<String, Option<String>>);

impl Arguments {
    fn read(words: &[String]) -> Result<Arguments, String> {
        let mut read = BTreeMap::new();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("unknown argument {word}"))?;
            let value = words.next_if(|next| !next.starts_with("--")).cloned();
            read.insert(name.to_owned(), value);
        }
        Ok(Arguments(read))
    }

    fn has(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    fn word(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.0.remove(name) {
            Some(None) => Err(format!("--{name} takes a value")),
            given => Ok(given.flatten()),
        }
    }

    fn number(&mut self, name: &str) -> Result<Option<u64>, String> {
        let word = self.word(name)?;
        let number = word.map(|word| word.parse().map_err(|_| format!("--{name} takes a number")));
        number.transpose()
    }

    fn end(self) -> Result<(), String> {
        match self.0.into_keys().next() {
            Some(name) => Err(format!("unknown flag --{name}\n{USAGE}")),
            None => Ok(()),
        }
    }
}

/// Runs a command.
pub(crate) fn run(words: &[String]) -> Result<ExitCode, String> {
    let Some((verb, rest)) = words.split_first() else {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    };
    let words = Arguments::read(rest)?;
    let good = match verb.as_str() {
        "crash" => crash_cases(words)?,
        "sim" => simulate(words)?,
        "keep" => keep_format(words)?,
        #[cfg(feature = "seeded-bugs")]
        "bugs" => hunt_bugs(words)?,
        _ => return Err(format!("unknown command {verb}\n{USAGE}")),
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes a file of the current format.
fn keep_format(mut words: Arguments) -> Result<bool, String> {
    let folder = words.word("into")?.ok_or("keep takes --into FOLDER")?;
    words.end()?;
    keep::keep(Path::new(&folder)).map_err(|why| format!("{folder}: {why}"))?;
    Ok(true)
}

/// Runs seeds, each twice, and compares the two traces.
fn simulate(mut words: Arguments) -> Result<bool, String> {
    let one = words.number("seed")?;
    let seeds = words.number("seeds")?.unwrap_or(200);
    let tells = words.has("tell");
    words.end()?;
    let first = one.unwrap_or(1);
    let last = if one.is_some() { first } else { seeds };
    let started = Instant::now();
    let next = AtomicU64::new(first);
    let sums = Mutex::new((Report::default(), 0_u64, 0_u64));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > last {
                return;
            }
            let outcome = run_seed(seed, tells);
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            sums.1 += 1;
            match outcome {
                Ok(report) => add(&mut sums.0, &report),
                Err(what) => {
                    sums.2 += 1;
                    println!("seed {seed}: {what}\n  repeat: cargo xtask sim --seed {seed}");
                }
            }
        }
    };
    on_all_cores(work);
    let (sum, run, failed) = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{run} seeds, each twice: {} events, {} acknowledged calls, {} crashes, {} lost messages, \
         {} deltas, {} effects: {failed} failed, {:.1} s",
        sum.events,
        sum.acknowledged,
        sum.crashes,
        sum.lost,
        sum.deltas,
        sum.effects,
        started.elapsed().as_secs_f64()
    );
    figure("simulator seeds, each run twice", run);
    figure("simulated crashes", sum.crashes);
    figure("simulated lost messages", sum.lost);
    figure("simulated acknowledged calls", sum.acknowledged);
    figure("simulator seeds with a finding", failed);
    Ok(failed == 0)
}

/// Seeds each bug, and prints how it was found.
#[cfg(feature = "seeded-bugs")]
fn hunt_bugs(mut words: Arguments) -> Result<bool, String> {
    use abide_schema::seeded::SeededBug;
    let only = words.word("only")?;
    words.end()?;
    let bugs: Vec<SeededBug> = SeededBug::ALL
        .into_iter()
        .filter(|bug| only.as_ref().is_none_or(|name| *name == format!("{bug:?}")))
        .collect();
    // Panics are caught and counted; their messages would be noise.
    panic::set_hook(Box::new(|_| {}));
    let mut missed = 0;
    for bug in &bugs {
        let started = Instant::now();
        let name = format!("{bug:?}");
        match abide_sim::bugs::hunt(*bug) {
            Some(caught) => {
                let seconds = started.elapsed().as_secs_f64();
                let checker = caught.finding.checker;
                let by = caught.by;
                println!("{name:<22} {checker:<26} {by:<40} {seconds:>5.1} s");
            }
            None => {
                missed += 1;
                println!("{name:<22} NOT FOUND");
            }
        }
    }
    println!("{} of {} seeded bugs found", bugs.len() - missed, bugs.len());
    Ok(missed == 0)
}

fn add(sum: &mut Report, report: &Report) {
    sum.events += report.events;
    sum.acknowledged += report.acknowledged;
    sum.crashes += report.crashes;
    sum.lost += report.lost;
    sum.deltas += report.deltas;
    sum.effects += report.effects;
}

fn run_seed(seed: u64, tells: bool) -> Result<Report, String> {
    let run = |tells| match panic::catch_unwind(AssertUnwindSafe(|| sim::run(seed, tells))) {
        Ok(outcome) => outcome.map_err(|finding| finding.to_string()),
        Err(_) => Err("panicked, see above".to_owned()),
    };
    let first = run(tells)?;
    let second = run(false)?;
    if first == second { Ok(first) } else { Err(format!("two traces: {first:?}, {second:?}")) }
}

fn on_all_cores(work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(&work);
        }
    });
}

fn crash_cases(mut words: Arguments) -> Result<bool, String> {
    let one = one_case(&mut words)?;
    let stride = if words.has("all") { 1 } else { words.number("stride")?.unwrap_or(60) };
    words.end()?;
    if let Some(case) = one {
        return Ok(report(&[case]));
    }
    let whole = crash::measure().map_err(|finding| finding.to_string())?;
    let cases = crash::all_cases(&whole.tally);
    let stride = usize::try_from(stride.max(1)).map_err(|why| why.to_string())?;
    let chosen: Vec<Case> = cases.iter().copied().step_by(stride).collect();
    println!("{} of {} cases: one in {stride}", chosen.len(), cases.len());
    Ok(report(&chosen))
}

fn one_case(words: &mut Arguments) -> Result<Option<Case>, String> {
    let step = words.number("step")?;
    let bytes = words.number("full")?;
    let kind = words.word("fail")?;
    let nth = words.number("nth")?;
    let lasting = words.has("lasting");
    let seed = words.number("seed")?.unwrap_or(1);
    let frames = words.number("frames")?.unwrap_or(0);
    let fault = match (step, bytes, kind) {
        (Some(step), ..) => Fault::Crash { step },
        (_, Some(bytes), _) => Fault::Full { bytes },
        (_, _, Some(kind)) => {
            let kind = Kind::ALL
                .into_iter()
                .find(|known| known.to_string() == kind)
                .ok_or_else(|| format!("--fail takes one of {:?}", Kind::ALL))?;
            Fault::Fail { kind, nth: nth.unwrap_or(1), lasting }
        }
        _ => return Ok(None),
    };
    Ok(Some(Case { fault, seed, frames }))
}

/// Runs cases on all cores and reports the results.
fn report(cases: &[Case]) -> bool {
    let started = Instant::now();
    let next = AtomicUsize::new(0);
    let sums = Mutex::new((0_u64, 0_u64, 0_usize));
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run_case(*case);
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            match outcome {
                Ok(outcome) => {
                    sums.0 += outcome.recoveries;
                    sums.1 += outcome.acknowledged as u64;
                }
                Err(what) => {
                    sums.2 += 1;
                    println!("{what}\n  repeat: cargo xtask crash {case}");
                }
            }
        }
    };
    on_all_cores(work);
    let (recoveries, output, failed) = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    let crashes = cases.iter().filter(|case| matches!(case.fault, Fault::Crash { .. })).count();
    println!(
        "crashes at {crashes} steps, {} other faults, {recoveries} recoveries, {output} acknowledged \
         calls retried: {failed} failed, {:.1} s",
        cases.len() - crashes,
        started.elapsed().as_secs_f64()
    );
    figure("power failures, one at each disk step", crashes);
    figure("other disk faults, by kind", by_kind(cases));
    figure("recoveries", recoveries);
    figure("acknowledged calls retried after recovery", output);
    figure("crash cases with a finding", failed);
    failed == 0
}

/// Prints a figure for `cargo xtask proofs`.
fn figure(what: &str, value: impl std::fmt::Display) {
    println!("figure  {what}: {value}");
}

/// The number of faults of each kind.
fn by_kind(cases: &[Case]) -> String {
    let mut kinds = BTreeMap::new();
    for case in cases {
        let kind = match case.fault {
            Fault::None | Fault::Crash { .. } => continue,
            Fault::Fail { kind, .. } => kind.to_string(),
            Fault::Full { .. } => "full".to_owned(),
        };
        *kinds.entry(kind).or_insert(0) += 1;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    kinds.join(", ")
}

fn run_case(case: Case) -> Result<Outcome, String> {
    match panic::catch_unwind(AssertUnwindSafe(|| crash::run(case))) {
        Ok(outcome) => outcome.map_err(|finding| finding.to_string()),
        Err(_) => Err("panicked, see above".to_owned()),
    }
}
