//! `cargo xtask ci`: the checks that must pass before a change lands, from a fresh clone.
//!
//! The steps are the commands that a developer would type, including the two of the README. All steps run even if
//! one fails, so that one run shows all problems. Together they take less than 30 minutes on two cores. Seeded bugs and
//! the fuzzer, which need builds of their own, are in `cargo xtask proofs`; inputs that the fuzzer has found are tests.

use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Instant;

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
        // Tests that need Node must not be left out.
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
    Step { name: "sim", command: "cargo xtask sim --seeds 100", env: None },
    Step { name: "soak", command: "cargo xtask soak --seconds 30", env: None },
    Step { name: "overload", command: "cargo xtask overload --share", env: None },
    Step { name: "recovery", command: "cargo xtask recovery --share", env: None },
];

/// Runs every step. Succeeds if all steps do.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let mut results = Vec::new();
    for step in STEPS {
        headline(step);
        let start = Instant::now();
        let good = step.run(root)?;
        let result = StepResult { name: step.name.to_owned(), good, took: start.elapsed() };
        println!("==== {result}");
        results.push(result);
    }
    Ok(command::verdict(command::print_results(&results)))
}

impl Step {
    fn run(&self, root: &Path) -> Result<bool, String> {
        let mut cargo = command::cargo(root);
        cargo.args(self.command.split(' ').skip(1)).envs(self.env).stdin(Stdio::null());
        let status = cargo.status().map_err(|why| format!("cannot run {}: {why}", self.command))?;
        Ok(status.success())
    }
}

fn headline(step: &Step) {
    let env = step.env.map(|(name, value)| format!("{name}=\"{value}\" ")).unwrap_or_default();
    println!("\n==== {}: {env}{}", step.name, step.command);
}
