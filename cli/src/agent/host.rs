//! The agents of a folder, and the runtime that drives their runs in this process.

use std::path::Path;
use std::sync::Arc;

use abide_agent::{AgentProject, Runtime, RuntimeError, Settings};
use abide_client::Abide;
use abide_engine::Engine;
use abide_schema::{Code, Refusal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::registry::CatalogRegistry;
use crate::failure::Failure;
use crate::global_options::Options;

/// The default folder.
pub(super) const FOLDER: &str = ".abide";

pub(super) async fn open(options: &Options, folder: &Path) -> Result<AgentProject, Failure> {
    check_named(folder)?;
    AgentProject::open_in(folder, &options.environment).await.map_err(|why| {
        let hint = "docs/agents.md describes the folder of agents";
        Refusal::new(Code::BadArguments, why.to_string()).hint(hint).into()
    })
}

/// Checks that a folder named on the command line exists. The default folder may be missing; then only the built-in
/// tools are available.
///
/// # Errors
/// `not_found` for a folder that is named and does not exist.
pub(crate) fn check_named(folder: &Path) -> Result<(), Refusal> {
    if folder.is_dir() || folder == Path::new(FOLDER) {
        return Ok(());
    }
    let detail = format!("there is no folder {}", folder.display());
    Err(Refusal::new(Code::NotFound, detail).hint("docs/agents.md describes the folder of agents"))
}

/// Drives runs next to the other work of this process.
pub(crate) struct AgentHost {
    pub(super) abide: Abide,
    registry: Arc<dyn abide_server::AgentRegistry>,
    stop: CancellationToken,
    runtime: JoinHandle<Result<(), RuntimeError>>,
    /// Keeps the MCP servers alive while their tools can be called.
    _servers: Vec<abide_agent::McpServer>,
}

impl AgentHost {
    /// Drives the runs of an engine in this process.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub(crate) async fn open(
        options: &Options,
        folder: &Path,
        engine: &Engine,
    ) -> Result<AgentHost, Failure> {
        let project = open(options, folder).await?;
        AgentHost::over(options, folder, project, Abide::embed(engine.clone())).await
    }

    /// The interface of the server to the agents.
    pub(crate) fn registry(&self) -> Arc<dyn abide_server::AgentRegistry> {
        Arc::clone(&self.registry)
    }

    pub(super) async fn over(
        options: &Options,
        folder: &Path,
        project: AgentProject,
        abide: Abide,
    ) -> Result<AgentHost, Failure> {
        let AgentProject { models, tools, catalog, servers } = project;
        let registry = Arc::new(CatalogRegistry::new(folder, tools.clone()));
        // Only one process can open the file, so the name is always free.
        let settings = Settings::named("abide");
        let runtime = Runtime::new(abide.clone(), models, tools, catalog, settings)
            .environment(options.environment.clone());
        for problem in runtime.register().await? {
            let (path, error) = (problem.path.display().to_string(), &problem.error);
            tracing::warn!(path, %error, "invalid agent definition");
        }
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::spawn(async move { runtime.run(stopped).await });
        Ok(AgentHost { abide, registry, stop, runtime, _servers: servers })
    }

    /// Releases the runs. They continue when a driver opens the file again.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        match self.runtime.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "runs of agents are no longer driven"),
            Err(error) => tracing::error!(%error, "the agent runtime panicked"),
        }
    }
}
