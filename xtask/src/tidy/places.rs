//! Rule: committed files contain no location that exists only on one machine, such as a folder or a registry
//! mirror.

use super::Finding;
use super::source::File;

/// Folders of development machines.
const FOLDERS: [&str; 2] = ["work", "root"];

/// Parts of the host names of package registries. The registry to use is a setting of the machine.
const HOSTS: [&str; 5] = ["crates.", "debian", "npmjs", "pypi", "pythonhosted"];

pub(crate) fn check(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in file.text.lines().enumerate() {
        let place = format!("{}:{}", file.path, at + 1);
        if FOLDERS.iter().any(|folder| names_folder(line, folder)) {
            findings.push(Finding::new(&place, "names a folder of one machine"));
        }
        if hosts(line).any(|host| HOSTS.iter().any(|part| host.contains(part))) {
            findings.push(Finding::new(&place, "names the host of a package registry"));
        }
    }
    findings
}

/// Whether the line has an absolute path into the folder. `../work/` and `/v1/work/` do not count.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(&format!("/{folder}/")).any(|(at, _)| {
        let continues_path =
            line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.~}*".contains(c));
        !continues_path
    })
}

/// The hosts of all URLs in the line.
fn hosts(line: &str) -> impl Iterator<Item = &str> {
    line.split("://").skip(1).map(move |rest| {
        rest.split(|c: char| c.is_whitespace() || "/\"'`)>]".contains(c)).next().unwrap_or(rest)
    })
}
