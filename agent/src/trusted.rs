//! Programs that may be run: those that this runtime's own folder names, or whoever made it. A definition is a row, and
//! who may register an agent need not be who may run programs on the machine that drives it.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use crate::definition::{AgentDefinition, Subagent};

/// The agents that are programs, with how each is called, as they were said since the runtime began: a run under way
/// goes on with what its revision says when a file changes.
#[derive(Debug, Default)]
pub(crate) struct Trusted(Mutex<HashSet<(String, String)>>);

impl Trusted {
    /// Lets run what a definition says, and those in it.
    pub(crate) fn learn(&self, definition: &AgentDefinition) {
        if let Some(program) = program(&definition.name, definition) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(program);
        }
        for subagent in &definition.subagents {
            if let Subagent::Inline(inline) = subagent {
                self.learn(inline);
            }
        }
    }

    /// Whether a run of an agent may be driven.
    pub(crate) fn allows(&self, agent: &str, definition: &AgentDefinition) -> bool {
        program(agent, definition).is_none_or(|program| {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&program)
        })
    }
}

fn program(agent: &str, definition: &AgentDefinition) -> Option<(String, String)> {
    let cli = definition.cli.as_ref()?;
    Some((agent.to_owned(), json!(cli).to_string()))
}
