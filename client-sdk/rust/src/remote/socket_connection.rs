//! One connection, read and written concurrently, with pings to a silent server.

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message, Utf8Bytes};

use super::dial::Socket;

/// Silence of the server after which the client sends a ping.
const PING: Duration = Duration::from_secs(10);

/// Silence after which the server counts as gone: two pings went unanswered. A server that
/// reads a large result still answers.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// One connection, read and written concurrently: it is read even while the server does not read.
pub(crate) struct SocketConnection<'a> {
    socket: &'a mut Socket,
    to_send: VecDeque<Utf8Bytes>,
    unflushed: bool,
    received_at: Instant,
    pinged: bool,
}

impl SocketConnection<'_> {
    pub(super) fn new(socket: &mut Socket) -> SocketConnection<'_> {
        let received_at = Instant::now();
        let to_send = VecDeque::new();
        SocketConnection { socket, to_send, unflushed: false, received_at, pinged: false }
    }

    /// Queues a message. Callers that wait for the replies bound the queue.
    pub(crate) fn send(&mut self, text: impl Into<Utf8Bytes>) {
        self.to_send.push_back(text.into());
    }

    /// When to [`check`](SocketConnection::check).
    pub(super) fn wake_at(&self) -> Instant {
        self.received_at + if self.pinged { IDLE_TIMEOUT } else { PING }
    }

    /// Pings a silent server; an error when it does not answer.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let silence = self.received_at.elapsed();
        if silence >= IDLE_TIMEOUT {
            return Err(format!("the server was silent for {} s", silence.as_secs()));
        }
        if silence >= PING && !self.pinged {
            self.pinged = true;
            self.send(r#"{"op":"ping"}"#);
        }
        Ok(())
    }

    /// Writes what can be written, and reads: the next text, `None` for other messages, or an error.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Utf8Bytes>, String>> {
        if let Err(why) = self.poll_send(context) {
            return Poll::Ready(Err(why.to_string()));
        }
        let Poll::Ready(message) = self.socket.poll_next_unpin(context) else {
            return Poll::Pending;
        };
        self.received_at = Instant::now();
        self.pinged = false;
        Poll::Ready(match message {
            Some(Ok(Message::Text(text))) => Ok(Some(text)),
            Some(Ok(Message::Close(Some(frame)))) if !frame.reason.is_empty() => {
                Err(frame.reason.to_string())
            }
            Some(Ok(Message::Close(_))) | None => {
                Err("the server closed the connection".to_owned())
            }
            Some(Ok(_)) => {
                // The answer to a ping is written with the next flush.
                self.unflushed = true;
                Ok(None)
            }
            Some(Err(why)) => Err(why.to_string()),
        })
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Result<(), SocketError> {
        while !self.to_send.is_empty() {
            match self.socket.poll_ready_unpin(context)? {
                Poll::Pending => return Ok(()),
                Poll::Ready(()) => {
                    let text = self.to_send.pop_front().unwrap_or_default();
                    self.socket.start_send_unpin(Message::Text(text))?;
                    self.unflushed = true;
                }
            }
        }
        if self.unflushed && self.socket.poll_flush_unpin(context)?.is_ready() {
            self.unflushed = false;
        }
        Ok(())
    }
}
