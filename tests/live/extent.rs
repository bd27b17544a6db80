//! How far the seeded proofs go. Each tries seeds from 0 on, as many as its share of a run of all tests
//! allows, or as many as somebody asks for: `cargo xtask live`, which says so to all of them alike.
//!
//! A seed is tried on some thread; which one, and what was tried before, means nothing to it.

use std::io::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a run of all tests spends on a proof.
#[derive(Clone, Copy)]
pub(crate) enum Share {
    /// The first so many seeds.
    Seeds(u64),
    /// So many seconds, and one seed at least.
    Seconds(u64),
}

/// The seeds to try, and when to stop all the same.
struct Extent {
    seeds: Range<u64>,
    until: Option<Instant>,
}

impl Extent {
    /// `LIVE_SEED=n` that one, `LIVE_SEEDS=n` the first n, `LIVE_MINUTES=n` for so long; else the share.
    fn wanted(share: Share) -> Extent {
        let lasting = |seconds| {
            let until = Some(Instant::now() + Duration::from_secs(seconds));
            Extent { seeds: 0..u64::MAX, until }
        };
        if let Some(seed) = number("LIVE_SEED") {
            return Extent { seeds: seed..seed + 1, until: None };
        }
        if let Some(seeds) = number("LIVE_SEEDS") {
            return Extent { seeds: 0..seeds, until: None };
        }
        match (number("LIVE_MINUTES"), share) {
            (Some(minutes), _) => lasting(60 * minutes),
            (None, Share::Seconds(seconds)) => lasting(seconds),
            (None, Share::Seeds(seeds)) => Extent { seeds: 0..seeds, until: None },
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Whether somebody asked for more than a share.
pub(crate) fn is_at_length() -> bool {
    std::env::var_os("LIVE_SEEDS").is_some() || std::env::var_os("LIVE_MINUTES").is_some()
}

/// The command that tries a seed again.
pub(crate) fn repeat(seed: u64) -> String {
    format!("repeat:  cargo xtask live --seed {seed}")
}

/// Tries seeds on all cores; what became of each, in their order, and how long it took.
pub(crate) fn tried<T: Send>(
    share: Share,
    play: impl Fn(u64) -> T + Sync,
) -> (Vec<(u64, T)>, Duration) {
    let (extent, start) = (Extent::wanted(share), Instant::now());
    let (next, outcomes) = (AtomicU64::new(extent.seeds.start), Mutex::new(Vec::new()));
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

/// Tries seeds of a proof that panics where it fails, and tells of all that do.
pub(crate) fn each_seed<T: Send>(
    name: &str,
    share: Share,
    play: impl Fn(u64) -> T + Sync,
) -> Vec<T> {
    let caught = |seed| catch_unwind(AssertUnwindSafe(|| play(seed)));
    let (outcomes, took) = tried(share, caught);
    if is_at_length() {
        say(&format!("{name}: {} seeds in {:.0} s", outcomes.len(), took.as_secs_f64()));
    }
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for (seed, outcome) in outcomes {
        match outcome {
            Ok(outcome) => passed.push(outcome),
            Err(_) => failed.push(seed),
        }
    }
    // Each has told why, where it panicked.
    if let Some(first) = failed.first() {
        panic!("{name}: {} seeds fail: {failed:?}\n{}", failed.len(), repeat(*first));
    }
    passed
}

/// Past the harness' capture, so that a run of all tests tells how far it went.
pub(crate) fn say(text: &str) {
    let line = format!("counted: live SQL: {text}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("stdout can be written to");
}
