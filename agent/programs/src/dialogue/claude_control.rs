//! The input of a program that reads JSON lines: Claude Code's control protocol.
//!
//! The prompt is a single user message. Stdin stays open for decisions until there is an answer. Then it is closed, so
//! that the program exits.

//! Its requests for decisions have ids. An answer must decide on what a person has seen, so an id names one call only.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::{Decision, Dialogue, Reply};
use crate::event::{NoticeCode, ProgramEvent};
use crate::parser::{Parser, notice, parse_object};
use crate::prompt::Prompt;

/// The conversation with Claude Code.
pub(crate) struct ClaudeControl {
    parser: Box<dyn Parser>,
    /// All requests for decisions so far.
    requests: BTreeMap<String, Request>,
    replies: VecDeque<String>,
}

/// A request for a decision.
struct Request {
    /// The id as the program wrote it: a text or a number.
    id: Value,
    tool: String,
    input: Value,
    is_open: bool,
}

impl ClaudeControl {
    pub(crate) fn new(parser: Box<dyn Parser>) -> Self {
        Self { parser, requests: BTreeMap::new(), replies: VecDeque::new() }
    }

    /// Checks the id of a request. The same request again has the answer of the first one. An id that is used for another call is
    /// refused, and so is the first call if it is open: the program would take the answer to one for the answer to the other.
    fn check_request(&mut self, event: ProgramEvent, line: &str, events: &mut Vec<ProgramEvent>) {
        let ProgramEvent::ApprovalRequested { request_id, tool, input, .. } = &event else {
            return;
        };
        if request_id.is_empty() {
            let why = format!("the program asked to use {tool} without a request id: no answer");
            events.push(notice(NoticeCode::Denied, why));
            return;
        }
        let request_id = request_id.clone();
        let Some(first) = self.requests.get_mut(&request_id) else {
            let mut line = parse_object(line).unwrap_or_default();
            let id = line.remove("request_id").unwrap_or_else(|| json!(request_id));
            let tool = tool.clone();
            let input = input.clone();
            self.requests.insert(request_id, Request { id, tool, input, is_open: true });
            events.push(event);
            return;
        };
        if first.is_open && first.tool == *tool && first.input == *input {
            return;
        }
        let error = "this request id was used before";
        let response = json!({"subtype": "error", "request_id": first.id, "error": error});
        self.replies.push_back(control_response(&response));
        let why = format!("the program used request id {request_id:?} again: {tool} is denied");
        events.push(notice(NoticeCode::Denied, why));
        if std::mem::take(&mut first.is_open) {
            events.push(ProgramEvent::ApprovalWithdrawn { request_id });
        }
    }
}

impl Parser for ClaudeControl {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        let mut events = Vec::new();
        for event in self.parser.parse_line(line) {
            match event {
                ProgramEvent::ApprovalRequested { .. } => {
                    self.check_request(event, line, &mut events)
                }
                ProgramEvent::ApprovalWithdrawn { request_id } => {
                    if let Some(request) = self.requests.get_mut(&request_id) {
                        request.is_open = false;
                    }
                    events.push(ProgramEvent::ApprovalWithdrawn { request_id });
                }
                event => events.push(event),
            }
        }
        events
    }

    fn reads_json(&self) -> bool {
        self.parser.reads_json()
    }

    fn is_complete(&self) -> bool {
        self.parser.is_complete()
    }

    fn finish(&mut self) -> Vec<ProgramEvent> {
        self.parser.finish()
    }

    fn reply(&mut self) -> Option<String> {
        self.replies.pop_front().or_else(|| self.parser.reply())
    }
}

impl Dialogue for ClaudeControl {
    /// Returns the start of the control protocol, and the prompt.
    fn opening(&mut self, prompt: &Prompt) -> String {
        let initialize = request("initialize", json!({"subtype": "initialize"}));
        let message = json!({"role": "user", "content": prompt.layout()});
        let user = json!({
            "type": "user", "message": message, "parent_tool_use_id": null,
            "session_id": "default",
        });
        format!("{initialize}{user}\n")
    }

    /// The program uses the arguments in the answer, so they are always included.
    fn decide(&mut self, request_id: &str, asked: &Value, decision: Decision) -> Reply {
        let Some(request) = self.requests.get_mut(request_id).filter(|request| request.is_open)
        else {
            return Reply::default();
        };
        request.is_open = false;
        let response = match decision {
            Decision::Allow { input } => {
                let input = input.unwrap_or_else(|| asked.clone());
                json!({"behavior": "allow", "updatedInput": input})
            }
            Decision::Deny { message, interrupt } => {
                json!({"behavior": "deny", "message": message, "interrupt": interrupt})
            }
        };
        let response =
            json!({"subtype": "success", "request_id": request.id, "response": response});
        control_response(&response).into()
    }

    fn interrupt(&mut self) -> Option<Reply> {
        Some(request("interrupt", json!({"subtype": "interrupt"})).into())
    }
}

fn request(id: &str, request: Value) -> String {
    format!("{}\n", json!({"type": "control_request", "request_id": id, "request": request}))
}

fn control_response(response: &Value) -> String {
    format!("{}\n", json!({"type": "control_response", "response": response}))
}
