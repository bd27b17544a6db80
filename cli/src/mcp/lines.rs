//! Lines of a client, of bounded size.

use std::io;

use abide_schema::limits::MESSAGE_BYTES;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(Vec<u8>),
    /// It has more bytes than a message of the server may have.
    TooLong,
}

/// Reads lines. A line that is too long is read to its end and not kept.
pub(super) struct Lines<R> {
    from: BufReader<R>,
    most: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn of(from: R) -> Lines<R> {
        Lines { from: BufReader::new(from), most: MESSAGE_BYTES }
    }

    /// The next line; `None` at the end.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        let mut line = Vec::new();
        let (mut is_long, mut is_any) = (false, false);
        loop {
            let read = self.from.fill_buf().await?;
            if read.is_empty() {
                break;
            }
            is_any = true;
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = &read[..end.unwrap_or(read.len())];
            is_long |= line.len() + part.len() > self.most;
            if is_long {
                line = Vec::new();
            } else {
                line.extend_from_slice(part);
            }
            let used = end.map_or(read.len(), |end| end + 1);
            self.from.consume(used);
            if end.is_some() {
                break;
            }
        }
        Ok(match (is_any, is_long) {
            (false, _) => None,
            (true, true) => Some(Line::TooLong),
            (true, false) => Some(Line::Text(line)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_lines_are_skipped() {
        let text = b"one\n\ntoo long\nlast".as_slice();
        let mut lines = Lines { from: BufReader::with_capacity(3, text), most: 5 };
        let mut all = Vec::new();
        while let Some(line) = lines.next().await.expect("memory can be read") {
            all.push(match line {
                Line::Text(text) => String::from_utf8(text).expect("ASCII"),
                Line::TooLong => "…".to_owned(),
            });
        }
        assert_eq!(all, ["one", "", "…", "last"]);
    }
}
