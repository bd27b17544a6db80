//! The data of server-sent events, from pieces of a stream. The memory for one event is bounded.

/// Reads events.
#[derive(Debug)]
pub struct EventReader {
    /// The bytes that are not read yet.
    bytes: Vec<u8>,
    /// How many of them contain no end of a line.
    searched: usize,
    /// The data of the current event.
    data: Option<String>,
    max_bytes: usize,
}

/// An event exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {max_bytes} bytes")]
pub struct EventTooLarge {
    /// The limit.
    pub max_bytes: usize,
}

impl EventReader {
    /// A reader of events with at most so many bytes.
    #[must_use]
    pub fn new(max_bytes: usize) -> EventReader {
        EventReader { bytes: Vec::new(), searched: 0, data: None, max_bytes }
    }

    /// Adds a piece of the stream. The events before it must have been read.
    ///
    /// # Errors
    /// The current event is too large.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), EventTooLarge> {
        let data = self.data.as_ref().map_or(0, String::len);
        if self.bytes.len() + data + piece.len() > self.max_bytes {
            return Err(EventTooLarge { max_bytes: self.max_bytes });
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// The data of the next event, if all of it has arrived. A comment has none, and empty data is skipped: servers send it to keep
    /// a connection open.
    pub fn next_event(&mut self) -> Option<String> {
        while let Some(line) = self.line() {
            if line.is_empty() {
                match self.data.take() {
                    Some(data) if !data.is_empty() => return Some(data),
                    _ => continue,
                }
            }
            let Some(text) = line.strip_prefix("data:") else { continue };
            let text = text.strip_prefix(' ').unwrap_or(text);
            match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(text);
                }
                None => self.data = Some(text.to_owned()),
            }
        }
        None
    }

    /// The next complete line, without its end.
    fn line(&mut self) -> Option<String> {
        let found = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(at) = found.map(|at| at + self.searched) else {
            self.searched = self.bytes.len();
            return None;
        };
        let mut line: Vec<u8> = self.bytes.drain(..=at).collect();
        self.searched = 0;
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some(String::from_utf8_lossy(&line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_do_not_depend_on_the_pieces() {
        let stream =
            b": hello\n\ndata: a\r\ndata:b\r\n\r\nid: 7\n\ndata:\n\nevent: x\ndata: c\n\ndata: end";
        for size in 1..=stream.len() {
            let mut reader = EventReader::new(80);
            let mut events = Vec::new();
            for piece in stream.chunks(size) {
                reader.feed(piece).expect("each event is small");
                while let Some(event) = reader.next_event() {
                    events.push(event);
                }
            }
            assert_eq!(events, ["a\nb", "c"], "{size}");
        }
    }

    #[test]
    fn an_event_without_an_end_is_refused() {
        let mut reader = EventReader::new(20);
        for piece in [b"data: 0123\n".as_slice(), b"data: 4567\n"] {
            reader.feed(piece).expect("it has fewer bytes");
            assert_eq!(reader.next_event(), None);
        }
        let refused = reader.feed(b"data: 89abcd").expect_err("it is too large");
        assert_eq!(refused.to_string(), "an event has more than 20 bytes");
    }
}
