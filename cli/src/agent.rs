//! `abide agent`: agents of a folder, run from the terminal. A run is rows: the same command again, with the same
//! `--id`, goes on where the last one was killed.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use abide_agent::{AgentDefinition, AgentEvent, Events, Runtime, RuntimeError, Settings, Workshop};
use abide_client::{Abide, ApprovalOf, Decision, NewRun, NewSession, RunEventKind};
use abide_engine::Engine;
use abide_schema::{Code, Refusal};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::connect::{Absent, connect};
use crate::failure::Failure;
use crate::options::Options;
use crate::output::{say, say_json};
use crate::terminal::Terminal;

/// What `abide agent` is given.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Agent {
    #[command(subcommand)]
    what: What,

    /// The folder with abide.yaml (models and tools) and agents/
    #[arg(long, global = true, value_name = "FOLDER", default_value = ".abide")]
    agents: PathBuf,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Run an agent with an input, and show what it does
    Run(Run),
    /// Show the agents that there are
    List,
    /// Read every definition, and say what is wrong with those that are none
    Check,
}

#[derive(Args, Debug)]
struct Run {
    /// The agent
    name: String,

    /// What the user says
    input: String,

    /// An id of your own for the session and its run; the same again goes on with it
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Approve whatever waits for approval, without asking
    #[arg(long)]
    yes: bool,
}

const EXAMPLES: &str = "\
Examples:
  abide agent list
  abide agent check
  abide --db agents.db agent run clerk \"Where is my parcel?\"
  abide --db agents.db agent run clerk \"Pay it back.\" --id order-7   # killed? the same again goes on
  abide agent run clerk \"Hello\" --url http://127.0.0.1:7341          # a server with --agents drives it

With --db the runs of that file are driven here; without it by whoever drives those of the server.
Approvals are asked for at the prompt; where there is none the run waits, and says how to decide.";

/// Runs it.
///
/// # Errors
/// The folder, the file or the server cannot be worked with.
pub(crate) async fn run(options: &Options, args: Agent) -> Result<(), Failure> {
    match args.what {
        What::List => list(options, &args.agents).await,
        What::Check => check(options, &args.agents).await,
        What::Run(run) => start(options, &args.agents, run).await,
    }
}

async fn open(folder: &Path) -> Result<Workshop, Failure> {
    Workshop::open(folder).await.map_err(|why| {
        let hint = "docs/agents.md tells what stands in the folder";
        Refusal::new(Code::BadArguments, why.to_string()).hint(hint).into()
    })
}

async fn list(options: &Options, folder: &Path) -> Result<(), Failure> {
    let (definitions, problems) = open(folder).await?.catalog.read();
    for definition in definitions.iter().filter(|it| !it.hidden) {
        if options.json {
            say_json(definition)?;
        } else {
            say(line(definition))?;
        }
    }
    if !problems.is_empty() && !options.json {
        let files = problems.len();
        say(format!("{files} more of the files are no definition: abide agent check"))?;
    }
    Ok(())
}

fn line(definition: &AgentDefinition) -> String {
    let mode = json!(definition.mode);
    let mode = mode.as_str().unwrap_or_default();
    let about = definition.description.as_deref().unwrap_or_default();
    format!("{:<20}  {mode:<8}  {about}", definition.name)
}

async fn check(options: &Options, folder: &Path) -> Result<(), Failure> {
    let (definitions, problems) = open(folder).await?.catalog.read();
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
            false => say(format!("{} agents, nothing is wrong with them", definitions.len())),
        };
    }
    let detail = format!("{} of the files are no definition of an agent", problems.len());
    Err(Refusal::new(Code::BadArguments, detail).into())
}

/// A runtime at work beside whatever else this process does.
pub(crate) struct Household {
    abide: Abide,
    stop: CancellationToken,
    runtime: JoinHandle<Result<(), RuntimeError>>,
    /// They live as long as their tools are called.
    _servers: Vec<abide_agent::McpServer>,
}

impl Household {
    /// Drives the runs of an engine in this process.
    ///
    /// # Errors
    /// The folder cannot be worked with.
    pub(crate) async fn open(folder: &Path, engine: &Engine) -> Result<Household, Failure> {
        Household::over(folder, Abide::embed(engine.clone())).await
    }

    async fn over(folder: &Path, abide: Abide) -> Result<Household, Failure> {
        let Workshop { models, tools, catalog, servers } = open(folder).await?;
        // One file has one process, so the name is free whenever this begins.
        let settings = Settings::named("abide");
        let runtime = Runtime::new(abide.clone(), models, tools, catalog, settings);
        for problem in runtime.register().await? {
            let (path, error) = (problem.path.display().to_string(), &problem.error);
            tracing::warn!(path, %error, "no definition of an agent");
        }
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::spawn(async move { runtime.run(stopped).await });
        Ok(Household { abide, stop, runtime, _servers: servers })
    }

    /// Lets the runs go; they go on when the next one opens.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        match self.runtime.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the runs of agents are not driven any more"),
            Err(error) => tracing::error!(%error, "the runtime of agents ended badly"),
        }
    }
}

async fn start(options: &Options, folder: &Path, args: Run) -> Result<(), Failure> {
    let abide = connect(options, Absent::Make).await?;
    let household = match options.db {
        Some(_) => Some(Household::over(folder, abide.clone()).await?),
        None => None,
    };
    let told = follow(options, &abide, args).await;
    if let Some(household) = household {
        let abide = household.abide.clone();
        household.close().await;
        abide.close().await;
    }
    told
}

/// Begins the run, or finds it, and shows what it tells until it is over or waits.
async fn follow(options: &Options, abide: &Abide, args: Run) -> Result<(), Failure> {
    let session = NewSession { id: args.id.clone(), ..NewSession::of(&args.name) };
    let session_id = match abide.create_session(session).await {
        Ok(session) => session.id.clone(),
        Err(error) if error.code() == Some(Code::Conflict) => args.id.clone().unwrap_or_default(),
        Err(error) => return Err(error.into()),
    };
    let run = NewRun { id: args.id.clone(), ..NewRun::of(&session_id).input(&args.input) };
    let run = abide.start_run(run).await?.into_inner();
    let mut view = View { terminal: Terminal::of_stdout(), json: options.json, open: false };
    let mut events = Events::of(abide, &run.id, 0).await?;
    while let Some(event) = events.next().await? {
        view.show(&event)?;
        if event.ends_run() {
            return ended(&event);
        }
        if event.kind == RunEventKind::Interrupt && !decide(abide, &event, args.yes).await? {
            return Ok(());
        }
    }
    Ok(())
}

fn ended(event: &AgentEvent) -> Result<(), Failure> {
    if event.kind == RunEventKind::Done {
        return Ok(());
    }
    let text = |name: &str| event.data[name].as_str().unwrap_or_default().to_owned();
    let detail = format!("the run ended with {}: {}", text("code"), text("message"));
    Err(Refusal::new(Code::BadTransition, detail).into())
}

/// Decides on what waits for approval. Whether all of it is decided.
async fn decide(abide: &Abide, interrupt: &AgentEvent, yes: bool) -> Result<bool, Failure> {
    let requests = interrupt.data["action_requests"].as_array().cloned().unwrap_or_default();
    for request in &requests {
        let call_id = request["tool_call_id"].as_str().unwrap_or_default();
        if is_decided(abide, call_id).await? {
            continue;
        }
        let decision = match (request["status"].as_str(), yes) {
            (Some("awaiting_approval"), true) => Decision::Approve,
            (Some("awaiting_approval"), false) if io::stdin().is_terminal() => asked(request)?,
            _ => {
                say(format!(
                    "waits: {} {}\n  abide call decide_approval call_id={call_id} decision=approve",
                    request["tool_name"].as_str().unwrap_or_default(),
                    request["args"]
                ))?;
                return Ok(false);
            }
        };
        let approval = ApprovalOf::Call(call_id.to_owned());
        abide.decide_approval(approval, decision).await?;
    }
    Ok(!requests.is_empty())
}

/// Whether somebody has decided on a call already, when its run is shown again.
async fn is_decided(abide: &Abide, call_id: &str) -> Result<bool, Failure> {
    let sql = "SELECT count(*) FROM tool_calls WHERE call_id = :id AND status NOT IN \
               ('awaiting_approval', 'unknown')";
    let found: Vec<(i64,)> = abide.sql(sql).param("id", call_id).fetch().await?;
    Ok(found.first().is_some_and(|(count,)| *count > 0))
}

fn asked(request: &Value) -> Result<Decision, Failure> {
    let name = request["tool_name"].as_str().unwrap_or_default();
    let mut out = io::stdout().lock();
    write!(out, "\n{name} {}  — let it run? [y/N] ", request["args"])?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(Decision::Approve),
        _ => Ok(Decision::Reject),
    }
}

/// What a person, or a program, is shown of a run.
struct View {
    terminal: Terminal,
    json: bool,
    /// Whether a line of the answer is begun.
    open: bool,
}

impl View {
    fn show(&mut self, event: &AgentEvent) -> Result<(), Failure> {
        if self.json {
            return say_json(&json!({"id": event.id, "number": event.number, "turn": event.turn,
                "event": event.kind.as_str(), "data": event.data}));
        }
        let data = &event.data;
        let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
        match event.kind {
            RunEventKind::Token => {
                self.open = true;
                let mut out = io::stdout().lock();
                write!(out, "{}", text("content"))?;
                Ok(out.flush()?)
            }
            RunEventKind::ToolCall => self.aside(&format!("→ {} {}", text("name"), data["args"])),
            RunEventKind::ToolResult => self.aside(&format!("← {}", first_line(&text("output")))),
            RunEventKind::Delegation => {
                self.aside(&format!("⇢ {}: {}", text("to_agent"), text("task")))
            }
            RunEventKind::Restart => self.aside(&format!("… {}; asked again", text("error"))),
            RunEventKind::Usage => match (&data["input_tokens"], &data["output_tokens"]) {
                (Value::Number(input), Value::Number(output)) => {
                    self.aside(&format!("{input} tokens in, {output} out"))
                }
                _ => Ok(()),
            },
            RunEventKind::Done => self.line(),
            _ => Ok(()),
        }
    }

    /// A line of its own, that is not the answer.
    fn aside(&mut self, text: &str) -> Result<(), Failure> {
        self.line()?;
        say(self.terminal.dim(text))
    }

    fn line(&mut self) -> Result<(), Failure> {
        match std::mem::take(&mut self.open) {
            true => say(""),
            false => Ok(()),
        }
    }
}

/// The beginning of a text that is told elsewhere in full.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let cut: String = line.chars().take(100).collect();
    if cut.len() < text.trim_end().len() { format!("{cut} …") } else { cut }
}
