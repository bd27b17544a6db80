//! What comes of a call. It is whole: what a model is shown of it is cut elsewhere.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// All that the tool gave, never cut. What it is made of depends on the kind of tool.
    pub content: Value,
    /// The same as text, for the model; not cut either.
    pub text: String,
    /// Whether it went wrong.
    pub is_error: bool,
    /// A program's exit code, 128 and the signal's number where a signal ended it; of all other tools 0 or 1.
    pub exit_code: i32,
    /// Where it went wrong: how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// How a call went wrong, split by what may be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The tool ran and says that it failed.
    Tool,
    /// The agent may not call it, or there is no such tool. It did not run.
    Denied,
    /// The arguments do not fit. It did not run.
    Arguments,
    /// What the tool needs is not there: a server, a program. It did not run, so it may be tried again.
    Unavailable,
    /// It was not done in time. Whether it had its effect is not known.
    TimedOut,
    /// Nobody wanted the outcome any more. Whether it had its effect is not known.
    Cancelled,
    /// What ran it vanished or spoke nonsense. Whether it had its effect is not known.
    Lost,
    /// Its code panicked. Whether it had its effect is not known.
    Panicked,
    /// It gave more than is taken. It ran.
    TooLarge,
}

impl Failure {
    /// A name that does not change, for programs.
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
        }
    }

    /// Whether it is certain that the tool did nothing.
    #[must_use]
    pub fn did_nothing(self) -> bool {
        matches!(self, Failure::Denied | Failure::Arguments | Failure::Unavailable)
    }

    /// Whether nobody knows if the tool had its effect: a tool that may not run twice must not run again.
    #[must_use]
    pub fn leaves_open(self) -> bool {
        matches!(self, Failure::TimedOut | Failure::Cancelled | Failure::Lost | Failure::Panicked)
    }
}

impl ToolOutcome {
    /// A tool that answers with text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> ToolOutcome {
        let text = text.into();
        let content = Value::String(text.clone());
        ToolOutcome { content, text, is_error: false, exit_code: 0, failure: None }
    }

    /// A tool that answers with any JSON. A string is told to the model as it is, all else as JSON.
    #[must_use]
    pub fn json(content: Value) -> ToolOutcome {
        let text = match &content {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        ToolOutcome { content, text, is_error: false, exit_code: 0, failure: None }
    }

    /// A call that went wrong, with one sentence for the model.
    #[must_use]
    pub fn failed(failure: Failure, text: impl Into<String>) -> ToolOutcome {
        let text = text.into();
        let content = json!({ "error": { "code": failure.code(), "message": text } });
        ToolOutcome { content, text, is_error: true, exit_code: 1, failure: Some(failure) }
    }
}
