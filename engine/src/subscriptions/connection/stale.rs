//! A subscription whose deltas are too expensive, while it waits for a rerun.

use std::collections::VecDeque;
use std::sync::Arc;

use abide_schema::Seq;

use crate::subscriptions::rerun::SharedRerun;
use crate::subscriptions::shared_delta::{HeldDelta, ResultChange, SharedDelta};

/// A frame's delta for one subscription, with its seq.
pub(super) type PendingDelta = (Seq, HeldDelta);

/// A subscription that waits for a rerun.
#[derive(Debug)]
pub(super) struct StaleSubscription {
    pub(super) rerun: Arc<SharedRerun>,
    /// Later deltas, in order.
    pub(super) pending: VecDeque<PendingDelta>,
}

/// A change that is not known.
pub(super) fn unknown() -> HeldDelta {
    HeldDelta::uncounted(SharedDelta::new(ResultChange::Stale))
}
