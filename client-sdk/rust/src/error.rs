//! Errors, split by what the caller can do about them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use abide_reducers::ToolCallStatus;
use abide_schema::wire::{SUBPROTOCOL, UpdateSide};
use abide_schema::{Code, Refusal, lowercase_first};

/// The reason of an [`Error`]: an error of the operating system, of a library, or a text. Clones share it.
pub type ErrorSource = Arc<dyn std::error::Error + Send + Sync>;

/// An error of the client.
///
/// It displays what failed. [`source`](std::error::Error::source) returns the reason, if it is an error of its own; the
/// alternate form `{error:#}` displays both.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The request was refused, and nothing was written. Programs branch on [`Refusal::code`].
    Refused(Refusal),
    /// A query for one row returned none.
    RowNotFound,
    /// The address is not supported by this client.
    Address {
        /// The address as given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// No server answers at the address. Nothing was sent.
    Unreachable {
        /// The address.
        url: String,
        /// The error of the connection.
        source: ErrorSource,
    },
    /// There is no encrypted connection: the certificate of the server is not accepted, the server does not accept that of
    /// the client, or it does not speak TLS. Nothing was sent.
    Tls {
        /// The address.
        url: String,
        /// What is wrong.
        why: String,
        /// How to fix it.
        hint: String,
    },
    /// Another program than a server of Abide answers at the address. Nothing was sent.
    NotAbide {
        /// The address.
        url: String,
        /// What distinguishes its answer.
        source: ErrorSource,
    },
    /// The program `abide`, which runs the engine of a shared file, cannot be started.
    EngineNotFound {
        /// The program.
        binary: String,
        /// The error of the operating system.
        source: ErrorSource,
    },
    /// The engine of a shared file speaks another protocol than this client.
    IncompatibleVersion {
        /// The protocol of the engine.
        protocol: String,
        /// The version of the engine.
        version: String,
    },
    /// No reply within the deadline. It is unknown whether the call took effect.
    TimedOut {
        /// The request.
        what: String,
        /// The deadline that passed.
        waited: Duration,
        /// The request id of the call: a retry with it has at most one effect.
        request_id: Option<String>,
        /// Why the last attempt failed, if it did.
        why: Option<String>,
    },
    /// A row or a result does not have the requested type.
    Decode {
        /// The value that was read.
        what: String,
        /// What does not fit.
        source: ErrorSource,
    },
    /// An argument or a parameter has no form in JSON.
    Encode {
        /// The value that was written.
        what: String,
        /// What does not fit.
        source: ErrorSource,
    },
    /// The server sent a message that violates `abide.v1`.
    Protocol {
        /// The violation.
        why: String,
    },
    /// A tool call may have run: its worker disappeared or could not tell, and its tool must not run twice. When its
    /// outcome is settled, the step returns the settled outcome.
    UnknownOutcome {
        /// The call.
        call_id: String,
        /// The reason that its worker reported.
        error: Option<String>,
    },
    /// A tool call has ended without a result: it failed, was rejected, or was cancelled.
    ToolFailed {
        /// The call.
        call_id: String,
        /// How it ended.
        status: ToolCallStatus,
        /// The recorded error.
        error: Option<String>,
    },
    /// The client was closed.
    Closed,
}

impl Error {
    /// Returns the stable code of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }

    /// Returns how long to wait before a retry, if the caller's own rate limit or quota refused the request.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Refused(refusal) => refusal.retry_after_ms.map(Duration::from_millis),
            _ => None,
        }
    }

    /// Returns a hint on how to fix the error, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Refused(refusal) => refusal.hint.as_deref(),
            Error::RowNotFound => Some("use `fetch_optional` if the row may be missing"),
            Error::Address { .. } => {
                Some("for example http://127.0.0.1:7341 or https://agents.example")
            }
            Error::Unreachable { .. } => {
                Some("start the server with `abide serve`, or check the address")
            }
            Error::Tls { hint, .. } => Some(hint),
            Error::NotAbide { .. } => Some(
                "check the URL: another program listens there; `abide serve --listen` names another port",
            ),
            Error::EngineNotFound { .. } => {
                Some("install it with `cargo install --path cli`, or set ABIDE_BINARY to its path")
            }
            Error::IncompatibleVersion { protocol, .. } => Some(match UpdateSide::of(protocol) {
                Some(UpdateSide::Own) => "this client is older: update its SDK",
                Some(UpdateSide::Other) => "the engine is older: update the program `abide`",
                None => "use the same version of abide in all programs that open the file",
            }),
            Error::TimedOut { request_id: Some(_), .. } => {
                Some("retry with the same request id: the call takes effect at most once")
            }
            Error::TimedOut { .. } => {
                Some("set a longer deadline; before you repeat a write, read what it has written")
            }
            Error::Decode { .. } => Some("compare the type with the columns in the schema"),
            Error::Encode { .. } => Some("pass a value that serialises to JSON"),
            Error::Protocol { .. } => Some("use a client and a server of the same version"),
            Error::UnknownOutcome { .. } => Some(
                "find out whether it ran, then record the outcome with `abide call settle_tool_call`",
            ),
            Error::ToolFailed { .. } | Error::Closed => None,
        }
    }

    pub(crate) fn decode(what: impl Into<String>, source: impl Into<BoxedError>) -> Error {
        Error::Decode { what: what.into(), source: Arc::from(source.into()) }
    }

    pub(crate) fn encode(what: impl Into<String>, source: impl Into<BoxedError>) -> Error {
        Error::Encode { what: what.into(), source: Arc::from(source.into()) }
    }

    pub(crate) fn unreachable(url: impl Into<String>, source: impl Into<BoxedError>) -> Error {
        Error::Unreachable { url: url.into(), source: Arc::from(source.into()) }
    }

    pub(crate) fn not_abide(url: impl Into<String>, source: impl Into<BoxedError>) -> Error {
        Error::NotAbide { url: url.into(), source: Arc::from(source.into()) }
    }
}

type BoxedError = Box<dyn std::error::Error + Send + Sync>;

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Refused(refusal)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(refusal) => fmt::Display::fmt(refusal, f),
            Error::RowNotFound => f.write_str("the query returned no row"),
            Error::Address { url, why } => write!(f, "{url:?} is not a valid server URL: {why}"),
            Error::Unreachable { url, .. } => write!(f, "{url} cannot be reached"),
            Error::Tls { url, why, .. } => write!(f, "no secure connection to {url}: {why}"),
            Error::NotAbide { url, .. } => write!(f, "{url} is not an Abide server"),
            Error::EngineNotFound { binary, .. } => {
                write!(f, "the engine {binary:?} cannot be started")
            }
            Error::IncompatibleVersion { protocol, version } => write!(
                f,
                "the engine of version {version} speaks {protocol}, this client of version {} \
                 speaks {SUBPROTOCOL}",
                env!("CARGO_PKG_VERSION")
            ),
            Error::TimedOut { what, waited, why, .. } => {
                write!(f, "{what} was not answered within {} s", waited.as_secs())?;
                format_bracketed(f, why.as_deref())
            }
            Error::Decode { what, .. } => write!(f, "{what} cannot be decoded"),
            Error::Encode { what, .. } => write!(f, "{what} cannot be encoded"),
            Error::Protocol { why } => write!(f, "the server violates the protocol: {why}"),
            Error::UnknownOutcome { call_id, error: Some(error) } => {
                write!(f, "it is unknown whether call {call_id} ran: {error}")
            }
            Error::UnknownOutcome { call_id, error: None } => write!(
                f,
                "the worker of call {call_id} disappeared, and its tool must not run twice"
            ),
            Error::ToolFailed { call_id, status, error } => {
                write!(f, "call {call_id} is {status}")?;
                format_bracketed(f, error.as_deref())
            }
            Error::Closed => f.write_str("the client is closed"),
        }?;
        match std::error::Error::source(self) {
            Some(source) if f.alternate() => {
                write!(f, ": {}", lowercase_first(&source.to_string()))
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Unreachable { source, .. }
            | Error::NotAbide { source, .. }
            | Error::EngineNotFound { source, .. }
            | Error::Decode { source, .. }
            | Error::Encode { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

fn format_bracketed(f: &mut fmt::Formatter<'_>, why: Option<&str>) -> fmt::Result {
    why.map_or(Ok(()), |why| write!(f, " ({why})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_displays_its_reason_in_the_alternate_form_only() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = Error::unreachable("http://a", refused);
        assert_eq!(error.to_string(), "http://a cannot be reached");
        assert_eq!(format!("{error:#}"), "http://a cannot be reached: connection refused");
        let source = std::error::Error::source(&error).expect("it has a reason");
        let source = source.downcast_ref::<std::io::Error>().expect("it is of the system");
        assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused);
        assert!(std::error::Error::source(&Error::Closed).is_none());
    }
}
