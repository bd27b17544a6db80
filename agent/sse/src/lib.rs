//! A parser of server-sent events. The caller reads the bytes: this crate does no I/O.
//!
//! ```
//! let mut parser = abide_sse::Parser::new(1 << 20);
//! parser.feed(b"id: 7\r\ndata: {\"a\"");
//! parser.feed(b":1}\r\n\r\n");
//! let event = parser.next_event().expect("the event is complete")?;
//! assert_eq!(event.text(), "{\"a\":1}");
//! assert_eq!(event.id.as_deref(), Some("7"));
//! assert_eq!(parser.next_event(), None);
//! # Ok::<(), abide_sse::EventTooLarge>(())
//! ```
//!
//! The parser follows <https://html.spec.whatwg.org/multipage/server-sent-events.html>, except that
//! - an event without data is returned too, because protocols use its `id` and `retry`;
//! - an [`Event`] has only its own `id`: the caller remembers the last one;
//! - data stays bytes, because callers differ in what they make of invalid UTF-8;
//! - the field `error` is kept.
//!
//! *Invariant:* events do not depend on where the bytes are split.

mod lines;

use std::borrow::Cow;
use std::collections::VecDeque;

pub use lines::{LineTooLong, Lines};

/// Parses server-sent events.
///
/// It holds at most one incomplete event, and the complete events that the caller has not taken yet.
#[derive(Debug)]
pub struct Parser {
    lines: Lines,
    /// The current, incomplete event.
    current: Event,
    complete: VecDeque<Event>,
    max_bytes: usize,
    /// An event was too large. Where the next one begins is unknown, since nothing is read to its end.
    is_broken: bool,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The field `event`: the type of the event.
    pub event: Option<String>,
    /// The fields `data`, joined by line feeds.
    pub data: Option<Vec<u8>>,
    /// The field `id`.
    pub id: Option<String>,
    /// The field `retry`, in milliseconds.
    pub retry_ms: Option<u64>,
    /// The field `error`, which is not in the standard: llama.cpp reports errors in it.
    pub error: Option<Vec<u8>>,
}

/// An event is larger than the limit of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {max_bytes} bytes")]
pub struct EventTooLarge {
    /// The limit.
    pub max_bytes: usize,
}

impl Parser {
    /// Creates a parser of events with at most `max_bytes` bytes, without the fields' names and ends of lines.
    #[must_use]
    pub fn new(max_bytes: usize) -> Parser {
        Parser {
            lines: Lines::default(),
            current: Event::default(),
            complete: VecDeque::new(),
            max_bytes,
            is_broken: false,
        }
    }

    /// Parses a piece of the stream.
    pub fn feed(&mut self, mut piece: &[u8]) {
        while !self.is_broken {
            let max_line_bytes = self.max_bytes.saturating_sub(self.current.size());
            match self.lines.next_line(&mut piece, max_line_bytes) {
                Ok(Some([])) => self.end_event(),
                Ok(Some(line)) => self.current.add_line(line),
                Ok(None) => break,
                Err(LineTooLong) => {
                    self.is_broken = true;
                    self.current = Event::default();
                    self.lines = Lines::default();
                }
            }
        }
    }

    /// Returns the next event, or `None` if it is not complete yet.
    ///
    /// # Errors
    /// The event is too large. The rest of the stream is not read.
    pub fn next_event(&mut self) -> Option<Result<Event, EventTooLarge>> {
        match self.complete.pop_front() {
            Some(event) => Some(Ok(event)),
            None if self.is_broken => Some(Err(EventTooLarge { max_bytes: self.max_bytes })),
            None => None,
        }
    }

    /// Completes an event that the end of the stream has truncated. The standard discards it, but some servers omit
    /// the last empty line.
    pub fn finish(&mut self) {
        self.feed(b"\n\n");
    }

    fn end_event(&mut self) {
        let event = std::mem::take(&mut self.current);
        if event != Event::default() {
            self.complete.push_back(event);
        }
    }
}

impl Event {
    /// Returns the data as text, with U+FFFD for invalid UTF-8 and as an empty text if there is none.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.data.as_deref().unwrap_or_default())
    }

    /// Returns the number of bytes in the fields.
    fn size(&self) -> usize {
        let texts = [&self.event, &self.id].into_iter().flatten().map(String::len);
        let bytes = [&self.data, &self.error].into_iter().flatten().map(Vec::len);
        texts.chain(bytes).sum()
    }

    /// Adds a line that is not empty. Comments and unknown fields are ignored.
    fn add_line(&mut self, line: &[u8]) {
        let (name, value) = match memchr::memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => append_line(&mut self.data, value),
            b"error" => append_line(&mut self.error, value),
            b"event" => self.event = Some(String::from_utf8_lossy(value).into_owned()),
            b"id" if !value.contains(&0) => {
                self.id = Some(String::from_utf8_lossy(value).into_owned());
            }
            // Only digits: `parse` would also accept a sign.
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                let retry_ms = str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                self.retry_ms = retry_ms.or(self.retry_ms);
            }
            _ => {}
        }
    }
}

fn append_line(field: &mut Option<Vec<u8>>, line: &[u8]) {
    match field {
        Some(lines) => {
            lines.push(b'\n');
            lines.extend_from_slice(line);
        }
        None => *field = Some(line.to_vec()),
    }
}

#[cfg(test)]
mod tests;
