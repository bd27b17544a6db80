//! A socket that times out writes to a peer that does not read.
//!
//! Backpressure means waiting for slow peers; this limits how long. It covers responses, event
//! streams and WebSockets alike, because it sits below all of them; with TLS it sits above the encryption. The wrapper also counts received bytes; with a crate
//! for the timeout, the wrapper for the count would remain.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::arrivals::Arrivals;
use crate::limits;

/// The socket, or TLS over it.
#[derive(Debug)]
pub(crate) struct WriteTimeoutStream<S> {
    socket: S,
    /// Runs while a write is blocked.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Counts received bytes.
    arrivals: Arc<Arrivals>,
}

impl<S> WriteTimeoutStream<S> {
    pub(crate) fn new(socket: S, arrivals: Arc<Arrivals>) -> WriteTimeoutStream<S> {
        WriteTimeoutStream { socket, stalled: None, arrivals }
    }

    /// Passes on the result of a write, and fails it after too long without progress.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limits::STALL_TIMEOUT)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        Poll::Ready(self.arrivals.add(buffer.filled().len() - before))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS keeps what it has encrypted until it is flushed.
        let flushed = Pin::new(&mut self.socket).poll_flush(context);
        self.judge(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.socket).poll_shutdown(context);
        self.judge(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let peer = TcpStream::connect(address).await.expect("it listens");
        let (socket, _) = listener.accept().await.expect("a peer");
        let mut patient = WriteTimeoutStream::new(socket, Arc::default());
        let begun = Instant::now();
        let given_up = loop {
            if let Err(why) = patient.write_all(&[0; 1 << 16]).await {
                break why;
            }
        };
        assert_eq!(given_up.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= limits::STALL_TIMEOUT, "{:?}", begun.elapsed());
        drop(peer);
    }

    /// A stream that accepts every write and sends nothing, as TLS whose buffer has room.
    struct Unsent;

    impl AsyncWrite for Unsent {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    /// The end of a response that fits into the buffer of TLS waited for ever.
    #[tokio::test(start_paused = true)]
    async fn bytes_that_cannot_be_flushed_time_out() {
        let begun = Instant::now();
        let mut patient = WriteTimeoutStream::new(Unsent, Arc::default());
        patient.write_all(b"the end").await.expect("it is buffered");
        let flushed = patient.flush().await.expect_err("it is not sent");
        let mut patient = WriteTimeoutStream::new(Unsent, Arc::default());
        let closed = patient.shutdown().await.expect_err("it is not sent");
        assert_eq!([flushed.kind(), closed.kind()], [io::ErrorKind::TimedOut; 2]);
        assert!(begun.elapsed() >= 2 * limits::STALL_TIMEOUT, "{:?}", begun.elapsed());
    }
}
