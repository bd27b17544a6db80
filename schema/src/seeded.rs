//! Seeded bugs that prove that the simulator detects them (`cargo xtask bugs`).
//!
//! Without the feature `seeded-bugs`, which no shipped build enables, [`makes`] is a constant
//! `false` and the compiler removes the bugs.

/// A bug that real systems have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SeededBug {
    /// The call is answered at COMMIT, before the transaction is durable.
    AckBeforeSync = 1,
    /// Subscribers receive a commit before it is durable.
    DeltaBeforeSync,
    /// A query's result is returned before the state that it read is durable.
    QueryBeforeSync,
    /// A failed sync is treated as successful.
    SyncErrorIgnored,
    /// After a restart, the WAL content of a failed sync is used unchanged.
    WalNotRewritten,
    /// A checkpoint runs although a sync of the WAL has failed.
    CheckpointAfterError,
    /// Checkpoints run without syncs.
    CheckpointUnsynced,
    /// A worker that lost its lease can still write.
    NoFencing,
    /// A call that must not run twice is retried when its worker vanishes.
    EffectRetried,
    /// The snapshot is read before the subscription is registered.
    AttachAfterSnapshot,
    /// Only the new image of a changed row is evaluated, not the old one.
    LostOldRow,
    /// A resume starts one event too late.
    ResumeTooLate,
    /// A retry runs the reducer again.
    RequestIdIgnored,
    /// Ids come from the operating system's randomness instead of the log.
    RandomIds,
    /// A rolled-back call keeps its position in the log.
    GapAfterRefusal,
    /// A reducer accesses rows outside its caller's scope.
    ScopeIgnored,
    /// A query returns rows that its caller may not see.
    VisibilityIgnored,
    /// A group is acknowledged whose record is not in the journal.
    GroupNotJournalled,
    /// A segment of the journal is used again before a checkpoint has its groups.
    SegmentRecycledEarly,
    /// The checksum of a journal record is not checked.
    ChecksumIgnored,
    /// A record of an earlier use of a segment is applied.
    StaleSegmentApplied,
    /// The rows of a refused group stay in the open transaction.
    GroupNotRolledBack,
}

impl SeededBug {
    /// All bugs.
    pub const ALL: [SeededBug; 22] = [
        SeededBug::AckBeforeSync,
        SeededBug::DeltaBeforeSync,
        SeededBug::QueryBeforeSync,
        SeededBug::SyncErrorIgnored,
        SeededBug::WalNotRewritten,
        SeededBug::CheckpointAfterError,
        SeededBug::CheckpointUnsynced,
        SeededBug::NoFencing,
        SeededBug::EffectRetried,
        SeededBug::AttachAfterSnapshot,
        SeededBug::LostOldRow,
        SeededBug::ResumeTooLate,
        SeededBug::RequestIdIgnored,
        SeededBug::RandomIds,
        SeededBug::GapAfterRefusal,
        SeededBug::ScopeIgnored,
        SeededBug::VisibilityIgnored,
        SeededBug::GroupNotJournalled,
        SeededBug::SegmentRecycledEarly,
        SeededBug::ChecksumIgnored,
        SeededBug::StaleSegmentApplied,
        SeededBug::GroupNotRolledBack,
    ];
}

#[cfg(feature = "seeded-bugs")]
static MADE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Enables this bug in this process, and disables any other.
#[cfg(feature = "seeded-bugs")]
pub fn make(bug: Option<SeededBug>) {
    let number = bug.map_or(0, |bug| bug as u8);
    MADE.store(number, std::sync::atomic::Ordering::SeqCst);
}

/// Returns `true` if this bug is enabled.
#[cfg(feature = "seeded-bugs")]
#[must_use]
pub fn makes(bug: SeededBug) -> bool {
    MADE.load(std::sync::atomic::Ordering::SeqCst) == bug as u8
}

/// Returns `true` if this bug is enabled: never in this build.
#[cfg(not(feature = "seeded-bugs"))]
#[must_use]
pub const fn makes(_: SeededBug) -> bool {
    false
}
