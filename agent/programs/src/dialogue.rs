//! The input of a program that reads JSON lines: Claude Code's control protocol.
//!
//! A conversation has one turn: the prompt is a single user message. Stdin stays open for decisions until there is
//! an answer. Then it is closed, so that the program exits.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::prompt::Prompt;

/// The decision on a tool that a program wants to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum Decision {
    /// Allow it.
    Allow {
        /// Replaces the requested arguments; `None` keeps them.
        input: Option<Value>,
    },
    /// Deny it.
    Deny {
        /// The message for the agent.
        message: String,
        /// Whether to end the whole turn.
        interrupt: bool,
    },
}

/// The first lines: the start of the control protocol, and the prompt.
pub(crate) fn opening(prompt: &Prompt) -> String {
    let initialize = request("initialize", json!({"subtype": "initialize"}));
    let message = json!({"role": "user", "content": prompt.layout()});
    let user = json!({
        "type": "user", "message": message, "parent_tool_use_id": null, "session_id": "default",
    });
    format!("{initialize}{user}\n")
}

/// Asks the program to interrupt its turn.
pub(crate) fn interrupt() -> String {
    request("interrupt", json!({"subtype": "interrupt"}))
}

/// The answer to an approval request. The program uses the arguments in the answer, so they are always included.
pub(crate) fn decision(request_id: &str, asked: &Value, decision: Decision) -> String {
    let response = match decision {
        Decision::Allow { input } => {
            json!({"behavior": "allow", "updatedInput": input.unwrap_or_else(|| asked.clone())})
        }
        Decision::Deny { message, interrupt } => {
            json!({"behavior": "deny", "message": message, "interrupt": interrupt})
        }
    };
    let response = json!({"subtype": "success", "request_id": request_id, "response": response});
    format!("{}\n", json!({"type": "control_response", "response": response}))
}

fn request(id: &str, request: Value) -> String {
    format!("{}\n", json!({"type": "control_request", "request_id": id, "request": request}))
}
