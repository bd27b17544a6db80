//! The trust story of Abide: what an event's bytes are, how each is chained to the one before, and
//! how a reader of the file checks it. Pure: no SQLite, no HTTP, no clock.
//!
//! Changes when what an auditor can rely on changes.
//!
//! *Invariant:* the hash of event `n` covers every field of event `n` and, through `prev_hash`, every
//! field of all events before it. Whoever keeps one hash can tell whether anything up to it was
//! altered, left out, added or reordered.

mod chain;
mod encoding;

pub use chain::{Chain, ChainBreak, Flaw};
pub use encoding::{Digests, chained_hash, commitment, event_hash, genesis};
