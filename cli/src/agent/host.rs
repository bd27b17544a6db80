//! The agents of a folder, and the runtime that drives their runs in this process: [`abide_agent::Runtime`], which
//! `agent/src/run.rs` describes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use abide_agent::{
    AgentMetrics, AgentProject, Catalog, DefinitionError, EndSignal, Environment, FolderChange,
    FolderChanges, Launcher, McpStatus, Problem, ProjectError, Runtime, RuntimeError, Settings,
    Shutdown, ToolWorker, Tools,
};
use abide_client::Abide;
use abide_engine::Engine;
use abide_protocols::McpHandler;
use abide_schema::{Code, Refusal};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(super) use super::hint::FILE;
pub(crate) use super::hint::FOLDER;
use super::hint::{agents_option, quote};
use super::mcp_tools::{self, McpTools};
use super::registry::CatalogRegistry;
use crate::cells::pluralize;
use crate::connect::connect_named;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};
use crate::printable::one_line;
use crate::text_file::is_trusted_path;

/// Opens a folder of agents to drive runs. That comes before its database: if the folder is invalid, no file is created.
///
/// # Errors
/// The folder cannot be used.
pub(crate) async fn open_project(
    options: &Options,
    folder: &Path,
) -> Result<AgentProject, Failure> {
    check_named_folder(options, folder)?;
    let project = try_open_project(options, folder).await.map_err(folder_failure)?;
    match unknown_reducers(options, &project).into_iter().next() {
        None => Ok(project),
        Some(problem) => {
            let refusal = Refusal::new(Code::BadArguments, problem.to_string());
            let hint = problem.error.suggestion();
            Err(Refusal { hint, ..refusal }.into())
        }
    }
}

/// Returns the names in `mcp.reducers` of a project that no reducer of this program has.
pub(super) fn unknown_reducers(options: &Options, project: &AgentProject) -> Vec<Problem> {
    let built_in = abide_reducers::modules();
    let reducers = built_in.iter().chain(&options.modules).flat_map(|module| &module.reducers);
    let known: Vec<String> = reducers.map(|reducer| reducer.name.to_owned()).collect();
    project.unknown_reducers(&known)
}

/// Opens a folder without MCP servers, for tests of recordings. A sandbox must be possible as in a run, but starts no program.
pub(super) async fn open_offline(
    options: &Options,
    folder: &Path,
) -> Result<AgentProject, Failure> {
    check_named_folder(options, folder)?;
    let launcher = Launcher::this_program();
    let project = AgentProject::open_offline(folder, &options.environment, launcher).await;
    Ok(project.map_err(folder_failure)?.with_agent_loops(options.agent_loops.clone()))
}

/// The refusal of a folder that cannot be used.
pub(crate) fn folder_failure(why: ProjectError) -> Failure {
    let hint = why
        .suggestion()
        .unwrap_or_else(|| "docs/agents.md describes the folder of agents".to_owned());
    Refusal::new(Code::BadArguments, why.to_string()).hint(hint).into()
}

/// As [`open_project`], with the error of the project, for a command that reports it.
pub(super) async fn try_open_project(
    options: &Options,
    folder: &Path,
) -> Result<AgentProject, ProjectError> {
    let launcher = Launcher::this_program();
    let project = AgentProject::open_with(folder, &options.environment, launcher).await?;
    Ok(project.with_agent_loops(options.agent_loops.clone()))
}

/// Checks a folder before its files are used: one that is named on the command line exists, and one that is not named can be
/// trusted. The default folder may be missing; then only the built-in tools are available.
///
/// # Errors
/// `not_found` for a folder that is named and does not exist; the errors of [`check_trust`].
pub(crate) fn check_named_folder(options: &Options, folder: &Path) -> Result<(), Refusal> {
    if folder.is_dir() || folder == Path::new(FOLDER) {
        return check_trust(options, folder);
    }
    Err(missing_folder_refusal(folder))
}

/// Refuses a folder that nobody has named, and that another user can have made: `abide.yaml` has the programs that this user
/// would start, and the database the address of the server that would get the token.
///
/// # Errors
/// `denied`: another user owns the folder or its files, or everybody can write them.
pub(super) fn check_trust(options: &Options, folder: &Path) -> Result<(), Refusal> {
    if options.is_agents_folder_named {
        return Ok(());
    }
    let paths = [folder.to_owned(), folder.join("abide.yaml"), folder.join("agents")];
    let Some(path) = paths.iter().find(|path| !is_trusted_path(path)) else { return Ok(()) };
    let detail = format!(
        "the folder of agents is not used: another user owns {} or can write it",
        path.display()
    );
    let named = quote(&folder.display().to_string());
    let hint = format!("if you trust it, name it: --agents {named}");
    Err(Refusal::new(Code::Denied, detail).hint(hint))
}

/// Checks that the folder exists, also the default one: without it a run has no model.
///
/// # Errors
/// `not_found`.
pub(crate) fn check_folder_exists(folder: &Path) -> Result<(), Refusal> {
    if folder.is_dir() { Ok(()) } else { Err(missing_folder_refusal(folder)) }
}

/// The refusal of a missing folder.
pub(super) fn missing_folder_refusal(folder: &Path) -> Refusal {
    if folder.exists() {
        let detail = format!("{} is a file, not a folder", folder.display());
        let hint = match folder.parent().filter(|_| folder.ends_with("abide.yaml")) {
            Some(parent) if parent == Path::new("") => {
                "--agents names its folder: --agents .".to_owned()
            }
            Some(parent) => {
                let parent = quote(&parent.display().to_string());
                format!("--agents names the folder that it is in: --agents {parent}")
            }
            None => "--agents names the folder with abide.yaml and agents/".to_owned(),
        };
        return Refusal::new(Code::BadArguments, detail).hint(hint);
    }
    let detail = format!("there is no folder {}", folder.display());
    let hint = format!("`{}` creates it; --agents names another one", init_command(folder));
    Refusal::new(Code::NotFound, detail).hint(hint)
}

/// Says that programs of `PATH` do not start in the sandbox, and the setting that permits it.
pub(super) fn unreadable_note(folder: &Path, paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    one_line(&format!(
        "note: commands cannot use the programs of PATH in {}: add  readable: [{}]  to sandbox in {}",
        paths.join(", "),
        paths.join(", "),
        folder.join("abide.yaml").display()
    ))
}

/// Says that a folder has no `abide.yaml`, which explains most of its other problems.
pub(super) fn no_config_note(folder: &Path) -> Option<String> {
    let file = folder.join("abide.yaml");
    if file.exists() {
        return None;
    }
    let other = folder.join("abide.yml");
    let remedy = if other.exists() {
        format!("{} is not read, rename it to abide.yaml", other.display())
    } else {
        format!("`{}` creates it", init_command(folder))
    };
    Some(one_line(&format!(
        "{} does not exist, so there are no models and no tools: {remedy}",
        file.display()
    )))
}

/// The command that creates a folder of agents.
fn init_command(folder: &Path) -> String {
    match agents_option(folder) {
        default if default.is_empty() => "abide init".to_owned(),
        named => format!("abide agent init{named}"),
    }
}

/// The database of a folder of agents.
pub(crate) fn agents_file(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

/// The content of a folder of agents, for the greeting of a server.
#[derive(Debug, serde::Serialize)]
pub(crate) struct LoadedProject {
    /// The names of the agents.
    pub(crate) agents: Vec<String>,
    /// The first agent that can own a session.
    #[serde(skip)]
    pub(crate) first: Option<String>,
    /// The names of the tools.
    pub(crate) tools: Vec<String>,
    /// The ids of the model providers.
    pub(crate) models: Vec<String>,
    /// The sandbox of programs and file tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<String>,
    /// The MCP servers, with the reason if one is down.
    pub(crate) mcp_servers: Vec<String>,
    /// Problems, as `agent check` reports them.
    pub(crate) errors: Vec<String>,
    /// Problems of this environment.
    pub(crate) warnings: Vec<String>,
    /// Those of the warnings that everyone must see who runs an agent: secrets in files.
    #[serde(skip)]
    secrets: Vec<String>,
}

/// The agents whose problems a process mentions.
enum Concern<'a> {
    /// All agents of the folder: others than the command can start them.
    All,
    /// These, and those that they can delegate to.
    Agents(&'a [&'a str]),
}

/// A function that receives what has changed in a folder.
type OnChange = dyn Fn(&FolderChanges) + Send + Sync;

/// Drives runs next to the other work of this process.
pub(crate) struct AgentHost {
    pub(super) abide: Abide,
    loaded: LoadedProject,
    registry: RegistryParts,
    /// The problem of the file of each agent whose former registration stays in use.
    unregistered: watch::Receiver<BTreeMap<String, Problem>>,
    shutdown: Shutdown,
    runtime: JoinHandle<Result<(), RuntimeError>>,
    /// Runs the calls of MCP clients, in the process that has the engine.
    worker: Option<JoinHandle<()>>,
}

/// The objects that the server gets: [`AgentHost::registry`] and [`AgentHost::mcp_handler`].
struct RegistryParts {
    catalog: Arc<Catalog>,
    tools: Tools,
    metrics: AgentMetrics,
    /// Only an engine of this process has an MCP server.
    mcp: Option<Arc<McpTools>>,
    environment: Environment,
}

/// The warning about a database that programs of tools could reach.
const EXPOSED: &str = "the database is in the workspace of the agents: their tools cannot use its \
     files, but a program could use one that is created while it runs; keep the database in the \
     folder of abide.yaml, or outside of the workspace";

impl AgentHost {
    /// Drives the runs of an engine in this process.
    ///
    /// # Errors
    /// The runtime cannot be registered.
    pub(crate) async fn for_engine(
        options: &Options,
        project: AgentProject,
        engine: &Engine,
    ) -> Result<AgentHost, Failure> {
        AgentHost::start(options, project, Abide::embed(engine.clone()), Concern::All, None).await
    }

    /// Drives the runs of an engine in this process, and prints on stdout what it has read again because the folder has changed.
    ///
    /// # Errors
    /// The runtime cannot be registered.
    pub(crate) async fn for_server(
        options: &Options,
        project: AgentProject,
        engine: &Engine,
    ) -> Result<AgentHost, Failure> {
        let abide = Abide::embed(engine.clone());
        let json = options.json;
        let on_change = report_on_thread(move |report| print_changes(json, &report))
            .map_err(|why| Failure::system("the thread that reports changes cannot start", &why))?;
        AgentHost::start(options, project, abide, Concern::All, Some(on_change)).await
    }

    /// Returns the loaded definitions, and the failures.
    pub(crate) fn loaded(&self) -> &LoadedProject {
        &self.loaded
    }

    /// Returns the problem that prevents the registration of an agent's own file, at the last reading of the folder.
    pub(super) fn problem_of(&self, agent: &str) -> Option<Problem> {
        self.unregistered.borrow().get(agent).cloned()
    }

    /// Returns what the server uses to check posted definitions and to report capabilities and metrics. It begins to
    /// try, on another thread, which sandboxes work on this machine.
    pub(crate) fn registry(&self) -> Arc<dyn abide_server::AgentRegistry> {
        let RegistryParts { catalog, tools, metrics, environment, .. } = &self.registry;
        Arc::new(CatalogRegistry::new(
            Arc::clone(catalog),
            tools.clone(),
            metrics.clone(),
            environment.clone(),
        ))
    }

    /// Returns the tools and reducers that the project adds to the MCP server.
    pub(crate) fn mcp_handler(&self) -> Option<Arc<dyn McpHandler>> {
        self.registry.mcp.clone().map(|mcp| mcp as Arc<dyn McpHandler>)
    }

    /// Drives the runs of a command that concerns these agents. Problems of others are not mentioned.
    ///
    /// # Errors
    /// The runtime cannot be registered.
    pub(super) async fn for_agents(
        options: &Options,
        project: AgentProject,
        abide: Abide,
        agents: &[&str],
    ) -> Result<AgentHost, Failure> {
        AgentHost::start(options, project, abide, Concern::Agents(agents), None).await
    }

    /// Registers the agents of the project, and starts the runtime that drives their runs.
    async fn start(
        options: &Options,
        mut project: AgentProject,
        abide: Abide,
        concern: Concern<'_>,
        on_change: Option<Box<OnChange>>,
    ) -> Result<AgentHost, Failure> {
        project.catalog = project.catalog.prompts_of(&abide);
        // An engine that programs share is in another process.
        let database = abide.engine().map(Engine::path).or_else(|| options.db.clone());
        if let Some(database) = database.filter(|database| project.protect(database)) {
            let file = database.display();
            tracing::warn!(name: "database_exposed", %file, "{EXPOSED}");
        }
        let (loaded, errors) = LoadedProject::load(&project, options).await;
        let mentioned = match concern {
            Concern::All => errors,
            Concern::Agents(agents) => project.catalog.concerning(agents, &errors),
        };
        let folder_note =
            no_config_note(project.catalog.folder()).filter(|_| !mentioned.is_empty());
        let AgentProject { models, tools, catalog, servers, sandbox, mcp, tracer, runs, source } =
            project;
        let mcp_tools =
            abide.engine().map(|engine| Arc::new(McpTools::new(engine, &mcp, tools.revision())));
        // Only one process can open the file, so the name is always free.
        let settings = Settings { runs, ..Settings::named("abide") };
        let worker = abide
            .engine()
            .is_some()
            .then(|| ToolWorker::new(abide.clone(), mcp.tools, settings.clone(), mcp_tools::AGENT));
        let mut runtime = Runtime::builder(abide.clone(), models, tools.clone(), catalog, settings)
            .environment(options.environment.clone())
            .reloads(source, servers, sandbox);
        if let Some(tracer) = tracer {
            runtime = runtime.traces(tracer);
        }
        if let Some(on_change) = on_change {
            runtime = runtime.on_change(on_change);
        }
        let runtime = runtime.build();
        let registry = RegistryParts {
            catalog: runtime.catalog(),
            tools,
            metrics: runtime.metrics(),
            mcp: mcp_tools,
            environment: options.environment.clone(),
        };
        runtime.register().await?;
        let unregistered = runtime.unregistered();
        let mentioned = mentioned.iter().map(ToString::to_string);
        for text in folder_note.into_iter().chain(mentioned).chain(loaded.secrets.iter().cloned()) {
            tracing::warn!(name: "definition_invalid", "{text}");
        }
        let shutdown = Shutdown::default();
        let runtime = tokio::spawn(drive_runs(runtime, shutdown.clone()));
        let worker = worker.map(|worker| tokio::spawn(run_calls(worker, shutdown.clone())));
        Ok(AgentHost { abide, loaded, registry, unregistered, shutdown, runtime, worker })
    }

    /// Returns what stops the host, for a program that ends it in steps.
    pub(crate) fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// Lets the steps in progress end: answers of models, tools and programs. What has not ended after a time is stopped. The
    /// runs continue when a driver opens the file again.
    pub(crate) async fn drain(self, within: Duration) {
        let shutdown = self.shutdown.clone();
        shutdown.drain();
        let mut ended = pin!(self.ended());
        if timeout(within, &mut ended).await.is_err() {
            tracing::warn!(
                name: "drain_timed_out",
                after = ?within,
                "tools and programs did not end in time; they are stopped"
            );
            shutdown.stop();
            if timeout(END_OF_STOPPED, ended).await.is_err() {
                tracing::warn!(name: "stop_timed_out", "what was stopped did not end in time; it is left to the system");
            }
        }
    }

    /// Releases the runs. They continue when a driver opens the file again.
    pub(crate) async fn close(self) {
        self.shutdown.stop();
        self.ended().await;
    }

    /// As [`AgentHost::close`], after a signal, which command-line programs get, too.
    pub(super) async fn close_with(self, signal: EndSignal) {
        self.shutdown.stop_with(signal);
        self.ended().await;
    }

    async fn ended(self) {
        match self.runtime.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(
                name: "agents_stopped",
                error = format_args!("{error:#}"),
                "runs of agents are no longer driven"
            ),
            Err(error) => tracing::error!(
                name: "agents_panicked",
                %error,
                "the agent runtime panicked"
            ),
        }
        let Some(worker) = self.worker else { return };
        match worker.await {
            Ok(()) => {}
            Err(error) => tracing::error!(
                name: "mcp_worker_panicked",
                %error,
                "the worker of MCP calls panicked"
            ),
        }
    }
}

/// How long what was stopped may take to end: the grace period of programs, and the records of their last lines. With the seconds of
/// sockets it is less than the 15 s that supervisors of servers wait in addition to `--drain`.
const END_OF_STOPPED: Duration = Duration::from_secs(6);

/// Pause before work begins again after an error.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

/// Drives runs until stopped.
///
/// # Errors
/// No run was driven when it was stopped.
async fn drive_runs(runtime: Runtime, shutdown: Shutdown) -> Result<(), RuntimeError> {
    repeat_until_stopped(
        &shutdown,
        PAUSE_AFTER_ERROR,
        || runtime.run(shutdown.clone()),
        |error: &RuntimeError| {
            tracing::warn!(
                name: "agents_delayed",
                error = format_args!("{error:#}"),
                "runs of agents are not driven; trying again"
            );
        },
    )
    .await
}

/// Runs the calls of MCP clients until stopped.
async fn run_calls(worker: ToolWorker, shutdown: Shutdown) {
    // An error of the end is of no use: the calls wait for the next start.
    let _ = repeat_until_stopped(
        &shutdown,
        PAUSE_AFTER_ERROR,
        || worker.run(shutdown.clone()),
        |error: &abide_client::Error| {
            tracing::warn!(
                name: "mcp_calls_delayed",
                error = format_args!("{error:#}"),
                "calls of MCP clients do not run; trying again"
            );
        },
    )
    .await;
}

/// Does work until it ends without an error, or must stop. An error is reported, and the work begins again after a
/// pause.
///
/// # Errors
/// The last error, if the work must stop then.
async fn repeat_until_stopped<E, F>(
    shutdown: &Shutdown,
    pause: Duration,
    mut work: impl FnMut() -> F,
    report: impl Fn(&E),
) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    loop {
        let Err(error) = work().await else { return Ok(()) };
        if shutdown.is_draining() {
            return Err(error);
        }
        report(&error);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shutdown.draining() => return Err(error),
        }
    }
}

/// Reports that wait for the reader of stdout; the next ones are left out.
const WAITING_REPORTS: usize = 16;

/// Returns a function that passes reports to a thread. A program that has stdout and does not read it holds back that
/// thread, and not the runtime.
///
/// # Errors
/// The system has no room for the thread.
fn report_on_thread(print: impl Fn(FolderChanges) + Send + 'static) -> io::Result<Box<OnChange>> {
    let (reports, waiting) = mpsc::sync_channel(WAITING_REPORTS);
    let thread = thread::Builder::new().name("reports".to_owned());
    thread.spawn(move || waiting.into_iter().for_each(print))?;
    Ok(Box::new(move |report: &FolderChanges| {
        let _ = reports.try_send(report.clone());
    }))
}

/// Says what was read again, with problems and notes.
fn print_changes(json: bool, report: &FolderChanges) {
    let FolderChanges { changes, notes, problems } = report;
    // A server whose stdout is closed goes on.
    let _ = if json {
        let changes: Vec<_> = changes
            .iter()
            .map(|FolderChange { part, added, changed, removed }| {
                json!({"part": part, "added": added, "changed": changed, "removed": removed})
            })
            .collect();
        let (warnings, errors): (Vec<&Problem>, Vec<&Problem>) =
            problems.iter().partition(|problem| problem.error.is_warning());
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        print_json(&json!({"reloaded": {"changes": changes, "notes": notes, "errors": errors,
                    "warnings": warnings}}))
    } else {
        print_line(format_changes(report))
    };
}

/// One line for each part that has changed, and for each problem. Warnings are those of `agent check`.
fn format_changes(FolderChanges { changes, notes, problems }: &FolderChanges) -> String {
    let mut lines = Vec::new();
    for FolderChange { part, added, changed, removed } in changes {
        let mut line = format!("reloaded  {part}:");
        for (what, names) in [("new", added), ("changed", changed), ("removed", removed)] {
            if !names.is_empty() {
                line.push_str(&format!("  {what} {}", names.join(", ")));
            }
        }
        lines.push(one_line(&line));
    }
    lines.extend(notes.iter().map(|note| one_line(&format!("note      {note}"))));
    for problem in problems {
        let label = if problem.error.is_warning() { "warning" } else { "failed" };
        lines.push(one_line(&format!("{label:<8}  {problem}")));
    }
    lines.join("\n")
}

impl LoadedProject {
    /// The content of a folder, and the errors that `agent check` reports.
    async fn load(project: &AgentProject, options: &Options) -> (LoadedProject, Vec<Problem>) {
        let AgentProject { models, tools, catalog, servers, sandbox, .. } = project;
        let mut mcp_servers = Vec::new();
        for server in servers {
            mcp_servers.push(match server.status().await {
                McpStatus::Up { .. } => server.name().to_owned(),
                McpStatus::Down { why } => format!("{} (down: {why})", server.name()),
            });
        }
        let (agents, _) = catalog.read();
        let problems = catalog.check(models, &options.environment);
        let (warnings, errors): (Vec<Problem>, Vec<Problem>) = project
            .missing_programs()
            .into_iter()
            .chain(project.literal_secrets())
            .chain(project.unlisted_mcp_tools())
            .chain(problems)
            .partition(|problem| problem.error.is_warning());
        let mut primary = agents.iter().filter(|it| !it.hidden && it.mode.is_primary());
        let no_config = no_config_note(catalog.folder()).filter(|_| !errors.is_empty());
        let loaded = LoadedProject {
            first: primary.next().map(|it| it.name.clone()),
            agents: agents.into_iter().filter(|it| !it.hidden).map(|it| it.name).collect(),
            tools: tools.names(),
            models: models.providers().map(|provider| provider.id.clone()).collect(),
            sandbox: sandbox.as_ref().map(|it| it.backend().to_string()),
            mcp_servers,
            errors: no_config.into_iter().chain(errors.iter().map(ToString::to_string)).collect(),
            secrets: warnings
                .iter()
                .filter(|problem| matches!(problem.error, DefinitionError::LiteralSecret { .. }))
                .map(|problem| {
                    let hint = problem.error.suggestion().unwrap_or_default();
                    format!("{problem}: {hint}")
                })
                .collect(),
            warnings: warnings.iter().map(ToString::to_string).collect(),
        };
        (loaded, errors)
    }

    /// The lines of the greeting.
    pub(crate) fn greeting_lines(&self, folder: &Path) -> String {
        let lists = [
            ("agents", &self.agents),
            ("models", &self.models),
            ("tools", &self.tools),
            ("sandbox", &self.sandbox.iter().cloned().collect()),
            ("mcp", &self.mcp_servers),
        ];
        let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
        let lines = lists.map(|(what, names)| format!("\n  {what:<8} {}", names.join(", ")));
        let failed = match self.errors.len() + self.warnings.len() {
            0 => String::new(),
            n => format!(
                "\n  failed   {}: `abide agent check{}` shows {}",
                pluralize(n as u64, "problem"),
                agents_option(folder),
                if n == 1 { "it" } else { "them" },
            ),
        };
        lines.collect::<String>() + &failed
    }
}

/// The named file or server, if a definition of the folder needs its prompts.
pub(super) async fn prompt_store(
    options: &Options,
    catalog: &Catalog,
) -> Result<Option<Abide>, Failure> {
    if catalog.uses_stored_prompts() { connect_named(options).await } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;

    use super::*;

    /// After some hundred changes, a server whose stdout nobody read drove no run.
    #[test]
    fn a_report_that_cannot_be_printed_holds_back_nothing() {
        let (release, blocked) = mpsc::channel::<()>();
        let (printed, count) = mpsc::channel();
        let report = report_on_thread(move |changes| {
            // Returns when the test lets go of it.
            let _ = blocked.recv();
            let _ = printed.send(changes);
        });
        let report = report.expect("the system has room for a thread");
        for _ in 0..10 * WAITING_REPORTS {
            report(&FolderChanges::default());
        }
        drop((release, report));
        let printed = count.iter().count();
        assert!((1..=WAITING_REPORTS + 1).contains(&printed), "{printed}");
    }

    /// After one error a server drove no run until it was restarted, and said so only at its end.
    #[tokio::test]
    async fn work_that_fails_begins_again() {
        let shutdown = Shutdown::default();
        let attempts = Cell::new(0);
        let reports = Cell::new(0);
        let fail_until = |last| {
            attempts.set(attempts.get() + 1);
            ready(if attempts.get() < last { Err("the connection was lost") } else { Ok(()) })
        };
        let report = |_: &&str| reports.set(reports.get() + 1);
        let ended = repeat_until_stopped(&shutdown, Duration::ZERO, || fail_until(3), report).await;
        assert_eq!((ended, attempts.get(), reports.get()), (Ok(()), 3, 2));
        shutdown.drain();
        let ended = repeat_until_stopped(&shutdown, Duration::ZERO, || fail_until(9), report).await;
        assert_eq!((ended, attempts.get()), (Err("the connection was lost"), 4));
        assert_eq!(reports.get(), 2, "the caller has the error");
    }
}
