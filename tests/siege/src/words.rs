//! The command line: flags with an optional number.

use std::collections::BTreeMap;

use crate::{Told, USAGE};

/// See the [module](self).
pub(crate) struct Words(BTreeMap<String, Option<u64>>);

impl Words {
    /// Parses the arguments.
    pub(crate) fn read(words: &[String]) -> Told<Words> {
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
        Ok(Words(read))
    }

    /// Whether a flag was given.
    pub(crate) fn has(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// The number of a flag.
    pub(crate) fn number(&mut self, name: &str) -> Told<Option<u64>> {
        match self.0.remove(name) {
            Some(None) => Err(format!("--{name} takes a number")),
            given => Ok(given.flatten()),
        }
    }

    /// Refuses unknown flags.
    pub(crate) fn end(self) -> Told {
        match self.0.into_keys().next() {
            Some(name) => Err(format!("unknown flag --{name}\n{USAGE}")),
            None => Ok(()),
        }
    }
}
