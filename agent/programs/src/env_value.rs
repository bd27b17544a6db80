//! The value of an environment variable in a configuration.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The value of a variable: a literal, or the name of a variable of this process, so that a configuration has no secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a value is a string, or {env: NAME, prefix: STRING}")]
pub enum EnvValue {
    /// A literal.
    Literal(String),
    /// `{env: NAME}`, with an optional prefix.
    Named(NamedValue),
    /// A secret that the caller of the library has resolved. It is never serialized.
    #[serde(skip)]
    Secret {
        /// The text before the value.
        prefix: String,
        /// The value.
        value: String,
    },
}

/// The value of a variable of this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedValue {
    /// The variable.
    pub env: String,
    /// The text before the value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
}

impl From<String> for EnvValue {
    fn from(value: String) -> EnvValue {
        EnvValue::Literal(value)
    }
}

/// Only the name of a variable is shown, because values may be keys.
impl fmt::Debug for EnvValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnvValue::Named(named) => named.fmt(f),
            EnvValue::Literal(_) | EnvValue::Secret { .. } => f.write_str("[redacted]"),
        }
    }
}

impl EnvValue {
    /// Returns a name as its value among these variables.
    ///
    /// # Errors
    /// The variable is not set, or empty.
    pub fn resolved(self, get: impl FnOnce(&str) -> Option<String>) -> Result<EnvValue, String> {
        match self {
            EnvValue::Named(NamedValue { env, prefix }) => {
                let value = get(&env).filter(|value| !value.is_empty());
                let value =
                    value.ok_or_else(|| format!("the environment variable {env} is not set"))?;
                Ok(EnvValue::Secret { prefix, value })
            }
            value => Ok(value),
        }
    }
}
