//! Redaction of personal data (`pii`). A match is replaced with the name of its kind, such as `[email]`. Matches that
//! touch each other are one.
//!
//! It depends on the text alone: a text that is redacted in parts, at places outside of matches, is the same as one that is
//! redacted as a whole.

use std::ops::Range;
use std::sync::LazyLock;

use abide_definitions::middleware::{Pii, PiiAt, PiiKind};
use regex::Regex;
use serde_json::Value;

use crate::middleware::pattern_reach::PatternReach;
use crate::tools::arguments::arguments_or_text;

/// The kinds without a list in the settings. IP addresses are not among them: they are part of ordinary technical texts.
const DEFAULT: [PiiKind; 5] =
    [PiiKind::Email, PiiKind::Phone, PiiKind::CreditCard, PiiKind::Iban, PiiKind::UsSsn];

/// The name and the pattern of each kind.
static KINDS: LazyLock<Vec<(PiiKind, &str, Regex)>> = LazyLock::new(|| {
    let kinds = [
        (PiiKind::Email, "email", r"[\p{L}\p{N}._%+\-]+@[\p{L}\p{N}\-]+(?:\.[\p{L}\p{N}\-]+)+"),
        (
            PiiKind::Phone,
            "phone",
            concat!(
                r"\+\d(?:[ ().\-]{0,2}\d){6,14}|\(\d{3}\) ?\d{3}[ .\-]?\d{4}",
                r"|\b\d{3}[ .\-]\d{3}[ .\-]\d{4}\b",
            ),
        ),
        (PiiKind::CreditCard, "credit_card", r"\b\d(?:[ \-]?\d){12,18}\b"),
        (PiiKind::Iban, "iban", r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"),
        (PiiKind::UsSsn, "us_ssn", r"\b\d{3}-\d{2}-\d{4}\b"),
        (
            PiiKind::IpAddress,
            "ip_address",
            concat!(
                r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}\b",
                r"|\b(?:[0-9A-Fa-f]{1,4}:){1,6}(?::[0-9A-Fa-f]{1,4}){1,6}\b",
            ),
        ),
    ];
    kinds
        .into_iter()
        .map(|(kind, name, pattern)| {
            (kind, name, Regex::new(pattern).expect("the pattern is valid"))
        })
        .collect()
});

/// The patterns that are redacted in one kind of text.
pub(crate) struct Redactor<'a> {
    rules: Vec<(&'a str, &'a Regex)>,
}

impl<'a> Redactor<'a> {
    /// Returns the rules for one kind of text; `None` without any.
    pub(crate) fn for_place(
        settings: impl IntoIterator<Item = &'a Pii>,
        place: PiiAt,
    ) -> Option<Redactor<'a>> {
        let mut rules = Vec::new();
        for pii in settings {
            if !pii.at.is_empty() && !pii.at.contains(&place) {
                continue;
            }
            let kinds = pii.kinds.as_deref().unwrap_or(&DEFAULT);
            let known = KINDS.iter().filter(|(kind, ..)| kinds.contains(kind));
            rules.extend(known.map(|(_, name, pattern)| (*name, pattern)));
            rules.extend(pii.patterns.iter().map(|(name, it)| (name.as_str(), it.regex())));
        }
        (!rules.is_empty()).then_some(Redactor { rules })
    }

    /// Returns how far the matches can extend; `None` if that is not known of one.
    pub(crate) fn reaches(&self) -> Option<Vec<PatternReach>> {
        self.rules.iter().map(|(_, pattern)| PatternReach::for_pattern(pattern.as_str())).collect()
    }

    /// Returns the matches that begin at a position or after it, in order. They do not overlap.
    fn matches(&self, text: &str, from: usize) -> Vec<(Range<usize>, &'a str)> {
        let mut found: Vec<(Range<usize>, &str)> = Vec::new();
        for (name, pattern) in &self.rules {
            let mut at = from;
            while let Some(next) = text.get(at..).and_then(|_| pattern.find_at(text, at)) {
                let is_data = *name != "credit_card" || is_card(next.as_str());
                if !next.is_empty() && is_data {
                    found.push((next.range(), name));
                }
                at = if next.is_empty() {
                    next.end() + text[next.end()..].chars().next().map_or(1, char::len_utf8)
                } else {
                    next.end()
                };
            }
        }
        found.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
        let mut merged: Vec<(Range<usize>, &str)> = Vec::new();
        for (range, name) in found {
            match merged.last_mut() {
                Some((last, _)) if range.start < last.end => last.end = last.end.max(range.end),
                _ => merged.push((range, name)),
            }
        }
        merged
    }

    /// Returns the last position, not after `end`, that is not inside a match that begins at `from` or after it.
    pub(crate) fn outside(&self, text: &str, from: usize, end: usize) -> usize {
        let matches = self.matches(text, from);
        let around = matches.iter().find(|(range, _)| range.start < end && end < range.end);
        around.map_or(end, |(range, _)| range.start)
    }

    /// Returns a part of a text, redacted. The text before the part is context; no match begins in it and ends in the
    /// part.
    pub(crate) fn redact_part(&self, text: &str, part: Range<usize>) -> String {
        let mut redacted = String::new();
        let mut at = part.start;
        for (range, name) in self.matches(text, part.start) {
            if range.start >= part.end {
                break;
            }
            redacted.push_str(&text[at..range.start]);
            redacted.push_str(&format!("[{name}]"));
            at = range.end;
        }
        redacted.push_str(text.get(at..part.end).unwrap_or_default());
        redacted
    }

    /// Returns the text, redacted.
    pub(crate) fn redact_text(&self, text: &str) -> String {
        self.redact_part(text, 0..text.len())
    }

    /// Redacts every name, text and number in a value. Returns whether something has changed.
    pub(crate) fn redact_value(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => self.replace(text),
            Value::Number(number) => {
                let text = number.to_string();
                let redacted = self.redact_text(&text);
                let is_changed = redacted != text;
                if is_changed {
                    *value = Value::String(redacted);
                }
                is_changed
            }
            Value::Array(values) => {
                let changes = values.iter_mut().map(|value| self.redact_value(value));
                changes.filter(|changed| *changed).count() > 0
            }
            Value::Object(members) => {
                let mut changed = false;
                let before = std::mem::take(members);
                for (mut name, mut value) in before {
                    changed |= self.replace(&mut name);
                    changed |= self.redact_value(&mut value);
                    members.insert(name, value);
                }
                changed
            }
            Value::Null | Value::Bool(_) => false,
        }
    }

    /// Redacts a text. Returns whether it has changed.
    pub(crate) fn replace(&self, text: &mut String) -> bool {
        let redacted = self.redact_text(text);
        let is_changed = redacted != *text;
        *text = redacted;
        is_changed
    }

    /// Returns a text that is JSON, redacted value by value: an escape such as `\u0040` hides nothing. Other text is
    /// redacted as it is.
    pub(crate) fn redact_json(&self, text: &str) -> String {
        match arguments_or_text(text) {
            Value::String(whole) if whole == text => self.redact_text(text),
            mut value => {
                if self.redact_value(&mut value) {
                    value.to_string()
                } else {
                    text.to_owned()
                }
            }
        }
    }

    /// Redacts a text that may be JSON in place. Returns whether it changed.
    pub(crate) fn replace_json(&self, text: &mut String) -> bool {
        let redacted = self.redact_json(text);
        let is_changed = redacted != *text;
        *text = redacted;
        is_changed
    }
}

/// Returns `true` if some 15 or 16 digits, or all of them, have a valid check digit.
fn is_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let has_part = [15, 16].iter().any(|length| digits.windows(*length).any(has_check_digit));
    has_part || has_check_digit(&digits)
}

/// Returns `true` if the last digit is the check digit of the others (the Luhn algorithm).
fn has_check_digit(digits: &[u32]) -> bool {
    let sum: u32 = digits.iter().rev().enumerate().fold(0, |sum, (at, digit)| {
        let doubled = if at % 2 == 1 { digit * 2 } else { *digit };
        sum + if doubled > 9 { doubled - 9 } else { doubled }
    });
    sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests;
