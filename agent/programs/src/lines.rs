//! Splits the bytes of a pipe into lines, within the limits of a run. Pure: it does no I/O.
//!
//! All bytes count, including those of blank lines and newlines. They count for a minute: a program that works for
//! hours may write more in total than one that floods its reader. A line that exceeds a limit is dropped, not
//! truncated: half a JSON object is useless, and half a text could be misleading.

use std::collections::VecDeque;
use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;

/// The time in which `max_output_bytes` may be written.
const WINDOW: Duration = Duration::from_secs(60);

/// The limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Overflow {
    #[error("the program wrote more than {0} bytes within a minute (max_output_bytes)")]
    Output(usize),
    #[error("the program wrote a line of more than {0} bytes (max_line_bytes)")]
    Line(usize),
}

/// The lines of one pipe.
#[derive(Debug)]
pub(crate) struct Lines {
    /// The current, incomplete line.
    partial: Vec<u8>,
    /// When the window began.
    since: Instant,
    /// Total size of the complete lines of the window.
    ended: usize,
    max_output: usize,
    max_line: usize,
}

impl Lines {
    pub(crate) fn new(max_output: usize, max_line: usize) -> Self {
        Self {
            partial: Vec::new(),
            since: Instant::now(),
            ended: 0,
            max_output,
            max_line: max_line.min(max_output),
        }
    }

    /// Adds data, and appends the completed lines without their newlines.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        now: Instant,
        lines: &mut VecDeque<String>,
    ) -> Result<(), Overflow> {
        if now.saturating_duration_since(self.since) >= WINDOW {
            self.since = now;
            self.ended = 0;
        }
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(&bytes[..end]);
            self.check(1)?;
            self.ended += self.partial.len() + 1;
            lines.extend(decode_line(std::mem::take(&mut self.partial)));
            bytes = &bytes[end + 1..];
        }
        self.partial.extend_from_slice(bytes);
        self.check(0)
    }

    /// Returns the last line, which may lack a newline.
    pub(crate) fn finish(&mut self) -> Option<String> {
        decode_line(std::mem::take(&mut self.partial))
    }

    fn check(&self, newline: usize) -> Result<(), Overflow> {
        if self.ended + self.partial.len() + newline > self.max_output {
            return Err(Overflow::Output(self.max_output));
        }
        if self.partial.len() > self.max_line {
            return Err(Overflow::Line(self.max_line));
        }
        Ok(())
    }
}

/// Returns a line as text, with invalid UTF-8 replaced; `None` if it is blank.
fn decode_line(bytes: Vec<u8>) -> Option<String> {
    let text = String::from_utf8(bytes)
        .unwrap_or_else(|broken| String::from_utf8_lossy(broken.as_bytes()).into_owned());
    let text = text.strip_suffix('\r').map(str::to_owned).unwrap_or(text);
    (!text.trim().is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the chunks, joined by `|`, and the overflow.
    fn check(limits: (usize, usize), chunks: &[&[u8]], expected: &str) {
        let mut lines = Lines::new(limits.0, limits.1);
        let mut out = VecDeque::new();
        let result =
            chunks.iter().try_for_each(|chunk| lines.push(chunk, Instant::now(), &mut out));
        if result.is_ok() {
            out.extend(lines.finish());
        }
        let joined = Vec::from(out).join("|");
        let joined =
            result.err().map_or(joined.clone(), |overflow| format!("{joined}! {overflow}"));
        assert_eq!(joined, expected);
    }

    #[test]
    fn newlines_end_lines() {
        check((99, 99), &[b"one\ntwo\n"], "one|two");
        check((99, 99), &[b"o", b"ne\r\ntw", b"o\n\n \n"], "one|two");
        check((99, 99), &[], "");
    }

    #[test]
    fn the_last_line_needs_no_newline() {
        check((99, 99), &[b"one\n", b"two"], "one|two");
    }

    #[test]
    fn invalid_utf_8_is_replaced() {
        check((99, 99), &[b"a\xffb\n\xc3"], "a\u{fffd}b|\u{fffd}");
        check((99, 99), &[b"\xc3", b"\xa4\n"], "ä");
    }

    #[test]
    fn blank_lines_and_newlines_count() {
        check((4, 99), &[b"\n\n\n\n"], "");
        check(
            (4, 99),
            &[b"\n\n\n\n\n"],
            "! the program wrote more than 4 bytes within a minute (max_output_bytes)",
        );
        check((3, 99), &[b"abc"], "abc");
        check(
            (3, 99),
            &[b"abc\n"],
            "! the program wrote more than 3 bytes within a minute (max_output_bytes)",
        );
    }

    #[test]
    fn a_line_over_the_limit_is_dropped_and_not_truncated() {
        check(
            (8, 99),
            &[b"one\ntwo\nthree\n"],
            "one|two! the program wrote more than 8 bytes within a minute (max_output_bytes)",
        );
        check(
            (99, 4),
            &[b"one\nthree"],
            "one! the program wrote a line of more than 4 bytes (max_line_bytes)",
        );
        check((99, 4), &[b"four\n"], "four");
    }

    #[test]
    fn the_total_limit_applies_to_a_single_line() {
        check(
            (3, 99),
            &[b"four"],
            "! the program wrote more than 3 bytes within a minute (max_output_bytes)",
        );
    }

    /// Class: a limit that is the total of a run. A program that worked for an hour was ended as soon as all of its output
    /// together had 4 MB, although each message was small.
    #[test]
    fn bytes_count_for_a_minute() {
        let mut lines = Lines::new(8, 8);
        let mut out = VecDeque::new();
        let start = Instant::now();
        for minute in 0..5 {
            lines.push(b"seven!\n", start + WINDOW * minute, &mut out).expect("it fits its minute");
        }
        let flood = lines.push(b"xx", start + WINDOW * 4, &mut out);
        assert_eq!(flood, Err(Overflow::Output(8)));
        assert_eq!(out.len(), 5);
    }
}
