//! The MCP servers that tests need from Node: those of `agent/tools/tests/node/package.json`, installed by npm from
//! its lock file. Without npm, the tests that need them report that they are skipped. If nothing may be skipped
//! (`cargo xtask ci`), that is an error.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use crate::command;

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
    if env::var_os(command::NEED_ALL).is_some() {
        return Err(format!("{why}; install Node 20 or newer with npm"));
    }
    println!("          {why}: tests that need its servers are skipped");
    Ok(())
}

/// Returns `true` if the installation matches the lock file: npm stores a copy of it, which is newer.
fn is_installed(folder: &Path) -> bool {
    let lock = modified(&folder.join("package-lock.json"));
    let installed = modified(&folder.join("node_modules/.package-lock.json"));
    lock.is_some() && lock <= installed
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}
