//! Gemini CLI's `--output-format stream-json`.
//!
//! The answer is not in the `result` line: it is the assistant's text after its last tool call. Success is a result with the status
//! `success`, without an error in it or before it. Everything else is a failure: warnings are no errors.

use serde_json::Value;

use super::{
    Parser, Session, has_error, notice, parse_object, reason, some_text, status, text_at, without,
};
use crate::event::{
    Completeness, ErrorKind, Failure, NoticeCode, ProgramEvent, ProgramResult, Usage,
};

/// The parser of one run.
#[derive(Debug, Default)]
pub struct GeminiParser {
    session: Session,
    /// The text since the last tool call.
    text: String,
    /// The text before it, if there is none since.
    before: String,
    /// Why the program stopped before the answer was complete. Its result reports success nevertheless.
    stopped: Option<Failure>,
}

impl Parser for GeminiParser {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        let Some(object) = parse_object(line) else { return Vec::new() };
        let line = Value::Object(object);
        let mut events: Vec<ProgramEvent> =
            self.session.update(line["session_id"].as_str()).into_iter().collect();
        match text_at(&line, "type") {
            "message" if text_at(&line, "role") == "assistant" => {
                self.read_message(&line, &mut events)
            }
            "tool_use" if some_text(&line, "tool_id").is_some() => {
                if !self.text.is_empty() {
                    self.before = std::mem::take(&mut self.text);
                }
                events.push(ProgramEvent::ToolCallStarted {
                    id: text_at(&line, "tool_id").to_owned(),
                    name: text_at(&line, "tool_name").to_owned(),
                    arguments: line["parameters"].clone(),
                    parent: None,
                });
            }
            "tool_result" if some_text(&line, "tool_id").is_some() => {
                events.push(tool_result(&line))
            }
            // This is not the end: a `result` line or the exit code follows.
            "error" => {
                let message = some_text(&line, "message")
                    .unwrap_or_else(|| "the program reported an error".to_owned());
                if STOPS.iter().any(|stop| message.contains(stop)) {
                    self.stopped = Some(Failure::new(ErrorKind::LoopLimit, message.clone()));
                } else if !["warning", "info"].contains(&text_at(&line, "severity")) {
                    self.stopped.get_or_insert_with(|| {
                        Failure::new(ErrorKind::RuntimeCrash, message.clone())
                    });
                }
                events.push(notice(NoticeCode::Reported, message));
            }
            "result" => self.read_result(&line, &mut events),
            _ => events.push(status(line)),
        }
        events
    }

    fn reads_json(&self) -> bool {
        true
    }
}

/// The messages after which the program stops, although the answer is not complete. One of them is a warning.
const STOPS: [&str; 2] = ["Maximum session turns exceeded", "Loop detected"];

impl GeminiParser {
    /// A chunk of a message, or a complete message, which may repeat its chunks.
    fn read_message(&mut self, line: &Value, events: &mut Vec<ProgramEvent>) {
        let content = text_at(line, "content");
        let piece = line["delta"].as_bool().unwrap_or_default();
        if content.is_empty() || (!piece && self.text == content) {
            return;
        }
        self.text.push_str(content);
        let text = content.to_owned();
        events.push(ProgramEvent::AssistantDelta { text, message: None, parent: None });
    }

    fn read_result(&mut self, line: &Value, events: &mut Vec<ProgramEvent>) {
        let usage = read_usage(&line["stats"]);
        events.extend(usage.clone().map(ProgramEvent::Usage));
        let answer_text = if self.text.is_empty() { &self.before } else { &self.text };
        let answer = ProgramResult {
            text: answer_text.clone(),
            usage,
            session_id: self.session.0.clone(),
            details: without(line, &["type", "session_id"]),
            ..ProgramResult::default()
        };
        let state = text_at(line, "status");
        if state == "success" && !has_error(line) {
            events.push(match self.stopped.take() {
                Some(stopped) => {
                    ProgramEvent::Error(Failure { answer: Some(Box::new(answer)), ..stopped })
                }
                None => ProgramEvent::Final(answer),
            });
            return;
        }
        let error = &line["error"];
        let kind = match text_at(error, "type") {
            kind if kind.contains("Turn") => ErrorKind::LoopLimit,
            kind if kind.contains("Cancel") => ErrorKind::Cancelled,
            _ if ["cancelled", "canceled"].contains(&state) => ErrorKind::Cancelled,
            _ => ErrorKind::RuntimeCrash,
        };
        let otherwise = match state {
            "" => "the program did not report success".to_owned(),
            "error" | "success" => "the program reported an error".to_owned(),
            state => format!("the program reported {state}"),
        };
        let message = reason(error, &otherwise);
        let answer = Some(Box::new(answer));
        events.push(ProgramEvent::Error(Failure { answer, ..Failure::new(kind, message) }));
    }
}

/// The error of a failed tool may be in `error`, without `output`.
fn tool_result(line: &Value) -> ProgramEvent {
    let has_output = !line["output"].is_null() && line["output"] != "";
    let output =
        if has_output || line["error"].is_null() { &line["output"] } else { &line["error"] };
    ProgramEvent::ToolCallFinished {
        id: text_at(line, "tool_id").to_owned(),
        output: output.clone(),
        is_error: text_at(line, "status") != "success",
        exit_code: None,
        parent: None,
    }
}

fn read_usage(stats: &Value) -> Option<Usage> {
    let usage = Usage {
        input_tokens: stats["input_tokens"].as_u64(),
        output_tokens: stats["output_tokens"].as_u64(),
        cached_tokens: stats["cached"].as_u64(),
        completeness: Completeness::Complete,
        ..Usage::default()
    };
    (!usage.is_empty()).then_some(usage)
}

#[cfg(test)]
mod tests;
