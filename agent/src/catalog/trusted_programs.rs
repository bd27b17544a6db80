//! The programs that this runtime may run, and the remote agents that it may reach: those of its own folder, and those permitted by
//! its creator. A definition is a row, and permission to register an agent does not include permission to run programs on the
//! runtime's machine, or to send its credentials to an address.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use abide_definitions::agent::AgentDefinition;
use serde_json::json;

/// The permitted pairs of agent and configuration since the runtime started. Old configurations stay permitted,
/// because an active run keeps its revision when a file changes.
#[derive(Debug, Default)]
pub(crate) struct TrustedPrograms(Mutex<HashSet<(String, String)>>);

impl TrustedPrograms {
    /// Permits the programs and remote agents of a definition and its inline subagents.
    pub(crate) fn learn(&self, definition: &AgentDefinition) {
        let all = definition.with_inline();
        let programs = all.iter().filter_map(|it| program(&it.name, it));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(programs);
    }

    /// Returns `true` if a remote agent is permitted.
    pub(crate) fn has_remote_agents(&self) -> bool {
        let permitted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        permitted.iter().any(|(_, config)| config.starts_with(REMOTE))
    }

    /// Returns `true` if the runtime may drive a run of an agent.
    pub(crate) fn allows(&self, agent: &str, definition: &AgentDefinition) -> bool {
        program(agent, definition).is_none_or(|program| {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&program)
        })
    }
}

fn program(agent: &str, definition: &AgentDefinition) -> Option<(String, String)> {
    let config = match (&definition.cli, &definition.a2a) {
        (Some(cli), _) => json!(cli).to_string(),
        (None, Some(a2a)) => format!("{REMOTE}{}", json!(a2a)),
        (None, None) => return None,
    };
    Some((agent.to_owned(), config))
}

/// The prefix of the configuration of a remote agent. That of a program begins with `{`.
const REMOTE: &str = "a2a ";
