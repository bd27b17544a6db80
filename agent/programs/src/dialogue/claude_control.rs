//! The input of a program that reads JSON lines: Claude Code's control protocol.
//!
//! The prompt is a single user message. Stdin stays open for decisions until there is an answer. Then it is closed, so
//! that the program exits.

use serde_json::{Value, json};

use super::{Decision, Dialogue, Reply};
use crate::event::ProgramEvent;
use crate::parser::Parser;
use crate::prompt::Prompt;

/// The conversation with Claude Code.
pub(crate) struct ClaudeControl(pub(crate) Box<dyn Parser>);

impl Parser for ClaudeControl {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        self.0.parse_line(line)
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    fn finish(&mut self) -> Vec<ProgramEvent> {
        self.0.finish()
    }

    fn reply(&mut self) -> Option<String> {
        self.0.reply()
    }
}

impl Dialogue for ClaudeControl {
    /// The start of the control protocol, and the prompt.
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
            json!({"subtype": "success", "request_id": request_id, "response": response});
        format!("{}\n", json!({"type": "control_response", "response": response})).into()
    }

    fn interrupt(&mut self) -> Option<Reply> {
        Some(request("interrupt", json!({"subtype": "interrupt"})).into())
    }
}

fn request(id: &str, request: Value) -> String {
    format!("{}\n", json!({"type": "control_request", "request_id": id, "request": request}))
}
