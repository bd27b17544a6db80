//! Why a definition is refused.

use abide_tools::ToolsError;

/// Maximum length of a name, in characters.
pub(crate) const NAME_CHARS: usize = 100;

/// Why a definition is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// Unknown field, or a value of the wrong type.
    #[error("{0}")]
    Malformed(String),
    /// Invalid name.
    #[error("invalid agent name {0:?}: letters, digits, . _ and -, at most {NAME_CHARS}")]
    Name(String),
    /// A prompt, an instruction file or a skill cannot be read.
    #[error("{what} cannot be read: {why}")]
    Missing {
        /// The text that is missing.
        what: String,
        /// The reason.
        why: String,
    },
    /// Unknown or duplicate tool names.
    #[error("{0}")]
    Tools(#[from] ToolsError),
    /// It delegates to itself, directly or through other agents.
    #[error("delegation cycle: {0}")]
    Cycle(String),
    /// Two parts of it contradict each other.
    #[error("{0}")]
    Contradiction(String),
}

impl DefinitionError {
    /// A stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            DefinitionError::Malformed(_) => "malformed_definition",
            DefinitionError::Name(_) => "bad_agent_name",
            DefinitionError::Missing { .. } => "missing_text",
            DefinitionError::Tools(error) => error.code(),
            DefinitionError::Cycle(_) => "delegation_cycle",
            DefinitionError::Contradiction(_) => "contradiction",
        }
    }
}
