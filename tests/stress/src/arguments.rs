//! The command line: flags with an optional number.

use std::collections::BTreeMap;

use crate::{CheckResult, USAGE};

/// See the [module](self).
pub(crate) struct Arguments(BTreeMap<String, Option<u64>>);

impl Arguments {
    /// Parses the arguments.
    pub(crate) fn read(words: &[String]) -> CheckResult<Arguments> {
        let mut read = BTreeMap::new();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            let name = word
                .strip_prefix("--")
                .ok_or_else(|| format!("unknown argument {word}\n{USAGE}"))?;
            let value = words.next_if(|next| !next.starts_with("--"));
            let value =
                value.map(|text| text.parse().map_err(|_| format!("--{name} takes a number")));
            read.insert(name.to_owned(), value.transpose()?);
        }
        Ok(Arguments(read))
    }

    /// Whether a flag was given.
    pub(crate) fn has(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// The number of a flag.
    pub(crate) fn number(&mut self, name: &str) -> CheckResult<Option<u64>> {
        match self.0.remove(name) {
            Some(None) => Err(format!("--{name} takes a number")),
            given => Ok(given.flatten()),
        }
    }

    /// Refuses unknown flags.
    pub(crate) fn end(self) -> CheckResult {
        match self.0.into_keys().next() {
            Some(name) => Err(format!("unknown flag --{name}\n{USAGE}")),
            None => Ok(()),
        }
    }
}
