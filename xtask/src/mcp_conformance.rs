//! `cargo xtask mcp-conformance`: the conformance suite of MCP (`tests/mcp_conformance/`) against the MCP server and the MCP
//! client, for each version of the protocol, and the command line of MCP Inspector. The server is one with the fixtures of the suite; its
//! tasks are those of `abide serve`. Exactly those scenarios fail that `expected-<version>.yml` names, with the reason.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
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
    command::succeed(&mut install, "npm ci (it needs Node 20 or newer with npm)")?;
    // With the features of the tests, so that nothing is built twice.
    let mut build = command::cargo(root);
    build.args(["build", "--workspace", "--bin", "abide", "--example", "mcp_conformance"]);
    build.args(["--example", "mcp_conformance_client"]);
    command::succeed(&mut build, "cargo build")?;
    // The suite and the inspector need a newer Node than the SDKs.
    let own = folder.join("node_modules/node/bin");
    let search = env::var_os("PATH").unwrap_or_default();
    let paths = [own].into_iter().chain(env::split_paths(&search));
    let paths = env::join_paths(paths).map_err(|why| why.to_string())?;
    let target = command::target(root);
    let fixtures = Server::start(&mut Command::new(target.join("debug/examples/mcp_conformance")))?;
    let database = target.join("mcp_conformance/database");
    // A run that was killed leaves the file and those beside it.
    let _ = std::fs::remove_dir_all(&database);
    std::fs::create_dir_all(&database).map_err(|why| format!("{}: {why}", database.display()))?;
    let file = database.join("tasks.db");
    let mut abide = Command::new(target.join("debug/abide"));
    abide.args(["serve", "--json", "--listen", "127.0.0.1:0", "--db"]).arg(&file);
    let abide = Server::start(abide.arg("--agents").arg(folder.join("agents")))?;
    let mut both = Command::new("node");
    both.args(["fixtures.mjs", &fixtures.address, &abide.address]);
    let server = Server::start(both.current_dir(&folder).env("PATH", &paths))?;
    let mut results = Vec::new();
    let suite = Suite { root, folder: &folder, paths: &paths };
    for version in VERSIONS {
        let subject = ["server".as_ref(), "--url".as_ref(), server.address.as_ref()];
        results.push(suite.run(&subject, version, version)?);
    }
    let client = target.join("debug/examples/mcp_conformance_client");
    for version in VERSIONS {
        let subject = ["client".as_ref(), "--command".as_ref(), client.as_os_str()];
        results.push(suite.run(&subject, version, &format!("client-{version}"))?);
    }
    let started = Instant::now();
    let mut inspector = Command::new("node");
    inspector.args(["--test", "--test-force-exit", "inspector.test.mjs"]).env("PATH", &paths);
    let FinishedProgram { good, .. } = run_and_print(inspector.current_dir(&folder))?;
    results.push(StepResult { name: "MCP Inspector".to_owned(), good, took: started.elapsed() });
    Ok(command::exit_code(command::print_results(&results)))
}

/// The suite of MCP.
struct Suite<'a> {
    root: &'a Path,
    folder: &'a Path,
    paths: &'a OsStr,
}

impl Suite<'_> {
    /// Runs the scenarios of a version against a subject: `server` or `client`, and how to reach it. The results are in a
    /// folder of this name.
    fn run(&self, subject: &[&OsStr], version: &str, results: &str) -> Result<StepResult, String> {
        let started = Instant::now();
        let kind = subject[0].to_string_lossy();
        let mut suite = Command::new(self.folder.join("node_modules/.bin/conformance"));
        suite.args(subject).args(["--requirements", version]);
        suite.args(["--expected-failures", &format!("expected-{version}.yml"), "-o"]);
        suite.arg(command::target(self.root).join("mcp_conformance").join(results));
        let FinishedProgram { good, output } =
            run_and_print(suite.current_dir(self.folder).env("PATH", self.paths))?;
        println!(
            "figure  scenarios of MCP {version} that the {kind} passes: {}",
            count_passed(&output)
        );
        Ok(StepResult { name: format!("{kind}, {version}"), good, took: started.elapsed() })
    }
}

/// A program that has ended.
struct FinishedProgram {
    good: bool,
    output: String,
}

/// Runs a program, and prints its output.
fn run_and_print(program: &mut Command) -> Result<FinishedProgram, String> {
    let mut child = program
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|why| format!("cannot run the suite: {why}"))?;
    let mut output = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut output).map_err(|why| why.to_string())?;
    }
    print!("{output}");
    let status = child.wait().map_err(|why| why.to_string())?;
    Ok(FinishedProgram { good: status.success(), output })
}

/// Returns the number of scenarios that passed, required or not.
fn count_passed(output: &str) -> usize {
    output.lines().filter(|line| line.starts_with("✓ ")).count()
}

/// A server, until it is dropped.
struct Server {
    child: Child,
    /// The line that it prints when it listens.
    address: String,
}

impl Server {
    fn start(program: &mut Command) -> Result<Server, String> {
        let child = program.stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|why| format!("cannot run {program:?}: {why}"))?;
        let mut address = String::new();
        if let Some(stdout) = child.stdout.take() {
            let read = BufReader::new(stdout).read_line(&mut address);
            read.map_err(|why| format!("the server printed no address: {why}"))?;
        }
        Ok(Server { child, address: address.trim().to_owned() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
