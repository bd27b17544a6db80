//! `live`: what live queries cost, in three parts, with tables and plots for `docs/`.

pub(crate) mod child;
mod database;
mod delivery;
mod desk;
pub(crate) mod listener;
mod memory;
mod operators;
pub(crate) mod report;
pub(crate) mod routing;
mod socket;
pub(crate) mod whole;

use std::path::PathBuf;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Options of `live`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Small and short: shows that the bench works, and writes only where --out says.
    #[arg(long)]
    quick: bool,
    /// Only these parts: 1 subscriptions that a commit does not concern, 2 queries that it changes,
    /// 3 from a call to the last subscriber.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=3))]
    only: Vec<u8>,
    /// Where live.md and its plots are written [default: docs; with --quick nowhere].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Where the databases are made; a disk, not a memory file system.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
}

/// What all parts want to know.
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
    let document = report::document(&machine, &sections, options.quick);
    print!("{document}");
    let out = options.out.clone().or_else(|| (!options.quick).then(|| PathBuf::from("docs")));
    if let Some(out) = out {
        report::write(&document, &sections, &out).expect("the folder takes the files");
        eprintln!("written to {}", out.display());
    }
}

/// Lets this process open as many files as the system allows it. Returns how many those are.
fn raise_open_files() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let now = if raised.is_ok() { maximum } else { current };
    now.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// Files that this process has open.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
