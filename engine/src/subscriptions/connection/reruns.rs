//! The reruns that a connection waits for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use abide_schema::{Code, Refusal, Seq, limits};
use tokio::task::{Id, JoinError, JoinSet};

use super::stale::{PendingDelta, StaleSubscription, unknown};
use super::subscription::Subscription;
use crate::engine::inner::Inner;
use crate::queries::failure::QueryFailure;
use crate::subscriptions::buffers::Account;
use crate::subscriptions::outbox::SubscriptionKey;
use crate::subscriptions::rerun::{RerunResult, ResultVersion, SharedRerun};

/// Maximum number of kept deltas: with more, another rerun is as good.
const KEPT: usize = 256;

type FinishedRerun = (SubscriptionKey, Result<RerunResult, QueryFailure>);

/// The reruns that a connection waits for. They are cancelled with it.
#[derive(Debug)]
pub(super) struct PendingReruns {
    /// The account that counts their results.
    account: Account,
    tasks: JoinSet<Result<RerunResult, QueryFailure>>,
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
        joined: Result<(Id, Result<RerunResult, QueryFailure>), JoinError>,
    ) -> Option<FinishedRerun> {
        let (id, outcome) = joined.unwrap_or_else(|why| {
            tracing::error!(%why, "a live query could not be run again");
            let refusal = Refusal::new(Code::Internal, "the live query failed");
            let refusal = refusal.hint("subscribe again; see the engine's log for the cause");
            (why.id(), Err(refusal.into()))
        });
        Some((self.keys.remove(&id)?, outcome))
    }

    /// Processes a frame's delta for a stale subscription, or one that becomes stale.
    pub(super) fn take_pending(
        &mut self,
        engine: &Inner,
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
        let rerun = engine.reruns.of(&subscription.binding, self.account.tenant());
        self.order(engine, key, &rerun, at, subscription.held.clone());
        subscription.stale = Some(StaleSubscription { rerun, pending: VecDeque::from([pending]) });
    }

    /// Handles a finished rerun. Returns the later deltas if they are complete; otherwise starts the next
    /// rerun.
    pub(super) fn settle(
        &mut self,
        engine: &Inner,
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
        engine: &Inner,
        key: SubscriptionKey,
        rerun: &Arc<SharedRerun>,
        at: Seq,
        held: Option<ResultVersion>,
    ) {
        // A waiting task must not keep the engine open.
        let queries = Arc::downgrade(&engine.queries);
        let rerun = Arc::clone(rerun);
        let account = self.account.clone();
        let task =
            self.tasks.spawn(async move { rerun.advance(&queries, at, held, &account).await });
        self.keys.insert(task.id(), key);
    }
}
