//! What a connection is told.

use std::sync::Arc;

use abide_schema::wire::Opening;
use abide_schema::{Checksum, Refusal, Row, Seq};

use crate::hub::HeldDelta;
use crate::shared_results::SharedResult;

/// What a connection is told.
#[derive(Clone, Debug)]
pub enum Update {
    /// A subscription's result, or a part of it.
    Snapshot(SnapshotPart),
    /// What one commit changed, over all subscriptions of the connection.
    Delta {
        /// The connection had been told everything up to here.
        from: Seq,
        /// And now up to here.
        to: Seq,
        /// By subscription.
        changes: Vec<Change>,
    },
    /// One subscription alone is brought up to here: after a delta that only said "stale", the query was
    /// run again. Its later changes come with the frames from there on.
    Rerun {
        /// Its rows are now those of this state.
        seq: Seq,
        /// What changed since it was last told.
        change: Change,
        /// It has changed again since, nobody knows yet how; another of these follows.
        stale: bool,
    },
    /// Nothing of interest happened up to here.
    Progress {
        /// Up to here.
        seq: Seq,
    },
    /// Something is wrong with a subscription. With code `refetch` a snapshot follows; with any other
    /// the subscription has ended.
    Error {
        /// The subscription.
        id: Arc<str>,
        /// Why.
        refusal: Refusal,
    },
}

impl Update {
    /// Bytes that [`Buffers`](crate::buffers::Buffers) count for it until it is dropped, all connections that
    /// share its rows together; zero where they are few.
    #[must_use]
    pub fn counted_bytes(&self) -> usize {
        match self {
            Update::Snapshot(part) => part.result.counted_bytes(),
            Update::Delta { changes, .. } => {
                changes.iter().map(|change| change.delta.counted_bytes()).sum()
            }
            Update::Rerun { change, .. } => change.delta.counted_bytes(),
            Update::Progress { .. } | Update::Error { .. } => 0,
        }
    }
}

/// A part of a subscription's result.
#[derive(Clone, Debug)]
pub struct SnapshotPart {
    /// The subscription.
    pub id: Arc<str>,
    /// The state it was read at.
    pub seq: Seq,
    /// Columns, key and order, and how it is kept.
    pub opening: Arc<Opening>,
    /// The rows of this part.
    pub rows: Vec<Row>,
    /// More parts follow.
    pub more: bool,
    /// What was held before is void.
    pub reset: bool,
    /// Of the whole result, in its last part, where that was asked for.
    pub checksum: Option<Checksum>,
    /// The result that it is a part of: counted until its last part is dropped.
    pub(super) result: Arc<SharedResult>,
}

/// What changed in one subscription's result.
#[derive(Clone, Debug)]
pub struct Change {
    /// The subscription.
    pub id: Arc<str>,
    /// The rows, shared with all who are told of them.
    pub delta: HeldDelta,
    /// Of the result after it, where that was asked for.
    pub checksum: Option<Checksum>,
    /// In the answer to a resume: columns, key and order, and how it is kept.
    pub opening: Option<Arc<Opening>>,
}

/// An update that waits to be taken.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) update: Update,
    /// Set where it concerns this subscription and nobody else; it goes when that ends.
    only_for: Option<Arc<str>>,
    /// Set in the answer to a resume, which may begin earlier: what the connection was told before it.
    told: Option<Seq>,
}

impl Ready {
    pub(super) fn for_all(update: Update) -> Ready {
        Ready { update, only_for: None, told: None }
    }

    pub(super) fn only_for(id: &Arc<str>, update: Update) -> Ready {
        Ready { update, only_for: Some(Arc::clone(id)), told: None }
    }

    /// The answer to a resume, in a frame, where the connection was told everything up to a seq.
    pub(super) fn answer(update: Update, told: Seq) -> Ready {
        Ready { update, only_for: None, told: Some(told) }
    }

    /// Takes a subscription out; `false` where nothing is left to say. A frame stays, for it says to all
    /// others that they were told everything up to its end, but where the answer that it was is gone, it
    /// does not begin earlier than the connection was.
    pub(super) fn without(&mut self, id: &str) -> bool {
        if let Update::Delta { from, changes, .. } = &mut self.update {
            changes.retain(|change| &*change.id != id);
            if let (true, Some(told)) = (changes.is_empty(), self.told) {
                *from = told;
            }
        }
        self.only_for.as_deref() != Some(id)
    }
}
