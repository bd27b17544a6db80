//! `cargo xtask <verb>`: the project's automation.
//!
//! Each verb is one file: `test` runs the suite, `live` tests live SQL for any time, `sight` tests what restricted
//! callers see, `crash`, `sim`, `bugs`, `interleave`, `fuzz`, `soak`, `overload` and `recovery` test durability,
//! `reliability` writes a table of their results, `tidy` checks the style, `ci` runs all steps of `.ci/run`.
//! Nothing here is shipped.

mod book;
mod ci;
mod fuzz;
mod live;
mod node;
mod picture;
mod reliability;
mod siege;
mod sight;
mod sim;
mod test;
mod tidy;

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// A subcommand of `cargo xtask`.
struct Verb {
    name: &'static str,
    about: &'static str,
    /// The arguments; empty if there are none.
    takes: &'static str,
    /// `Ok` is the result, which the verb has printed; `Err` is the reason why there is none.
    run: fn(&Path, &[String]) -> Result<ExitCode, String>,
}

const VERBS: &[Verb] = &[
    Verb {
        name: "test",
        about: "run all tests of the workspace, including tidy",
        takes: "",
        run: |root, _| test::run(root),
    },
    Verb {
        name: "live",
        about: "compare live SQL with SQLite on random cases",
        takes: live::TAKES,
        run: live::run,
    },
    Verb {
        name: "crash",
        about: "simulate a power failure at every step, and a failure of every disk operation",
        takes: sim::CRASH_TAKES,
        run: sim::crash,
    },
    Verb {
        name: "sim",
        about: "simulate concurrent clients with network and disk failures, from a seed",
        takes: sim::SIM_TAKES,
        run: sim::sim,
    },
    Verb {
        name: "bugs",
        about: "check that the simulator finds each of the seeded bugs",
        takes: "",
        run: |root, _| sim::bugs(root),
    },
    Verb {
        name: "interleave",
        about: "check the locks with a model checker",
        takes: "",
        run: |root, _| sim::interleave(root),
    },
    Verb {
        name: "fuzz",
        about: "fuzz all kinds of untrusted input",
        takes: fuzz::TAKES,
        run: fuzz::run,
    },
    Verb {
        name: "soak",
        about: "run clients against a real server with kills, network failures and a full disk",
        takes: siege::SOAK_TAKES,
        run: siege::soak,
    },
    Verb {
        name: "overload",
        about: "overload a real server",
        takes: siege::OVERLOAD_TAKES,
        run: siege::overload,
    },
    Verb {
        name: "recovery",
        about: "measure the restart time of a killed server by file size",
        takes: siege::RECOVERY_TAKES,
        run: siege::recovery,
    },
    Verb {
        name: "reliability",
        about: "run all of these, and write the results to docs/reliability.md",
        takes: reliability::TAKES,
        run: reliability::run,
    },
    Verb {
        name: "sight",
        about: "compare what restricted callers see with filtered copies",
        takes: sight::TAKES,
        run: sight::run,
    },
    Verb {
        name: "tidy",
        about: "check the style rules without a build",
        takes: "",
        run: |root, _| tidy::run(root),
    },
    Verb {
        name: "book",
        about: "build the docs as a book, and check their links",
        takes: "",
        run: |root, _| book::run(root),
    },
    Verb {
        name: "picture",
        about: "run the demo, and draw what it prints for the README",
        takes: picture::TAKES,
        run: picture::run,
    },
    Verb {
        name: "ci",
        about: "run all steps of .ci/run, with the duration of each",
        takes: "",
        run: |root, _| ci::run(root),
    },
    Verb { name: "help", about: "print this list", takes: "", run: |_, _| Ok(help()) },
];

/// Exit code for wrong usage, as opposed to a failed check (1).
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let (name, arguments) = match words.split_first() {
        None => ("help", &[][..]),
        Some((name, arguments)) => (name.as_str(), arguments),
    };
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        return wrong(&format!("unknown verb `{name}`"));
    };
    if let (true, Some(extra)) = (verb.takes.is_empty(), arguments.first()) {
        return wrong(&format!("unexpected argument of `{name}`: {extra}"));
    }
    (verb.run)(root(), arguments).unwrap_or_else(|why| {
        eprintln!("error: {name}: {why}");
        ExitCode::FAILURE
    })
}

fn help() -> ExitCode {
    print!("{}", usage());
    ExitCode::SUCCESS
}

fn wrong(why: &str) -> ExitCode {
    eprint!("error: {why}\n\n{}", usage());
    ExitCode::from(USAGE)
}

fn usage() -> String {
    let verbs = VERBS.iter().map(|verb| {
        let takes = if verb.takes.is_empty() { "" } else { "        " };
        let newline = if verb.takes.is_empty() { "" } else { "\n" };
        format!("  {:<13}{}\n{takes}{}{newline}", verb.name, verb.about, verb.takes)
    });
    format!("cargo xtask <verb>\n\n{}", verbs.collect::<String>())
}

/// The root of the checkout.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the checkout")
}

/// The cargo that runs this program, with the root as its working directory.
fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(root);
    cargo
}

/// Exit code 0 for success, 1 for failure.
fn verdict(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
