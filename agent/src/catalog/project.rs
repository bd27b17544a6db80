//! The folder of a runtime: `abide.yaml` with models and tools, and `agents/` with the definitions.

use std::path::{Path, PathBuf};

use abide_models::{ConfigError, Models, ModelsConfig, Surroundings};
use abide_tools::{
    BuiltinError, BuiltinToolsConfig, Environment, HttpTool, HttpToolConfig, Launcher, McpError,
    McpServer, McpServerConfig, Sandbox, SandboxConfig, SandboxError, Selection, SubprocessTool,
    SubprocessToolConfig, ToolView, Tools, ToolsError, add_builtin_tools,
};
use serde::Deserialize;

use crate::catalog::agents::Catalog;
use crate::catalog::mlflow::{Mlflow, PromptsConfig};
use crate::definition::error::{misspelled, plain};
use crate::trace::sink::TraceConfig;
use crate::trace::tracer::Tracer;

/// The content of `abide.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a configuration: a map with models, sandbox, builtin_tools, tool_security, \
                 http_tools, programs, mcp_servers, mcp, prompts and traces"
)]
struct ProjectConfig {
    models: ModelsConfig,
    sandbox: Option<SandboxConfig>,
    builtin_tools: BuiltinToolsConfig,
    tool_security: ToolSecurityConfig,
    http_tools: Vec<HttpToolConfig>,
    programs: Vec<SubprocessToolConfig>,
    mcp_servers: Vec<McpServerConfig>,
    mcp: McpConfig,
    traces: TraceConfig,
    prompts: PromptsConfig,
}

/// What clients of MCP can use besides the agents with `mcp_exposed`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "what MCP clients can use: tools and reducers")]
struct McpConfig {
    /// Tools, by name or prefix (`files_*`).
    tools: Vec<String>,
    /// Reducers, by name.
    reducers: Vec<String>,
}

/// What clients of MCP can use besides the agents with `mcp_exposed`.
pub struct McpExposure {
    /// Tools of the registry.
    pub tools: ToolView,
    /// Names of reducers, which are not checked.
    pub reducers: Vec<String>,
}

/// What no agent may do, whatever its definition says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "tool security: a map with blocked_tools")]
struct ToolSecurityConfig {
    /// Tools whose calls are denied, by name or prefix (`files_*`).
    blocked_tools: Vec<String>,
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
    /// What clients of MCP can use.
    pub mcp: McpExposure,
    /// Sends traces, if `abide.yaml` has sinks.
    pub tracer: Option<Tracer>,
    /// The sandbox of programs and file tools.
    pub sandbox: Option<Sandbox>,
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectError {
    /// `abide.yaml` is invalid.
    #[error("{}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The error, with the line.
        why: String,
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
    /// The server of prompts cannot be used.
    #[error("{0}")]
    Prompts(String),
    /// A required MCP server cannot be reached.
    #[error(transparent)]
    Mcp(#[from] McpError),
}

impl ProjectError {
    /// How to correct it, in one sentence, if that is known.
    #[must_use]
    pub fn suggestion(&self) -> Option<String> {
        match self {
            ProjectError::Malformed { why, .. } => misspelled(why),
            ProjectError::Sandbox(_) => {
                let where_to_look = "docs/sandboxes.md describes the backends and their settings";
                Some(where_to_look.to_owned())
            }
            _ => None,
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

    /// As [`AgentProject::open_in`], without MCP servers: for tests, which start no process.
    ///
    /// # Errors
    /// [`ProjectError`].
    pub async fn open_offline(
        folder: &Path,
        environment: &Environment,
    ) -> Result<AgentProject, ProjectError> {
        AgentProject::opened(folder, environment, Launcher::none(), false).await
    }

    async fn opened(
        folder: &Path,
        environment: &Environment,
        launcher: Launcher,
        is_online: bool,
    ) -> Result<AgentProject, ProjectError> {
        let config = read(&folder.join("abide.yaml"))?;
        let variable = |name: &str| environment.value(name).map(str::to_owned);
        let surroundings = Surroundings { environment: &variable, folder };
        let models = Models::new(config.models, &surroundings)?;
        let tools = Tools::new();
        let sandbox = match config.sandbox {
            Some(config) => Some(Sandbox::open(config, folder, launcher, environment)?),
            None => None,
        };
        add_builtin_tools(&tools, &config.builtin_tools, sandbox.as_ref(), environment)?;
        for http in config.http_tools {
            tools.add(HttpTool::new(http, environment)?)?;
        }
        for program in config.programs {
            tools.add(SubprocessTool::in_sandbox(program, environment, sandbox.as_ref())?)?;
        }
        let mut servers = Vec::new();
        for server in config.mcp_servers.into_iter().filter(|_| is_online) {
            servers.push(McpServer::start(server, environment, &tools).await?);
        }
        tools.block(config.tool_security.blocked_tools)?;
        let mcp = McpExposure {
            tools: tools
                .view(Selection { tools: Some(config.mcp.tools), ..Selection::default() })?,
            reducers: config.mcp.reducers,
        };
        let backend = sandbox.as_ref().map(Sandbox::backend);
        let mlflow = config.prompts.mlflow.as_ref().filter(|_| is_online);
        let mlflow = mlflow.map(|server| Mlflow::open(server, environment)).transpose();
        let mlflow = mlflow.map_err(ProjectError::Prompts)?;
        let catalog = Catalog::new(folder, tools.clone()).sandbox(backend).mlflow(mlflow);
        let tracer = match is_online {
            true => {
                Tracer::open(&config.traces, folder, environment).map_err(ProjectError::Traces)?
            }
            false => None,
        };
        Ok(AgentProject { models, tools, catalog, servers, sandbox, mcp, tracer })
    }
}

fn read(path: &Path) -> Result<ProjectConfig, ProjectError> {
    let malformed = |why: String| ProjectError::Malformed { path: path.to_owned(), why };
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(ProjectConfig::default()),
        Ok(text) => serde_saphyr::from_str(&text)
            .map_err(|why| malformed(plain(&why.without_snippet().to_string()))),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(ProjectConfig::default()),
        Err(why) => Err(malformed(why.to_string())),
    }
}
