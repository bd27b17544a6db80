//! Secrets of a program's environment, and their removal from everything that the program says.

use serde_json::{Map, Value};

use crate::event::{Denial, Failure, Line, ProgramEvent, ProgramResult};
use crate::parser;

/// Minimum length of a secret. Redacting shorter values would make texts unreadable.
const SECRET_MIN_BYTES: usize = 8;

/// The replacement for a secret.
const REDACTED: &str = "[redacted]";

/// Values that must not appear in output.
#[derive(Debug, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    pub(crate) fn new(values: impl Iterator<Item = String>) -> Self {
        let mut secrets = Vec::new();
        for value in values {
            // A program writes a text of several lines as several lines, and in JSON inside of a string with escapes.
            secrets.extend(value.lines().map(|line| line.trim().to_owned()));
            let quoted = Value::from(value.as_str()).to_string();
            secrets.push(quoted[1..quoted.len() - 1].to_owned());
            secrets.push(value);
        }
        secrets.retain(|secret| secret.len() >= SECRET_MIN_BYTES);
        // Longest first, because one may be a prefix of another.
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self(secrets)
    }

    /// Returns the text without secrets.
    pub(crate) fn redact(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| {
            if text.contains(secret) { text.replace(secret, REDACTED) } else { text }
        })
    }

    /// Returns the end of a text whose beginning was cut off, without secrets and without the rest of a secret that was cut.
    pub(crate) fn redact_end(&self, text: &str) -> String {
        let cut = self.0.iter().map(|secret| cut_rest(text, secret).len()).max().unwrap_or(0);
        self.redact(text[cut..].to_owned())
    }

    /// Removes the secrets from a line and from its events. The ids by which the program is answered and resumed stay.
    pub(crate) fn redact_line(&self, line: Line) -> Line {
        if self.0.is_empty() {
            return line;
        }
        let raw = line.raw.map(|raw| self.redact_raw(raw));
        let mut events = line.events;
        for event in &mut events {
            self.redact_event(event);
        }
        Line { raw, events }
    }

    /// JSON stays JSON, so that the stored line can be read again. Its strings can have a secret in any notation.
    fn redact_raw(&self, raw: String) -> String {
        let Ok(mut value) = parser::parse_value(&raw) else { return self.redact(raw) };
        if self.redact_value(&mut value) { value.to_string() } else { raw }
    }

    fn redact_event(&self, event: &mut ProgramEvent) {
        match event {
            ProgramEvent::AssistantDelta { text, .. }
            | ProgramEvent::ThinkingDelta { text, .. }
            | ProgramEvent::Notice { message: text, .. } => self.redact_text(text),
            ProgramEvent::ToolCallStarted { name, arguments, .. } => {
                self.redact_text(name);
                self.redact_value(arguments);
            }
            ProgramEvent::ToolCallFinished { output, .. } => drop(self.redact_value(output)),
            ProgramEvent::ApprovalRequested { tool, input, details, .. } => {
                self.redact_text(tool);
                self.redact_value(input);
                self.redact_value(details);
            }
            ProgramEvent::Status { data } => drop(self.redact_value(data)),
            ProgramEvent::Final(answer) => self.redact_answer(answer),
            ProgramEvent::Error(failure) => self.redact_failure(failure),
            ProgramEvent::ApprovalWithdrawn { .. }
            | ProgramEvent::Usage(_)
            | ProgramEvent::SessionId { .. } => {}
        }
    }

    fn redact_failure(&self, failure: &mut Failure) {
        let Failure { kind: _, message, recoverable: _, exit: _, stderr, answer } = failure;
        self.redact_text(message);
        self.redact_text(stderr);
        if let Some(answer) = answer {
            self.redact_answer(answer);
        }
    }

    fn redact_answer(&self, answer: &mut ProgramResult) {
        self.redact_text(&mut answer.text);
        if let Some(structured) = &mut answer.structured {
            self.redact_value(structured);
        }
        for Denial { tool, call_id: _, input } in &mut answer.denials {
            self.redact_text(tool);
            self.redact_value(input);
        }
        self.redact_value(&mut answer.details);
    }

    fn redact_text(&self, text: &mut String) {
        if self.0.iter().any(|secret| text.contains(secret)) {
            *text = self.redact(std::mem::take(text));
        }
    }

    /// Returns whether the value has changed.
    fn redact_value(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => {
                let has_secret = self.0.iter().any(|secret| text.contains(secret));
                self.redact_text(text);
                has_secret
            }
            Value::Array(items) => {
                items.iter_mut().fold(false, |changed, item| self.redact_value(item) | changed)
            }
            Value::Object(members) => {
                let mut changed = false;
                for member in members.values_mut() {
                    changed |= self.redact_value(member);
                }
                if members.keys().any(|name| self.0.iter().any(|secret| name.contains(secret))) {
                    let redacted: Map<String, Value> = std::mem::take(members)
                        .into_iter()
                        .map(|(name, member)| (self.redact(name), member))
                        .collect();
                    *members = redacted;
                    changed = true;
                }
                changed
            }
            Value::Number(number) => {
                let digits = number.to_string();
                let has_secret = self.0.iter().any(|secret| digits.contains(secret));
                if has_secret {
                    *value = Value::from(self.redact(digits));
                }
                has_secret
            }
            Value::Null | Value::Bool(_) => false,
        }
    }
}

/// Returns the longest end of a secret, without its first byte at least, with which a text begins; empty if there is none.
fn cut_rest<'s>(text: &str, secret: &'s str) -> &'s str {
    let ends = (1..secret.len()).filter_map(|at| secret.get(at..));
    ends.into_iter().find(|end| text.starts_with(end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a text of which the first bytes were cut off had the last bytes of a secret in clear.
    #[test]
    fn the_rest_of_a_secret_that_was_cut_is_removed() {
        let secrets = Secrets::new(["hunter2hunter2".to_owned()].into_iter());
        assert_eq!(secrets.redact_end("unter2hunter2 is bad"), " is bad");
        assert_eq!(secrets.redact_end("2 is hunter2hunter2"), " is [redacted]");
        assert_eq!(secrets.redact_end("is bad"), "is bad");
    }

    /// A stored line is read again, so it stays JSON, whatever the notation of the secret.
    #[test]
    fn a_line_of_json_stays_json() {
        let secrets = Secrets::new(["p\"ss\nword-and-more".to_owned()].into_iter());
        for (raw, expected) in [
            (r#"{"a":"p\u0022ss\nword-and-more!"}"#, r#"{"a":"[redacted]!"}"#),
            (r#"{"a":"{\"b\":\"p\\\"ss\\nword-and-more\"}"}"#, r#"{"a":"{\"b\":\"[redacted]\"}"}"#),
            (r#"{ "p\"ss\nword-and-more": [1] }"#, r#"{"[redacted]":[1]}"#),
            ("word-and-more", "[redacted]"),
            (r#"{ "a": 1 }"#, r#"{ "a": 1 }"#),
        ] {
            assert_eq!(secrets.redact_raw(raw.to_owned()), expected);
        }
    }
}
