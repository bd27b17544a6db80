//! Who drives what: the runtime takes over every run that nobody drives, and holds it until it ends, waits or is
//! taken from it. It can be killed at any moment; the next one, under the same name, goes on at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use abide_client::{Abide, Error, Hold, Subscription};
use abide_models::{Models, Retry};
use abide_tools::{Environment, Tools};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::catalog::{Catalog, Problem, Reading, Signature};
use crate::definition::AgentDefinition;
use crate::drive::Shop;
use crate::drivers::Drivers;
use crate::trusted::Trusted;
use crate::{beat, consent, delegate, plan};

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
    /// How long a tool that is asked to stop is waited for. Then it is let go, and what became of its call is as
    /// open as if its worker had vanished.
    pub grace: Duration,
}

impl Settings {
    /// Under a name, with leases of ten seconds and five of grace.
    #[must_use]
    pub fn named(driver: impl Into<String>) -> Settings {
        Settings {
            driver: driver.into(),
            lease: Duration::from_secs(10),
            retry: Retry::default(),
            grace: Duration::from_secs(5),
        }
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
    /// What was registered last.
    registered: Mutex<Registered>,
    problems: watch::Sender<Vec<Problem>>,
}

/// How often the folder of definitions is looked at.
const LOOK: Duration = Duration::from_secs(1);

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
        let shop = Arc::new(Shop {
            abide,
            holds: Mutex::default(),
            tools,
            models,
            settings,
            trusted: Trusted::default(),
            environment: Environment::of_process(),
        });
        let (problems, _) = watch::channel(Vec::new());
        Runtime { shop, catalog, registered: Mutex::default(), problems }
    }

    /// With other variables for programs to inherit than those of this process.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Runtime {
        let shop = Arc::get_mut(&mut self.shop).expect("nothing is driven before it runs");
        shop.environment = environment;
        self
    }

    /// The files that are no definition, as they were when the folder was last read.
    #[must_use]
    pub fn problems(&self) -> watch::Receiver<Vec<Problem>> {
        self.problems.subscribe()
    }

    /// Lets the program run that a definition is (`cli`), and those in it. What the folder says need not be named here; all
    /// else that somebody registers does not run on this machine.
    pub fn trust(&self, definition: &AgentDefinition) {
        self.shop.trusted.learn(definition);
    }

    /// Registers the tools and the definitions that there are; the files that are no definition. An agent whose file
    /// was there at the last call and is not any more is retired: its runs go on, and it begins no more. One whose
    /// file cannot be read any more stays as it was.
    ///
    /// # Errors
    /// [`Error`] of a call.
    pub async fn register(&self) -> Result<Vec<Problem>, Error> {
        let abide = &self.shop.abide;
        // Before anything is read: what changes meanwhile is seen as a change.
        let of = Some(self.sources());
        let declared = self.shop.tools.declarations();
        let own = [delegate::declaration(), plan::declaration(), consent::declaration()];
        for declaration in declared.into_iter().chain(own) {
            abide.register_tool(declaration.manifest()).await?;
        }
        let Changes { reading, gone, files } = self.changes();
        reading.definitions.iter().for_each(|it| self.shop.trusted.learn(it));
        Catalog::register(abide, &reading.definitions).await?;
        for name in gone {
            match abide.retire_agent(&name).await {
                Ok(_) => tracing::info!(agent = name, "its file is gone: it begins no more runs"),
                // It was never registered: nothing is to be retired.
                Err(error) if error.code().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        *self.registered() = Registered { of, files };
        self.problems.send_replace(reading.problems.clone());
        Ok(reading.problems)
    }

    /// What the folder says now, held against what it said.
    fn changes(&self) -> Changes {
        let mut reading = self.catalog.reading();
        let registered = self.registered();
        let before = &registered.files;
        let mut files = std::mem::take(&mut reading.files);
        let mut kept = BTreeSet::new();
        for Problem { path, .. } in &reading.problems {
            if let Some(names) = before.get(path) {
                kept.extend(names.iter().cloned());
                files.insert(path.clone(), names.clone());
            }
        }
        // A native agent does not take the place of a file's that cannot be read just now.
        reading.definitions.retain(|it| !it.native || !kept.contains(&it.name));
        let there: BTreeSet<&String> = files.values().flatten().collect();
        let native = |name: &String| reading.definitions.iter().any(|it| it.name == *name);
        let gone = before.values().flatten().filter(|it| !there.contains(it) && !native(it));
        let gone = gone.cloned().collect();
        Changes { reading, gone, files }
    }

    /// What definitions are made of, as it is now.
    fn sources(&self) -> Sources {
        let tools = *self.shop.tools.revision().borrow();
        Sources { tools, files: self.catalog.signature() }
    }

    fn registered(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives every run that nobody drives, until it is stopped. What was registered is registered anew when
    /// files or tools change. Runs under way are then let go: they go on when the next runtime starts.
    ///
    /// # Errors
    /// [`RuntimeError`] where Abide is not there any more.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), RuntimeError> {
        let mut drivers = Drivers::new(Arc::clone(&self.shop));
        let (mut free, mut unwanted) = (self.free().await?, self.unwanted().await?);
        for id in self.left_behind().await? {
            drivers.begin(id);
        }
        let mut look = tokio::time::interval(LOOK);
        let mut beat = tokio::time::interval(self.shop.settings.lease / 3);
        let mut beating: Option<JoinHandle<()>> = None;
        let mut tools = self.shop.tools.revision();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                update = free.next() => {
                    if update.is_none() { return Err(ended(&free).into()) }
                    for (id,) in free.typed_rows::<(String,)>()? { drivers.begin(id) }
                }
                update = unwanted.next() => {
                    if update.is_none() { return Err(ended(&unwanted).into()) }
                    for (id,) in unwanted.typed_rows::<(String,)>()? { drivers.stop(&id) }
                }
                () = drivers.one_ended() => {
                    // What a driver had just let wait may go on already; that was told while it was
                    // still taken for driven.
                    for (id,) in free.typed_rows::<(String,)>()? { drivers.begin(id) }
                }
                // One at a time: where the last takes so long, another would only take longer.
                _ = beat.tick(), if beating.as_ref().is_none_or(JoinHandle::is_finished) => {
                    beating = Some(self.beat());
                }
                Ok(()) = tools.changed() => self.reload().await,
                _ = look.tick() => self.reload().await,
            }
        }
        drivers.shutdown().await;
        Ok(())
    }

    /// The runs that nobody drives, as they come.
    async fn free(&self) -> Result<Subscription, Error> {
        let sql = "SELECT id FROM runs WHERE status = 'running' AND driver IS NULL";
        self.shop.abide.subscribe(sql).await
    }

    /// The runs that this driver holds and nobody wants any more, as they come.
    async fn unwanted(&self) -> Result<Subscription, Error> {
        let sql = "SELECT id FROM runs WHERE driver = :me AND status = 'running' AND \
                   abort_requested_at IS NOT NULL";
        self.shop.abide.subscribe(sql).param("me", &self.shop.settings.driver).await
    }

    /// Runs that this driver held when it ended.
    async fn left_behind(&self) -> Result<Vec<String>, Error> {
        let sql = "SELECT id FROM runs WHERE driver = :me AND status = 'running'";
        let held: Vec<(String,)> =
            self.shop.abide.sql(sql).param("me", &self.shop.settings.driver).fetch().await?;
        Ok(held.into_iter().map(|(id,)| id).collect())
    }

    /// Shows that the runs are still held. What was taken away is not driven on.
    fn beat(&self) -> JoinHandle<()> {
        let shop = Arc::clone(&self.shop);
        let holds: Vec<Hold> = {
            let holds = shop.holds.lock().unwrap_or_else(PoisonError::into_inner);
            holds.values().cloned().collect()
        };
        tokio::spawn(async move {
            if let Err(error) = beat::prolong(&shop.abide, &holds, shop.settings.lease).await {
                tracing::warn!(%error, "leases could not be prolonged");
            }
        })
    }

    /// Registers anew what has changed since it was registered.
    async fn reload(&self) {
        if self.registered().of.as_ref().is_none_or(|of| *of == self.sources()) {
            return;
        }
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

/// What was registered.
#[derive(Default)]
struct Registered {
    /// What it was made of; nothing where nothing was registered.
    of: Option<Sources>,
    /// The agents of each file, when it could last be read.
    files: BTreeMap<PathBuf, BTreeSet<String>>,
}

/// What definitions are made of.
#[derive(PartialEq)]
struct Sources {
    tools: u64,
    files: Signature,
}

/// What the folder says now.
struct Changes {
    reading: Reading,
    /// Agents that it says nothing of any more.
    gone: BTreeSet<String>,
    /// The agents of each file, as far as it could ever be read.
    files: BTreeMap<PathBuf, BTreeSet<String>>,
}

fn ended(subscription: &Subscription) -> Error {
    subscription.error().cloned().unwrap_or(Error::Closed)
}
