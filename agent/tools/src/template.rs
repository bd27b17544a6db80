//! Text with `{placeholders}` for a call's arguments. `{{` and `}}` are literal braces.
//!
//! Escaping is up to the caller, because it depends on the context of the text.

#[cfg(test)]
mod tests;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};

/// Text with placeholders.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Place(String),
}

impl Template {
    /// # Errors
    /// A brace has no partner.
    pub(crate) fn parse(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '{' | '}' if chars.next_if_eq(&c).is_some() => plain.push(c),
                '{' => {
                    let name: String =
                        std::iter::from_fn(|| chars.next_if(|c| *c != '}' && *c != '{')).collect();
                    if chars.next() != Some('}') || name.is_empty() {
                        return Err(format!(
                            "{text:?} has a {{ without a name: write {{{{ for a literal brace"
                        ));
                    }
                    if !plain.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(Part::Place(name));
                }
                '}' => {
                    return Err(format!(
                        "{text:?} has an unmatched }}: write }}}} for a literal brace"
                    ));
                }
                other => plain.push(other),
            }
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Template { parts })
    }

    /// The placeholder names, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Place(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// The name, if the text consists of one placeholder.
    pub(crate) fn only_place(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Place(name)] => Some(name),
            _ => None,
        }
    }

    /// Whether the text begins with a placeholder.
    pub(crate) fn begins_with_place(&self) -> bool {
        matches!(self.parts.first(), Some(Part::Place(_)))
    }

    /// Fills the placeholders; absent arguments become empty.
    pub(crate) fn fill_loosely(&self, arguments: &Map<String, Value>) -> String {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Place(name) => arguments.get(name).and_then(as_text).unwrap_or_default(),
        });
        parts.collect()
    }

    /// Fills the placeholders.
    ///
    /// # Errors
    /// The name of an absent argument.
    pub(crate) fn fill(
        &self,
        arguments: &Map<String, Value>,
        escape: impl Fn(&str) -> String,
    ) -> Result<String, String> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Place(name) => {
                    let value =
                        arguments.get(name).and_then(as_text).ok_or_else(|| name.clone())?;
                    filled.push_str(&escape(&value));
                }
            }
        }
        Ok(filled)
    }
}

/// An argument as text: strings unchanged, lists and objects as JSON. Null counts as absent.
pub(crate) fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// The bytes that a URL part escapes: all but the unreserved characters of RFC 3986.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a value, so that it stays within its path segment or query part.
pub(crate) fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}
