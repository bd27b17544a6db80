//! Classic mistakes, made on purpose: to prove that the simulator would notice (`cargo xtask bugs`).
//!
//! Without the feature `seeded-bugs`, which nothing that is shipped turns on, [`makes`] is a constant
//! `false` and the compiler leaves the mistakes out.

/// A mistake that somebody once made, in some system like this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// The caller is answered when the transaction is committed, before it is on the disk.
    AckBeforeSync = 1,
    /// Subscribers hear of a commit before it is on the disk.
    DeltaBeforeSync,
    /// A query's answer does not wait until what it saw is on the disk.
    QueryBeforeSync,
    /// A sync that fails is taken for one that did not.
    SyncErrorIgnored,
    /// What a failed sync left in the WAL counts as it stands, after a restart.
    WalNotRewritten,
    /// The WAL is moved into the file although a sync of it has failed.
    CheckpointAfterError,
    /// A commit that found no room in the WAL's index stays whole in the WAL.
    CommitNotBuried,
    /// Checkpoints run without syncs.
    CheckpointUnsynced,
    /// Who lost its lease is heard all the same.
    NoFencing,
    /// What must not run twice is tried again when its worker vanishes.
    EffectRetried,
    /// A result is read first, and listened to afterwards.
    AttachAfterSnapshot,
    /// Of a changed row only what it is now is looked at, not what it was.
    LostOldRow,
    /// A resume begins one event too late.
    ResumeTooLate,
    /// A retry is run again.
    RequestIdIgnored,
    /// Ids are drawn from the machine and not from the log.
    RandomIds,
    /// A call that was undone keeps its place in the log.
    GapAfterRefusal,
    /// A reducer reaches rows that are out of its caller's scope.
    ScopeIgnored,
    /// A query shows rows that its caller may not see.
    SightUnbounded,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 18] = [
        Bug::AckBeforeSync,
        Bug::DeltaBeforeSync,
        Bug::QueryBeforeSync,
        Bug::SyncErrorIgnored,
        Bug::WalNotRewritten,
        Bug::CheckpointAfterError,
        Bug::CommitNotBuried,
        Bug::CheckpointUnsynced,
        Bug::NoFencing,
        Bug::EffectRetried,
        Bug::AttachAfterSnapshot,
        Bug::LostOldRow,
        Bug::ResumeTooLate,
        Bug::RequestIdIgnored,
        Bug::RandomIds,
        Bug::GapAfterRefusal,
        Bug::ScopeIgnored,
        Bug::SightUnbounded,
    ];
}

#[cfg(feature = "seeded-bugs")]
static MADE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Makes this mistake from now on, in this process, and no other.
#[cfg(feature = "seeded-bugs")]
pub fn make(bug: Option<Bug>) {
    let number = bug.map_or(0, |bug| bug as u8);
    MADE.store(number, std::sync::atomic::Ordering::SeqCst);
}

/// Whether this mistake is to be made.
#[cfg(feature = "seeded-bugs")]
#[must_use]
pub fn makes(bug: Bug) -> bool {
    MADE.load(std::sync::atomic::Ordering::SeqCst) == bug as u8
}

/// Whether this mistake is to be made: it never is.
#[cfg(not(feature = "seeded-bugs"))]
#[must_use]
pub const fn makes(_: Bug) -> bool {
    false
}
