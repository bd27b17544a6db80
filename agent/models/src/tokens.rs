//! Estimates of the number of tokens in a text or request. Providers report exact numbers, but only with the answer.
//!
//! The rates are averages of English text and JSON with the tokenizers that the makers of the models publish. A caller
//! that knows the reported number of an earlier request corrects later estimates with it.

use serde_json::json;

use crate::{ModelMessage, ModelRequest};

/// Estimates tokens for a family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenEstimate {
    /// Tenths of ASCII characters per token.
    ascii: u64,
    /// Tenths of other characters per token.
    other: u64,
}

/// Tokens that surround each message and each tool: role, separators, names.
const OVERHEAD: u64 = 4;

impl TokenEstimate {
    /// Returns the estimate for a model, by its name. Unknown models have four ASCII characters per token.
    #[must_use]
    pub fn for_model(model: &str) -> TokenEstimate {
        let model = model.to_ascii_lowercase();
        let is_of = |family: &[&str]| family.iter().any(|name| model.contains(name));
        let (ascii, other) = if is_of(&["claude"]) {
            (35, 12)
        } else if is_of(&["gpt-4o", "gpt-4.1", "gpt-5", "o1", "o3", "o4", "gemini", "gemma"]) {
            (40, 18)
        } else if is_of(&["llama", "mistral", "mixtral", "qwen", "deepseek", "grok"]) {
            (38, 15)
        } else {
            (40, 12)
        };
        TokenEstimate { ascii, other }
    }

    /// Returns the tokens of a text.
    #[must_use]
    pub fn text(&self, text: &str) -> u64 {
        let chars = text.chars().count() as u64;
        let other = text.chars().filter(|c| !c.is_ascii()).count() as u64;
        ((chars - other) * 10).div_ceil(self.ascii) + (other * 10).div_ceil(self.other)
    }

    /// Returns the tokens of a message.
    #[must_use]
    pub fn message(&self, message: &ModelMessage) -> u64 {
        OVERHEAD
            + match message {
                ModelMessage::System { text } | ModelMessage::User { text } => self.text(text),
                ModelMessage::Assistant { text, reasoning, calls, carry } => {
                    let calls: u64 = calls
                        .iter()
                        .map(|call| {
                            OVERHEAD
                                + self.text(&call.id)
                                + self.text(&call.name)
                                + self.text(&call.arguments)
                        })
                        .sum();
                    let carry = carry.as_ref().map_or(0, |carry| self.text(&carry.to_string()));
                    let reasoning = reasoning.as_ref().map_or(0, |it| self.text(it));
                    self.text(text) + calls + carry.max(reasoning)
                }
                ModelMessage::Tool { call_id, name, content, .. } => {
                    self.text(call_id) + self.text(name) + self.text(content)
                }
            }
    }

    /// Returns the tokens of a request: instructions, tools and messages.
    #[must_use]
    pub fn request(&self, request: &ModelRequest) -> u64 {
        let messages: u64 = request.messages.iter().map(|message| self.message(message)).sum();
        self.around(request) + messages
    }

    /// Returns the tokens of a request without its messages.
    #[must_use]
    pub fn around(&self, request: &ModelRequest) -> u64 {
        let system = request.system.as_ref().map_or(0, |system| self.text(system));
        let tools = request.tools.iter().map(|tool| {
            OVERHEAD
                + self.text(&tool.name)
                + self.text(&tool.description)
                + self.text(&tool.parameters.to_string())
        });
        let schema = request.response_schema.as_ref().map(|schema| json!(schema).to_string());
        system + tools.sum::<u64>() + schema.map_or(0, |schema| self.text(&schema))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimate of the original for unknown models, and rates by family for the others.
    #[test]
    fn token_estimate_per_model_family() {
        let english = "The order was delivered on Monday. ".repeat(20);
        let chinese = "订单已于星期一送达。".repeat(20);
        let of = |model: &str, text: &str| TokenEstimate::for_model(model).text(text);
        assert_eq!(english.len(), 700);
        assert_eq!(of("unknown", &english), 175);
        assert_eq!(of("claude-sonnet-4", &english), 200);
        assert_eq!(of("gpt-4.1", &english), 175);
        assert_eq!(of("qwen3", &english), 185);
        assert_eq!(of("unknown", &chinese), 167);
        assert_eq!(of("gpt-4.1", &chinese), 112);
        assert_eq!(of("x", ""), 0);
    }

    #[test]
    fn a_request_counts_everything_that_is_sent() {
        let empty = ModelRequest::default();
        let estimate = TokenEstimate::for_model("m");
        assert_eq!(estimate.request(&empty), 0);
        let with = ModelRequest {
            system: Some("12345678".to_owned()),
            messages: vec![ModelMessage::user("1234")],
            ..empty
        };
        assert_eq!(estimate.request(&with), 2 + 4 + 1);
    }
}
