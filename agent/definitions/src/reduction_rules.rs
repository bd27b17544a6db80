//! Which results, and arguments of calls, a summary replaces by markers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The replacement of a covered text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// The text itself, as long as its message is shown.
    KeepFull,
    /// A marker and the outline of the text: the keys and short values of JSON, or the beginning and the end.
    KeepStructured,
    /// A marker.
    #[default]
    SummarizeArchive,
    /// A marker. The request for the summary does not have the text either.
    Drop,
}

/// Rules by the name of the tool, or by a prefix of it (`files_*`, `*`). The name counts first, then the longest prefix.
/// Without a rule it is [`Reduction::SummarizeArchive`].
pub type ReductionRules = BTreeMap<String, Reduction>;

/// Returns the rule for a tool.
pub fn rule_for(rules: &ReductionRules, tool: &str) -> Reduction {
    let prefixes = rules.iter().filter_map(|(name, rule)| Some((name.strip_suffix('*')?, *rule)));
    rules
        .get(tool)
        .copied()
        .or_else(|| {
            let matching = prefixes.filter(|(prefix, _)| tool.starts_with(prefix));
            matching.max_by_key(|(prefix, _)| prefix.len()).map(|(_, rule)| rule)
        })
        .unwrap_or_default()
}

/// Checks that rules can be applied.
///
/// # Errors
/// The end of a sentence about a setting: a name that is neither that of a tool nor a prefix.
pub fn check(rules: &ReductionRules) -> Result<(), String> {
    let is_wrong =
        |name: &&String| name.is_empty() || name.strip_suffix('*').unwrap_or(name).contains('*');
    match rules.keys().find(is_wrong) {
        Some(name) => {
            Err(format!("has {name:?}, which is neither a tool name nor a prefix such as files_*"))
        }
        None => Ok(()),
    }
}
