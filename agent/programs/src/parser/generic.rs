//! Unknown programs: one JSON object per line, or plain text. They have no final line;
//! [`TerminalRule`](crate::TerminalRule) defines what replaces it.

use serde_json::Value;

use super::{Parser, parse_object, status};
use crate::event::ProgramEvent;

/// Every JSON object is a status; other lines are skipped.
#[derive(Debug, Default)]
pub struct GenericParser;

impl Parser for GenericParser {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        parse_object(line).map(|object| status(Value::Object(object))).into_iter().collect()
    }
}

/// Every line is text of the agent.
#[derive(Debug, Default)]
pub struct TextParser;

impl Parser for TextParser {
    fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
        let text = format!("{line}\n");
        vec![ProgramEvent::AssistantDelta { text, message: None, parent: None }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: &[Value]) {
        let expected: Vec<ProgramEvent> = expected.iter().cloned().map(status).collect();
        assert_eq!(GenericParser.parse_line(line), expected, "{line}");
    }

    #[test]
    fn any_json_object_is_status() {
        let step = serde_json::json!({"step": "processing", "progress": 0.5});
        check(r#"{"step": "processing", "progress": 0.5}"#, &[step]);
    }

    #[test]
    fn invalid_json_is_silently_skipped() {
        for line in ["", "Loading…", "{\"a\":", "[1]", "7", "null", "\"a\""] {
            check(line, &[]);
        }
    }
}
