//! Rule: the dependencies between crates have one direction.

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, Metadata};

use super::Finding;

/// A dependency of one of our crates on another.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) optional: bool,
}

/// The crates that a crate may depend on. A `?` means: only as an optional dependency.
struct CrateRule {
    name: &'static str,
    may_see: &'static [&'static str],
}

const CRATES: [CrateRule; 25] = [
    CrateRule { name: "abide-macros", may_see: &[] },
    CrateRule { name: "abide-json-integers", may_see: &[] },
    CrateRule { name: "abide-schema", may_see: &["abide-macros", "abide-json-integers"] },
    CrateRule { name: "abide-json-schema", may_see: &[] },
    CrateRule { name: "abide-log", may_see: &["abide-schema"] },
    CrateRule { name: "abide-live", may_see: &["abide-schema"] },
    // The store writes the log's events, with the log's encoding and hash chain.
    CrateRule { name: "abide-store", may_see: &["abide-schema", "abide-log"] },
    CrateRule {
        name: "abide-engine",
        may_see: &["abide-schema", "abide-log", "abide-live", "abide-store"],
    },
    CrateRule { name: "abide-reducers", may_see: &["abide-schema", "abide-json-schema"] },
    CrateRule { name: "abide-programs", may_see: &["abide-json-integers"] },
    CrateRule {
        name: "abide-client",
        may_see: &["abide-schema", "abide-engine?", "abide-reducers"],
    },
    CrateRule {
        name: "abide-agent",
        may_see: &[
            "abide-client",
            "abide-definitions",
            "abide-json-integers",
            "abide-models",
            "abide-programs",
            "abide-tools",
        ],
    },
    CrateRule {
        name: "abide-definitions",
        may_see: &["abide-client", "abide-models", "abide-programs", "abide-tools", "abide-yaml"],
    },
    CrateRule {
        name: "abide-tools",
        may_see: &[
            "abide-client",
            "abide-json-integers",
            "abide-json-schema",
            "abide-sandbox",
            "abide-sse",
        ],
    },
    CrateRule { name: "abide-sandbox", may_see: &[] },
    CrateRule { name: "abide-sse", may_see: &[] },
    CrateRule {
        name: "abide-models",
        may_see: &["abide-json-integers", "abide-sse", "abide-yaml"],
    },
    CrateRule { name: "abide-yaml", may_see: &[] },
    CrateRule { name: "abide-server", may_see: &["abide-schema", "abide-engine"] },
    CrateRule {
        name: "abide-protocols",
        may_see: &["abide-schema", "abide-engine", "abide-server"],
    },
    CrateRule {
        name: "abide",
        may_see: &[
            "abide-schema",
            "abide-store",
            "abide-engine",
            "abide-reducers",
            "abide-client",
            "abide-server",
            "abide-protocols",
            "abide-agent",
            "abide-models",
            "abide-sse",
            "abide-tools",
        ],
    },
    // Without the reducers: the tests of the reducers use this crate.
    CrateRule { name: "abide-tests", may_see: &["abide-schema", "abide-store", "abide-engine"] },
    CrateRule { name: "abide-sim", may_see: EVERYTHING },
    CrateRule { name: "abide-bench", may_see: EVERYTHING },
    CrateRule { name: "xtask", may_see: &[] },
];

const EVERYTHING: &[&str] = &[
    "abide-schema",
    "abide-json-integers",
    "abide-json-schema",
    "abide-log",
    "abide-live",
    "abide-store",
    "abide-engine",
    "abide-reducers",
    "abide-client",
    "abide-tools",
    "abide-models",
    "abide-server",
    "abide-protocols",
    "abide-programs",
    "abide-definitions",
    "abide-agent",
    "abide",
];

/// Test crates that use the simulator's data.
const PROOFS: [CrateRule; 2] = [
    CrateRule { name: "abide-stress", may_see: TESTS },
    CrateRule { name: "abide-fuzz", may_see: TESTS },
];

/// The crates that those may depend on.
const TESTS: &[&str] = &[
    "abide-schema",
    "abide-store",
    "abide-engine",
    "abide-reducers",
    "abide-client",
    "abide-server",
    "abide-protocols",
    "abide-sim",
];

/// The database library. Of the shipped crates, only the store may depend on it.
const SQLITE: [&str; 2] = ["rusqlite", "libsqlite3-sys"];
const KNOW_SQLITE: [&str; 5] =
    ["abide-store", "abide-bench", "abide-sim", "abide-stress", "abide-tests"];

/// Returns the normal and build dependencies of our crates, for all platforms. Tests may use any crate, so dev-dependencies
/// are not checked.
pub(crate) fn edges(metadata: &Metadata) -> Vec<Edge> {
    let packages = metadata.workspace_packages().into_iter();
    let edges = packages.flat_map(|package| {
        let built = package.dependencies.iter().filter(|to| to.kind != DependencyKind::Development);
        built.map(|to| Edge {
            from: package.name.to_string(),
            to: to.name.clone(),
            optional: to.optional,
        })
    });
    edges.collect()
}

/// Returns the crates that are not in the table, and the dependencies that the table does not permit.
pub(crate) fn check(edges: &[Edge]) -> Vec<Finding> {
    let from: BTreeSet<&str> = edges.iter().map(|edge| edge.from.as_str()).collect();
    let unlisted = from.into_iter().filter(|name| crate_rule(name).is_none());
    let mut findings: Vec<Finding> = unlisted
        .map(|name| Finding::new(name, "is not in the table of xtask/src/tidy/dependencies.rs"))
        .collect();
    findings.extend(edges.iter().filter_map(|edge| {
        let what = refusal(edge)?;
        Some(Finding::new(&edge.from, what))
    }));
    findings
}

fn crate_rule(name: &str) -> Option<&'static CrateRule> {
    CRATES.iter().chain(&PROOFS).find(|crate_rule| crate_rule.name == name)
}

/// Returns why a dependency is not permitted, if so.
fn refusal(edge: &Edge) -> Option<String> {
    let to = edge.to.as_str();
    if SQLITE.contains(&to) && !KNOW_SQLITE.contains(&edge.from.as_str()) {
        return Some(format!("depends on {to}: only abide-store may use it"));
    }
    let from = crate_rule(&edge.from)?;
    // A crate of a registry has no rule.
    crate_rule(to)?;
    if from.may_see.contains(&to) {
        return None;
    }
    let optionally = from.may_see.iter().any(|may| may.strip_suffix('?') == Some(to));
    match (optionally, edge.optional) {
        (true, true) => None,
        (true, false) => Some(format!("depends on {to}, which must be optional")),
        (false, _) => Some(format!("depends on {to}, which is the wrong direction")),
    }
}
