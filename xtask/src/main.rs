//! `cargo xtask <verb>`: the project's automation.
//!
//! `cargo xtask help` lists the verbs; each is one file, in most cases with its name. Nothing here is shipped.

mod a2a_conformance;
mod book;
mod ci;
mod command;
mod figures;
mod fuzz;
mod generate;
mod live;
mod mcp_conformance;
mod mlflow;
mod node;
mod otlp_collector;
mod package;
mod picture;
mod proofs;
mod sdk;
mod sim;
mod stress;
mod test;
mod tidy;
mod verifier;
mod visibility;

use std::env;
use std::path::Path;
use std::process::ExitCode;

/// A subcommand of `cargo xtask`.
struct Subcommand {
    name: &'static str,
    about: &'static str,
    /// The arguments; empty if there are none.
    takes: &'static str,
    /// Prints its result and returns the exit code. `Err` is the reason why there is no result.
    run: fn(&Path, &[String]) -> Result<ExitCode, String>,
}

const VERBS: &[Subcommand] = &[
    Subcommand {
        name: "test",
        about: "run all tests of the workspace, including tidy",
        takes: "",
        run: |root, _| test::run(root),
    },
    Subcommand {
        name: "sdk",
        about: "run the tests of the TypeScript and Python SDKs",
        takes: sdk::TAKES,
        run: sdk::run,
    },
    Subcommand {
        name: "generate",
        about: "write the files that follow from the reducers and their tables",
        takes: "",
        run: |root, _| generate::run(root),
    },
    Subcommand {
        name: "live",
        about: "compare live SQL with SQLite on random cases",
        takes: live::TAKES,
        run: live::run,
    },
    Subcommand {
        name: "mcp-conformance",
        about: "run the conformance suite of MCP against the MCP server",
        takes: "",
        run: |root, _| mcp_conformance::run(root),
    },
    Subcommand {
        name: "a2a-conformance",
        about: "run the compatibility kit of A2A against the A2A server, if the kit is installed",
        takes: "",
        run: |root, _| a2a_conformance::run(root),
    },
    Subcommand {
        name: "mlflow",
        about: "compare the prompts of a real MLflow server with those that agents get",
        takes: "",
        run: |root, _| mlflow::run(root),
    },
    Subcommand {
        name: "otlp-collector",
        about: "send traces to a real collector of OpenTelemetry",
        takes: "",
        run: |root, _| otlp_collector::run(root),
    },
    Subcommand {
        name: "crash",
        about: "simulate a power failure at every step, and a failure of every disk operation",
        takes: sim::CRASH_TAKES,
        run: sim::crash,
    },
    Subcommand {
        name: "sim",
        about: "simulate concurrent clients with network and disk failures, from a seed",
        takes: sim::SIM_TAKES,
        run: sim::sim,
    },
    Subcommand {
        name: "bugs",
        about: "check that the simulator finds each of the seeded bugs",
        takes: "",
        run: |root, _| sim::bugs(root),
    },
    Subcommand {
        name: "interleave",
        about: "check the locks with a model checker",
        takes: "",
        run: |root, _| sim::interleave(root),
    },
    Subcommand {
        name: "fuzz",
        about: "fuzz all kinds of untrusted input",
        takes: fuzz::TAKES,
        run: fuzz::run,
    },
    Subcommand {
        name: "soak",
        about: "run clients against a real server with kills, network failures and a full disk",
        takes: stress::SOAK_TAKES,
        run: stress::soak,
    },
    Subcommand {
        name: "overload",
        about: "overload a real server",
        takes: stress::OVERLOAD_TAKES,
        run: stress::overload,
    },
    Subcommand {
        name: "deploys",
        about: "stop a real server while its tools and the workers of all SDKs run",
        takes: stress::DEPLOYS_TAKES,
        run: stress::deploys,
    },
    Subcommand {
        name: "recovery",
        about: "measure the restart time of a killed server by file size",
        takes: stress::RECOVERY_TAKES,
        run: stress::recovery,
    },
    Subcommand {
        name: "rows",
        about: "verify a large file with one changed cell",
        takes: stress::ROWS_TAKES,
        run: stress::rows,
    },
    Subcommand {
        name: "visibility",
        about: "compare what restricted callers see with filtered copies",
        takes: visibility::TAKES,
        run: visibility::run,
    },
    Subcommand {
        name: "verifier",
        about: "compare the verification of generated logs with a verifier in Python",
        takes: verifier::TAKES,
        run: verifier::run,
    },
    Subcommand {
        name: "proofs",
        about: "run every proof in full, and write the figures to docs/reliability.md",
        takes: proofs::TAKES,
        run: proofs::run,
    },
    Subcommand {
        name: "tidy",
        about: "check style, dependencies, licences and links without a build",
        takes: "",
        run: |root, _| tidy::run(root),
    },
    Subcommand {
        name: "figures",
        about: "print figures of the source and of a program, to compare two states",
        takes: figures::TAKES,
        run: figures::run,
    },
    Subcommand {
        name: "book",
        about: "build the docs as a book, and check their links",
        takes: "",
        run: |root, _| book::run(root),
    },
    Subcommand {
        name: "package",
        about: "build and pack the artefacts of a release",
        takes: package::TAKES,
        run: package::run,
    },
    Subcommand {
        name: "matrix",
        about: "run the packed SDKs of each release against the packed servers of each release",
        takes: package::matrix::TAKES,
        run: package::matrix::run,
    },
    Subcommand {
        name: "picture",
        about: "run the demo, and draw what it prints for the README",
        takes: picture::TAKES,
        run: picture::run,
    },
    Subcommand {
        name: "ci",
        about: "run all steps of .ci/run, with the duration of each",
        takes: "",
        run: |root, _| ci::run(root),
    },
    Subcommand { name: "help", about: "print this list", takes: "", run: |_, _| Ok(help()) },
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
        return refuse(&format!("unknown verb `{name}`"));
    };
    if verb.takes.is_empty()
        && let Some(extra) = arguments.first()
    {
        return refuse(&format!("unexpected argument of `{name}`: {extra}"));
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

fn refuse(why: &str) -> ExitCode {
    eprint!("error: {why}\n\n{}", usage());
    ExitCode::from(USAGE)
}

fn usage() -> String {
    let verbs = VERBS.iter().map(|verb| {
        let takes = if verb.takes.is_empty() { "" } else { "        " };
        let newline = if verb.takes.is_empty() { "" } else { "\n" };
        format!("  {:<17}{}\n{takes}{}{newline}", verb.name, verb.about, verb.takes)
    });
    format!("cargo xtask <verb>\n\n{}", verbs.collect::<String>())
}

/// Returns the root of the checkout.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the checkout")
}
