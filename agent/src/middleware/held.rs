//! An answer that response guardrails may still deny, and in which personal data is redacted. Its text is held back
//! until no rule can deny it any more: a pattern clears it sentence by sentence, all other rules clear it at its end.
//! Reasoning is held until the end.
//!
//! A pattern clears a position of the text if no match can contain text before that position, whatever follows. That
//! is so if the longest match is shorter than the rest, or if a match cannot contain the white space or the line
//! break before that position. A pattern of which neither is known clears the answer at its end.

use abide_definitions::guardrail::{Guardrail, GuardrailAt};

use crate::middleware::pattern_reach::PatternReach;
use crate::middleware::redactor::Redactor;

/// The text of an answer, as far as it has arrived.
pub(crate) struct HeldAnswer<'a> {
    /// How far matches extend; `None` if a rule needs the whole answer.
    reaches: Option<Vec<PatternReach>>,
    /// The rules that deny.
    rules: Vec<&'a Guardrail>,
    redactor: Option<Redactor<'a>>,
    /// Whether there is a rule at all.
    is_guarded: bool,
    text: String,
    /// The bytes of the text that have left, redacted.
    released: usize,
    /// The text that was released.
    left: String,
    is_denied: bool,
    reasoning: String,
}

impl<'a> HeldAnswer<'a> {
    /// Creates an answer with these rules. If it `is_whole`, it is held until it is complete.
    pub(crate) fn new(
        rules: impl IntoIterator<Item = &'a Guardrail>,
        redactor: Option<Redactor<'a>>,
        is_whole: bool,
    ) -> HeldAnswer<'a> {
        let rules: Vec<&Guardrail> =
            rules.into_iter().filter(|rule| rule.at == GuardrailAt::Response).collect();
        let reaches: Option<Vec<PatternReach>> = rules
            .iter()
            .map(|rule| PatternReach::for_pattern(rule.deny.as_ref()?.as_str()))
            .collect();
        let reaches = reaches.and_then(|mut all| {
            all.extend(redactor.as_ref().map_or(Some(Vec::new()), Redactor::reaches)?);
            Some(all)
        });
        HeldAnswer {
            reaches: reaches.filter(|_| !is_whole),
            is_guarded: is_whole || redactor.is_some() || !rules.is_empty(),
            rules,
            redactor,
            text: String::new(),
            released: 0,
            left: String::new(),
            is_denied: false,
            reasoning: String::new(),
        }
    }

    /// Adds text. Returns the text that may leave now.
    pub(crate) fn add(&mut self, chunk: &str) -> Option<String> {
        self.text.push_str(chunk);
        if !self.is_guarded {
            self.released = self.text.len();
            self.left.push_str(chunk);
            return Some(chunk.to_owned());
        }
        let cleared = self.reaches.as_ref()?.iter().map(|reach| reach.cleared(&self.text));
        let cleared = cleared.min().unwrap_or(0);
        let end = last_sentence_end(&self.text[..self.text.floor_char_boundary(cleared)]);
        if self.is_denied || end <= self.released {
            return None;
        }
        // A match that begins before `released` would have been found, or cannot exist. One that begins after `end`
        // may still disappear: `$` matches only at the end of the whole text.
        let denies = |rule: &&Guardrail| {
            let first =
                rule.deny.as_ref().and_then(|deny| deny.find_from(&self.text, self.released));
            first.is_some_and(|start| start < end)
        };
        if self.rules.iter().any(denies) {
            self.is_denied = true;
            return None;
        }
        // A match is redacted as a whole.
        let end =
            self.redactor.as_ref().map_or(end, |it| it.outside(&self.text, self.released, end));
        if end <= self.released {
            return None;
        }
        let cleared = self.redacted(end);
        self.released = end;
        self.left.push_str(&cleared);
        Some(cleared)
    }

    /// Returns the text that has not left, up to this position.
    fn redacted(&self, end: usize) -> String {
        match &self.redactor {
            Some(redactor) => redactor.redact_part(&self.text, self.released..end),
            None => self.text[self.released..end].to_owned(),
        }
    }

    /// Adds reasoning. Returns the reasoning that may leave now.
    pub(crate) fn reason(&mut self, chunk: String) -> Option<String> {
        if !self.is_guarded {
            return Some(chunk);
        }
        self.reasoning.push_str(&chunk);
        None
    }

    /// The attempt failed, and the answer begins again.
    pub(crate) fn restart(&mut self) {
        self.text.clear();
        self.reasoning.clear();
        self.left.clear();
        self.released = 0;
        self.is_denied = false;
    }

    /// Returns the text that has left so far.
    pub(crate) fn released(&self) -> &str {
        &self.left
    }

    /// Returns the text and the reasoning that are left of an answer that all rules have cleared.
    pub(crate) fn into_rest(self) -> (String, String) {
        let rest = self.redacted(self.text.len());
        let reasoning = match &self.redactor {
            Some(redactor) => redactor.redact_text(&self.reasoning),
            None => self.reasoning,
        };
        (rest, reasoning)
    }
}

/// Returns the length of the text up to the end of its last sentence: a line break, or white space after a full stop,
/// an exclamation mark or a question mark.
fn last_sentence_end(text: &str) -> usize {
    let mut end = 0;
    let mut is_ended = false;
    for (at, c) in text.char_indices() {
        match c {
            '\n' => (end, is_ended) = (at + 1, false),
            c if c.is_whitespace() => {
                if is_ended {
                    end = at + c.len_utf8();
                }
            }
            '。' | '！' | '？' => (end, is_ended) = (at + c.len_utf8(), true),
            '.' | '!' | '?' | '…' => is_ended = true,
            ')' | ']' | '"' | '\'' | '”' | '’' | '»' | '*' | '_' => {}
            _ => is_ended = false,
        }
    }
    end
}

#[cfg(test)]
mod tests;
