//! Cancels tasks that calls have left on the servers of their tools: calls that were cancelled, even while they waited without a
//! worker, and calls that failed. The recorded steps are an outbox: an attempt is repeated, even by the next runtime, until the
//! server has answered.

use std::sync::Arc;
use std::time::Duration;

use abide_client::arguments::CloseExchange;
use abide_client::{Abide, Error, Json};
use futures_util::FutureExt as _;
use tokio::sync::OnceCell;

use crate::remote_agent::rows::own_identity;
use crate::run::cancel_attempts::{CancelAttempts, TRY_FOR_US, try_all};
use crate::run::context::RuntimeContext;

/// Time for one request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The tasks whose calls have ended, those that ended first.
const LEFT: &str = "SELECT x.call_id, c.tool_name, x.data, e.caller, c.updated_at \
    FROM tool_exchanges x JOIN tool_calls c ON c.call_id = x.call_id \
    JOIN events e ON e.seq = x.seq \
    WHERE x.kind = 'task' AND x.ended_at IS NULL \
    AND c.status IN ('succeeded', 'failed', 'rejected', 'cancelled') \
    AND x.call_id NOT IN (SELECT value FROM json_each(:skip)) ORDER BY c.updated_at LIMIT 64";

/// The tasks that are cancelled.
#[derive(Debug, Default)]
pub(crate) struct OrphanedTasks {
    /// By call.
    attempts: CancelAttempts,
    /// The identity of this runtime in the log.
    identity: OnceCell<String>,
}

/// A task of a call that has ended.
struct OrphanedTask {
    call_id: String,
    tool_name: String,
    data: Json,
    /// Another identity could have recorded the id of another tenant's task.
    recorded_by: String,
    ended_at: i64,
}

impl OrphanedTasks {
    /// Cancels the tasks that are due.
    ///
    /// # Errors
    /// [`Error`] of the database.
    pub(crate) async fn sweep(&self, shared: &Arc<RuntimeContext>) -> Result<(), Error> {
        let left = find(&shared.abide, &self.attempts.not_due()).await?;
        if left.is_empty() {
            return Ok(());
        }
        let settings = &shared.settings;
        let identity = self
            .identity
            .get_or_try_init(|| own_identity(&shared.abide, &settings.driver, settings.now()))
            .await?;
        try_all(&left, |task| self.attempt(shared, task, identity).boxed()).await
    }

    async fn attempt(
        &self,
        shared: &RuntimeContext,
        task: &OrphanedTask,
        identity: &str,
    ) -> Result<(), Error> {
        let tool = shared.tools.get(&task.tool_name);
        let Some(tool) = tool.filter(|_| task.recorded_by == identity) else {
            self.attempts.never(&task.call_id);
            return Ok(());
        };
        let request = tokio::time::timeout(TIMEOUT, tool.cancel_task(task.data.value()));
        let failure = match request.await {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some("the server did not respond".to_owned()),
        };
        if let Some(why) = failure {
            tracing::warn!(
                name: "tool_task_not_cancelled",
                call_id = task.call_id,
                why,
                "a task of a tool was not cancelled"
            );
            if shared.settings.now() - task.ended_at < TRY_FOR_US {
                self.attempts.later(&task.call_id);
                return Ok(());
            }
        }
        // Not again, even if the step cannot be closed.
        self.attempts.never(&task.call_id);
        shared.abide.call(CloseExchange::new(&task.call_id)).await.map(drop)
    }
}

async fn find(abide: &Abide, skip: &[String]) -> Result<Vec<OrphanedTask>, Error> {
    let skip = serde_json::to_string(skip).unwrap_or_default();
    let found: Vec<(String, String, Json, String, i64)> =
        abide.sql(LEFT).param("skip", skip).fetch().await?;
    let left = found.into_iter().map(|(call_id, tool_name, data, recorded_by, ended_at)| {
        OrphanedTask { call_id, tool_name, data, recorded_by, ended_at }
    });
    Ok(left.collect())
}
