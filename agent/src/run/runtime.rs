//! The runtime claims every run without a driver, and holds its lease until the run ends, waits, or is taken over.
//! After a crash, the next runtime with the same name continues its runs immediately.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_client::arguments::RetireAgent;
use abide_client::{Abide, Error, Subscription};
use abide_definitions::agent::AgentDefinition;
use abide_definitions::pause_rule::{PauseCallback, PausePoint};
use abide_models::Models;
use abide_tools::{Environment, McpServer, Sandbox, ScopeLimiter, ToolOutcome, Tools};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::catalog::agents::{
    CONFIG, Catalog, CatalogSnapshot, Problem, Signature, name_in, names_of,
};
use crate::catalog::project::ProjectSource;
use crate::catalog::project_reload::{FolderChange, FolderChanges, LiveProject, ProjectReload};
use crate::catalog::shared_setting::SharedSetting;
use crate::catalog::trusted_programs::TrustedPrograms;
use crate::delegation::composition::Composition;
use crate::remote_agent::cancel::RemoteCancels;
use crate::run::context::RuntimeContext;
use crate::run::drivers::Drivers;
use crate::run::error::RuntimeError;
use crate::run::heartbeat::LeaseKeeper;
use crate::run::settings::Settings;
use crate::tools::left_tasks::OrphanedTasks;
use crate::tools::registry;
use crate::trace::metrics::AgentMetrics;
use crate::trace::tracer::{TraceQueue, Tracer};
use crate::{program, remote_agent, tools};

/// Drives runs.
pub struct Runtime {
    shared: Arc<RuntimeContext>,
    catalog: Arc<Catalog>,
    /// The event of the last change of a stored prompt.
    prompts: AtomicI64,
    /// The last registration.
    registered: Mutex<RegisteredDefinitions>,
    problems: watch::Sender<Vec<Problem>>,
    /// The problem of the file of each agent that it does not register.
    unregistered: watch::Sender<BTreeMap<String, Problem>>,
    /// The configuration, if it is read again when it changes.
    project: tokio::sync::Mutex<Option<ProjectReload>>,
    /// The problem of the configuration at its last reading.
    config_problem: Mutex<Option<Problem>>,
    /// Receives what has changed in the folder.
    on_change: Option<Box<OnChange>>,
    /// Sends traces, once it is started.
    tracer: Mutex<Option<Tracer>>,
}

/// A function that receives what has changed in a folder.
type OnChange = dyn Fn(&FolderChanges) + Send + Sync;

/// How long a runtime that stops waits for traces to be sent.
const TRACE_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

impl Runtime {
    /// A runtime for a database, with these models and the tools of the catalog's definitions.
    #[must_use]
    pub fn new(
        abide: Abide,
        models: Models,
        tools: Tools,
        catalog: Catalog,
        settings: Settings,
    ) -> Runtime {
        let catalog = Arc::new(catalog.prompts_of(&abide));
        let run_limiter = ScopeLimiter::new(settings.runs);
        let shared = Arc::new(RuntimeContext {
            abide,
            leases: Arc::default(),
            tools,
            models: SharedSetting::new(models),
            settings,
            trusted_programs: TrustedPrograms::default(),
            environment: Environment::of_process(),
            guardrails: catalog.guardrails().clone(),
            middleware: catalog.registered_middleware().clone(),
            parsers: catalog.parsers().clone(),
            pause_callback: PauseCallback::default(),
            sandbox: catalog.shared_sandbox(),
            deployment: catalog.shared_deployment(),
            metrics: AgentMetrics::default(),
            run_limiter,
            recorded_outcomes: BTreeMap::new(),
        });
        let (problems, _) = watch::channel(Vec::new());
        let (unregistered, _) = watch::channel(BTreeMap::new());
        let registered = Mutex::default();
        let tracer = Mutex::default();
        let prompts = AtomicI64::new(0);
        let (project, config_problem) = (tokio::sync::Mutex::default(), Mutex::default());
        let on_change = None;
        Runtime {
            shared,
            catalog,
            prompts,
            registered,
            problems,
            unregistered,
            project,
            config_problem,
            on_change,
            tracer,
        }
    }

    /// Reads `abide.yaml` again when it changes: models, tools, MCP servers, the sandbox, the deny list and the middleware of all
    /// agents. It takes over
    /// the MCP servers and the sandbox of the project, whose tools, models and catalog the runtime was created with. A file
    /// that cannot work changes nothing.
    #[must_use]
    pub fn reloads(
        self,
        source: ProjectSource,
        servers: Vec<McpServer>,
        sandbox: Option<Sandbox>,
    ) -> Runtime {
        let project = ProjectReload::new(source, servers, sandbox);
        Runtime { project: tokio::sync::Mutex::new(Some(project)), ..self }
    }

    /// Calls this function with what the runtime has read again because its folder has changed.
    #[must_use]
    pub fn on_change(self, report: impl Fn(&FolderChanges) + Send + Sync + 'static) -> Runtime {
        Runtime { on_change: Some(Box::new(report)), ..self }
    }

    /// Counters of the agents with the middleware `observability`.
    #[must_use]
    pub fn metrics(&self) -> AgentMetrics {
        self.shared.metrics.clone()
    }

    /// Sets the environment variables that programs inherit; the default is that of this process.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Runtime {
        let shared =
            Arc::get_mut(&mut self.shared).expect("the runtime is not shared before it runs");
        shared.environment = environment;
        self
    }

    /// Sends the traces of runs that end while the runtime runs.
    #[must_use]
    pub fn traces(self, tracer: Tracer) -> Runtime {
        Runtime { tracer: Mutex::new(Some(tracer)), ..self }
    }

    /// Asks this function at each stage of each run whether the run pauses there; the text is the reason. It may be
    /// asked several times at one stage. If it panics, the run pauses, too.
    #[must_use]
    pub fn pause_when(
        mut self,
        callback: impl Fn(&PausePoint<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> Runtime {
        let shared =
            Arc::get_mut(&mut self.shared).expect("the runtime is not shared before it runs");
        shared.pause_callback = PauseCallback::of(callback);
        self
    }

    /// Repeats a recording: calls of the memory's tools return what they returned then.
    #[must_use]
    pub(crate) fn repeats(mut self, outcomes: BTreeMap<String, ToolOutcome>) -> Runtime {
        let shared =
            Arc::get_mut(&mut self.shared).expect("the runtime is not shared before it runs");
        shared.recorded_outcomes = outcomes;
        self
    }

    /// The definitions of the folder.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog)
    }

    /// The invalid files of the folder at its last reading.
    #[must_use]
    pub fn problems(&self) -> watch::Receiver<Vec<Problem>> {
        self.problems.subscribe()
    }

    /// The agents whose files were invalid at the last reading of the folder, with the problem of the file. A former
    /// registration of such an agent stays in use.
    #[must_use]
    pub fn unregistered(&self) -> watch::Receiver<BTreeMap<String, Problem>> {
        self.unregistered.subscribe()
    }

    /// Permits the programs (`cli`) and remote agents (`a2a`) of a definition and its inline subagents. Those in the folder's
    /// definitions are permitted without this call. All others are not used by this runtime.
    pub fn trust(&self, definition: &AgentDefinition) {
        self.shared.trusted_programs.learn(definition);
    }

    /// Registers the tools and the definitions. Returns the invalid files. If the file of an agent was removed
    /// since the last call, the agent is retired: its active runs continue, and no new runs start. If a file can no
    /// longer be read, its agents stay as they are.
    ///
    /// # Errors
    /// [`Error`] of a call.
    pub async fn register(&self) -> Result<Vec<Problem>, Error> {
        self.register_again().await.map(|(problems, _)| problems)
    }

    /// Like [`Runtime::register`]; also returns what has changed since the last call.
    async fn register_again(&self) -> Result<(Vec<Problem>, Option<FolderChange>), Error> {
        let abide = &self.shared.abide;
        // Taken before anything is read, so that a concurrent change is detected at the next check.
        let of = Some(self.sources());
        let declared = self.shared.tools.declarations();
        let questions = [
            program::approvals::declaration(),
            remote_agent::input::declaration(),
            tools::exchange::declaration(),
        ];
        for declaration in declared.into_iter().chain(questions) {
            abide.call(declaration.manifest()).await?;
        }
        for tool in registry::all() {
            if tool.is_reserved() || self.shared.tools.get(tool.name()).is_none() {
                abide.call(tool.registration()).await?;
            }
        }
        let catalog = Arc::clone(&self.catalog);
        // It reads files, and waits for stores of prompts.
        let reading = tokio::task::spawn_blocking(move || catalog.reading());
        let reading = reading.await.map_err(|_| Error::Closed)?;
        let unregistered = self.unregistered_by(&reading);
        let CatalogChanges { reading, gone, files, definitions } = self.changes(reading);
        reading.definitions.iter().for_each(|it| self.shared.trusted_programs.learn(it));
        Catalog::register(abide, &reading.definitions).await?;
        // The tools that stand for agents: a run that is imported can have called them. A name that is taken fails the
        // runs of the agent.
        for definition in reading.definitions.iter().flat_map(AgentDefinition::with_inline) {
            drop(Composition::load(abide, &definition).await?);
        }
        for name in gone {
            match abide.call(RetireAgent::new(&name)).await {
                Ok(_) => tracing::info!(agent = name, "retired an agent: its file was removed"),
                // The agent was never registered.
                Err(error) if error.code().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        let mut registered = self.registered();
        let change = FolderChange::between("agents", &registered.definitions, &definitions);
        // The first registration is not a change.
        let change = change.filter(|_| registered.of.is_some());
        *registered = RegisteredDefinitions { of, files, definitions };
        drop(registered);
        let mut problems = reading.problems;
        problems.extend(self.config_problem().clone());
        self.problems.send_replace(problems.clone());
        self.unregistered.send_replace(unregistered);
        Ok((problems, change))
    }

    /// The problem of the file of each agent that cannot be registered again.
    fn unregistered_by(&self, reading: &CatalogSnapshot) -> BTreeMap<String, Problem> {
        let registered = self.registered();
        let config = self.catalog.folder().join(CONFIG);
        let mut unregistered = BTreeMap::new();
        for problem in reading.problems.iter().filter(|problem| problem.path != config) {
            let before = registered.files.get(&problem.path).into_iter().flatten().cloned();
            let parsed = reading.refused.iter().filter(|(path, _)| *path == problem.path);
            let parsed = parsed.flat_map(|(_, definition)| names_of(definition));
            for name in before.chain(parsed).chain(name_in(&problem.path)) {
                unregistered.insert(name, problem.clone());
            }
        }
        unregistered.retain(|name, _| !reading.files.values().any(|names| names.contains(name)));
        unregistered
    }

    /// The folder's content, compared with the last registration.
    fn changes(&self, mut reading: CatalogSnapshot) -> CatalogChanges {
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
        // A native agent must not replace an agent whose file is temporarily unreadable.
        reading.definitions.retain(|it| !it.native || !kept.contains(&it.name));
        let there: BTreeSet<&String> = files.values().flatten().collect();
        let native = |name: &String| reading.definitions.iter().any(|it| it.name == *name);
        let gone = before.values().flatten().filter(|it| !there.contains(it) && !native(it));
        let gone: BTreeSet<String> = gone.cloned().collect();
        let mut definitions = registered.definitions.clone();
        definitions.retain(|name, _| kept.contains(name));
        let read = reading.definitions.iter().map(|it| (it.name.clone(), it.clone()));
        definitions.extend(read);
        CatalogChanges { reading, gone, files, definitions }
    }

    /// The current versions of everything that definitions depend on.
    fn sources(&self) -> DefinitionSources {
        let tools = *self.shared.tools.revision().borrow();
        let prompts = self.prompts.load(Ordering::Relaxed);
        DefinitionSources { tools, prompts, files: self.catalog.signature() }
    }

    fn config_problem(&self) -> MutexGuard<'_, Option<Problem>> {
        self.config_problem.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn registered(&self) -> MutexGuard<'_, RegisteredDefinitions> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives every run without a driver, until stopped. Definitions are registered again when files or tools
    /// change. On stop, the drivers release their runs; the next runtime continues them.
    ///
    /// # Errors
    /// [`RuntimeError`] if the connection is lost.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), RuntimeError> {
        let (queue, tracing) = self.start_tracer().unzip();
        let mut drivers = Drivers::new(Arc::clone(&self.shared), queue);
        let RuntimeContext { abide, leases, settings, .. } = &*self.shared;
        let keeper = LeaseKeeper::start(abide, leases, settings.lease);
        let (mut unclaimed, mut abort_requested) =
            (self.unclaimed_runs().await?, self.abort_requested_runs().await?);
        let mut prompts = self.changed_prompts().await?;
        for id in self.own_runs().await? {
            drivers.begin(id);
        }
        let mut look =
            tokio::time::interval(self.shared.settings.look.max(Duration::from_millis(1)));
        let mut tools = self.shared.tools.revision();
        let cancels = Arc::new(RemoteCancels::default());
        let left_tasks = Arc::new(OrphanedTasks::default());
        let mut sweeping: Option<JoinHandle<()>> = None;
        let mut cancelling: Option<JoinHandle<()>> = None;
        // At most one reload at a time. It can wait for other servers.
        let mut reloads = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                update = unclaimed.next() => {
                    if update.is_none() { return Err(ended(&unclaimed).into()) }
                    for (id,) in unclaimed.typed_rows::<(String,)>()? { drivers.begin(id) }
                }
                update = abort_requested.next() => {
                    if update.is_none() { return Err(ended(&abort_requested).into()) }
                    for (id,) in abort_requested.typed_rows::<(String,)>()? { drivers.stop(&id) }
                }
                () = drivers.one_ended() => {
                    // A run that its driver has just suspended may already be running again. That update was
                    // ignored because the driver was still active.
                    for (id,) in unclaimed.typed_rows::<(String,)>()? { drivers.begin(id) }
                    self.cancel_remote_tasks(&cancels, &mut cancelling);
                    self.cancel_left_tasks(&left_tasks, &mut sweeping);
                }
                update = prompts.next() => {
                    if update.is_none() { return Err(ended(&prompts).into()) }
                    for (seq,) in prompts.typed_rows::<(Option<i64>,)>()? {
                        self.prompts.store(seq.unwrap_or(0), Ordering::Relaxed);
                    }
                }
                Ok(()) = tools.changed(), if reloads.is_empty() => reloads.push(self.reload()),
                _ = look.tick() => {
                    if reloads.is_empty() {
                        reloads.push(self.reload());
                    }
                    self.cancel_remote_tasks(&cancels, &mut cancelling);
                    self.cancel_left_tasks(&left_tasks, &mut sweeping);
                }
                Some(()) = reloads.next(), if !reloads.is_empty() => {}
            }
        }
        drivers.shutdown().await;
        drop(drivers);
        keeper.stop().await;
        if let Some(tracing) = tracing {
            // Unsent traces are sent after the next start.
            let _ = tokio::time::timeout(TRACE_FLUSH_TIMEOUT, tracing).await;
        }
        Ok(())
    }

    fn start_tracer(&self) -> Option<(TraceQueue, JoinHandle<()>)> {
        let tracer = self.tracer.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(tracer.start(self.shared.abide.clone(), self.shared.settings.now()))
    }

    /// A subscription to the runs without a driver.
    async fn unclaimed_runs(&self) -> Result<Subscription, Error> {
        let sql = "SELECT id FROM runs WHERE status = 'running' AND driver IS NULL";
        self.shared.abide.subscribe(sql).await
    }

    /// A subscription to this driver's runs that are to be aborted.
    async fn abort_requested_runs(&self) -> Result<Subscription, Error> {
        let sql = "SELECT id FROM runs WHERE driver = :me AND status = 'running' AND \
                   abort_requested_at IS NOT NULL";
        self.shared.abide.subscribe(sql).param("me", &self.shared.settings.driver).await
    }

    /// A subscription to the event of the last change of a stored prompt.
    async fn changed_prompts(&self) -> Result<Subscription, Error> {
        let sql = "SELECT MAX(seq) FROM prompts WHERE scope = '{}'";
        self.shared.abide.subscribe(sql).await
    }

    /// The runs that this driver held when it ended.
    async fn own_runs(&self) -> Result<Vec<String>, Error> {
        let sql = "SELECT id FROM runs WHERE driver = :me AND status = 'running'";
        let held: Vec<(String,)> =
            self.shared.abide.sql(sql).param("me", &self.shared.settings.driver).fetch().await?;
        Ok(held.into_iter().map(|(id,)| id).collect())
    }

    /// Cancels the tasks of remote agents whose runs have ended, unless that is in progress.
    fn cancel_remote_tasks(
        &self,
        cancels: &Arc<RemoteCancels>,
        sweeping: &mut Option<JoinHandle<()>>,
    ) {
        let (shared, cancels) = (Arc::clone(&self.shared), Arc::clone(cancels));
        sweep(sweeping, "tasks of remote agents", async move { cancels.sweep(&shared).await });
    }

    /// Cancels the tasks that calls have left on the servers of tools, unless that is in progress.
    fn cancel_left_tasks(
        &self,
        left_tasks: &Arc<OrphanedTasks>,
        sweeping: &mut Option<JoinHandle<()>>,
    ) {
        let (shared, left_tasks) = (Arc::clone(&self.shared), Arc::clone(left_tasks));
        sweep(sweeping, "tasks of tools", async move { left_tasks.sweep(&shared).await });
    }

    /// Reads the configuration and the definitions again if anything has changed.
    async fn reload(&self) {
        let report = self.reload_config().await;
        let is_current = |of: &DefinitionSources| *of == self.sources();
        if report.is_none() && self.registered().of.as_ref().is_none_or(is_current) {
            return;
        }
        let mut report = report.unwrap_or_default();
        match self.register_again().await {
            Ok((_, change)) => {
                report.changes.extend(change);
                let config = self.config_problem().clone();
                for problem in config.into_iter().chain(self.check().await) {
                    if !report.problems.contains(&problem) {
                        report.problems.push(problem);
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "definitions could not be registered"),
        }
        if report.is_empty() {
            return;
        }
        if let Some(tell) = &self.on_change {
            return tell(&report);
        }
        for problem in &report.problems {
            tracing::warn!("{problem}");
        }
        for note in &report.notes {
            tracing::warn!("{note}");
        }
    }

    /// Reads the configuration again; `None` if it has not changed.
    async fn reload_config(&self) -> Option<FolderChanges> {
        let mut project = self.project.lock().await;
        let project = project.as_mut()?;
        let shared = &self.shared;
        let live = LiveProject {
            tools: shared.tools.clone(),
            models: shared.models.clone(),
            sandbox: shared.sandbox.clone(),
            catalog: Arc::clone(&self.catalog),
        };
        let report = project.refresh(&live).await?;
        *self.config_problem() = report.problems.first().cloned();
        Some(report)
    }

    /// The problems that `abide agent check` reports, with the configuration that is in effect.
    async fn check(&self) -> Vec<Problem> {
        let project = self.project.lock().await;
        let mut problems = match &*project {
            Some(project) => project.missing_programs(&self.catalog),
            None => Vec::new(),
        };
        drop(project);
        let (catalog, models) = (Arc::clone(&self.catalog), self.shared.models.get());
        let environment = self.shared.environment.clone();
        // It reads files, and waits for stores of prompts.
        let check = tokio::task::spawn_blocking(move || catalog.check(&models, &environment));
        problems.extend(check.await.unwrap_or_default());
        problems
    }
}

/// The last registration.
#[derive(Default)]
struct RegisteredDefinitions {
    /// The versions it was based on; `None` before the first registration.
    of: Option<DefinitionSources>,
    /// The agents of each file, when the file was last readable.
    files: BTreeMap<PathBuf, BTreeSet<String>>,
    /// The definitions by name.
    definitions: BTreeMap<String, AgentDefinition>,
}

/// The versions of everything that definitions depend on.
#[derive(PartialEq)]
struct DefinitionSources {
    tools: u64,
    prompts: i64,
    files: Signature,
}

/// The folder's content, compared with the last registration.
struct CatalogChanges {
    reading: CatalogSnapshot,
    /// Agents that no file defines any more.
    gone: BTreeSet<String>,
    /// The agents of each file, when the file was last readable.
    files: BTreeMap<PathBuf, BTreeSet<String>>,
    /// The definitions that are registered now, by name.
    definitions: BTreeMap<String, AgentDefinition>,
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

fn ended(subscription: &Subscription) -> Error {
    subscription.error().cloned().unwrap_or(Error::Closed)
}
