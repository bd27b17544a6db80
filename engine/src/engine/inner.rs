//! The state that the handles of an engine and its connections share.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal};
use abide_store::Store;
use tokio::sync::oneshot;

use crate::access::rate_limiter::RateLimiter;
use crate::commit::checkpointer::CheckpointThread;
use crate::commit::durable::Commit;
use crate::commit::fair_queue::Turn;
use crate::commit::jobs::WriterJob;
use crate::commit::open_rows::VisibleRows;
use crate::commit::queue::{Queue, Rejected, closing};
use crate::commit::registry::PreparedCall;
use crate::commit::registry::Registry;
use crate::commit::request_ids::Request;
use crate::commit::table_watchers::TableWatchers;
use crate::commit::unit::{AnswerAt, Unit, UnitResult};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ports::Clock;
use crate::queries::service::QueryService;
use crate::subscriptions::buffers::Buffers;
use crate::subscriptions::hub::Hub;
use crate::subscriptions::publisher::Publication;
use crate::subscriptions::rerun::SharedReruns;
use crate::subscriptions::shared_results::{ResultCache, SharedResults};

/// When a call is repeated that a process refuses because it is about to stop.
const STOPPING_RETRY_MS: u64 = 1_000;

/// A running engine. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) jobs: Arc<Queue<WriterJob>>,
    pub(crate) commits: Arc<Queue<Commit>>,
    pub(crate) to_publish: Arc<Queue<Publication>>,
    pub(crate) queries: Arc<QueryService>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) reruns: SharedReruns,
    pub(crate) hub: Arc<Hub>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) checkpoints: CheckpointThread,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) watchers: Arc<TableWatchers>,
    pub(crate) rate_limiter: Arc<RateLimiter>,
    pub(crate) buffers: Buffers,
    /// The bytes of large parameters, which are held as long as their live queries.
    pub(crate) live_parameters: Buffers,
    /// The reducers that other processes cannot call any more, once this one is about to stop.
    pub(crate) refused_reducers: OnceLock<&'static [&'static str]>,
    pub(crate) results: Arc<ResultCache>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) visible: Arc<VisibleRows>,
    pub(crate) store: Arc<Store>,
}

impl Inner {
    /// Submits a unit to the writer and waits for its answer, which comes when the unit is durable
    /// (`commit/durable.rs`), or with [`AnswerAt::Applied`] when it is in the journal. If the task that waits is
    /// dropped, the unit runs all the same. With `refusal_if_new` it does not run: only a repetition is answered.
    ///
    /// # Errors
    /// A [`Refusal`] of the request id, of the queue, or of a call; `engine_failed` if a thread of the engine panicked.
    pub(crate) async fn submit(
        &self,
        caller: &Caller,
        calls: Vec<PreparedCall>,
        request_id: Option<&str>,
        refusal_if_new: Option<Refusal>,
        answer_at: AnswerAt,
    ) -> Result<UnitResult, Refusal> {
        let request = request_id.map(|id| Request::new(id, &calls)).transpose()?;
        let (reply, answer) = oneshot::channel();
        // `Engine::fire_due` submits a unit without calls.
        if caller.id() == Caller::SYSTEM && !calls.is_empty() {
            let detail = format!("{} is reserved for the engine", Caller::SYSTEM);
            return Err(Refusal::new(Code::Denied, detail));
        }
        let unit = Unit::new(caller.clone(), calls, request, reply);
        let unit = Unit { refusal_if_new: refusal_if_new.map(Box::new), answer_at, ..unit };
        let weight = unit.weight();
        let begun = Instant::now();
        self.send(Some(&self.turn(caller)), WriterJob::Unit(unit), weight)?;
        let answered = answer.await;
        if answer_at == AnswerAt::Durable {
            self.metrics.call_seconds.add(begun.elapsed());
        }
        let done = answered.map_err(|_| self.health.fail_for_dropped_reply())??;
        // A recorded refusal is returned as a refusal.
        match done.refusal() {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(done),
        }
    }

    /// Charges calls to the caller's limits.
    pub(crate) fn allow(&self, caller: &Caller, calls: usize) -> Result<(), Refusal> {
        self.rate_limiter.take(caller, calls, self.clock.now()).inspect_err(|_| {
            self.metrics.rate_limited_total.add(1);
        })
    }

    /// Returns the refusal of a call of a reducer that other processes cannot call any more; `None` for other reducers.
    pub(crate) fn refusal_of_new_work(&self, reducer: &str) -> Option<Refusal> {
        if !self.refused_reducers.get()?.contains(&reducer) {
            return None;
        }
        let detail = format!("{reducer} is not accepted any more: the process is about to stop");
        Some(
            Refusal::new(Code::Unavailable, detail)
                .hint("nothing was written; try again when it runs again")
                .retry_after_ms(STOPPING_RETRY_MS),
        )
    }

    /// Returns where a caller's connections find and count whole results.
    pub(crate) fn shared_results(&self, caller: &Caller) -> SharedResults {
        let cache = Arc::clone(&self.results);
        let account = self.buffers.account(caller);
        SharedResults { cache, account }
    }

    /// Returns whose turn the calls of a caller take.
    pub(crate) fn turn(&self, caller: &Caller) -> Turn {
        Turn::from_caller(caller, &self.queries.tenants)
    }

    /// Queues a job for the writer, in a turn or for the engine itself.
    pub(crate) fn send(
        &self,
        turn: Option<&Turn>,
        job: WriterJob,
        weight: usize,
    ) -> Result<(), Refusal> {
        self.health.check()?;
        tracing::trace!(name: "queued", weight, "a job for the writer");
        self.jobs.push(turn, job, weight).map_err(|rejected| match rejected {
            Rejected::Full(_) => overloaded(),
            Rejected::Closed(_) => self.health.refusal().unwrap_or_else(closing),
        })
    }

    /// Stops the threads, after they have processed what is queued.
    pub(crate) fn stop(&self) {
        self.hub.end(&closing());
        self.jobs.close();
        self.queries.close();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!(
                    name: "thread_failed",
                    "a thread of the engine did not end cleanly"
                );
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the refusal of jobs that do not fit into the queue of the writer.
pub(crate) fn overloaded() -> Refusal {
    Refusal::new(Code::Overloaded, "the queue of calls is full")
        .hint("nothing was written; try again in a moment")
}
