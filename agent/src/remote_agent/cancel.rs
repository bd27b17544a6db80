//! Cancels tasks of remote agents whose runs have ended without them: runs that were aborted, also while they waited without a driver, and
//! runs that failed. The entries of such tasks ([`crate::remote_agent::rows`]) are an outbox: an attempt is repeated, also by the next runtime,
//! until the agent has answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abide_client::Error;
use abide_tools::{A2aClient, A2aFailure};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::catalog;
use crate::remote_agent::rows::{self, LeftTask};
use crate::run::context::RuntimeContext;
use crate::run::error::RuntimeError;

/// Maximum number of concurrent requests: an agent that does not answer delays the others by its timeout only.
const AT_ONCE: usize = 8;

/// The first and the longest pause between attempts for one task.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// For how long a task is tried, in microseconds: one day.
const TRIED: i64 = 24 * 3600 * 1_000_000;

/// The attempts so far.
#[derive(Debug, Default)]
pub(crate) struct RemoteCancels {
    /// By run: when the next attempt is due, and the pause after it. Without a time there is none.
    attempts: Mutex<BTreeMap<String, (Option<Instant>, Duration)>>,
    /// The identity of this runtime in the log.
    identity: OnceCell<String>,
}

impl RemoteCancels {
    /// Tries the tasks that are due.
    pub(crate) async fn sweep(&self, shared: &Arc<RuntimeContext>) -> Result<(), Error> {
        if !shared.trusted_programs.has_remote_agents() {
            return Ok(());
        }
        let skip = self.not_due();
        let left = LeftTask::find(&shared.abide, &skip).await?;
        if left.is_empty() {
            return Ok(());
        }
        let settings = &shared.settings;
        let identity = || rows::own_identity(&shared.abide, &settings.driver, settings.now());
        let identity = self.identity.get_or_try_init(identity).await?;
        for some in left.chunks(AT_ONCE) {
            let mut tries = FuturesUnordered::new();
            for task in some {
                tries.push(self.attempt(shared, task, identity).boxed());
            }
            while let Some(tried) = tries.next().await {
                tried?;
            }
        }
        Ok(())
    }

    fn not_due(&self) -> Vec<String> {
        let now = Instant::now();
        let attempts = self.attempts();
        let later = attempts.iter().filter(|(_, (due, _))| due.is_none_or(|due| due > now));
        later.map(|(run_id, _)| run_id.clone()).collect()
    }

    async fn attempt(
        &self,
        shared: &RuntimeContext,
        task: &LeftTask,
        identity: &str,
    ) -> Result<(), Error> {
        let is_old = shared.settings.now() - task.updated_at > TRIED;
        match cancel(shared, task, identity).await? {
            Err(failure) if failure.is_temporary() && !is_old => {
                self.later(&task.run_id);
                return Ok(());
            }
            Err(failure) if !failure.is_ended() => {
                let (run, task) = (&task.run_id, &task.task_id);
                tracing::warn!(run, task, %failure, "a remote agent did not cancel a task");
            }
            _ => {}
        }
        // Not again, also if the entry cannot be removed: another holder may have fenced the collection.
        self.attempts().insert(task.run_id.clone(), (None, PAUSES.0));
        shared.abide.call(task.closed()).await?;
        self.attempts().remove(&task.run_id);
        Ok(())
    }

    fn later(&self, run_id: &str) {
        let mut attempts = self.attempts();
        let (due, pause) = attempts.entry(run_id.to_owned()).or_insert((None, PAUSES.0));
        *due = Some(Instant::now() + *pause);
        *pause = (*pause * 2).min(PAUSES.1);
    }

    fn attempts(&self) -> MutexGuard<'_, BTreeMap<String, (Option<Instant>, Duration)>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the agent to cancel a task.
async fn cancel(
    shared: &RuntimeContext,
    task: &LeftTask,
    identity: &str,
) -> Result<Result<(), A2aFailure>, Error> {
    let nothing = |why: &str| Ok(Err(A2aFailure::Invalid(why.to_owned())));
    if task.recorded_by != identity {
        return nothing("another identity has recorded the task");
    }
    let definition =
        match catalog::revision::definition(&shared.abide, &task.agent, task.revision).await {
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
    shared.abide.call(task.cancelling()).await?;
    Ok(client.call("CancelTask", json!({"id": task.task_id})).await.map(drop))
}
