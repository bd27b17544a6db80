//! Sandboxes: where the programs of tools run. A backend turns a command into the command of an isolated process; a
//! supervisor starts that process, limits it, and ends everything that it started.
//!
//! This crate changes when the isolation, the limits or the end of programs change. It does not know tools, calls or
//! models: `abide-tools` defines the tools that run programs here.
//!
//! In reading order: this file the configured sandbox · `config` its settings · `backend` the trait of backends ·
//! `local`, `bubblewrap`, `docker` the backends · `availability` which of them work here · `supervision` the input and
//! the report of a supervisor · `supervisor` its process · `landlocked`, `privileges`, `own_mounts`,
//! `private_processes`, `process_tree` its means · `process` programs in process groups, supervised or not ·
//! `workspaces`, `workspace`, `database_files` what tools reach of the file system · `scope_limiter` how much runs at a
//! time · `environment`, `search_path` the variables of programs.

mod availability;
mod backend;
mod bubblewrap;
mod config;
mod database_files;
mod docker;
mod environment;
#[cfg(target_os = "linux")]
mod landlocked;
mod local;
#[cfg(target_os = "linux")]
mod own_mounts;
#[cfg(target_os = "linux")]
mod private_processes;
#[cfg(target_os = "linux")]
mod privileges;
mod process;
#[cfg(target_os = "linux")]
mod process_tree;
mod scope_limiter;
mod search_path;
mod supervision;
mod supervisor;
mod workspace;
mod workspaces;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use availability::{Availability, available_backends};
pub use backend::{IsolatedCommand, SandboxBackend, SandboxJob};
use bubblewrap::Bubblewrap;
pub use config::{BackendName, Network, SandboxConfig, SandboxError, SandboxLimits};
use database_files::DatabaseFiles;
use docker::Docker;
pub use environment::Environment;
use local::Local;
pub use process::{End, Launch, OutputTail, ProcessGroup, StopRules, exit_code};
pub use scope_limiter::{Concurrency, Scope, ScopeLimiter, ScopePermit};
pub use search_path::unreadable_on_path;
use supervision::{InnerSpec, Spec, WorkingFolder, nonce};
pub use supervision::{LandlockPaths, Launcher, ProtectedPaths, Report, split_report};
pub use supervisor::sandbox_exec;
pub use workspace::{EntryKind, FolderEntry, Workspace, WorkspaceError};
use workspaces::Workspaces;

/// The configured sandbox. A clone refers to the same one.
#[derive(Clone)]
pub struct Sandbox {
    shared: Arc<Shared>,
}

struct Shared {
    config: SandboxConfig,
    backend: Box<dyn SandboxBackend>,
    launcher: Launcher,
    workspaces: Workspaces,
    limiter: ScopeLimiter,
    /// The environment that programs inherit from.
    environment: Environment,
    /// The databases that no tool may use.
    databases: RwLock<Vec<DatabaseFiles>>,
}

/// How long a program waits for others: less than the time that tools have in addition to that of their program.
const QUEUED: Duration = Duration::from_secs(20);

/// The part of the configuration for one tool.
#[derive(Clone, Debug, Default)]
pub struct JobOptions {
    /// The working directory: absolute, or relative to the workspace.
    pub folder: PathBuf,
    /// Further paths that the program can read and execute.
    pub readable: Vec<PathBuf>,
    /// Further paths that the program can change.
    pub writable: Vec<PathBuf>,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("backend", &self.shared.backend).finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Opens the configured sandbox. Relative paths of the configuration are relative to `folder`, which programs and
    /// file tools do not see where the backend can hide it.
    ///
    /// # Errors
    /// The backend is not available, the workspace does not exist, or the settings contradict each other.
    pub fn open(
        config: SandboxConfig,
        folder: &Path,
        launcher: Launcher,
        environment: &Environment,
    ) -> Result<Sandbox, SandboxError> {
        let has_tenants = config.scoped_workspaces.is_some();
        let config = config.checked(folder)?;
        let backend: Box<dyn SandboxBackend> = match config.backend {
            BackendName::Local => Box::new(Local),
            BackendName::Bubblewrap => Box::new(Bubblewrap),
            BackendName::Docker => Box::new(Docker::new(&config, environment)?),
        };
        let availability = Availability::probe(config.backend, &launcher, environment);
        if let Availability::Unavailable(reason) = availability {
            return Err(SandboxError::Unavailable { backend: config.backend, reason });
        }
        if has_tenants && config.backend == BackendName::Local {
            for weakness in availability::weaknesses(&launcher, environment) {
                tracing::warn!(
                    name: "sandbox_weak",
                    "the sandbox local is weak for several tenants: {weakness}"
                );
            }
        }
        Sandbox::with_backend(config, folder, backend, launcher, environment)
    }

    /// As [`Sandbox::open`], with a backend of the caller, which must be available.
    ///
    /// # Errors
    /// As [`Sandbox::open`].
    pub fn with_backend(
        config: SandboxConfig,
        folder: &Path,
        backend: Box<dyn SandboxBackend>,
        launcher: Launcher,
        environment: &Environment,
    ) -> Result<Sandbox, SandboxError> {
        let config = config.checked(folder)?;
        let workspaces = Workspaces::open(&config, folder)?;
        let limiter = ScopeLimiter::new(config.concurrency);
        let environment = environment.clone();
        let databases = RwLock::default();
        let shared =
            Shared { config, backend, launcher, workspaces, limiter, environment, databases };
        Ok(Sandbox { shared: Arc::new(shared) })
    }

    /// Keeps the files of a database from all tools and programs, also inside of the workspace. Returns whether programs
    /// could use files that are created beside it while they run.
    pub fn protect(&self, database: &Path) -> bool {
        let Some(files) = DatabaseFiles::locate(database) else { return false };
        let Shared { config, databases, workspaces, .. } = &*self.shared;
        let is_exposed = workspaces.exposes(&files.folder)
            || config.writable.iter().any(|path| files.folder.starts_with(path));
        let mut all = databases.write().unwrap_or_else(PoisonError::into_inner);
        if !all.contains(&files) {
            all.push(files);
        }
        is_exposed
    }

    fn databases(&self) -> Vec<DatabaseFiles> {
        self.shared.databases.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the name of its backend.
    #[must_use]
    pub fn backend(&self) -> BackendName {
        self.shared.backend.name()
    }

    /// Returns the folder that the tools of a session with this scope can change. Sessions with different scopes have
    /// different folders.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn workspace_path(&self, scope: &Map<String, Value>) -> io::Result<PathBuf> {
        self.shared.workspaces.create(scope)
    }

    /// Opens the workspace of a scope, for file tools.
    ///
    /// # Errors
    /// The folder cannot be created or opened.
    pub fn open_workspace(&self, scope: &Map<String, Value>) -> Result<Workspace, WorkspaceError> {
        let root = self.workspace_path(scope).map_err(|why| WorkspaceError::io("", &why))?;
        self.open_workspace_at(&root)
    }

    /// Opens the workspace at a path that [`Sandbox::workspace_path`] has returned.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub fn open_workspace_at(&self, root: &Path) -> Result<Workspace, WorkspaceError> {
        Workspace::open(root, self.shared.workspaces.hidden_in(root), self.databases())
    }

    /// Returns the folder for what tools keep about their calls. Tools and programs do not reach it.
    #[must_use]
    pub fn state_folder(&self) -> PathBuf {
        self.shared.workspaces.configuration().join("calls")
    }

    /// Returns the paths that programs of `PATH` need and that it cannot read: [`unreadable_on_path`]. A container has programs of
    /// its own.
    #[must_use]
    pub fn unreadable_on_path(&self) -> Vec<PathBuf> {
        let Shared { config, environment, .. } = &*self.shared;
        if config.backend == BackendName::Docker {
            return Vec::new();
        }
        let workspace = std::slice::from_ref(&config.workspace);
        unreadable_on_path(environment, &[&config.readable, &config.writable, workspace].concat())
    }

    /// Returns whether its programs can use the network.
    #[must_use]
    pub fn has_network(&self) -> bool {
        self.shared.config.network() == Network::Host
    }

    /// Returns the environment that programs inherit from.
    #[must_use]
    pub fn environment(&self) -> &Environment {
        &self.shared.environment
    }

    /// Waits until a program of this scope may start.
    ///
    /// # Errors
    /// One sentence: too many programs run, or the call was cancelled.
    pub async fn permit(
        &self,
        scope: &Map<String, Value>,
        cancel: &CancellationToken,
    ) -> Result<ScopePermit, String> {
        let texts = scope.iter().filter_map(|(key, value)| Some((key, value.as_str()?)));
        let scope = texts.map(|(key, value)| (key.clone(), value.to_owned())).collect();
        let permit = timeout(QUEUED, self.shared.limiter.permit(scope));
        tokio::select! {
            permit = permit => permit.map_err(|_| {
                "too many programs run in sandboxes at this time; try it again later".to_owned()
            }),
            () = cancel.cancelled() => Err("it was cancelled".to_owned()),
        }
    }

    /// Returns the process that runs a command isolated and supervised.
    ///
    /// # Errors
    /// One sentence: the command cannot run in this sandbox.
    pub fn launch(
        &self,
        scope: &Map<String, Value>,
        argv: Vec<String>,
        mut environment: BTreeMap<String, String>,
        options: JobOptions,
    ) -> Result<Launch, String> {
        let Shared { config, backend, launcher, workspaces, .. } = &*self.shared;
        let workspace = self
            .workspace_path(scope)
            .map_err(|why| format!("the workspace cannot be used: {why}"))?;
        let id = nonce().map_err(|why| format!("no random numbers: {why}"))?;
        let temporary = std::env::temp_dir().join(format!("abide-sandbox-{id}"));
        for name in ["HOME", "TMPDIR", "TEMP", "TMP"] {
            environment.insert(name.to_owned(), temporary.display().to_string());
        }
        let JobOptions { folder, readable, writable, grace } = options;
        let readable = [config.readable.as_slice(), &readable].concat();
        let writable = [config.writable.as_slice(), &writable].concat();
        let databases = self.databases();
        let masked = databases
            .iter()
            .flat_map(DatabaseFiles::existing)
            .filter(|path| {
                let mut folders = readable.iter().chain(&writable).chain([&workspace]);
                folders.any(|folder| path.starts_with(folder))
            })
            .collect();
        let job = SandboxJob {
            argv,
            environment,
            hidden: workspaces.hidden_in(&workspace),
            masked,
            workspace,
            folder,
            readable,
            writable,
            network: config.network(),
            limits: config.limits.clone(),
            temporary,
            id,
        };
        let isolated = backend.isolate(&job)?;
        Ok(supervise(launcher, job, isolated, grace, config.unix_sockets))
    }
}

/// Returns the launch of a supervisor that runs the isolated command of a job, and ends it `grace` after SIGTERM.
fn supervise(
    launcher: &Launcher,
    job: SandboxJob,
    isolated: IsolatedCommand,
    grace: Duration,
    unix_sockets: bool,
) -> Launch {
    // Landlock isolates the process that the supervisor starts, so the supervisor also sets its working directory. The
    // other backends start the program in a root of their own, and set its working directory there.
    let folder = match &isolated.landlock {
        Some(_) => WorkingFolder { root: job.workspace.clone(), below: job.folder.clone() },
        None => WorkingFolder { root: PathBuf::from("/"), below: PathBuf::from(".") },
    };
    let spec = Spec {
        nonce: job.id.clone(),
        parent: std::process::id(),
        grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
        processes: job.limits.processes,
        workspace: job.workspace,
        free_bytes: job.limits.free_mb.saturating_mul(1 << 20),
        temporary: job.temporary,
        at_end: isolated.at_end,
        inner: InnerSpec {
            nonce: job.id.clone(),
            // The supervisor sets it: its process does not exist yet.
            supervisor: 0,
            folder,
            limits: job.limits,
            landlock: isolated.landlock,
            unix_sockets,
            protected: isolated.protected,
        },
    };
    let (argv, variable) = launcher.command(&spec, isolated.argv);
    let mut environment = isolated.environment;
    environment.extend([variable]);
    Launch { argv, folder: None, environment, supervised: Some(job.id) }
}
