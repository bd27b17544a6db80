//! Gives runs to drivers: each run without a driver gets one, and the driver of a run that is to be aborted is stopped.
//!
//! A run has no driver after `start_run`, after a decision that it has waited for, and after the lease of its driver has expired.
//! Each of these is a change of its row, so one subscription tells this runtime about all of them. The claim is in
//! `run/drivers.rs`.

use std::sync::Arc;
use std::time::Duration;

use abide_client::{Error, Subscription};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde::de::DeserializeOwned;

use crate::run::context::RuntimeContext;
use crate::run::drivers::Drivers;
use crate::run::error::RuntimeError;
use crate::run::registrar::Registrar;
use crate::run::reloader::Reloader;
use crate::run::shutdown::Shutdown;
use crate::run::sweeps::Sweeps;
use crate::trace::tracer::TraceQueue;

/// The drivers of a runtime, and what starts and stops them.
pub(crate) struct Dispatcher<'a> {
    context: &'a Arc<RuntimeContext>,
    registrar: &'a Registrar,
    reloader: &'a Reloader,
    drivers: Drivers,
    sweeps: Sweeps,
    shutdown: Shutdown,
}

impl<'a> Dispatcher<'a> {
    pub(crate) fn new(
        context: &'a Arc<RuntimeContext>,
        registrar: &'a Registrar,
        reloader: &'a Reloader,
        traces: Option<TraceQueue>,
        shutdown: Shutdown,
    ) -> Dispatcher<'a> {
        let loops = registrar.catalog().agent_loops().clone();
        let drivers = Drivers::new(Arc::clone(context), loops, traces, shutdown.clone());
        let sweeps = Sweeps::default();
        Dispatcher { context, registrar, reloader, drivers, sweeps, shutdown }
    }

    /// Gives runs to drivers until the runtime drains; then each driver releases its run after its step.
    ///
    /// # Errors
    /// [`RuntimeError`] if the connection is lost.
    pub(crate) async fn run(mut self) -> Result<(), RuntimeError> {
        let mut unclaimed = self.unclaimed_runs().await?;
        let mut abort_requested = self.abort_requested_runs().await?;
        let mut prompts = self.changed_prompts().await?;
        for id in self.own_runs().await? {
            self.drivers.ensure_driver(id);
        }
        let interval = self.context.settings.reload_interval.max(Duration::from_millis(1));
        let mut reload_tick = tokio::time::interval(interval);
        let mut tools = self.context.tools.revision();
        // At most one reload at a time. It can wait for other servers.
        let mut reloads = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = self.shutdown.draining() => break,
                update = next_update(&mut unclaimed) => {
                    update?;
                    self.drive_all(&unclaimed)?;
                }
                update = next_update(&mut abort_requested) => {
                    update?;
                    for id in column::<String>(&abort_requested)? {
                        self.drivers.stop(&id);
                    }
                }
                () = self.drivers.one_ended() => {
                    // A run that its driver has just suspended may already be running again. That update was
                    // ignored because the driver was still active.
                    self.drive_all(&unclaimed)?;
                    self.sweeps.start(self.context);
                }
                update = next_update(&mut prompts) => {
                    update?;
                    for seq in column::<Option<i64>>(&prompts)? {
                        self.registrar.prompt_changed(seq.unwrap_or(0));
                    }
                }
                Ok(()) = tools.changed(), if reloads.is_empty() => {
                    reloads.push(self.reloader.reload());
                }
                _ = reload_tick.tick() => {
                    if reloads.is_empty() {
                        reloads.push(self.reloader.reload());
                    }
                    self.sweeps.start(self.context);
                }
                Some(()) = reloads.next(), if !reloads.is_empty() => {}
            }
        }
        drop(reloads);
        self.drain(&mut abort_requested).await?;
        self.drivers.shutdown().await;
        Ok(())
    }

    /// Waits until the drivers have ended, or must be stopped. A run can still be aborted.
    async fn drain(&mut self, abort_requested: &mut Subscription) -> Result<(), RuntimeError> {
        while !self.drivers.is_empty() {
            tokio::select! {
                biased;
                () = self.shutdown.stopped() => break,
                () = self.drivers.one_ended() => {}
                update = next_update(abort_requested) => {
                    update?;
                    for id in column::<String>(abort_requested)? {
                        self.drivers.stop(&id);
                    }
                }
            }
        }
        Ok(())
    }

    fn drive_all(&mut self, unclaimed: &Subscription) -> Result<(), Error> {
        for id in column::<String>(unclaimed)? {
            self.drivers.ensure_driver(id);
        }
        Ok(())
    }

    /// Returns a subscription to the runs without a driver.
    async fn unclaimed_runs(&self) -> Result<Subscription, Error> {
        let sql = "SELECT id FROM runs WHERE status = 'running' AND driver IS NULL";
        self.context.abide.subscribe(sql).await
    }

    /// Returns a subscription to this driver's runs that are to be aborted.
    async fn abort_requested_runs(&self) -> Result<Subscription, Error> {
        let sql = "SELECT id FROM runs WHERE driver = :me AND status = 'running' AND \
                   abort_requested_at IS NOT NULL";
        self.context.abide.subscribe(sql).param("me", &self.context.settings.driver).await
    }

    /// Returns a subscription to the event of the last change of a stored prompt.
    async fn changed_prompts(&self) -> Result<Subscription, Error> {
        let sql = "SELECT MAX(seq) FROM prompts WHERE scope = '{}'";
        self.context.abide.subscribe(sql).await
    }

    /// Returns the runs that a runtime with the same driver name held when it ended: they need not wait for their
    /// leases to expire.
    async fn own_runs(&self) -> Result<Vec<String>, Error> {
        let sql = "SELECT id FROM runs WHERE driver = :me AND status = 'running'";
        let held: Vec<(String,)> =
            self.context.abide.sql(sql).param("me", &self.context.settings.driver).fetch().await?;
        Ok(held.into_iter().map(|(id,)| id).collect())
    }
}

/// Waits for the next update of a subscription.
///
/// # Errors
/// Why it has ended.
async fn next_update(subscription: &mut Subscription) -> Result<(), Error> {
    subscription.try_next().await?.map(drop).ok_or(Error::Closed)
}

/// Returns the only column of the rows of a subscription.
fn column<T: DeserializeOwned>(subscription: &Subscription) -> Result<Vec<T>, Error> {
    let rows = subscription.typed_rows::<(T,)>()?;
    Ok(rows.into_iter().map(|(value,)| value).collect())
}
