//! Lines, from pieces of a stream: those of events, and of other formats with one value per line.

use memchr::memchr2;

/// Splits a stream into lines, which end with CR, LF or CRLF. A byte order mark before the first one is removed.
#[derive(Debug, Default)]
pub struct Lines {
    /// The current line, as far as it was not in one piece.
    line: Vec<u8>,
    /// The line was returned. The next call clears it, because its result borrows it.
    is_complete: bool,
    /// The last byte was a CR: a following LF belongs to it.
    after_return: bool,
    is_after_first: bool,
}

/// A line is longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line is too long")]
pub struct LineTooLong;

impl Lines {
    /// Removes the rest of the current line from `piece`. Returns the line without its end, or `None` if the piece
    /// does not contain its end.
    ///
    /// # Errors
    /// The line has more than `max_bytes` bytes.
    pub fn next_line<'a, 'piece: 'a>(
        &'a mut self,
        piece: &mut &'piece [u8],
        max_bytes: usize,
    ) -> Result<Option<&'a [u8]>, LineTooLong> {
        if std::mem::take(&mut self.is_complete) {
            self.line.clear(); // Its room is used again.
        }
        if piece.is_empty() {
            return Ok(None);
        }
        if std::mem::take(&mut self.after_return) {
            *piece = piece.strip_prefix(b"\n").unwrap_or(piece);
        }
        let Some(end) = memchr2(b'\n', b'\r', piece) else {
            self.extend(std::mem::take(piece), max_bytes)?;
            return Ok(None);
        };
        let (part, rest) = piece.split_at(end);
        self.after_return = rest[0] == b'\r';
        *piece = &rest[1..];
        if self.line.is_empty() && part.len() <= max_bytes {
            return Ok(Some(strip_mark(&mut self.is_after_first, part)));
        }
        self.extend(part, max_bytes)?;
        self.is_complete = true;
        Ok(Some(strip_mark(&mut self.is_after_first, &self.line)))
    }

    /// Returns the last line if the end of the stream has truncated it.
    pub fn finish(&mut self) -> Option<&[u8]> {
        let is_truncated = !std::mem::replace(&mut self.is_complete, true) && !self.line.is_empty();
        is_truncated.then(|| strip_mark(&mut self.is_after_first, &self.line))
    }

    fn extend(&mut self, bytes: &[u8], max_bytes: usize) -> Result<(), LineTooLong> {
        if bytes.len() > max_bytes.saturating_sub(self.line.len()) {
            return Err(LineTooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }
}

/// Returns a line without the byte order mark, if it is the first one.
fn strip_mark<'a>(is_after_first: &mut bool, line: &'a [u8]) -> &'a [u8] {
    if std::mem::replace(is_after_first, true) {
        return line;
    }
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
}
