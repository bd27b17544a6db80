//! How far a match of a pattern can extend: text in front of it can leave while an answer arrives.

use regex_syntax::hir::{Class, Hir, HirKind};

/// Bytes around a match that an assertion such as `\b` reads.
const CONTEXT: usize = 4;

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
    pub(crate) fn for_pattern(pattern: &str) -> Option<PatternReach> {
        let parsed = regex_syntax::parse(pattern).ok()?;
        if !can_contain(&parsed, char::is_whitespace) {
            return Some(PatternReach::Word);
        }
        if let Some(max) = parsed.properties().maximum_len() {
            return Some(PatternReach::Bytes(max));
        }
        (!can_contain(&parsed, |c| c == '\n')).then_some(PatternReach::Line)
    }

    /// Returns the length of the beginning of a text that no match can contain a part of, except a match that is
    /// complete already.
    pub(crate) fn cleared(self, text: &str) -> usize {
        match self {
            PatternReach::Bytes(max) => text.len().saturating_sub(max + CONTEXT),
            PatternReach::Word => end_of(text.char_indices().rfind(|(_, c)| c.is_whitespace())),
            PatternReach::Line => end_of(text.char_indices().rfind(|(_, c)| *c == '\n')),
        }
    }
}

/// Returns the end of a character of a text; 0 without one.
fn end_of(found: Option<(usize, char)>) -> usize {
    found.map_or(0, |(at, c)| at + c.len_utf8())
}

/// Returns `true` if a match of an expression can contain a wanted white-space character. `true` if that is not known.
fn can_contain(hir: &Hir, wanted: fn(char) -> bool) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => false,
        HirKind::Literal(literal) => {
            std::str::from_utf8(&literal.0).map_or(true, |text| text.chars().any(wanted))
        }
        HirKind::Class(Class::Unicode(class)) => class.iter().any(|range| {
            WHITE_SPACE.iter().any(|c| wanted(*c) && (range.start()..=range.end()).contains(c))
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
