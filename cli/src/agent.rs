//! `abide agent`: runs the agents of a folder. A run is stored in rows: after a kill, the same command with the
//! same `--id` continues it.

mod hint;
mod registry;
mod run;
mod view;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_agent::{AgentDefinition, AgentProject, Runtime, RuntimeError, Settings};
use abide_client::Abide;
use abide_engine::Engine;
use abide_schema::{Code, Refusal};
use clap::{Args, Subcommand};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::registry::CatalogRegistry;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{say, say_json};
use crate::printable::one_line;

/// Arguments of `abide agent`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Agent {
    #[command(subcommand)]
    what: AgentCommand,

    /// The folder that has abide.yaml (models and tools) and agents/
    #[arg(long, global = true, value_name = "FOLDER", default_value = FOLDER)]
    agents: PathBuf,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Run an agent with an input, and show its events
    Run(run::Run),
    /// List the agents
    List,
    /// Check every definition, and report errors
    Check,
}

/// The default folder.
const FOLDER: &str = ".abide";

const EXAMPLES: &str = "\
Examples:
  abide agent list
  abide agent check
  abide --db agents.db agent run clerk \"Where is my parcel?\"
  abide --db agents.db agent run clerk \"Pay it back.\" --id order-7   # after a kill it continues
  abide agent run clerk \"Hello\" --url http://127.0.0.1:7341          # with serve --agents

With --db this process drives the runs of the file; without it the server does. The prompt on stderr
asks for approvals. Without a terminal the run waits, stderr has the command that decides, and the
exit code is 5. With --json stdout has one JSON object for each event of the run.";

impl Agent {
    /// Whether the runs are driven by this process.
    pub(crate) fn drives_agents(&self, options: &Options) -> bool {
        matches!(self.what, AgentCommand::Run(_)) && options.db.is_some()
    }
}

/// Runs the command.
///
/// # Errors
/// The folder, the file or the server cannot be used.
pub(crate) async fn run(options: &Options, args: Agent) -> Result<(), Failure> {
    match args.what {
        AgentCommand::List => list(options, &args.agents).await,
        AgentCommand::Check => check(options, &args.agents).await,
        AgentCommand::Run(run) => run::start(options, &args.agents, run).await,
    }
}

async fn open(options: &Options, folder: &Path) -> Result<AgentProject, Failure> {
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

async fn list(options: &Options, folder: &Path) -> Result<(), Failure> {
    let (definitions, problems) = open(options, folder).await?.catalog.read();
    for definition in definitions.iter().filter(|it| !it.hidden) {
        if options.json {
            say_json(definition)?;
        } else {
            say(line(definition))?;
        }
    }
    if !problems.is_empty() && !options.json {
        let files = problems.len();
        say(format!(
            "{files} more files are not valid definitions:  abide agent check  lists the errors"
        ))?;
    }
    Ok(())
}

fn line(definition: &AgentDefinition) -> String {
    let mode = json!(definition.mode);
    let mode = mode.as_str().unwrap_or_default();
    let about = definition.description.as_deref().unwrap_or_default();
    one_line(&format!("{:<20}  {mode:<8}  {about}", definition.name))
}

async fn check(options: &Options, folder: &Path) -> Result<(), Failure> {
    let (definitions, problems) = open(options, folder).await?.catalog.read();
    for problem in &problems {
        let (path, error) = (problem.path.display().to_string(), problem.error.to_string());
        if options.json {
            say_json(&json!({"path": path, "code": problem.error.code(), "error": error}))?;
        } else {
            say(format!("{path}: {error}"))?;
        }
    }
    if problems.is_empty() {
        return match options.json {
            true => Ok(()),
            false => say(format!("{} agents, no errors", definitions.len())),
        };
    }
    let detail = format!("{} files are not valid agent definitions", problems.len());
    Err(Refusal::new(Code::BadArguments, detail).into())
}

/// Drives runs next to the other work of this process.
pub(crate) struct AgentHost {
    abide: Abide,
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

    async fn over(
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
