//! `cargo xtask crash`, `sim` and `bugs`: the proofs of `tests/sim/`, as far as one likes; `interleave`:
//! those of the engine's locks.
//!
//! `cargo xtask test` runs a share of them on a budget of seconds. What fails prints the command that
//! repeats it. In release, which runs several times as many seeds a second; the mistakes are looked for in
//! debug, where few seeds are enough.

use std::path::Path;
use std::process::{ExitCode, Stdio};

/// What `crash` takes.
pub(crate) const CRASH_TAKES: &str =
    "[--all | --stride N | a case]   every case, every Nth (60), or the one that a failure names";

/// What `sim` takes.
pub(crate) const SIM_TAKES: &str =
    "[--seeds N | --seed N [--tell]]   the first N seeds (200), each twice, or that one";

/// The power fails at every step, and every call of the disk.
pub(crate) fn crash(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    simulator(root, &["--release"], "crash", words)
}

/// Everybody at once, by a seed.
pub(crate) fn sim(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    simulator(root, &["--release"], "sim", words)
}

/// Mistakes are made on purpose, and must be found.
pub(crate) fn bugs(root: &Path) -> Result<ExitCode, String> {
    simulator(root, &["--features", "seeded-bugs"], "bugs", &[])
}

/// What threads share, in many orders.
pub(crate) fn interleave(root: &Path) -> Result<ExitCode, String> {
    let mut cargo = crate::cargo(root);
    cargo.args(["test", "--quiet", "--package", "abide-engine", "--features", "interleavings"]);
    let status = cargo.args(["--lib", "interleavings"]).stdin(Stdio::null()).status();
    let status = status.map_err(|why| format!("cannot start cargo: {why}"))?;
    Ok(crate::verdict(status.success()))
}

fn simulator(
    root: &Path,
    build: &[&str],
    verb: &str,
    words: &[String],
) -> Result<ExitCode, String> {
    let mut cargo = crate::cargo(root);
    cargo.args(["run", "--quiet", "--package", "abide-sim"]).args(build).args(["--", verb]);
    let status = cargo.args(words).stdin(Stdio::null()).status();
    let status = status.map_err(|why| format!("cannot start cargo: {why}"))?;
    Ok(crate::verdict(status.success()))
}
