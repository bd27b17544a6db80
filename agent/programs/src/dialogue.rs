//! What is written on the stdin of a program that takes JSON lines: Claude Code's control protocol.
//!
//! One conversation, one turn: the prompt in the seed's layout as a single message of the user. Then stdin
//! stays open for decisions until there is an answer, and is closed, which is how the program learns that
//! it may go.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::prompt::Prompt;

/// What somebody decided about a tool that a program wants to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum Decision {
    /// It may.
    Allow {
        /// With these arguments; none: with those that it asked for.
        input: Option<Value>,
    },
    /// It may not.
    Deny {
        /// What the agent is told.
        message: String,
        /// Whether the whole turn ends with it.
        interrupt: bool,
    },
}

/// The first lines: what opens the control protocol, and the prompt.
pub(crate) fn opening(prompt: &Prompt) -> String {
    let initialize = request("initialize", json!({"subtype": "initialize"}));
    let message = json!({"role": "user", "content": prompt.layout()});
    let user = json!({
        "type": "user", "message": message, "parent_tool_use_id": null, "session_id": "default",
    });
    format!("{initialize}{user}\n")
}

/// Asks the program to leave off what it does.
pub(crate) fn interrupt() -> String {
    request("interrupt", json!({"subtype": "interrupt"}))
}

/// Answers an approval. The program takes the arguments from the answer, so they are in it either way.
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
