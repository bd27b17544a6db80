//! Both directions of the conversation with a program: what is written to its stdin, and what its lines mean. A
//! conversation has one turn: one prompt, and one answer.

pub(crate) mod acp;
pub(crate) mod app_server;
pub(crate) mod claude_control;
mod json_rpc;
mod json_rpc_client;
pub(crate) mod text_prompt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::ProgramEvent;
use crate::parser::Parser;
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

/// The conversation of one run. [`Parser::reply`] is what the lines so far require to be written.
pub(crate) trait Dialogue: Parser {
    /// Returns the first text for stdin.
    fn opening(&mut self, prompt: &Prompt) -> String;

    /// Returns the answer to a pending approval request.
    fn decide(&mut self, request_id: &str, asked: &Value, decision: Decision) -> Reply;

    /// Asks the program to stop its turn; `None` if it has no such request.
    fn interrupt(&mut self) -> Option<Reply>;

    /// Returns `true` if stdin stays open for decisions until there is an answer.
    fn stays_open(&self) -> bool {
        true
    }

    /// Returns `true` if the program waits for more requests after an answer. If so it is ended, and its exit code does
    /// not count.
    fn is_server(&self) -> bool {
        false
    }
}

/// The lines to write, and the events about them for readers of the run.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) events: Vec<ProgramEvent>,
}

impl From<String> for Reply {
    fn from(text: String) -> Self {
        Self { text, events: Vec::new() }
    }
}
