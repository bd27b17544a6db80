//! Who drives what: the runtime takes over every run that nobody drives, and holds it until it ends, waits or is
//! taken from it. It can be killed at any moment; the next one, under the same name, goes on at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use abide_client::{Abide, AgentRevision, Code, Error, Hold, Run, Subscription};
use abide_models::{Models, Retry};
use abide_tools::Tools;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::catalog::{Catalog, Problem};
use crate::definition::AgentDefinition;
use crate::delegate;
use crate::drive::{Driver, Shop};

/// How a runtime works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name under which it holds runs. One that starts under the same name takes over at once what the one
    /// before held; so no two run at a time under one name.
    pub driver: String,
    /// How long runs and calls are held between two signs of life. So long does it take until another driver goes
    /// on, and until a call whose tool may not run twice counts as unknown.
    pub lease: Duration,
    /// How often a model is asked again.
    pub retry: Retry,
}

impl Settings {
    /// Under a name, with leases of ten seconds.
    #[must_use]
    pub fn named(driver: impl Into<String>) -> Settings {
        Settings { driver: driver.into(), lease: Duration::from_secs(10), retry: Retry::default() }
    }

    /// Microseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }
}

/// Why a runtime stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// Abide said no, or is not there.
    #[error(transparent)]
    Abide(#[from] Error),
    /// A revision is registered that no definition can be read from.
    #[error("revision {revision} of agent {agent} cannot be read: {why}")]
    Definition {
        /// The agent.
        agent: String,
        /// Which revision.
        revision: i64,
        /// What is wrong with it.
        why: String,
    },
}

/// Drives runs.
pub struct Runtime {
    shop: Arc<Shop>,
    catalog: Catalog,
    /// Of the runs that it drives: what stops them.
    driven: Arc<Mutex<HashMap<String, CancellationToken>>>,
}

/// How often the folder of definitions is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long is waited before a run is tried again that nobody could be reached for.
const AGAIN: Duration = Duration::from_secs(1);

impl Runtime {
    /// One that drives runs of an Abide, with these models and the tools of the catalog's definitions.
    #[must_use]
    pub fn new(
        abide: Abide,
        models: Models,
        tools: Tools,
        catalog: Catalog,
        settings: Settings,
    ) -> Runtime {
        let shop = Arc::new(Shop { abide, tools, models, settings });
        Runtime { shop, catalog, driven: Arc::default() }
    }

    /// Registers the tools and the definitions that there are; the files that are no definition.
    ///
    /// # Errors
    /// [`Error`] of a call.
    pub async fn register(&self) -> Result<Vec<Problem>, Error> {
        self.register_tools().await?;
        let (definitions, problems) = self.catalog.read();
        Catalog::register(&self.shop.abide, &definitions).await?;
        Ok(problems)
    }

    async fn register_tools(&self) -> Result<(), Error> {
        let declared = self.shop.tools.declarations();
        for declaration in declared.into_iter().chain([delegate::declaration()]) {
            self.shop.abide.register_tool(declaration.manifest()).await?;
        }
        Ok(())
    }

    /// Drives every run that nobody drives, and reads definitions anew when their files change, until
    /// it is stopped. Runs under way are then let go: they go on when the next runtime starts.
    ///
    /// # Errors
    /// [`RuntimeError`] where Abide is not there any more.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), RuntimeError> {
        let mut drivers: JoinSet<(String, Result<(), RuntimeError>)> = JoinSet::new();
        let abide = &self.shop.abide;
        let mut free = abide
            .subscribe("SELECT id FROM runs WHERE status = 'running' AND driver IS NULL")
            .await?;
        let mut unwanted = abide
            .subscribe(
                "SELECT id FROM runs WHERE driver = :me AND status = 'running' AND \
                 abort_requested_at IS NOT NULL",
            )
            .param("me", &self.shop.settings.driver)
            .await?;
        for id in self.left_behind().await? {
            self.begin(&mut drivers, id);
        }
        let mut look = tokio::time::interval(LOOK);
        let mut beat = tokio::time::interval(self.shop.settings.lease / 3);
        let mut seen = self.catalog.signature();
        let mut tools = self.shop.tools.revision();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                update = free.next() => {
                    if update.is_none() { return Err(ended(&free).into()) }
                    for (id,) in free.typed_rows::<(String,)>()? { self.begin(&mut drivers, id) }
                }
                update = unwanted.next() => {
                    if update.is_none() { return Err(ended(&unwanted).into()) }
                    for (id,) in unwanted.typed_rows::<(String,)>()? { self.stop_driving(&id) }
                }
                Some(joined) = drivers.join_next() => {
                    if let Ok((id, result)) = joined { self.after(&mut drivers, id, result) }
                    // What a driver had just let wait may go on already; that was told while it was
                    // still taken for driven.
                    for (id,) in free.typed_rows::<(String,)>()? { self.begin(&mut drivers, id) }
                }
                _ = beat.tick() => self.beat(),
                Ok(()) = tools.changed() => self.register_tools().await?,
                _ = look.tick() => {
                    let now = self.catalog.signature();
                    if now != seen {
                        seen = now;
                        self.reload().await;
                    }
                }
            }
        }
        drivers.shutdown().await;
        Ok(())
    }

    /// Runs that this driver held when it ended.
    async fn left_behind(&self) -> Result<Vec<String>, Error> {
        let sql = "SELECT id FROM runs WHERE driver = :me AND status = 'running'";
        let held: Vec<(String,)> =
            self.shop.abide.sql(sql).param("me", &self.shop.settings.driver).fetch().await?;
        Ok(held.into_iter().map(|(id,)| id).collect())
    }

    fn begin(&self, drivers: &mut JoinSet<(String, Result<(), RuntimeError>)>, id: String) {
        let stop = CancellationToken::new();
        let mut driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        if driven.contains_key(&id) {
            return;
        }
        driven.insert(id.clone(), stop.clone());
        let shop = Arc::clone(&self.shop);
        drivers.spawn(async move {
            let result = drive(shop, &id, stop).await;
            (id, result)
        });
    }

    fn after(
        &self,
        drivers: &mut JoinSet<(String, Result<(), RuntimeError>)>,
        id: String,
        result: Result<(), RuntimeError>,
    ) {
        let mut driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = result else {
            driven.remove(&id);
            return;
        };
        tracing::warn!(run = id, %error, "a run could not be driven; it is tried again");
        let stop = CancellationToken::new();
        driven.insert(id.clone(), stop.clone());
        let shop = Arc::clone(&self.shop);
        drivers.spawn(async move {
            tokio::time::sleep(AGAIN).await;
            let result = drive(shop, &id, stop).await;
            (id, result)
        });
    }

    fn stop_driving(&self, id: &str) {
        let driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stop) = driven.get(id) {
            stop.cancel();
        }
    }

    /// Shows that the runs are still held. What was taken away is not driven on.
    fn beat(&self) {
        let held: Vec<String> =
            self.driven.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
        if held.is_empty() {
            return;
        }
        let (shop, driven) = (Arc::clone(&self.shop), Arc::clone(&self.driven));
        tokio::spawn(async move {
            let sql = "SELECT * FROM runs WHERE driver = :me AND status = 'running'";
            let me = &shop.settings.driver;
            let Ok(runs) = shop.abide.sql(sql).param("me", me).fetch::<Run>().await else { return };
            for run in runs {
                let Some(hold) = Hold::of(&run) else { continue };
                let ours =
                    driven.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&run.id);
                if ours {
                    // Where it is refused, the driver's own next step is too.
                    let _ = shop.abide.heartbeat_run(&hold, shop.settings.lease).await;
                }
            }
        });
    }

    async fn reload(&self) {
        match self.register().await {
            Ok(problems) => {
                for Problem { path, error } in problems {
                    tracing::warn!(path = %path.display(), %error, "no definition of an agent");
                }
            }
            Err(error) => tracing::warn!(%error, "definitions could not be registered"),
        }
    }
}

fn ended(subscription: &Subscription) -> Error {
    subscription.error().cloned().unwrap_or(Error::Closed)
}

/// Claims a run and drives it.
async fn drive(shop: Arc<Shop>, id: &str, stop: CancellationToken) -> Result<(), RuntimeError> {
    let settings = &shop.settings;
    let run = match shop.abide.claim_run(id, &settings.driver, settings.lease).await {
        Ok(run) => run.into_inner(),
        Err(error) => {
            return match error.code() {
                // Somebody else was faster, or it is over.
                Some(Code::Conflict | Code::BadTransition | Code::NotFound) => Ok(()),
                _ => Err(error.into()),
            };
        }
    };
    let Some(hold) = Hold::of(&run) else { return Ok(()) };
    let definition = match definition(&shop.abide, &run).await {
        Ok(definition) => definition,
        Err(RuntimeError::Abide(error)) => return Err(error.into()),
        Err(unreadable) => {
            let failed = hold.failed("malformed_definition", &unreadable.to_string());
            shop.abide.batch([failed]).await?;
            return Ok(());
        }
    };
    let driver = Driver {
        shop: Arc::clone(&shop),
        hold,
        definition: Arc::new(definition),
        run,
        entries: Vec::new(),
        stop,
    };
    driver.drive().await.map(drop)
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
