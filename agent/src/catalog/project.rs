//! The folder of a runtime: `abide.yaml` with models and tools, and `agents/` with the definitions.

use std::path::{Path, PathBuf};

use abide_definitions::error::DefinitionError;
use abide_definitions::project_config::ProjectConfig;
use abide_models::{ConfigContext, ConfigError, Models, ModelsConfig};
use abide_tools::{
    BuiltinError, Concurrency, ConfiguredTools, Environment, HttpTool, Launcher, McpError,
    McpServer, McpServerConfig, Sandbox, SandboxError, Selection, SubprocessTool, ToolView, Tools,
    ToolsError, add_builtin_tools,
};
use serde_json::{Map, Value};

use crate::agent_loop::AgentLoops;
use crate::catalog::agents::{CONFIG, Catalog, Problem};
use crate::catalog::mlflow::Mlflow;
use crate::run::settings::RUNS;
use crate::trace::tracer::Tracer;

/// The folder of the logins to MCP servers, in the folder of the project.
const LOGINS: &str = "logins";

/// Tools and reducers for MCP clients, in addition to the agents with `mcp_exposed`.
pub struct McpExposure {
    /// Tools of the registry.
    pub tools: ToolView,
    /// Names of reducers, see [`AgentProject::unknown_reducers`].
    pub reducers: Vec<String>,
}

/// Models, tools and definitions, ready for use.
pub struct AgentProject {
    /// The models.
    pub models: Models,
    /// The tools.
    pub tools: Tools,
    /// The agents.
    pub catalog: Catalog,
    /// MCP servers. Dropping one removes its tools.
    pub servers: Vec<McpServer>,
    /// Tools and reducers for MCP clients.
    pub mcp: McpExposure,
    /// Sends traces, if `abide.yaml` has sinks.
    pub tracer: Option<Tracer>,
    /// The sandbox of programs and file tools.
    pub sandbox: Option<Sandbox>,
    /// Maximum numbers of runs that are driven at a time.
    pub runs: Concurrency,
    /// Where it was read from, so that a runtime can read it again.
    pub source: ProjectSource,
}

/// Where a project was read from.
#[derive(Clone)]
pub struct ProjectSource {
    pub(crate) folder: PathBuf,
    pub(crate) environment: Environment,
    pub(crate) launcher: Launcher,
    /// The text of `abide.yaml`; `None` if there was no file.
    pub(crate) text: Option<String>,
    /// Its sections.
    pub(crate) sections: Map<String, Value>,
    /// The database of the runtime, which no tool may use.
    pub(crate) database: Option<PathBuf>,
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectError {
    /// `abide.yaml` is invalid.
    #[error(
        "{}:{} {error}",
        path.display(),
        error.position().map(|at| format!("{at}:")).unwrap_or_default()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The error, with its place.
        error: Box<DefinitionError>,
    },
    /// The configuration of a model provider is invalid.
    #[error(transparent)]
    Models(#[from] ConfigError),
    /// The configuration of a tool is invalid.
    #[error(transparent)]
    Tool(#[from] abide_tools::ConfigError),
    /// The sandbox cannot be used.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A built-in tool cannot be added.
    #[error(transparent)]
    Builtin(#[from] BuiltinError),
    /// A tool has a duplicate or an empty name.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// A sink of traces cannot be used.
    #[error("{0}")]
    Traces(String),
    /// The middleware of all agents cannot be used.
    #[error("{0}")]
    Middleware(DefinitionError),
    /// The server of prompts cannot be used.
    #[error("{0}")]
    Prompts(String),
    /// A required MCP server cannot be reached.
    #[error(transparent)]
    Mcp(#[from] McpError),
}

impl ProjectError {
    /// Returns a file that cannot be used, as a whole.
    pub(crate) fn malformed(path: PathBuf, why: String) -> ProjectError {
        ProjectError::Malformed { path, error: Box::new(DefinitionError::malformed(why, None)) }
    }

    /// Returns how to correct it, in one sentence, if that is known.
    #[must_use]
    pub fn suggestion(&self) -> Option<String> {
        self.to_definition_error().suggestion()
    }

    /// Returns the error as a problem of the file `abide.yaml` of a folder, or of the script or recording that has the
    /// error.
    #[must_use]
    pub fn to_problem(&self, folder: &Path) -> Problem {
        let error = self.to_definition_error();
        match self {
            ProjectError::Models(ConfigError { place: Some(place), .. }) => {
                Problem { path: place.path.clone(), at: Some(place.position), error }
            }
            _ => Problem::in_config(folder, error),
        }
    }

    /// Returns the error as that of a file, with the part of the file that it concerns.
    fn to_definition_error(&self) -> DefinitionError {
        let of_part = |code, subject: &str| DefinitionError::Config {
            code,
            why: self.to_string(),
            subject: subject.to_owned(),
        };
        match self {
            ProjectError::Malformed { error, .. } => (**error).clone(),
            ProjectError::Models(error) => of_part("bad_provider_config", &error.provider),
            ProjectError::Tool(error) | ProjectError::Builtin(BuiltinError::Config(error)) => {
                of_part(error.code(), &error.tool)
            }
            ProjectError::Mcp(McpError::Config(error)) => of_part(error.code(), &error.tool),
            ProjectError::Mcp(McpError::Unavailable { name, .. }) => {
                of_part("mcp_unavailable", name)
            }
            ProjectError::Tools(error)
            | ProjectError::Builtin(BuiltinError::Tools(error))
            | ProjectError::Mcp(McpError::Tools(error)) => DefinitionError::Tools(error.clone()),
            ProjectError::Mcp(error) => of_part(error.code(), "mcp_servers"),
            ProjectError::Sandbox(error) => of_part(error.code(), "sandbox"),
            ProjectError::Middleware(error) => error.clone(),
            ProjectError::Traces(_) => of_part("bad_trace_config", "traces"),
            ProjectError::Prompts(_) => of_part("bad_prompts_config", "prompts"),
        }
    }
}

impl AgentProject {
    /// Opens a folder with the environment of this process. A missing folder, or one without `abide.yaml`, has no
    /// models and no tools.
    ///
    /// # Errors
    /// [`ProjectError`].
    pub async fn open(folder: &Path) -> Result<AgentProject, ProjectError> {
        AgentProject::open_in(folder, &Environment::of_process()).await
    }

    /// Returns the project with these loops in Rust, which definitions name in `loop`.
    #[must_use]
    pub fn with_agent_loops(self, loops: AgentLoops) -> AgentProject {
        AgentProject { catalog: self.catalog.with_agent_loops(loops), ..self }
    }

    /// As [`AgentProject::open`], with the given environment variables for keys, tools and programs.
    ///
    /// # Errors
    /// [`ProjectError`].
    pub async fn open_in(
        folder: &Path,
        environment: &Environment,
    ) -> Result<AgentProject, ProjectError> {
        AgentProject::open_with(folder, environment, Launcher::none()).await
    }

    /// As [`AgentProject::open_in`], with the program that supervises the programs of a sandbox.
    ///
    /// # Errors
    /// [`ProjectError`].
    pub async fn open_with(
        folder: &Path,
        environment: &Environment,
        launcher: Launcher,
    ) -> Result<AgentProject, ProjectError> {
        AgentProject::opened(folder, environment, launcher, true).await
    }

    /// As [`AgentProject::open_with`], without MCP servers: for tests, which start no process.
    ///
    /// # Errors
    /// [`ProjectError`].
    pub async fn open_offline(
        folder: &Path,
        environment: &Environment,
        launcher: Launcher,
    ) -> Result<AgentProject, ProjectError> {
        AgentProject::opened(folder, environment, launcher, false).await
    }

    async fn opened(
        folder: &Path,
        environment: &Environment,
        launcher: Launcher,
        is_online: bool,
    ) -> Result<AgentProject, ProjectError> {
        let text = read(&folder.join(CONFIG))?;
        let (config, sections) = parse(folder, text.as_deref())?;
        let runs = config.runs.unwrap_or(RUNS);
        let models = models(config.models.clone(), folder, environment)?;
        let tools = Tools::new();
        let sandbox = match config.sandbox.clone() {
            Some(config) => Some(Sandbox::open(config, folder, launcher.clone(), environment)?),
            None => None,
        };
        let staged = configured_tools(&config, environment, sandbox.as_ref())?;
        tools.configure(ConfiguredTools { tools: Some(staged), ..ConfiguredTools::default() })?;
        let blocked = config.blocked_tools();
        let deployment = config.middleware;
        let mut servers = Vec::new();
        for server in config.mcp_servers.into_iter().filter(|_| is_online) {
            servers.push(McpServer::start(server, environment, &tools).await?);
        }
        tools.configure(ConfiguredTools { blocked, ..ConfiguredTools::default() })?;
        let mcp = McpExposure {
            tools: tools
                .view(Selection { tools: Some(config.mcp.tools), ..Selection::default() })?,
            reducers: config.mcp.reducers,
        };
        let backend = sandbox.as_ref().map(Sandbox::backend);
        let mlflow = config
            .prompts
            .mlflow
            .as_ref()
            .filter(|_| is_online)
            .map(|server| Mlflow::open(server, environment))
            .transpose()
            .map_err(ProjectError::Prompts)?;
        let catalog = Catalog::new(folder, tools.clone())
            .sandbox(backend)
            .mlflow(mlflow)
            .deployment(deployment);
        let tracer = if is_online {
            Tracer::open(&config.traces, folder, environment).map_err(ProjectError::Traces)?
        } else {
            None
        };
        let folder = folder.to_owned();
        let environment = environment.clone();
        let database = None;
        let source = ProjectSource { folder, environment, launcher, text, sections, database };
        Ok(AgentProject { models, tools, catalog, servers, sandbox, mcp, tracer, runs, source })
    }

    /// Keeps the files of a database from the tools of the sandbox, even after `abide.yaml` was read again. Returns whether
    /// programs could use files that are created beside it while they run.
    pub fn protect(&mut self, database: &Path) -> bool {
        self.source.database = Some(database.to_owned());
        self.sandbox.as_ref().is_some_and(|sandbox| sandbox.protect(database))
    }
}

/// Returns the MCP servers of a folder. None of them is started.
///
/// # Errors
/// [`ProjectError`].
pub fn mcp_servers(folder: &Path) -> Result<Vec<McpServerConfig>, ProjectError> {
    let text = read(&folder.join(CONFIG))?;
    Ok(parse(folder, text.as_deref())?.0.mcp_servers)
}

/// Returns the models of a configuration.
pub(crate) fn models(
    config: ModelsConfig,
    folder: &Path,
    environment: &Environment,
) -> Result<Models, ConfigError> {
    let variable = |name: &str| environment.value(name).map(str::to_owned);
    Models::new(config, &ConfigContext { environment: &variable, folder })
}

/// Returns the tools of a configuration without those of MCP servers, in a registry of their own.
pub(crate) fn configured_tools(
    config: &ProjectConfig,
    environment: &Environment,
    sandbox: Option<&Sandbox>,
) -> Result<Tools, ProjectError> {
    let tools = Tools::new();
    add_builtin_tools(&tools, &config.builtin_tools, sandbox, environment)?;
    for http in &config.http_tools {
        tools.add(HttpTool::new(http.clone(), environment)?)?;
    }
    for program in &config.programs {
        tools.add(SubprocessTool::in_sandbox(program.clone(), environment, sandbox)?)?;
    }
    Ok(tools)
}

/// Returns the text of the file; `None` if there is no file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, ProjectError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(why) if why.kind() == std::io::ErrorKind::InvalidData => {
            Err(ProjectError::malformed(path.to_owned(), "the file is not UTF-8".to_owned()))
        }
        Err(why) => Err(ProjectError::malformed(path.to_owned(), why.to_string())),
    }
}

/// Returns the configuration, and its sections as data, to compare them with those of a later text.
pub(crate) fn parse(
    folder: &Path,
    text: Option<&str>,
) -> Result<(ProjectConfig, Map<String, Value>), ProjectError> {
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else {
        return Ok((ProjectConfig::default(), Map::new()));
    };
    let (mut config, sections) = ProjectConfig::from_yaml(text).map_err(|error| {
        ProjectError::Malformed { path: folder.join(CONFIG), error: Box::new(error) }
    })?;
    for server in &mut config.mcp_servers {
        server.login_folder = Some(folder.join(LOGINS));
    }
    Ok((config, sections))
}
