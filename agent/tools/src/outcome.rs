//! The outcome of a call. It is complete; shortening for the model is done elsewhere.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// The complete result. Its structure depends on the kind of tool.
    pub content: Value,
    /// The complete result as text for the model.
    pub text: String,
    /// Whether the call failed.
    pub is_error: bool,
    /// A program's exit code, or 128 plus the signal number. For other tools 0 or 1.
    pub exit_code: i32,
    /// The kind of failure, if the call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// The kinds of failure, by what the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The tool ran and reported a failure.
    Tool,
    /// The agent may not call the tool, or it does not exist. It did not run.
    Denied,
    /// The arguments are invalid. The tool did not run.
    Arguments,
    /// A server or program that the tool needs is unavailable. The tool did not run, so the call can be retried.
    Unavailable,
    /// The timeout expired. Whether the call had an effect is unknown.
    TimedOut,
    /// The call was cancelled. Whether it had an effect is unknown.
    Cancelled,
    /// The tool's process or server crashed, or broke the protocol. Whether the call had an effect is unknown.
    Lost,
    /// The tool's code panicked. Whether the call had an effect is unknown.
    Panicked,
    /// The result exceeds the maximum size. The tool ran.
    TooLarge,
    /// The call was put back: it waits for input, or for a task of its server. It has no outcome yet.
    Suspended,
}

impl Failure {
    /// Returns a stable error code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Failure::Tool => "tool",
            Failure::Denied => "denied",
            Failure::Arguments => "arguments",
            Failure::Unavailable => "unavailable",
            Failure::TimedOut => "timed_out",
            Failure::Cancelled => "cancelled",
            Failure::Lost => "lost",
            Failure::Panicked => "panicked",
            Failure::TooLarge => "too_large",
            Failure::Suspended => "suspended",
        }
    }

    /// Returns `true` if the tool certainly had no effect.
    #[must_use]
    pub fn did_nothing(self) -> bool {
        matches!(self, Failure::Denied | Failure::Arguments | Failure::Unavailable)
    }

    /// Returns `true` if it is unknown if the tool had an effect. If so, a tool that must run at most once must not run
    /// again.
    #[must_use]
    pub fn leaves_open(self) -> bool {
        matches!(self, Failure::TimedOut | Failure::Cancelled | Failure::Lost | Failure::Panicked)
    }
}

impl ToolOutcome {
    /// Returns a successful result with text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> ToolOutcome {
        let text = text.into();
        let content = Value::String(text.clone());
        ToolOutcome { content, text, is_error: false, exit_code: 0, failure: None }
    }

    /// Returns a successful result with JSON. A model sees a string as it is, and other values as JSON.
    #[must_use]
    pub fn json(content: Value) -> ToolOutcome {
        let text = match &content {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        ToolOutcome { content, text, is_error: false, exit_code: 0, failure: None }
    }

    /// Returns a failed call, with one sentence for the model.
    #[must_use]
    pub fn failed(failure: Failure, text: impl Into<String>) -> ToolOutcome {
        let text = text.into();
        let content = json!({ "error": { "code": failure.code(), "message": text } });
        ToolOutcome { content, text, is_error: true, exit_code: 1, failure: Some(failure) }
    }
}
