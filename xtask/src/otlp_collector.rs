//! `cargo xtask otlp-collector`: traces of runs sent to a real collector of OpenTelemetry (`tests/clients/otlp_collector.py`),
//! which must have decoded every span. The collector is Rotel, because its package contains the program.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::command;

/// The package with the collector.
const COLLECTOR: &str = "rotel==0.0.1a15";

/// Runs the collector and an agent; fails if a span is missing.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let target = command::target(root);
    let python = command::virtual_environment(&target.join("otlp_collector"))?.join("python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", COLLECTOR]);
    command::succeed(&mut install, "pip install")?;
    let mut build = command::cargo(root);
    build.args(["build", "--quiet", "--workspace", "--bin", "abide"]);
    command::succeed(&mut build, "cargo build")?;
    let mut test = Command::new(&python);
    test.arg(root.join("tests/clients/otlp_collector.py"));
    test.env("ABIDE_BINARY", target.join("debug/abide"));
    let status = test.status().map_err(|why| format!("cannot run the test: {why}"))?;
    Ok(command::exit_code(status.success()))
}
