//! The MCP servers that tests need from Node: those of `agent/tools/tests/node/package.json`, installed by npm from
//! its lock file. Without npm, the tests that need them report that they are skipped. If nothing may be skipped
//! (`cargo xtask ci`), that is an error.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// If this environment variable is set, nothing may be skipped for lack of Node or Python. The tests read it, too.
pub(crate) const NEEDED: &str = "ABIDE_TESTS_NEED_ALL";

const FOLDER: &str = "agent/tools/tests/node";

/// Installs the servers if necessary.
pub(crate) fn install(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    if is_installed(&folder) {
        return Ok(());
    }
    println!("running   npm ci in {FOLDER}: the MCP servers that tests use");
    let mut npm = Command::new("npm");
    npm.arg("ci").current_dir(&folder).stdin(Stdio::null());
    let why = match npm.status() {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => format!("npm ci failed: {status}"),
        Err(why) => format!("cannot run npm: {why}"),
    };
    if env::var_os(NEEDED).is_some() {
        return Err(format!("{why}; install Node 20 or newer with npm"));
    }
    println!("          {why}: tests that need its servers are skipped");
    Ok(())
}

/// Whether the installation matches the lock file: npm stores a copy of it, which is newer than the lock file.
fn is_installed(folder: &Path) -> bool {
    let written = |path: &str| fs::metadata(folder.join(path)).and_then(|file| file.modified());
    match (written("package-lock.json"), written("node_modules/.package-lock.json")) {
        (Ok(lock), Ok(installed)) => lock <= installed,
        _ => false,
    }
}
