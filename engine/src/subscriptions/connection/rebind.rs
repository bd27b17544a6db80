//! Replans subscriptions after a policy change. The client's state under the old policies is remembered
//! until it has received the difference.

use abide_live::Binding;
use abide_schema::{Refusal, Seq};
use serde_json::{Map, Value as JsonValue};

use super::Connection;
use super::subscription::{PreviousBinding, Subscription};
use crate::commit::jobs::Registration;
use crate::queries::failure::QueryFailure;
use crate::subscriptions::outbox::SubscriptionKey;
use crate::subscriptions::resume::CatchUpRequest;

impl Connection {
    /// Replans every subscription that was planned with older policies. A subscription that is no longer
    /// permitted ends. Cancelling it loses nothing: a subscription stays where it is until its new plan is attached.
    pub(crate) async fn replan(&mut self) {
        let mut keys: Vec<SubscriptionKey> = self.subscriptions.keys().copied().collect();
        keys.retain(|key| !self.subscriptions[key].binding.is_latest());
        for key in keys {
            let Some(subscription) = self.subscriptions.get_mut(&key) else { continue };
            // Its plan gets no more deltas, and the new one needs its room.
            subscription.registration = None;
            let sql = subscription.sql.clone();
            let params = subscription.params.clone();
            let attached = self.attach_replanned(&sql, &params).await;
            let Some(mut subscription) = self.subscriptions.remove(&key) else { continue };
            match attached {
                Ok((key, binding, registration)) => {
                    let id = subscription.id.clone();
                    subscription.rebind_to(binding, registration, self.sent_up_to);
                    self.keys.insert(id, key);
                    self.subscriptions.insert(key, subscription);
                }
                Err(refusal) => {
                    self.keys.remove(&subscription.id);
                    self.send_ended(subscription.id.clone(), refusal);
                }
            }
        }
    }

    /// Attaches to the writer with the latest policies; no later change is missed.
    async fn attach_replanned(
        &mut self,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<(SubscriptionKey, Binding, Registration), Refusal> {
        loop {
            let binding = self.engine.queries.plan(&self.caller, sql, params).await?;
            // Frames for the old key are ignored.
            let key = SubscriptionKey(self.next_key);
            self.next_key += 1;
            match self.attach(&binding, key, sql).await {
                Ok(registration) => return Ok((key, binding, registration)),
                Err(QueryFailure::Outdated) => {}
                Err(QueryFailure::Refused(refusal)) => return Err(refusal),
            }
        }
    }

    /// Returns how to catch up each subscription. A pending rerun brings its subscription at least to the seq of the
    /// others.
    pub(crate) fn catch_up_requests(&self) -> Vec<(SubscriptionKey, CatchUpRequest)> {
        let sent_up_to = self.sent_up_to;
        self.subscriptions
            .iter()
            .filter_map(|(key, subscription)| {
                let catch_up = match &subscription.previous {
                    Some(previous) => CatchUpRequest::Rebind {
                        old: previous.binding.clone(),
                        new: subscription.binding.clone(),
                        from: previous.seq,
                    },
                    None if subscription.stale.is_some() => return None,
                    None => CatchUpRequest::Since(
                        subscription.binding.clone(),
                        subscription.seq.max(sent_up_to),
                    ),
                };
                Some((*key, catch_up))
            })
            .collect()
    }
}

impl Subscription {
    /// Switches to another plan; the client's rows are still those of the previous one.
    fn rebind_to(&mut self, binding: Binding, registration: Registration, sent_up_to: Seq) {
        let seq = self.stale.is_none().then(|| self.seq.max(sent_up_to));
        let old = std::mem::replace(&mut self.binding, binding);
        // Replanned twice without an update in between: the client's rows are still the older ones.
        self.previous.get_or_insert(PreviousBinding { binding: old, seq });
        self.stale = None;
        self.last_result = None;
        self.info = self.describe();
        self.registration = Some(registration);
    }
}
