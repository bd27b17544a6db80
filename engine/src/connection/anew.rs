//! Replans subscriptions after a policy change. The client's state under the old policies is remembered
//! until it has received the difference.

use abide_live::Binding;
use abide_schema::{Refusal, Seq};

use super::Connection;
use super::subscription::Subscription;
use crate::hub::SubscriptionKey;
use crate::policies::is_outdated;
use crate::resume::CatchUp;
use crate::writer::Listening;

/// The client's state of a subscription, under policies that are no longer in force.
#[derive(Debug)]
pub(super) struct Was {
    binding: Binding,
    /// Up to which seq; `None` if the client's rows are unknown.
    seq: Option<Seq>,
}

impl Connection {
    /// Replans every subscription that was planned with older policies. A subscription that is no longer
    /// permitted ends.
    pub(super) async fn plan_anew(&mut self) {
        let mut keys: Vec<SubscriptionKey> = self.subscriptions.keys().copied().collect();
        keys.retain(|key| !self.subscriptions[key].binding.is_latest());
        for key in keys {
            let Some(mut subscription) = self.subscriptions.remove(&key) else { continue };
            match self.planned_anew(&subscription).await {
                Ok((key, binding, listening)) => {
                    let id = subscription.id.clone();
                    subscription.turn_to(binding, listening, self.told);
                    self.keys.insert(id, key);
                    self.subscriptions.insert(key, subscription);
                }
                Err(refusal) => {
                    self.keys.remove(&subscription.id);
                    self.tell_ended(subscription.id.clone(), refusal);
                }
            }
        }
    }

    /// Attaches to the writer with the latest policies; no later change is missed.
    async fn planned_anew(
        &mut self,
        subscription: &Subscription,
    ) -> Result<(SubscriptionKey, Binding, Listening), Refusal> {
        loop {
            let (sql, params) = (&subscription.sql, &subscription.params);
            let binding = self.engine.inner.plan(&self.caller, sql, params).await?;
            // Frames for the old key are ignored.
            let key = SubscriptionKey(self.next_key);
            self.next_key += 1;
            match self.attach(&binding, key).await {
                Ok(listening) => return Ok((key, binding, listening)),
                Err(refusal) if is_outdated(&refusal) => {}
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// How to catch up each subscription. A pending rerun brings its subscription at least to the seq of the
    /// others.
    pub(super) fn to_catch_up(&self) -> Vec<(SubscriptionKey, CatchUp)> {
        let told = self.told;
        let wanted = self.subscriptions.iter().filter_map(|(key, subscription)| {
            let catch_up = match &subscription.was {
                Some(was) => CatchUp::Anew {
                    old: was.binding.clone(),
                    new: subscription.binding.clone(),
                    from: was.seq,
                },
                None if subscription.stale.is_some() => return None,
                None => CatchUp::Since(subscription.binding.clone(), subscription.seq.max(told)),
            };
            Some((*key, catch_up))
        });
        wanted.collect()
    }
}

impl Subscription {
    /// Switches to another plan; the client's rows are still those of the previous one.
    fn turn_to(&mut self, binding: Binding, listening: Listening, told: Seq) {
        let seq = self.stale.is_none().then(|| self.seq.max(told));
        let old = std::mem::replace(&mut self.binding, binding);
        // Replanned twice without an update in between: the client's rows are still the older ones.
        self.was.get_or_insert(Was { binding: old, seq });
        (self.stale, self.held) = (None, None);
        self.opening = self.opening_of();
        self.listening = listening;
    }
}
