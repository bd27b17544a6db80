//! Why an operation of A2A failed, and whether it may have had an effect.

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum A2aFailure {
    /// The agent did not get the request. It may be sent again.
    #[error("{0}")]
    Unreachable(String),
    /// The request was sent, and no complete answer arrived. It may have had an effect.
    #[error("{0}")]
    Lost(String),
    /// The request was answered, and the answer cannot be read: of a proxy, or not of JSON-RPC. It may have had an effect.
    #[error("{0}")]
    Unreadable(String),
    /// The agent answered with an error of JSON-RPC.
    #[error("{host} refused: {message} ({code})")]
    Refused {
        /// The agent's host.
        host: String,
        /// The code of JSON-RPC or A2A.
        code: i64,
        /// The agent's reason.
        message: String,
    },
    /// The configuration or the card is invalid, or the agent breaks a limit. Another attempt does not help.
    #[error("{0}")]
    Invalid(String),
}

/// The codes of A2A and JSON-RPC for operations that an agent does not have.
const UNSUPPORTED: [i64; 2] = [-32004, -32601];

/// The code for a task that the agent does not know.
const TASK_NOT_FOUND: i64 = -32001;

/// The code for a task that has ended.
const TASK_NOT_CANCELABLE: i64 = -32002;

impl A2aFailure {
    /// For an operation that the agent's version of the protocol does not have.
    pub(super) fn unsupported(host: String) -> A2aFailure {
        let message = "A2A 0.3 does not have the operation".to_owned();
        A2aFailure::Refused { host, code: UNSUPPORTED[1], message }
    }

    /// Whether another attempt may succeed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, A2aFailure::Unreachable(_) | A2aFailure::Lost(_))
    }

    /// Whether the agent does not have the operation, or not for the state of the task.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, A2aFailure::Refused { code, .. } if UNSUPPORTED.contains(code))
    }

    /// Whether there is nothing to cancel: the task has ended, or the agent does not know it.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        let ended = [TASK_NOT_FOUND, TASK_NOT_CANCELABLE];
        matches!(self, A2aFailure::Refused { code, .. } if ended.contains(code))
    }
}
