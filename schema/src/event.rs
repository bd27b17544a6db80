//! One event: what the log keeps of one call.

use crate::id::{Micros, Seq};

/// SHA-256 output.
pub type Hash = [u8; 32];

/// Random bytes of one event, drawn from the operating system.
///
/// They blind the event's commitment, so that its hash confirms no guess of its contents, and the ids that
/// its call draws follow from them. 128 bits cannot be searched.
pub type Salt = [u8; 16];

/// One row of the append-only `events` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place: 1, 2, 3 … with no gap.
    pub seq: Seq,
    /// When the call ran; the only clock its reducer saw.
    pub at: Micros,
    /// The session it was about, if any.
    pub session_id: Option<String>,
    /// The rule that ran.
    pub reducer: String,
    /// Who called.
    pub caller: String,
    /// The caller's own name for the call, if it gave one.
    pub request_id: Option<String>,
    /// The arguments, canonical JSON.
    pub arguments: String,
    /// The result, JSON as it was answered.
    pub outcome: String,
    /// The hash of the event before, or the log's genesis.
    pub prev_hash: Hash,
    /// The hash of this event; `abide-log` documents the encoding.
    pub hash: Hash,
    /// What bounded the caller, see [`crate::Caller::authority`]; `None` for who was bounded by nothing.
    pub authority: Option<String>,
    /// The event's random bytes; `None` in events of format 1, whose hash is computed without.
    pub salt: Option<Salt>,
}
