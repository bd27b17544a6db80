//! The runtime claims every run without a driver, and holds its lease until the run ends, waits, or is taken over.
//! After a crash, the next runtime with the same name continues its runs immediately.
//!
//! It has three parts: the [`Registrar`] registers tools and definitions, the [`Reloader`] reads the folder again when it changes,
//! and the [`Dispatcher`] gives runs to drivers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use abide_client::{Abide, Error};
use abide_definitions::agent::AgentDefinition;
use abide_definitions::pause_rule::{PauseCallback, PausePoint};
use abide_models::Models;
use abide_tools::{Environment, McpServer, Sandbox, ScopeLimiter, ToolOutcome, Tools};
use tokio::sync::watch;

use crate::catalog::agents::{Catalog, Problem};
use crate::catalog::project::ProjectSource;
use crate::catalog::project_reload::{FolderChanges, ProjectReload};
use crate::catalog::shared_setting::SharedSetting;
use crate::catalog::trusted_programs::TrustedPrograms;
use crate::run::context::RuntimeContext;
use crate::run::dispatcher::Dispatcher;
use crate::run::error::RuntimeError;
use crate::run::heartbeat::LeaseKeeper;
use crate::run::registrar::Registrar;
use crate::run::reloader::{OnChange, Reloader};
use crate::run::settings::Settings;
use crate::run::shutdown::Shutdown;
use crate::trace::metrics::AgentMetrics;
use crate::trace::tracer::Tracer;

/// Drives runs.
pub struct Runtime {
    context: Arc<RuntimeContext>,
    registrar: Arc<Registrar>,
    reloader: Reloader,
    tracer: Option<Arc<Tracer>>,
}

/// Builds a [`Runtime`].
#[must_use]
pub struct RuntimeBuilder {
    abide: Abide,
    models: Models,
    tools: Tools,
    catalog: Catalog,
    settings: Settings,
    environment: Environment,
    pause_callback: PauseCallback,
    recorded_outcomes: BTreeMap<String, ToolOutcome>,
    project: Option<ProjectReload>,
    on_change: Option<OnChange>,
    tracer: Option<Tracer>,
}

/// How long a runtime that stops waits for traces to be sent.
const TRACE_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

impl RuntimeBuilder {
    /// Reads `abide.yaml` again when it changes: models, tools, MCP servers, the sandbox, the deny list and the middleware of all
    /// agents. It takes over the MCP servers and the sandbox of the project, whose tools, models and catalog the runtime is built
    /// with. A file that cannot work changes nothing.
    pub fn reloads(
        mut self,
        source: ProjectSource,
        servers: Vec<McpServer>,
        sandbox: Option<Sandbox>,
    ) -> RuntimeBuilder {
        self.project = Some(ProjectReload::new(source, servers, sandbox));
        self
    }

    /// Calls this function with what the runtime has read again because its folder has changed. Without it, the changes are logged.
    pub fn on_change(
        mut self,
        report: impl Fn(&FolderChanges) + Send + Sync + 'static,
    ) -> RuntimeBuilder {
        self.on_change = Some(Box::new(report));
        self
    }

    /// Sets the environment variables that programs inherit; the default is that of this process.
    pub fn environment(mut self, environment: Environment) -> RuntimeBuilder {
        self.environment = environment;
        self
    }

    /// Sends the traces of runs that end while the runtime runs.
    pub fn traces(mut self, tracer: Tracer) -> RuntimeBuilder {
        self.tracer = Some(tracer);
        self
    }

    /// Asks this function at each stage of each run whether the run pauses there; the text is the reason. It may be
    /// asked several times at one stage. If it panics, the run pauses, too.
    pub fn pause_when(
        mut self,
        callback: impl Fn(&PausePoint<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> RuntimeBuilder {
        self.pause_callback = PauseCallback::new(callback);
        self
    }

    /// Repeats a recording: calls of the memory's tools return what they returned then.
    pub(crate) fn repeats(mut self, outcomes: BTreeMap<String, ToolOutcome>) -> RuntimeBuilder {
        self.recorded_outcomes = outcomes;
        self
    }

    /// Returns the runtime. It registers and drives nothing yet.
    #[must_use]
    pub fn build(self) -> Runtime {
        let catalog = Arc::new(self.catalog.prompts_of(&self.abide));
        let context = Arc::new(RuntimeContext {
            leases: Arc::default(),
            tools: self.tools,
            models: SharedSetting::new(self.models),
            run_limiter: ScopeLimiter::new(self.settings.runs),
            settings: self.settings,
            trusted_programs: TrustedPrograms::default(),
            environment: self.environment,
            guardrails: catalog.guardrails().clone(),
            middleware: catalog.registered_middleware().clone(),
            parsers: catalog.parsers().clone(),
            pause_callback: self.pause_callback,
            sandbox: catalog.shared_sandbox(),
            deployment: catalog.shared_deployment(),
            metrics: AgentMetrics::default(),
            recorded_outcomes: self.recorded_outcomes,
            abide: self.abide,
        });
        let registrar = Arc::new(Registrar::new(Arc::clone(&context), catalog));
        let reloader = Reloader::new(
            Arc::clone(&context),
            Arc::clone(&registrar),
            self.project,
            self.on_change,
        );
        Runtime { context, registrar, reloader, tracer: self.tracer.map(Arc::new) }
    }
}

impl Runtime {
    /// Returns a runtime for a database, with these models and the tools of the catalog's definitions.
    #[must_use]
    pub fn new(
        abide: Abide,
        models: Models,
        tools: Tools,
        catalog: Catalog,
        settings: Settings,
    ) -> Runtime {
        Runtime::builder(abide, models, tools, catalog, settings).build()
    }

    /// Returns a builder of a runtime with more than [`Runtime::new`] takes.
    pub fn builder(
        abide: Abide,
        models: Models,
        tools: Tools,
        catalog: Catalog,
        settings: Settings,
    ) -> RuntimeBuilder {
        RuntimeBuilder {
            abide,
            models,
            tools,
            catalog,
            settings,
            environment: Environment::of_process(),
            pause_callback: PauseCallback::default(),
            recorded_outcomes: BTreeMap::new(),
            project: None,
            on_change: None,
            tracer: None,
        }
    }

    /// Returns the counters of the agents with the middleware `observability`.
    #[must_use]
    pub fn metrics(&self) -> AgentMetrics {
        self.context.metrics.clone()
    }

    /// Returns the definitions of the folder.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(self.registrar.catalog())
    }

    /// Returns the invalid files of the folder at its last reading.
    #[must_use]
    pub fn problems(&self) -> watch::Receiver<Vec<Problem>> {
        self.reloader.problems()
    }

    /// Returns the agents whose files were invalid at the last reading of the folder, with the problem of the file. A former
    /// registration of such an agent stays in use.
    #[must_use]
    pub fn unregistered(&self) -> watch::Receiver<BTreeMap<String, Problem>> {
        self.registrar.unregistered()
    }

    /// Permits the programs (`cli`) and remote agents (`a2a`) of a definition and its inline subagents. Those in the folder's
    /// definitions are permitted without this call. All others are not used by this runtime.
    pub fn trust(&self, definition: &AgentDefinition) {
        self.context.trusted_programs.learn(definition);
    }

    /// Registers the tools and the definitions. Returns the invalid files. If the file of an agent was removed
    /// since the last call, the agent is retired: its active runs continue, and no new runs start. If a file can no
    /// longer be read, its agents stay as they are.
    ///
    /// # Errors
    /// [`Error`] of a call.
    pub async fn register(&self) -> Result<Vec<Problem>, Error> {
        self.reloader.register().await
    }

    /// Drives every run without a driver, until stopped. Definitions are registered again when files or tools
    /// change. On stop, the drivers release their runs; the next runtime continues them. With a [`Shutdown`], the steps in
    /// progress end first; a cancellation token stops at once.
    ///
    /// # Errors
    /// [`RuntimeError`] if the connection is lost, or the system has no room for a thread. No run is driven then, until
    /// this is called again.
    pub async fn run(&self, stop: impl Into<Shutdown>) -> Result<(), RuntimeError> {
        let shutdown = stop.into();
        let RuntimeContext { abide, leases, settings, .. } = &*self.context;
        let keeper = LeaseKeeper::start(abide, leases, settings.lease)?;
        let tracer = self.tracer.clone();
        let (traces, tracing) = tracer.map(|it| it.start(abide.clone(), settings.now())).unzip();
        let dispatcher =
            Dispatcher::new(&self.context, &self.registrar, &self.reloader, traces, shutdown);
        dispatcher.run().await?;
        keeper.stop().await;
        if let Some(tracing) = tracing {
            // Unsent traces are sent after the next start.
            let _ = tokio::time::timeout(TRACE_FLUSH_TIMEOUT, tracing).await;
        }
        Ok(())
    }
}
