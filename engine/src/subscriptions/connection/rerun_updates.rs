//! Updates of subscriptions whose query was run again. `reruns` waits for the results.

use std::collections::VecDeque;
use std::sync::Arc;

use abide_live::Delta;
use abide_schema::{Code, Refusal, Seq};

use super::Connection;
use super::subscription::{PendingDelta, unknown_delta};
use super::update::{QueuedUpdate, Update};
use crate::queries::failure::QueryFailure;
use crate::subscriptions::outbox::SubscriptionKey;
use crate::subscriptions::rerun::RerunResult;
use crate::subscriptions::shared_delta::{QueuedDelta, ResultChange, SharedDelta};

impl Connection {
    /// Sends the result of a rerun, and the known changes after it.
    pub(super) fn apply_rerun(
        &mut self,
        key: SubscriptionKey,
        result: Result<RerunResult, QueryFailure>,
    ) {
        let Some(subscription) = self.subscriptions.get_mut(&key) else { return };
        let RerunResult { version, delta } = match result {
            Ok(result) => result,
            Err(QueryFailure::Outdated) => {
                // A replan is pending; it runs now.
                self.lagging = true;
                return;
            }
            Err(QueryFailure::Refused(refusal)) => return self.end_stale(key, refusal),
        };
        match delta {
            Some(delta) => {
                let change = subscription.change(version.seq, delta);
                let later = self.reruns.finish(&self.engine, key, subscription, &version);
                let seq = version.seq;
                let stale = subscription.stale.is_some();
                self.ready.push_back(queue_rerun(Update::Rerun { seq, change, stale }));
                self.send_later(key, later);
            }
            None => {
                let result = Arc::clone(&version.result);
                self.ready.extend(subscription.snapshot(
                    version.seq,
                    result,
                    Some(changes_unknown().into()),
                ));
                let later = self.reruns.finish(&self.engine, key, subscription, &version);
                if subscription.stale.is_some() {
                    let nothing = SharedDelta::new(ResultChange::Rows(Delta::default()));
                    let change = subscription.unknown_change(QueuedDelta::uncounted(nothing));
                    let update = Update::Rerun { seq: version.seq, change, stale: true };
                    self.ready.push_back(queue_rerun(update));
                }
                self.send_later(key, later);
            }
        }
    }

    /// Sends the changes after the rerun.
    fn send_later(&mut self, key: SubscriptionKey, later: VecDeque<PendingDelta>) {
        for PendingDelta { seq, delta } in later {
            let Some(subscription) = self.subscriptions.get_mut(&key) else { return };
            let change = subscription.change(seq, delta);
            self.ready.push_back(queue_rerun(Update::Rerun { seq, change, stale: false }));
        }
    }

    /// Requires pending reruns to reach this seq: frames up to it were dropped.
    pub(super) fn extend_stale(&mut self, seq: Seq) {
        for (key, subscription) in &mut self.subscriptions {
            if subscription.stale.is_some() {
                let pending = PendingDelta { seq, delta: unknown_delta() };
                self.reruns.push_delta(&self.engine, *key, subscription, pending);
            }
        }
    }

    fn end_stale(&mut self, key: SubscriptionKey, refusal: Refusal) {
        if let Some(id) = self.drop_subscription(key) {
            self.send_ended(id, refusal);
        }
    }
}

fn queue_rerun(update: Update) -> QueuedUpdate {
    match &update {
        Update::Rerun { change, .. } => QueuedUpdate::only_for(&Arc::clone(&change.id), update),
        _ => QueuedUpdate::for_all(update),
    }
}

fn changes_unknown() -> Refusal {
    Refusal::new(
        Code::ResyncRequired,
        "the deltas of this query are too expensive, or fail: it is run again as a whole",
    )
    .hint("`abide explain` shows what it costs; an index or a narrower WHERE may help")
}
