//! Guardrails: patterns that a request or an answer must not match.

use regex::Regex;
use serde::{Deserialize, Serialize};

/// One rule of a definition's `middleware`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a middleware, such as {name: guardrail, at: request, deny: REGEX, message: TEXT}"
)]
pub struct Guardrail {
    /// The kind of middleware; only `guardrail` exists.
    pub name: GuardrailName,
    /// The text that it checks.
    pub at: GuardrailAt,
    /// A regular expression that the text must not match.
    pub deny: Pattern,
    /// The text to return instead.
    pub message: String,
}

/// The kinds of middleware. A definition that names another kind is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub enum GuardrailName {
    /// Denies by pattern.
    Guardrail,
}

impl TryFrom<String> for GuardrailName {
    type Error = String;

    fn try_from(name: String) -> Result<GuardrailName, String> {
        match name.as_str() {
            "guardrail" => Ok(GuardrailName::Guardrail),
            _ => Err(format!("unknown middleware `{name}`; available: `guardrail`")),
        }
    }
}

/// The text that a guardrail checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardrailAt {
    /// The user's last message, before the model is asked.
    Request,
    /// The model's answer, before it is accepted.
    Response,
}

/// A regular expression. An invalid one is refused with the definition.
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

/// The replacement text of the first rule that denies a text.
pub(crate) fn denied<'a>(rules: &'a [Guardrail], at: GuardrailAt, text: &str) -> Option<&'a str> {
    let rule = rules.iter().find(|rule| rule.at == at && rule.deny.0.is_match(text))?;
    Some(&rule.message)
}
