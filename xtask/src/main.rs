//! `cargo xtask <verb>`: the project's own automation, in its own language.
//!
//! This file is the table of contents, each verb is one file: `test` runs the suite, `live` proves live
//! SQL for as long as one likes, `sight` what callers may see, `crash`, `sim`, `bugs`, `interleave`, `fuzz`,
//! `soak`, `overload` and `recovery` prove that nothing is lost, `reliability` makes a table of what they
//! counted, `tidy` holds the house to its style, `ci` is all that `.ci/run` asks.
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

/// One thing that `cargo xtask` can do.
struct Verb {
    name: &'static str,
    about: &'static str,
    /// Its arguments; none where it takes none.
    takes: &'static str,
    /// `Ok` is the verdict, which the verb has explained; `Err` says why there is none.
    run: fn(&Path, &[String]) -> Result<ExitCode, String>,
}

const VERBS: &[Verb] = &[
    Verb {
        name: "test",
        about: "run every test of the workspace, tidy among them",
        takes: "",
        run: |root, _| test::run(root),
    },
    Verb {
        name: "live",
        about: "hold live SQL against SQLite on cases made at random",
        takes: live::TAKES,
        run: live::run,
    },
    Verb {
        name: "crash",
        about: "let the power fail at every step, and every call of the disk",
        takes: sim::CRASH_TAKES,
        run: sim::crash,
    },
    Verb {
        name: "sim",
        about: "everybody at once on a network and a disk that fail, by a seed",
        takes: sim::SIM_TAKES,
        run: sim::sim,
    },
    Verb {
        name: "bugs",
        about: "make classic mistakes, and see that each is found",
        takes: "",
        run: |root, _| sim::bugs(root),
    },
    Verb {
        name: "interleave",
        about: "run what threads share in many orders, by a model checker",
        takes: "",
        run: |root, _| sim::interleave(root),
    },
    Verb {
        name: "fuzz",
        about: "inputs made up by a fuzzer, for all that strangers may send",
        takes: fuzz::TAKES,
        run: fuzz::run,
    },
    Verb {
        name: "soak",
        about: "everybody at once over a real server that is killed, cut off and out of disk",
        takes: siege::SOAK_TAKES,
        run: siege::soak,
    },
    Verb {
        name: "overload",
        about: "too much of everything against a real server",
        takes: siege::OVERLOAD_TAKES,
        run: siege::overload,
    },
    Verb {
        name: "recovery",
        about: "how long a killed server takes to come back, by the size of its file",
        takes: siege::RECOVERY_TAKES,
        run: siege::recovery,
    },
    Verb {
        name: "reliability",
        about: "run all of these, and write what they counted into docs/reliability.md",
        takes: reliability::TAKES,
        run: reliability::run,
    },
    Verb {
        name: "sight",
        about: "hold what bounded callers see against filtered copies",
        takes: sight::TAKES,
        run: sight::run,
    },
    Verb {
        name: "tidy",
        about: "check the style of the house, without building it",
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
        about: "all that .ci/run asks, each step with its seconds",
        takes: "",
        run: |root, _| ci::run(root),
    },
    Verb { name: "help", about: "this list", takes: "", run: |_, _| Ok(help()) },
];

/// Wrong use, as opposed to a "no" (1).
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let (name, arguments) = match words.split_first() {
        None => ("help", &[][..]),
        Some((name, arguments)) => (name.as_str(), arguments),
    };
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        return wrong(&format!("there is no verb `{name}`"));
    };
    if let (true, Some(extra)) = (verb.takes.is_empty(), arguments.first()) {
        return wrong(&format!("`{name}` takes no argument: {extra}"));
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

/// The folder of the checkout.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the checkout")
}

/// The cargo that runs us, to be run at the root.
fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(root);
    cargo
}

/// Yes is exit code 0, no is 1.
fn verdict(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
