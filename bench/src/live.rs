//! `live`: the cost of live queries, in three parts, with tables and plots for `docs/`.

mod database;
pub(crate) mod delivery;
mod help_desk;
pub(crate) mod listener;
mod operators;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod routing;
mod socket;
pub(crate) mod whole;

use std::path::PathBuf;

use clap::Args;

/// Options of `live`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A short run that only shows that the benchmark works; it writes files only with --out.
    #[arg(long)]
    quick: bool,
    /// Only these parts: 1 subscriptions that a commit does not affect, 2 queries that it affects, 3 latency from a
    /// call to the last subscriber.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=3))]
    only: Vec<u8>,
    /// The folder for live.md and its plots [default: docs; none with --quick].
    #[arg(long)]
    out: Option<PathBuf>,
    /// The folder for the databases; it should be on a disk, not in memory.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: PathBuf,
}

/// The settings of all parts.
pub(crate) struct Scope {
    quick: bool,
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) {
    let scope = Scope { quick: options.quick, dir: options.dir.clone() };
    let parts = [routing::section, operators::section, delivery::section];
    let wanted = (1..)
        .zip(parts)
        .filter(|(number, _)| options.only.is_empty() || options.only.contains(number));
    let machine = report::Machine::read();
    let sections: Vec<report::Section> = wanted.map(|(_, section)| section(&scope)).collect();
    let document = report::format_document(&machine, &sections, options.quick);
    print!("{document}");
    let out = options.out.clone().or_else(|| (!options.quick).then(|| PathBuf::from("docs")));
    if let Some(out) = out {
        report::write_document(&document, &sections, &out).expect("the folder takes the files");
        eprintln!("written to {}", out.display());
    }
}
