//! Lines of a program's stdout into events: one parser for each program.
//!
//! A parser is fed every line once, in order, and remembers what it needs of them: what was streamed
//! already, which session it is, what was used. It never fails. What it does not know is a
//! [`ProgramEvent::Status`]; what is no JSON object is nothing, and is kept as the raw line beside it.

mod claude;
mod codex;
mod gemini;
mod generic;
mod opencode;
mod streamed;

use abide_json_integers as integers;
use serde_json::{Map, Value};

pub use claude::ClaudeParser;
pub use codex::CodexParser;
pub use gemini::GeminiParser;
pub use generic::{GenericParser, TextParser};
pub use opencode::OpenCodeParser;

use crate::event::{NoticeCode, ProgramEvent};

/// Reads the output of one run. Write one for a program that is not known here:
///
/// ```
/// use abide_programs::{Answer, Parser, ProgramEvent};
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
///             Some("done") => vec![ProgramEvent::Final(Answer { text, ..Answer::default() })],
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
    /// The events of one line, in order. A terminal one is held back until the process is gone: only
    /// then is it known whether it holds.
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent>;

    /// What the end of the output says: for programs that have no line of their own for the end.
    fn finish(&mut self) -> Vec<ProgramEvent> {
        Vec::new()
    }

    /// What the lines so far ask to be written on the program's stdin, as it is; only asked where
    /// stdin is open for it. For questions of a program's protocol that nobody needs to decide.
    fn reply(&mut self) -> Option<String> {
        None
    }
}

/// The line as a JSON object; none if it is none. Integers that would lose digits are strings in it.
fn object(line: &str) -> Option<Map<String, Value>> {
    match serde_json::from_str(&integers::quoted(line)) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}

/// The text at a key; empty if there is none.
fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The text at a key, owned; none if there is none or it is empty.
fn some_text(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// What is left of an object once those keys are told otherwise.
fn without(value: &Value, keys: &[&str]) -> Value {
    let Value::Object(object) = value else { return value.clone() };
    let rest = object.iter().filter(|(key, _)| !keys.contains(&key.as_str()));
    Value::Object(rest.map(|(key, value)| (key.clone(), value.clone())).collect())
}

fn status(data: Value) -> ProgramEvent {
    ProgramEvent::Status { data }
}

fn notice(code: NoticeCode, message: impl Into<String>) -> ProgramEvent {
    ProgramEvent::Notice { code, message: message.into() }
}

/// The program's session, told when it is first seen and when it changes.
#[derive(Debug, Default)]
struct Session(Option<String>);

impl Session {
    fn seen(&mut self, id: Option<&str>) -> Option<ProgramEvent> {
        let id = id.filter(|id| !id.is_empty() && self.0.as_deref() != Some(id))?;
        self.0 = Some(id.to_owned());
        Some(ProgramEvent::SessionId { id: id.to_owned() })
    }
}
