//! Claude Code's `--output-format stream-json`.
//!
//! An assistant message has one line for each of its content blocks, all with the message's id. With
//! `--include-partial-messages`, its chunks precede them, as the provider's own stream events. Therefore text is
//! taken from the chunks if there are any, and the usage of a message is counted once per id, not per line. Only
//! the `result` line has the total usage, the cost and the status.
//!
//! Success is the subtype `success` without an error, after a last message of the agent that is complete: see
//! [`COMPLETE`]. Everything else is a failure.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::streamed::{Remainder, Streamed, TextKind};
use super::{
    Parser, Session, content_text, has_error, id_text, incomplete, is_blank, notice, parse_object,
    reason as error_reason, some_text, status, stop_reason, text_at, without,
};
use crate::event::{
    Completeness, Denial, ErrorKind, Failure, NoticeCode, ProgramEvent, ProgramResult, Usage,
};

/// The parser of one run.
#[derive(Debug, Default)]
pub struct ClaudeParser {
    session: Session,
    /// The streamed text of messages that may still arrive complete.
    streamed: BTreeMap<String, Streamed>,
    /// The message that is being streamed: of the agent (`None`), and of each sub-agent by its call.
    current: BTreeMap<Option<String>, String>,
    /// The last reported usage of each message of the agent itself.
    used: BTreeMap<String, Usage>,
    reported: Usage,
    /// The name and arguments of calls whose start is already sent. Session logs repeat messages, for example after a
    /// resumption; the same id with another content is another call.
    started: BTreeMap<String, (String, Value)>,
    /// Why the last message of the agent itself ended: the model's stop reason, and the error of the API.
    stop_reason: Option<String>,
    api_error: Option<String>,
    replies: VecDeque<String>,
}

/// The stop reasons of a complete answer. A structured answer is the call of a tool.
const COMPLETE: [&str; 3] = ["end_turn", "stop_sequence", "tool_use"];

impl Parser for ClaudeParser {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        let Some(object) = parse_object(line) else { return Vec::new() };
        let line = Value::Object(object);
        let mut events: Vec<ProgramEvent> =
            self.session.update(line["session_id"].as_str()).into_iter().collect();
        match text_at(&line, "type") {
            "assistant" => self.read_assistant(&line, &mut events),
            "user" => read_user(&line, &mut events),
            "stream_event" => self.read_stream_event(&line, &mut events),
            // Session logs also use this type for results of tools.
            "result" if line["subtype"].is_string() || line["result"].is_string() => {
                self.read_result(&line, &mut events);
            }
            "control_request" => self.read_control_request(line, &mut events),
            "control_cancel_request" if id_text(&line, "request_id").is_some() => {
                let request_id = id_text(&line, "request_id").unwrap_or_default();
                events.push(ProgramEvent::ApprovalWithdrawn { request_id });
            }
            _ => events.push(status(line)),
        }
        events
    }

    fn reads_json(&self) -> bool {
        true
    }

    fn reply(&mut self) -> Option<String> {
        self.replies.pop_front()
    }
}

impl ClaudeParser {
    fn read_assistant(&mut self, line: &Value, events: &mut Vec<ProgramEvent>) {
        let message = &line["message"];
        let id = some_text(message, "id");
        let parent = parent_call(line);
        match &message["content"] {
            Value::Array(blocks) => {
                for block in blocks {
                    self.read_block(block, &id, &parent, events);
                }
            }
            Value::String(whole) => {
                let block = json!({"type": "text", "text": whole});
                self.read_block(&block, &id, &parent, events);
            }
            _ => events.push(status(line.clone())),
        }
        if let Some(error) = some_text(line, "error") {
            events.push(notice(NoticeCode::Reported, error));
        }
        if parent.is_none() {
            self.stop_reason = stop_reason(message);
            let is_api_error = line["isApiErrorMessage"] == true || has_error(line);
            self.api_error = is_api_error.then(|| {
                let said = content_text(&message["content"]).filter(|text| !text.is_empty());
                said.unwrap_or_else(|| error_reason(&line["error"], "the API reported an error"))
            });
        }
        self.update_usage(&id, &parent, &message["usage"], events);
    }

    /// A content block of a complete message.
    fn read_block(
        &mut self,
        block: &Value,
        message: &Option<String>,
        parent: &Option<String>,
        events: &mut Vec<ProgramEvent>,
    ) {
        let kind = text_at(block, "type");
        let whole = match kind {
            "text" => block["text"].as_str().map(|text| (TextKind::Said, text)),
            "thinking" => block["thinking"].as_str().map(|text| (TextKind::Thought, text)),
            _ => None,
        };
        if let Some((kind, text)) = whole {
            let streamed = message.as_ref().and_then(|id| self.streamed.get_mut(id));
            let rest = streamed
                .map_or_else(|| Remainder::New(text.to_owned()), |s| s.complete_block(kind, text));
            events.extend(match rest {
                Remainder::New(text) => text_delta(kind, &text, message, parent),
                Remainder::Differs => Some(notice(
                    NoticeCode::TextDiffers,
                    "the complete text of a streamed message differs from its chunks",
                )),
            });
        } else if kind.ends_with("tool_use")
            && let (Some(id), Some(name)) = (some_text(block, "id"), some_text(block, "name"))
        {
            let arguments = block["input"].clone();
            let call = (name.clone(), arguments.clone());
            if self.started.insert(id.clone(), call.clone()) == Some(call) {
                return;
            }
            let parent = parent.clone();
            events.push(ProgramEvent::ToolCallStarted { id, name, arguments, parent });
        } else if let Some(finished) = tool_result(block, parent) {
            events.push(finished);
        } else {
            events.push(status(block.clone()));
        }
    }

    /// An event of the provider's stream, as Claude Code passes it on.
    fn read_stream_event(&mut self, line: &Value, events: &mut Vec<ProgramEvent>) {
        let event = &line["event"];
        let parent = parent_call(line);
        let index = event["index"].as_u64().unwrap_or_default();
        match text_at(event, "type") {
            "message_start" => {
                let message = &event["message"];
                let Some(id) = some_text(message, "id") else { return };
                if let Some(last) = self.current.insert(parent.clone(), id.clone()) {
                    self.streamed.remove(&last);
                }
                self.update_usage(&Some(id), &parent, &message["usage"], events);
            }
            "content_block_start" => {
                let block = &event["content_block"];
                match text_at(block, "type") {
                    "text" => self.read_chunk(
                        index,
                        TextKind::Said,
                        text_at(block, "text"),
                        &parent,
                        events,
                    ),
                    "thinking" => {
                        self.read_chunk(
                            index,
                            TextKind::Thought,
                            text_at(block, "thinking"),
                            &parent,
                            events,
                        );
                    }
                    // A complete block follows later.
                    _ => {}
                }
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                match text_at(delta, "type") {
                    "text_delta" => {
                        self.read_chunk(
                            index,
                            TextKind::Said,
                            text_at(delta, "text"),
                            &parent,
                            events,
                        );
                    }
                    "thinking_delta" => {
                        self.read_chunk(
                            index,
                            TextKind::Thought,
                            text_at(delta, "thinking"),
                            &parent,
                            events,
                        );
                    }
                    "input_json_delta" | "signature_delta" | "citations_delta" => {}
                    _ => events.push(status(line.clone())),
                }
            }
            "message_delta" => {
                if parent.is_none() {
                    self.stop_reason = stop_reason(&event["delta"]).or(self.stop_reason.take());
                }
                let id = self.current.get(&parent).cloned();
                self.update_usage(&id, &parent, &event["usage"], events);
            }
            "content_block_stop" | "message_stop" | "ping" => {}
            _ => events.push(status(line.clone())),
        }
    }

    fn read_chunk(
        &mut self,
        index: u64,
        kind: TextKind,
        text: &str,
        parent: &Option<String>,
        events: &mut Vec<ProgramEvent>,
    ) {
        let id = self.current.get(parent).cloned();
        if let Some(id) = &id {
            self.streamed.entry(id.clone()).or_default().add_chunk(index, kind, text);
        }
        events.extend(text_delta(kind, text, &id, parent));
    }

    /// The usage so far: the sum of the last report for each message of the agent. Sub-agents are not included, as
    /// in the total of the result.
    fn update_usage(
        &mut self,
        message: &Option<String>,
        parent: &Option<String>,
        reported: &Value,
        events: &mut Vec<ProgramEvent>,
    ) {
        let (Some(id), None, Some(usage)) = (message, parent, read_usage(reported)) else { return };
        self.used.insert(id.clone(), usage);
        let sum = self.used.values().fold(Usage::default(), Usage::plus);
        if sum != self.reported {
            self.reported = sum.clone();
            events.push(ProgramEvent::Usage(sum));
        }
    }

    fn read_result(&mut self, line: &Value, events: &mut Vec<ProgramEvent>) {
        let usage = read_usage(&line["usage"])
            .map(|usage| Usage { completeness: Completeness::Complete, ..usage });
        events.extend(usage.clone().map(ProgramEvent::Usage));
        let answer = ProgramResult {
            text: text_at(line, "result").to_owned(),
            usage,
            cost_usd: line["total_cost_usd"].as_f64().or_else(|| line["cost_usd"].as_f64()),
            session_id: some_text(line, "session_id"),
            turns: line["num_turns"].as_i64(),
            structured: line.get("structured_output").filter(|data| !data.is_null()).cloned(),
            denials: read_denials(&line["permission_denials"]),
            details: without(line, &LIFTED),
            exit: None,
        };
        events.push(match self.failure(line) {
            None => ProgramEvent::Final(answer),
            Some(failure) => {
                ProgramEvent::Error(Failure { answer: Some(Box::new(answer)), ..failure })
            }
        });
    }

    /// Why a result is no success.
    fn failure(&self, line: &Value) -> Option<Failure> {
        let subtype = text_at(line, "subtype");
        let is_success = subtype == "success" && !is_error(line);
        if !is_success {
            let kind = match subtype {
                "error_max_turns" => ErrorKind::LoopLimit,
                "error_max_budget_usd" => ErrorKind::BudgetExceeded,
                "error_max_structured_output_retries" => ErrorKind::BadModelOutput,
                _ => ErrorKind::RuntimeCrash,
            };
            // Derived only from the provider's HTTP status, if reported: too many requests, or a server error.
            let recoverable =
                line["api_error_status"].as_i64().is_some_and(|code| code == 429 || code >= 500);
            return Some(Failure { recoverable, ..Failure::new(kind, failure_reason(line)) });
        }
        if let Some(error) = &self.api_error {
            return Some(Failure::new(ErrorKind::RuntimeCrash, error));
        }
        let stop_reason = stop_reason(line).or_else(|| self.stop_reason.clone());
        if let Some(failure) = stop_reason.and_then(|reason| incomplete(&reason, &COMPLETE)) {
            return Some(failure);
        }
        let ended = some_text(line, "terminal_reason").filter(|ended| ended != "completed");
        ended.map(|ended| {
            Failure::new(ErrorKind::RuntimeCrash, format!("the program reported {ended}"))
        })
    }

    /// A control request of the program. Only permission requests are for users. All others are declined, because
    /// the program waits for an answer and no capability was announced.
    fn read_control_request(&mut self, line: Value, events: &mut Vec<ProgramEvent>) {
        let request = &line["request"];
        if text_at(request, "subtype") == "can_use_tool" {
            let request_id = id_text(&line, "request_id").unwrap_or_default();
            events.push(ProgramEvent::ApprovalRequested {
                request_id,
                tool: text_at(request, "tool_name").to_owned(),
                input: request["input"].clone(),
                call_id: some_text(request, "tool_use_id"),
                details: without(request, &["subtype", "tool_name", "input", "tool_use_id"]),
            });
            return;
        }
        let declined = json!({"type": "control_response", "response": {
            "subtype": "error", "request_id": line["request_id"], "error": "not supported by this client",
        }});
        self.replies.push_back(format!("{declined}\n"));
        events.push(status(line));
    }
}

/// The keys that [`ProgramResult`] has fields for.
const LIFTED: [&str; 9] = [
    "type",
    "result",
    "usage",
    "total_cost_usd",
    "cost_usd",
    "session_id",
    "num_turns",
    "structured_output",
    "permission_denials",
];

/// A user line: results of tools, and other content that the program adds.
fn read_user(line: &Value, events: &mut Vec<ProgramEvent>) {
    let parent = parent_call(line);
    match &line["message"]["content"] {
        Value::Array(blocks) => events.extend(blocks.iter().map(|block| {
            tool_result(block, &parent).unwrap_or_else(|| {
                status(json!({"type": "user", "block": block, "parent_tool_use_id": parent}))
            })
        })),
        _ => events.push(status(line.clone())),
    }
}

/// Returns the result of any tool: `tool_result`, `web_search_tool_result`, `mcp_tool_result` …
fn tool_result(block: &Value, parent: &Option<String>) -> Option<ProgramEvent> {
    if !text_at(block, "type").ends_with("tool_result") {
        return None;
    }
    Some(ProgramEvent::ToolCallFinished {
        id: some_text(block, "tool_use_id")?,
        output: block["content"].clone(),
        is_error: block["is_error"].as_bool().unwrap_or_default(),
        exit_code: None,
        parent: parent.clone(),
    })
}

fn text_delta(
    kind: TextKind,
    text: &str,
    message: &Option<String>,
    parent: &Option<String>,
) -> Option<ProgramEvent> {
    if text.is_empty() {
        return None;
    }
    let text = text.to_owned();
    let message = message.clone();
    let parent = parent.clone();
    Some(match kind {
        TextKind::Said => ProgramEvent::AssistantDelta { text, message, parent },
        TextKind::Thought => ProgramEvent::ThinkingDelta { text, message, parent },
    })
}

/// Returns the call of the sub-agent that a line belongs to.
fn parent_call(line: &Value) -> Option<String> {
    some_text(line, "parent_tool_use_id")
}

fn read_usage(reported: &Value) -> Option<Usage> {
    let usage = Usage {
        input_tokens: reported["input_tokens"].as_u64(),
        output_tokens: reported["output_tokens"].as_u64(),
        cached_tokens: reported["cache_read_input_tokens"].as_u64(),
        cache_write_tokens: reported["cache_creation_input_tokens"].as_u64(),
        reasoning_tokens: None,
        completeness: Completeness::Partial,
    };
    (!usage.is_empty()).then_some(usage)
}

fn read_denials(reported: &Value) -> Vec<Denial> {
    let reported = reported.as_array().into_iter().flatten();
    reported
        .map(|denial| Denial {
            tool: text_at(denial, "tool_name").to_owned(),
            call_id: some_text(denial, "tool_use_id"),
            input: denial["tool_input"].clone(),
        })
        .collect()
}

/// Returns `true` if a result has an error, whatever its subtype.
fn is_error(line: &Value) -> bool {
    let is_marked = !matches!(line["is_error"], Value::Null | Value::Bool(false));
    is_marked || !is_blank(&line["errors"]) || has_error(line)
}

/// Returns the program's message for a result that is no success.
fn failure_reason(line: &Value) -> String {
    let errors = line["errors"].as_array().into_iter().flatten();
    let errors: Vec<String> = errors.map(|error| error_reason(error, &error.to_string())).collect();
    if !errors.is_empty() {
        return errors.join("; ");
    }
    if has_error(line) {
        return error_reason(&line["error"], "the program reported an error");
    }
    let reported = match text_at(line, "subtype") {
        "" => "the program did not report success".to_owned(),
        subtype => format!("the program reported {subtype}"),
    };
    match text_at(line, "result") {
        "" => reported,
        result if is_error(line) => result.to_owned(),
        result => format!("{reported}: {result}"),
    }
}

#[cfg(test)]
mod tests;
