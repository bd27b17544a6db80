//! Lines of a client, of bounded size.

use std::io::{self, BufRead};
use std::thread;

use abide_schema::limits::MESSAGE_BYTES;
use tokio::sync::mpsc;

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(Vec<u8>),
    /// It has more bytes than a message of the server may have.
    TooLong,
}

/// Reads the lines of stdin in a thread of its own: a read of a terminal or pipe cannot be cancelled.
pub(super) fn read_stdin() -> mpsc::Receiver<io::Result<Line>> {
    let (lines, receiver) = mpsc::channel(1);
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        while let Some(line) = read_line(&mut stdin, MESSAGE_BYTES).transpose() {
            let is_last = line.is_err();
            if lines.blocking_send(line).is_err() || is_last {
                break;
            }
        }
    });
    receiver
}

/// The next line; `None` at the end. A line of more than `max` bytes is read to its end and not kept.
fn read_line(from: &mut impl BufRead, max: usize) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    let mut is_long = false;
    let mut is_any = false;
    loop {
        let read = from.fill_buf()?;
        if read.is_empty() {
            break;
        }
        is_any = true;
        let end = read.iter().position(|byte| *byte == b'\n');
        let part = &read[..end.unwrap_or(read.len())];
        is_long |= line.len() + part.len() > max;
        if is_long {
            line = Vec::new();
        } else {
            line.extend_from_slice(part);
        }
        let used = end.map_or(read.len(), |end| end + 1);
        from.consume(used);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_skipped() {
        let text = b"one\n\ntoo long\nlast".as_slice();
        let mut from = io::BufReader::with_capacity(3, text);
        let mut all = Vec::new();
        while let Some(line) = read_line(&mut from, 5).expect("memory can be read") {
            all.push(match line {
                Line::Text(text) => String::from_utf8(text).expect("ASCII"),
                Line::TooLong => "…".to_owned(),
            });
        }
        assert_eq!(all, ["one", "", "…", "last"]);
    }
}
