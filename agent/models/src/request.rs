//! What a model is asked: the conversation so far, the tools it may call, and how to answer.
//!
//! Not how a provider wants that written: that is each protocol's.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One request to a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// The model's name, as its provider knows it.
    pub model: String,
    /// What stands above the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The conversation so far, oldest first.
    pub messages: Vec<ModelMessage>,
    /// What the model may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolSpec>,
    /// How freely it chooses its words; the provider's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// How many tokens the answer may have; the provider's default if absent. Anthropic has none,
    /// and is asked for 8,192.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// JSON Schema that the text of the answer should meet. Providers hold to it more or less:
    /// whoever needs it checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Value>,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum ModelMessage {
    /// Instructions amid the conversation. Providers that know none there (Anthropic, Gemini) are
    /// told it above the conversation.
    System {
        /// What it says.
        text: String,
    },
    /// What the user said.
    User {
        /// What it says.
        text: String,
    },
    /// What the model said before.
    Assistant {
        /// What it said; empty if it only made calls.
        text: String,
        /// What it thought, as far as it told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning: Option<String>,
        /// What it called, in its order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ModelCall>,
        /// [`crate::ModelAnswer::carry`] of that answer. Only its own protocol reads it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        carry: Option<Value>,
    },
    /// What came of a call.
    Tool {
        /// The call's id, as the provider gave it.
        call_id: String,
        /// The tool's name.
        name: String,
        /// The result, as the model is to read it.
        content: String,
        /// Whether the call failed.
        #[serde(default)]
        is_error: bool,
    },
}

impl ModelMessage {
    /// What the user said.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { text: text.into() }
    }

    /// What the model said, without calls.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::Assistant { text: text.into(), reasoning: None, calls: Vec::new(), carry: None }
    }
}

/// A call that a model made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCall {
    /// The id that the provider gave it. It may be empty, and the same for different calls: never a
    /// key.
    pub id: String,
    /// The tool that is called.
    pub name: String,
    /// The arguments, the text that the model gave. It need not be JSON.
    pub arguments: String,
}

/// A tool, as a model is told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// The name to call it by.
    pub name: String,
    /// What it does, in words.
    pub description: String,
    /// JSON Schema of its arguments: an object.
    pub parameters: Value,
}
