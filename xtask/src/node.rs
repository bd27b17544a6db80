//! What tests need of Node: the MCP servers that `agent/tools/tests/node/package.json` names, installed by npm as the
//! lock file beside it says. Where there is no npm, the tests that need them say what they leave out; where nothing may
//! be left out (`cargo xtask ci`), that is an error.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Set where tests that need Node may not be left out. They read it too.
pub(crate) const NEEDED: &str = "ABIDE_TESTS_NEED_NODE";

const FOLDER: &str = "agent/tools/tests/node";

/// Installs what is not installed yet.
pub(crate) fn install(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    if is_installed(&folder) {
        return Ok(());
    }
    println!("running   npm ci in {FOLDER}: the MCP servers that tests speak to");
    let mut npm = Command::new("npm");
    npm.arg("ci").current_dir(&folder).stdin(Stdio::null());
    let why = match npm.status() {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => format!("npm ci failed: {status}"),
        Err(why) => format!("npm cannot be run: {why}"),
    };
    if env::var_os(NEEDED).is_some() {
        return Err(format!("{why}; install Node 20 or newer with npm"));
    }
    println!("          {why}: tests that need its servers will say that they are left out");
    Ok(())
}

/// Whether npm has installed what the lock file says: it leaves a copy of it, written after the lock file was.
fn is_installed(folder: &Path) -> bool {
    let written = |path: &str| fs::metadata(folder.join(path)).and_then(|file| file.modified());
    match (written("package-lock.json"), written("node_modules/.package-lock.json")) {
        (Ok(lock), Ok(installed)) => lock <= installed,
        _ => false,
    }
}
