//! Rule: no dependency turns on a feature that changes what we write. Features are united over the whole graph,
//! so that any crate, however far away, could.

use cargo_metadata::Metadata;

use super::Finding;

/// A package, its feature, and why nobody may turn it on.
const FORBIDDEN: [(&str, &str, &str); 2] = [
    (
        "serde_json",
        "preserve_order",
        "objects would keep the order in which they were written, and the log's hashes are over \
         sorted ones",
    ),
    (
        "serde_json",
        "arbitrary_precision",
        "numbers would keep the digits in which they were written, and the log's hashes are over \
         canonical ones",
    ),
];

/// A package, and what it is built with.
pub(crate) type Built = (String, Vec<String>);

/// What everything is built with.
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
            let what =
                format!("some dependency turns on {feature} (cargo tree -e features): {why}");
            findings.push(Finding::new(package, what));
        }
    }
    findings
}
