//! An answer that response guardrails may still deny. Its text is held back until no rule can deny it any more: a
//! pattern clears it sentence by sentence, all other rules clear it at its end. Reasoning is held until the end.
//!
//! A pattern clears a position of the text if no match can contain text before that position, whatever follows. That
//! is so if the longest match is shorter than the rest, or if a match cannot contain the white space or the line
//! break before that position. A pattern of which neither is known clears the answer at its end.

use regex_syntax::hir::{Class, Hir, HirKind};

use crate::guardrail::{Guardrail, GuardrailAt};

/// Bytes that an assertion such as `\b` looks at beside a match.
const CONTEXT: usize = 4;

/// The text of an answer, as far as it has arrived.
pub(crate) struct HeldAnswer<'a> {
    /// The rules that clear text before the end; `None` if a rule needs the whole answer.
    patterns: Option<Vec<(&'a Guardrail, PatternReach)>>,
    /// Whether there is a rule at all.
    is_guarded: bool,
    text: String,
    /// The bytes that have left.
    released: usize,
    is_denied: bool,
    reasoning: String,
}

impl<'a> HeldAnswer<'a> {
    pub(crate) fn new(rules: impl IntoIterator<Item = &'a Guardrail>) -> HeldAnswer<'a> {
        let rules: Vec<&Guardrail> =
            rules.into_iter().filter(|rule| rule.at == GuardrailAt::Response).collect();
        let reach = |rule: &&'a Guardrail| {
            let pattern = rule.deny.as_ref()?;
            Some((*rule, PatternReach::of(pattern.as_str())?))
        };
        HeldAnswer {
            patterns: rules.iter().map(reach).collect(),
            is_guarded: !rules.is_empty(),
            text: String::new(),
            released: 0,
            is_denied: false,
            reasoning: String::new(),
        }
    }

    /// Adds text. Returns the text that may leave now.
    pub(crate) fn add(&mut self, chunk: &str) -> Option<String> {
        self.text.push_str(chunk);
        if !self.is_guarded {
            self.released = self.text.len();
            return Some(chunk.to_owned());
        }
        let patterns = self.patterns.as_ref()?;
        let cleared = patterns.iter().map(|(_, reach)| reach.cleared(&self.text));
        let cleared = cleared.min().unwrap_or(0);
        let end = last_sentence_end(&self.text[..self.text.floor_char_boundary(cleared)]);
        if self.is_denied || end <= self.released {
            return None;
        }
        // A match that begins before `released` would have been found, or cannot exist. One that begins after `end`
        // may still disappear: `$` matches only at the end of the whole text.
        let denies = |(rule, _): &(&Guardrail, PatternReach)| {
            let first =
                rule.deny.as_ref().and_then(|deny| deny.find_from(&self.text, self.released));
            first.is_some_and(|start| start < end)
        };
        if patterns.iter().any(denies) {
            self.is_denied = true;
            return None;
        }
        let cleared = self.text[self.released..end].to_owned();
        self.released = end;
        Some(cleared)
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
        (self.released, self.is_denied) = (0, false);
    }

    /// The text that has left so far.
    pub(crate) fn released(&self) -> &str {
        &self.text[..self.released]
    }

    /// The text and the reasoning that are left of an answer that all rules have cleared.
    pub(crate) fn rest(self) -> (String, String) {
        (self.text[self.released..].to_owned(), self.reasoning)
    }
}

/// How far a match of a pattern can extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatternReach {
    /// A match has at most this many bytes.
    Bytes(usize),
    /// A match contains no white space.
    Word,
    /// A match contains no line break.
    Line,
}

impl PatternReach {
    /// `None` if nothing is known about it.
    pub(crate) fn of(pattern: &str) -> Option<PatternReach> {
        let parsed = regex_syntax::parse(pattern).ok()?;
        if !can_contain(&parsed, char::is_whitespace) {
            return Some(PatternReach::Word);
        }
        if let Some(most) = parsed.properties().maximum_len() {
            return Some(PatternReach::Bytes(most));
        }
        (!can_contain(&parsed, |c| c == '\n')).then_some(PatternReach::Line)
    }

    /// The length of the beginning of a text that no match can contain a part of, except a match that is complete
    /// already.
    fn cleared(self, text: &str) -> usize {
        let after = |at: Option<(usize, char)>| at.map_or(0, |(at, c)| at + c.len_utf8());
        match self {
            PatternReach::Bytes(most) => text.len().saturating_sub(most + CONTEXT),
            PatternReach::Word => after(text.char_indices().rfind(|(_, c)| c.is_whitespace())),
            PatternReach::Line => after(text.char_indices().rfind(|(_, c)| *c == '\n')),
        }
    }
}

/// Whether a match of an expression can contain a wanted white-space character. `true` if that is not known.
fn can_contain(hir: &Hir, wanted: fn(char) -> bool) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => false,
        HirKind::Literal(literal) => {
            std::str::from_utf8(&literal.0).map_or(true, |text| text.chars().any(wanted))
        }
        HirKind::Class(Class::Unicode(class)) => class.iter().any(|range| {
            let has = |c: &char| (range.start()..=range.end()).contains(c);
            WHITE_SPACE.iter().any(|c| wanted(*c) && has(c))
        }),
        HirKind::Class(Class::Bytes(_)) => true,
        HirKind::Repetition(repetition) => can_contain(&repetition.sub, wanted),
        HirKind::Capture(capture) => can_contain(&capture.sub, wanted),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().any(|part| can_contain(part, wanted))
        }
    }
}

/// The characters with the property `White_Space` of Unicode.
const WHITE_SPACE: [char; 25] = [
    '\t', '\n', '\u{b}', '\u{c}', '\r', ' ', '\u{85}', '\u{a0}', '\u{1680}', '\u{2000}',
    '\u{2001}', '\u{2002}', '\u{2003}', '\u{2004}', '\u{2005}', '\u{2006}', '\u{2007}', '\u{2008}',
    '\u{2009}', '\u{200a}', '\u{2028}', '\u{2029}', '\u{202f}', '\u{205f}', '\u{3000}',
];

/// The length of the text up to the end of its last sentence: a line break, or white space after a full stop, an
/// exclamation mark or a question mark.
fn last_sentence_end(text: &str) -> usize {
    let (mut end, mut is_ended) = (0, false);
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
