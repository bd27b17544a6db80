//! The settings of a definition about environment variables: those that a program inherits, and those that secrets are
//! read from.

use std::collections::BTreeMap;

use abide_sandbox::Environment;
use serde::{Deserialize, Serialize};

use crate::config::ConfigError;

/// The variables that programs inherit by default: enough to find programs, a home directory and a locale, and no
/// secrets.
pub const INHERITED: [&str; 12] = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP", "LANG", "LC_ALL",
    "LC_CTYPE",
];

/// The variables that a program inherits: `allowlist` (the default), `all`, `none`, or a list of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "inherit_env is allowlist, all, none, or a list of names")]
pub enum Inherit {
    /// A preset.
    Preset(Preset),
    /// Exactly these names.
    These(Vec<String>),
}

impl Inherit {
    /// Returns the environment of a program: the inherited variables of `environment`, then the configured ones.
    ///
    /// # Errors
    /// A setting refers to a variable that is not set.
    pub(crate) fn variables(
        &self,
        tool: &str,
        environment: &Environment,
        configured: &BTreeMap<String, Setting>,
    ) -> Result<BTreeMap<String, String>, ConfigError> {
        let mut variables: BTreeMap<String, String> = environment
            .iter()
            .filter(|(name, _)| self.inherits(name))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        for (name, setting) in configured {
            variables.insert(name.clone(), setting.value(tool, environment)?);
        }
        Ok(variables)
    }

    fn inherits(&self, name: &str) -> bool {
        match self {
            Inherit::Preset(Preset::All) => true,
            Inherit::Preset(Preset::None) => false,
            Inherit::Preset(Preset::Allowlist) => INHERITED.contains(&name),
            Inherit::These(names) => names.iter().any(|inherited| inherited == name),
        }
    }
}

impl Default for Inherit {
    fn default() -> Inherit {
        Inherit::Preset(Preset::Allowlist)
    }
}

/// The presets of [`Inherit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// [`INHERITED`].
    Allowlist,
    /// All variables, including secrets.
    All,
    /// No variables.
    None,
}

/// A value in a definition: a literal, or the name of the environment variable that has the value, so that
/// definitions contain no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a value is a string, or {env: NAME, prefix: STRING}")]
pub enum Setting {
    /// A literal.
    Literal(String),
    /// `{env: NAME}`, with an optional prefix, such as `prefix: "Bearer "`.
    Named(Named),
}

/// The value of an environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// The variable.
    pub env: String,
    /// The text before the value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
}

impl Setting {
    /// # Errors
    /// The variable is not set, or empty.
    pub(crate) fn value(&self, tool: &str, from: &Environment) -> Result<String, ConfigError> {
        match self {
            Setting::Literal(value) => Ok(value.clone()),
            Setting::Named(Named { env, prefix }) => {
                let value = from.value(env).filter(|value| !value.is_empty()).ok_or_else(|| {
                    ConfigError::new(tool, format!("the environment variable {env} is not set"))
                })?;
                Ok(format!("{prefix}{value}"))
            }
        }
    }

    /// Returns whether the value comes from a variable.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self, Setting::Named(_))
    }
}
