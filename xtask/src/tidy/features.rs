//! Rule: no dependency enables a feature that changes our output. Features are unified over the whole graph, so any
//! crate could enable one.

use cargo_metadata::Metadata;

use super::finding::Finding;

/// A package, its feature, and why it must not be enabled.
const FORBIDDEN: [(&str, &str, &str); 2] = [
    (
        "serde_json",
        "preserve_order",
        "objects would keep the order of their input, but the log's hashes are computed from \
         sorted ones",
    ),
    (
        "serde_json",
        "arbitrary_precision",
        "numbers would keep the digits of their input, but the log's hashes are computed from \
         canonical ones",
    ),
];

/// A package and its enabled features.
pub(crate) type Built = (String, Vec<String>);

/// All packages and their enabled features.
pub(crate) fn built(metadata: &Metadata) -> Vec<Built> {
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    nodes
        .map(|node| {
            let features = node.features.iter().map(ToString::to_string).collect();
            (metadata[&node.id].name.to_string(), features)
        })
        .collect()
}

pub(crate) fn check(built: &[Built]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (package, feature, why) in FORBIDDEN {
        let is_on =
            |(name, features): &&Built| name == package && features.iter().any(|on| on == feature);
        if built.iter().any(|it| is_on(&it)) {
            let what = format!("a dependency enables {feature} (cargo tree -e features): {why}");
            findings.push(Finding::new(package, what));
        }
    }
    findings
}
