//! A reader of the lines of a server: it closes a stream with oversized lines, and passes on what the SDK can decode.
//!
//! If an oversized message were dropped silently, its call would wait until its timeout. A closed connection fails
//! immediately with the reason.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::received;

/// Maximum size of a read: the capacity of a Linux pipe.
const READ_BYTES: usize = 64 * 1024;

/// Passes on complete lines, and fails at an oversized one.
pub(super) struct BoundedLines<R> {
    from: R,
    /// The current, incomplete line.
    partial: Vec<u8>,
    /// Lines that are not passed on yet, and how much of them is.
    lines: Vec<u8>,
    passed: usize,
    buffer: Box<[u8]>,
    max: usize,
    note: StreamError,
}

/// Why the stream was closed, if it was.
#[derive(Clone, Default)]
pub(super) struct StreamError {
    why: Arc<Mutex<Option<String>>>,
}

impl StreamError {
    pub(super) fn read(&self) -> Option<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn write(&self, why: String) {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }
}

impl<R> BoundedLines<R> {
    pub(super) fn new(from: R, max: usize, note: StreamError) -> BoundedLines<R> {
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        BoundedLines { from, partial: Vec::new(), lines: Vec::new(), passed: 0, buffer, max, note }
    }

    /// Adds what was read.
    fn add(&mut self, bytes: usize) -> io::Result<()> {
        for piece in self.buffer[..bytes].split_inclusive(|byte| *byte == b'\n') {
            let line = self.partial.len() + piece.len();
            if line > self.max {
                let max = self.max;
                let why =
                    format!("it sent a message of at least {line} bytes; the maximum is {max}");
                self.note.write(why.clone());
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = String::from_utf8_lossy(&self.partial);
                self.lines.extend_from_slice(received::decodable(line.trim_end()).as_bytes());
                self.lines.push(b'\n');
                self.partial.clear();
            }
        }
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for BoundedLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.passed == this.lines.len() {
            this.lines.clear();
            this.passed = 0;
            let mut read = ReadBuf::new(&mut this.buffer);
            ready!(Pin::new(&mut this.from).poll_read(context, &mut read))?;
            let bytes = read.filled().len();
            if bytes == 0 {
                return Poll::Ready(Ok(()));
            }
            this.add(bytes)?;
        }
        let waiting = &this.lines[this.passed..];
        let count = waiting.len().min(buffer.remaining());
        buffer.put_slice(&waiting[..count]);
        this.passed += count;
        Poll::Ready(Ok(()))
    }
}
