//! Guardrails: patterns that a request or an answer must not meet.

use regex::Regex;
use serde::{Deserialize, Serialize};

/// One rule of a definition's `middleware`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guardrail {
    /// Which it is. There is `guardrail`.
    pub name: GuardrailName,
    /// What it looks at.
    pub at: GuardrailAt,
    /// What must not be in it: a regular expression.
    pub deny: Pattern,
    /// What is said instead.
    pub message: String,
}

/// The middleware that there is: a definition that names another is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardrailName {
    /// Denies by pattern.
    Guardrail,
}

/// What a guardrail looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardrailAt {
    /// What the user said last, before the model is asked.
    Request,
    /// What the model answers, before it counts.
    Response,
}

/// A regular expression; one that is none is refused with the definition.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Pattern, String> {
        Regex::new(&text).map(Pattern).map_err(|why| why.to_string())
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.0.as_str().to_owned()
    }
}

/// What is said instead of a text that one of the rules denies.
pub(crate) fn denied<'a>(rules: &'a [Guardrail], at: GuardrailAt, text: &str) -> Option<&'a str> {
    let rule = rules.iter().find(|rule| rule.at == at && rule.deny.0.is_match(text))?;
    Some(&rule.message)
}
