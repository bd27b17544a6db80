//! A reader that closes a stream with oversized lines.
//!
//! If such a message were dropped silently, its call would wait until its timeout. A closed connection fails
//! immediately with the reason.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Passes bytes through, and fails at an oversized line.
pub(super) struct BoundedLines<R> {
    from: R,
    /// Bytes of the current line.
    line: usize,
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
    pub(super) fn of(from: R, max: usize, note: StreamError) -> BoundedLines<R> {
        BoundedLines { from, line: 0, max, note }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for BoundedLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.from).poll_read(context, buffer))?;
        for piece in buffer.filled()[before..].split_inclusive(|byte| *byte == b'\n') {
            self.line += piece.len();
            if self.line > self.max {
                let (line, max) = (self.line, self.max);
                let why =
                    format!("it sent a message of at least {line} bytes; the maximum is {max}");
                self.note.write(why.clone());
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
            }
            if piece.ends_with(b"\n") {
                self.line = 0;
            }
        }
        Poll::Ready(Ok(()))
    }
}
