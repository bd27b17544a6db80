//! The drivers of a runtime: one task per run. After a connection error, a run is retried. After a panic, a new
//! driver continues the run, a few times.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use abide_client::arguments::{ClaimRun, FinishRun};
use abide_client::{Abide, Code, Run, Scope};
use abide_definitions::agent::AgentDefinition;
use abide_definitions::middleware::Middleware;
use abide_tools::ScopePermit;
use futures_util::FutureExt as _;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::agent_loop::AgentLoops;
use crate::catalog::revision::definition;
use crate::run::active_agent::ActiveAgent;
use crate::run::context::RuntimeContext;
use crate::run::driver::Driver;
use crate::run::error::RuntimeError;
use crate::run::lease::{RunLease, millis};
use crate::run::state::RunState;
use crate::run::step::Failure;
use crate::trace::tracer::TraceQueue;
use crate::watchdog::state::HealthState;

/// Delay before a run is retried after a connection error or a panic of its driver.
const RETRY_DELAY: Duration = Duration::from_secs(1);

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
    /// The run needs no further work.
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
    ) -> Drivers {
        Drivers { shared, loops, tasks: JoinSet::new(), driven: HashMap::new(), traces }
    }

    /// Starts a driver for a run, unless there is one.
    pub(crate) fn begin(&mut self, run: String) {
        if !self.driven.contains_key(&run) {
            self.drive(run, 0, Duration::ZERO);
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
            Some(Ok(ended)) => self.after(ended),
            Some(Err(error)) => tracing::error!(%error, "a driver was lost"),
            None => std::future::pending().await,
        }
    }

    /// Stops all drivers.
    pub(crate) async fn shutdown(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            if let Ok(DriverExit { run, how: ExitReason::Finished }) = ended {
                self.trace(&run);
            }
        }
        self.tasks.shutdown().await;
    }

    fn after(&mut self, DriverExit { run, how }: DriverExit) {
        let panics = self.driven.remove(&run).map_or(0, |driven| driven.panics);
        self.shared.leases.release_run(&run);
        match how {
            ExitReason::Finished => self.trace(&run),
            ExitReason::ConnectionLost(error) => {
                tracing::warn!(run, %error, "a run could not be driven; it will be retried");
                self.drive(run, panics, RETRY_DELAY);
            }
            ExitReason::Panicked => {
                tracing::error!(run, times = panics + 1, "the driver of a run panicked");
                self.drive(run, panics + 1, RETRY_DELAY);
            }
        }
    }

    /// Sends the trace of a run, if it has ended.
    fn trace(&self, run: &str) {
        if let Some(traces) = &self.traces {
            traces.add(run);
        }
    }

    fn drive(&mut self, run: String, panics: u32, wait: Duration) {
        let stop = CancellationToken::new();
        self.driven.insert(run.clone(), ActiveDriver { stop: stop.clone(), panics });
        let shared = Arc::clone(&self.shared);
        let loops = self.loops.clone();
        self.tasks.spawn(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            // `AssertUnwindSafe` is sound: a driver shares no state that a panic could leave inconsistent.
            let drives = async {
                match panics < MAX_PANICS {
                    true => drive(shared, &loops, &run, stop).await,
                    false => give_up(&shared, &run).await,
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
async fn give_up(shared: &RuntimeContext, id: &str) -> Result<(), RuntimeError> {
    let Some(run) = claim(shared, id).await? else { return Ok(()) };
    let Some(run_lease) = RunLease::of(&run) else { return Ok(()) };
    let why = format!("the run's driver panicked {MAX_PANICS} times; this is a bug in the runtime");
    end(&shared.abide, run_lease.failed(BROKEN, why)).await
}

/// Waits until a run may be driven. Until then it has no driver, so that another runtime can claim it. Returns its scope;
/// `None` if there is no such run. A delegated run needs no permit: the run that waits for it has one.
async fn admit(
    shared: &RuntimeContext,
    id: &str,
) -> Result<Option<(Scope, Option<ScopePermit>)>, RuntimeError> {
    let Some((scope, is_delegated)) = shared.scope_of_run(id).await? else { return Ok(None) };
    let permit = match is_delegated {
        true => None,
        false => Some(shared.run_permit(&scope).await),
    };
    Ok(Some((scope, permit)))
}

/// Claims a run and drives it.
async fn drive(
    shared: Arc<RuntimeContext>,
    loops: &AgentLoops,
    id: &str,
    stop: CancellationToken,
) -> Result<(), RuntimeError> {
    let Some((scope, permit)) = admit(&shared, id).await? else { return Ok(()) };
    let Some(run) = claim(&shared, id).await? else { return Ok(()) };
    let Some(run_lease) = RunLease::of(&run) else { return Ok(()) };
    shared.leases.hold_run(run_lease.clone());
    let definition = match definition(&shared.abide, &run.agent, run.revision).await {
        Ok(definition) => definition,
        Err(RuntimeError::Abide(error)) => return Err(error.into()),
        Err(unreadable) => {
            let failed = run_lease.failed("malformed_definition", unreadable.to_string());
            return end(&shared.abide, failed).await;
        }
    };
    let deployment = shared.deployment.get();
    if let Some(Failure { code, message }) =
        refusal(&shared, loops, &run.agent, &definition, &deployment)
    {
        return end(&shared.abide, run_lease.failed(code, message)).await;
    }
    let definition = Arc::new(definition);
    let loaded = ActiveAgent::load(&shared.abide, &shared.tools, Arc::clone(&definition)).await?;
    let agent = match loaded {
        Ok(agent) => agent,
        Err(Failure { code, message }) => {
            return end(&shared.abide, run_lease.failed(code, message)).await;
        }
    };
    let driver = Driver {
        shared: Arc::clone(&shared),
        abide: shared.abide.acting_for(&scope).await?,
        scope,
        permit,
        run_lease,
        stop,
        own: definition,
        deployment,
        agent,
        state: RunState::claimed(run),
        health: HealthState::default(),
        unlimited: AtomicBool::new(false),
        has_asked: false,
        imported_seq: OnceCell::new(),
    };
    driver.drive(loops).await.map(drop)
}

/// The failure of a run whose definition this runtime does not accept; `None` if it accepts it. The definition may have been registered by a runtime
/// with another configuration.
fn refusal(
    shared: &RuntimeContext,
    loops: &AgentLoops,
    agent: &str,
    definition: &AgentDefinition,
    deployment: &[Middleware],
) -> Option<Failure> {
    if !shared.trusted_programs.allows(agent, definition) {
        let (code, what) = match definition.a2a {
            Some(_) => (UNTRUSTED_AGENT, "a remote agent"),
            None => (UNTRUSTED, "a program"),
        };
        let why =
            format!("the agent uses {what} that is not configured in this runtime's agent folder");
        return Some(Failure::new(code, why));
    }
    let of_all = definition.all_middleware(deployment);
    let checked = definition
        .check_sandbox(*shared.sandbox.get())
        .and_then(|()| shared.middleware.check_entries(of_all))
        .and_then(|()| shared.middleware.check(definition))
        .and_then(|()| loops.check(definition));
    checked.err().map(|refused| Failure::new(refused.code(), refused.to_string()))
}

/// Ends a run, unless another driver holds it.
async fn end(abide: &Abide, ended: FinishRun) -> Result<(), RuntimeError> {
    match abide.call(ended).await {
        Err(error) if error.code() != Some(Code::LeaseLost) => Err(error.into()),
        _ => Ok(()),
    }
}
