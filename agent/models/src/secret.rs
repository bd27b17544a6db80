//! A key that is never printed.

use std::fmt;

use serde::Deserialize;

/// A key. Its `Debug` output does not contain it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key itself, for a request header.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Removes the key from a text, in case a provider repeats it.
    pub(crate) fn strike_from(&self, text: &str) -> String {
        if self.0.is_empty() { text.to_owned() } else { text.replace(&self.0, "[key]") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[key]")
    }
}
