//! `cargo xtask mcp-conformance`: the conformance suite of MCP (`tests/mcp_conformance/`) against the MCP server, for each
//! version of the protocol. All required scenarios must pass. Those of extensions and drafts run, and are not counted.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use crate::command::{self, StepResult};

const FOLDER: &str = "tests/mcp_conformance";

/// Sets of requirements of the suite.
const VERSIONS: [&str; 2] = ["2026-07-28", "2025-11-25"];

/// Runs the suite; fails if a required scenario fails.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let folder = root.join(FOLDER);
    let mut install = Command::new("npm");
    install.args(["ci", "--silent"]).current_dir(&folder);
    succeed(&mut install, "npm ci (it needs Node 20 or newer with npm)")?;
    let mut build = command::cargo(root);
    build.args(["build", "-p", "abide-server", "--example", "mcp_conformance"]);
    succeed(&mut build, "cargo build")?;
    let server = Server::start(&command::target(root))?;
    let mut results = Vec::new();
    for version in VERSIONS {
        let started = Instant::now();
        let mut suite = Command::new(folder.join("node_modules/.bin/conformance"));
        // The suite needs a newer Node than the SDKs.
        let own = folder.join("node_modules/node/bin");
        let search = env::var_os("PATH").unwrap_or_default();
        let paths = [own].into_iter().chain(env::split_paths(&search));
        suite.env("PATH", env::join_paths(paths).map_err(|why| why.to_string())?);
        suite.args(["server", "--url", &server.url, "--requirements", version]).arg("-o");
        suite.arg(command::target(root).join("mcp_conformance").join(version));
        let status = suite.current_dir(&folder).status();
        let good = status.map_err(|why| format!("cannot run the suite: {why}"))?.success();
        let name = format!("server, {version}");
        results.push(StepResult { name, good, took: started.elapsed() });
    }
    Ok(command::verdict(command::print_results(&results)))
}

fn succeed(program: &mut Command, name: &str) -> Result<(), String> {
    let status = program.status().map_err(|why| format!("cannot run {name}: {why}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed: {status}")) }
}

/// The server with the fixtures of the suite, until it is dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(target: &Path) -> Result<Server, String> {
        let program: PathBuf = target.join("debug/examples/mcp_conformance");
        let child = Command::new(&program).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|why| format!("cannot run {}: {why}", program.display()))?;
        let mut url = String::new();
        if let Some(stdout) = child.stdout.take() {
            let read = BufReader::new(stdout).read_line(&mut url);
            read.map_err(|why| format!("the server printed no address: {why}"))?;
        }
        Ok(Server { child, url: url.trim().to_owned() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
