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
    let python = folder.join("venv/bin/python");
    fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    if !python.is_file() {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(folder.join("venv"));
        command::succeed(&mut venv, "python3 -m venv (it needs Python 3.10 or newer with venv)")?;
    }
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
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
