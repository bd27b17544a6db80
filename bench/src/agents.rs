//! The overhead of an agent besides its model: the time of a step, many concurrent runs in one process, and the
//! latency of a token from the model to a subscriber. Real time, a real file, and a model that only waits.

pub(crate) mod concurrent_runs;
mod fixture;
mod model;
mod options;
mod steps;
mod tokens;

use crate::live::report::Machine;
use crate::marks;
pub(crate) use options::Options;

pub(crate) fn run(options: &Options) {
    let machine = Machine::read();
    let crowd = if options.quick { 50 } else { options.crowd };
    eprintln!("steps …");
    let steps = steps::measure(options);
    eprintln!("crowd …");
    let crowd = concurrent_runs::in_a_process(options, crowd);
    eprintln!("tokens …");
    let tokens = tokens::measure(options);
    let text = format!(
        "Made by `cargo run --release -p abide-bench -- agents --out docs/performance.md` in one run \
         on one shared machine, with the load shown below.\n\n{}\n\n{steps}\n\n{crowd}\n\n{tokens}\n",
        machine.text(),
    );
    println!("{text}");
    if let Some(out) = &options.out {
        let document = std::fs::read_to_string(out).expect("the document can be read");
        let written = marks::replace(&document, "agents", &format!("\n{text}"));
        let written = written.expect("the document has the marks");
        std::fs::write(out, written).expect("the document can be written");
        eprintln!("written to {}", out.display());
    }
}
