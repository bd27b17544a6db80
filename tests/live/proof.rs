//! The proof by random cases: schemas, queries, parameters and commits made at random, each query
//! followed through every commit and held against SQLite itself. A case that fails is made smaller and
//! printed as SQL.
//!
//! `schema`, `literals`, `grammar` and `writes` make a `case` · `play` plays it · `original` holds the
//! planner's query against the text · `shrink` makes a failing case small · `tree` is SQL that can
//! shrink.
//!
//! `cargo xtask live` runs as many seeds as one likes; without it there is a budget of seconds.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use case::Case;
use play::{Bug, Failure, Tally, play};

pub(crate) mod bounded;
pub(crate) mod case;
pub(crate) mod grammar;
pub(crate) mod literals;
pub(crate) mod original;
pub(crate) mod play;
pub(crate) mod schema;
pub(crate) mod shrink;
pub(crate) mod tree;
pub(crate) mod writes;

/// What a run of all tests spends on it.
const BUDGET: Duration = Duration::from_secs(20);

/// Of a hundred queries so many may be refused: beyond that the grammar proves too little.
const REFUSED_PERCENT: u64 = 20;

/// How far to go.
struct Extent {
    seeds: Range<u64>,
    until: Option<Instant>,
}

impl Extent {
    /// `LIVE_SEED=n` that one, `LIVE_SEEDS=n` the first n, `LIVE_MINUTES=n` for so long; else the
    /// budget.
    fn wanted() -> Extent {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is a number")))
        };
        if let Some(seed) = number("LIVE_SEED") {
            return Extent { seeds: seed..seed + 1, until: None };
        }
        let minutes = number("LIVE_MINUTES").map(|minutes| Duration::from_secs(60 * minutes));
        match (number("LIVE_SEEDS"), minutes) {
            (Some(seeds), None) => Extent { seeds: 0..seeds, until: None },
            (seeds, minutes) => {
                let until = Some(Instant::now() + minutes.unwrap_or(BUDGET));
                Extent { seeds: 0..seeds.unwrap_or(u64::MAX), until }
            }
        }
    }
}

#[test]
fn random_cases_follow_every_commit() {
    let (extent, start) = (Extent::wanted(), Instant::now());
    let next = AtomicU64::new(extent.seeds.start);
    let (tally, failures) = (Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    let work = || {
        let mut own = Tally::default();
        while extent.until.is_none_or(|until| Instant::now() < until) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= extent.seeds.end {
                break;
            }
            let case = Case::of_seed(seed);
            match play(&case, Bug::None) {
                Ok(played) => own.add(&played),
                Err(failure) => failures.lock().expect("no panic here").push((case, failure)),
            }
        }
        tally.lock().expect("no panic here").add(&own);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));

    let (tally, failures) = (tally.into_inner(), failures.into_inner());
    let (tally, failures) = (tally.expect("no panic here"), failures.expect("no panic here"));
    say(&tally, start.elapsed());
    assert!(failures.is_empty(), "{}", reports(failures));
    let refused: u64 = tally.refused.values().sum();
    let share = 100 * refused / tally.queries.max(1);
    assert!(share <= REFUSED_PERCENT, "{share} of a hundred queries are refused");
}

/// The first failure of each sort, made small.
fn reports(mut failures: Vec<(Case, Failure)>) -> String {
    failures.sort_by_key(|(case, _)| case.seed);
    let seeds: Vec<String> = failures.iter().map(|(case, _)| case.seed.to_string()).collect();
    let mut text = format!("{} seeds fail: {}\n\n", seeds.len(), seeds.join(" "));
    let mut told = Vec::new();
    for (case, failure) in &failures {
        if !told.contains(&failure.what) {
            told.push(failure.what);
            text += &report(case, failure);
        }
    }
    text
}

/// The smallest case that fails like this one, and how to repeat it.
fn report(case: &Case, failure: &Failure) -> String {
    let (small, how) = shrink::shrink(case, failure, Bug::None);
    let (seed, whole) = (case.seed, case.subscriptions[failure.query].query.inlined());
    format!(
        "seed {seed}: {:?} after commit {} of this\n\n{small}\n{}\n\nas generated:  {whole}\n\n\
         repeat:  cargo xtask live --seed {seed}\n",
        how.what,
        how.commit + 1,
        how.detail
    )
}

/// Past the harness' capture, so that a run of all tests tells how far it went.
fn say(tally: &Tally, took: Duration) {
    use std::io::Write as _;
    let refused: u64 = tally.refused.values().sum();
    let mut text = format!(
        "counted: live SQL: {} seeds in {:.0} s: {} commits, {} queries ({refused} refused, {} ended by \
         an error of their own), {} results compared, {} deltas\n",
        tally.cases,
        took.as_secs_f64(),
        tally.commits,
        tally.queries,
        tally.ended,
        tally.compared,
        tally.deltas,
    );
    if std::env::var_os("LIVE_SEEDS").is_some() || std::env::var_os("LIVE_MINUTES").is_some() {
        let mut refused: Vec<(&String, &u64)> = tally.refused.iter().collect();
        refused.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (why, count) in refused {
            text += &format!("  refused {count:>7}  {why}\n");
        }
    }
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).expect("stdout can be written to");
}
