//! `abide agent`: runs the agents of a folder. A run is stored in rows: after a kill, the same command with the
//! same `--id` continues it.

mod approvals;
mod chat;
mod definitions;
mod editor;
mod file_diff;
mod files;
mod hint;
mod host;
mod init;
mod markdown;
mod mcp_tools;
mod memory;
mod pause;
mod recorded_run;
mod registry;
mod reparse;
mod run;
mod silence;
mod snapshot;
mod view;

use std::path::{Path, PathBuf};

use abide_agent::{AgentDefinition, AgentProject, Problem, Tools, check_definitions};
use abide_client::rows::{Agent as RegisteredAgent, AgentMode};
use abide_schema::{Code, Refusal};
use clap::{Args, Subcommand};
use serde_json::json;

pub(crate) use self::hint::{agents_option, connection_option, quote, server_option};
pub(crate) use self::host::{
    AgentHost, FOLDER, LoadedProject, agents_file, check_folder_exists, check_named_folder,
    folder_failure, open_project,
};
use self::host::{check_trust, prompt_store, try_open_project, unknown_reducers};
pub(crate) use self::init::{ProjectOptions, create_project};
use crate::cells::pluralize;
use crate::connect::{Access, check_file, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{note, print_json, print_line};
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
    /// Create the folder, as `abide init` does in .abide
    Init(ProjectOptions),
    /// Converse with an agent
    Chat(chat::Chat),
    /// Run an agent with an input, and show its events
    Run(run::Run),
    /// List the agents of the folder, or the registered ones with --db or --url
    List,
    /// Report everything in the folder that cannot work
    Check,
    /// Pause a run at a stage of its loop
    Pause(pause::Pause),
    /// Resume a paused run
    Resume(pause::Resume),
    /// Abort a run
    Abort(pause::Abort),
    /// List the files that the calls of a session have touched
    Files(files::Files),
    /// Write a run that waits to stdout, to continue it in another file
    Export(snapshot::Export),
    /// Continue an exported run
    Import(snapshot::Import),
    /// Create a session with the history of another one up to an event
    Fork(snapshot::Fork),
    /// Write a run that has ended to stdout, as a recording for tests
    Record(recorded_run::Record),
    /// Repeat recordings offline, and show what has changed
    Test(recorded_run::Test),
    /// Read the stored lines of a program's run again with the current parser
    Reparse(reparse::Reparse),
    /// List and delete the facts that agents remember
    Memory(memory::Memory),
}

const EXAMPLES: &str = "\
Examples:
  abide agent init --agents bots                  # the folder bots; `abide init`: .abide
  abide agent chat default                        # on the file .abide/agents.db; --url: at a server
  abide agent list                                # of the folder .abide
  abide agent list --url http://127.0.0.1:7341    # registered at a server; --db: in a file
  abide agent check                               # and the numbers of profiles; --db, --url: with stored prompts
  abide agent memory list --db .abide/agents.db   # what the agents remember
  abide agent run clerk \"Where is my parcel?\" --db .abide/agents.db
  abide agent run clerk \"Pay it back.\" --id order-7 --db .abide/agents.db   # after a kill it continues
  abide agent run clerk \"Hello\" --url http://127.0.0.1:7341                # with serve --agents
  abide agent run clerk \"And the other one?\" --session order-7 --db .abide/agents.db
  abide agent abort order-7
  abide agent files chat_1f0c                     # which files its calls touched, with digests
  abide agent pause order-7 --at after_agent && abide agent resume order-7
  abide agent export order-7 --db .abide/agents.db > order-7.json
  abide agent import order-7.json --db other.db
  abide agent fork order-7 --at 42 --id order-7b --db .abide/agents.db
  abide agent record order-7 --db .abide/agents.db > tests/refund.jsonl
  abide agent test tests
  abide agent reparse order-7 --db .abide/agents.db   # of an agent with cli, with a changed parser

Without --db and --url, the database is agents.db in the folder of the agents. If a server serves a
file that --db does not name, the command uses the server; else this process drives the runs of the
file. The prompt on stderr asks for approvals. Without a terminal the run waits, stderr has the
command that decides, and the exit code is 5. With --json stdout has one JSON object for each event
of the run.";

impl Agent {
    /// Returns `true` if this process drives the runs.
    pub(crate) fn drives_agents(&self, options: &Options) -> bool {
        match self.what {
            AgentCommand::Chat(_) | AgentCommand::Run(_) | AgentCommand::Import(_) => {
                uses_file(options)
            }
            _ => false,
        }
    }

    /// The options with the database of the command. All commands have the same default: the file of the folder, through
    /// its server if it has one.
    ///
    /// # Errors
    /// The default file does not exist, and the command does not create it; or its folder may be the work of another user.
    fn with_database(&self, options: &Options) -> Result<Options, Refusal> {
        let mut options = options.clone();
        let (uses_database, creates_it) = match &self.what {
            AgentCommand::Chat(_) | AgentCommand::Run(_) | AgentCommand::Import(_) => (true, true),
            AgentCommand::Init(_)
            | AgentCommand::List
            | AgentCommand::Check
            | AgentCommand::Test(_) => (false, false),
            _ => (true, false),
        };
        if !uses_database {
            // A file of the configuration need not exist yet.
            if !options.is_db_typed && options.db.as_deref().is_some_and(|file| !file.exists()) {
                options.db = None;
            }
            options.prefer_server();
            return Ok(options);
        }
        if uses_file(&options) && options.db.is_none() {
            check_trust(&options, &self.agents)?;
            let file = agents_file(&self.agents);
            if !creates_it && !file.exists() {
                let detail = format!("{} does not exist", file.display());
                let hint = "`abide agent chat` and `abide agent run` create it; --db names another file, --url a server";
                return Err(Refusal::new(Code::NotFound, detail).hint(hint));
            }
            options.db = Some(file);
        }
        options.prefer_server();
        Ok(options)
    }
}

/// Whether the commands of agents use a file.
fn uses_file(options: &Options) -> bool {
    options.db.is_some() || !options.is_url_named
}

/// Runs the command.
///
/// # Errors
/// The folder, the file or the server cannot be used.
pub(crate) async fn run(options: &Options, args: Agent) -> Result<(), Failure> {
    let options = &args.with_database(options)?;
    let done = dispatch(options, args).await;
    done.map_err(|failure| {
        hint::name_commands(failure).with_hint_option(&connection_option(options))
    })
}

async fn dispatch(options: &Options, args: Agent) -> Result<(), Failure> {
    match args.what {
        AgentCommand::List => list(options, &args.agents).await,
        AgentCommand::Check => check(options, &args.agents).await,
        AgentCommand::Memory(memory) => memory::run(options, memory).await,
        AgentCommand::Init(init) => create_project(options, &args.agents, None, init),
        AgentCommand::Chat(chat) => chat::chat(options, &args.agents, chat).await,
        AgentCommand::Abort(abort) => pause::abort(options, abort).await,
        AgentCommand::Files(files) => files::files(options, files).await,
        AgentCommand::Run(run) => run::start(options, &args.agents, run).await,
        AgentCommand::Pause(pause) => pause::pause(options, pause).await,
        AgentCommand::Resume(resume) => pause::resume(options, resume).await,
        AgentCommand::Export(export) => snapshot::export(options, export).await,
        AgentCommand::Import(import) => snapshot::import(options, &args.agents, import).await,
        AgentCommand::Fork(fork) => snapshot::fork(options, fork).await,
        AgentCommand::Record(record) => recorded_run::record(options, record).await,
        AgentCommand::Test(test) => recorded_run::test(options, &args.agents, test).await,
        AgentCommand::Reparse(again) => reparse::reparse(options, &args.agents, again).await,
    }
}

/// Lists the agents of the folder, or the registered agents of the file or server that the command line names.
async fn list(options: &Options, folder: &Path) -> Result<(), Failure> {
    if options.db.is_some() || options.is_url_named {
        return list_registered(options).await;
    }
    check_named_folder(options, folder)?;
    let project = try_open_project(options, folder).await.map_err(folder_failure)?;
    let (definitions, problems) = project.catalog.read();
    for definition in definitions.iter().filter(|definition| !definition.hidden) {
        if options.json {
            print_json(definition)?;
        } else {
            print_line(format_agent(
                &definition.name,
                definition.mode,
                definition.description.as_deref(),
            ))?;
        }
    }
    if !problems.is_empty() && !options.json {
        print_line(format!(
            "{} in the folder: `abide agent check{}`",
            pluralize(problems.len() as u64, "problem"),
            agents_option(folder)
        ))?;
    }
    Ok(())
}

/// Lists the registered agents that `GET /agents` returns.
async fn list_registered(options: &Options) -> Result<(), Failure> {
    let abide = connect(options, Access::Read).await?;
    let sql = "SELECT * FROM agents WHERE hidden = 0 AND retired_at IS NULL ORDER BY name";
    let agents: Vec<RegisteredAgent> = abide.sql(sql).fetch().await?;
    for agent in &agents {
        if options.json {
            print_json(agent)?;
        } else {
            print_line(format_agent(&agent.name, agent.mode, agent.description.as_deref()))?;
        }
    }
    abide.close().await;
    Ok(())
}

fn format_agent(name: &str, mode: AgentMode, description: Option<&str>) -> String {
    let about = description.unwrap_or_default();
    one_line(&format!("{name:<20}  {:<8}  {about}", mode.as_str()))
}

async fn check(options: &Options, folder: &Path) -> Result<(), Failure> {
    check_folder_exists(folder)?;
    check_trust(options, folder)?;
    if let Some(file) = &options.db {
        check_file(file, Access::Read)?;
    }
    let project = match try_open_project(options, folder).await {
        Ok(project) => project,
        Err(error) => {
            let mut problems = vec![error.to_problem(folder)];
            problems.extend(check_definitions(folder, &options.environment));
            for problem in &problems {
                print_problem(options, problem)?;
            }
            let errors = pluralize(problems.len() as u64, "error");
            let detail = format!(
                "the agent folder has {errors}; the tools and models of its definitions were not checked"
            );
            return Err(Refusal::new(Code::BadArguments, detail).into());
        }
    };
    let mut missing = project.missing_programs();
    missing.extend(project.literal_secrets());
    missing.extend(project.unlisted_mcp_tools());
    missing.extend(unknown_reducers(options, &project));
    let sandbox = project.sandbox.as_ref();
    let unreadable = sandbox.map(|it| it.unreadable_on_path()).unwrap_or_default();
    let AgentProject { mut catalog, models, tools, .. } = project;
    let stored = prompt_store(options, &catalog).await?;
    if let Some(abide) = &stored {
        catalog = catalog.prompts_of(abide);
    }
    let environment = options.environment.clone();
    // It waits for stores of prompts.
    let checked = tokio::task::spawn_blocking(move || {
        let mut problems = missing;
        problems.extend(catalog.check(&models, &environment));
        (problems, catalog.read().0)
    });
    let checked = checked.await;
    if let Some(abide) = stored {
        abide.close().await;
    }
    let (problems, definitions) = checked.map_err(|why| {
        Refusal::new(Code::Internal, format!("the folder could not be checked: {why}"))
    })?;
    if let Some(text) = host::no_config_note(folder) {
        note(format!("note: {text}"));
    }
    for problem in &problems {
        print_problem(options, problem)?;
    }
    let errors = problems.iter().filter(|problem| !problem.error.is_warning()).count();
    if errors == 0 {
        for definition in definitions.iter().filter(|it| it.profile.is_some()) {
            print_settings(options, definition)?;
        }
        if !unreadable.is_empty() {
            note(host::unreadable_note(folder, &unreadable));
        }
        if let Some(text) = no_tools_note(&definitions, &tools) {
            note(text);
        }
        let built_in = definitions.iter().filter(|it| it.native).count();
        let agents = pluralize((definitions.len() - built_in) as u64, "agent");
        return if options.json {
            Ok(())
        } else {
            print_line(format!("{agents} and {built_in} built in, no errors"))
        };
    }
    let detail = format!("the agent folder has {}", pluralize(errors as u64, "error"));
    Err(Refusal::new(Code::BadArguments, detail).into())
}

/// Says that `*` stands for no tool, if there are none.
fn no_tools_note(definitions: &[AgentDefinition], tools: &Tools) -> Option<String> {
    if !tools.names().is_empty() {
        return None;
    }
    let with_all_tools: Vec<&str> = definitions
        .iter()
        .filter(|it| !it.native && it.tools.iter().any(|pattern| pattern == "*"))
        .map(|it| it.name.as_str())
        .collect();
    (!with_all_tools.is_empty()).then(|| {
        one_line(&format!(
            "note: there are no tools, so `*` in tools of {} stands for none: abide.yaml configures tools",
            with_all_tools.join(", ")
        ))
    })
}

/// Shows the numbers that the profile of an agent resolves to.
fn print_settings(options: &Options, definition: &AgentDefinition) -> Result<(), Failure> {
    let settings = json!(definition.settings());
    if options.json {
        return print_json(&json!({"agent": definition.name, "settings": settings}));
    }
    let name = settings["profile"].as_str().unwrap_or_default();
    print_line(one_line(&format!("{}: profile {name}", definition.name)))?;
    for part in ["limits", "context", "plan", "memory", "watchdog"] {
        let numbers = settings[part].as_object().into_iter().flatten();
        let numbers: Vec<String> =
            numbers.map(|(setting, value)| format!("{setting} {value}")).collect();
        print_line(one_line(&format!("  {part:<9} {}", numbers.join(", "))))?;
    }
    print_line(format!("  planning  {}", settings["planning"]))
}

/// Shows a problem: file, line, column, reason, code and suggestion.
fn print_problem(options: &Options, problem: &Problem) -> Result<(), Failure> {
    let error = &problem.error;
    let severity = if error.is_warning() { "warning" } else { "error" };
    if options.json {
        let (line, column) = problem.at.map(|at| (at.line, at.column)).unzip();
        return print_json(&json!({"path": problem.path.display().to_string(), "line": line,
            "column": column, "severity": severity, "code": error.code(), "error": error.to_string(),
            "suggestion": error.suggestion()}));
    }
    let hint = error.suggestion().map(|text| format!("\n  hint: {text}")).unwrap_or_default();
    let prefix = if error.is_warning() { "warning: " } else { "" };
    let reason = one_line(&problem.to_string());
    print_line(format!("{prefix}{reason}   [{}]{hint}", error.code()))
}
