//! `abide agent`: runs the agents of a folder. A run is stored in rows: after a kill, the same command with the
//! same `--id` continues it.

mod hint;
mod host;
mod registry;
mod run;
mod view;

use std::path::{Path, PathBuf};

use abide_agent::AgentDefinition;
use abide_schema::{Code, Refusal};
use clap::{Args, Subcommand};
use serde_json::json;

pub(crate) use self::host::AgentHost;
use self::host::{FOLDER, open};
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
