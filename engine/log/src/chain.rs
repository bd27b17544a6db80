//! Walking a log: each event must be the next number, point at the one before, and hash to what it
//! says.

use abide_schema::Seq;
use abide_schema::event::{Event, Hash};

use crate::encoding::{Digests, event_hash, genesis};

/// Where a walk has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The last event that was checked; 0 before the first.
    pub seq: Seq,
    /// Its hash, or the genesis.
    pub hash: Hash,
}

/// What is wrong with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// A number is missing or out of order.
    #[error("seq {expected} is missing: {found} comes next")]
    Gap {
        /// The number that should have come.
        expected: Seq,
        /// The number that came.
        found: Seq,
    },
    /// It does not point at the event before.
    #[error("its prev_hash is not the hash of the event before")]
    Unlinked,
    /// Some field of it is not what was hashed.
    #[error("its fields do not give its hash")]
    Altered,
}

/// The first event at which a log cannot be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {seq}: {flaw}")]
pub struct ChainBreak {
    /// Its seq.
    pub seq: Seq,
    /// What is wrong.
    pub flaw: Flaw,
}

impl Chain {
    /// Before the first event of a log.
    #[must_use]
    pub fn start(log_id: &str) -> Chain {
        Chain { seq: Seq::ZERO, hash: genesis(log_id) }
    }

    /// Gives an event its place: fills in `seq`, `prev_hash` and `hash`.
    pub fn append(&mut self, event: &mut Event, digests: &Digests) {
        event.seq = self.seq.next();
        event.prev_hash = self.hash;
        event.hash = event_hash(event, digests);
        *self = Chain { seq: event.seq, hash: event.hash };
    }

    /// Checks the next event and steps onto it.
    ///
    /// # Errors
    /// [`ChainBreak`] naming the event; the walk stays where it was.
    pub fn check(&mut self, event: &Event) -> Result<(), ChainBreak> {
        let expected = self.seq.next();
        let flaw = if event.seq != expected {
            Flaw::Gap { expected, found: event.seq }
        } else if event.prev_hash != self.hash {
            Flaw::Unlinked
        } else if event_hash(event, &Digests::of(event)) != event.hash {
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
