//! The command lines of the documentation, run as they are written, each page on a new file.
//!
//! A page's `sh` blocks are one shell session, from the top to the bottom. The server runs where the page has a line
//! that starts one; lines that would not end are left out.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::program::{Process, program};

/// The commands of a page.
fn commands(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let text = fs::read_to_string(path).unwrap();
    let blocks = text.split("\n```sh\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    blocks.collect::<Vec<_>>().join("\n")
}

/// Runs a page's commands in a folder where `abide` is the program and `abide.db` a new file.
#[track_caller]
fn check(page: &str, least: usize) {
    let folder = tempfile::tempdir().unwrap();
    let commands = commands(page);
    assert!(commands.lines().count() >= least, "the examples of {page} were found: {commands}");
    // Without --db the examples talk to a server; here the file is used directly.
    let wrapper = folder.path().join("abide");
    let script = format!("#!/bin/sh\nexec {} \"$@\" --db abide.db\n", program().display());
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o700)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-exc", &format!("abide init\n{commands}")]).current_dir(folder.path());
    shell.env("PATH", path).env_remove("ABIDE_URL").env_remove("ABIDE_TOKEN");
    let ended = Process::spawn(&mut shell).ended();
    assert_eq!(ended.code, Some(0), "{page}: {}\n{}", ended.stdout, ended.stderr);
}

#[test]
fn policies() {
    check("policies.md", 5);
}

#[test]
fn authority() {
    check("authority.md", 3);
}
