//! Named points where tests inject faults: a panic ([`FaultPoint`]), or a seeded bug.
//!
//! A seeded bug ([`SeededBug`]) is a wrong step that the simulator must find (`cargo xtask bugs`). Those of this crate are
//! functions here, called where the mistake would be made; those of the store and of reducers are at the place of the
//! mistake. Without the feature `seeded-bugs`, which no shipped build enables, [`makes`] is a constant `false`: the
//! functions return what they are given, and the compiler removes them.

use std::hash::{BuildHasher as _, RandomState};
use std::io;

use abide_schema::event::Salt;
use abide_schema::seeded::{SeededBug, makes};
use abide_schema::{Row, Seq};

/// A point within a step of a thread, where a test can make it panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultPoint {
    /// Writer: before it looks up what is due.
    Due,
    /// Writer: before it attaches a subscription.
    Attach,
    /// Writer: the router has the subscription; the subscriber has no answer yet.
    Attached,
    /// Writer: before it ends a subscription.
    Detach,
    /// Writer: before it adopts accumulators.
    Backfill,
    /// Writer: before it records a denied attempt.
    Denied,
    /// Writer: a group has begun and has written nothing. The transaction can have rows of earlier groups.
    Begun,
    /// Writer: the calls have run; their rows are in the transaction.
    Ran,
    /// Writer: while making deltas, before a statement.
    Delta,
    /// Writer: before the group is appended to the journal.
    Append,
    /// Writer: the group is in the journal, before the sync thread has it.
    Appended,
    /// Writer: before SQLite commits the groups.
    CommitRows,
    /// Writer: before it prunes undo images.
    Prune,
    /// Sync: before the journal is synced.
    Sync,
    /// Sync: the journal is synced; the durable seq has not advanced.
    Synced,
    /// Sync: the durable seq has advanced; no call is answered yet.
    Durable,
    /// Sync: all calls are answered; the publisher has nothing yet.
    Answered,
    /// Publisher: before it fills the outboxes.
    Publish,
    /// Publisher: frames are built, but not in their outboxes.
    Frames,
    /// Checkpointer: before it checkpoints the WAL.
    Checkpoint,
    /// Writer: while it checkpoints the rest of the WAL.
    CheckpointLock,
    /// Reader: between two queries.
    Read,
    /// Reader: during a query, with an open snapshot.
    Query,
    /// Reader: before it reads accumulators.
    Fill,
    /// Reader: while reading accumulators, which some subscriber needs.
    FillBegun,
}

impl FaultPoint {
    /// All points.
    pub const ALL: [FaultPoint; 25] = [
        FaultPoint::Due,
        FaultPoint::Attach,
        FaultPoint::Attached,
        FaultPoint::Detach,
        FaultPoint::Backfill,
        FaultPoint::Denied,
        FaultPoint::Begun,
        FaultPoint::Ran,
        FaultPoint::Delta,
        FaultPoint::Append,
        FaultPoint::Appended,
        FaultPoint::CommitRows,
        FaultPoint::Prune,
        FaultPoint::Sync,
        FaultPoint::Synced,
        FaultPoint::Durable,
        FaultPoint::Answered,
        FaultPoint::Publish,
        FaultPoint::Frames,
        FaultPoint::Checkpoint,
        FaultPoint::CheckpointLock,
        FaultPoint::Read,
        FaultPoint::Query,
        FaultPoint::Fill,
        FaultPoint::FillBegun,
    ];

    /// `true` if a panic here affects only the current query.
    #[must_use]
    pub fn is_contained(self) -> bool {
        matches!(self, FaultPoint::Query | FaultPoint::Fill | FaultPoint::FillBegun)
    }
}

/// Before the writer hands a commit to the sync thread: whether callers get their answers already.
pub(crate) fn answers_before_sync() -> bool {
    makes(SeededBug::AckBeforeSync)
}

/// Before the writer hands a commit to the sync thread: whether subscribers get their deltas already.
pub(crate) fn publishes_before_sync() -> bool {
    makes(SeededBug::DeltaBeforeSync)
}

/// Returns the state that must be durable before the result of a query that read `seq` is returned.
pub(crate) fn durable_for_query(seq: Seq) -> Seq {
    if makes(SeededBug::QueryBeforeSync) { Seq::ZERO } else { seq }
}

/// Returns the outcome of a sync of the journal.
pub(crate) fn sync_outcome(synced: io::Result<()>) -> io::Result<()> {
    if makes(SeededBug::SyncErrorIgnored) { Ok(()) } else { synced }
}

/// `true` if a group is journalled.
pub(crate) fn journals() -> bool {
    !makes(SeededBug::GroupNotJournalled)
}

/// `true` if segments of the journal are used again as soon as SQLite has committed their groups.
pub(crate) fn recycles_before_checkpoint() -> bool {
    makes(SeededBug::SegmentRecycledEarly)
}

/// `true` if a checkpoint is refused, for an engine whose storage has failed or not.
pub(crate) fn refuses_checkpoint(has_failed: bool) -> bool {
    has_failed && !makes(SeededBug::CheckpointAfterError)
}

/// `true` if a subscription is attached only after its snapshot was read.
pub(crate) fn attaches_after_snapshot() -> bool {
    makes(SeededBug::AttachAfterSnapshot)
}

/// Returns the image of a changed row before a commit, for the deltas of live queries.
pub(crate) fn old_image(old: Option<Row>, new: Option<&Row>) -> Option<Row> {
    old.filter(|_| new.is_none() || !makes(SeededBug::LostOldRow))
}

/// Returns the seq after which a resume reads changes.
pub(crate) fn resume_after(from: Seq) -> Seq {
    if makes(SeededBug::ResumeTooLate) { from.next() } else { from }
}

/// Returns the request id under which calls are remembered and looked up.
pub(crate) fn remembered<T>(request: Option<T>) -> Option<T> {
    request.filter(|_| !makes(SeededBug::RequestIdIgnored))
}

/// Returns the salt from which the ids that a call generates are derived.
pub(crate) fn salt_of_ids(recorded: Salt, seq: Seq) -> Salt {
    if !makes(SeededBug::RandomIds) {
        return recorded;
    }
    let unrecorded = RandomState::new().hash_one(seq).to_be_bytes();
    [unrecorded, unrecorded].concat().try_into().unwrap_or_default()
}

/// `true` if a refused call keeps its position in the log.
pub(crate) fn refused_keeps_seq() -> bool {
    makes(SeededBug::GapAfterRefusal)
}

/// Returns the scope that the rows of a table belong to, for a check of a reducer's access.
pub(crate) fn row_scope<T>(owner: Option<T>) -> Option<T> {
    owner.filter(|_| !makes(SeededBug::ScopeIgnored))
}

/// `true` if policies and scope restrict what a caller sees.
pub(crate) fn restricts_visibility(is_restricted: bool) -> bool {
    is_restricted && !makes(SeededBug::VisibilityIgnored)
}
