//! Parsers in Rust by name, for configurations that name one. Each run gets a new parser from its factory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::config::CliConfig;
use crate::parser::{Parser, ParserChoice};

type Factory = dyn Fn() -> Box<dyn Parser> + Send + Sync;

/// Registered parsers.
#[derive(Clone, Default)]
pub struct Parsers(BTreeMap<String, Arc<Factory>>);

impl fmt::Debug for Parsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Parsers {
    /// Adds a parser, which the factory makes for each run. A parser of the same name is replaced.
    pub fn add<P: Parser + 'static>(
        &mut self,
        name: impl Into<String>,
        factory: impl Fn() -> P + Send + Sync + 'static,
    ) {
        self.0.insert(name.into(), Arc::new(move || Box::new(factory())));
    }

    /// Returns the registered names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns a new parser for a configuration that names one; `None` if it names none, or an unknown one.
    #[must_use]
    pub fn parser(&self, config: &CliConfig) -> Option<Box<dyn Parser>> {
        match &config.parser {
            Some(ParserChoice::Named(name)) => self.0.get(name).map(|factory| factory()),
            _ => None,
        }
    }
}
