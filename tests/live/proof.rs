//! The proof by random cases: random schemas, queries, parameters and commits. Each query is
//! followed through every commit and compared with SQLite itself. A failing case is shrunk and
//! printed as SQL.
//!
//! `schema`, `literals`, `grammar` and `writes` generate a `case` · `play` runs it · `original`
//! compares the planner's query with the text · `shrink` shrinks a failing case · `tree` is SQL
//! that can shrink.
//!
//! `cargo xtask live` runs any number of seeds; otherwise a time budget applies.

use std::time::Duration;

use case::Case;
use play::{CaseCounts, Failure, InjectedBug, play};

use crate::seed_budget::{TestBudget, is_at_length, print_note, repeat, tried};

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

/// The budget in a full test run.
const BUDGET: TestBudget = TestBudget::Seconds(10);

/// The maximum percentage of refused queries: beyond it the grammar proves too little. Checked only
/// over many seeds: a single seed has ten queries, and three of them may be refused.
const REFUSED_PERCENT: u64 = 20;
const ENOUGH_QUERIES: u64 = 1_000;

#[test]
fn random_cases_follow_every_commit() {
    let (outcomes, took) = tried(BUDGET, |seed| {
        let case = Case::of_seed(seed);
        play(&case, InjectedBug::None).map_err(|failure| Box::new((case, failure)))
    });
    let mut tally = CaseCounts::default();
    let mut failures = Vec::new();
    for (_, outcome) in outcomes {
        match outcome {
            Ok(played) => tally.add(&played),
            Err(failure) => failures.push(*failure),
        }
    }
    report_on(&tally, took);
    assert!(failures.is_empty(), "{}", reports(failures));
    let refused: u64 = tally.refused.values().sum();
    let share = 100 * refused / tally.queries.max(1);
    let is_enough = tally.queries < ENOUGH_QUERIES || share <= REFUSED_PERCENT;
    assert!(is_enough, "{share} of a hundred queries are refused");
}

/// Seeds that found a bug, beside the first ones of every run. 1605: a delta failed where the query did not, and ended it.
/// 4495: an integer in a column that another SELECT of the view makes of reals was an integer or a real, depending on the plan.
#[test]
fn seeds_that_found_a_bug_find_nothing() {
    for seed in [1605, 4495] {
        let case = Case::of_seed(seed);
        if let Err(failure) = play(&case, InjectedBug::None) {
            panic!("{}", report(&case, &failure));
        }
    }
}

/// The first failure of each kind, shrunk.
fn reports(failures: Vec<(Case, Failure)>) -> String {
    let seeds: Vec<String> = failures.iter().map(|(case, _)| case.seed.to_string()).collect();
    let mut text = format!("{} seeds fail: {}\n\n", seeds.len(), seeds.join(" "));
    let mut output = Vec::new();
    for (case, failure) in &failures {
        if !output.contains(&failure.what) {
            output.push(failure.what);
            text += &report(case, failure);
        }
    }
    text
}

/// The smallest case with the same failure, and how to reproduce it.
fn report(case: &Case, failure: &Failure) -> String {
    let (small, how) = shrink::shrink(case, failure, InjectedBug::None);
    let seed = case.seed;
    let whole = case.subscriptions[failure.query].query.inlined();
    format!(
        "seed {seed}: {:?} after commit {} of this\n\n{small}\n{}\n\nas generated:  {whole}\n\n\
         {}\n",
        how.what,
        how.commit + 1,
        how.detail,
        repeat(seed)
    )
}

/// The extent of the run, and why queries were refused.
fn report_on(tally: &CaseCounts, took: Duration) {
    let refused: u64 = tally.refused.values().sum();
    let mut text = format!(
        "random cases: {} seeds in {:.0} s: {} commits, {} queries ({refused} refused, {} ended by \
         an error of their own), {} results compared, {} deltas, {} failed and run again",
        tally.cases,
        took.as_secs_f64(),
        tally.commits,
        tally.queries,
        tally.ended,
        tally.compared,
        tally.deltas,
        tally.rerun,
    );
    if is_at_length() {
        let mut refused: Vec<(&String, &u64)> = tally.refused.iter().collect();
        refused.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (why, count) in refused {
            text += &format!("\n  refused {count:>7}  {why}");
        }
    }
    print_note(&text);
}
