//! A panic at every point of every thread of the engine (`abide_sim::panics`).
//!
//! Only a panic within a reducer was caught once. One in `Router::attach` ended the writer thread: `/ready` went on
//! to say 200, the next call waited without end, and the process could not be stopped by SIGTERM. The same held
//! for every other thread, and each query that panicked took one of four readers with it.

use std::io::Write as _;

use abide_sim::panics::{all_cases, run};

#[test]
fn a_panic_answers_all_waiters_and_keeps_acknowledged_writes() {
    let (cases, mut refused) = (all_cases(), 0);
    for (point, nth, closes) in &cases {
        let outcome = run(*point, *nth, *closes);
        refused += outcome.unwrap_or_else(|found| panic!("{point:?}, time {nth}: {found}"));
    }
    let told = format!("counted: {} panics, {refused} refused for them", cases.len());
    writeln!(std::io::stdout(), "{told}").unwrap();
}
