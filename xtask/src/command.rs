//! Common parts of the subcommands: running cargo, the exit code, and the durations of steps.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// If this environment variable is set, nothing may be skipped because a tool is missing. The tests read it, too.
pub(crate) const NEED_ALL: &str = "ABIDE_TESTS_NEED_ALL";

/// Returns the cargo that runs this program, with the root as its working directory.
///
/// The variables that describe the package of this program are removed: the build script of `ring` depends on them, so
/// `ring` and all that uses it would be compiled again after each cargo of a shell or of a test.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_PKG_") {
            cargo.env_remove(&name);
        }
    }
    cargo.current_dir(root);
    cargo
}

/// Returns the folder of what cargo builds.
pub(crate) fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Returns exit code 0 for success, 1 for failure.
pub(crate) fn exit_code(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Creates the virtual environment of Python in a folder, unless it exists. Returns its folder of programs.
pub(crate) fn virtual_environment(folder: &Path) -> Result<PathBuf, String> {
    let bin = folder.join("bin");
    if !bin.join("python").is_file() {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(folder);
        succeed(&mut venv, "python3 -m venv (it needs Python 3.10 or newer with venv)")?;
    }
    Ok(bin)
}

/// Runs a program that must succeed.
pub(crate) fn succeed(program: &mut Command, name: &str) -> Result<(), String> {
    let status = program.status().map_err(|why| format!("cannot run {name}: {why}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed: {status}")) }
}

/// A step of a subcommand that ended.
pub(crate) struct StepResult {
    pub(crate) name: String,
    pub(crate) good: bool,
    pub(crate) took: Duration,
}

impl fmt::Display for StepResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.good { "ok" } else { "FAILED" };
        write!(f, "{word:<6} {:>7.1} s  {}", self.took.as_secs_f64(), self.name)
    }
}

/// Prints the results of all steps and their total duration. Returns whether all steps succeeded.
pub(crate) fn print_results(results: &[StepResult]) -> bool {
    let good = results.iter().all(|step| step.good);
    let took = results.iter().map(|step| step.took).sum();
    println!("\n==== all steps");
    results.iter().for_each(|step| println!("{step}"));
    println!("{}", StepResult { name: "total".to_owned(), good, took });
    good
}
