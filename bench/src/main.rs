//! Measurements: ours beside a floor, interleaved in one run, so that what is quoted is a ratio and
//! not the mood of a machine. What the README says of speed is what this prints.

mod cpu;
mod floor;
mod pages;
mod statistics;
mod turns;

use clap::{Parser, Subcommand};

/// Measures Abide beside a floor in the same run.
#[derive(Debug, Parser)]
#[command(name = "abide-bench", version)]
struct Options {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Durable turns a second: user message, tool call, its result, assistant message: four events.
    Turns(turns::Options),
    /// Page sizes: how the store's default was chosen.
    Pages(pages::Options),
}

fn main() {
    match Options::parse().bench {
        Bench::Turns(options) => turns::run(&options),
        Bench::Pages(options) => pages::run(&options),
    }
}
