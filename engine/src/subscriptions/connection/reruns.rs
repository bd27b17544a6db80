//! The reruns that a connection waits for. `subscriptions/rerun` runs each query once for all connections,
//! `rerun_updates` sends the results.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use abide_schema::{Code, Refusal, Seq, limits};
use tokio::task::{Id, JoinError, JoinSet};

use super::subscription::{PendingDelta, StaleSubscription, Subscription, unknown_delta};
use crate::engine::inner::Inner;
use crate::queries::failure::QueryFailure;
use crate::subscriptions::buffers::Account;
use crate::subscriptions::outbox::SubscriptionKey;
use crate::subscriptions::rerun::{RerunResult, ResultVersion, SharedRerun};

/// Maximum number of pending deltas: with more, another rerun is as good.
const MAX_PENDING: usize = 256;

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

    /// Returns a finished rerun, if there is one.
    pub(super) fn take_finished(&mut self) -> Option<FinishedRerun> {
        if self.next.is_some() {
            return self.next.take();
        }
        let joined = self.tasks.try_join_next_with_id()?;
        self.result_of(joined)
    }

    /// Waits until one is finished. Cancelling the wait loses nothing.
    pub(super) async fn wait_finished(&mut self) {
        while self.next.is_none() {
            match self.tasks.join_next_with_id().await {
                Some(joined) => self.next = self.result_of(joined),
                None => std::future::pending().await,
            }
        }
    }

    /// Returns the result of a task; a panicked task ends its subscription.
    fn result_of(
        &mut self,
        joined: Result<(Id, Result<RerunResult, QueryFailure>), JoinError>,
    ) -> Option<FinishedRerun> {
        let (id, outcome) = joined.unwrap_or_else(|why| {
            tracing::error!(name: "rerun_failed", %why, "a live query could not be run again");
            let refusal = Refusal::new(Code::Internal, "the live query failed")
                .hint("subscribe again; see the engine's log for the cause");
            (why.id(), Err(refusal.into()))
        });
        Some((self.keys.remove(&id)?, outcome))
    }

    /// Processes a frame's delta for a stale subscription, or one that becomes stale.
    pub(super) fn push_delta(
        &mut self,
        engine: &Inner,
        key: SubscriptionKey,
        subscription: &mut Subscription,
        pending: PendingDelta,
    ) {
        let at = pending.seq;
        if let Some(stale) = &mut subscription.stale {
            let bytes: usize = stale.pending.iter().map(|pending| pending.delta.weight()).sum();
            if stale.pending.len() >= MAX_PENDING || bytes > limits::OUTBOX_BYTES {
                stale.pending.clear();
                stale.pending.push_back(PendingDelta { seq: at, delta: unknown_delta() });
            } else {
                stale.pending.push_back(pending);
            }
            return;
        }
        let rerun = engine.reruns.get_or_insert(&subscription.binding, self.account.tenant());
        self.start(engine, key, &rerun, at, subscription.last_result.clone());
        subscription.stale = Some(StaleSubscription { rerun, pending: VecDeque::from([pending]) });
    }

    /// Handles a finished rerun. Returns the later deltas if they are complete; otherwise starts the next
    /// rerun.
    pub(super) fn finish(
        &mut self,
        engine: &Inner,
        key: SubscriptionKey,
        subscription: &mut Subscription,
        version: &ResultVersion,
    ) -> VecDeque<PendingDelta> {
        subscription.last_result = Some(version.clone());
        let Some(mut stale) = subscription.stale.take() else { return VecDeque::new() };
        stale.pending.retain(|pending| pending.seq > version.seq);
        let unknown = stale.pending.iter().rev().find(|pending| pending.delta.is_stale());
        let Some(PendingDelta { seq, .. }) = unknown else { return stale.pending };
        self.start(engine, key, &stale.rerun, *seq, subscription.last_result.clone());
        subscription.stale = Some(stale);
        VecDeque::new()
    }

    /// Starts a task that waits for the result at this seq or later.
    fn start(
        &mut self,
        engine: &Inner,
        key: SubscriptionKey,
        rerun: &Arc<SharedRerun>,
        at: Seq,
        last_result: Option<ResultVersion>,
    ) {
        // A waiting task must not keep the engine open.
        let queries = Arc::downgrade(&engine.queries);
        let rerun = Arc::clone(rerun);
        let account = self.account.clone();
        let task = self
            .tasks
            .spawn(async move { rerun.advance(&queries, at, last_result, &account).await });
        self.keys.insert(task.id(), key);
    }
}
