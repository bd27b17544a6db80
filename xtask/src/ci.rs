//! `cargo xtask ci`: the checks that must pass before a change lands, from a fresh clone.
//!
//! The steps are the commands that a developer would type, including the demo. All steps run even if one fails, so that
//! one run shows all problems. The simulator with many seeds, the seeded bugs and the fuzzer, which need builds of their
//! own, are in `cargo xtask proofs`; `cargo xtask test` runs the first seeds, and inputs that the fuzzer has found.

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

/// Tests and checks whose tools are missing must not be skipped.
const NOTHING_SKIPPED: Option<(&str, &str)> = Some((command::NEED_ALL, "1"));

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
    Step { name: "tidy", command: "cargo xtask tidy", env: NOTHING_SKIPPED },
    Step { name: "test", command: "cargo xtask test", env: NOTHING_SKIPPED },
    Step { name: "frameworks", command: "cargo xtask sdk --frameworks", env: NOTHING_SKIPPED },
    Step { name: "book", command: "cargo xtask book", env: NOTHING_SKIPPED },
    Step { name: "locks", command: "cargo xtask interleave", env: None },
    Step {
        name: "release",
        // What the steps after it run.
        command: "cargo build --release --package abide --package abide-stress",
        env: None,
    },
    Step { name: "demo", command: "cargo run --release -- demo", env: None },
    Step { name: "soak", command: "cargo xtask soak --seconds 20", env: None },
    Step { name: "deploys", command: "cargo xtask deploys --share", env: None },
    Step { name: "overload", command: "cargo xtask overload --share", env: None },
    Step { name: "recovery", command: "cargo xtask recovery --share", env: None },
    Step {
        name: "package",
        command: "cargo xtask package --check --binary target/release/abide",
        env: NOTHING_SKIPPED,
    },
];

/// Runs every step. Succeeds if all steps do.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let mut results = Vec::new();
    for step in STEPS {
        let env = step.env.map(|(name, value)| format!("{name}=\"{value}\" ")).unwrap_or_default();
        println!("\n==== {}: {env}{}", step.name, step.command);
        let start = Instant::now();
        let mut cargo = command::cargo(root);
        cargo.args(step.command.split(' ').skip(1)).envs(step.env).stdin(Stdio::null());
        let status = cargo.status().map_err(|why| format!("cannot run {}: {why}", step.command))?;
        let name = step.name.to_owned();
        let result = StepResult { name, good: status.success(), took: start.elapsed() };
        println!("==== {result}");
        results.push(result);
    }
    Ok(command::exit_code(command::print_results(&results)))
}
