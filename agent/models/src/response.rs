//! The output of a model: events while it answers, and the complete answer.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ModelCall, ModelError, ModelMessage};

/// An event of a model's stream.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelEvent {
    /// A chunk of the text.
    Text(String),
    /// A chunk of the reasoning, if the provider returns it.
    Reasoning(String),
    /// A tool call. Calls are sent at the end of the answer, when nothing can be added to them.
    Call(ModelCall),
    /// Only from a [`crate::Chain`]: the request is retried, and all output since the start of the stream or the
    /// last restart is void.
    Restarted(Restart),
    /// The complete answer. The last event, exactly once.
    Answer(ModelResponse),
}

/// A retry of a [`crate::Chain`].
#[derive(Clone, Debug, PartialEq)]
pub struct Restart {
    /// The error of the failed attempt.
    pub error: ModelError,
    /// The provider of the next attempt.
    pub provider: String,
    /// The model of the next attempt.
    pub model: String,
    /// The number of the next attempt in this stream; the first attempt is 1.
    pub attempt: u32,
    /// The delay before the next attempt.
    pub after: Duration,
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelResponse {
    /// The text: all chunks joined.
    pub text: String,
    /// The reasoning, if the provider returns it: all chunks joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The tool calls, in the model's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ModelCall>,
    /// Why the model stopped.
    pub stop: Stop,
    /// The reported token usage.
    pub usage: Usage,
    /// The cost in microdollars. Requires a configured price and complete usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<i64>,
    /// The provider that answered.
    pub provider: String,
    /// The model that answered: the name that the provider reports, or else the requested name.
    pub model: String,
    /// Opaque data that the provider expects back with this message, such as signatures of reasoning or encrypted
    /// reasoning. [`Self::to_message`] includes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carry: Option<Value>,
}

impl ModelResponse {
    /// Returns the message that represents this answer in the conversation.
    #[must_use]
    pub fn to_message(&self) -> ModelMessage {
        ModelMessage::Assistant {
            text: self.text.clone(),
            reasoning: self.reasoning.clone(),
            calls: self.calls.clone(),
            carry: self.carry.clone(),
        }
    }
}

/// Why a model stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The answer is complete.
    End,
    /// The model waits for the results of its calls.
    ToolUse,
    /// The token limit was reached: text and arguments may be truncated.
    Length,
    /// The model refused to answer, or the provider withheld content.
    Filtered,
    /// The model requested a tool that was not offered, such as one that runs at the provider.
    UnknownTool(String),
    /// Another reason, in the provider's term. From a [`crate::Chain`] it is a code.
    Other(String),
}

/// Maximum length of a code.
const CODE_BYTES: usize = 64;

impl Stop {
    /// Returns the reason with codes in place of the provider's texts: they are published, and no guardrail checks
    /// them.
    pub(crate) fn with_codes(self) -> Stop {
        match self {
            Stop::Other(reason) => Stop::Other(code(&reason).unwrap_or_else(|| "other".to_owned())),
            Stop::UnknownTool(tool) => {
                Stop::UnknownTool(code(&tool).unwrap_or_else(|| "a tool".to_owned()))
            }
            stated => stated,
        }
    }
}

/// Returns a text that looks like a code, in lower case with underscores; `None` for other texts.
fn code(text: &str) -> Option<String> {
    let code = text.to_ascii_lowercase().replace('-', "_");
    ((1..=CODE_BYTES).contains(&code.len())
        && code.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_'))
    .then_some(code)
}

/// Token usage as reported by the provider. Nothing is estimated; a value is zero only if the provider reported
/// zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the request, including those read from or written to a cache.
    pub input_tokens: Option<u64>,
    /// Tokens of the answer, including reasoning if the provider counts it there. (xAI does not.)
    pub output_tokens: Option<u64>,
    /// Tokens of the request that were read from a cache.
    pub cached_tokens: Option<u64>,
    /// Tokens of reasoning.
    pub reasoning_tokens: Option<u64>,
    /// How complete the report is.
    pub completeness: Completeness,
}

impl Usage {
    /// Sets the completeness from the token counts of input and output.
    pub(crate) fn with_completeness(mut self) -> Self {
        self.completeness = match (self.input_tokens, self.output_tokens) {
            (Some(_), Some(_)) => Completeness::Complete,
            (None, None) => Completeness::Unavailable,
            _ => Completeness::Partial,
        };
        self
    }
}

/// How much of the token usage a provider reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completeness {
    /// Both input and output tokens.
    Complete,
    /// Either input or output tokens.
    Partial,
    /// Neither.
    #[default]
    Unavailable,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a provider's text was published as the `stop_reason` of a run.
    #[test]
    fn a_reason_is_a_code() {
        let longest = "a".repeat(CODE_BYTES);
        for (reason, code) in [
            ("pause_turn", "pause_turn"),
            ("MALFORMED_FUNCTION_CALL", "malformed_function_call"),
            ("max-time-2", "max_time_2"),
            (&longest, &longest),
            (&format!("{longest}a"), "other"),
            ("", "other"),
            ("The password is swordfish.", "other"),
            ("swordfish\n", "other"),
            ("geändert", "other"),
        ] {
            let stop = Stop::Other(reason.to_owned()).with_codes();
            assert_eq!(stop, Stop::Other(code.to_owned()), "{reason}");
        }
        let tool = |name: &str| Stop::UnknownTool(name.to_owned()).with_codes();
        assert_eq!(tool("web_search_call"), Stop::UnknownTool("web_search_call".to_owned()));
        assert_eq!(tool("It is swordfish."), Stop::UnknownTool("a tool".to_owned()));
        assert_eq!(Stop::Length.with_codes(), Stop::Length);
    }
}
