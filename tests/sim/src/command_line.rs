//! What can be said to the program, and what it prints.

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use abide_sim::crash::{self, Case, Outcome};
use abide_sim::disk::{Fault, Kind};

const USAGE: &str = "abide-sim crash [--all | --stride N]      every case, or every Nth (60)
abide-sim crash --step N --seed S         the power fails in step N
abide-sim crash --fail KIND --nth N [--lasting] --seed S
abide-sim crash --full BYTES --seed S";

/// The words of a command: flags with a number or a word behind them, or none.
struct Words(BTreeMap<String, Option<String>>);

impl Words {
    fn read(words: &[String]) -> Result<Words, String> {
        let mut read = BTreeMap::new();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("what is {word}?"))?;
            let value = words.next_if(|next| !next.starts_with("--")).cloned();
            read.insert(name.to_owned(), value);
        }
        Ok(Words(read))
    }

    fn has(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    fn word(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.0.remove(name) {
            Some(None) => Err(format!("--{name} takes something")),
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
            Some(name) => Err(format!("there is no --{name}\n{USAGE}")),
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
    let words = Words::read(rest)?;
    let good = match verb.as_str() {
        "crash" => crash_cases(words)?,
        _ => return Err(format!("there is no {verb}\n{USAGE}")),
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn crash_cases(mut words: Words) -> Result<bool, String> {
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

fn one_case(words: &mut Words) -> Result<Option<Case>, String> {
    let (step, bytes) = (words.number("step")?, words.number("full")?);
    let (kind, nth) = (words.word("fail")?, words.number("nth")?);
    let (lasting, seed) = (words.has("lasting"), words.number("seed")?.unwrap_or(1));
    let fault = match (step, bytes, kind) {
        (Some(step), ..) => Fault::Crash { step },
        (_, Some(bytes), _) => Fault::Full { bytes },
        (_, _, Some(kind)) => {
            let kind = Kind::ALL.into_iter().find(|known| known.to_string() == kind);
            let kind = kind.ok_or_else(|| format!("--fail takes one of {:?}", Kind::ALL))?;
            Fault::Fail { kind, nth: nth.unwrap_or(1), lasting }
        }
        _ => return Ok(None),
    };
    Ok(Some(Case { fault, seed }))
}

/// Runs cases on all cores, and tells what came of them.
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
                    sums.1 += outcome.told as u64;
                }
                Err(what) => {
                    sums.2 += 1;
                    println!("{what}\n  repeat: cargo xtask crash {case}");
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let (recoveries, told, failed) = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    let crashes = cases.iter().filter(|case| matches!(case.fault, Fault::Crash { .. })).count();
    println!(
        "crashed at {crashes} steps, {} other faults, {recoveries} recoveries, {told} acknowledged \
         calls asked again: {failed} failed, {:.1} s",
        cases.len() - crashes,
        started.elapsed().as_secs_f64()
    );
    failed == 0
}

fn run_case(case: Case) -> Result<Outcome, String> {
    match panic::catch_unwind(AssertUnwindSafe(|| crash::run(case))) {
        Ok(outcome) => outcome.map_err(|finding| finding.to_string()),
        Err(_) => Err("it panicked, see above".to_owned()),
    }
}
