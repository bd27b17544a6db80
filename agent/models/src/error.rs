//! What can go wrong with a model, by what the caller can do about it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a model did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// What kind of failure it is.
    pub kind: ModelErrorKind,
    /// What happened, in one sentence; a provider's own words among it, cut short.
    pub message: String,
    /// How long the provider asks to be left alone.
    pub retry_after: Option<Duration>,
}

impl ModelError {
    /// An error without a wish to be left alone.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }

    pub(crate) fn broken(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::Broken, message)
    }

    /// The stable name of its kind.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// Whether the same request may fare better later.
    #[must_use]
    pub fn retryable(&self) -> bool {
        self.kind.retryable()
    }
}

/// The kinds of failure. They differ by what the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// Asked too often. Wait, then try again.
    RateLimited,
    /// The provider has too much to do. Wait, then try again.
    Overloaded,
    /// The provider cannot be reached, or failed. Try again.
    Unavailable,
    /// Nothing came for too long. Try again.
    Stalled,
    /// The stream ended early or made no sense. Try again.
    Broken,
    /// The key is missing or wrong, or the account may not do this. Mend the configuration.
    Unauthorized,
    /// The provider does not take this request. Change it, or the model's name.
    BadRequest,
    /// The conversation is longer than the model can read. Shorten it.
    ContextTooLong,
    /// There is no recording of this. Record it, or replay what was recorded.
    NoRecording,
    /// The caller gave up.
    Cancelled,
}

impl ModelErrorKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::RateLimited,
        Self::Overloaded,
        Self::Unavailable,
        Self::Stalled,
        Self::Broken,
        Self::Unauthorized,
        Self::BadRequest,
        Self::ContextTooLong,
        Self::NoRecording,
        Self::Cancelled,
    ];

    /// Its stable name.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Stalled => "stalled",
            Self::Broken => "broken",
            Self::Unauthorized => "unauthorized",
            Self::BadRequest => "bad_request",
            Self::ContextTooLong => "context_too_long",
            Self::NoRecording => "no_recording",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the same request to the same provider may fare better later.
    #[must_use]
    pub fn retryable(self) -> bool {
        match self {
            Self::RateLimited
            | Self::Overloaded
            | Self::Unavailable
            | Self::Stalled
            | Self::Broken => true,
            Self::Unauthorized
            | Self::BadRequest
            | Self::ContextTooLong
            | Self::NoRecording
            | Self::Cancelled => false,
        }
    }

    /// Whether another provider may do what this one did not. A request that is refused for what it
    /// says is not shown around.
    pub(crate) fn another_may(self) -> bool {
        self.retryable() || matches!(self, Self::Unauthorized | Self::ContextTooLong)
    }
}

impl fmt::Display for ModelErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}
