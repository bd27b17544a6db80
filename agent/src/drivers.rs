//! The drivers of a runtime: one task per run. After a connection error, a run is retried. After a panic, a new
//! driver continues the run, a few times.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use abide_client::{Abide, AgentRevision, Call, Code, Hold, Run};
use futures_util::FutureExt as _;
use serde::Deserialize as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::definition::AgentDefinition;
use crate::drive::{Driver, Shop};
use crate::runtime::RuntimeError;

/// Delay before a run is retried after a connection error or a panic of its driver.
const AGAIN: Duration = Duration::from_secs(1);

/// Maximum number of consecutive panics of a run's driver. A defect that depends on the run's rows would otherwise
/// be retried forever.
const PANICS: u32 = 3;

/// The error code of a run whose drivers panicked.
const BROKEN: &str = "runtime_crash";

/// The error code of a run whose agent is a program that was not configured on this machine.
const UNTRUSTED: &str = "program_not_trusted";

/// The drivers of a runtime.
pub(crate) struct Drivers {
    shop: Arc<Shop>,
    tasks: JoinSet<Ended>,
    driven: HashMap<String, Driven>,
}

/// A run with a driver.
#[derive(Default)]
struct Driven {
    /// Stops the driver.
    stop: CancellationToken,
    /// How often the driver has panicked.
    panics: u32,
}

/// The result of a driver.
struct Ended {
    run: String,
    how: How,
}

enum How {
    /// The run needs no further work.
    Well,
    /// The connection failed.
    Unreached(RuntimeError),
    /// The driver panicked.
    Panicked,
}

impl Drivers {
    pub(crate) fn new(shop: Arc<Shop>) -> Drivers {
        Drivers { shop, tasks: JoinSet::new(), driven: HashMap::new() }
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
        self.tasks.shutdown().await;
    }

    fn after(&mut self, Ended { run, how }: Ended) {
        let panics = self.driven.remove(&run).map_or(0, |driven| driven.panics);
        self.shop.holds.lock().unwrap_or_else(PoisonError::into_inner).remove(&run);
        match how {
            How::Well => {}
            How::Unreached(error) => {
                tracing::warn!(run, %error, "a run could not be driven; it will be retried");
                self.drive(run, panics, AGAIN);
            }
            How::Panicked => {
                tracing::error!(run, times = panics + 1, "the driver of a run panicked");
                self.drive(run, panics + 1, AGAIN);
            }
        }
    }

    fn drive(&mut self, run: String, panics: u32, wait: Duration) {
        let stop = CancellationToken::new();
        self.driven.insert(run.clone(), Driven { stop: stop.clone(), panics });
        let shop = Arc::clone(&self.shop);
        self.tasks.spawn(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            // `AssertUnwindSafe` is sound: a driver shares no state that a panic could leave inconsistent.
            let drives = async {
                match panics < PANICS {
                    true => drive(shop, &run, stop).await,
                    false => give_up(&shop, &run).await,
                }
            };
            let how = match AssertUnwindSafe(drives).catch_unwind().await {
                Ok(Ok(())) => How::Well,
                Ok(Err(error)) => How::Unreached(error),
                Err(_) => How::Panicked,
            };
            Ended { run, how }
        });
    }
}

/// Claims a run. Returns `None` if another driver was faster, or the run is over.
async fn claim(shop: &Shop, id: &str) -> Result<Option<Run>, RuntimeError> {
    let settings = &shop.settings;
    match shop.abide.claim_run(id, &settings.driver, settings.lease).await {
        Ok(run) => Ok(Some(run.into_inner())),
        Err(error) => match error.code() {
            Some(Code::Conflict | Code::BadTransition | Code::NotFound) => Ok(None),
            _ => Err(error.into()),
        },
    }
}

/// Fails a run whose driver panics repeatedly.
async fn give_up(shop: &Shop, id: &str) -> Result<(), RuntimeError> {
    let Some(run) = claim(shop, id).await? else { return Ok(()) };
    let Some(hold) = Hold::of(&run) else { return Ok(()) };
    let why = format!("the run's driver panicked {PANICS} times; this is a bug in the runtime");
    end(&shop.abide, hold.failed(BROKEN, &why)).await
}

/// Claims a run and drives it.
async fn drive(shop: Arc<Shop>, id: &str, stop: CancellationToken) -> Result<(), RuntimeError> {
    let Some(run) = claim(&shop, id).await? else { return Ok(()) };
    let Some(hold) = Hold::of(&run) else { return Ok(()) };
    let held = hold.clone();
    shop.holds.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), held);
    let definition = match definition(&shop.abide, &run).await {
        Ok(definition) => definition,
        Err(RuntimeError::Abide(error)) => return Err(error.into()),
        Err(unreadable) => {
            let failed = hold.failed("malformed_definition", &unreadable.to_string());
            return end(&shop.abide, failed).await;
        }
    };
    if !shop.trusted.allows(&run.agent, &definition) {
        let failed = hold.failed(
            UNTRUSTED,
            "the agent runs a program that is not configured in this runtime's agent folder",
        );
        return end(&shop.abide, failed).await;
    }
    let driver = Driver {
        shop: Arc::clone(&shop),
        abide: shop.acting_for(&run.session_id).await?,
        hold,
        definition: Arc::new(definition),
        run,
        entries: Vec::new(),
        stop,
    };
    driver.drive().await.map(drop)
}

/// Ends a run, unless another driver holds it.
async fn end(abide: &Abide, ended: Call) -> Result<(), RuntimeError> {
    match abide.batch([ended]).await {
        Err(error) if error.code() != Some(Code::LeaseLost) => Err(error.into()),
        _ => Ok(()),
    }
}

/// The agent's definition in the revision of the run.
async fn definition(abide: &Abide, run: &Run) -> Result<AgentDefinition, RuntimeError> {
    let sql = "SELECT * FROM agent_revisions WHERE agent = :agent AND revision = :revision";
    let found: Vec<AgentRevision> =
        abide.sql(sql).param("agent", &run.agent).param("revision", run.revision).fetch().await?;
    let unreadable = |why: String| RuntimeError::Definition {
        agent: run.agent.clone(),
        revision: run.revision,
        why,
    };
    let revision =
        found.into_iter().next().ok_or_else(|| unreadable("it does not exist".to_owned()))?;
    AgentDefinition::deserialize(revision.definition.value())
        .map_err(|why| unreadable(why.to_string()))
}
