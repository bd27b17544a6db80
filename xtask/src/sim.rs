//! `cargo xtask crash`, `sim` and `bugs`: the proofs of `tests/sim/`, to any extent; `interleave`: the proofs of
//! the engine's locks.
//!
//! `cargo xtask test` runs a share of them within a time budget. A failure prints the command that reproduces it.
//! The proofs run in release, which runs several times as many seeds per second. The seeded bugs are tested in
//! debug, where few seeds are sufficient.

use std::path::Path;
use std::process::{ExitCode, Stdio};

/// The arguments of `crash`.
pub(crate) const CRASH_TAKES: &str =
    "[--all | --stride N | a case]   every case, every Nth (60), or the one that a failure names";

/// The arguments of `sim`.
pub(crate) const SIM_TAKES: &str =
    "[--seeds N | --seed N [--tell]]   the first N seeds (200), each twice, or that one";

/// Simulates a power failure at every step, and a failure of every disk operation.
pub(crate) fn crash(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    simulator(root, &["--release"], "crash", words)
}

/// Simulates concurrent clients, from a seed.
pub(crate) fn sim(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    simulator(root, &["--release"], "sim", words)
}

/// Checks that each of the seeded bugs is found.
pub(crate) fn bugs(root: &Path) -> Result<ExitCode, String> {
    simulator(root, &["--features", "seeded-bugs"], "bugs", &[])
}

/// Checks shared state of threads in many orders.
pub(crate) fn interleave(root: &Path) -> Result<ExitCode, String> {
    let mut cargo = crate::command::cargo(root);
    cargo.args(["test", "--quiet", "--package", "abide-engine", "--features", "interleavings"]);
    let status = cargo.args(["--lib", "interleavings"]).stdin(Stdio::null()).status();
    let status = status.map_err(|why| format!("cannot start cargo: {why}"))?;
    Ok(crate::command::exit_code(status.success()))
}

fn simulator(
    root: &Path,
    build: &[&str],
    verb: &str,
    words: &[String],
) -> Result<ExitCode, String> {
    let mut cargo = crate::command::cargo(root);
    cargo.args(["run", "--quiet", "--package", "abide-sim"]).args(build).args(["--", verb]);
    let status = cargo.args(words).stdin(Stdio::null()).status();
    let status = status.map_err(|why| format!("cannot start cargo: {why}"))?;
    Ok(crate::command::exit_code(status.success()))
}
