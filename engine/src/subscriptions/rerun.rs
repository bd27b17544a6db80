//! Live queries whose deltas are too expensive for a commit: a reader runs them again, and compares the
//! result with the previous one.
//!
//! The writer marks a result whose change it does not compute as "stale". Its subscribers
//! then request the result at that seq or a later one here. One run and one comparison serve all
//! subscribers of the same binding; a pause between two runs limits an expensive query that every commit
//! affects to a fixed share of one reader.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use abide_live::Binding;
use abide_schema::caller::Caller;
use abide_schema::{Refusal, Row, Seq, limits};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep_until};

use crate::commit::fair_queue::Turn;
use crate::commit::queue::closing;
use crate::queries::failure::QueryFailure;
use crate::queries::planned;
use crate::queries::service::QueryService;
use crate::subscriptions::buffers::Account;
use crate::subscriptions::shared_delta::{QueuedDelta, ResultChange, SharedDelta};
use crate::subscriptions::shared_results::{ResultRows, SharedResult};

/// Ratio of the pause after a run to the duration of the run.
const PAUSE_FACTOR: u32 = 4;

/// The longest pause while no reader is available.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A whole result, as one connection holds it.
#[derive(Clone, Debug)]
pub(crate) struct ResultVersion {
    pub(crate) seq: Seq,
    pub(crate) result: Arc<SharedResult>,
}

/// A newer result, and the changes since the previous one of the connection.
#[derive(Debug)]
pub(crate) struct RerunResult {
    pub(crate) version: ResultVersion,
    /// `None` if the connection has no previous one.
    pub(crate) delta: Option<QueuedDelta>,
}

/// The queries that are run again, by the tenant in whose turn they run.
#[derive(Debug, Default)]
pub(crate) struct SharedReruns(Mutex<HashMap<(Binding, String), Weak<SharedRerun>>>);

/// A query that is run again. Removed with its last subscriber.
#[derive(Debug)]
pub(crate) struct SharedRerun {
    binding: Binding,
    /// In whose turn it runs: that of the tenant of the caller that the query is restricted to.
    tenant: String,
    last: AsyncMutex<LastRun>,
}

#[derive(Debug)]
struct LastRun {
    version: Option<RunResult>,
    /// From the version before it.
    delta: Option<(Seq, Arc<SharedDelta>)>,
    not_before: Instant,
}

/// The rows of a run, and the seq of their state.
type RunResult = (Seq, Arc<ResultRows>);

impl SharedReruns {
    /// Returns the entry of a binding of a caller of this tenant. A query that is not restricted has one for all
    /// callers.
    pub(crate) fn get_or_insert(&self, binding: &Binding, tenant: &str) -> Arc<SharedRerun> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tenant = if binding.is_bounded() { tenant } else { Caller::SYSTEM }.to_owned();
        let key = (binding.clone(), tenant.clone());
        if let Some(rerun) = known.get(&key).and_then(Weak::upgrade) {
            return rerun;
        }
        known.retain(|_, rerun| rerun.strong_count() > 0);
        let last = LastRun { version: None, delta: None, not_before: Instant::now() };
        let rerun =
            Arc::new(SharedRerun { binding: binding.clone(), tenant, last: AsyncMutex::new(last) });
        known.insert(key, Arc::downgrade(&rerun));
        rerun
    }
}

impl SharedRerun {
    /// Returns the result at a seq or later, durable, and its difference from the previous one of a connection.
    ///
    /// # Errors
    /// The query or the engine failed, or the result has no room among the buffered bytes.
    pub(crate) async fn advance(
        &self,
        queries: &Weak<QueryService>,
        at_least: Seq,
        previous: Option<ResultVersion>,
        account: &Account,
    ) -> Result<RerunResult, QueryFailure> {
        let mut last = self.last.lock().await;
        let (seq, rows) = match &last.version {
            Some((seq, rows)) if *seq >= at_least => (*seq, Arc::clone(rows)),
            _ => self.run_when_possible(queries, &mut last).await?,
        };
        let version = ResultVersion { seq, result: rows.share(account)? };
        let Some(previous) = previous else { return Ok(RerunResult { version, delta: None }) };
        let delta = match &last.delta {
            Some((from, delta)) if *from == previous.seq => Arc::clone(delta),
            _ => self.compare(queries, previous, rows).await?,
        };
        let delta = Some(QueuedDelta::counted_if_large(delta, account)?);
        Ok(RerunResult { version, delta })
    }

    /// Runs the query as soon as a reader is available.
    async fn run_when_possible(
        &self,
        queries: &Weak<QueryService>,
        last: &mut LastRun,
    ) -> Result<RunResult, QueryFailure> {
        let mut pause = Duration::from_millis(limits::RERUN_MS);
        loop {
            match self.run(queries, last).await {
                // Waiters are notified when the engine closes, and then stop waiting.
                Err(QueryFailure::Refused(refusal))
                    if refusal.code.is_temporary() && queries.strong_count() > 0 =>
                {
                    last.not_before = Instant::now() + pause;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                done => return done,
            }
        }
    }

    async fn run(
        &self,
        queries: &Weak<QueryService>,
        last: &mut LastRun,
    ) -> Result<RunResult, QueryFailure> {
        sleep_until(last.not_before).await;
        let queries = queries.upgrade().ok_or_else(closing)?;
        let binding = self.binding.clone();
        let before = last.version.take();
        let started = Instant::now();
        let (version, delta) = queries
            .read(&Turn::from_tenant(&self.tenant), move |reader| {
                let (seq, rows) = planned::whole_result(reader, &binding)?;
                let delta = before.map(|(at, before)| (at, difference(&binding, &before, &rows)));
                Ok::<_, QueryFailure>(((seq, ResultRows::new(rows)), delta))
            })
            .await?;
        queries.wait_durable(version.0).await?;
        queries.metrics.live_reruns_total.add(1);
        let pause = (started.elapsed() * PAUSE_FACTOR).max(Duration::from_millis(limits::RERUN_MS));
        *last =
            LastRun { version: Some(version.clone()), delta, not_before: Instant::now() + pause };
        Ok(version)
    }

    async fn compare(
        &self,
        queries: &Weak<QueryService>,
        previous: ResultVersion,
        rows: Arc<ResultRows>,
    ) -> Result<Arc<SharedDelta>, Refusal> {
        let queries = queries.upgrade().ok_or_else(closing)?;
        let binding = self.binding.clone();
        queries
            .read(&Turn::from_tenant(&self.tenant), move |_| {
                Ok(difference(&binding, &previous.result, &rows))
            })
            .await
    }
}

fn difference(binding: &Binding, before: &[Row], after: &[Row]) -> Arc<SharedDelta> {
    SharedDelta::new(ResultChange::Rows(binding.difference(before, after)))
}
