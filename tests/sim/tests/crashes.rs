//! A crash at every nth step, and a fault at every nth call.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Arc;

use abide_schema::reducer::Caller;
use abide_sim::crash::{all_cases, measure, run};
use abide_sim::disk::{Fault, Machine};
use abide_sim::rig::{Rig, VirtualClock, folder};
use abide_sim::script::ScriptRun;
use serde_json::Map;

/// One case in this many: a prime, so that no kind of step is always skipped.
const STRIDE: usize = 67;

#[test]
fn acknowledged_calls_survive_every_fault() {
    let whole = measure().unwrap();
    let cases = all_cases(&whole.tally);
    let chosen = cases.iter().skip(STRIDE / 2).step_by(STRIDE);
    let mut run_cases = 0;
    let mut recoveries = 0;
    for case in chosen {
        let outcome = run(*case).unwrap_or_else(|found| {
            panic!("{found}\nrepeat: cargo xtask crash {case}");
        });
        (run_cases, recoveries) = (run_cases + 1, recoveries + outcome.recoveries);
    }
    let all = cases.len();
    let output =
        format!("counted: {run_cases} of {all} crashes and faults, {recoveries} recoveries");
    writeln!(std::io::stdout(), "{output}: cargo xtask crash --all runs them all").unwrap();
}

#[test]
fn a_run_is_reproducible() {
    let first = measure().unwrap();
    let second = measure().unwrap();
    assert_eq!((first.tally, first.acknowledged), (second.tally, second.acknowledged));
}

/// Crash tests cover only reducers that the script calls.
#[test]
fn the_script_calls_every_reducer() {
    let folder = folder();
    let clock = VirtualClock::new();
    let machine = Arc::new(Machine::new(Fault::None, 1));
    let rig = Rig::open(folder.path(), &machine, &clock).unwrap();
    let mut player = ScriptRun::new(&rig);
    assert_eq!(player.play(), Ok(()));
    let engine = rig.engine();
    let sql = "SELECT DISTINCT reducer FROM events";
    let answer = rig.run(engine.query(&Caller::local(), sql, &Map::new(), None));
    let rows = answer.unwrap().rows;
    let touched: BTreeSet<String> =
        rows.iter().map(|row| row[0].to_json().as_str().unwrap().to_owned()).collect();
    let modules = abide_reducers::modules();
    let declared = modules.iter().flat_map(|module| {
        let due = module.deadlines.iter().map(|deadline| deadline.reducer.name);
        module.reducers.iter().map(|reducer| reducer.name).chain(due)
    });
    let left_out: Vec<&str> = declared.filter(|name| !touched.contains(*name)).collect();
    assert_eq!(left_out, [""; 0], "missing in tests/sim/src/script.rs");
    assert!(engine.metrics().checkpoints_total.get() > 1, "the WAL was checkpointed and reset");
    assert!(engine.metrics().change_log_oldest_seq.get() > 0, "the change log was pruned");
}
