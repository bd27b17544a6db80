//! Updates of a connection, as values. The server and the SDK encode them as messages.

use std::sync::Arc;

use abide_schema::wire::SubscriptionInfo;
use abide_schema::{Checksum, Refusal, Row, Seq};

use crate::subscriptions::shared_delta::QueuedDelta;
use crate::subscriptions::shared_results::SharedResult;

/// An update of a connection.
#[derive(Clone, Debug)]
pub enum Update {
    /// A subscription's result, or a part of it.
    Snapshot(SnapshotPart),
    /// The changes of one commit in all subscriptions of the connection; of several, when it was caught up.
    Delta {
        /// The connection had received everything up to here.
        from: Seq,
        /// It has now received everything up to here.
        to: Seq,
        /// By subscription.
        changes: Vec<Change>,
    },
    /// Brings one subscription alone to a seq: after a delta marked stale, the query was
    /// run again. Later changes come with later frames.
    Rerun {
        /// Its rows are now those of this state.
        seq: Seq,
        /// The changes since its last update.
        change: Change,
        /// It has changed again since; another rerun follows.
        stale: bool,
    },
    /// No relevant changes up to a seq.
    Progress {
        /// The seq.
        seq: Seq,
    },
    /// An error of a subscription. With code `resync_required` a snapshot follows; with any other
    /// the subscription has ended.
    Error {
        /// The subscription.
        id: Arc<str>,
        /// The reason.
        refusal: Refusal,
    },
}

impl Update {
    /// Bytes that [`Buffers`](crate::subscriptions::buffers::Buffers) counts until the update is dropped, once for
    /// all connections that share its rows; zero for small updates.
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
    /// Columns, key and order, and how it is maintained.
    pub info: Arc<SubscriptionInfo>,
    /// The rows of this part.
    pub rows: Vec<Row>,
    /// More parts follow.
    pub more: bool,
    /// Earlier rows of the client are void.
    pub reset: bool,
    /// Earlier rows of the client are from a history that the file does not have.
    pub history_changed: bool,
    /// Checksum of the whole result, in its last part, if requested.
    pub checksum: Option<Checksum>,
    /// The result that it is a part of; it is counted until its last part is dropped.
    pub(super) result: Arc<SharedResult>,
}

/// The change of one subscription's result.
#[derive(Clone, Debug)]
pub struct Change {
    /// The subscription.
    pub id: Arc<str>,
    /// The rows, shared by all subscribers.
    pub delta: QueuedDelta,
    /// The checksum of the result after it, if requested.
    pub checksum: Option<Checksum>,
    /// In the answer to a resume: columns, key and order, and how it is maintained.
    pub info: Option<Arc<SubscriptionInfo>>,
}

/// A queued update.
#[derive(Debug)]
pub(super) struct QueuedUpdate {
    pub(super) update: Update,
    /// Set if it concerns only this subscription; it is removed when the subscription ends.
    only_for: Option<Arc<str>>,
    /// Set in the answer to a resume, which may start earlier: the previous position of the connection.
    sent_up_to: Option<Seq>,
}

impl QueuedUpdate {
    pub(super) fn for_all(update: Update) -> QueuedUpdate {
        QueuedUpdate { update, only_for: None, sent_up_to: None }
    }

    pub(super) fn only_for(id: &Arc<str>, update: Update) -> QueuedUpdate {
        QueuedUpdate { update, only_for: Some(Arc::clone(id)), sent_up_to: None }
    }

    /// Returns the answer to a resume, in a frame, on a connection that received everything up to a seq.
    pub(super) fn answer(update: Update, sent_up_to: Seq) -> QueuedUpdate {
        QueuedUpdate { update, only_for: None, sent_up_to: Some(sent_up_to) }
    }

    /// Removes a subscription; `false` if nothing is left. A frame is kept, because it advances all
    /// other subscriptions to its end; but if it was the answer of the removed one, it
    /// does not start before the connection's position.
    pub(super) fn without(&mut self, id: &str) -> bool {
        if let Update::Delta { from, changes, .. } = &mut self.update {
            changes.retain(|change| &*change.id != id);
            if let (true, Some(sent_up_to)) = (changes.is_empty(), self.sent_up_to) {
                *from = sent_up_to;
            }
        }
        self.only_for.as_deref() != Some(id)
    }
}
