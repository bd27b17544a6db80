//! The first seeds of the simulator, each run twice: no findings, and equal traces.

use std::io::Write as _;

use abide_sim::sim::run;

const SEEDS: u64 = 24;

#[test]
fn the_first_seeds_have_no_findings() {
    let mut events = 0;
    let mut crashes = 0;
    let mut lost = 0;
    for seed in 1..=SEEDS {
        let report = run(seed, false).unwrap_or_else(|found| {
            panic!("{found}\nrepeat: cargo xtask sim --seed {seed}");
        });
        assert_eq!(run(seed, false).as_ref(), Ok(&report), "seed {seed}: another trace");
        (events, crashes) = (events + report.events, crashes + report.crashes);
        lost += report.lost;
    }
    let counted = format!("{events} events, {crashes} crashes, {lost} lost messages");
    let output = format!("counted: {SEEDS} seeds of the simulator, each twice: {counted}");
    writeln!(std::io::stdout(), "{output}: cargo xtask sim --seeds N runs more").unwrap();
}
