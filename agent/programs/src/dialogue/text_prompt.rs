//! A program that gets its prompt as text, and no decisions.

use serde_json::Value;

use super::{Decision, Dialogue, Reply};
use crate::event::ProgramEvent;
use crate::parser::Parser;
use crate::prompt::Prompt;

/// The prompt, followed by the end of input.
pub(crate) struct TextPrompt(pub(crate) Box<dyn Parser>);

impl Parser for TextPrompt {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        self.0.parse_line(line)
    }

    fn reads_json(&self) -> bool {
        self.0.reads_json()
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    fn finish(&mut self) -> Vec<ProgramEvent> {
        self.0.finish()
    }
}

impl Dialogue for TextPrompt {
    fn opening(&mut self, prompt: &Prompt) -> String {
        prompt.layout()
    }

    fn decide(&mut self, _: &str, _: &Value, _: Decision) -> Reply {
        Reply::default()
    }

    fn interrupt(&mut self) -> Option<Reply> {
        None
    }

    fn stays_open(&self) -> bool {
        false
    }
}
