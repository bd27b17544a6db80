//! What can go wrong, split by what the caller can do about it.

use std::time::Duration;

use abide_schema::{Code, Refusal};

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The rules said no, and nothing was written. [`Refusal::code`] is what programs branch on.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The address is none that this client can talk to.
    #[error("{url:?} is no address of a server: {why}")]
    Address {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// Nobody answers at the address. Nothing was sent.
    #[error("{url} cannot be reached: {why}")]
    Unreachable {
        /// The address.
        url: String,
        /// The system's words.
        why: String,
    },
    /// No answer within the deadline. Whether the call took effect is not known.
    #[error("{what} was not answered within {} s{}", waited.as_secs(), because(.why.as_deref()))]
    TimedOut {
        /// What was asked.
        what: String,
        /// The deadline that passed.
        waited: Duration,
        /// The request id of the call: asking again with it has at most one effect.
        request_id: Option<String>,
        /// Why it took so long, where that is known.
        why: Option<String>,
    },
    /// Something does not have the shape that was asked for: a result, a row, or what was to be sent.
    #[error("{what}: {why}")]
    Decode {
        /// What was read or written.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The server says what `abide.v1` does not.
    #[error("the server speaks another language: {why}")]
    Protocol {
        /// What it said.
        why: String,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

impl Error {
    /// After how long the same can be asked again, where it was the caller's own pace or quota that said
    /// no.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Refused(refusal) => refusal.retry_after_ms.map(Duration::from_millis),
            _ => None,
        }
    }

    /// What to do about it, where that can be said.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Refused(refusal) => refusal.hint.as_deref(),
            Error::Address { .. } => Some("an address looks like http://127.0.0.1:7341"),
            Error::Unreachable { .. } => Some("is it running? abide serve starts one"),
            Error::TimedOut { request_id: Some(_), .. } => {
                Some("ask again with the same request id: it has at most one effect")
            }
            Error::TimedOut { .. } => Some("ask again, or give it a longer deadline"),
            Error::Decode { .. } => Some("compare the type with what GET /v1/schema tells"),
            Error::Protocol { .. } => Some("use a client and a server of the same version"),
            Error::Closed => None,
        }
    }

    /// The stable code, where the rules said no.
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

fn because(why: Option<&str>) -> String {
    why.map(|why| format!(" ({why})")).unwrap_or_default()
}
