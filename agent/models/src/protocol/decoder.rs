//! The decoding of a stream: the interface of all protocols, the answer so far, and the parsing of frames.

use std::collections::{BTreeMap, VecDeque};

use abide_json_integers as integers;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::classify::truncated_line;
use crate::{ModelCall, ModelError, ModelEvent, ModelResponse, Stop, Usage};

/// Decodes the frames of one answer.
pub(crate) trait Decoder: Send {
    /// Decodes a frame.
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError>;

    /// Called at the end of the stream. Completes open calls if the provider has sent a stop reason.
    fn close(&mut self, _gathered: &mut PartialResponse) {}
}

/// The answer so far, and the events that are not yet returned.
#[derive(Debug, Default)]
pub(crate) struct PartialResponse {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) calls: Vec<ModelCall>,
    /// Why the model stopped. Once it is set, the answer is complete; only token counts may follow.
    pub(super) stop: Option<Stop>,
    /// The token usage so far.
    pub(super) usage: Usage,
    pub(super) model: Option<String>,
    pub(super) carry: Option<Value>,
    /// Whether the text contains a refusal of the model.
    refused: bool,
    /// No further frame belongs to the answer.
    pub(super) over: bool,
    events: VecDeque<ModelEvent>,
}

impl PartialResponse {
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

    /// Whether no frame so far had anything that belongs to an answer.
    pub(crate) fn is_untouched(&self) -> bool {
        let has_usage = self.usage != Usage::default();
        !self.has_begun() && self.stop.is_none() && self.model.is_none() && !has_usage
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
        // Some servers send "stop" in these cases.
        let stop = match stop {
            Stop::End if self.refused => Stop::Filtered,
            Stop::End if !calls.is_empty() => Stop::ToolUse,
            stop => stop,
        };
        self.events.push_back(ModelEvent::Answer(ModelResponse {
            text: std::mem::take(&mut self.text),
            reasoning: (!reasoning.is_empty()).then_some(reasoning),
            calls,
            stop,
            usage: self.usage.with_completeness(),
            provider: provider.to_owned(),
            model: self.model.take().unwrap_or_else(|| asked.to_owned()),
            carry: self.carry.take(),
            cost_micros: None,
        }));
        Ok(())
    }

    pub(super) fn text(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.text.push_str(piece);
            self.events.push_back(ModelEvent::Text(piece.to_owned()));
        }
    }

    /// A piece of the text in which the model refuses to answer.
    pub(super) fn refusal(&mut self, piece: &str) {
        self.refused |= !piece.is_empty();
        self.text(piece);
    }

    pub(super) fn reasoning(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.reasoning.push_str(piece);
            self.events.push_back(ModelEvent::Reasoning(piece.to_owned()));
        }
    }

    pub(super) fn call(&mut self, call: ModelCall) {
        self.calls.push(call.clone());
        self.events.push_back(ModelEvent::Call(call));
    }

    /// Sets the name of the model that answers; the first name counts.
    pub(super) fn model(&mut self, name: Option<&str>) {
        let name = name.filter(|name| !name.is_empty());
        if let (None, Some(name)) = (&self.model, name) {
            self.model = Some(name.to_owned());
        }
    }
}

/// Parses the frame as JSON.
pub(super) fn parse<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, ModelError> {
    serde_json::from_str(data).map_err(|error| {
        let why = truncated_line(&error.to_string());
        ModelError::invalid_response(format!("the stream has an invalid event: {why}"))
    })
}

/// Converts arguments that a frame holds as JSON into text: canonical, or the original text if integers would lose
/// digits.
pub(super) fn arguments_text(arguments: &Value, data: &str, path: &[&str]) -> String {
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
