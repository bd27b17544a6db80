//! Counts the bytes of an incoming WebSocket message for its caller, from [`limits::BODY_UNCOUNTED_BYTES`] on, like
//! those of a request body.
//!
//! The WebSocket library returns a message only when it is complete. So the bytes are counted below it, where the
//! socket is read.

use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use abide_engine::buffers::{Account, Reservation};

use crate::limits;

/// The count of one connection. Nothing is counted before it is a WebSocket.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(OnceLock<Mutex<Message>>);

/// The incoming message.
#[derive(Debug)]
struct Message {
    account: Account,
    hold: Reservation,
    bytes: usize,
}

impl Arrivals {
    /// Starts counting, for this account.
    pub(crate) fn begin(&self, account: Account) {
        self.0.get_or_init(|| {
            let hold = account.reserve();
            Mutex::new(Message { account, hold, bytes: 0 })
        });
    }

    /// Counts received bytes.
    ///
    /// # Errors
    /// Too many bytes of the caller are buffered. The error contains the refusal.
    pub(crate) fn add(&self, bytes: usize) -> io::Result<()> {
        let Some(mut message) = self.lock() else { return Ok(()) };
        message.bytes += bytes;
        let Message { hold, bytes, .. } = &mut *message;
        if *bytes > limits::BODY_UNCOUNTED_BYTES {
            hold.grow(bytes.saturating_sub(hold.bytes())).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// The message is complete: returns its reservation.
    pub(crate) fn take_message(&self) -> Option<Reservation> {
        let mut message = self.lock()?;
        message.bytes = 0;
        if message.hold.bytes() == 0 {
            return None;
        }
        let next = message.account.reserve();
        Some(std::mem::replace(&mut message.hold, next))
    }

    /// Subtracts a ping or a pong with this payload, which may arrive within a message.
    pub(crate) fn subtract_control(&self, payload: &[u8]) {
        if let Some(mut message) = self.lock() {
            message.bytes = message.bytes.saturating_sub(CONTROL_HEADER_BYTES + payload.len());
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, Message>> {
        Some(self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Size of the header of a client's control frame, with its mask (RFC 6455, section 5.2).
const CONTROL_HEADER_BYTES: usize = 6;
