//! `cargo xtask overload`, `soak`, `deploys`, `recovery` and `rows`: tests of the program as a real process, by `tests/stress/`. They
//! run in release, because the shipped program is measured.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// The arguments of `overload`.
pub(crate) const OVERLOAD_TAKES: &str = "[--share]   ten thousand connections, or a share for CI";

/// The arguments of `soak`.
pub(crate) const SOAK_TAKES: &str =
    "[--minutes N | --seconds N] [--seed S] [--clients N]   10 minutes, seed 1, 50 clients";

/// The arguments of `deploys`.
pub(crate) const DEPLOYS_TAKES: &str = "[--share] [--rounds N] [--seconds N] [--seed S]   \
    5 stops, tools of up to 20 s, seed 1; or a share for CI";

/// The arguments of `recovery`.
pub(crate) const RECOVERY_TAKES: &str = "[--share]   up to 1,000,000 events, or a share for CI";

/// The arguments of `rows`.
pub(crate) const ROWS_TAKES: &str = "[--share]   a million events, or a share for CI";

/// Overloads a server.
pub(crate) fn overload(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    run_stress(root, "overload", words, None)
}

/// Runs clients while the server, the network and the disk fail.
pub(crate) fn soak(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    run_stress(root, "soak", words, None)
}

/// Stops a server while its tools and the workers of all SDKs run.
pub(crate) fn deploys(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let search = crate::sdk::prepare(root)?;
    run_stress(root, "deploys", words, Some(&search))
}

/// Measures the restart time.
pub(crate) fn recovery(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    run_stress(root, "recovery", words, None)
}

/// Changes one cell among many rows.
pub(crate) fn rows(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    run_stress(root, "rows", words, None)
}

/// Runs a command of the program, with another search path if it needs one.
fn run_stress(
    root: &Path,
    verb: &str,
    words: &[String],
    search: Option<&str>,
) -> Result<ExitCode, String> {
    let mut build = crate::command::cargo(root);
    build.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "abide",
        "--package",
        "abide-stress",
    ]);
    let built = build.stdin(Stdio::null()).status();
    if !built.map_err(|why| format!("cannot start cargo: {why}"))?.success() {
        return Ok(crate::command::exit_code(false));
    }
    let program = crate::command::target(root).join("release/abide-stress");
    let mut stress = Command::new(&program);
    stress.arg(verb).args(words).current_dir(root).stdin(Stdio::null());
    stress.envs(search.map(|search| ("PATH", search)));
    let status = stress.status();
    let status = status.map_err(|why| format!("cannot start {}: {why}", program.display()))?;
    Ok(crate::command::exit_code(status.success()))
}
