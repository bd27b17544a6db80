//! The canonical bytes of an event, and their SHA-256.
//!
//! ```text
//! hash = SHA-256(
//!     "abide.event.v4\n"
//!     prev_hash                        32 bytes
//!     seq, at                          8 bytes each, big-endian, two's complement
//!     reducer                          length (8 bytes, big-endian), then UTF-8
//!     commitment                       32 bytes
//! )
//! commitment = SHA-256(
//!     "abide.content.v2\n"
//!     salt                             16 bytes
//!     caller                           length, UTF-8
//!     authority                        0x00 if absent; else 0x01, length, UTF-8
//!     session_id, request_id           as authority
//!     SHA-256(arguments)               32 bytes
//!     SHA-256(outcome)                 32 bytes
//!     rows_hash                        32 bytes, see `written_rows`
//! )
//! ```
//!
//! The salt is random and stored with the event. Without it, neither hash nor commitment confirms a guess of
//! the contents. The chain needs only seq, time, reducer and commitment ([`chained_hash`]), so everything that can
//! name a person, and the salt, can be erased while the commitment is kept, and the chain still verifies.
//!
//! Every field has a fixed length or is prefixed with its length, so no two events have the same bytes. `arguments` and
//! `outcome` enter as digests: the callers' threads can compute them, and the single writer hashes only a few hundred
//! bytes.

use abide_schema::event::{Event, Hash};
use sha2::{Digest as _, Sha256};

const EVENT_TAG: &[u8] = b"abide.event.v4\n";
const CONTENT_TAG: &[u8] = b"abide.content.v2\n";
const GENESIS_TAG: &[u8] = b"abide.log.v1\n";

/// Returns the hash before the first event: a function of the log's id, so that no two logs share a
/// start and events cannot be moved from one log to another.
#[must_use]
pub fn genesis(log_id: &str) -> Hash {
    Sha256::new().chain_update(GENESIS_TAG).chain_update(log_id.as_bytes()).finalize().into()
}

/// The digests with which `arguments` and `outcome` of an event enter its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Of `arguments`.
    pub arguments: Hash,
    /// Of `outcome`.
    pub outcome: Hash,
}

impl Digests {
    /// Returns the digests of an event.
    #[must_use]
    pub fn from_event(event: &Event) -> Digests {
        Digests {
            arguments: Sha256::digest(event.arguments.as_bytes()).into(),
            outcome: Sha256::digest(event.outcome.as_bytes()).into(),
        }
    }
}

/// Returns the hash of an event; `event.hash` itself is not read.
#[must_use]
pub fn event_hash(event: &Event, digests: &Digests) -> Hash {
    chained_hash(event, &commitment(event, digests))
}

/// Returns the commitment to the contents of an event: caller, authority, session, request id, arguments, outcome, and the
/// rows that it has written.
#[must_use]
pub fn commitment(event: &Event, digests: &Digests) -> Hash {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(CONTENT_TAG);
    bytes.extend_from_slice(&event.salt);
    push_text(&mut bytes, &event.caller);
    push_optional(&mut bytes, event.authority.as_deref());
    push_optional(&mut bytes, event.session_id.as_deref());
    push_optional(&mut bytes, event.request_id.as_deref());
    bytes.extend_from_slice(&digests.arguments);
    bytes.extend_from_slice(&digests.outcome);
    bytes.extend_from_slice(&event.rows_hash);
    Sha256::digest(&bytes).into()
}

/// Returns the hash of an event, computed from its commitment. The contents and the salt are not read.
#[must_use]
pub fn chained_hash(event: &Event, commitment: &Hash) -> Hash {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(EVENT_TAG);
    bytes.extend_from_slice(&event.prev_hash);
    bytes.extend_from_slice(&event.seq.0.to_be_bytes());
    bytes.extend_from_slice(&event.at.0.to_be_bytes());
    push_text(&mut bytes, &event.reducer);
    bytes.extend_from_slice(commitment);
    Sha256::digest(&bytes).into()
}

/// Appends a text, with its length before it.
pub(crate) fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u64).to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn push_optional(bytes: &mut Vec<u8>, text: Option<&str>) {
    match text {
        None => bytes.push(0),
        Some(text) => {
            bytes.push(1);
            push_text(bytes, text);
        }
    }
}
