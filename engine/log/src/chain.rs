//! Verifies a log: each event must have the next number, refer to the previous one, and match its own
//! hash.

use abide_schema::Seq;
use abide_schema::event::{Event, Hash};

use crate::encoding::{Digests, event_hash, genesis};

/// The position of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The last verified event; 0 before the first.
    pub seq: Seq,
    /// Its hash, or the genesis.
    pub hash: Hash,
}

/// The error of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// A number is missing or out of order.
    #[error("seq {expected} is missing: {found} comes next")]
    Gap {
        /// The expected number.
        expected: Seq,
        /// The number found.
        found: Seq,
    },
    /// It does not refer to the previous event.
    #[error("its prev_hash differs from the hash of the previous event")]
    Unlinked,
    /// A field differs from what was hashed.
    #[error("its hash does not match its fields")]
    Altered,
}

/// The first invalid event of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {seq}: {flaw}")]
pub struct ChainBreak {
    /// Its seq.
    pub seq: Seq,
    /// The error.
    pub flaw: Flaw,
}

impl Chain {
    /// Returns the position before the first event of a log.
    #[must_use]
    pub fn start(log_id: &str) -> Chain {
        Chain { seq: Seq::ZERO, hash: genesis(log_id) }
    }

    /// Appends an event: fills in `seq`, `prev_hash` and `hash`.
    pub fn append(&mut self, event: &mut Event, digests: &Digests) {
        event.seq = self.seq.next();
        event.prev_hash = self.hash;
        event.hash = event_hash(event, digests);
        *self = Chain { seq: event.seq, hash: event.hash };
    }

    /// Verifies the next event and advances to it.
    ///
    /// # Errors
    /// [`ChainBreak`] naming the event; the position does not change.
    pub fn check(&mut self, event: &Event) -> Result<(), ChainBreak> {
        let expected = self.seq.next();
        let flaw = if event.seq != expected {
            Flaw::Gap { expected, found: event.seq }
        } else if event.prev_hash != self.hash {
            Flaw::Unlinked
        } else if event_hash(event, &Digests::from_event(event)) != event.hash {
            Flaw::Altered
        } else {
            *self = Chain { seq: event.seq, hash: event.hash };
            return Ok(());
        };
        let seq = if event.seq > expected { expected } else { event.seq };
        Err(ChainBreak { seq, flaw })
    }
}

#[cfg(test)]
mod tests;
