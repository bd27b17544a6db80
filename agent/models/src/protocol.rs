//! The protocols that providers speak: how each wants a request written, and reads its stream.
//!
//! Pure: a request becomes a body, frames become events. Sending, waiting and giving up are
//! [`crate::Remote`]'s. One file per protocol, with both directions in it.
//!
//! They are ours because the library for it (genai 0.7) does not give what we promise. It turns on
//! `serde_json/preserve_order`, which would change canonical JSON and with it every hash of the log in
//! the same build. It reads names like `qwen-max` as a model and an effort, makes up ids that are
//! missing, writes arguments anew, takes a zero of tokens for none, takes a stream of Gemini or Ollama
//! that was cut off for an answer, and sets no bound to a line.

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

use crate::frames::Framing;
use crate::verdict::one_line;
use crate::{ModelAnswer, ModelCall, ModelError, ModelEvent, ModelRequest, Stop, Usage};

/// A way to talk to a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// OpenAI's Chat Completions.
    OpenAi,
    /// The same as others speak it: with `max_tokens`, and with reasoning beside the text.
    OpenAiCompatible,
    /// OpenAI's Responses, with nothing stored at the provider.
    OpenAiResponses,
    /// Anthropic's Messages.
    Anthropic,
    /// Gemini's `streamGenerateContent`.
    Gemini,
    /// Ollama's own `/api/chat`.
    Ollama,
}

impl Protocol {
    /// Where it is spoken unless a configuration says otherwise.
    pub(crate) fn default_base_url(self) -> Option<&'static str> {
        match self {
            Self::OpenAi | Self::OpenAiResponses => Some("https://api.openai.com/v1"),
            Self::OpenAiCompatible => None,
            Self::Anthropic => Some("https://api.anthropic.com/v1"),
            Self::Gemini => Some("https://generativelanguage.googleapis.com/v1beta"),
            Self::Ollama => Some("http://localhost:11434"),
        }
    }

    /// What follows the base URL, and what is asked for in its query.
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

    /// The header that bears the key, and what stands before the key in it.
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

    /// Who reads the stream of an answer.
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

/// Reads the frames of one answer.
pub(crate) trait Decoder: Send {
    /// Takes a frame.
    fn frame(&mut self, data: &str, gathered: &mut Gathered) -> Result<(), ModelError>;

    /// No more frames come: what is still open is closed, if the provider said why it stopped.
    fn close(&mut self, _gathered: &mut Gathered) {}
}

/// What an answer amounts to so far, and the events that are not yet told.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    text: String,
    reasoning: String,
    calls: Vec<ModelCall>,
    /// Why the model stopped, once the provider said so. From then on the answer is complete, though
    /// numbers of tokens may follow.
    stop: Option<Stop>,
    /// What it took, as far as told.
    usage: Usage,
    model: Option<String>,
    carry: Option<Value>,
    /// Nothing that follows belongs to the answer.
    over: bool,
    events: VecDeque<ModelEvent>,
}

impl Gathered {
    /// The next event that is not yet told.
    pub(crate) fn next_event(&mut self) -> Option<ModelEvent> {
        self.events.pop_front()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Whether the provider said why the model stopped: numbers of tokens may follow, and no more.
    pub(crate) fn is_complete(&self) -> bool {
        self.stop.is_some()
    }

    /// Whether anything was told that a user would see.
    pub(crate) fn has_begun(&self) -> bool {
        !(self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty())
    }

    /// The stream is at its end: the last event is the answer, if the provider said it was over.
    pub(crate) fn end(&mut self, provider: &str, asked: &str) -> Result<(), ModelError> {
        let Some(stop) = self.stop.take() else {
            let message = match self.has_begun() {
                true => "the stream ended before the answer did",
                false => "the stream ended before an answer began",
            };
            return Err(ModelError::broken(message));
        };
        let reasoning = std::mem::take(&mut self.reasoning);
        let calls = std::mem::take(&mut self.calls);
        // Some servers say "stop" all the same.
        let waits = stop == Stop::End && !calls.is_empty();
        self.events.push_back(ModelEvent::Answer(ModelAnswer {
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

    /// The model that answers, by the first name that it is told by.
    fn model(&mut self, name: Option<&str>) {
        let name = name.filter(|name| !name.is_empty());
        if let (None, Some(name)) = (&self.model, name) {
            self.model = Some(name.to_owned());
        }
    }
}

/// The frame as JSON.
fn parse<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, ModelError> {
    serde_json::from_str(data).map_err(|error| {
        let why = one_line(&error.to_string());
        ModelError::broken(format!("an event of the stream makes no sense: {why}"))
    })
}

/// Arguments that a frame holds as JSON and not as text, as text: canonical, or as they are written where their integers
/// would lose digits.
fn arguments_text(arguments: &Value, data: &str, path: &[&str]) -> String {
    let written = integers::check(data).err().and_then(|_| written(data, path));
    written.map_or_else(|| arguments.to_string(), str::to_owned)
}

/// The value at a path of names and indexes, as it is written.
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

/// The arguments of an earlier call for a protocol that wants an object. What the model gave that is
/// none goes in as it is, under a name of its own: left out, the model would not see its mistake. So does what would
/// lose digits of an integer.
fn arguments_object(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(Value::Object(object)) if integers::check(arguments).is_ok() => Value::Object(object),
        _ if arguments.trim().is_empty() => json!({}),
        _ => json!({ "unparsed": arguments }),
    }
}

/// The system prompt and the system messages amid the conversation, for a protocol that knows only
/// the former.
fn all_instructions(request: &ModelRequest) -> Option<String> {
    let amid = request.messages.iter().filter_map(|message| match message {
        crate::ModelMessage::System { text } => Some(text.as_str()),
        _ => None,
    });
    let all: Vec<&str> = request.system.as_deref().into_iter().chain(amid).collect();
    (!all.is_empty()).then(|| all.join("\n\n"))
}

/// Sets a field if there is something to set it to.
fn set<T: Serialize>(body: &mut Map<String, Value>, field: &str, value: Option<T>) {
    if let Some(value) = value {
        body.insert(field.to_owned(), json!(value));
    }
}

/// Messages of one role in a row become one, for protocols in which user and model take turns. The
/// second is the list of contents.
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
