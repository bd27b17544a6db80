//! A worker: runs the tool calls that other programs request.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide_reducers::ToolCall;
use abide_reducers::arguments::{ClaimNextToolCall, HeartbeatToolCall};
use abide_schema::Code;
use futures_util::future::select_all;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as JsonValue;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::lease::{LEASE, is_passing, millis, worker_name};
use super::outcome::{Recording, ToolError, run_attempt};
use crate::{Abide, Committed, Error, Subscription};

/// The calls of a tool that can be claimed. A call that returned to them has another seq, so it counts as a change even
/// if its departure was not seen.
const PENDING: &str = "SELECT call_id, seq FROM tool_calls
WHERE status = 'pending' AND retry_at IS NULL AND tool_name = :tool";

/// How long to wait for an answer to a claim before the same request is sent again.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before another claim if a limit of a tool holds its calls back, or the server is about to stop. No change of a
/// row reports its end.
const HELD_BACK: Duration = Duration::from_secs(1);

type Work = Pin<Box<dyn Future<Output = Result<JsonValue, ToolError>> + Send>>;
type Function = Arc<dyn Fn(JsonValue) -> Work + Send + Sync>;

impl Abide {
    /// Returns a worker for tool calls.
    ///
    /// ```no_run
    /// # async fn example(abide: abide_client::Abide) -> Result<(), abide_client::Error> {
    /// abide
    ///     .worker()
    ///     .tool("refund", |args: serde_json::Value| async move {
    ///         Ok(format!("receipt of {}", args["order"]))
    ///     })
    ///     .concurrency(4)
    ///     .serve(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
    ///     .await
    /// # }
    /// ```
    pub fn worker(&self) -> Worker {
        let abide = self.clone();
        let name = worker_name();
        Worker { abide, name, functions: BTreeMap::new(), concurrency: 8, lease: LEASE }
    }
}

/// A worker for tool calls.
#[must_use = "a worker works with `serve`"]
pub struct Worker {
    abide: Abide,
    name: String,
    functions: BTreeMap<String, Function>,
    concurrency: usize,
    lease: Duration,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools: Vec<&String> = self.functions.keys().collect();
        f.debug_struct("Worker").field("name", &self.name).field("tools", &tools).finish()
    }
}

impl Worker {
    /// Adds a tool. What the function returns is recorded as the outcome of the call.
    pub fn tool<A, R, W>(
        mut self,
        name: impl Into<String>,
        function: impl Fn(A) -> W + Send + Sync + 'static,
    ) -> Worker
    where
        A: DeserializeOwned,
        R: Serialize,
        W: Future<Output = Result<R, ToolError>> + Send + 'static,
    {
        let function = move |args: JsonValue| -> Work {
            let work = serde_json::from_value(args).map(&function);
            Box::pin(async move {
                let work = work.map_err(|why| {
                    ToolError::new(format!("the arguments have another type: {why}"))
                })?;
                Ok(serde_json::to_value(work.await?)?)
            })
        };
        self.functions.insert(name.into(), Arc::new(function));
        self
    }

    /// Sets how many calls run at a time. Default: 8.
    pub fn concurrency(mut self, calls: usize) -> Worker {
        self.concurrency = calls.max(1);
        self
    }

    /// Sets the lease; heartbeats extend it while a call runs. Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.lease = lease;
        self
    }

    /// Sets the name that `tool_calls.claimed_by` shows. Default: a unique name.
    pub fn name(mut self, name: impl Into<String>) -> Worker {
        self.name = name.into();
        self
    }

    /// Runs calls of its tools until `stop` completes; then it claims no more calls, and returns when those that run have
    /// ended. Errors of tools are recorded as outcomes, and do not end it. Dropping the future drops the calls that run:
    /// their leases expire.
    ///
    /// A tool goes on while the server is away or restarts. Its lease is renewed when the server is back, and its outcome
    /// is reported until the server answers; after `stop`, until the deadline of the client.
    ///
    /// # Errors
    /// [`Error::Refused`] with `denied` if the caller may not claim calls; [`Error::Closed`] if the client was closed.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let mut pending = Vec::new();
        for tool in self.functions.keys() {
            pending.push((tool.clone(), self.abide.subscribe(PENDING).param("tool", tool).await?));
        }
        if pending.is_empty() {
            stop.await;
            return Ok(());
        }
        let mut running = JoinSet::new();
        let is_stopping = Arc::<AtomicBool>::default();
        let recording = Recording::UntilAnswered(Arc::clone(&is_stopping));
        let served = self.claim_until(stop, &mut pending, &mut running, &recording).await;
        is_stopping.store(true, Ordering::Release);
        while running.join_next().await.is_some() {}
        served
    }

    async fn claim_until(
        &self,
        stop: impl Future<Output = ()>,
        pending: &mut [(String, Subscription)],
        running: &mut JoinSet<()>,
        recording: &Recording,
    ) -> Result<(), Error> {
        let mut stop = pin!(stop);
        let mut may_claim = true;
        let mut held_back = false;
        loop {
            let waiting: Vec<String> = tools_with_calls(pending);
            if may_claim && !waiting.is_empty() && running.len() < self.concurrency {
                tokio::select! {
                    biased;
                    () = &mut stop => return Ok(()),
                    () = std::future::ready(()) => {}
                }
                let mut claim = pin!(self.claim(waiting));
                let claimed = tokio::select! {
                    biased;
                    claimed = &mut claim => claimed,
                    () = &mut stop => {
                        // A claim without an answer may have taken effect, and nobody else would run the call.
                        if let Ok(Ok(Some(call))) = timeout(self.lease, &mut claim).await {
                            self.start(call, running, recording);
                        }
                        return Ok(());
                    }
                };
                match claimed {
                    Ok(Some(call)) => self.start(call, running, recording),
                    Ok(None) => {}
                    Err(error) => match error.code() {
                        Some(Code::NotFound) => may_claim = false,
                        Some(code) if code.is_temporary() => (may_claim, held_back) = (false, true),
                        _ => return Err(error),
                    },
                }
                continue;
            }
            tokio::select! {
                () = &mut stop => return Ok(()),
                changed = wait_for_change(pending) => {
                    changed?;
                    may_claim = true;
                }
                _ = running.join_next(), if !running.is_empty() => {}
                // tidy: the pause before another claim
                () = sleep(HELD_BACK), if held_back => (may_claim, held_back) = (true, false),
            }
        }
    }

    /// Claims the oldest call of these tools. A claim without an answer is sent again until there is one, because it may have
    /// taken effect. A temporary refusal of a later attempt does not deny that. `None` if it had, and the lease is lost.
    async fn claim(&self, tools: Vec<String>) -> Result<Option<ToolCall>, Error> {
        let claim = ClaimNextToolCall::new(tools).lease_ms(millis(self.lease)).worker(&self.name);
        let request_id = Uuid::now_v7().to_string();
        let mut is_uncertain = false;
        loop {
            let request = self.abide.call(&claim).request_id(&request_id).deadline(CLAIM_TIMEOUT);
            match request.await {
                Err(Error::TimedOut { .. }) => is_uncertain = true,
                // tidy: the pause before another attempt
                Err(error) if is_uncertain && is_passing(&error) => sleep(HELD_BACK).await,
                Ok(Committed { value, duplicate: true, .. }) => {
                    return self.check_claim(value).await;
                }
                claimed => return claimed.map(|claimed| Some(claimed.into_inner())),
            }
        }
    }

    /// Checks a claim whose answer was lost at first: its lease may have expired since, and another worker have the call.
    async fn check_claim(&self, call: ToolCall) -> Result<Option<ToolCall>, Error> {
        let token = call.fencing_token.unwrap_or_default();
        let extend = HeartbeatToolCall::new(&call.call_id, token).lease_ms(millis(self.lease));
        loop {
            match self.abide.call(&extend).deadline(CLAIM_TIMEOUT).await {
                // tidy: the pause before another attempt
                Err(error) if is_passing(&error) => sleep(HELD_BACK).await,
                Err(Error::Refused(_)) => return Ok(None),
                renewed => return renewed.map(|renewed| Some(renewed.into_inner())),
            }
        }
    }

    fn start(&self, call: ToolCall, running: &mut JoinSet<()>, recording: &Recording) {
        let Some(function) = self.functions.get(&call.tool_name) else { return };
        let work = function(call.arguments.value());
        let abide = self.abide.clone();
        let lease = self.lease;
        let recording = recording.clone();
        running.spawn(async move {
            let id = &call.call_id;
            let tool = &call.tool_name;
            match run_attempt(&abide, &call, lease, &recording, work).await {
                Ok(_) => {}
                Err(error @ Error::ToolFailed { .. }) => tracing::info!(
                    name: "tool_failed",
                    id,
                    tool,
                    %error,
                    "failed"
                ),
                Err(error) => tracing::warn!(
                    name: "outcome_not_recorded",
                    id,
                    tool,
                    error = format_args!("{error:#}"),
                    "the outcome is not recorded"
                ),
            }
        });
    }
}

/// The tools with calls that can be claimed.
fn tools_with_calls(pending: &[(String, Subscription)]) -> Vec<String> {
    pending
        .iter()
        .filter(|(_, calls)| calls.rows().len() > 0)
        .map(|(tool, _)| tool.clone())
        .collect()
}

/// Waits for a change of the calls that can be claimed.
async fn wait_for_change(pending: &mut [(String, Subscription)]) -> Result<(), Error> {
    let next = pending.iter_mut().map(|(_, calls)| Box::pin(calls.next()));
    match select_all(next).await.0 {
        Some(update) => update.map(drop),
        None => Err(Error::Closed),
    }
}
