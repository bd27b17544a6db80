//! `cargo xtask tidy`: the style rules as a check.
//!
//! Each rule is one file with a pure function from its input to findings. This file collects the input (the list of
//! files from git, the dependency graph from cargo) and prints the findings. It also runs as a test, so `cargo test
//! --workspace` covers it. Rules that rustc, clippy and rustfmt can check are configured there.

mod cycles;
mod dependencies;
mod features;
mod finding;
mod licences;
mod links;
mod opening;
mod places;
mod root;
mod scripts;
mod sockets;
mod source;
mod words;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use cargo_metadata::{Metadata, MetadataCommand};

use finding::Finding;
use source::{File, Source};

/// Prints the findings.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let (checked, findings) = check(root)?;
    findings.iter().for_each(|finding| println!("{finding}"));
    println!("tidy: {checked}, {} findings", findings.len());
    Ok(crate::command::exit_code(findings.is_empty()))
}

/// A summary of the checked input, and the findings.
fn check(root: &Path) -> Result<(String, Vec<Finding>), String> {
    let paths = paths(root)?;
    let files = read(root, &paths)?;
    let sources: Vec<Source> =
        files.iter().filter(|f| f.path.ends_with(".rs")).map(Source::parse).collect();
    let metadata = metadata(root)?;

    let mut findings = root::check(&paths);
    findings.extend(links::check(&files, &paths));
    findings.extend(files.iter().flat_map(scripts::check));
    findings.extend(files.iter().flat_map(places::check));
    findings.extend(files.iter().flat_map(sockets::check_page));
    for source in &sources {
        findings.extend(opening::check(source));
        findings.extend(words::check(source));
        findings.extend(sockets::check(source));
    }
    findings.extend(cycles::check(&sources));
    findings.extend(dependencies::check(&dependencies::edges(&metadata)));
    let packages = metadata.packages.iter().map(|package| package.name.as_str());
    findings.extend(dependencies::check_packages(packages));
    findings.extend(features::check(&features::built(&metadata)));
    findings.extend(licences::check(&metadata));

    let sources = sources.len();
    let packages = metadata.packages.len();
    let checked = format!("{} files, {sources} of them Rust, {packages} packages", files.len());
    Ok((checked, findings))
}

/// The errors in the links between the pages.
pub(crate) fn links_of_pages(root: &Path) -> Result<Vec<Finding>, String> {
    let paths = paths(root)?;
    Ok(links::check(&read(root, &paths)?, &paths))
}

/// Every file that is or would be committed, relative to the root.
fn paths(root: &Path) -> Result<Vec<String>, String> {
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

/// The text files.
fn read(root: &Path, paths: &[String]) -> Result<Vec<File>, String> {
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
