//! Cancels tasks of remote agents whose runs have ended without them: runs that were aborted, even while they waited without a driver, and
//! runs that failed. The entries of such tasks ([`crate::remote_agent::rows`]) are an outbox: an attempt is repeated,
//! even by the next runtime, until the agent has answered.

use std::sync::Arc;

use abide_client::Error;
use abide_tools::{A2aClient, A2aFailure};
use futures_util::FutureExt as _;
use serde_json::json;
use tokio::sync::OnceCell;

use crate::catalog;
use crate::remote_agent::rows::{self, OrphanedTask};
use crate::run::cancel_attempts::{CancelAttempts, TRY_FOR_US, try_all};
use crate::run::context::RuntimeContext;
use crate::run::error::RuntimeError;

/// The tasks that are cancelled.
#[derive(Debug, Default)]
pub(crate) struct RemoteCancels {
    /// By run.
    attempts: CancelAttempts,
    /// The identity of this runtime in the log.
    identity: OnceCell<String>,
}

impl RemoteCancels {
    /// Tries the tasks that are due.
    pub(crate) async fn sweep(&self, shared: &Arc<RuntimeContext>) -> Result<(), Error> {
        if !shared.trusted_programs.has_remote_agents() {
            return Ok(());
        }
        let left = OrphanedTask::find(&shared.abide, &self.attempts.not_due()).await?;
        if left.is_empty() {
            return Ok(());
        }
        let settings = &shared.settings;
        let identity = || rows::own_identity(&shared.abide, &settings.driver, settings.now());
        let identity = self.identity.get_or_try_init(identity).await?;
        try_all(&left, |task| self.attempt(shared, task, identity).boxed()).await
    }

    async fn attempt(
        &self,
        shared: &RuntimeContext,
        task: &OrphanedTask,
        identity: &str,
    ) -> Result<(), Error> {
        let is_old = shared.settings.now() - task.updated_at > TRY_FOR_US;
        match cancel(shared, task, identity).await? {
            Err(failure) if failure.is_temporary() && !is_old => {
                self.attempts.later(&task.run_id);
                return Ok(());
            }
            Err(failure) if !failure.is_ended() => {
                let run = &task.run_id;
                let task = &task.task_id;
                tracing::warn!(
                    name: "remote_cancel_failed",
                    run,
                    task,
                    %failure,
                    "a remote agent did not cancel a task"
                );
            }
            _ => {}
        }
        // Not again, even if the entry cannot be removed: another holder may have fenced the collection.
        self.attempts.never(&task.run_id);
        shared.abide.call(task.close()).await?;
        self.attempts.forget(&task.run_id);
        Ok(())
    }
}

/// Asks the agent to cancel a task.
async fn cancel(
    shared: &RuntimeContext,
    task: &OrphanedTask,
    identity: &str,
) -> Result<Result<(), A2aFailure>, Error> {
    let nothing = |why: &str| Ok(Err(A2aFailure::Invalid(why.to_owned())));
    if task.recorded_by != identity {
        return nothing("another identity has recorded the task");
    }
    let definition =
        match catalog::revision::load_definition(&shared.abide, &task.agent, task.revision).await {
            Ok(definition) => definition,
            Err(RuntimeError::Abide(error)) => return Err(error),
            Err(unreadable) => return nothing(&unreadable.to_string()),
        };
    if !shared.trusted_programs.allows(&task.agent, &definition) {
        return nothing("the agent is not configured in this runtime's agent folder");
    }
    let Some(config) = definition.a2a.as_ref().filter(|_| !task.task_id.is_empty()) else {
        return nothing("the run has no task");
    };
    let client = match A2aClient::connect(config, &shared.environment).await {
        Ok(client) => client,
        Err(failure) => return Ok(Err(failure)),
    };
    shared.abide.call(task.record_cancel()).await?;
    Ok(client.call("CancelTask", json!({"id": task.task_id})).await.map(drop))
}
