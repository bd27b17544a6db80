//! What comes back from a model: events while it answers, and the answer as a whole.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ModelCall, ModelError, ModelMessage};

/// What happens while a model answers.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelEvent {
    /// A piece of the text.
    Text(String),
    /// A piece of what the model thinks, as far as it tells.
    Reasoning(String),
    /// A call, whole: told once its arguments are complete.
    Call(ModelCall),
    /// Only from a [`crate::Chain`]: it is tried again, here or elsewhere, and whatever was told since
    /// the stream or the last restart began does not count.
    Restarted(Restart),
    /// All of it. The last event, exactly once.
    Answer(ModelAnswer),
}

/// Why and where a [`crate::Chain`] tries again.
#[derive(Clone, Debug, PartialEq)]
pub struct Restart {
    /// What went wrong.
    pub error: ModelError,
    /// The provider that is tried next.
    pub provider: String,
    /// The model that is tried next.
    pub model: String,
    /// Which attempt of the whole stream comes next; the first is 1.
    pub attempt: u32,
    /// How long is waited before.
    pub after: Duration,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswer {
    /// The text: all pieces in a row.
    pub text: String,
    /// What the model thought, as far as it told: all pieces in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The calls, in the model's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ModelCall>,
    /// Why it stopped.
    pub stop: Stop,
    /// What it took, as reported.
    pub usage: Usage,
    /// What it cost, in millionths of a dollar: where a price is configured, and all that it took is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<i64>,
    /// The provider that answered.
    pub provider: String,
    /// The model that answered: as the provider names it, or else as it was asked for.
    pub model: String,
    /// What the provider wants to see again with this message and nobody else can read: signatures of
    /// thoughts, sealed reasoning. Keep it with the message; [`Self::to_message`] does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carry: Option<Value>,
}

impl ModelAnswer {
    /// The message that this answer is to a conversation that goes on.
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
    /// It had said all.
    End,
    /// It waits for the results of its calls.
    ToolUse,
    /// The limit of tokens was reached: text and arguments may be cut off.
    Length,
    /// The provider held something back.
    Filtered,
    /// Something else, in the provider's word.
    Other(String),
}

/// How many tokens an answer took, as the provider reported. Nothing is estimated, and a zero is one
/// only if the provider said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the request, those read from or written to a cache among them.
    pub input_tokens: Option<u64>,
    /// Of the answer, those of reasoning among them where the provider counts them there. (xAI does
    /// not.)
    pub output_tokens: Option<u64>,
    /// Of the request, read from a cache.
    pub cached_tokens: Option<u64>,
    /// Of reasoning.
    pub reasoning_tokens: Option<u64>,
    /// How much of that was reported.
    pub completeness: Completeness,
}

impl Usage {
    /// With the completeness that its numbers have: those of input and output count.
    pub(crate) fn judged(mut self) -> Self {
        self.completeness = match (self.input_tokens, self.output_tokens) {
            (Some(_), Some(_)) => Completeness::Complete,
            (None, None) => Completeness::Unavailable,
            _ => Completeness::Partial,
        };
        self
    }
}

/// How much a provider reported of what an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completeness {
    /// Tokens of input and of output.
    Complete,
    /// One of them.
    Partial,
    /// Neither.
    #[default]
    Unavailable,
}
