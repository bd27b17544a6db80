//! The command line: its arguments, the file of each command, exit codes and the log.

use std::path::PathBuf;
use std::process::ExitCode;

use abide_agent::{AgentLoop, AgentLoops, Environment};
use abide_schema::Module;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::agent::connection_option;
#[cfg(feature = "demo")]
use crate::demo;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::{
    agent, backup, call, completions, environment, events, explain, identity, init, mcp, open,
    output, printable, prompt, replay, role, serve, sql, token, token_file, upgrade, usage, verify,
    watch,
};

/// A durable session engine for AI agents, in one SQLite file.
#[derive(Debug, Parser)]
#[command(name = "abide", version, propagate_version = true, after_help = AFTER_HELP)]
struct CommandLine {
    #[command(flatten)]
    options: Options,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Play recorded agent conversations, kill the server midway, and report what was lost
    #[cfg(feature = "demo")]
    Demo(demo::Demo),
    /// Serve a database file over HTTP, WebSocket and SSE
    Serve(serve::Serve),
    /// Serve MCP over stdin and stdout, for programs that start their MCP servers
    Mcp(mcp::Mcp),
    /// Open a database file for the programs of this user; the SDKs do so
    Open(open::Open),
    /// Create an empty database file
    Init(init::Init),
    /// Call a reducer; every change is a reducer call
    Call(call::Call),
    /// Run one read-only SQL statement
    Sql(sql::Sql),
    /// Watch a query: its rows and every change to them
    Watch(watch::Watch),
    /// Explain how a live query is evaluated and what it costs
    Explain(explain::Explain),
    /// Show the event log
    Events(events::Events),
    /// Create, list and revoke tokens
    Token(token::Token),
    /// Create, list and change identities
    Identity(identity::Identity),
    /// Create, list and remove roles
    Role(role::Role),
    /// Run, list and check agents
    Agent(agent::Agent),
    /// Store prompts with versions and labels
    Prompt(prompt::Prompt),
    /// Verify a file, event by event
    Verify(verify::Verify),
    /// Replay a log into a new file, up to any event
    Replay(replay::Replay),
    /// Copy a file, even while a server writes to it
    Backup(backup::Backup),
    /// Convert a file to the layout of new files
    Upgrade(upgrade::Upgrade),
    /// Print the completions of a shell
    Completions(completions::Completions),
    /// Write the manual pages, for packages
    #[command(hide = true)]
    Manual(completions::Manual),
}

async fn run(options: &Options, command: Command) -> Result<(), Failure> {
    command.check_connection(options)?;
    match command {
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(options, args).await,
        Command::Serve(args) => serve::run(options, args).await,
        Command::Mcp(args) => mcp::run(options, args).await,
        Command::Open(args) => open::run(options, args).await,
        Command::Init(args) => init::run(options, args).await,
        Command::Call(args) => call::run(options, args).await,
        Command::Sql(args) => sql::run(options, args).await,
        Command::Watch(args) => watch::run(options, args).await,
        Command::Explain(args) => explain::run(options, args).await,
        Command::Events(args) => events::run(options, args).await,
        Command::Token(args) => token::run(options, args).await,
        Command::Identity(args) => identity::run(options, args).await,
        Command::Role(args) => role::run(options, args).await,
        Command::Agent(args) => agent::run(options, args).await,
        Command::Prompt(args) => prompt::run(options, args).await,
        Command::Verify(args) => verify::run(options, args),
        Command::Replay(args) => replay::run(options, args),
        Command::Backup(args) => backup::run(options, args),
        Command::Upgrade(args) => upgrade::run(options, args),
        Command::Completions(args) => completions::run(CommandLine::command(), &args),
        Command::Manual(args) => completions::write_manual(CommandLine::command(), &args),
    }
}

const AFTER_HELP: &str = "\
Start with:
  abide serve   and in another terminal   abide watch \"SELECT * FROM sessions\"

Exit codes:
  0  success
  1  refused by Abide or by the system; stderr has the reason, its code and a hint
  2  invalid command line
  3  no server answers
  4  a file, or the demo, failed verification
  5  a run waits for a person; stderr has the commands that decide and continue it
  130  Ctrl-C; stderr has the command that continues a run
  141  stdout was closed before a run ended; stderr has the command that continues it";

impl Command {
    /// Refuses the options of connections that the command would ignore.
    fn check_connection(&self, options: &Options) -> Result<(), Failure> {
        let hint = match self {
            #[cfg(feature = "demo")]
            Command::Demo(_) => "leave out --url: the demo starts a server of its own",
            Command::Serve(_) => "--listen is the address at which the server listens",
            Command::Init(_) => "name the file: `abide init --db FILE`",
            Command::Open(_) => "name the file: `abide open FILE`",
            Command::Verify(_) => "name the file: `abide verify FILE`",
            Command::Replay(_) => "name the file: `abide replay FILE --into COPY`",
            Command::Upgrade(_) => "name the file: `abide upgrade FILE`",
            _ => return Ok(()),
        };
        if options.is_url_typed {
            let detail = "the command works on a file, not on the server that --url names";
            return Err(Failure::usage(detail, hint));
        }
        let has_file =
            matches!(self, Command::Verify(_) | Command::Replay(_) | Command::Upgrade(_));
        if has_file && options.db.is_some() {
            let detail = "the file is an argument of the command, not the option --db";
            return Err(Failure::usage(detail, hint));
        }
        Ok(())
    }

    /// Whether it sends a token to a server, or requires one.
    fn uses_token(&self, options: &Options) -> bool {
        match self {
            Command::Serve(_) => true,
            #[cfg(feature = "demo")]
            Command::Demo(_) => false,
            Command::Open(_)
            | Command::Init(_)
            | Command::Verify(_)
            | Command::Replay(_)
            | Command::Backup(_)
            | Command::Upgrade(_)
            | Command::Completions(_)
            | Command::Manual(_) => false,
            _ => options.db.is_none(),
        }
    }

    /// Whether it starts the programs of a folder of agents.
    fn starts_programs(&self, options: &Options) -> bool {
        match self {
            Command::Serve(args) => args.drives_agents(),
            Command::Mcp(args) => args.drives_agents(),
            Command::Agent(args) => args.drives_agents(options),
            _ => false,
        }
    }
}

/// A program with the complete command line of `abide`, and with modules and loops of its own.
///
/// ```no_run
/// use abide::agents::{AgentLoop, BoxFuture, LoopError, LoopRun};
///
/// /// Answers without a model.
/// struct Echo;
///
/// impl AgentLoop for Echo {
///     fn drive<'a>(&'a self, run: &'a mut LoopRun<'_>) -> BoxFuture<'a, Result<String, LoopError>> {
///         Box::pin(async move { Ok(format!("{} messages", run.messages().len())) })
///     }
/// }
///
/// fn main() -> std::process::ExitCode {
///     abide::Program::new().agent_loop("echo", Echo).main()
/// }
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct Program {
    modules: Vec<Module>,
    agent_loops: AgentLoops,
}

impl Program {
    /// Returns the program `abide`.
    pub fn new() -> Program {
        Program::default()
    }

    /// Adds modules to the built-in ones: `serve` serves their tables and reducers, `replay` and `verify --replay` run their calls
    /// again, and commands with `--db` open files that contain their rows.
    pub fn modules(mut self, modules: impl IntoIterator<Item = Module>) -> Program {
        self.modules.extend(modules);
        self
    }

    /// Adds a loop that drives the runs of agents in place of the built-in one. Definitions select it with `loop: NAME`.
    pub fn agent_loop(mut self, name: impl Into<String>, agent_loop: impl AgentLoop) -> Program {
        self.agent_loops.add(name, agent_loop);
        self
    }

    /// Runs the command line of this process. Returns the exit code of the command.
    #[must_use]
    pub fn main(self) -> ExitCode {
        run_command_line(self)
    }
}

/// Runs the complete command line with modules in addition to the built-in ones, see [`Program::modules`]. Returns the exit code
/// of the command.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     abide::main(Vec::new())
/// }
/// ```
#[must_use]
pub fn main(modules: Vec<Module>) -> ExitCode {
    Program::new().modules(modules).main()
}

fn run_command_line(program: Program) -> ExitCode {
    // The program of a sandbox is started by a second process of this executable.
    if let Some(code) = abide_agent::sandbox_exec() {
        return code;
    }
    let CommandLine { mut options, command } = match parse() {
        Ok(parsed) => parsed,
        Err(error) if usage::is_help(&error) => error.exit(),
        Err(error) => {
            return report_failure(
                &usage::to_failure(&error, &CommandLine::command()),
                asks_for_json(),
            );
        }
    };
    options.modules = program.modules;
    options.agent_loops = program.agent_loops;
    start_log(&command);
    match run_in_runtime(&mut options, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report_failure(&failure.with_hint_option(&connection_option(&options)), options.json)
        }
    }
}

/// Parses the command line of this process.
fn parse() -> Result<CommandLine, clap::Error> {
    let mut words: Vec<_> = std::env::args_os().collect();
    // `abide help --help` is `abide help`.
    if words.get(1).is_some_and(|word| word == "help")
        && words.get(2).is_some_and(|word| word == "--help" || word == "-h")
    {
        words.remove(2);
    }
    let mut matches = CommandLine::command().try_get_matches_from(words)?;
    let source = matches.value_source("url");
    let is_token_typed = matches.value_source("token") == Some(ValueSource::CommandLine);
    let is_token_file_typed = matches.value_source("token_file") == Some(ValueSource::CommandLine);
    let mut parsed = CommandLine::from_arg_matches_mut(&mut matches)
        .map_err(|error| error.format(&mut CommandLine::command()))?;
    // The address in the environment is that of commands without --db.
    if source == Some(ValueSource::CommandLine) && parsed.options.db.is_some() {
        return Err(conflict("--url", "--db"));
    }
    if is_token_typed && is_token_file_typed {
        return Err(conflict("--token", "--token-file"));
    }
    parsed.options.is_token_file_typed = is_token_file_typed;
    parsed.options.is_url_named = source.is_some_and(|it| it != ValueSource::DefaultValue);
    parsed.options.is_url_typed = source == Some(ValueSource::CommandLine);
    Ok(parsed)
}

/// The error of two options that contradict each other.
fn conflict(option: &str, other: &str) -> clap::Error {
    let mut conflict = clap::Error::new(ErrorKind::ArgumentConflict);
    for (kind, option) in [(ContextKind::InvalidArg, option), (ContextKind::PriorArg, other)] {
        conflict.insert(kind, ContextValue::String(option.to_owned()));
    }
    conflict
}

fn report_failure(failure: &Failure, as_json: bool) -> ExitCode {
    failure.print(as_json);
    failure.exit_code()
}

/// Whether a command line that cannot be parsed asks for JSON.
fn asks_for_json() -> bool {
    std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json")
}

/// Logs go to stderr. `serve`, or any command with `ABIDE_LOG`, writes log records. Other commands print warnings as
/// plain lines.
fn start_log(command: &Command) {
    let requested = std::env::var("ABIDE_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let is_plain = requested.is_none() && !matches!(command, Command::Serve(_));
    let filter = match requested {
        Some(requested) => limit_libraries(&requested),
        // A statement with an error is the caller's, and an unusual message is of the other side: both have an answer
        // of their own, and these libraries log them a second time.
        None => Targets::new()
            .with_default(LevelFilter::WARN)
            .with_target("sqlite3Parser", LevelFilter::OFF)
            .with_target("rmcp", LevelFilter::OFF),
    };
    let layer =
        tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| printable::LogWriter);
    let layer =
        if is_plain { layer.event_format(output::PlainRecord).boxed() } else { layer.boxed() };
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
}

/// Returns a requested filter that lets only warnings of libraries pass, unless it names their targets: at `debug` they
/// log tokens and messages.
fn limit_libraries(requested: &Targets) -> Targets {
    let mut filter = Targets::new();
    if let Some(level) = requested.default_level() {
        // A target is also the prefix of others: this is every crate of Abide.
        filter = filter.with_default(level.min(LevelFilter::WARN)).with_target("abide", level);
    }
    filter.with_targets(requested.iter())
}

fn run_in_runtime(options: &mut Options, command: Command) -> Result<(), Failure> {
    let environment = if command.starts_programs(options) {
        environment::hide()?
    } else {
        Environment::of_process()
    };
    options.token = find_token(options, &environment, command.uses_token(options))?;
    options.environment = environment;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(options, command))
}

/// Returns the token of this command. What is typed comes before the environment, and a token before a file. The file is
/// read only if the command uses it.
///
/// # Errors
/// The file of the token cannot be read.
fn find_token(
    options: &Options,
    environment: &Environment,
    reads_file: bool,
) -> Result<Option<String>, Failure> {
    let variable = |name: &str| environment.value(name).map(str::to_owned);
    if !options.is_token_file_typed {
        let token = options.token.clone().or_else(|| variable("ABIDE_TOKEN"));
        if token.is_some() {
            return Ok(token);
        }
    }
    if !reads_file {
        return Ok(None);
    }
    let file = options.token_file.clone();
    let file = file.or_else(|| variable("ABIDE_TOKEN_FILE").map(PathBuf::from));
    Ok(file.map(|file| token_file::read(&file)).transpose()?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tracing::Level;

    use super::*;

    /// Regression: `ABIDE_LOG=debug` logged the messages of WebSockets and the tokens of YAML files.
    #[test]
    fn libraries_log_warnings_unless_they_are_named() {
        for (requested, target, level, is_logged) in [
            ("debug", "abide_server::serve", Level::DEBUG, true),
            ("debug", "abide_server::serve", Level::TRACE, false),
            ("debug", "scanner", Level::DEBUG, false),
            ("trace", "tungstenite::protocol", Level::INFO, false),
            ("trace", "tungstenite::protocol", Level::WARN, true),
            ("error", "tungstenite::protocol", Level::WARN, false),
            ("info,tungstenite=debug", "tungstenite::protocol", Level::DEBUG, true),
            ("info,abide_engine=debug", "abide_engine::commit", Level::DEBUG, true),
            ("debug,abide_engine=warn", "abide_engine::commit", Level::INFO, false),
            ("abide_engine=debug", "abide_server::serve", Level::ERROR, false),
            ("off", "abide_server::serve", Level::ERROR, false),
        ] {
            let parsed = requested.parse::<Targets>().expect("it is a filter");
            let filter = limit_libraries(&parsed);
            assert_eq!(filter.would_enable(target, &level), is_logged, "{requested} {target}");
        }
    }

    #[test]
    fn the_command_line_is_sound_and_every_command_teaches() {
        CommandLine::command().debug_assert();
        for command in CommandLine::command().get_subcommands() {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Examples:\n"), "{help}");
            // A longer line of the examples is broken in its middle.
            let long = help.lines().find(|line| line.chars().count() > 100);
            assert_eq!(long, None, "of {}", command.get_name());
        }
    }

    /// The files of the crates whose texts the program prints.
    fn collect_sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("it can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !["tests", "examples"].contains(&&*name) {
                collect_sources(&path, found);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                found.push(path);
            }
        }
    }

    /// The commands in the texts of a file: those in backticks, or at the beginning of a text.
    fn find_commands(text: &str) -> Vec<String> {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = lines.collect::<Vec<_>>().join("\n");
        let mut found = Vec::new();
        for start in ["`abide ", "\"abide ", "then: abide ", "; abide "] {
            for (at, _) in code.match_indices(start) {
                let command = &code[at + start.len()..];
                let mut end = command.find(['`', '\n', ';', '—']).unwrap_or(command.len());
                if let Some(quote) = command[..end]
                    .match_indices('"')
                    .find(|(at, _)| !command[..*at].ends_with('\\'))
                {
                    end = quote.0;
                }
                let line = command[..end].replace("{where_to}", "").replace("\\\"", "\"");
                if !line.trim().is_empty() {
                    found.push(line);
                }
            }
        }
        found
    }

    /// A hint named a command that does not exist, an option that the command does not have, or a command that used another file.
    /// The class: a command that is printed and does not run as it is printed.
    #[test]
    fn the_commands_of_hints_exist_and_name_the_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = Vec::new();
        for folder in ["cli", "agent", "server", "reducers", "engine", "schema", "client-sdk/rust"]
        {
            collect_sources(&root.join(folder), &mut files);
        }
        let all = CommandLine::command();
        let mut count = 0;
        for file in files {
            let text = fs::read_to_string(&file).expect("it is text");
            for line in find_commands(&text) {
                let shown = format!("abide {line} in {}", file.display());
                let mut command = &all;
                for word in line.split_whitespace() {
                    let word = word.split('{').next().unwrap_or_default();
                    let Some(below) = command.find_subcommand(word) else { break };
                    command = below;
                }
                let is_command = command.get_name() != all.get_name();
                assert!(is_command || line.starts_with(['{', '…', '-']), "no command: {shown}");
                let options = line.split_whitespace().filter_map(|word| word.strip_prefix("--"));
                for option in options.filter(|option| !option.is_empty()) {
                    let option = option.trim_end_matches(|c: char| !c.is_alphanumeric());
                    let own = command.get_arguments().chain(all.get_arguments());
                    let mut known = own.filter_map(clap::Arg::get_long);
                    assert!(known.any(|known| known == option), "no option --{option}: {shown}");
                }
                count += 1;
            }
        }
        assert!(count > 100, "{count} commands were found");
    }
}
