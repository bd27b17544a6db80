//! `cargo xtask verifier`: compares `abide verify` with the verifier in Python over more generated logs than in
//! `cargo xtask test` (`tests/it/verifier.rs`).

use std::path::Path;
use std::process::{ExitCode, Stdio};

/// The arguments.
pub(crate) const TAKES: &str = "[--logs N]   this many logs, valid and damaged (10,000)";

const LOGS: u64 = 10_000;

/// Runs the test. Succeeds if it does.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let logs = match words {
        [] => LOGS,
        [option, number] if option == "--logs" => {
            number.parse().map_err(|_| format!("--logs takes a number, not {number}"))?
        }
        _ => return Err(format!("the arguments are {TAKES}")),
    };
    let mut cargo = crate::command::cargo(root);
    cargo.args([
        "test",
        "--release",
        "--package",
        "abide-tests",
        "--test",
        "it",
        "--",
        "--nocapture",
    ]);
    cargo.args(["--exact", "verifier::a_verifier_in_python_agrees_about_generated_logs"]);
    cargo.env_remove("ABIDE_SEED").env("VERIFIER_LOGS", logs.to_string()).stdin(Stdio::null());
    let status = cargo.status().map_err(|why| format!("cannot start cargo: {why}"))?;
    Ok(crate::command::exit_code(status.success()))
}
