//! An event: the log record of one call.

use crate::id::{Micros, Seq};

/// SHA-256 output.
pub type Hash = [u8; 32];

/// Random bytes of one event, from the operating system.
///
/// They blind the event's commitment, so that its hash does not confirm a guess of its contents, and they
/// seed the ids that the call generates. 128 bits cannot be searched.
pub type Salt = [u8; 16];

/// One row of the append-only `events` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its position: 1, 2, 3 … without gaps.
    pub seq: Seq,
    /// When the call ran; the only clock that its reducer saw.
    pub at: Micros,
    /// The session that it concerns, if any.
    pub session_id: Option<String>,
    /// The reducer.
    pub reducer: String,
    /// The caller's id.
    pub caller: String,
    /// The caller's request id, if it gave one.
    pub request_id: Option<String>,
    /// The arguments, canonical JSON.
    pub arguments: String,
    /// The result, as the JSON returned to the caller.
    pub outcome: String,
    /// The hash of the previous event, or the log's genesis.
    pub prev_hash: Hash,
    /// The hash of this event; `abide-log` documents the encoding.
    pub hash: Hash,
    /// The caller's restrictions, see [`crate::Caller::authority`]; `None` for an unrestricted caller.
    pub authority: Option<String>,
    /// The event's random bytes.
    pub salt: Salt,
    /// The digest of the rows that the call has written; `abide-log` documents it.
    pub rows_hash: Hash,
}
