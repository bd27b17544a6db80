//! Errors, split by what the caller can do about them.

use std::time::Duration;

use abide_reducers::ToolCallStatus;
use abide_schema::wire::SUBPROTOCOL;
use abide_schema::{Code, Refusal};

/// An error of the client.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request was refused, and nothing was written. Programs branch on [`Refusal::code`].
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The address is not supported by this client.
    #[error("{url:?} is not a valid server URL: {why}")]
    Address {
        /// The address as given.
        url: String,
        /// The error in it.
        why: String,
    },
    /// No server answers at the address. Nothing was sent.
    #[error("{url} {}", reached(.why))]
    Unreachable {
        /// The address.
        url: String,
        /// The error of the operating system.
        why: String,
    },
    /// The program `abide`, which runs the engine of a shared file, cannot be started.
    #[error("the engine {binary:?} cannot be started: {why}")]
    EngineNotFound {
        /// The program.
        binary: String,
        /// The error of the operating system.
        why: String,
    },
    /// The engine of a shared file speaks another protocol than this client.
    #[error(
        "the engine of version {version} speaks {protocol}, this client of version {} speaks \
         {SUBPROTOCOL}",
        env!("CARGO_PKG_VERSION")
    )]
    IncompatibleVersion {
        /// The protocol of the engine.
        protocol: String,
        /// The version of the engine.
        version: String,
    },
    /// No reply within the deadline. It is unknown whether the call took effect.
    #[error("{what} was not answered within {} s{}", waited.as_secs(), because(.why.as_deref()))]
    TimedOut {
        /// The request.
        what: String,
        /// The deadline that passed.
        waited: Duration,
        /// The request id of the call: a retry with it has at most one effect.
        request_id: Option<String>,
        /// The cause of the delay, if known.
        why: Option<String>,
    },
    /// A result, a row or an argument does not have the requested type.
    #[error("{what}: {why}")]
    Decode {
        /// The value that was read or written.
        what: String,
        /// The error in it.
        why: String,
    },
    /// The server sent a message that violates `abide.v1`.
    #[error("the server violates the protocol: {why}")]
    Protocol {
        /// The violation.
        why: String,
    },
    /// A tool call may have run: its worker disappeared or could not tell, and its tool must not run twice. When its outcome is
    /// settled, the step returns the settled outcome.
    #[error("{}", unknown_outcome(.call_id, .error.as_deref()))]
    UnknownOutcome {
        /// The call.
        call_id: String,
        /// The reason that its worker reported.
        error: Option<String>,
    },
    /// A tool call has ended without a result: it failed, was rejected, or was cancelled.
    #[error("call {call_id} is {status}{}", because(.error.as_deref()))]
    ToolFailed {
        /// The call.
        call_id: String,
        /// How it ended.
        status: ToolCallStatus,
        /// The recorded error.
        error: Option<String>,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

impl Error {
    /// How long to wait before a retry, if the caller's own rate limit or quota refused the request.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Refused(refusal) => refusal.retry_after_ms.map(Duration::from_millis),
            _ => None,
        }
    }

    /// A hint on how to fix the error, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Refused(refusal) => refusal.hint.as_deref(),
            Error::Address { .. } => Some("for example http://127.0.0.1:7341"),
            Error::Unreachable { why, .. } if why.starts_with(NOT_ABIDE) => Some(
                "check the URL: another program listens there; `abide serve --listen` names another port",
            ),
            Error::Unreachable { .. } => {
                Some("start the server with `abide serve`, or check the address")
            }
            Error::EngineNotFound { .. } => {
                Some("install it with `cargo install --path cli`, or set ABIDE_BINARY to its path")
            }
            Error::IncompatibleVersion { .. } => {
                Some("use the same version of abide in all programs that open the file")
            }
            Error::TimedOut { request_id: Some(_), .. } => {
                Some("retry with the same request id: the call takes effect at most once")
            }
            Error::TimedOut { .. } => {
                Some("set a longer deadline; before you repeat a write, read what it has written")
            }
            Error::Decode { .. } => Some("compare the type with the columns in the schema"),
            Error::Protocol { .. } => Some("use a client and a server of the same version"),
            Error::UnknownOutcome { .. } => Some(
                "find out whether it ran, then record the outcome with `abide call settle_tool_call`",
            ),
            Error::ToolFailed { .. } | Error::Closed => None,
        }
    }

    /// The stable code of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }

    pub(crate) fn decode(what: impl Into<String>, why: &dyn std::fmt::Display) -> Error {
        Error::Decode { what: what.into(), why: why.to_string() }
    }
}

/// How the reason of [`Error::Unreachable`] begins if something answers that is not a server of Abide.
pub(crate) const NOT_ABIDE: &str = "is not an Abide server: ";

fn reached(why: &str) -> String {
    if why.starts_with(NOT_ABIDE) { why.to_owned() } else { format!("cannot be reached: {why}") }
}

fn unknown_outcome(call_id: &str, why: Option<&str>) -> String {
    match why {
        Some(why) => format!("it is unknown whether call {call_id} ran: {why}"),
        None => {
            format!("the worker of call {call_id} disappeared, and its tool must not run twice")
        }
    }
}

fn because(why: Option<&str>) -> String {
    why.map(|why| format!(" ({why})")).unwrap_or_default()
}
