//! The drivers of a runtime: one task per run. This file decides whether a runtime drives a run (it has a permit, the claim succeeds,
//! the definition is accepted), and what follows when a driver ends: after a connection error the run is claimed and driven again,
//! after a panic too, a few times.
//!
//! The loop of a driver is in `run/drive.rs`. All that it knows is in rows, so a new driver continues where the last one has
//! recorded a step.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use abide_client::arguments::{ClaimRun, FinishRun};
use abide_client::rows::Run;
use abide_client::{Abide, Code, Scope};
use abide_definitions::agent::AgentDefinition;
use abide_definitions::middleware::Middleware;
use abide_tools::ScopePermit;
use futures_util::FutureExt as _;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::agent_loop::AgentLoops;
use crate::catalog::revision::load_definition;
use crate::run::active_agent::ActiveAgent;
use crate::run::context::RuntimeContext;
use crate::run::driver::Driver;
use crate::run::error::RuntimeError;
use crate::run::lease::{RunLease, millis};
use crate::run::shutdown::Shutdown;
use crate::run::state::RunState;
use crate::run::step::RunFailure;
use crate::trace::tracer::TraceQueue;
use crate::watchdog::HealthState;

/// Delay before a run is retried after a connection error or a panic of its driver.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// How long the drivers of programs may take to end in addition to the grace period of tools: after a signal, a program has its own
/// grace period, and its last lines are recorded.
const END_OF_DRIVERS: Duration = Duration::from_secs(1);

/// Maximum number of consecutive panics of a run's driver. A defect that depends on the run's rows would otherwise
/// be retried forever.
const MAX_PANICS: u32 = 3;

/// The error code of a run whose drivers panicked.
const BROKEN: &str = "runtime_crash";

/// The error code of a run whose agent is a program that was not configured on this machine.
const UNTRUSTED: &str = "program_not_trusted";

/// The error code of a run whose agent is a remote agent that was not configured on this machine.
const UNTRUSTED_AGENT: &str = "remote_agent_not_trusted";

/// The drivers of a runtime.
pub(crate) struct Drivers {
    shared: Arc<RuntimeContext>,
    /// The loops in Rust.
    loops: AgentLoops,
    tasks: JoinSet<DriverExit>,
    driven: HashMap<String, ActiveDriver>,
    /// The runs that have ended, for their traces.
    traces: Option<TraceQueue>,
    shutdown: Shutdown,
}

/// A run with a driver.
#[derive(Default)]
struct ActiveDriver {
    /// Stops the driver.
    stop: CancellationToken,
    /// How often the driver has panicked.
    panics: u32,
}

/// The result of a driver.
struct DriverExit {
    run: String,
    how: ExitReason,
}

enum ExitReason {
    /// The run needs no further work of this runtime: it has ended, waits, or another driver holds it.
    Finished,
    /// The connection failed.
    ConnectionLost(RuntimeError),
    /// The driver panicked.
    Panicked,
}

impl Drivers {
    pub(crate) fn new(
        shared: Arc<RuntimeContext>,
        loops: AgentLoops,
        traces: Option<TraceQueue>,
        shutdown: Shutdown,
    ) -> Drivers {
        let tasks = JoinSet::new();
        Drivers { shared, loops, tasks, driven: HashMap::new(), traces, shutdown }
    }

    /// Returns `true` if there is no driver.
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Starts a driver for a run, unless there is one.
    pub(crate) fn ensure_driver(&mut self, run: String) {
        if !self.driven.contains_key(&run) {
            self.spawn(run, 0, Duration::ZERO);
        }
    }

    /// Stops the driver of a run.
    pub(crate) fn stop(&self, run: &str) {
        if let Some(driven) = self.driven.get(run) {
            driven.stop.cancel();
        }
    }

    /// Waits until a driver has ended and handles the result; waits forever if there is no driver.
    pub(crate) async fn one_ended(&mut self) {
        match self.tasks.join_next().await {
            // Tasks catch their own panics, and are aborted only at shutdown.
            Some(Ok(exit)) => self.handle_exit(exit),
            Some(Err(error)) => tracing::error!(name: "driver_lost", %error, "a driver was lost"),
            None => std::future::pending().await,
        }
    }

    /// Ends the drivers that are left. They have been told to stop: those of command-line programs wait until the program has
    /// ended, for a while, and all others end at once.
    pub(crate) async fn shutdown(&mut self) {
        let within = self.shared.settings.grace + END_OF_DRIVERS;
        let ended = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Ok(DriverExit { run, how: ExitReason::Finished }) = ended {
                    self.trace(&run);
                }
            }
        };
        if tokio::time::timeout(within, ended).await.is_err() {
            self.tasks.shutdown().await;
        }
    }

    /// Traces a run that has ended, or drives it again.
    fn handle_exit(&mut self, DriverExit { run, how }: DriverExit) {
        let panics = self.driven.remove(&run).map_or(0, |driven| driven.panics);
        self.shared.leases.release_run(&run);
        match how {
            ExitReason::Finished => self.trace(&run),
            // The next runtime drives it.
            _ if self.shutdown.is_draining() => {}
            ExitReason::ConnectionLost(error) => {
                tracing::warn!(
                    name: "run_delayed",
                    run,
                    error = format_args!("{error:#}"),
                    "a run could not be driven; it will be retried"
                );
                self.spawn(run, panics, RETRY_DELAY);
            }
            ExitReason::Panicked => {
                tracing::error!(
                    name: "driver_panicked",
                    run,
                    times = panics + 1,
                    "the driver of a run panicked"
                );
                self.spawn(run, panics + 1, RETRY_DELAY);
            }
        }
    }

    /// Sends the trace of a run, if it has ended.
    fn trace(&self, run: &str) {
        if let Some(traces) = &self.traces {
            traces.add(run);
        }
    }

    /// Starts the task of a driver. `panics` is how often drivers of the run have panicked in a row.
    fn spawn(&mut self, run: String, panics: u32, delay: Duration) {
        let stop = CancellationToken::new();
        self.driven.insert(run.clone(), ActiveDriver { stop: stop.clone(), panics });
        let shared = Arc::clone(&self.shared);
        let loops = self.loops.clone();
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            if !delay.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = shutdown.draining() => {
                        return DriverExit { run, how: ExitReason::Finished };
                    }
                }
            }
            // `AssertUnwindSafe` is sound: a driver shares no state that a panic could leave inconsistent.
            let drives = async {
                if panics < MAX_PANICS {
                    claim_and_drive(shared, &loops, &run, stop, shutdown).await
                } else {
                    fail_after_panics(&shared, &run).await
                }
            };
            let how = match AssertUnwindSafe(drives).catch_unwind().await {
                Ok(Ok(())) => ExitReason::Finished,
                Ok(Err(error)) => ExitReason::ConnectionLost(error),
                Err(_) => ExitReason::Panicked,
            };
            DriverExit { run, how }
        });
    }
}

/// Claims a run. Returns `None` if another driver was faster, or the run is over.
async fn claim(shared: &RuntimeContext, id: &str) -> Result<Option<Run>, RuntimeError> {
    shared.leases.until_renewed().await;
    let settings = &shared.settings;
    let claim = ClaimRun::new(id, &settings.driver, millis(settings.lease));
    match shared.abide.call(claim).await {
        Ok(run) => Ok(Some(run.into_inner())),
        Err(error) => match error.code() {
            Some(Code::Conflict | Code::BadTransition | Code::NotFound) => Ok(None),
            _ => Err(error.into()),
        },
    }
}

/// Fails a run whose driver panics repeatedly.
async fn fail_after_panics(shared: &RuntimeContext, id: &str) -> Result<(), RuntimeError> {
    let Some(run) = claim(shared, id).await? else { return Ok(()) };
    let Some(run_lease) = RunLease::from_run(&run) else { return Ok(()) };
    let why = format!("the run's driver panicked {MAX_PANICS} times; this is a bug in the runtime");
    end(&shared.abide, run_lease.fail(BROKEN, why)).await
}

/// Waits until a run may be driven. Until then it has no driver, so that another runtime can claim it. Returns its scope;
/// `None` if there is no such run. A delegated run needs no permit: the run that waits for it has one.
async fn permit_to_drive(
    shared: &RuntimeContext,
    id: &str,
) -> Result<Option<(Scope, Option<ScopePermit>)>, RuntimeError> {
    let Some((scope, is_delegated)) = shared.scope_of_run(id).await? else { return Ok(None) };
    let permit = if is_delegated { None } else { Some(shared.run_permit(&scope).await) };
    Ok(Some((scope, permit)))
}

/// Claims a run that may be driven, once it may. Returns `None` if there is nothing to drive.
async fn claim_permitted(
    shared: &RuntimeContext,
    id: &str,
) -> Result<Option<(Run, Scope, Option<ScopePermit>)>, RuntimeError> {
    let Some((scope, permit)) = permit_to_drive(shared, id).await? else { return Ok(None) };
    let Some(run) = claim(shared, id).await? else { return Ok(None) };
    Ok(Some((run, scope, permit)))
}

/// Claims a run and drives it. A run whose definition this runtime cannot use fails.
async fn claim_and_drive(
    shared: Arc<RuntimeContext>,
    loops: &AgentLoops,
    id: &str,
    stop: CancellationToken,
    shutdown: Shutdown,
) -> Result<(), RuntimeError> {
    let claimed = tokio::select! {
        biased;
        () = shutdown.draining() => return Ok(()),
        claimed = claim_permitted(&shared, id) => claimed?,
    };
    let Some((run, scope, permit)) = claimed else { return Ok(()) };
    let Some(run_lease) = RunLease::from_run(&run) else { return Ok(()) };
    shared.leases.hold_run(run_lease.clone());
    let definition = match load_definition(&shared.abide, &run.agent, run.revision).await {
        Ok(definition) => definition,
        Err(RuntimeError::Abide(error)) => return Err(error.into()),
        Err(unreadable) => {
            let failed = run_lease.fail("malformed_definition", unreadable.to_string());
            return end(&shared.abide, failed).await;
        }
    };
    let deployment = shared.deployment.get();
    if let Some(RunFailure { code, message }) =
        unaccepted(&shared, loops, &run.agent, &definition, &deployment)
    {
        return end(&shared.abide, run_lease.fail(code, message)).await;
    }
    let definition = Arc::new(definition);
    let loaded = ActiveAgent::load(&shared.abide, &shared.tools, Arc::clone(&definition)).await?;
    let agent = match loaded {
        Ok(agent) => agent,
        Err(RunFailure { code, message }) => {
            return end(&shared.abide, run_lease.fail(code, message)).await;
        }
    };
    let driver = Driver {
        shared: Arc::clone(&shared),
        abide: shared.abide.acting_for(&scope).await?,
        scope,
        permit,
        run_lease,
        stop,
        shutdown,
        own_definition: definition,
        deployment,
        agent,
        state: RunState::claimed(run),
        health: HealthState::default(),
        has_no_budget: AtomicBool::new(false),
        has_asked_model: false,
        imported_seq: OnceCell::new(),
    };
    driver.drive(loops).await.map(drop)
}

/// Returns the failure of a run whose definition this runtime does not accept; `None` if it accepts it. The definition
/// may have been registered by a runtime with another configuration.
fn unaccepted(
    shared: &RuntimeContext,
    loops: &AgentLoops,
    agent: &str,
    definition: &AgentDefinition,
    deployment: &[Middleware],
) -> Option<RunFailure> {
    if !shared.trusted_programs.allows(agent, definition) {
        let (code, what) = match definition.a2a {
            Some(_) => (UNTRUSTED_AGENT, "a remote agent"),
            None => (UNTRUSTED, "a program"),
        };
        let why =
            format!("the agent uses {what} that is not configured in this runtime's agent folder");
        return Some(RunFailure::new(code, why));
    }
    let of_all = definition.all_middleware(deployment);
    let checked = definition
        .check_sandbox(*shared.sandbox.get())
        .and_then(|()| shared.middleware.check_entries(of_all))
        .and_then(|()| shared.middleware.check(definition))
        .and_then(|()| loops.check(definition));
    checked.err().map(|refused| RunFailure::new(refused.code(), refused.to_string()))
}

/// Ends a run, unless another driver holds it.
async fn end(abide: &Abide, end: FinishRun) -> Result<(), RuntimeError> {
    match abide.call(end).await {
        Err(error) if error.code() != Some(Code::LeaseLost) => Err(error.into()),
        _ => Ok(()),
    }
}
