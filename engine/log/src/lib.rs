//! The tamper evidence of Abide: the bytes of an event, the hash chain, and
//! its verification. Pure: no SQLite, no HTTP, no clock.
//!
//! It changes when the guarantees for an auditor change.
//!
//! *Invariant:* the hash of event `n` covers every field of event `n` and, through `prev_hash`, every
//! field of all events before it. An auditor who keeps one hash can detect whether any event up to it was
//! altered, removed, added or reordered.

mod chain;
mod encoding;
mod written_rows;

pub use chain::{Chain, ChainBreak, Flaw};
pub use encoding::{Digests, chained_hash, commitment, event_hash, genesis};
pub use written_rows::{KnownDigest, LONG_CELL_BYTES, TableDigest, WrittenRows};
