//! Rule: nothing committed names a place that only one machine has: neither a folder of a
//! workplace nor a package registry that somebody here goes through.

use super::{File, Finding};

/// Folders of the machines that this is built on.
const FOLDERS: [&str; 2] = ["work", "root"];

/// Parts of a registry's host name. Which registry a client asks is the machine's business.
const HOSTS: [&str; 5] = ["crates.", "debian", "npmjs", "pypi", "pythonhosted"];

/// The source of every package in a Cargo.lock that was not made through somebody's mirror.
const LOCK_SOURCE: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

pub(crate) fn check(file: &File) -> Vec<Finding> {
    let lock = file.path.ends_with("Cargo.lock");
    let mut findings = Vec::new();
    for (at, line) in file.text.lines().enumerate() {
        let mut found = |what: &str| {
            findings.push(Finding::new(format!("{}:{}", file.path, at + 1), what));
        };
        if FOLDERS.iter().any(|folder| names_folder(line, folder)) {
            found("names a folder of one machine");
        }
        if hosts(line).any(|host| HOSTS.iter().any(|part| host.contains(part))) {
            found("names the host of a package registry");
        }
        if lock && line.starts_with("source = ") && line != LOCK_SOURCE {
            found("comes from elsewhere than the public registry");
        }
    }
    findings
}

/// Whether an absolute path begins so; `../work/` and `/v1/work/` are none of our business.
fn names_folder(line: &str, folder: &str) -> bool {
    let inside_path = |c: char| c.is_alphanumeric() || "_-.~}*".contains(c);
    line.match_indices(&format!("/{folder}/")).any(|(at, _)| !line[..at].ends_with(inside_path))
}

/// The host of every URL in the line.
fn hosts(line: &str) -> impl Iterator<Item = &str> {
    let ends = |c: char| c.is_whitespace() || "/\"'`)>]".contains(c);
    line.split("://").skip(1).map(move |rest| rest.split(ends).next().unwrap_or(rest))
}
