//! A snapshot of environment variables. Their values are never sent to a model.

use std::collections::BTreeMap;
use std::{env, fmt};

/// A snapshot of variables and their values.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Returns the variables of this process, without those that are not Unicode.
    #[must_use]
    pub fn of_process() -> Environment {
        let unicode = env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        unicode.collect()
    }

    /// Returns the value of a variable.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Iterates over all variables, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
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
