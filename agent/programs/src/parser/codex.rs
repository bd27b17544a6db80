//! Codex's `exec --json`: threads, turns and items.
//!
//! Items are messages, reasoning, commands, patches, MCP calls, searches and plans. They start, may be updated, and
//! complete; a short item only completes. The answer is the last message of the turn, if it has completed.
//!
//! Success is `turn.completed` without another status than `completed` and without an error, as the end of the last turn. Errors on
//! lines of their own do not end a turn: Codex reports warnings and lost connections in this way, and works on. After an error,
//! a turn that completes without any work has failed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::streamed::{Remainder, Streamed, TextKind, text_delta};
use super::{
    CUT_MESSAGE, Parser, Session, has_error, incomplete, notice, parse_object, reason, some_text,
    status, text_at, without,
};
use crate::event::{
    Completeness, ErrorKind, Failure, NoticeCode, ProgramEvent, ProgramResult, Usage,
};

/// The parser of one run.
#[derive(Debug, Default)]
pub struct CodexParser {
    session: Session,
    /// The text of incomplete messages and reasoning that is already sent.
    streamed: BTreeMap<String, Streamed>,
    /// Calls whose start is already sent.
    started: BTreeSet<String>,
    /// The last message: its id, and its text so far.
    last: (String, String),
    /// Whether the last message has begun, and has not completed.
    is_last_open: bool,
    used: Option<Usage>,
    /// The last error, unless the turn has gone on after it.
    error: Option<String>,
    /// Whether a turn has completed, and whether another one has begun since.
    has_completed: bool,
    has_open_turn: bool,
}

impl Parser for CodexParser {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        let Some(object) = parse_object(line) else { return Vec::new() };
        let line = Value::Object(object);
        let kind = text_at(&line, "type");
        let mut events: Vec<ProgramEvent> =
            self.session.update(line["thread_id"].as_str()).into_iter().collect();
        match kind {
            "turn.completed" => self.complete_turn(&line, &mut events),
            "turn.failed" => {
                self.has_open_turn = false;
                let why = reason(&line["error"], "the turn failed");
                events.push(ProgramEvent::Error(Failure {
                    recoverable: line["error"]["retryable"].as_bool().unwrap_or_default(),
                    answer: self.answer(&line, None).map(Box::new),
                    ..Failure::new(ErrorKind::RuntimeCrash, why)
                }));
            }
            "turn.aborted" => {
                self.has_open_turn = false;
                let why = reason(&line["reason"], "the turn was aborted");
                events.push(ProgramEvent::Error(Failure {
                    answer: self.answer(&line, None).map(Box::new),
                    ..Failure::new(ErrorKind::RuntimeCrash, why)
                }));
            }
            "turn.started" => {
                self.has_open_turn = true;
                events.push(status(line));
            }
            "error" => {
                let message = reason(&line, "the program reported an error");
                if line["will_retry"] != true {
                    self.error = Some(message.clone());
                }
                events.push(notice(NoticeCode::Reported, message));
            }
            "item.started" | "item.updated" | "item.completed" => {
                self.read_item(kind, &line["item"], &mut events);
            }
            "item.agent_message.delta" | "item.reasoning.delta" => {
                self.error = None;
                self.read_delta(kind, &line, &mut events);
            }
            _ => {
                self.read_usage(&line["usage"], Completeness::Partial, &mut events);
                events.push(status(line));
            }
        }
        events
    }

    fn reads_json(&self) -> bool {
        true
    }

    /// A turn that has begun after the answer and has not ended.
    fn finish(&mut self) -> Vec<ProgramEvent> {
        if !(self.has_completed && self.has_open_turn) {
            return Vec::new();
        }
        let why = "the program began another turn and did not complete it";
        let answer = self.answer(&Value::Null, None).map(Box::new);
        vec![ProgramEvent::Error(Failure { answer, ..Failure::new(ErrorKind::RuntimeCrash, why) })]
    }
}

impl CodexParser {
    fn read_item(&mut self, when: &str, item: &Value, events: &mut Vec<ProgramEvent>) {
        let completed = when == "item.completed";
        let kind = text_at(item, "type");
        if is_call(kind) || ["agent_message", "reasoning"].contains(&kind) {
            self.error = None;
        }
        match kind {
            "agent_message" => self.read_text(TextKind::Said, item, completed, events),
            "reasoning" => self.read_text(TextKind::Thought, item, completed, events),
            "error" => {
                let message = reason(item, "an item failed");
                self.error = Some(message.clone());
                events.push(notice(NoticeCode::Reported, message));
            }
            kind if some_text(item, "id").is_some() && is_call(kind) => {
                self.read_call(when, kind, item, events);
            }
            _ => events.push(status(json!({"type": when, "item": item}))),
        }
    }

    /// The current text of a message or reasoning item: only the new part is sent.
    fn read_text(
        &mut self,
        kind: TextKind,
        item: &Value,
        completed: bool,
        events: &mut Vec<ProgramEvent>,
    ) {
        let id = text_at(item, "id");
        let whole = text_at(item, "text");
        let rest = self.streamed.entry(id.to_owned()).or_default().complete_block(kind, whole);
        match rest {
            Remainder::New(rest) => events.extend(text_delta(kind, &rest, id)),
            Remainder::Differs => {
                let what = "the complete text of a streamed message differs from its chunks";
                events.push(notice(NoticeCode::TextDiffers, what));
            }
        }
        if completed {
            self.streamed.remove(id);
        } else {
            self.streamed.entry(id.to_owned()).or_default().add_chunk(0, kind, whole);
        }
        if kind == TextKind::Said {
            self.last = (id.to_owned(), whole.to_owned());
            self.is_last_open = !completed;
        }
    }

    fn read_delta(&mut self, when: &str, line: &Value, events: &mut Vec<ProgramEvent>) {
        let kind = if when.contains("reasoning") { TextKind::Thought } else { TextKind::Said };
        let item = &line["item"];
        let id = some_text(item, "id").unwrap_or_else(|| text_at(line, "item_id").to_owned());
        let places = [&item["content"]["text"], &item["text"], &item["delta"], &line["delta"]];
        let Some(piece) = places.into_iter().find_map(Value::as_str) else {
            events.push(status(line.clone()));
            return;
        };
        self.streamed.entry(id.clone()).or_default().add_chunk(0, kind, piece);
        events.extend(text_delta(kind, piece, &id));
        if kind == TextKind::Said {
            if self.last.0 != id {
                self.last = (id, String::new());
            }
            self.last.1.push_str(piece);
            self.is_last_open = true;
        }
    }

    /// A command, patch, MCP call or search. Its start is sent once, together with its end if necessary.
    fn read_call(&mut self, when: &str, kind: &str, item: &Value, events: &mut Vec<ProgramEvent>) {
        let id = text_at(item, "id").to_owned();
        if self.started.insert(id.clone()) {
            events.push(ProgramEvent::ToolCallStarted {
                id: id.clone(),
                name: tool_name(kind, item),
                arguments: call_arguments(kind, item),
                parent: None,
            });
        } else if when == "item.updated" {
            events.push(status(json!({"type": when, "item": item})));
        }
        if when == "item.completed" {
            let exit_code = item["exit_code"].as_i64();
            let has_completed = ["completed", ""].contains(&text_at(item, "status"));
            // A command that has not exited with 0 has no known success.
            let has_exited_well =
                exit_code == Some(0) || exit_code.is_none() && kind != "command_execution";
            let is_error = !has_completed || has_error(item) || !has_exited_well;
            events.push(ProgramEvent::ToolCallFinished {
                id,
                output: call_output(kind, item),
                is_error,
                exit_code,
                parent: None,
            });
        }
    }

    fn complete_turn(&mut self, line: &Value, events: &mut Vec<ProgramEvent>) {
        let usage = self.read_usage(&line["usage"], Completeness::Complete, events);
        let state = text_at(line, "status");
        // The turn continues elsewhere or waits, so there is no answer yet.
        if ["pending", "in_progress"].contains(&state) {
            events.push(status(line.clone()));
            return;
        }
        self.has_completed = true;
        self.has_open_turn = false;
        let has_response = !text_at(&line["final_response"], "text").is_empty();
        let error = self.error.take().filter(|_| !has_response);
        let failure = if has_error(line) || !["completed", ""].contains(&state) {
            let what = match state {
                "" | "completed" => "the turn failed".to_owned(),
                state => match text_at(&line["final_response"], "text") {
                    "" => format!("the turn is {state}"),
                    said => format!("the turn is {state}: {said}"),
                },
            };
            let details = text_at(&line["incomplete_details"], "reason");
            let known = incomplete(details, &[""])
                .filter(|failure| !has_error(line) && failure.kind != ErrorKind::RuntimeCrash);
            let failed = Failure::new(ErrorKind::RuntimeCrash, reason(&line["error"], &what));
            Some(known.unwrap_or(failed))
        } else if let Some(error) = error {
            Some(Failure::new(ErrorKind::RuntimeCrash, error))
        } else {
            let is_cut = self.is_last_open && !has_response;
            is_cut.then(|| Failure::new(ErrorKind::BadModelOutput, CUT_MESSAGE))
        };
        let answer = self.answer(line, usage.clone());
        events.push(match failure {
            Some(failure) => {
                ProgramEvent::Error(Failure { answer: answer.map(Box::new), ..failure })
            }
            None => {
                let session_id = self.session.0.clone();
                let none = ProgramResult { usage, session_id, ..ProgramResult::default() };
                ProgramEvent::Final(answer.unwrap_or(none))
            }
        });
    }

    /// Returns the answer of the turn, if it has one.
    fn answer(&self, line: &Value, usage: Option<Usage>) -> Option<ProgramResult> {
        let reported = some_text(&line["final_response"], "text");
        let text = reported.unwrap_or_else(|| self.last.1.clone());
        (!text.is_empty()).then(|| ProgramResult {
            text,
            usage: usage.or_else(|| self.used.clone()),
            session_id: self.session.0.clone(),
            details: without(line, &["type", "usage", "thread_id", "final_response"]),
            ..ProgramResult::default()
        })
    }

    fn read_usage(
        &mut self,
        reported: &Value,
        completeness: Completeness,
        events: &mut Vec<ProgramEvent>,
    ) -> Option<Usage> {
        let usage = Usage {
            input_tokens: reported["input_tokens"].as_u64(),
            output_tokens: reported["output_tokens"].as_u64(),
            cached_tokens: reported["cached_input_tokens"].as_u64(),
            cache_write_tokens: reported["cache_write_input_tokens"].as_u64(),
            reasoning_tokens: reported["reasoning_output_tokens"].as_u64(),
            completeness,
        };
        if usage.is_empty() {
            return self.used.clone();
        }
        self.used = Some(usage.clone());
        events.push(ProgramEvent::Usage(usage.clone()));
        Some(usage)
    }
}

/// Returns `true` if an item is a tool call.
fn is_call(kind: &str) -> bool {
    ["command_execution", "file_change", "web_search"].contains(&kind) || kind.ends_with("_call")
}

/// Returns the name of a tool: for MCP the name that Codex shows to the model, else the item's type.
fn tool_name(kind: &str, item: &Value) -> String {
    match (kind, some_text(item, "server"), some_text(item, "tool")) {
        ("mcp_tool_call", Some(server), Some(tool)) => format!("mcp__{server}__{tool}"),
        (_, _, Some(tool)) => tool,
        _ => kind.to_owned(),
    }
}

fn call_arguments(kind: &str, item: &Value) -> Value {
    match kind {
        "command_execution" => json!({"command": item["command"]}),
        "file_change" => json!({"changes": item["changes"]}),
        "mcp_tool_call" => item["arguments"].clone(),
        _ => without(item, &["id", "type", "status", "result", "error", "output"]),
    }
}

/// Returns the result of a call, or the error of a failed one.
fn call_output(kind: &str, item: &Value) -> Value {
    let result = match kind {
        "command_execution" => &item["aggregated_output"],
        "file_change" => &item["status"],
        _ => &item["result"],
    };
    if has_error(item) { item["error"].clone() } else { result.clone() }
}

#[cfg(test)]
mod tests;
