//! The interface of middleware in Rust, and the registry of its implementations.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use abide_definitions::agent::AgentDefinition;
use abide_definitions::error::DefinitionError;
use abide_definitions::middleware::{CustomMiddleware, Middleware};
use abide_models::{ModelRequest, ModelResponse};
use abide_tools::{ToolContext, ToolOutcome};
use serde_json::{Map, Value};

/// Middleware in Rust. Definitions name it in `middleware`, and [`Catalog::middleware`](crate::Catalog::middleware)
/// registers it.
///
/// Each function returns an error, a sentence, to deny. It must depend on its arguments alone: after a crash it is called again
/// with the same ones. It must not block.
pub trait AgentMiddleware: Send + Sync {
    /// Checks the settings of a definition. Without this function, there are none.
    ///
    /// # Errors
    /// The error in them, with the known settings.
    fn check(&self, settings: &Map<String, Value>) -> Result<(), String> {
        match settings.keys().next() {
            Some(name) => Err(format!("unknown setting `{name}`: it has no settings")),
            None => Ok(()),
        }
    }

    /// Called before a model is asked; it can change the request. The rows stay as they are.
    ///
    /// # Errors
    /// The model is not asked, and the sentence is the answer.
    fn before_model(
        &self,
        _context: &MiddlewareContext<'_>,
        _request: &mut ModelRequest,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Called with a complete answer, before anything of it is recorded; it can change text, reasoning and calls. A summary of
    /// older messages is an answer whose text is JSON.
    ///
    /// # Errors
    /// The sentence replaces the answer, and its calls do not run. The original is kept in `withheld_answers`. A summary is
    /// replaced by one that is made without a model.
    fn after_model(
        &self,
        _context: &MiddlewareContext<'_>,
        _answer: &mut ModelResponse,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Returns `true` if it has [`AgentMiddleware::after_model`]. If so, no part of an answer leaves before it is
    /// complete; otherwise that function is not called.
    fn holds_answers(&self) -> bool {
        true
    }

    /// Called before a call is recorded; it can change the arguments.
    ///
    /// # Errors
    /// The call does not run, and the sentence is its result.
    fn before_tool(
        &self,
        _context: &MiddlewareContext<'_>,
        _tool: &str,
        _arguments: &mut Value,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Called with the outcome of a call that this runtime has run, before it is recorded; it can change the outcome.
    ///
    /// # Errors
    /// The sentence replaces the result, as an error.
    fn after_tool(
        &self,
        _context: &MiddlewareContext<'_>,
        _tool: &str,
        _outcome: &mut ToolOutcome,
    ) -> Result<(), String> {
        Ok(())
    }
}

/// The facts about the run for middleware.
#[derive(Clone, Debug)]
pub struct MiddlewareContext<'a> {
    /// The settings in the definition.
    pub settings: &'a Map<String, Value>,
    /// Agent, session, run, thread, scope and metadata, as tools receive them.
    pub context: &'a ToolContext,
}

/// The middleware in Rust, by name.
#[derive(Clone, Default)]
pub(crate) struct RegisteredMiddleware(BTreeMap<String, Arc<dyn AgentMiddleware>>);

impl fmt::Debug for RegisteredMiddleware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl RegisteredMiddleware {
    pub(crate) fn add(&mut self, name: String, middleware: Arc<dyn AgentMiddleware>) {
        self.0.insert(name, middleware);
    }

    pub(crate) fn get(&self, name: &str) -> Option<&dyn AgentMiddleware> {
        self.0.get(name).map(|middleware| &**middleware)
    }

    /// Returns the names that definitions can use.
    pub(crate) fn names(&self) -> Vec<String> {
        let built_in = Middleware::names().into_iter().map(str::to_owned);
        built_in.chain(self.0.keys().cloned()).collect()
    }

    /// Checks that the own middleware of a definition and of its inline agents exists and accepts its settings.
    pub(crate) fn check(&self, definition: &AgentDefinition) -> Result<(), DefinitionError> {
        let mut all = definition.with_inline().into_iter();
        all.try_for_each(|agent| self.check_entries(agent.middleware.iter()))
    }

    /// Checks that middleware exists and accepts its settings.
    pub(crate) fn check_entries<'a>(
        &self,
        mut entries: impl Iterator<Item = &'a Middleware>,
    ) -> Result<(), DefinitionError> {
        entries.try_for_each(|entry| {
            let Middleware::Custom(CustomMiddleware { name, settings }) = entry else {
                return Ok(());
            };
            let Some(found) = self.0.get(name) else {
                let name = name.clone();
                let known = self.names();
                return Err(DefinitionError::Middleware { name, known });
            };
            let accepted = found.check(settings);
            accepted.map_err(|why| DefinitionError::Config {
                code: "contradiction",
                why: format!("middleware {name}: {why}"),
                subject: name.clone(),
            })
        })
    }
}
