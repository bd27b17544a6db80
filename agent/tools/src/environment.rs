//! Environment variables: those that a program inherits, and those that secrets are read from.
//!
//! No other module of this crate reads the process's environment. Values are never sent to a model.

use std::collections::BTreeMap;
use std::{env, fmt};

use serde::{Deserialize, Serialize};

use crate::config::ConfigError;

/// The variables that programs inherit by default: enough to find programs, a home directory and a locale, and no
/// secrets.
pub const INHERITED: [&str; 12] = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP", "LANG", "LC_ALL",
    "LC_CTYPE",
];

/// A snapshot of variables and their values.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// The variables of this process, without those that are not Unicode.
    #[must_use]
    pub fn of_process() -> Environment {
        let unicode = env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        unicode.collect()
    }

    /// The value of a variable.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// All variables, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// # Errors
    /// The variable is not set, or empty.
    pub(crate) fn get(&self, tool: &str, name: &str) -> Result<String, ConfigError> {
        let set = self.variables.get(name).filter(|value| !value.is_empty());
        set.cloned().ok_or_else(|| {
            ConfigError::new(tool, format!("the environment variable {name} is not set"))
        })
    }

    /// The environment of a program: the inherited variables, then the configured ones.
    ///
    /// # Errors
    /// A setting refers to a variable that is not set.
    pub(crate) fn for_program(
        &self,
        tool: &str,
        inherit: &Inherit,
        set: &BTreeMap<String, Setting>,
    ) -> Result<BTreeMap<String, String>, ConfigError> {
        let mut seen: BTreeMap<String, String> = self.variables.clone();
        seen.retain(|name, _| match inherit {
            Inherit::Preset(Preset::All) => true,
            Inherit::Preset(Preset::None) => false,
            Inherit::Preset(Preset::Allowlist) => INHERITED.contains(&name.as_str()),
            Inherit::These(names) => names.iter().any(|one| one == name),
        });
        for (name, setting) in set {
            seen.insert(name.clone(), setting.value(tool, self)?);
        }
        Ok(seen)
    }
}

/// Values are omitted.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Environment {
        Environment { variables: variables.into_iter().collect() }
    }
}

/// The variables that a program inherits: `allowlist` (the default), `all`, `none`, or a list of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "inherit_env is allowlist, all, none, or a list of names")]
pub enum Inherit {
    /// A preset.
    Preset(Preset),
    /// Exactly these names.
    These(Vec<String>),
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
    pub(crate) fn value(&self, tool: &str, from: &Environment) -> Result<String, ConfigError> {
        match self {
            Setting::Literal(value) => Ok(value.clone()),
            Setting::Named(Named { env, prefix }) => {
                Ok(format!("{prefix}{}", from.get(tool, env)?))
            }
        }
    }

    pub(crate) fn is_secret(&self) -> bool {
        matches!(self, Setting::Named(_))
    }
}
