//! A parser by configuration: JSON pointers say where the lines of a program have its text, its calls, its usage and its
//! answer. It is for programs without a parser of their own; see [`Parser`] for one in Rust.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::{Parser, Session, notice, parse_object, status};
use crate::event::{
    Completeness, ErrorKind, Failure, NoticeCode, ProgramEvent, ProgramResult, Usage,
};

/// The parser of a configuration: the name of a registered one, or rules.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ParserChoice {
    /// A parser in Rust, see [`Parsers`](crate::Parsers).
    Named(String),
    /// Rules.
    Rules(Box<ParserRules>),
}

/// Unlike a derived implementation, it reports errors in the rules with their reason.
impl<'de> Deserialize<'de> for ParserChoice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct NameOrRules;
        impl<'de> Visitor<'de> for NameOrRules {
            type Value = ParserChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a parser, or a map of rules")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<ParserChoice, E> {
                Ok(ParserChoice::Named(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ParserChoice, A::Error> {
                let rules = ParserRules::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ParserChoice::Rules(Box::new(rules)))
            }
        }
        from.deserialize_any(NameOrRules)
    }
}

/// The rules that interpret the lines of a program. A line that fits no rule is a status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a parser: a map of rules")]
pub struct ParserRules {
    /// The id of the program's own session, in any line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<JsonPointer>,
    /// A chunk of the agent's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextRule>,
    /// A chunk of the agent's reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<TextRule>,
    /// The start of one of the program's own tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call: Option<ToolCallRule>,
    /// The end of one of the program's own tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_result: Option<ToolResultRule>,
    /// The usage of the run so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageRule>,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<AnswerRule>,
    /// A failure that the program reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRule>,
}

/// The conditions of a rule: the value that the line must have at each of these locations. Without conditions, the rule
/// fits each line that has a value at its required locations.
pub type Conditions = BTreeMap<JsonPointer, Value>;

/// Where a line has text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a rule: a map with text")]
pub struct TextRule {
    /// The conditions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when: Conditions,
    /// The text.
    pub text: JsonPointer,
    /// The id of the message that the text belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<JsonPointer>,
}

/// Where a line has a call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a rule: a map with id and name")]
pub struct ToolCallRule {
    /// The conditions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when: Conditions,
    /// The id of the call: a text or a number.
    pub id: JsonPointer,
    /// The name of the tool.
    pub name: JsonPointer,
    /// The arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<JsonPointer>,
}

/// Where a line has the result of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a rule: a map with id")]
pub struct ToolResultRule {
    /// The conditions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when: Conditions,
    /// The id of the call: a text or a number.
    pub id: JsonPointer,
    /// The result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<JsonPointer>,
    /// Whether the call failed: any value except `false`, `null`, 0, and an empty text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<JsonPointer>,
    /// The exit code of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<JsonPointer>,
}

/// Where a line has the usage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a rule: a map of pointers")]
pub struct UsageRule {
    /// The conditions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub when: Conditions,
    /// Input tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<JsonPointer>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<JsonPointer>,
    /// Input tokens that were read from a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<JsonPointer>,
    /// The cost in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<JsonPointer>,
    /// Which of several reports counts. Default: `last`.
    #[serde(rename = "match")]
    pub which: LastByDefault,
}

/// Where a line has the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a rule: a map with when")]
pub struct AnswerRule {
    /// The conditions.
    pub when: Conditions,
    /// The text; the default is the text so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<JsonPointer>,
    /// Which of several answers counts. Default: `last`.
    #[serde(default, rename = "match")]
    pub which: LastByDefault,
}

/// Where a line has an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a rule: a map with when")]
pub struct ErrorRule {
    /// The conditions.
    pub when: Conditions,
    /// The message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<JsonPointer>,
    /// Which of several errors counts. Default: `first`.
    #[serde(default, rename = "match")]
    pub which: FirstByDefault,
}

/// The line that counts if several fit a rule; the first one, unless it is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirstByDefault {
    /// The first one.
    #[default]
    First,
    /// The last one.
    Last,
}

/// The line that counts if several fit a rule; the last one, unless it is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LastByDefault {
    /// The first one.
    First,
    /// The last one.
    #[default]
    Last,
}

/// A JSON pointer (RFC 6901): empty for the whole line, else `/` before each name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct JsonPointer(String);

impl JsonPointer {
    /// Creates a pointer.
    ///
    /// # Errors
    /// The text is not a JSON pointer.
    pub fn new(text: impl Into<String>) -> Result<Self, NotAPointer> {
        let text = text.into();
        // In a pointer, `~` occurs only as `~0` and `~1`.
        let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        let is_pointer = (text.is_empty() || text.starts_with('/')) && escapes;
        if is_pointer { Ok(Self(text)) } else { Err(NotAPointer::with_correction(&text)) }
    }

    fn resolve<'a>(&self, line: &'a Value) -> Option<&'a Value> {
        line.pointer(&self.0).filter(|value| !value.is_null())
    }
}

impl<'de> Deserialize<'de> for JsonPointer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::new(text).map_err(D::Error::custom)
    }
}

/// A text that is not a JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not a JSON pointer: write `{meant}`")]
pub struct NotAPointer {
    text: String,
    meant: String,
}

impl NotAPointer {
    /// With the pointer that is probably meant: `usage.input` and `$.usage.input` are `/usage/input`.
    fn with_correction(text: &str) -> Self {
        let names = text.trim_start_matches(['$', '.', '/']);
        let path = if names.contains('/') { names.to_owned() } else { names.replace('.', "/") };
        let escaped = path.replace("~0", "~").replace('~', "~0");
        Self { text: text.to_owned(), meant: format!("/{escaped}") }
    }
}

impl ParserRules {
    /// Returns the part of the configuration that makes the rules useless, and the reason.
    ///
    /// # Errors
    /// There is no rule, or a rule fits every line.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if *self == Self::default() {
            return Err(("parser", "the parser has no rule"));
        }
        if self.terminal.as_ref().is_some_and(|rule| rule.when.is_empty()) {
            return Err(("terminal", "the rule terminal has an empty when, so each line fits it"));
        }
        if self.error.as_ref().is_some_and(|rule| rule.when.is_empty()) {
            return Err(("error", "the rule error has an empty when, so each line fits it"));
        }
        let counts = self.usage.as_ref().map(|rule| {
            [&rule.input_tokens, &rule.output_tokens, &rule.cached_tokens, &rule.cost_usd]
        });
        if counts.is_some_and(|counts| counts.into_iter().all(Option::is_none)) {
            return Err(("usage", "the rule usage has no pointer"));
        }
        Ok(())
    }
}

/// The parser of one run.
#[derive(Debug)]
pub(crate) struct CustomParser {
    rules: ParserRules,
    session: Session,
    /// Calls whose start is already sent.
    started: BTreeSet<String>,
    /// The text of the current message.
    text: String,
    message: Option<String>,
    usage: Option<Usage>,
    cost_usd: Option<f64>,
    answer: Option<ProgramResult>,
    failure: Option<Failure>,
}

impl CustomParser {
    pub(crate) fn new(rules: ParserRules) -> Self {
        Self {
            rules,
            session: Session::default(),
            started: BTreeSet::new(),
            text: String::new(),
            message: None,
            usage: None,
            cost_usd: None,
            answer: None,
            failure: None,
        }
    }
}

impl Parser for CustomParser {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        let Some(object) = parse_object(line) else { return Vec::new() };
        let line = Value::Object(object);
        let id = self.rules.session.as_ref().and_then(|at| at.resolve(&line)?.as_str());
        let mut events: Vec<ProgramEvent> = self.session.update(id).into_iter().collect();
        let before = events.len();
        let used = self.read_usage(&line, &mut events);
        let ends = self.read_end(&line, &mut events);
        self.read_texts(&line, &mut events);
        self.read_calls(&line, &mut events);
        if events.len() == before && !used && !ends {
            events.push(status(line));
        }
        events
    }

    fn reads_json(&self) -> bool {
        true
    }

    fn is_complete(&self) -> bool {
        self.answer.is_some() || self.failure.is_some()
    }

    /// Answer and failure are sent at the end, because only then it is known which line is the last one.
    fn finish(&mut self) -> Vec<ProgramEvent> {
        let usage =
            self.usage.take().map(|usage| Usage { completeness: Completeness::Complete, ..usage });
        let answer = self.answer.take().map(|answer| ProgramResult {
            usage: usage.clone(),
            cost_usd: self.cost_usd,
            session_id: self.session.0.clone(),
            ..answer
        });
        let end = match (self.failure.take(), answer) {
            (Some(failure), answer) => {
                Some(ProgramEvent::Error(Failure { answer: answer.map(Box::new), ..failure }))
            }
            (None, answer) => answer.map(ProgramEvent::Final),
        };
        let usage = usage.map(ProgramEvent::Usage).filter(|_| end.is_some());
        usage.into_iter().chain(end).collect()
    }
}

impl CustomParser {
    fn read_texts(&mut self, line: &Value, events: &mut Vec<ProgramEvent>) {
        let said = self.rules.text.as_ref().and_then(|rule| rule.read_chunk(line));
        if let Some((text, message)) = said {
            if self.message != message {
                self.message.clone_from(&message);
                self.text.clear();
            }
            self.text.push_str(&text);
            events.push(ProgramEvent::AssistantDelta { text, message, parent: None });
        }
        let thought = self.rules.thinking.as_ref().and_then(|rule| rule.read_chunk(line));
        if let Some((text, message)) = thought {
            events.push(ProgramEvent::ThinkingDelta { text, message, parent: None });
        }
    }

    fn read_calls(&mut self, line: &Value, events: &mut Vec<ProgramEvent>) {
        if let Some(rule) = self.rules.tool_call.as_ref().filter(|rule| is_met(&rule.when, line))
            && let (Some(id), Some(name)) = (id_at(&rule.id, line), id_at(&rule.name, line))
            && self.started.insert(id.clone())
        {
            let arguments = value_at(&rule.arguments, line).cloned().unwrap_or_default();
            events.push(ProgramEvent::ToolCallStarted { id, name, arguments, parent: None });
        }
        if let Some(rule) = self.rules.tool_result.as_ref().filter(|rule| is_met(&rule.when, line))
            && let Some(id) = id_at(&rule.id, line)
        {
            events.push(ProgramEvent::ToolCallFinished {
                id,
                output: value_at(&rule.output, line).cloned().unwrap_or_default(),
                is_error: value_at(&rule.is_error, line).is_some_and(is_true),
                exit_code: value_at(&rule.exit_code, line).and_then(Value::as_i64),
                parent: None,
            });
        }
    }

    /// Returns `true` if the line has the usage.
    fn read_usage(&mut self, line: &Value, events: &mut Vec<ProgramEvent>) -> bool {
        let Some(rule) = self.rules.usage.as_ref().filter(|rule| is_met(&rule.when, line)) else {
            return false;
        };
        let count = |pointer| value_at(pointer, line).and_then(Value::as_u64);
        let usage = Usage {
            input_tokens: count(&rule.input_tokens),
            output_tokens: count(&rule.output_tokens),
            cached_tokens: count(&rule.cached_tokens),
            ..Usage::default()
        };
        let cost_usd = value_at(&rule.cost_usd, line).and_then(Value::as_f64);
        if usage.is_empty() && cost_usd.is_none() {
            return false;
        }
        let has_one = self.usage.is_some() || self.cost_usd.is_some();
        if !(has_one && rule.which == LastByDefault::First) {
            self.cost_usd = cost_usd.or(self.cost_usd);
            if !usage.is_empty() {
                events.push(ProgramEvent::Usage(usage.clone()));
                self.usage = Some(usage);
            }
        }
        true
    }

    /// Returns `true` if the line has the answer or an error.
    fn read_end(&mut self, line: &Value, events: &mut Vec<ProgramEvent>) -> bool {
        let mut ends = false;
        if let Some(rule) = self.rules.terminal.as_ref().filter(|rule| is_met(&rule.when, line)) {
            ends = true;
            let previous = self.answer.take();
            if previous.is_some() {
                let which = match rule.which {
                    LastByDefault::First => "first",
                    LastByDefault::Last => "last",
                };
                let message = format!("the program gave another answer; the {which} one is used");
                events.push(notice(NoticeCode::ExtraFinal, message));
            }
            self.answer = match previous {
                Some(first) if rule.which == LastByDefault::First => Some(first),
                previous => {
                    let own = match &rule.text {
                        Some(pointer) => pointer.resolve(line).map(as_text).unwrap_or_default(),
                        None => self.text.trim_end().to_owned(),
                    };
                    let text = match previous {
                        Some(previous) if own.trim().is_empty() => previous.text,
                        _ => own,
                    };
                    Some(ProgramResult { text, details: line.clone(), ..ProgramResult::default() })
                }
            };
        }
        if let Some(rule) = self.rules.error.as_ref().filter(|rule| is_met(&rule.when, line)) {
            ends = true;
            let own = value_at(&rule.message, line).map(as_text);
            let message = own.unwrap_or_else(|| "the program reported an error".to_owned());
            events.push(notice(NoticeCode::Reported, message.clone()));
            if self.failure.is_none() || rule.which == FirstByDefault::Last {
                self.failure = Some(Failure::new(ErrorKind::RuntimeCrash, message));
            }
        }
        ends
    }
}

impl TextRule {
    /// Returns the text of a line, and its message.
    fn read_chunk(&self, line: &Value) -> Option<(String, Option<String>)> {
        if !is_met(&self.when, line) {
            return None;
        }
        let text = self.text.resolve(line)?.as_str().filter(|text| !text.is_empty())?;
        let message = value_at(&self.message, line).map(as_text);
        Some((text.to_owned(), message))
    }
}

fn is_met(when: &Conditions, line: &Value) -> bool {
    when.iter().all(|(pointer, wanted)| line.pointer(&pointer.0).unwrap_or(&Value::Null) == wanted)
}

/// Returns the value at a location of a line; `None` if the rule has no pointer to it, or it is null.
fn value_at<'a>(pointer: &Option<JsonPointer>, line: &'a Value) -> Option<&'a Value> {
    pointer.as_ref().and_then(|pointer| pointer.resolve(line))
}

/// Returns a text or a number at a location.
fn id_at(pointer: &JsonPointer, line: &Value) -> Option<String> {
    let id = pointer.resolve(line).filter(|id| id.is_string() || id.is_number()).map(as_text);
    id.filter(|id| !id.is_empty())
}

fn as_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
