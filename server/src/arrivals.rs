//! Bytes of a WebSocket message that arrives: counted as the caller's from [`limits::BODY_UNCOUNTED_BYTES`] on, as
//! those of a request's body.
//!
//! The library shows a message when all of it is there, so they are counted below it, where the socket is read.

use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use abide_engine::buffers::{Account, Reservation};

use crate::limits;

/// Of one connection. Nothing is counted until it is a WebSocket.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(OnceLock<Mutex<Message>>);

/// The message that arrives.
#[derive(Debug)]
struct Message {
    account: Account,
    hold: Reservation,
    bytes: usize,
}

impl Arrivals {
    /// From now on messages arrive.
    pub(crate) fn begin(&self, account: Account) {
        self.0.get_or_init(|| {
            let hold = account.reserve();
            Mutex::new(Message { account, hold, bytes: 0 })
        });
    }

    /// So many bytes have come.
    ///
    /// # Errors
    /// Too much of the caller waits already. The error has the refusal.
    pub(crate) fn add(&self, bytes: usize) -> io::Result<()> {
        let Some(mut message) = self.lock() else { return Ok(()) };
        message.bytes += bytes;
        let Message { hold, bytes, .. } = &mut *message;
        if *bytes > limits::BODY_UNCOUNTED_BYTES {
            hold.grow(bytes.saturating_sub(hold.bytes())).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// A whole message is there: what counts it.
    pub(crate) fn message(&self) -> Option<Reservation> {
        let mut message = self.lock()?;
        message.bytes = 0;
        if message.hold.bytes() == 0 {
            return None;
        }
        let next = message.account.reserve();
        Some(std::mem::replace(&mut message.hold, next))
    }

    /// A ping or a pong with such a payload is there, maybe in the middle of a message.
    pub(crate) fn control(&self, payload: &[u8]) {
        if let Some(mut message) = self.lock() {
            message.bytes = message.bytes.saturating_sub(CONTROL_HEADER_BYTES + payload.len());
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, Message>> {
        Some(self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The header of a client's control frame with its mask (RFC 6455, 5.2).
const CONTROL_HEADER_BYTES: usize = 6;
