//! When a runtime cancels the tasks that ended runs and calls have left at servers of others. Which tasks these are is decided in
//! `remote_agent/cancel.rs` and `tools/left_tasks.rs`, how often each is tried in `run/cancel_attempts.rs`.

use std::sync::Arc;

use abide_client::Error;
use tokio::task::JoinHandle;

use crate::remote_agent::cancel::RemoteCancels;
use crate::run::context::RuntimeContext;
use crate::tools::left_tasks::OrphanedTasks;

/// The tasks at other servers that are being cancelled.
#[derive(Default)]
pub(crate) struct Sweeps {
    remote_tasks: Arc<RemoteCancels>,
    left_tasks: Arc<OrphanedTasks>,
    remote: Option<JoinHandle<()>>,
    left: Option<JoinHandle<()>>,
}

impl Sweeps {
    /// Starts to cancel the tasks that are no longer needed: those of remote agents whose runs have ended, and those that calls have
    /// left on the servers of tools.
    pub(crate) fn start(&mut self, context: &Arc<RuntimeContext>) {
        let shared = Arc::clone(context);
        let tasks = Arc::clone(&self.remote_tasks);
        let remote = async move { tasks.sweep(&shared).await };
        sweep(&mut self.remote, "tasks of remote agents", remote);
        let shared = Arc::clone(context);
        let tasks = Arc::clone(&self.left_tasks);
        let left = async move { tasks.sweep(&shared).await };
        sweep(&mut self.left, "tasks of tools", left);
    }
}

/// Starts to cancel tasks that are no longer needed, unless that is in progress.
fn sweep(
    sweeping: &mut Option<JoinHandle<()>>,
    what: &'static str,
    cancels: impl Future<Output = Result<(), Error>> + Send + 'static,
) {
    if sweeping.as_ref().is_some_and(|task| !task.is_finished()) {
        return;
    }
    *sweeping = Some(tokio::spawn(async move {
        // When the client is closed, the next runtime tries the tasks.
        if let Err(error) = cancels.await
            && !matches!(error, Error::Closed)
        {
            tracing::warn!(
                name: "cancel_failed",
                error = format_args!("{error:#}"),
                "{what} could not be cancelled"
            );
        }
    }));
}
