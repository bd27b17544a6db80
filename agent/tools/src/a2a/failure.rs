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

/// The codes of JSON-RPC with which an agent refuses a request before it acts on it: invalid JSON, an invalid request, an unknown method
/// and invalid parameters.
const INVALID_REQUEST: [i64; 4] = [-32700, -32600, -32601, -32602];

/// The codes of A2A. Each refuses a request; code -32006, an invalid answer of the agent itself, is not one of them.
const REFUSALS: [i64; 8] = [-32001, -32002, -32003, -32004, -32005, -32007, -32008, -32009];

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

    /// Returns `true` if another attempt may succeed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, A2aFailure::Unreachable(_) | A2aFailure::Lost(_))
    }

    /// Returns `true` if the agent may have acted on the request. An error with a code that refuses nothing, such as an
    /// internal one, says that the agent has failed, and not when.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        match self {
            A2aFailure::Lost(_) | A2aFailure::Unreadable(_) => true,
            A2aFailure::Refused { code, .. } => {
                !INVALID_REQUEST.contains(code) && !REFUSALS.contains(code)
            }
            A2aFailure::Unreachable(_) | A2aFailure::Invalid(_) => false,
        }
    }

    /// Returns `true` if the agent does not have the operation, or not for the state of the task.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, A2aFailure::Refused { code, .. } if UNSUPPORTED.contains(code))
    }

    /// Returns `true` if there is nothing to cancel: the task has ended, or the agent does not know it.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        let ended = [TASK_NOT_FOUND, TASK_NOT_CANCELABLE];
        matches!(self, A2aFailure::Refused { code, .. } if ended.contains(code))
    }
}
