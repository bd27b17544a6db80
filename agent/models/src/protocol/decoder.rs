//! The decoding of a stream: the interface of all protocols, the answer so far, and the parsing of frames.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use abide_json_integers as integers;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::calls::OpenCalls;
use crate::classify::{self, truncated_line};
use crate::frames::Frame;
use crate::{ModelError, ModelEvent, ModelResponse, Stop, Usage};

/// Decodes the frames of one answer.
pub(crate) trait Decoder: Send {
    /// Decodes the data of a frame.
    fn frame(&mut self, data: &str, gathered: &mut PartialResponse) -> Result<(), ModelError>;

    /// Called at the end of the stream.
    fn close(&mut self, _gathered: &mut PartialResponse) {}
}

/// The answer so far, and the events that are not yet returned.
#[derive(Debug, Default)]
pub(crate) struct PartialResponse {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) calls: OpenCalls,
    /// Why the model stopped. Once it is set, the answer is complete; only token counts may follow.
    pub(super) stop: Option<Stop>,
    /// The token usage so far.
    pub(super) usage: Usage,
    pub(super) model: Option<String>,
    pub(super) carry: Option<Value>,
    /// Where `carry` has a list with a value for each call, by the position of the call.
    pub(super) call_carry: Option<&'static str>,
    /// Whether the text contains a refusal of the model.
    refused: bool,
    is_recognized: bool,
    /// No further frame belongs to the answer.
    pub(super) over: bool,
    events: VecDeque<ModelEvent>,
}

impl PartialResponse {
    /// Decodes a frame, unless the answer is over.
    ///
    /// # Errors
    /// The frame is invalid, or the provider reports an error in it.
    pub(crate) fn take(
        &mut self,
        decoder: &mut dyn Decoder,
        frame: Frame<'_>,
    ) -> Result<(), ModelError> {
        match frame {
            _ if self.over => Ok(()),
            Frame { is_error: true, data } => Err(classify::error_from_text(data)),
            Frame { data, .. } => decoder.frame(data, self),
        }
    }

    /// Returns the next event that is not yet returned.
    pub(crate) fn next_event(&mut self) -> Option<ModelEvent> {
        self.events.pop_front()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Returns `true` if the provider has sent a stop reason. Only token counts may follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.stop.is_some()
    }

    /// Returns `true` if there was any output that a user would see.
    pub(crate) fn has_begun(&self) -> bool {
        !(self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty())
    }

    /// Returns the size of what has arrived of the answer. It changes with each part; comments and empty parts add
    /// nothing.
    pub(crate) fn content_bytes(&self) -> usize {
        let is_complete = usize::from(self.is_complete());
        self.text.len() + self.reasoning.len() + self.calls.bytes() + is_complete
    }

    /// A frame had what belongs to an answer in its protocol, even if it says nothing yet.
    pub(super) fn recognize(&mut self) {
        self.is_recognized = true;
    }

    /// Returns `true` if no frame so far had anything that belongs to an answer.
    pub(crate) fn is_untouched(&self) -> bool {
        let has_usage = self.usage != Usage::default();
        let is_known = self.is_recognized || self.model.is_some();
        !(self.has_begun() || self.stop.is_some() || is_known || has_usage)
    }

    /// Ends the stream. The last event is the answer, if the provider has completed it.
    pub(crate) fn end(&mut self, provider: &str, asked: &str) -> Result<(), ModelError> {
        let Some(stop) = self.stop.take() else {
            let message = if self.has_begun() {
                "the stream ended in the middle of an answer"
            } else {
                "the stream ended before an answer began"
            };
            return Err(ModelError::invalid_response(message));
        };
        let is_cut = matches!(stop, Stop::Length | Stop::Filtered);
        let calls = self.calls.finish(is_cut)?;
        self.move_call_carry();
        // Nobody knows whether these calls are what the model wanted.
        if let Stop::Other(reason) = &stop
            && !calls.is_empty()
        {
            return Err(if reason == UNSTATED {
                ModelError::invalid_response("the provider gave no stop reason after calls")
            } else {
                classify::error_from_stop(reason, &Value::Null)
            });
        }
        if stop == Stop::ToolUse && calls.is_empty() {
            let why = "the provider announced tool calls, but sent none";
            return Err(ModelError::invalid_response(why));
        }
        self.events.extend(calls.iter().cloned().map(ModelEvent::Call));
        let reasoning = std::mem::take(&mut self.reasoning);
        // Some servers send "stop" in these cases. Calls beside a refusal are not what the model wants.
        let stop = match stop {
            Stop::End | Stop::Other(_) | Stop::ToolUse if self.refused => Stop::Filtered,
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

    /// Leaves out what is carried for repeated calls, so that every other call keeps its own.
    fn move_call_carry(&mut self) {
        let carried = self.carry.as_mut().zip(self.call_carry);
        let carried =
            carried.and_then(|(carry, pointer)| carry.pointer_mut(pointer)?.as_array_mut());
        let Some(carried) = carried else { return };
        let arrived = std::mem::take(carried);
        let kept = self.calls.positions().iter();
        carried.extend(kept.map(|at| arrived.get(*at).cloned().unwrap_or_default()));
        while carried.last().is_some_and(Value::is_null) {
            carried.pop();
        }
    }

    /// Sets why the model stopped. If the provider states several reasons, the one for which something is missing counts.
    pub(super) fn set_stop(&mut self, stop: Stop) {
        self.calls.note_stop();
        if self.stop.as_ref().is_none_or(|stated| lack(&stop) >= lack(stated)) {
            self.stop = Some(stop);
        }
    }

    /// Adds what the pieces lack of the whole text. A text that differs from them does not count.
    pub(super) fn complete_text(&mut self, whole: &str, is_refusal: bool) {
        let rest = whole.strip_prefix(self.text.as_str()).unwrap_or_default();
        if is_refusal {
            self.push_refusal(rest);
        } else {
            self.push_text(rest);
        }
    }

    /// Sets the text of the answer. If the pieces differ from it, one of them was lost or came twice: the text counts, although it is
    /// too late for those who have read the pieces.
    pub(super) fn settle_text(&mut self, whole: &str, is_refusal: bool) {
        self.complete_text(whole, is_refusal);
        if self.text != whole {
            self.refused |= is_refusal;
            whole.clone_into(&mut self.text);
        }
    }

    pub(super) fn push_text(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.text.push_str(piece);
            self.events.push_back(ModelEvent::Text(piece.to_owned()));
        }
    }

    /// Returns `true` if the text contains a refusal of the model.
    pub(super) fn has_refusal(&self) -> bool {
        self.refused
    }

    /// A piece of the text in which the model refuses to answer.
    pub(super) fn push_refusal(&mut self, piece: &str) {
        self.refused |= !piece.is_empty();
        self.push_text(piece);
    }

    pub(super) fn push_reasoning(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.reasoning.push_str(piece);
            self.events.push_back(ModelEvent::Reasoning(piece.to_owned()));
        }
    }

    /// Sets the name of the model that answers; the first name counts.
    pub(super) fn set_model(&mut self, name: Option<&str>) {
        let name = name.filter(|name| !name.is_empty());
        if let (None, Some(name)) = (&self.model, name) {
            self.model = Some(name.to_owned());
        }
    }
}

/// The reason of an answer that ended correctly without one.
pub(super) const UNSTATED: &str = "unstated";

/// Returns how much an answer with this stop reason can lack: nothing, calls, or more.
fn lack(stop: &Stop) -> u8 {
    match stop {
        Stop::End | Stop::Other(_) => 0,
        Stop::ToolUse => 1,
        Stop::Length | Stop::Filtered | Stop::UnknownTool(_) => 2,
    }
}

/// Returns an id as text. Some servers send numbers.
pub(super) fn id_text(id: &Value) -> Cow<'_, str> {
    match id {
        Value::String(id) => Cow::Borrowed(id),
        Value::Number(id) => Cow::Owned(id.to_string()),
        _ => Cow::Borrowed(""),
    }
}

/// Returns an index. Some servers send it as text.
pub(super) fn index(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// Checks that a delta, or a message as one, is an object, or absent. Otherwise what it has would be lost.
pub(super) fn check_delta(delta: &Value) -> Result<(), ModelError> {
    let is_absent = delta.is_null() || *delta == "" || *delta == Value::Array(Vec::new());
    if delta.is_object() || is_absent {
        return Ok(());
    }
    Err(ModelError::invalid_response("the stream has a piece of the answer in an unknown format"))
}

/// Parses a frame as JSON. What is not Unicode in its texts becomes U+FFFD.
pub(super) fn parse<T: DeserializeOwned>(data: &str) -> Result<T, ModelError> {
    let parsed = serde_json::from_str(data).or_else(|error| match readable(data) {
        Cow::Owned(readable) => serde_json::from_str(&readable),
        Cow::Borrowed(_) => Err(error),
    });
    parsed.map_err(|error| {
        let why = truncated_line(&error.to_string());
        ModelError::invalid_response(format!("the stream has an invalid event: {why}"))
    })
}

/// Checks that a frame without content is no error report.
pub(super) fn error_report(data: &str) -> Result<(), ModelError> {
    let event: Value = parse(data)?;
    if classify::reports_error(&event) { Err(classify::error_from_event(&event)) } else { Ok(()) }
}

fn readable(data: &str) -> Cow<'_, str> {
    integers::readable(data.as_bytes())
}

/// Returns `true` if a text has halves of surrogate pairs.
pub(super) fn is_damaged(data: &str) -> bool {
    integers::unpaired_surrogates(data).next().is_some()
}

/// Arguments that are not JSON, in place of those whose original text cannot be found.
pub(super) const UNREADABLE: &str = "\\udfff";

/// Returns the arguments, or the piece of them, at a path of a frame as text.
///
/// JSON becomes canonical, except if integers would lose digits. Halves of surrogate pairs stay escapes: a tool must
/// not run with replacement characters. The other half may follow in the next piece; without it, the arguments are
/// not JSON, and the model gets an error.
pub(super) fn arguments_text(arguments: &Value, data: &str, path: &[&str]) -> String {
    let is_damaged = is_damaged(data);
    match arguments {
        Value::Null => String::new(),
        Value::String(piece) if !is_damaged => piece.clone(),
        Value::String(_) => {
            let text = original(data, path).map(halves_as_text);
            let text = text.and_then(|text| serde_json::from_str(&text).ok());
            text.unwrap_or_else(|| UNREADABLE.to_owned())
        }
        _ if is_damaged => original(data, path).unwrap_or(UNREADABLE).to_owned(),
        value if integers::check(data).is_ok() => value.to_string(),
        value => original(data, path).map_or_else(|| value.to_string(), str::to_owned),
    }
}

/// Returns arguments as they were sent, which are at a path of a frame.
pub(super) fn original_arguments(arguments: &RawValue, data: &str, path: &[&str]) -> String {
    let text =
        if is_damaged(data) { original(data, path).unwrap_or(UNREADABLE) } else { arguments.get() };
    text.to_owned()
}

/// Doubles the backslash of each half of a surrogate pair: the decoded text has the escape.
fn halves_as_text(written: &str) -> String {
    let mut text = String::with_capacity(written.len() + 1);
    let mut copied = 0;
    for at in integers::unpaired_surrogates(written) {
        text.push_str(&written[copied..at]);
        text.push('\\');
        copied = at;
    }
    text + &written[copied..]
}

/// Returns the original text of the value at a path of names and indexes.
fn original<'a>(data: &'a str, path: &[&str]) -> Option<&'a str> {
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
