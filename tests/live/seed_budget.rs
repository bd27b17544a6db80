//! The extent of the seeded proofs. Each runs seeds from 0 on, as many as its share of a full test
//! run allows, or as many as `cargo xtask live` requests for all of them.
//!
//! Seeds are independent of each other and of the thread.

use std::io::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The share of a proof in a full test run.
#[derive(Clone, Copy)]
pub(crate) enum TestBudget {
    /// This many seeds from 0 on.
    Seeds(u64),
    /// This many seeds, each of which opens an engine: that takes ten times as long as the comparison of one query, so
    /// `cargo xtask live` runs a tenth of its seeds.
    Engines(u64),
    /// This many seconds, and at least one seed.
    Seconds(u64),
}

/// The seeds to run, and a time limit.
struct SeedRange {
    seeds: Range<u64>,
    until: Option<Instant>,
}

impl SeedRange {
    /// `LIVE_SEED=n` runs one seed, `LIVE_SEEDS=n` the first n, `LIVE_MINUTES=n` runs for n
    /// minutes; otherwise the share applies.
    fn wanted(share: TestBudget) -> SeedRange {
        let lasting = |seconds| {
            let until = Some(Instant::now() + Duration::from_secs(seconds));
            SeedRange { seeds: 0..u64::MAX, until }
        };
        if let Some(seed) = number("LIVE_SEED") {
            return SeedRange { seeds: seed..seed + 1, until: None };
        }
        if let Some(seeds) = number("LIVE_SEEDS") {
            let seeds = if let TestBudget::Engines(_) = share { seeds.div_ceil(10) } else { seeds };
            return SeedRange { seeds: 0..seeds, until: None };
        }
        match (number("LIVE_MINUTES"), share) {
            (Some(minutes), _) => lasting(60 * minutes),
            (None, TestBudget::Seconds(seconds)) => lasting(seconds),
            (None, TestBudget::Seeds(seeds) | TestBudget::Engines(seeds)) => {
                SeedRange { seeds: 0..seeds, until: None }
            }
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// Whether more than a share was requested.
pub(crate) fn is_at_length() -> bool {
    std::env::var_os("LIVE_SEEDS").is_some() || std::env::var_os("LIVE_MINUTES").is_some()
}

/// The command that reproduces a seed.
pub(crate) fn repeat(seed: u64) -> String {
    format!("repeat:  cargo xtask live --seed {seed}")
}

/// Runs seeds on all cores; returns their results in order, and the duration.
pub(crate) fn tried<T: Send>(
    share: TestBudget,
    play: impl Fn(u64) -> T + Sync,
) -> (Vec<(u64, T)>, Duration) {
    let extent = SeedRange::wanted(share);
    let start = Instant::now();
    let next = AtomicU64::new(extent.seeds.start);
    let outcomes = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let over = extent.until.is_some_and(|until| Instant::now() >= until);
            if seed >= extent.seeds.end || (over && seed > extent.seeds.start) {
                break;
            }
            let outcome = play(seed);
            outcomes.lock().expect("no panic here").push((seed, outcome));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut outcomes = outcomes.into_inner().expect("no panic here");
    outcomes.sort_by_key(|(seed, _)| *seed);
    (outcomes, start.elapsed())
}

/// Runs seeds of a proof that panics on failure, and reports all failed seeds.
pub(crate) fn each_seed<T: Send>(
    name: &str,
    share: TestBudget,
    play: impl Fn(u64) -> T + Sync,
) -> Vec<T> {
    let (outcomes, took) = tried(share, |seed| catch_unwind(AssertUnwindSafe(|| play(seed))));
    if is_at_length() {
        print_note(&format!("{name}: {} seeds in {:.0} s", outcomes.len(), took.as_secs_f64()));
    }
    let mut passed = Vec::new();
    let mut failed = Vec::new();
    for (seed, outcome) in outcomes {
        match outcome {
            Ok(outcome) => passed.push(outcome),
            Err(_) => failed.push(seed),
        }
    }
    // Each panic has printed its message.
    if let Some(first) = failed.first() {
        panic!("{name}: {} seeds fail: {failed:?}\n{}", failed.len(), repeat(*first));
    }
    passed
}

/// Writes past the harness' capture, so that a full test run shows the extent.
pub(crate) fn print_note(text: &str) {
    let line = format!("counted: live SQL: {text}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("stdout can be written to");
}
