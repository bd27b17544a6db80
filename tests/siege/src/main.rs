//! The `abide` program as a real process, under siege: too much of everything (`overload`), everybody at once while
//! it is killed, cut off and out of disk (`soak`), and how long it takes to come back (`recovery`).
//!
//! Changes when what is done to real processes, or the bounds that they are held to, changes. Nothing of the
//! engine is reached into: what is known of the server is what its sockets, its file and `/proc` tell.
//! What a run counted is printed as figures, of which `cargo xtask reliability` makes its table.
//!
//! `server` a process and its file · `caller` one whose calls are timed · `http`, `socket` the least that clients
//! can be · `pace` time that passes · `words` what is said to the program · `figures` what it says.

mod caller;
mod figures;
mod http;
mod overload;
mod pace;
mod recovery;
mod server;
mod soak;
mod socket;
mod words;

use std::process::ExitCode;

use words::Words;

const USAGE: &str = "abide-siege overload [--share]
abide-siege soak [--minutes N] [--seed S] [--clients N]
abide-siege recovery [--share]";

/// What goes wrong here is a finding, or that the machine does not allow something; both are told in words.
type Told<T = ()> = Result<T, String>;

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

fn run(words: &[String]) -> Told {
    let Some((verb, rest)) = words.split_first() else {
        println!("{USAGE}");
        return Ok(());
    };
    let words = Words::read(rest)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|why| format!("no runtime: {why}"))?;
    match verb.as_str() {
        "overload" => runtime.block_on(overload::run(words)),
        "soak" => runtime.block_on(soak::run(words)),
        "recovery" => runtime.block_on(recovery::run(words)),
        _ => Err(format!("there is no {verb}\n{USAGE}")),
    }
}
