//! `cargo xtask tidy`: the style rules as a check.
//!
//! Each rule is one file with a pure function from its input to findings. This file collects the input (the list of
//! files from git, the dependency graph from cargo) and prints the findings. The rules also run as a test, so `cargo
//! test --workspace` covers them. What rustc, clippy, rustfmt, cargo-deny and lychee can check is configured there.

mod dependencies;
mod log_events;
mod named_files;
mod opening;
mod packages;
mod places;
mod sleeps;
mod sockets;
mod source;
mod tools;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use cargo_metadata::{Metadata, MetadataCommand};

use crate::package;

pub(crate) use source::{File, Source};
pub(crate) use tools::check_links;

/// A violation of a rule, and its location.
#[derive(Debug)]
pub(crate) struct Finding {
    place: String,
    what: String,
}

impl Finding {
    fn new(place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self { place: place.to_string(), what: what.to_string() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// The result of the rules.
struct Report {
    /// A summary of the checked input.
    checked: String,
    findings: Vec<Finding>,
}

/// Checks the rules, then dependencies, links, alerts and files for containers by their tools. Prints all findings.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let Report { checked, findings } = check(root)?;
    findings.iter().for_each(|finding| println!("{finding}"));
    println!("tidy: {checked}, {} findings", findings.len());
    let mut pages = list_files(root)?;
    pages.retain(|path| path.ends_with(".md"));
    let dependencies_are_good = tools::check_dependencies(root)?;
    let links_are_good = check_links(root, &pages)?;
    let alerts_are_good = tools::check_alerts(root)?;
    let containers_are_good = tools::check_containers(root)?;
    let is_tidy = findings.is_empty()
        && dependencies_are_good
        && links_are_good
        && alerts_are_good
        && containers_are_good;
    Ok(crate::command::exit_code(is_tidy))
}

/// Checks the rules.
fn check(root: &Path) -> Result<Report, String> {
    let paths = list_files(root)?;
    let files = read_files(root, &paths)?;
    let sources: Vec<Source> =
        files.iter().filter(|f| f.path.ends_with(".rs")).map(Source::parse).collect();
    let metadata = metadata(root)?;

    let mut findings = Vec::new();
    for file in &files {
        findings.extend(named_files::check(file, &paths));
        findings.extend(places::check(file));
        findings.extend(sleeps::check_script(file));
        findings.extend(sockets::check_page(file));
    }
    let mut events = log_events::LogEvents::new();
    for source in &sources {
        findings.extend(log_events::collect(source, &mut events));
        findings.extend(opening::check(source));
        findings.extend(sleeps::check(source));
        findings.extend(sockets::check(source));
    }
    findings.extend(files.iter().flat_map(|file| log_events::check_page(file, &events)));
    findings.extend(dependencies::check(&dependencies::edges(&metadata)));
    let version = package::workspace_version(&metadata)?;
    findings.extend(packages::check(&files, &version, &package::distribution_name(&metadata)?));

    let sources = sources.len();
    let packages = metadata.packages.len();
    let checked = format!("{} files, {sources} of them Rust, {packages} packages", files.len());
    Ok(Report { checked, findings })
}

/// Returns every file that is or would be committed, relative to the root.
pub(crate) fn list_files(root: &Path) -> Result<Vec<String>, String> {
    let git = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"])
        .current_dir(root)
        .output()
        .map_err(|why| format!("cannot run git to list the files: {why}"))?;
    if !git.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&git.stderr).trim()));
    }
    let list = String::from_utf8(git.stdout).map_err(|_| "a file name is not UTF-8".to_owned())?;
    Ok(list
        .split('\0')
        .filter(|path| !path.is_empty() && root.join(path).is_file())
        .map(str::to_owned)
        .collect())
}

/// Reads the text files.
pub(crate) fn read_files(root: &Path, paths: &[String]) -> Result<Vec<File>, String> {
    let mut files = Vec::new();
    for path in paths {
        let bytes = fs::read(root.join(path)).map_err(|why| format!("{path}: {why}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(File { path: path.clone(), text });
        }
    }
    Ok(files)
}

fn metadata(root: &Path) -> Result<Metadata, String> {
    MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .other_options(["--locked".to_owned()])
        .exec()
        .map_err(|why| format!("cargo metadata: {why}"))
}
