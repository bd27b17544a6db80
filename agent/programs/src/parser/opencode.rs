//! OpenCode's `run --format json`.
//!
//! It has no final line: the answer is the last text when the output ends. A step that finishes without tool calls
//! would indicate the end, but a compaction finishes the same way and the agent continues.
//!
//! Success is a last step with the reason `stop`, without an error in it. Everything else is a failure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Parser, Session, incomplete, notice, parse_object, some_text, status, text_at, without,
};
use crate::event::{
    Completeness, ErrorKind, Failure, NoticeCode, ProgramEvent, ProgramResult, Usage,
};

/// The parser of one run.
#[derive(Debug, Default)]
pub struct OpenCodeParser {
    session: Session,
    /// Calls whose start is already sent.
    started: BTreeSet<String>,
    /// The text of the current step.
    text: String,
    used: Option<Usage>,
    cost_usd: Option<f64>,
    /// The answer so far.
    answer: Option<ProgramResult>,
    failure: Option<Failure>,
    /// Whether a step has begun and not finished.
    has_open_step: bool,
    /// Whether a step has begun since the last error.
    has_recovered: bool,
}

impl Parser for OpenCodeParser {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        let Some(object) = parse_object(line) else { return Vec::new() };
        let line = Value::Object(object);
        let part = &line["part"];
        let mut events: Vec<ProgramEvent> =
            self.session.update(line["sessionID"].as_str()).into_iter().collect();
        match text_at(&line, "type") {
            "text" if part["text"].is_string() => {
                self.text.push_str(text_at(part, "text"));
                let text = text_at(part, "text").to_owned();
                let message = some_text(part, "id");
                events.push(ProgramEvent::AssistantDelta { text, message, parent: None });
            }
            "reasoning" if part["text"].is_string() => {
                let text = text_at(part, "text").to_owned();
                let message = some_text(part, "id");
                events.push(ProgramEvent::ThinkingDelta { text, message, parent: None });
            }
            "tool_use" if some_text(part, "callID").is_some() => self.read_call(part, &mut events),
            "step_finish" => self.read_step_finish(line, &mut events),
            "error" => {
                let failure = read_failure(&line["error"]);
                events.push(notice(NoticeCode::Reported, failure.message.clone()));
                self.failure = Some(failure);
                self.has_recovered = false;
            }
            kind => {
                if kind == "step_start" {
                    self.has_open_step = true;
                    self.has_recovered = true;
                    self.text.clear();
                }
                events.push(status(line));
            }
        }
        events
    }

    fn reads_json(&self) -> bool {
        true
    }

    fn is_complete(&self) -> bool {
        !self.has_open_step && (self.answer.is_some() || self.failure.is_some())
    }

    fn finish(&mut self) -> Vec<ProgramEvent> {
        let usage =
            self.used.take().map(|usage| Usage { completeness: Completeness::Complete, ..usage });
        let answer = self.answer.take();
        let answer = answer.map(|answer| ProgramResult { usage: usage.clone(), ..answer });
        if self.has_open_step && answer.is_some() {
            let why = "the program began another step and did not complete it";
            self.failure.get_or_insert_with(|| Failure::new(ErrorKind::RuntimeCrash, why));
        }
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

impl OpenCodeParser {
    /// Calls are usually reported when they have finished.
    fn read_call(&mut self, part: &Value, events: &mut Vec<ProgramEvent>) {
        let id = text_at(part, "callID").to_owned();
        let state = &part["state"];
        if self.started.insert(id.clone()) {
            events.push(ProgramEvent::ToolCallStarted {
                id: id.clone(),
                name: text_at(part, "tool").to_owned(),
                arguments: state["input"].clone(),
                parent: None,
            });
        }
        let output = match text_at(state, "status") {
            "completed" => &state["output"],
            "error" => &state["error"],
            _ => return,
        };
        let metadata = &state["metadata"];
        events.push(ProgramEvent::ToolCallFinished {
            id,
            output: output.clone(),
            is_error: text_at(state, "status") == "error",
            exit_code: metadata["exit"].as_i64().or_else(|| metadata["exitCode"].as_i64()),
            parent: None,
        });
    }

    fn read_step_finish(&mut self, line: Value, events: &mut Vec<ProgramEvent>) {
        let part = &line["part"];
        if let Some(usage) = read_usage(&part["tokens"]) {
            let used = self.used.take().unwrap_or_default().plus(&usage);
            events.push(ProgramEvent::Usage(used.clone()));
            self.used = Some(used);
        }
        if let Some(cost) = part["cost"].as_f64() {
            *self.cost_usd.get_or_insert(0.0) += cost;
        }
        self.has_open_step = false;
        let reason = text_at(part, "reason");
        // The agent goes on after these.
        let goes_on = ["tool-calls", "unknown"].contains(&reason);
        self.answer = (!goes_on).then(|| ProgramResult {
            text: std::mem::take(&mut self.text),
            usage: None,
            cost_usd: self.cost_usd,
            session_id: self.session.0.clone(),
            details: without(part, &["id", "sessionID", "type", "tokens", "cost"]),
            ..ProgramResult::default()
        });
        if !goes_on {
            let reported = self.failure.take().filter(|_| !self.has_recovered);
            self.failure = reported.or_else(|| match reason {
                "" => Some(Failure::new(
                    ErrorKind::RuntimeCrash,
                    "the last step of the program has no reason",
                )),
                reason => incomplete(reason, &["stop"]),
            });
        }
        events.push(status(line));
    }
}

fn read_usage(tokens: &Value) -> Option<Usage> {
    let usage = Usage {
        input_tokens: tokens["input"].as_u64(),
        output_tokens: tokens["output"].as_u64(),
        cached_tokens: tokens["cache"]["read"].as_u64(),
        cache_write_tokens: tokens["cache"]["write"].as_u64(),
        reasoning_tokens: tokens["reasoning"].as_u64(),
        completeness: Completeness::Partial,
    };
    (!usage.is_empty()).then_some(usage)
}

fn read_failure(error: &Value) -> Failure {
    let name = text_at(error, "name");
    let data = &error["data"];
    let kind = match name {
        "MessageAbortedError" => ErrorKind::Cancelled,
        _ => ErrorKind::RuntimeCrash,
    };
    let message = some_text(data, "message").or_else(|| some_text(error, "message"));
    let message = message.unwrap_or_else(|| format!("the program reported {name}"));
    let recoverable = data["isRetryable"].as_bool().unwrap_or_default();
    Failure { recoverable, ..Failure::new(kind, message) }
}

#[cfg(test)]
mod tests;
