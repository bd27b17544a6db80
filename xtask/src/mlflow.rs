//! `cargo xtask mlflow`: prompts of a real MLflow server, from PyPI, in the definitions of agents. Its environment takes about
//! a gigabyte in the target folder.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::command;

/// The version that the adapter is tested with.
const MLFLOW: &str = "mlflow==3.17.2";

/// Installs and starts the server, and compares what agents get of it.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let target = command::target(root);
    let folder = target.join("mlflow");
    fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let python = command::virtual_environment(&folder.join("venv"))?.join("python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", MLFLOW]);
    command::succeed(&mut install, "pip install")?;
    let mut build = command::cargo(root);
    build.args(["build", "--quiet", "--workspace", "--bin", "abide"]);
    command::succeed(&mut build, "cargo build")?;
    let mut tests = Command::new(&python);
    tests.arg(root.join("tests/clients/mlflow_prompts.py"));
    tests.env("ABIDE_BINARY", target.join("debug/abide"));
    let status = tests.status().map_err(|why| format!("cannot run the test: {why}"))?;
    Ok(command::exit_code(status.success()))
}
