//! Rule: the root has only the files that a newcomer must see.

use std::collections::BTreeSet;

use super::finding::Finding;

/// All that may stand there. A new room is a decision: it comes with a line in ARCHITECTURE.md.
const MAY_STAND: [&str; 27] = [
    ".cargo",
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "agent",
    "bench",
    "book.toml",
    "cli",
    "client-sdk",
    "clippy.toml",
    "docs",
    "engine",
    "examples",
    "reducers",
    "rustfmt.toml",
    "schema",
    "server",
    "tests",
    "xtask",
];

pub(crate) fn check(paths: &[String]) -> Vec<Finding> {
    let entries: BTreeSet<&str> =
        paths.iter().map(|path| path.split('/').next().unwrap_or(path)).collect();
    let strangers = entries.into_iter().filter(|entry| !MAY_STAND.contains(entry));
    strangers
        .map(|entry| Finding::new(entry, "is not on the list of xtask/src/tidy/root.rs"))
        .collect()
}
