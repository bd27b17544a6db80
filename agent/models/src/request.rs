//! Model requests: the conversation, the available tools, and parameters of the answer.
//!
//! The protocols convert them to each provider's format.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One request to a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// The model's name at the provider.
    pub model: String,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The conversation so far, oldest first.
    pub messages: Vec<ModelMessage>,
    /// The tools that the model may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolSpec>,
    /// The sampling temperature; the default is the provider's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Maximum number of tokens in the answer; the default is the provider's. Anthropic has no default, so 8,192 is
    /// sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// JSON Schema for the text of the answer. Not all providers enforce it, so the caller must validate the
    /// answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Value>,
    /// The purpose of the answer. It is not sent; a [`Script`](crate::Script) tells summaries from answers by it.
    #[serde(default, skip_serializing_if = "RequestPurpose::is_answer")]
    pub purpose: RequestPurpose,
    /// The number of the model's answers that are not in `messages`, because a summary stands for them. It is not sent.
    /// A [`Script`](crate::Script) and a recording choose their next answer by the number of answers so far, and count
    /// these too.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted_answers: usize,
}

/// The purpose of the answer to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestPurpose {
    /// To continue the conversation.
    #[default]
    Answer,
    /// To stand for older messages of a conversation.
    Summary,
}

impl RequestPurpose {
    fn is_answer(&self) -> bool {
        *self == RequestPurpose::Answer
    }
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum ModelMessage {
    /// Instructions within the conversation. Providers that do not support them there (Anthropic, Gemini) get them
    /// in the system prompt.
    System {
        /// The text.
        text: String,
    },
    /// A message of the user.
    User {
        /// The text.
        text: String,
    },
    /// An answer of the model.
    Assistant {
        /// The text; empty if the answer consists of tool calls only.
        text: String,
        /// The reasoning, if the provider returned it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning: Option<String>,
        /// The tool calls that the answer requests, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ModelCall>,
        /// What the provider expects back with this answer: [`crate::ModelResponse::carry`]. Only the same protocol
        /// reads it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        carry: Option<Value>,
    },
    /// The result of a tool call.
    Tool {
        /// The provider's id of the call.
        call_id: String,
        /// The name of the tool.
        name: String,
        /// The result, as text for the model.
        content: String,
        /// Whether the call failed.
        #[serde(default)]
        is_error: bool,
    },
}

impl ModelMessage {
    /// Returns a message of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { text: text.into() }
    }

    /// Returns an answer of the model without tool calls.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::Assistant { text: text.into(), reasoning: None, calls: Vec::new(), carry: None }
    }
}

/// A tool call of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCall {
    /// The provider's id. It may be empty or duplicated, so it is not usable as a key.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments, as the text that the model produced. It may be invalid JSON.
    pub arguments: String,
}

/// A tool, as described to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// The name.
    pub name: String,
    /// A description of what it does.
    pub description: String,
    /// JSON Schema of its arguments: an object.
    pub parameters: Value,
}
