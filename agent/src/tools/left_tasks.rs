//! Cancels tasks that calls have left on the servers of their tools: calls that were cancelled, also while they waited without a
//! worker, and calls that failed. The recorded steps are an outbox: an attempt is repeated, also by the next runtime, until the
//! server has answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abide_client::arguments::CloseExchange;
use abide_client::{Abide, Error, Json};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::OnceCell;

use crate::remote_agent::rows::own_identity;
use crate::run::context::RuntimeContext;

/// Maximum number of concurrent requests: a server that does not answer delays the others by its timeout only.
const AT_ONCE: usize = 8;

/// Time for one request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The first and the longest pause between attempts for one task.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// For how long a task is tried after the end of its call, in microseconds: one day.
const TRIED: i64 = 24 * 3600 * 1_000_000;

/// The tasks whose calls have ended, those that ended first.
const LEFT: &str = "SELECT x.call_id, c.tool_name, x.data, e.caller, c.updated_at \
    FROM tool_exchanges x JOIN tool_calls c ON c.call_id = x.call_id \
    JOIN events e ON e.seq = x.seq \
    WHERE x.kind = 'task' AND x.ended_at IS NULL \
    AND c.status IN ('succeeded', 'failed', 'rejected', 'cancelled') \
    AND x.call_id NOT IN (SELECT value FROM json_each(:skip)) ORDER BY c.updated_at LIMIT 64";

/// The attempts so far.
#[derive(Debug, Default)]
pub(crate) struct LeftTasks {
    /// By call: when the next attempt is due, and the pause after it. Without a time there is none.
    attempts: Mutex<BTreeMap<String, (Option<Instant>, Duration)>>,
    /// The identity of this runtime in the log.
    identity: OnceCell<String>,
}

/// A task of a call that has ended.
struct LeftTask {
    call_id: String,
    tool_name: String,
    data: Json,
    /// Another identity could have recorded the id of another tenant's task.
    recorded_by: String,
    ended_at: i64,
}

impl LeftTasks {
    /// Cancels the tasks that are due.
    ///
    /// # Errors
    /// [`Error`] of the database.
    pub(crate) async fn sweep(&self, shared: &Arc<RuntimeContext>) -> Result<(), Error> {
        let left = find(&shared.abide, &self.not_due()).await?;
        if left.is_empty() {
            return Ok(());
        }
        let settings = &shared.settings;
        let identity = || own_identity(&shared.abide, &settings.driver, settings.now());
        let identity = self.identity.get_or_try_init(identity).await?;
        for some in left.chunks(AT_ONCE) {
            let mut attempts = FuturesUnordered::new();
            for task in some {
                attempts.push(self.attempt(shared, task, identity).boxed());
            }
            while let Some(tried) = attempts.next().await {
                tried?;
            }
        }
        Ok(())
    }

    async fn attempt(
        &self,
        shared: &RuntimeContext,
        task: &LeftTask,
        identity: &str,
    ) -> Result<(), Error> {
        let tool = shared.tools.get(&task.tool_name);
        let Some(tool) = tool.filter(|_| task.recorded_by == identity) else {
            self.never(&task.call_id);
            return Ok(());
        };
        let request = tokio::time::timeout(TIMEOUT, tool.cancel_task(task.data.value()));
        let failure = match request.await {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some("the server did not answer".to_owned()),
        };
        if let Some(why) = failure {
            tracing::warn!(call_id = task.call_id, why, "a task of a tool was not cancelled");
            if shared.settings.now() - task.ended_at < TRIED {
                self.later(&task.call_id);
                return Ok(());
            }
        }
        // Not again, also if the step cannot be closed.
        self.never(&task.call_id);
        shared.abide.call(CloseExchange::new(&task.call_id)).await.map(drop)
    }

    fn not_due(&self) -> Vec<String> {
        let now = Instant::now();
        let attempts = self.attempts();
        let later = attempts.iter().filter(|(_, (due, _))| due.is_none_or(|due| due > now));
        later.map(|(call_id, _)| call_id.clone()).collect()
    }

    fn never(&self, call_id: &str) {
        self.attempts().insert(call_id.to_owned(), (None, PAUSES.0));
    }

    fn later(&self, call_id: &str) {
        let mut attempts = self.attempts();
        let (due, pause) = attempts.entry(call_id.to_owned()).or_insert((None, PAUSES.0));
        *due = Some(Instant::now() + *pause);
        *pause = (*pause * 2).min(PAUSES.1);
    }

    fn attempts(&self) -> MutexGuard<'_, BTreeMap<String, (Option<Instant>, Duration)>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn find(abide: &Abide, skip: &[String]) -> Result<Vec<LeftTask>, Error> {
    let skip = serde_json::to_string(skip).unwrap_or_default();
    let found: Vec<(String, String, Json, String, i64)> =
        abide.sql(LEFT).param("skip", skip).fetch().await?;
    let left = found.into_iter().map(|(call_id, tool_name, data, recorded_by, ended_at)| {
        LeftTask { call_id, tool_name, data, recorded_by, ended_at }
    });
    Ok(left.collect())
}
