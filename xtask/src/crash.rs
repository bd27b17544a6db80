//! `cargo xtask crash`: the power fails at every step of the disk, and every call of it fails.
//!
//! `cargo xtask test` runs a share of it on a budget of seconds. What a failing case prints repeats it.

use std::path::Path;
use std::process::{ExitCode, Stdio};

/// What it takes.
pub(crate) const TAKES: &str =
    "[--all | --stride N | a case]   every case, every Nth (60), or the one that a failure names";

/// Runs it; the verdict is the simulator's.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    simulator(root, "crash", words)
}

/// Runs a verb of the simulator.
pub(crate) fn simulator(root: &Path, verb: &str, words: &[String]) -> Result<ExitCode, String> {
    let mut cargo = crate::cargo(root);
    cargo.args(["run", "--quiet", "--package", "abide-sim", "--", verb]).args(words);
    let status = cargo.stdin(Stdio::null()).status();
    let status = status.map_err(|why| format!("cannot start cargo: {why}"))?;
    Ok(crate::verdict(status.success()))
}
