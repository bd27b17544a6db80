//! A folder as a runtime takes it: `abide.yaml` with the models and the tools, and `agents/` with what is made of
//! them.

use std::path::{Path, PathBuf};

use abide_models::{ConfigError, Models, ModelsConfig, Surroundings};
use abide_tools::{
    Environment, HttpTool, HttpToolConfig, McpError, McpServer, McpServerConfig, SubprocessTool,
    SubprocessToolConfig, Tools, ToolsError,
};
use serde::Deserialize;

use crate::catalog::Catalog;

/// What `abide.yaml` says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    models: ModelsConfig,
    http_tools: Vec<HttpToolConfig>,
    programs: Vec<SubprocessToolConfig>,
    mcp_servers: Vec<McpServerConfig>,
}

/// Models, tools and definitions, ready to be worked with.
pub struct Workshop {
    /// Who answers.
    pub models: Models,
    /// What may be called.
    pub tools: Tools,
    /// Which agents there are.
    pub catalog: Catalog,
    /// MCP servers, which give up their tools when they are dropped.
    pub servers: Vec<McpServer>,
}

/// Why a folder cannot be worked with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkshopError {
    /// `abide.yaml` is not what it should be.
    #[error("{}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with the line.
        why: String,
    },
    /// A model provider cannot be made.
    #[error(transparent)]
    Models(#[from] ConfigError),
    /// A tool cannot be made.
    #[error(transparent)]
    Tool(#[from] abide_tools::ConfigError),
    /// Two tools of one name, or one without one.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// An MCP server that is required is not there.
    #[error(transparent)]
    Mcp(#[from] McpError),
}

impl Workshop {
    /// Opens a folder, with the environment of this process. One without `abide.yaml`, or that is not there, has no models
    /// and no tools.
    ///
    /// # Errors
    /// [`WorkshopError`].
    pub async fn open(folder: &Path) -> Result<Workshop, WorkshopError> {
        Workshop::open_in(folder, &Environment::of_process()).await
    }

    /// As [`Workshop::open`], with these variables for keys, tools and programs.
    ///
    /// # Errors
    /// [`WorkshopError`].
    pub async fn open_in(
        folder: &Path,
        environment: &Environment,
    ) -> Result<Workshop, WorkshopError> {
        let config = read(&folder.join("abide.yaml"))?;
        let variable = |name: &str| environment.value(name).map(str::to_owned);
        let surroundings = Surroundings { environment: &variable, folder };
        let models = Models::new(config.models, &surroundings)?;
        let tools = Tools::new();
        for http in config.http_tools {
            tools.add(HttpTool::new(http, environment)?)?;
        }
        for program in config.programs {
            tools.add(SubprocessTool::new(program, environment)?)?;
        }
        let mut servers = Vec::new();
        for server in config.mcp_servers {
            servers.push(McpServer::start(server, environment, &tools).await?);
        }
        let catalog = Catalog::new(folder, tools.clone());
        Ok(Workshop { models, tools, catalog, servers })
    }
}

fn read(path: &Path) -> Result<Config, WorkshopError> {
    let malformed = |why: String| WorkshopError::Malformed { path: path.to_owned(), why };
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(Config::default()),
        Ok(text) => serde_saphyr::from_str(&text).map_err(|why| malformed(why.to_string())),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
        Err(why) => Err(malformed(why.to_string())),
    }
}
