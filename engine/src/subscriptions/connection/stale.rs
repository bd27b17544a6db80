//! Subscriptions of one connection whose deltas are too expensive: pending frames and running
//! reruns.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use abide_live::Delta;
use abide_schema::{Code, Refusal, Seq, limits};
use tokio::task::{Id, JoinError, JoinSet};

use super::Connection;
use super::subscription::Subscription;
use super::update::{QueuedUpdate, Update};
use crate::access::policies::is_outdated;
use crate::engine::Engine;
use crate::subscriptions::buffers::Account;
use crate::subscriptions::hub::{HeldDelta, SharedDelta, SubscriptionKey};
use crate::subscriptions::rerun::{RerunResult, ResultVersion, SharedRerun};

/// A frame's delta for one subscription, with its seq.
pub(super) type PendingDelta = (Seq, HeldDelta);

/// Maximum number of kept deltas: with more, another rerun is as good.
const KEPT: usize = 256;

/// A subscription that waits for a rerun.
#[derive(Debug)]
pub(super) struct StaleSubscription {
    rerun: Arc<SharedRerun>,
    /// Later deltas, in order.
    pending: VecDeque<PendingDelta>,
}

type FinishedRerun = (SubscriptionKey, Result<RerunResult, Refusal>);

/// The reruns that a connection waits for. They are cancelled with it.
#[derive(Debug)]
pub(super) struct PendingReruns {
    /// The account that counts their results.
    account: Account,
    tasks: JoinSet<Result<RerunResult, Refusal>>,
    /// The subscription of each task.
    keys: HashMap<Id, SubscriptionKey>,
    /// A finished rerun that was not processed yet.
    next: Option<FinishedRerun>,
}

impl PendingReruns {
    pub(super) fn new(account: Account) -> PendingReruns {
        PendingReruns { account, tasks: JoinSet::new(), keys: HashMap::new(), next: None }
    }

    /// Returns a finished rerun.
    pub(super) fn done(&mut self) -> Option<FinishedRerun> {
        if self.next.is_some() {
            return self.next.take();
        }
        let joined = self.tasks.try_join_next_with_id()?;
        self.take(joined)
    }

    /// Waits until one is finished. Cancelling the wait loses nothing.
    pub(super) async fn any_done(&mut self) {
        while self.next.is_none() {
            match self.tasks.join_next_with_id().await {
                Some(joined) => self.next = self.take(joined),
                None => std::future::pending().await,
            }
        }
    }

    /// The result of a task; a panicked task ends its subscription.
    fn take(
        &mut self,
        joined: Result<(Id, Result<RerunResult, Refusal>), JoinError>,
    ) -> Option<FinishedRerun> {
        let (id, outcome) = joined.unwrap_or_else(|why| {
            tracing::error!(%why, "a live query could not be run again");
            let refusal = Refusal::new(Code::Internal, "the live query failed");
            (why.id(), Err(refusal.hint("subscribe again; see the server's log for the cause")))
        });
        Some((self.keys.remove(&id)?, outcome))
    }

    /// Processes a frame's delta for a stale subscription, or one that becomes stale.
    pub(super) fn take_pending(
        &mut self,
        engine: &Engine,
        key: SubscriptionKey,
        subscription: &mut Subscription,
        pending: PendingDelta,
    ) {
        let at = pending.0;
        if let Some(stale) = &mut subscription.stale {
            let bytes: usize = stale.pending.iter().map(|(_, delta)| delta.weight()).sum();
            if stale.pending.len() >= KEPT || bytes > limits::OUTBOX_BYTES {
                stale.pending.clear();
                stale.pending.push_back((at, unknown()));
            } else {
                stale.pending.push_back(pending);
            }
            return;
        }
        let rerun = engine.inner.reruns.of(&subscription.binding);
        self.order(engine, key, &rerun, at, subscription.held.clone());
        subscription.stale = Some(StaleSubscription { rerun, pending: VecDeque::from([pending]) });
    }

    /// Handles a finished rerun. Returns the later deltas if they are complete; otherwise starts the next
    /// rerun.
    pub(super) fn settle(
        &mut self,
        engine: &Engine,
        key: SubscriptionKey,
        subscription: &mut Subscription,
        version: &ResultVersion,
    ) -> VecDeque<PendingDelta> {
        subscription.held = Some(version.clone());
        let Some(mut stale) = subscription.stale.take() else { return VecDeque::new() };
        stale.pending.retain(|(at, _)| *at > version.seq);
        let unknown = stale.pending.iter().rev().find(|(_, delta)| delta.is_stale());
        let Some((at, _)) = unknown else { return stale.pending };
        self.order(engine, key, &stale.rerun, *at, subscription.held.clone());
        subscription.stale = Some(stale);
        VecDeque::new()
    }

    fn order(
        &mut self,
        engine: &Engine,
        key: SubscriptionKey,
        rerun: &Arc<SharedRerun>,
        at: Seq,
        held: Option<ResultVersion>,
    ) {
        // A waiting task must not keep the engine open.
        let (engine, rerun) = (Arc::downgrade(&engine.inner), Arc::clone(rerun));
        let account = self.account.clone();
        let task =
            self.tasks.spawn(async move { rerun.advance(&engine, at, held, &account).await });
        self.keys.insert(task.id(), key);
    }
}

impl Connection {
    /// Sends the result of a rerun, and the known changes after it.
    pub(super) fn take_fresh(&mut self, key: SubscriptionKey, fresh: Result<RerunResult, Refusal>) {
        let Some(subscription) = self.subscriptions.get_mut(&key) else { return };
        let RerunResult { version, delta } = match fresh {
            Ok(fresh) => fresh,
            Err(refusal) if is_outdated(&refusal) => {
                // A replan is pending; it runs now.
                self.lagging = true;
                return;
            }
            Err(refusal) => return self.end_stale(key, refusal),
        };
        match delta {
            Some(delta) => {
                let change = subscription.change(version.seq, delta);
                let later = self.reruns.settle(&self.engine, key, subscription, &version);
                let (seq, stale) = (version.seq, subscription.stale.is_some());
                self.ready.push_back(rerun(Update::Rerun { seq, change, stale }));
                self.send_later(key, later);
            }
            None => {
                let result = Arc::clone(&version.result);
                self.ready.extend(subscription.snapshot(version.seq, result, Some(too_dear())));
                let later = self.reruns.settle(&self.engine, key, subscription, &version);
                if subscription.stale.is_some() {
                    let nothing = SharedDelta::new(Ok(Delta::default()));
                    let change = subscription.unknown(HeldDelta::uncounted(nothing));
                    let update = Update::Rerun { seq: version.seq, change, stale: true };
                    self.ready.push_back(rerun(update));
                }
                self.send_later(key, later);
            }
        }
    }

    /// Sends the changes after the rerun.
    fn send_later(&mut self, key: SubscriptionKey, later: VecDeque<PendingDelta>) {
        for (seq, delta) in later {
            let Some(subscription) = self.subscriptions.get_mut(&key) else { return };
            if let Err(refusal) = delta.rows() {
                return self.end_stale(key, refusal.clone());
            }
            let change = subscription.change(seq, delta);
            self.ready.push_back(rerun(Update::Rerun { seq, change, stale: false }));
        }
    }

    /// Frames were dropped up to a seq: pending reruns must reach that seq.
    pub(super) fn stay_stale(&mut self, seq: Seq) {
        for (key, subscription) in &mut self.subscriptions {
            if subscription.stale.is_some() {
                let pending = (seq, unknown());
                self.reruns.take_pending(&self.engine, *key, subscription, pending);
            }
        }
    }

    fn end_stale(&mut self, key: SubscriptionKey, refusal: Refusal) {
        if let Some(id) = self.drop_subscription(key) {
            self.send_ended(id, refusal);
        }
    }
}

fn unknown() -> HeldDelta {
    HeldDelta::uncounted(SharedDelta::unknown())
}

fn rerun(update: Update) -> QueuedUpdate {
    match &update {
        Update::Rerun { change, .. } => QueuedUpdate::only_for(&Arc::clone(&change.id), update),
        _ => QueuedUpdate::for_all(update),
    }
}

fn too_dear() -> Refusal {
    Refusal::new(
        Code::ResyncRequired,
        "the deltas of this query are too expensive: it is run again as a whole",
    )
    .hint("`abide explain` shows what it costs; an index or a narrower WHERE may help")
}
