//! `cargo xtask ci`: the checks that must pass before a change lands, from a fresh clone.
//!
//! The steps are the commands that a developer would type, including the two of the README. All steps run even if
//! one fails, so that one run shows all problems. Together they take less than 30 minutes on two cores. The simulator with
//! many seeds, seeded bugs and the fuzzer, which need builds of their own, are in `cargo xtask proofs`; `cargo xtask test`
//! runs the first seeds, and inputs that the fuzzer has found.

use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::command::{self, StepResult};

/// A command, with a name for the summary.
struct Step {
    name: &'static str,
    command: &'static str,
    env: Option<(&'static str, &'static str)>,
}

const STEPS: &[Step] = &[
    Step { name: "format", command: "cargo fmt --all --check", env: None },
    Step {
        name: "lint",
        command: "cargo clippy --workspace --all-targets -- -D warnings",
        env: None,
    },
    Step {
        name: "docs",
        command: "cargo doc --workspace --no-deps",
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
    },
    Step {
        name: "test",
        command: "cargo xtask test",
        // Tests that need Node must not be skipped.
        env: Some((crate::node::NEEDED, "1")),
    },
    Step {
        name: "frameworks",
        command: "cargo xtask sdk --frameworks",
        env: Some((crate::node::NEEDED, "1")),
    },
    Step { name: "book", command: "cargo xtask book", env: None },
    Step { name: "locks", command: "cargo xtask interleave", env: None },
    Step { name: "release", command: "cargo build --release", env: None },
    Step { name: "demo", command: "cargo run --release -- demo", env: None },
    Step { name: "soak", command: "cargo xtask soak --seconds 30", env: None },
    Step { name: "overload", command: "cargo xtask overload --share", env: None },
    Step { name: "recovery", command: "cargo xtask recovery --share", env: None },
];

/// The longest time of a step: a step that waits for ever must not take the summary of the others with it.
const STEP_TIME: Duration = Duration::from_mins(40);

/// Runs every step. Succeeds if all steps do. A step that takes too long is the last one.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let mut results = Vec::new();
    for step in STEPS {
        headline(step);
        let start = Instant::now();
        let ended = step.run(root, start)?;
        let good = ended == Some(true);
        let result = StepResult { name: step.name.to_owned(), good, took: start.elapsed() };
        println!("==== {result}");
        results.push(result);
        if ended.is_none() {
            println!("==== {} was ended, and the steps after it did not run", step.name);
            break;
        }
    }
    Ok(command::verdict(command::print_results(&results)))
}

impl Step {
    /// Whether it succeeded; `None` if it took too long.
    fn run(&self, root: &Path, start: Instant) -> Result<Option<bool>, String> {
        let failed = |why: io::Error| format!("cannot run {}: {why}", self.command);
        let mut cargo = command::cargo(root);
        cargo.args(self.command.split(' ').skip(1)).envs(self.env).stdin(Stdio::null());
        let mut child = cargo.spawn().map_err(failed)?;
        while start.elapsed() < STEP_TIME {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(Some(status.success()));
            }
            thread::sleep(Duration::from_millis(100));
        }
        child.kill().map_err(failed)?;
        Ok(None)
    }
}

fn headline(step: &Step) {
    let env = step.env.map(|(name, value)| format!("{name}=\"{value}\" ")).unwrap_or_default();
    println!("\n==== {}: {env}{}", step.name, step.command);
}
