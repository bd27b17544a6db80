//! The protocols of providers: the encoding of requests, and the decoding of streams.
//!
//! This module is pure: it turns a request into a body and frames into events. [`crate::Remote`] does the I/O and
//! the timeouts. There is one file per protocol, with both directions.
//!
//! We do not use the library genai (0.7) because it breaks our guarantees. It enables `serde_json/preserve_order`,
//! which changes canonical JSON and with it every hash of the log in the same build. It parses names like
//! `qwen-max` as a model and an effort, invents missing ids, rewrites arguments, treats zero tokens as absent,
//! accepts a truncated Gemini or Ollama stream as an answer, and does not limit the length of a line.

mod anthropic;
mod body;
mod call_ids;
mod calls;
mod chat;
mod decoder;
mod gemini;
mod ollama;
mod partial;
mod responses;
mod stop;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ModelRequest;
use crate::frames::Framing;
use call_ids::{IdRules, with_accepted_ids};
pub(crate) use decoder::{Decoder, PartialResponse};

/// The protocol of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// OpenAI's Chat Completions.
    OpenAi,
    /// The dialect of other servers: with `max_tokens`, and with reasoning next to the text.
    OpenAiCompatible,
    /// OpenAI's Responses, without storage at the provider.
    OpenAiResponses,
    /// Anthropic's Messages.
    Anthropic,
    /// Gemini's `streamGenerateContent`.
    Gemini,
    /// Ollama's own `/api/chat`.
    Ollama,
}

impl Protocol {
    /// The default base URL.
    pub(crate) fn default_base_url(self) -> Option<&'static str> {
        match self {
            Self::OpenAi | Self::OpenAiResponses => Some("https://api.openai.com/v1"),
            Self::OpenAiCompatible => None,
            Self::Anthropic => Some("https://api.anthropic.com/v1"),
            Self::Gemini => Some("https://generativelanguage.googleapis.com/v1beta"),
            Self::Ollama => Some("http://localhost:11434"),
        }
    }

    /// The `kind` of a provider with this protocol.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::OpenAiCompatible => "openai_compatible",
            Self::OpenAiResponses => "openai_responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
        }
    }

    /// The path below the base URL, and the query parameter.
    pub(crate) fn path(self, model: &str) -> (String, Option<(&'static str, &'static str)>) {
        match self {
            Self::OpenAi | Self::OpenAiCompatible => ("chat/completions".to_owned(), None),
            Self::OpenAiResponses => ("responses".to_owned(), None),
            Self::Anthropic => ("messages".to_owned(), None),
            Self::Gemini => {
                let folder = if model.contains('/') { "" } else { "models/" };
                (format!("{folder}{model}:streamGenerateContent"), Some(("alt", "sse")))
            }
            Self::Ollama => ("api/chat".to_owned(), None),
        }
    }

    /// The header that carries the key, and the prefix of its value.
    pub(crate) fn key_header(self) -> (&'static str, &'static str) {
        match self {
            Self::Anthropic => ("x-api-key", ""),
            Self::Gemini => ("x-goog-api-key", ""),
            _ => ("authorization", "Bearer "),
        }
    }

    /// A header that every request needs.
    pub(crate) fn fixed_header(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Anthropic).then_some(("anthropic-version", "2023-06-01"))
    }

    /// The body of a request.
    pub(crate) fn body(self, request: &ModelRequest) -> Value {
        let messages = match self.id_rules() {
            Some(rules) => with_accepted_ids(request, &rules),
            None => Cow::Borrowed(request.messages.as_slice()),
        };
        match self {
            Self::OpenAi => chat::body(request, &messages, chat::Dialect::OpenAi),
            Self::OpenAiCompatible => chat::body(request, &messages, chat::Dialect::Compatible),
            Self::OpenAiResponses => responses::body(request, &messages),
            Self::Anthropic => anthropic::body(request, &messages),
            Self::Gemini => gemini::body(request, &messages),
            Self::Ollama => ollama::body(request),
        }
    }

    /// Returns what the provider accepts as ids of calls; `None` if its requests have none.
    fn id_rules(self) -> Option<IdRules> {
        match self {
            Self::OpenAi => Some(IdRules::OPENAI),
            Self::OpenAiCompatible => Some(IdRules::OPENAI_COMPATIBLE),
            Self::OpenAiResponses => Some(IdRules::OPENAI_RESPONSES),
            Self::Anthropic => Some(IdRules::ANTHROPIC),
            Self::Gemini => Some(IdRules::GEMINI),
            Self::Ollama => None,
        }
    }

    pub(crate) fn framing(self) -> Framing {
        if self == Self::Ollama { Framing::Lines } else { Framing::Events }
    }

    /// The decoder for the stream of an answer. `requires_stop_reason`: see [`crate::RemoteSettings`].
    pub(crate) fn decoder(self, requires_stop_reason: bool) -> Box<dyn Decoder> {
        match self {
            Self::OpenAi | Self::OpenAiCompatible => {
                Box::new(chat::Chat::new(requires_stop_reason))
            }
            Self::OpenAiResponses => Box::new(responses::Responses::default()),
            Self::Anthropic => Box::new(anthropic::Anthropic::default()),
            Self::Gemini => Box::new(gemini::Gemini),
            Self::Ollama => Box::new(ollama::Ollama),
        }
    }
}
