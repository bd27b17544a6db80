//! Measurements: ours beside a floor, interleaved in one run, so that what is quoted is a ratio and
//! not the mood of a machine. The figures of `docs/performance.md` are what this prints.

mod agents;
mod authority;
mod cpu;
mod floor;
mod live;
mod pages;
mod plot;
mod policies;
mod statistics;
mod turns;
mod writer;

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
    /// Live queries: what subscriptions cost a commit, and how fast its deltas are delivered.
    Live(live::Options),
    /// Policies: what a bounded sight costs a query and a commit.
    Policies(policies::Options),
    /// Claims by 32 workers, bounded or not, beside a million timers that wait; how late timers fire.
    Authority(authority::Options),
    /// How long single calls hold the writer: validations, the cancellation of thousands of sessions.
    Writer(writer::Options),
    /// Agents: a step beside the model's own time, many runs at once, a token on its way to who listens.
    Agents(agents::Options),
    /// A process of `agents`.
    #[command(hide = true)]
    AgentsCrowd(agents::crowd::Options),
    /// A process of `live`.
    #[command(hide = true)]
    LiveRouting(live::routing::Options),
    /// A process of `live`.
    #[command(hide = true)]
    LiveWhole(live::whole::Options),
    /// A process of `live`.
    #[command(hide = true)]
    LiveListen(live::listener::Options),
}

fn main() {
    match Options::parse().bench {
        Bench::Turns(options) => turns::run(&options),
        Bench::Pages(options) => pages::run(&options),
        Bench::Live(options) => live::run(&options),
        Bench::Policies(options) => policies::run(&options),
        Bench::Authority(options) => authority::run(&options),
        Bench::Writer(options) => writer::run(&options),
        Bench::Agents(options) => agents::run(&options),
        Bench::AgentsCrowd(options) => agents::crowd::measure(&options),
        Bench::LiveRouting(options) => live::routing::measure(&options),
        Bench::LiveWhole(options) => live::whole::measure(&options),
        Bench::LiveListen(options) => live::listener::run(&options),
    }
}
