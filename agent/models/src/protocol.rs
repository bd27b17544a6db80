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
mod chat;
mod gemini;
mod ollama;
mod partial;
mod responses;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use abide_json_integers as integers;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::classify::one_line;
use crate::frames::Framing;
use crate::{ModelCall, ModelError, ModelEvent, ModelRequest, ModelResponse, Stop, Usage};

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
        match self {
            Self::OpenAi => chat::body(request, chat::Dialect::OpenAi),
            Self::OpenAiCompatible => chat::body(request, chat::Dialect::Compatible),
            Self::OpenAiResponses => responses::body(request),
            Self::Anthropic => anthropic::body(request),
            Self::Gemini => gemini::body(request),
            Self::Ollama => ollama::body(request),
        }
    }

    pub(crate) fn framing(self) -> Framing {
        if self == Self::Ollama { Framing::Lines } else { Framing::Events }
    }

    /// The decoder for the stream of an answer.
    pub(crate) fn decoder(self) -> Box<dyn Decoder> {
        match self {
            Self::OpenAi | Self::OpenAiCompatible => Box::new(chat::Chat::default()),
            Self::OpenAiResponses => Box::new(responses::Responses::default()),
            Self::Anthropic => Box::new(anthropic::Anthropic::default()),
            Self::Gemini => Box::new(gemini::Gemini::default()),
            Self::Ollama => Box::new(ollama::Ollama),
        }
    }
}

/// Decodes the frames of one answer.
pub(crate) trait Decoder: Send {
    /// Decodes a frame.
    fn frame(&mut self, data: &str, gathered: &mut Gathered) -> Result<(), ModelError>;

    /// Called at the end of the stream. Completes open calls if the provider has sent a stop reason.
    fn close(&mut self, _gathered: &mut Gathered) {}
}

/// The answer so far, and the events that are not yet returned.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    text: String,
    reasoning: String,
    calls: Vec<ModelCall>,
    /// Why the model stopped. Once it is set, the answer is complete; only token counts may follow.
    stop: Option<Stop>,
    /// The token usage so far.
    usage: Usage,
    model: Option<String>,
    carry: Option<Value>,
    /// No further frame belongs to the answer.
    over: bool,
    events: VecDeque<ModelEvent>,
}

impl Gathered {
    /// The next event that is not yet returned.
    pub(crate) fn next_event(&mut self) -> Option<ModelEvent> {
        self.events.pop_front()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Whether the provider has sent a stop reason. Only token counts may follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.stop.is_some()
    }

    /// Whether there was any output that a user would see.
    pub(crate) fn has_begun(&self) -> bool {
        !(self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty())
    }

    /// Ends the stream. The last event is the answer, if the provider has completed it.
    pub(crate) fn end(&mut self, provider: &str, asked: &str) -> Result<(), ModelError> {
        let Some(stop) = self.stop.take() else {
            let message = match self.has_begun() {
                true => "the stream ended in the middle of an answer",
                false => "the stream ended before an answer began",
            };
            return Err(ModelError::invalid_response(message));
        };
        let reasoning = std::mem::take(&mut self.reasoning);
        let calls = std::mem::take(&mut self.calls);
        // Some servers send "stop" in this case.
        let waits = stop == Stop::End && !calls.is_empty();
        self.events.push_back(ModelEvent::Answer(ModelResponse {
            text: std::mem::take(&mut self.text),
            reasoning: (!reasoning.is_empty()).then_some(reasoning),
            calls,
            stop: if waits { Stop::ToolUse } else { stop },
            usage: self.usage.judged(),
            provider: provider.to_owned(),
            model: self.model.take().unwrap_or_else(|| asked.to_owned()),
            carry: self.carry.take(),
            cost_micros: None,
        }));
        Ok(())
    }

    fn text(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.text.push_str(piece);
            self.events.push_back(ModelEvent::Text(piece.to_owned()));
        }
    }

    fn reasoning(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.reasoning.push_str(piece);
            self.events.push_back(ModelEvent::Reasoning(piece.to_owned()));
        }
    }

    fn call(&mut self, call: ModelCall) {
        self.calls.push(call.clone());
        self.events.push_back(ModelEvent::Call(call));
    }

    /// Sets the name of the model that answers; the first name counts.
    fn model(&mut self, name: Option<&str>) {
        let name = name.filter(|name| !name.is_empty());
        if let (None, Some(name)) = (&self.model, name) {
            self.model = Some(name.to_owned());
        }
    }
}

/// Parses the frame as JSON.
fn parse<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, ModelError> {
    serde_json::from_str(data).map_err(|error| {
        let why = one_line(&error.to_string());
        ModelError::invalid_response(format!("the stream has an invalid event: {why}"))
    })
}

/// Converts arguments that a frame holds as JSON into text: canonical, or the original text if integers would lose
/// digits.
fn arguments_text(arguments: &Value, data: &str, path: &[&str]) -> String {
    let written = integers::check(data).err().and_then(|_| written(data, path));
    written.map_or_else(|| arguments.to_string(), str::to_owned)
}

/// The original text of the value at a path of names and indexes.
fn written<'a>(data: &'a str, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(data, |at, step| {
        let value = match step.parse::<usize>() {
            Ok(index) => serde_json::from_str::<Vec<&RawValue>>(at).ok()?.get(index).copied(),
            Err(_) => {
                let members: BTreeMap<String, &RawValue> = serde_json::from_str(at).ok()?;
                members.get(*step).copied()
            }
        };
        value.map(RawValue::get)
    })
}

/// The arguments of an earlier call for a protocol that requires an object. Other values, and those whose integers
/// would lose digits, are passed unchanged in the field `unparsed`. If they were omitted, the model could not see
/// its mistake.
fn arguments_object(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(Value::Object(object)) if integers::check(arguments).is_ok() => Value::Object(object),
        _ if arguments.trim().is_empty() => json!({}),
        _ => json!({ "unparsed": arguments }),
    }
}

/// The system prompt and all system messages, for a protocol that supports only the former.
fn all_instructions(request: &ModelRequest) -> Option<String> {
    let amid = request.messages.iter().filter_map(|message| match message {
        crate::ModelMessage::System { text } => Some(text.as_str()),
        _ => None,
    });
    let all: Vec<&str> = request.system.as_deref().into_iter().chain(amid).collect();
    (!all.is_empty()).then(|| all.join("\n\n"))
}

/// Sets a field if there is a value.
fn set<T: Serialize>(body: &mut Map<String, Value>, field: &str, value: Option<T>) {
    if let Some(value) = value {
        body.insert(field.to_owned(), json!(value));
    }
}

/// Merges consecutive messages of one role, for protocols in which user and model must alternate. The second part
/// is the list of contents.
fn take_turns(
    contents: impl IntoIterator<Item = (&'static str, Vec<Value>)>,
) -> Vec<(&'static str, Vec<Value>)> {
    let mut turns: Vec<(&'static str, Vec<Value>)> = Vec::new();
    for (role, mut content) in contents {
        match turns.last_mut() {
            Some((last, contents)) if *last == role => contents.append(&mut content),
            _ if content.is_empty() => {}
            _ => turns.push((role, content)),
        }
    }
    turns
}
