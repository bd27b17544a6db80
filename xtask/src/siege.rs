//! `cargo xtask overload`, `soak` and `recovery`: the program as a real process, by `tests/siege/`. In release, as it is
//! shipped: what is measured is the program and not its debug build.

use std::path::Path;
use std::process::{ExitCode, Stdio};

/// What `overload` takes.
pub(crate) const OVERLOAD_TAKES: &str =
    "[--share]   ten thousand connections, or what CI has time for";

/// What `soak` takes.
pub(crate) const SOAK_TAKES: &str =
    "[--minutes N | --seconds N] [--seed S] [--clients N]   10 minutes, seed 1, 50 clients";

/// What `recovery` takes.
pub(crate) const RECOVERY_TAKES: &str =
    "[--share]   up to 1,000,000 events, or what CI has time for";

/// Too much of everything.
pub(crate) fn overload(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    besiege(root, "overload", words)
}

/// Everybody at once, while everything fails.
pub(crate) fn soak(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    besiege(root, "soak", words)
}

/// How long it takes to come back.
pub(crate) fn recovery(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    besiege(root, "recovery", words)
}

fn besiege(root: &Path, verb: &str, words: &[String]) -> Result<ExitCode, String> {
    let mut build = crate::cargo(root);
    build.args(["build", "--quiet", "--release", "--package", "abide"]).stdin(Stdio::null());
    let built = build.status().map_err(|why| format!("cannot start cargo: {why}"))?;
    if !built.success() {
        return Ok(crate::verdict(false));
    }
    let mut cargo = crate::cargo(root);
    cargo.args(["run", "--quiet", "--release", "--package", "abide-siege", "--", verb]);
    let status = cargo.args(words).stdin(Stdio::null()).status();
    let status = status.map_err(|why| format!("cannot start cargo: {why}"))?;
    Ok(crate::verdict(status.success()))
}
