//! Benchmarks, each compared with a baseline that is interleaved in the same run. The results are ratios, which
//! depend less on the machine. The README's performance figures come from this program.

mod agents;
mod authority;
mod context;
mod cpu;
mod delta;
mod disk;
mod floor;
mod live;
mod marks;
mod open;
mod pages;
mod payload;
mod plot;
mod policies;
mod reads;
mod record;
mod report;
mod stages;
mod statistics;
mod turns;
mod writer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use live::report::Machine;
use record::Record;

/// The allocator of the program `abide`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures Abide against a baseline in the same run.
#[derive(Debug, Parser)]
#[command(name = "abide-bench", version)]
struct Options {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Durable turns per second. A turn has four events: user message, tool call, its result, assistant message.
    Turns(turns::Options),
    /// Durable turns with concurrent one-shot queries.
    Reads(reads::Options),
    /// The time from a call to its delta, with one subscriber.
    Delta(delta::Options),
    /// The time to open a file after SIGKILL under load.
    Open(open::Options),
    /// Where the time of a lone caller's call goes, from the client over the writer and the disk and back.
    Stages(stages::Options),
    /// Writes the tables and plots of pages from the records of a run.
    Report(report::Options),
    /// The machine, as a record.
    Machine,
    /// The time of one `fdatasync`, in microseconds.
    Sync(disk::Options),
    /// Page sizes: the measurement for the store's default.
    Pages(pages::Options),
    /// Live queries: the cost of subscriptions for a commit, and the delivery rate of deltas.
    Live(live::Options),
    /// Policies: the cost of restricted visibility for a query and a commit.
    Policies(policies::Options),
    /// Claims by 32 workers, restricted or not, with a million waiting timers; the delay of timers.
    Authority(authority::Options),
    /// How long single calls block the writer: validations, and the cancellation of thousands of sessions.
    Writer(writer::Options),
    /// Agents: the overhead of a step, many concurrent runs, and the latency of a token to a subscriber.
    Agents(agents::Options),
    /// Agents: the tokens sent with and without compaction, over recorded conversations and a run of thousands of turns.
    Context(context::Options),
    /// A child process of `open`.
    #[command(hide = true)]
    OpenLoad(open::LoadOptions),
    /// A child process of `agents`.
    #[command(hide = true)]
    AgentsCrowd(agents::concurrent_runs::Options),
    /// A child process of `live`.
    #[command(hide = true)]
    LiveRouting(live::routing::Options),
    /// A child process of `live`.
    #[command(hide = true)]
    LiveWhole(live::whole::Options),
    /// A child process of `live`.
    #[command(hide = true)]
    LiveListen(live::listener::Options),
}

fn main() -> ExitCode {
    match Options::parse().bench {
        Bench::Turns(options) => turns::run(&options),
        Bench::Reads(options) => reads::run(&options),
        Bench::Delta(options) => delta::run(&options),
        Bench::Open(options) => open::run(&options),
        Bench::OpenLoad(options) => open::load(&options),
        Bench::Stages(options) => stages::run(&options),
        Bench::Report(options) => {
            if let Err(why) = report::run(&options) {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        }
        Bench::Machine => Record::Machine { text: Machine::read().text().to_owned() }.print(),
        Bench::Sync(options) => disk::run(&options),
        Bench::Pages(options) => pages::run(&options),
        Bench::Live(options) => live::run(&options),
        Bench::Policies(options) => policies::run(&options),
        Bench::Authority(options) => authority::run(&options),
        Bench::Writer(options) => writer::run(&options),
        Bench::Agents(options) => agents::run(&options),
        Bench::Context(options) => {
            if let Err(why) = context::run(&options) {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        }
        Bench::AgentsCrowd(options) => agents::concurrent_runs::measure(&options),
        Bench::LiveRouting(options) => live::routing::measure(&options),
        Bench::LiveWhole(options) => live::whole::measure(&options),
        Bench::LiveListen(options) => live::listener::run(&options),
    }
    ExitCode::SUCCESS
}
