//! The drivers of a runtime: a task for each run. However one ends, its run is not forgotten: an error of the line
//! is waited out, and a driver that panics is followed by another, a few times.

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

/// How long is waited before a run is tried again that nobody could be reached for, or whose driver broke down.
const AGAIN: Duration = Duration::from_secs(1);

/// How often in a row the driver of a run may panic. A defect that a run's own rows bring about comes again each
/// time, and the run would be tried for ever.
const PANICS: u32 = 3;

/// How a run is told of whose drivers panicked.
const BROKEN: &str = "runtime_crash";

/// How a run is told of whose agent is a program that somebody has registered from elsewhere.
const UNTRUSTED: &str = "program_not_trusted";

/// The drivers of a runtime.
pub(crate) struct Drivers {
    shop: Arc<Shop>,
    tasks: JoinSet<Ended>,
    driven: HashMap<String, Driven>,
}

/// A run that is driven.
#[derive(Default)]
struct Driven {
    /// What stops it.
    stop: CancellationToken,
    /// How often its driver has panicked.
    panics: u32,
}

/// A driver that has ended.
struct Ended {
    run: String,
    how: How,
}

enum How {
    /// There is nothing more to do for the run.
    Well,
    /// Nobody could be reached.
    Unreached(RuntimeError),
    /// By a defect.
    Panicked,
}

impl Drivers {
    pub(crate) fn new(shop: Arc<Shop>) -> Drivers {
        Drivers { shop, tasks: JoinSet::new(), driven: HashMap::new() }
    }

    /// Drives a run, unless it is driven.
    pub(crate) fn begin(&mut self, run: String) {
        if !self.driven.contains_key(&run) {
            self.drive(run, 0, Duration::ZERO);
        }
    }

    /// Stops driving a run.
    pub(crate) fn stop(&self, run: &str) {
        if let Some(driven) = self.driven.get(run) {
            driven.stop.cancel();
        }
    }

    /// Ends when a driver has, and sees to its run; never where there is none.
    pub(crate) async fn one_ended(&mut self) {
        match self.tasks.join_next().await {
            // The tasks catch their own panics, and are aborted at the end only.
            Some(Ok(ended)) => self.after(ended),
            Some(Err(error)) => tracing::error!(%error, "a driver was lost"),
            None => std::future::pending().await,
        }
    }

    /// Lets go of all runs.
    pub(crate) async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
    }

    fn after(&mut self, Ended { run, how }: Ended) {
        let panics = self.driven.remove(&run).map_or(0, |driven| driven.panics);
        self.shop.holds.lock().unwrap_or_else(PoisonError::into_inner).remove(&run);
        match how {
            How::Well => {}
            How::Unreached(error) => {
                tracing::warn!(run, %error, "a run could not be driven; it is tried again");
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
            // Nothing of a driver outlives it, so there is nothing that a panic could leave half done: what is
            // on record is whole.
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

/// Claims a run; nothing if somebody else was faster, or it is over.
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

/// Ends a run whose driver panics again and again.
async fn give_up(shop: &Shop, id: &str) -> Result<(), RuntimeError> {
    let Some(run) = claim(shop, id).await? else { return Ok(()) };
    let Some(hold) = Hold::of(&run) else { return Ok(()) };
    let why = format!("the driver of the run broke down {PANICS} times, which is a defect of it");
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
        let failed = hold.failed(UNTRUSTED, "the agent is a program that the folder does not name");
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

/// Ends a run; one that is another's by now is that one's to end.
async fn end(abide: &Abide, ended: Call) -> Result<(), RuntimeError> {
    match abide.batch([ended]).await {
        Err(error) if error.code() != Some(Code::LeaseLost) => Err(error.into()),
        _ => Ok(()),
    }
}

/// What the run's agent was when the run began.
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
        found.into_iter().next().ok_or_else(|| unreadable("it is not there".to_owned()))?;
    AgentDefinition::deserialize(revision.definition.value())
        .map_err(|why| unreadable(why.to_string()))
}
