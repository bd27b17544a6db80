//! A panic at every point of every thread of the engine (`abide_sim::panics`).
//!
//! Once only a panic within a reducer was caught. One in `Router::attach` ended the writer thread:
//! `/ready` still returned 200, the next call waited forever, and SIGTERM could not stop the
//! process. The same held for every other thread, and each query that panicked took one of the four
//! readers with it.

use std::io::Write as _;

use abide_sim::panics::{all_cases, run};

#[test]
fn a_panic_answers_all_waiters_and_keeps_acknowledged_writes() {
    let cases = all_cases();
    let mut refused = 0;
    for (point, nth, closes) in &cases {
        let outcome = run(*point, *nth, *closes);
        refused += outcome.unwrap_or_else(|found| panic!("{point:?}, time {nth}: {found}"));
    }
    let output = format!("counted: {} panics, {refused} refused for them", cases.len());
    writeln!(std::io::stdout(), "{output}").unwrap();
}
