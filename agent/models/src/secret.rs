//! A key that is never printed.

use std::fmt;

use serde::Deserialize;

/// Minimum length of a key that is removed from texts. Keys of local servers, such as `none` and `EMPTY`, are words
/// that texts have for other reasons.
const STRUCK_BYTES_MIN: usize = 12;

/// A key. Its `Debug` output does not contain it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// Returns the key itself, for a request header.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Returns `true` if the key is long enough to be removed from texts.
    pub(crate) fn is_struck(&self) -> bool {
        self.0.len() >= STRUCK_BYTES_MIN
    }

    /// Removes the key from a text, in case a provider repeats it, unless it is too short.
    pub(crate) fn strike_from(&self, text: &str) -> String {
        if self.is_struck() { text.replace(&self.0, "[key]") } else { text.to_owned() }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[key]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the key `k` of a local server was cut out of every word, `none` out of every sentence.
    #[test]
    fn short_keys_are_not_removed_from_texts() {
        for key in ["", "k", "none", "sk-45678901"] {
            let text = format!("no worker of {key} is free, none at all");
            assert_eq!(Secret::new(key).strike_from(&text), text);
        }
        let key = Secret::new("sk-456789012");
        assert_eq!(key.strike_from("wrong key sk-456789012"), "wrong key [key]");
    }
}
