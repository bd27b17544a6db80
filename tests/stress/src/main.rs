//! Load and fault tests of the `abide` program as a real process: overload (`overload`), mixed load
//! while the server is killed, the network fails and the disk fills up (`soak`), stops of a server whose tools and workers
//! run (`deploys`), recovery time (`recovery`), and one changed cell among a million rows (`rows`).
//!
//! Changes when the load, the faults or the limits change. The tests use no engine internals: they
//! observe the server through its sockets, its file and `/proc`. Results are printed as figures,
//! from which `cargo xtask proofs` builds its table.
//!
//! `server` a process and its file · `caller` a caller whose calls are timed · `http`, `socket`
//! minimal clients · `pace` real time · `arguments` the command line · `figures` the output.

mod arguments;
mod caller;
mod deploys;
mod figures;
mod http;
mod overload;
mod pace;
mod recovery;
mod rows;
mod server;
mod soak;
mod socket;

use std::process::ExitCode;

use arguments::Arguments;

const USAGE: &str = "abide-stress overload [--share]
abide-stress soak [--minutes N] [--seed S] [--clients N]
abide-stress deploys [--share] [--rounds N] [--seconds N] [--seed S]
abide-stress recovery [--share]
abide-stress rows [--share]";

/// An error is a finding, or a restriction of the machine, as text.
type CheckResult<T = ()> = Result<T, String>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> CheckResult {
    let Some((verb, rest)) = words.split_first() else {
        println!("{USAGE}");
        return Ok(());
    };
    if verb == deploys::tool::VERB {
        return deploys::tool::run(rest);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|why| format!("no runtime: {why}"))?;
    if verb == deploys::worker::VERB {
        return runtime.block_on(deploys::worker::serve(rest));
    }
    let words = Arguments::read(rest)?;
    match verb.as_str() {
        "overload" => runtime.block_on(overload::run(words)),
        "soak" => runtime.block_on(soak::run(words)),
        "deploys" => runtime.block_on(deploys::run(words)),
        "recovery" => runtime.block_on(recovery::run(words)),
        "rows" => runtime.block_on(rows::run(words)),
        _ => Err(format!("unknown command {verb}\n{USAGE}")),
    }
}
