//! Shortening of results for the model: the beginning and the end of a long result, with a marker between them that
//! has the number of omitted bytes and the call id. The stored result is complete.

#[cfg(test)]
mod tests;

/// How much of a result a model sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Truncation {
    /// Maximum number of characters, including the marker.
    pub(crate) max_chars: usize,
    /// Optional maximum number of tokens, at four characters per token, as in the token budgets of agent
    /// definitions.
    pub(crate) max_tokens: Option<usize>,
}

/// Assumed characters per token.
const TOKEN_CHARS: usize = 4;

/// The default budget.
impl Default for Truncation {
    fn default() -> Truncation {
        Truncation { max_chars: 32_000, max_tokens: Some(8_000) }
    }
}

/// A result in the form that a model sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TruncatedResult {
    /// The text.
    pub(crate) text: String,
    /// Number of omitted bytes.
    pub(crate) left_out: usize,
}

impl Truncation {
    /// Shortens a long text. Two thirds of the budget are for its beginning, the rest for its end.
    ///
    /// JSON is cut between values if possible. If a single string makes up most of it, the cut is inside the
    /// string, never inside an escape, and the marker says so.
    pub(crate) fn apply(&self, text: &str, call_id: &str) -> TruncatedResult {
        let by_tokens = self.max_tokens.map(|tokens| tokens.saturating_mul(TOKEN_CHARS));
        let budget = by_tokens.map_or(self.max_chars, |chars| chars.min(self.max_chars));
        let chars = text.chars().count();
        if chars <= budget {
            return TruncatedResult { text: text.to_owned(), left_out: 0 };
        }
        // The longest possible marker, so that the result stays within the budget.
        let room = budget.saturating_sub(mark(text.len(), call_id, true).chars().count());
        let head = room - room / 3;
        let head_end = byte_of_char(text, head);
        let tail_start = byte_of_char(text, chars - room / 3);
        let seams = CutPoints::nearest(text, head_end, tail_start);
        let head = &text[..seams.head_end];
        let tail = &text[seams.tail_start..];
        let left_out = seams.tail_start - seams.head_end;
        let mark = mark(left_out, call_id, seams.inside_string);
        TruncatedResult { text: format!("{head}{mark}{tail}"), left_out }
    }
}

fn mark(bytes: usize, call_id: &str, inside_string: bool) -> String {
    let place = if inside_string { ", from inside a string" } else { "" };
    format!("\n[… {bytes} bytes of the result of call {call_id} were omitted{place} …]\n")
}

fn byte_of_char(text: &str, nth: usize) -> usize {
    text.char_indices().nth(nth).map_or(text.len(), |(at, _)| at)
}

/// Where a text is cut.
struct CutPoints {
    head_end: usize,
    tail_start: usize,
    inside_string: bool,
}

impl CutPoints {
    /// The nearest cut positions that do not exceed the budget.
    fn nearest(text: &str, head_end: usize, tail_start: usize) -> CutPoints {
        let is_json = text.trim_start().starts_with(['{', '['])
            && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        if !is_json {
            return CutPoints { head_end, tail_start, inside_string: false };
        }
        let mut head = 0;
        let mut tail = text.len();
        let mut scan = Scan::default();
        // Positions before or after which an escape is complete.
        let mut whole_head = 0;
        let mut whole_tail = text.len();
        let mut head_in_string = false;
        let mut tail_in_string = false;
        for (at, c) in text.char_indices() {
            if !scan.inside_escape() {
                if at <= head_end {
                    whole_head = at;
                    head_in_string = scan.in_string;
                }
                if at >= tail_start && whole_tail == text.len() {
                    whole_tail = at;
                    tail_in_string = scan.in_string;
                }
            }
            scan.step(c);
            let after = at + c.len_utf8();
            if !scan.in_string && matches!(c, ',' | '[' | '{' | ']' | '}') {
                if after <= head_end {
                    head = after;
                }
                if after >= tail_start && tail == text.len() {
                    tail = after;
                }
            }
        }
        // A boundary that would waste more than half of the budget is too far away.
        let head_far = head_end - head > head_end / 2;
        let tail_far = tail - tail_start > (text.len() - tail_start) / 2;
        CutPoints {
            head_end: if head_far { whole_head } else { head },
            tail_start: if tail_far { whole_tail } else { tail },
            inside_string: head_far && head_in_string || tail_far && tail_in_string,
        }
    }
}

/// The state of a scan through JSON text.
#[derive(Default)]
struct Scan {
    in_string: bool,
    /// Remaining characters of an escape, counted from its backslash.
    escape_left: usize,
    escaped: bool,
}

impl Scan {
    fn inside_escape(&self) -> bool {
        self.escaped || self.escape_left > 0
    }

    fn step(&mut self, c: char) {
        if self.escape_left > 0 {
            self.escape_left -= 1;
        } else if self.escaped {
            self.escaped = false;
            self.escape_left = if c == 'u' { 4 } else { 0 };
        } else if self.in_string && c == '\\' {
            self.escaped = true;
        } else if c == '"' {
            self.in_string = !self.in_string;
        }
    }
}
