//! A key, which nothing prints.

use std::fmt;

use serde::Deserialize;

/// A key. Its `Debug` says only that there is one.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes it out of sight.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key itself, for the header that it goes into.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// The text with the key struck out, in case a provider repeats it in what it says.
    pub(crate) fn strike_from(&self, text: &str) -> String {
        if self.0.is_empty() { text.to_owned() } else { text.replace(&self.0, "[key]") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[key]")
    }
}
