//! Parsers that turn lines of stdout into events, one for each program.
//!
//! A parser receives every line once, in order, and keeps the state that it needs: streamed text, the session, the
//! usage. It never fails. Unknown objects become [`ProgramEvent::Status`]. A line that is not a JSON object yields
//! no event; the raw line is kept.

mod claude;
mod codex;
mod custom;
mod gemini;
mod generic;
mod opencode;
pub(crate) mod streamed;

use abide_json_integers as integers;
use serde::de::Error as _;
use serde_json::{Map, Value};

pub use claude::ClaudeParser;
pub use codex::CodexParser;
pub(crate) use custom::CustomParser;
pub use custom::{
    AnswerRule, Conditions, ErrorRule, FirstByDefault, JsonPointer, LastByDefault, NotAPointer,
    ParserChoice, ParserRules, TextRule, ToolCallRule, ToolResultRule, UsageRule,
};
pub use gemini::GeminiParser;
pub use generic::{GenericParser, TextParser};
pub use opencode::OpenCodeParser;

use crate::event::{ErrorKind, Failure, NoticeCode, ProgramEvent};

/// Parses the output of one run. Implement it for a program that is not supported here:
///
/// ```
/// use abide_programs::{ProgramResult, Parser, ProgramEvent};
/// use serde_json::Value;
///
/// struct MyTool;
///
/// impl Parser for MyTool {
///     fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
///         let Ok(data) = serde_json::from_str::<Value>(line) else { return Vec::new() };
///         let text = data["text"].as_str().unwrap_or_default().to_owned();
///         match data["msg_type"].as_str() {
///             Some("chunk") => {
///                 vec![ProgramEvent::AssistantDelta { text, message: None, parent: None }]
///             }
///             Some("done") => vec![ProgramEvent::Final(ProgramResult { text, ..ProgramResult::default() })],
///             _ => Vec::new(),
///         }
///     }
/// }
///
/// let mut parser = MyTool;
/// assert_eq!(parser.parse_line("no JSON"), []);
/// assert!(parser.parse_line(r#"{"msg_type": "done", "text": "42"}"#)[0].is_terminal());
/// ```
pub trait Parser: Send {
    /// Returns the events of one line, in order. A terminal event is held back until the process has exited, because
    /// only then its outcome is certain.
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent>;

    /// Returns `true` if each line with content is a JSON object. Then a line that begins as one and cannot be read is
    /// a lost part of the output, and the run does not succeed. Other lines are ignored.
    fn reads_json(&self) -> bool {
        false
    }

    /// Returns the events at the end of the output, for programs without a final line.
    fn finish(&mut self) -> Vec<ProgramEvent> {
        Vec::new()
    }

    /// Returns `true` if the lines so far have an answer or a failure that [`Parser::finish`] would report. If such a
    /// program is silent and does not exit, it is ended, and the answer counts. For programs without a final line.
    fn is_complete(&self) -> bool {
        false
    }

    /// Text to write to the program's stdin in response to the lines so far; only called while stdin is open for
    /// it. For protocol requests that need no decision by a user.
    fn reply(&mut self) -> Option<String> {
        None
    }
}

/// The failure of a turn that has completed although its last message has not.
pub(crate) const CUT_MESSAGE: &str =
    "the turn completed before its last message did: a part of the answer may be missing";

/// Returns the line as a JSON value; an error if it is deeper than what can be stored. Integers that would lose digits
/// become strings, and half a surrogate pair becomes U+FFFD: programs in JavaScript cut texts by UTF-16 units.
pub(crate) fn parse_value(line: &str) -> Result<Value, serde_json::Error> {
    let value = serde_json::from_str(&integers::quoted(&integers::readable(line.as_bytes())))?;
    integers::check_depth(&value).map_err(serde_json::Error::custom)?;
    Ok(value)
}

/// Returns the line as a JSON object, or `None`.
pub(crate) fn parse_object(line: &str) -> Option<Map<String, Value>> {
    match parse_value(line) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}

/// Returns the text at a key, or an empty text.
pub(crate) fn text_at<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Returns the text at a key; `None` if it is missing or empty.
pub(crate) fn some_text(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Returns an id, which is a text or a number; `None` if it is missing or empty.
pub(crate) fn id_text(value: &Value, key: &str) -> Option<String> {
    match &value[key] {
        Value::Number(id) => Some(id.to_string()),
        _ => some_text(value, key),
    }
}

/// Returns `true` if a value says nothing: programs send empty ones in place of those that they do not have.
pub(crate) fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns `true` if there is an error: an empty text or object means that there is none.
pub(crate) fn has_error(of: &Value) -> bool {
    !is_blank(&of["error"]) && of["error"] != false
}

/// Returns the message of an error, which is an object or a text.
pub(crate) fn reason(reported: &Value, otherwise: &str) -> String {
    let text = reported.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    some_text(reported, "message").or(text).unwrap_or_else(|| otherwise.to_owned())
}

/// Returns the text of a content: a text, a block with a text, or a list of these. `None` if a part of it is something
/// else.
pub(crate) fn content_text(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => blocks.iter().map(content_text).collect(),
        block => block["text"].as_str().map(str::to_owned),
    }
}

/// Returns the object without these keys.
pub(crate) fn without(value: &Value, keys: &[&str]) -> Value {
    let Value::Object(object) = value else { return value.clone() };
    let rest = object.iter().filter(|(key, _)| !keys.contains(&key.as_str()));
    Value::Object(rest.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Returns the stop reason of a model; `None` if it is not reported.
fn stop_reason(of: &Value) -> Option<String> {
    match &of["stop_reason"] {
        Value::Null => None,
        Value::String(reason) => Some(reason.clone()).filter(|reason| !reason.is_empty()),
        other => Some(other.to_string()),
    }
}

/// Why an answer is not complete although its program reports success, from the model's stop reason. `complete` are the reasons
/// with which an answer is complete: an unknown one is a failure.
fn incomplete(stop_reason: &str, complete: &[&str]) -> Option<Failure> {
    Some(match stop_reason {
        _ if complete.contains(&stop_reason) => return None,
        "refusal" | "content-filter" | "content_filter" => {
            Failure::new(ErrorKind::Refused, "the model refused to answer")
        }
        "length" | "max_tokens" | "max_output_tokens" | "model_context_window_exceeded" => {
            Failure::new(
                ErrorKind::AnswerTruncated,
                "the model's answer was cut off at the token limit",
            )
        }
        other => Failure::new(
            ErrorKind::RuntimeCrash,
            format!("the model stopped before its answer was complete: {other}"),
        ),
    })
}

pub(crate) fn status(data: Value) -> ProgramEvent {
    ProgramEvent::Status { data }
}

pub(crate) fn notice(code: NoticeCode, message: impl Into<String>) -> ProgramEvent {
    ProgramEvent::Notice { code, message: message.into() }
}

/// The id of the program's session. An event is sent when it is first seen and when it changes.
#[derive(Debug, Default)]
pub(crate) struct Session(Option<String>);

impl Session {
    /// Returns the id, once it was seen.
    pub(crate) fn id(&self) -> Option<&str> {
        self.0.as_deref()
    }

    pub(crate) fn update(&mut self, id: Option<&str>) -> Option<ProgramEvent> {
        let id = id.filter(|id| !id.is_empty() && self.0.as_deref() != Some(id))?;
        self.0 = Some(id.to_owned());
        Some(ProgramEvent::SessionId { id: id.to_owned() })
    }
}
