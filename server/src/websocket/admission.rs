//! Admission of the messages of a socket: all that a message takes of what is shared, as one value.

use std::sync::Arc;

use abide_engine::buffers::{Account, Reservation};
use abide_schema::{Refusal, caller::Caller};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::message::{self, ReadMessage};
use crate::arrivals::Arrivals;
use crate::connections::parse_turns::{ParseTurn, ParseTurns};
use crate::{limits, unsent};

/// What a message has taken. [`Admissions::admit`] takes it, and dropping the value returns it, however the message ends: with an
/// answer that is written, without one, with a panic, or with its connection.
///
/// | part | bounds | of whom | held |
/// |---|---|---|---|
/// | bytes of the message | memory | a tenant, the process | from its first bytes until its work is done |
/// | turn | processor time of large messages | a caller, a tenant, the process | while it is parsed, and during the first poll of its work |
/// | room | concurrent work | a socket | until the answer is written |
/// | bytes of the answer | memory | a tenant, the process | from the end of the work until it is written |
///
/// They are taken in this order. The bytes are counted first, because they occupy memory while they arrive. The room comes after
/// the parsing, because its weight depends on the op, and a `cancel` needs none: it passes when the queries that it cancels
/// occupy all of it. A message that waits for room has no turn, since the room depends on how fast this client reads
/// its answers, and others wait for the turn. The bytes of the message are returned before those of the answer are counted, so
/// that a caller with little room still gets its answer.
///
/// Two further limits apply to callers in the process as well, so the engine checks them, in the first poll of the work: the
/// caller's rate and quota, which are charged and not returned, and the room in the queue of the engine's writer, which is
/// held until it takes the call. A message that they refuse holds the parts above until the refusal is written.
#[derive(Debug)]
pub(super) struct Admission {
    message_bytes: Option<Reservation>,
    turn: Option<ParseTurn>,
    _room: Option<OwnedSemaphorePermit>,
    answer_bytes: Option<Reservation>,
    account: Account,
}

/// Admits the messages of one socket.
pub(super) struct Admissions {
    /// Counts the message that arrives.
    arrivals: Arc<Arrivals>,
    parse_turns: ParseTurns,
    in_flight: Arc<Semaphore>,
    /// The account that counts answers.
    account: Account,
}

impl Admissions {
    pub(super) fn new(
        arrivals: Arc<Arrivals>,
        parse_turns: ParseTurns,
        account: Account,
    ) -> Admissions {
        let in_flight = Arc::new(Semaphore::new(limits::IN_FLIGHT));
        Admissions { arrivals, parse_turns, in_flight, account }
    }

    /// Parses a complete message, and takes what it needs as soon as there is room for it.
    ///
    /// # Errors
    /// The message cannot be parsed. The error contains its id, if that can be.
    pub(super) async fn admit(
        &self,
        caller: &Caller,
        text: &str,
    ) -> Result<(ReadMessage, Admission), (Option<String>, Refusal)> {
        let message_bytes = self.arrivals.take_message();
        let mut turn = self.parse_turns.acquire(caller, text.len()).await;
        let message = message::read(text)?;
        let room = match weight(&message, text.len()) {
            None => {
                turn = None;
                None
            }
            Some(weight) => match Arc::clone(&self.in_flight).try_acquire_many_owned(weight) {
                Ok(room) => Some(room),
                Err(_) => {
                    drop(turn);
                    let room = Arc::clone(&self.in_flight).acquire_many_owned(weight).await;
                    turn = self.parse_turns.acquire(caller, text.len()).await;
                    room.ok()
                }
            },
        };
        let account = self.account.clone();
        let admission = Admission { message_bytes, turn, _room: room, answer_bytes: None, account };
        Ok((message, admission))
    }

    /// Returns what a message has taken that is not parsed.
    pub(super) fn discard(&self) {
        drop(self.arrivals.take_message());
    }

    /// Subtracts a ping or a pong, which may arrive within a message.
    pub(super) fn subtract_control(&self, payload: &[u8]) {
        self.arrivals.subtract_control(payload);
    }
}

impl Admission {
    /// Takes the turn out, for the first poll of the work.
    pub(super) fn take_turn(&mut self) -> Option<ParseTurn> {
        self.turn.take()
    }

    /// Counts the result of a query, which this reservation counts, instead of the message.
    pub(super) fn hold_result(&mut self, result: Reservation) {
        self.message_bytes = None;
        self.answer_bytes = Some(result);
    }

    /// Counts the text of the answer instead of the message, unless it is a result that is counted.
    ///
    /// # Errors
    /// `overloaded`.
    pub(super) fn count_answer(&mut self, text: &str) -> Result<(), Refusal> {
        self.message_bytes = None;
        if self.answer_bytes.is_none() {
            self.answer_bytes = unsent::reserve(&self.account, text)?;
        }
        Ok(())
    }
}

/// Returns the part of [`limits::IN_FLIGHT`] that a message of this size needs; `None` if the writer of the socket
/// executes it, or if its work takes no time.
fn weight(message: &ReadMessage, bytes: usize) -> Option<u32> {
    let weight = match message {
        ReadMessage::Call { .. } | ReadMessage::Batch { .. } => 1 + bytes / limits::WEIGHT_BYTES,
        ReadMessage::Sql { .. } | ReadMessage::Explain { .. } => limits::QUERY_WEIGHT,
        ReadMessage::Subscribe { .. }
        | ReadMessage::Unsubscribe { .. }
        | ReadMessage::Cancel { .. }
        | ReadMessage::Ack { .. }
        | ReadMessage::Ping => return None,
    };
    Some(weight.min(limits::IN_FLIGHT) as u32)
}
