//! Gives runs to drivers: each run without a driver gets one, and the driver of a run that is to be aborted is stopped. Tasks that
//! ended runs have left on other servers are cancelled.

use std::sync::Arc;
use std::time::Duration;

use abide_client::{Error, Subscription};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::remote_agent::cancel::RemoteCancels;
use crate::run::context::RuntimeContext;
use crate::run::drivers::Drivers;
use crate::run::error::RuntimeError;
use crate::run::registrar::Registrar;
use crate::run::reloader::Reloader;
use crate::tools::left_tasks::OrphanedTasks;
use crate::trace::tracer::TraceQueue;

/// The drivers of a runtime, and what begins and stops them.
pub(crate) struct Dispatcher<'a> {
    context: &'a Arc<RuntimeContext>,
    registrar: &'a Registrar,
    reloader: &'a Reloader,
    drivers: Drivers,
    sweeps: Sweeps,
}

impl<'a> Dispatcher<'a> {
    pub(crate) fn new(
        context: &'a Arc<RuntimeContext>,
        registrar: &'a Registrar,
        reloader: &'a Reloader,
        traces: Option<TraceQueue>,
    ) -> Dispatcher<'a> {
        let loops = registrar.catalog().agent_loops().clone();
        let drivers = Drivers::new(Arc::clone(context), loops, traces);
        Dispatcher { context, registrar, reloader, drivers, sweeps: Sweeps::default() }
    }

    /// Gives runs to drivers until stopped; then the drivers release their runs.
    ///
    /// # Errors
    /// [`RuntimeError`] if the connection is lost.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), RuntimeError> {
        let mut unclaimed = self.unclaimed_runs().await?;
        let mut abort_requested = self.abort_requested_runs().await?;
        let mut prompts = self.changed_prompts().await?;
        for id in self.own_runs().await? {
            self.drivers.begin(id);
        }
        let look = self.context.settings.look.max(Duration::from_millis(1));
        let mut look = tokio::time::interval(look);
        let mut tools = self.context.tools.revision();
        // At most one reload at a time. It can wait for other servers.
        let mut reloads = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                changed = changed(&mut unclaimed) => {
                    changed?;
                    self.begin_all(&unclaimed)?;
                }
                changed = changed(&mut abort_requested) => {
                    changed?;
                    for id in column::<String>(&abort_requested)? {
                        self.drivers.stop(&id);
                    }
                }
                () = self.drivers.one_ended() => {
                    // A run that its driver has just suspended may already be running again. That update was
                    // ignored because the driver was still active.
                    self.begin_all(&unclaimed)?;
                    self.sweeps.start(self.context);
                }
                changed = changed(&mut prompts) => {
                    changed?;
                    for seq in column::<Option<i64>>(&prompts)? {
                        self.registrar.prompt_changed(seq.unwrap_or(0));
                    }
                }
                Ok(()) = tools.changed(), if reloads.is_empty() => {
                    reloads.push(self.reloader.reload());
                }
                _ = look.tick() => {
                    if reloads.is_empty() {
                        reloads.push(self.reloader.reload());
                    }
                    self.sweeps.start(self.context);
                }
                Some(()) = reloads.next(), if !reloads.is_empty() => {}
            }
        }
        self.drivers.shutdown().await;
        Ok(())
    }

    fn begin_all(&mut self, unclaimed: &Subscription) -> Result<(), Error> {
        for id in column::<String>(unclaimed)? {
            self.drivers.begin(id);
        }
        Ok(())
    }

    /// A subscription to the runs without a driver.
    async fn unclaimed_runs(&self) -> Result<Subscription, Error> {
        let sql = "SELECT id FROM runs WHERE status = 'running' AND driver IS NULL";
        self.context.abide.subscribe(sql).await
    }

    /// A subscription to this driver's runs that are to be aborted.
    async fn abort_requested_runs(&self) -> Result<Subscription, Error> {
        let sql = "SELECT id FROM runs WHERE driver = :me AND status = 'running' AND \
                   abort_requested_at IS NOT NULL";
        self.context.abide.subscribe(sql).param("me", &self.context.settings.driver).await
    }

    /// A subscription to the event of the last change of a stored prompt.
    async fn changed_prompts(&self) -> Result<Subscription, Error> {
        let sql = "SELECT MAX(seq) FROM prompts WHERE scope = '{}'";
        self.context.abide.subscribe(sql).await
    }

    /// The runs that this driver held when it ended.
    async fn own_runs(&self) -> Result<Vec<String>, Error> {
        let sql = "SELECT id FROM runs WHERE driver = :me AND status = 'running'";
        let held: Vec<(String,)> =
            self.context.abide.sql(sql).param("me", &self.context.settings.driver).fetch().await?;
        Ok(held.into_iter().map(|(id,)| id).collect())
    }
}

/// The tasks at other servers that are being cancelled.
#[derive(Default)]
struct Sweeps {
    remote_tasks: Arc<RemoteCancels>,
    left_tasks: Arc<OrphanedTasks>,
    remote: Option<JoinHandle<()>>,
    left: Option<JoinHandle<()>>,
}

impl Sweeps {
    /// Starts to cancel the tasks that are no longer needed: those of remote agents whose runs have ended, and those that calls have
    /// left on the servers of tools.
    fn start(&mut self, context: &Arc<RuntimeContext>) {
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
            tracing::warn!(%error, "{what} could not be cancelled");
        }
    }));
}

/// Waits for the next update of a subscription.
///
/// # Errors
/// Why it has ended.
async fn changed(subscription: &mut Subscription) -> Result<(), Error> {
    match subscription.next().await {
        Some(_) => Ok(()),
        None => Err(subscription.error().cloned().unwrap_or(Error::Closed)),
    }
}

/// Returns the only column of the rows of a subscription.
fn column<T: DeserializeOwned>(subscription: &Subscription) -> Result<Vec<T>, Error> {
    let rows = subscription.typed_rows::<(T,)>()?;
    Ok(rows.into_iter().map(|(value,)| value).collect())
}
