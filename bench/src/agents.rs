//! The overhead of an agent besides its model: the time of a step, many concurrent runs in one process, and the
//! latency of a token from the model to a subscriber. Real time, a real file, and a model that only waits.

pub(crate) mod concurrent_runs;
mod fixture;
mod model;
mod steps;
mod tokens;

use std::path::PathBuf;

use clap::Args;

use crate::live::report::Machine;
use crate::marks;

/// Options of `agents`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of concurrent runs in the second part.
    #[arg(long, default_value_t = 10_000)]
    crowd: usize,
    /// A short run that only shows that the benchmark works.
    #[arg(long)]
    quick: bool,
    /// A document; the table is written between its marks.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The folder for the files.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) {
    let machine = Machine::read();
    let crowd = if options.quick { 50 } else { options.crowd };
    eprintln!("steps …");
    let steps = steps::measure(options);
    eprintln!("crowd …");
    let crowd = concurrent_runs::measure_in_child(options, crowd);
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
        let written = marks::replace(&document, "agents", &format!("\n{text}"))
            .expect("the document has the marks");
        std::fs::write(out, written).expect("the document can be written");
        eprintln!("written to {}", out.display());
    }
}
