//! One subscription of a connection: the client's state of its result, and its updates. `rebind` plans it again,
//! `reruns` and `rerun_updates` run its query again.

use std::collections::VecDeque;
use std::sync::Arc;

use abide_live::Binding;
use abide_schema::wire::SubscriptionInfo;
use abide_schema::{Checksum, Row, Seq, Value, limits};
use serde_json::{Map, Value as JsonValue};

use super::request::SubscribeRequest;
use super::update::{Change, QueuedUpdate, SnapshotPart, Update};
use crate::commit::jobs::Registration;
use crate::subscriptions::buffers::Reservation;
use crate::subscriptions::rerun::{ResultVersion, SharedRerun};
use crate::subscriptions::resume::{ResumeResult, Resync};
use crate::subscriptions::shared_delta::{QueuedDelta, ResultChange, SharedDelta};
use crate::subscriptions::shared_results::SharedResult;

/// The client's state of a subscription, under policies that are no longer in force.
#[derive(Debug)]
pub(super) struct PreviousBinding {
    pub(super) binding: Binding,
    /// Up to which seq; `None` if the client's rows are unknown.
    pub(super) seq: Option<Seq>,
}

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) id: Arc<str>,
    pub(super) binding: Binding,
    /// The original query, for replanning.
    pub(super) sql: String,
    pub(super) params: Map<String, JsonValue>,
    /// The client's state, if it is of older policies.
    pub(super) previous: Option<PreviousBinding>,
    /// Whether its statements are included.
    explain: bool,
    /// The description of the result in its first answer.
    pub(super) info: Arc<SubscriptionInfo>,
    /// The client received its result up to here.
    pub(super) seq: Seq,
    /// Checksum of the client's rows, if requested.
    checksum: Option<Checksum>,
    /// Set while its deltas are too expensive.
    pub(super) stale: Option<StaleSubscription>,
    /// Its last result, if a rerun sent it.
    pub(super) last_result: Option<ResultVersion>,
    /// Its registration; `None` while it is planned again.
    pub(super) registration: Option<Registration>,
    /// The count of its parameters, if they are large.
    pub(super) parameter_bytes: Option<Reservation>,
}

impl Subscription {
    /// Creates a subscription before its first answer.
    pub(super) fn new(
        request: &SubscribeRequest<'_>,
        binding: Binding,
        registration: Registration,
    ) -> Subscription {
        let is_restricted = binding.is_bounded();
        let mut subscription = Subscription {
            id: request.id.into(),
            // Only restricted callers' queries are ever replanned.
            sql: if is_restricted { request.sql.to_owned() } else { String::new() },
            params: if is_restricted { request.params.clone() } else { Map::new() },
            previous: None,
            // The statements of a restricted query reveal the policies.
            explain: request.explain && !is_restricted,
            info: binding.info(),
            binding,
            seq: Seq::ZERO,
            checksum: request.checksum.then(Checksum::default),
            stale: None,
            last_result: None,
            registration: Some(registration),
            parameter_bytes: None,
        };
        subscription.info = subscription.describe();
        subscription
    }

    /// Returns the description of the result in its first answer.
    pub(super) fn describe(&self) -> Arc<SubscriptionInfo> {
        let info = self.binding.info();
        if !self.explain {
            return info;
        }
        Arc::new(SubscriptionInfo {
            plan: self.binding.plan(true),
            ..SubscriptionInfo::clone(&info)
        })
    }

    /// Returns the first answer. Its delta starts at the position of the connection, because a client received
    /// everything up to `sent_up_to` for all subscriptions.
    pub(super) fn answer(&mut self, resumed: ResumeResult, sent_up_to: Seq) -> Vec<QueuedUpdate> {
        match resumed {
            ResumeResult::Snapshot { seq, rows, why } => self.snapshot(seq, rows, why),
            ResumeResult::Past { past, rows, seq, delta } => {
                let mut answer = self.snapshot(past, rows, None);
                let change = self.change(seq, delta);
                answer.push(frame(past, seq, change, sent_up_to));
                answer
            }
            ResumeResult::Delta { from, seq, delta, checksum } => {
                let info = Some(Arc::clone(&self.info));
                let change = self.change(seq, delta);
                self.checksum = checksum;
                // Included even without changes: it is the answer.
                vec![frame(from.min(seq), seq, Change { checksum, info, ..change }, sent_up_to)]
            }
        }
    }

    /// Returns its whole result, in parts; with a reason if it replaces earlier rows.
    pub(super) fn snapshot(
        &mut self,
        seq: Seq,
        result: Arc<SharedResult>,
        why: Option<Resync>,
    ) -> Vec<QueuedUpdate> {
        self.seq = seq;
        self.last_result = None;
        self.checksum = self.checksum.map(|_| Checksum::from_rows(result.iter()));
        let mut parts = Vec::new();
        let reset = why.is_some();
        let history_changed = why.as_ref().is_some_and(|why| why.history_changed);
        if let Some(Resync { refusal, .. }) = why {
            let update = Update::Error { id: Arc::clone(&self.id), refusal };
            parts.push(QueuedUpdate::only_for(&self.id, update));
        }
        let mut rest = &result[..];
        loop {
            let (part, after) = rest.split_at(rows_in_part(rest));
            let more = !after.is_empty();
            rest = after;
            let part = SnapshotPart {
                id: Arc::clone(&self.id),
                seq,
                info: Arc::clone(&self.info),
                rows: part.to_vec(),
                more,
                reset,
                history_changed,
                checksum: self.checksum.filter(|_| !more),
                result: Arc::clone(&result),
            };
            parts.push(QueuedUpdate::only_for(&self.id, Update::Snapshot(part)));
            if !more {
                return parts;
            }
        }
    }

    /// Returns a change that is not known yet.
    pub(super) fn unknown_change(&self, delta: QueuedDelta) -> Change {
        Change { id: Arc::clone(&self.id), delta, checksum: None, info: None }
    }

    /// Returns a change of its result up to a seq, which the client then has.
    pub(super) fn change(&mut self, to: Seq, delta: QueuedDelta) -> Change {
        self.seq = to;
        self.last_result = None;
        self.checksum = self.checksum.map(|sum| sum.plus(delta.checksum_change()));
        Change { id: Arc::clone(&self.id), delta, checksum: self.checksum, info: None }
    }
}

/// Returns the number of rows in the next part.
fn rows_in_part(rows: &[Row]) -> usize {
    let mut bytes = 0;
    let count = rows
        .iter()
        .take(limits::SNAPSHOT_PART_ROWS)
        .take_while(|row| {
            bytes += row.iter().map(Value::size).sum::<usize>();
            bytes <= limits::SNAPSHOT_PART_BYTES
        })
        .count();
    count.max(1).min(rows.len())
}

/// Returns a frame for one subscription, on a connection that received everything up to a seq.
fn frame(from: Seq, to: Seq, change: Change, sent_up_to: Seq) -> QueuedUpdate {
    let update = Update::Delta { from: from.min(sent_up_to), to, changes: vec![change] };
    QueuedUpdate::answer(update, sent_up_to.min(to))
}

/// A frame's delta for one subscription.
#[derive(Debug)]
pub(super) struct PendingDelta {
    pub(super) seq: Seq,
    pub(super) delta: QueuedDelta,
}

/// A subscription that waits for a rerun.
#[derive(Debug)]
pub(super) struct StaleSubscription {
    pub(super) rerun: Arc<SharedRerun>,
    /// Later deltas, in order.
    pub(super) pending: VecDeque<PendingDelta>,
}

/// Returns a change that is not known.
pub(super) fn unknown_delta() -> QueuedDelta {
    QueuedDelta::uncounted(SharedDelta::new(ResultChange::Stale))
}
