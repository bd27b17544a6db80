//! Why a runtime stops.

use abide_client::Error;

/// Why a runtime stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// A call was refused, or the connection was lost.
    #[error(transparent)]
    Abide(#[from] Error),
    /// The definition in a registered revision cannot be parsed.
    #[error("revision {revision} of agent {agent} cannot be read: {why}")]
    Definition {
        /// The agent.
        agent: String,
        /// The revision.
        revision: i64,
        /// The parse error.
        why: String,
    },
}
