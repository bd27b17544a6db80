//! Errors of models, by what the caller can do about them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a model did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// The kind of failure.
    pub kind: ModelErrorKind,
    /// One sentence about what happened. It may quote the provider, truncated.
    pub message: String,
    /// The retry delay that the provider asks for.
    pub retry_after: Option<Duration>,
}

impl ModelError {
    /// Creates an error without a retry delay.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }

    pub(crate) fn invalid_response(message: impl Into<String>) -> Self {
        Self::new(ModelErrorKind::InvalidResponse, message)
    }

    /// Returns the stable code of its kind.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// Returns `true` if the same request may succeed later.
    #[must_use]
    pub fn retryable(&self) -> bool {
        self.kind.retryable()
    }
}

/// The kinds of failure, by what the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// The rate limit is exceeded. Wait, then retry.
    RateLimited,
    /// The provider is overloaded. Wait, then retry.
    Overloaded,
    /// The provider cannot be reached, or failed. Retry.
    Unavailable,
    /// No data arrived for too long. Retry.
    Stalled,
    /// The stream ended early or is invalid. Retry.
    InvalidResponse,
    /// The key is missing or wrong, or the account lacks a permission. Fix the configuration.
    Unauthorized,
    /// The provider rejects the request. Change the request or the model's name.
    BadRequest,
    /// The conversation exceeds the model's context. Shorten it.
    ContextTooLong,
    /// There is no recording of the request. Record it, or replay a recorded conversation.
    NoRecording,
    /// The caller cancelled the request.
    Cancelled,
}

impl ModelErrorKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::RateLimited,
        Self::Overloaded,
        Self::Unavailable,
        Self::Stalled,
        Self::InvalidResponse,
        Self::Unauthorized,
        Self::BadRequest,
        Self::ContextTooLong,
        Self::NoRecording,
        Self::Cancelled,
    ];

    /// Returns the stable code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Stalled => "stalled",
            Self::InvalidResponse => "invalid_response",
            Self::Unauthorized => "unauthorized",
            Self::BadRequest => "bad_request",
            Self::ContextTooLong => "context_too_long",
            Self::NoRecording => "no_recording",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns `true` if the same request to the same provider may succeed later.
    #[must_use]
    pub fn retryable(self) -> bool {
        match self {
            Self::RateLimited
            | Self::Overloaded
            | Self::Unavailable
            | Self::Stalled
            | Self::InvalidResponse => true,
            Self::Unauthorized
            | Self::BadRequest
            | Self::ContextTooLong
            | Self::NoRecording
            | Self::Cancelled => false,
        }
    }

    /// Returns `true` if another provider may succeed. A request that was rejected for its content is not sent to
    /// others.
    pub(crate) fn another_may(self) -> bool {
        self.retryable() || matches!(self, Self::Unauthorized | Self::ContextTooLong)
    }
}

impl fmt::Display for ModelErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}
