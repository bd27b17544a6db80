//! The programs that this runtime may run: those of its own folder, and those permitted by its creator. A
//! definition is a row, and permission to register an agent does not include permission to run programs on the
//! runtime's machine.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use crate::definition::AgentDefinition;

/// The permitted pairs of agent and configuration since the runtime started. Old configurations stay permitted,
/// because an active run keeps its revision when a file changes.
#[derive(Debug, Default)]
pub(crate) struct TrustedPrograms(Mutex<HashSet<(String, String)>>);

impl TrustedPrograms {
    /// Permits the programs of a definition and its inline subagents.
    pub(crate) fn learn(&self, definition: &AgentDefinition) {
        let all = definition.with_inline();
        let programs = all.iter().filter_map(|it| program(&it.name, it));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(programs);
    }

    /// Whether the runtime may drive a run of an agent.
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
