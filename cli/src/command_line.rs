//! The command line: its arguments, the file of each command, and exit codes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use abide_agent::{AgentLoop, AgentLoops, Environment};
use abide_schema::Module;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::agent::{connection_option, server_option};
use crate::configuration::{Configuration, Origin};
#[cfg(feature = "demo")]
use crate::demo;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::logging::LoggedProcess;
use crate::stderr::FlushGuard;
use crate::{
    agent, backup, call, completions, config, db, dev, environment, events, explain, health,
    identity, init, logging, mcp, open, prompt, replay, role, serve, sql, stderr, token,
    token_source, upgrade, usage, verify, watch,
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
    /// Create a project: an agent, a tool and their configuration
    Init(init::Init),
    /// Serve the agents of a project, and read them again when they change
    Dev(dev::Dev),
    /// Serve a database file over HTTP, WebSocket and SSE
    Serve(serve::Serve),
    /// Serve MCP over stdin and stdout, for programs that start their MCP servers
    Mcp(mcp::Mcp),
    /// Open a database file for the programs of this user; the SDKs do so
    Open(open::Open),
    /// Create a database file
    Db(db::Db),
    /// Check and show the configuration
    Config(config::Config),
    /// Ask a server whether it accepts calls
    Health(health::Health),
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
    /// Migrate a file to the tables and the page layout of this version
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
        Command::Init(args) => init::run(options, args),
        Command::Dev(args) => dev::run(options, args).await,
        Command::Serve(args) => serve::run(options, args).await,
        Command::Mcp(args) => mcp::run(options, args).await,
        Command::Open(args) => open::run(options, args).await,
        Command::Db(args) => db::run(options, args).await,
        Command::Config(args) => config::run(options, args).await,
        Command::Health(args) => health::run(options, args).await,
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
  abide init   and then   abide agent chat default

Every option is also a key of the file abide.toml and a variable ABIDE_…: `abide config show` lists
them.

Exit codes:
  0  success
  1  refused by Abide or by the system; stderr has the reason, its code and a hint
  2  invalid command line or configuration
  3  no server answers
  4  a file, or the demo, failed verification
  5  a run waits for a person; stderr has the commands that decide and continue it
  130  Ctrl-C; stderr has the command that continues a run
  141  stdout was closed before a run ended; stderr has the command that continues it";

impl Command {
    /// Refuses the options of connections that the command would ignore.
    fn check_connection(&self, options: &Options) -> Result<(), Failure> {
        let is_server = matches!(self, Command::Serve(_) | Command::Dev(_));
        if is_server && options.configuration.origin("cert") == Origin::CommandLine {
            let detail = "--cert and --key are the certificate of a client, and this is a server";
            return Err(Failure::usage(detail, "give --tls-cert FILE --tls-key FILE"));
        }
        let hint = match self {
            #[cfg(feature = "demo")]
            Command::Demo(_) => "leave out --url: the demo starts a server of its own",
            Command::Serve(_) | Command::Dev(_) => {
                "--listen is the address at which the server listens"
            }
            Command::Init(_) => "`abide init --help` describes the options",
            Command::Db(_) => usage::CREATE_FILE,
            Command::Open(_) => usage::OPEN_FILE,
            Command::Verify(_) => usage::VERIFY_FILE,
            Command::Replay(_) => usage::REPLAY_FILE,
            Command::Upgrade(_) => usage::UPGRADE_FILE,
            _ => return Ok(()),
        };
        if options.is_url_typed {
            let detail = "the command works on a file, not on the server that --url names";
            return Err(Failure::usage(detail, hint));
        }
        let has_file = matches!(
            self,
            Command::Db(_) | Command::Verify(_) | Command::Replay(_) | Command::Upgrade(_)
        );
        if has_file && options.db.is_some() {
            return Err(Failure::usage(usage::FILE_IS_ARGUMENT, hint));
        }
        Ok(())
    }

    /// Whether it uses the file or the server that the options name.
    fn connects(&self) -> bool {
        matches!(
            self,
            Command::Health(_)
                | Command::Call(_)
                | Command::Sql(_)
                | Command::Watch(_)
                | Command::Explain(_)
                | Command::Events(_)
                | Command::Token(_)
                | Command::Identity(_)
                | Command::Role(_)
                | Command::Prompt(_)
                | Command::Mcp(_)
        )
    }

    /// Whether it opens the database of the options, and uses no server.
    fn opens_database(&self) -> bool {
        matches!(self, Command::Serve(_) | Command::Dev(_) | Command::Backup(_))
    }

    /// `serve` and `dev` write records; other commands do only if the environment asks for them.
    fn logged_process(&self) -> LoggedProcess {
        match self {
            Command::Serve(args) => LoggedProcess::Server(args.log_format()),
            Command::Dev(args) => LoggedProcess::Server(args.log_format()),
            Command::Mcp(_) | Command::Open(_) => LoggedProcess::Helper,
            _ => LoggedProcess::Command,
        }
    }

    /// Whether it works without a configuration, so that a mistake in the file does not prevent it.
    fn ignores_mistakes(&self) -> bool {
        matches!(
            self,
            Command::Init(_)
                | Command::Config(_)
                | Command::Open(_)
                | Command::Completions(_)
                | Command::Manual(_)
        )
    }

    /// Whether it sends a token, or requires one of its clients.
    fn uses_token(&self, options: &Options) -> bool {
        match self {
            Command::Serve(_) | Command::Dev(_) => true,
            // The file of a folder can have a server.
            Command::Agent(_) => !options.is_db_typed,
            Command::Health(_) => false,
            _ => self.connects() && options.db.is_none(),
        }
    }

    /// Whether it starts the programs of a folder of agents.
    fn starts_programs(&self, options: &Options) -> bool {
        match self {
            Command::Serve(args) => args.drives_agents(),
            Command::Dev(_) => true,
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
        Err(Unparsed::Help(error)) => error.exit(),
        Err(Unparsed::Failed(failure)) => return report_failure(&failure, asks_for_json()),
    };
    options.modules = program.modules;
    options.agent_loops = program.agent_loops;
    // Its lines are in the order in which they were written, also those of the failure.
    let _guard = FlushGuard;
    if let Err(failure) = logging::start(command.logged_process()) {
        return report_failure(&failure, options.json);
    }
    if matches!(command.logged_process(), LoggedProcess::Server(_)) {
        // A process that hides its environment does not have them after it has executed itself again.
        warn_of_misspelled_variables(&options.configuration);
    }
    let connects = command.connects();
    match run_in_runtime(&mut options, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let failure = failure.hide_password_of(&options.url);
            let failure = failure.with_hint_option(&connection_option(&options));
            let uses_default_server = connects && options.db.is_none() && !options.is_url_named;
            let failure = if uses_default_server {
                // Commands of agents have a file by default.
                failure.with_agent_hint_option(&server_option(&options))
            } else {
                failure
            };
            report_failure(&failure, options.json)
        }
    }
}

/// Logs the variables that look like those of options and have no effect.
fn warn_of_misspelled_variables(configuration: &Configuration) {
    for (variable, meant) in configuration.misspelled_variables() {
        tracing::warn!(name: "variable_ignored", variable, meant, "a variable has no effect: its name is not the one of an option");
    }
}

/// A command line that runs no command.
enum Unparsed {
    /// It asks for help or the version.
    Help(clap::Error),
    /// It is invalid, or the configuration is.
    Failed(Failure),
}

/// Parses the command line of this process, with the configuration.
fn parse() -> Result<CommandLine, Unparsed> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    // `abide help --help` is `abide help`.
    if words.get(1).is_some_and(|word| word == "help")
        && words.get(2).is_some_and(|word| word == "--help" || word == "-h")
    {
        words.remove(2);
    }
    let (program, mut configuration) = Configuration::apply(CommandLine::command(), &words);
    let mistake = configuration.problems.first().map(|problem| {
        let others = configuration.problems.len() - 1;
        Unparsed::Failed(problem.to_failure(others))
    });
    let mut matches = match program.try_get_matches_from(words.clone()) {
        Ok(matches) => matches,
        Err(error) if usage::is_help(&error) => {
            // The help has the defaults of the program, not those of the file.
            let plain = CommandLine::command().try_get_matches_from(words).err();
            return Err(Unparsed::Help(plain.filter(usage::is_help).unwrap_or(error)));
        }
        // A mistake in the file can be the cause.
        Err(error) => {
            return Err(mistake.unwrap_or_else(|| usage_failure(&error)));
        }
    };
    configuration.typed = typed_options(&matches);
    let is_agents_folder_named = names_agents_folder(&matches, &configuration);
    let parsed = CommandLine::from_arg_matches_mut(&mut matches);
    let mut parsed =
        parsed.map_err(|error| usage_failure(&error.format(&mut CommandLine::command())))?;
    if let Some(mistake) = mistake.filter(|_| !parsed.command.ignores_mistakes()) {
        return Err(mistake);
    }
    choose_database(&mut parsed, &configuration).map_err(|error| usage_failure(&error))?;
    parsed.options.is_agents_folder_named = is_agents_folder_named;
    parsed.options.configuration = Arc::new(configuration);
    Ok(parsed)
}

fn usage_failure(error: &clap::Error) -> Unparsed {
    Unparsed::Failed(usage::to_failure(error, &CommandLine::command()))
}

/// The global options of the command line, by name, with their values.
fn typed_options(matches: &ArgMatches) -> BTreeMap<String, String> {
    let program = CommandLine::command();
    let mut typed = BTreeMap::new();
    for option in program.get_arguments() {
        let id = option.get_id().as_str();
        let Some(long) = option.get_long() else { continue };
        if matches.value_source(id) == Some(ValueSource::CommandLine) {
            let values = matches.get_raw(id).into_iter().flatten();
            let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
            let is_secret = option.is_hide_env_values_set();
            let value = if is_secret { "set".to_owned() } else { values.join(",") };
            typed.insert(long.to_owned(), value);
        }
    }
    typed
}

/// The option that names the folder of agents, in each command that has one.
const AGENTS_OPTION: &str = "agents";

/// Returns `true` if the command line, a variable or the file of the configuration names the folder of agents.
fn names_agents_folder(all: &ArgMatches, configuration: &Configuration) -> bool {
    let mut section: Vec<&str> = Vec::new();
    let mut matches = all;
    loop {
        // It is an error if the command has no such option.
        if matches.try_contains_id(AGENTS_OPTION).is_ok() {
            let source = matches.value_source(AGENTS_OPTION);
            if matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
                return true;
            }
            // The values of the file are the defaults of the parser.
            let words: Vec<&str> = section.iter().copied().chain([AGENTS_OPTION]).collect();
            if configuration.origin(&words.join(".")) != Origin::Default {
                return true;
            }
        }
        let Some((name, below)) = matches.subcommand() else { return false };
        section.push(name);
        matches = below;
    }
}

/// Decides between the file and the server, if both have a value: the command line comes before the environment, and that
/// before the file. In the same place the server is for commands that use one, and the file for the others.
///
/// # Errors
/// The command line names both.
fn choose_database(
    parsed: &mut CommandLine,
    configuration: &Configuration,
) -> Result<(), clap::Error> {
    let CommandLine { options, command } = parsed;
    let url = configuration.origin("url");
    let db = configuration.origin("db");
    let is_db_typed = db == Origin::CommandLine;
    let is_url_typed = url == Origin::CommandLine;
    if is_db_typed && is_url_typed {
        let mut conflict = clap::Error::new(ErrorKind::ArgumentConflict);
        for (kind, option) in [(ContextKind::InvalidArg, "--url"), (ContextKind::PriorArg, "--db")]
        {
            conflict.insert(kind, ContextValue::String(option.to_owned()));
        }
        return Err(conflict);
    }
    let is_server_chosen = url != Origin::Default && url.rank() >= db.rank();
    let is_database_used = if command.connects() || matches!(command, Command::Agent(_)) {
        !is_server_chosen
    } else {
        // Others have a file as an argument, or none.
        command.opens_database()
    };
    if !is_db_typed && !is_database_used {
        options.db = None;
    }
    options.is_db_typed = is_db_typed;
    options.is_url_typed = is_url_typed;
    options.is_url_named = url != Origin::Default;
    Ok(())
}

fn report_failure(failure: &Failure, as_json: bool) -> ExitCode {
    // A queue that is full would drop it.
    stderr::flush();
    failure.print(as_json);
    failure.exit_code()
}

/// Whether a command line that cannot be parsed asks for JSON.
fn asks_for_json() -> bool {
    std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json")
}

fn run_in_runtime(options: &mut Options, mut command: Command) -> Result<(), Failure> {
    let environment = if command.starts_programs(options) {
        environment::hide(&options.configuration.public_variables())?
    } else {
        Environment::of_process()
    };
    if let Command::Serve(args) = &mut command {
        // Before a second thread starts.
        args.take_passed_listener()?;
    }
    if command.logged_process() != LoggedProcess::Command {
        stderr::start_queue();
    }
    options.environment = environment;
    if command.connects() {
        options.prefer_server();
    }
    if command.uses_token(options) {
        let token = token_source::find(options)?;
        if let Some(token) = token.as_ref().filter(|_| !command.opens_database()) {
            token_source::check_address(options, token)?;
        }
        options.token = token.map(|token| token.secret);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Failure::system("the process cannot start", &why))?;
    let ended = runtime.block_on(run(options, command));
    // A read of a folder in a network, or of a pipe, can take for ever. Nobody waits for its result any more.
    runtime.shutdown_timeout(BLOCKED_THREADS);
    ended
}

/// How long threads that wait for the system may hold up the end of the process.
const BLOCKED_THREADS: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// An option of a command had the variable of another one, or a variable that does not follow from its name.
    #[test]
    fn every_option_has_a_variable_of_its_own() {
        let words = [OsString::from("abide")];
        let (program, configuration) = Configuration::apply(CommandLine::command(), &words);
        program.debug_assert();
        let mut variables: Vec<&str> =
            configuration.settings.iter().map(|setting| setting.variable.as_str()).collect();
        let count = variables.len();
        variables.sort_unstable();
        variables.dedup();
        assert_eq!(variables.len(), count);
        for expected in ["ABIDE_URL", "ABIDE_TOKEN", "ABIDE_TOKEN_FILE", "ABIDE_SERVE_LISTEN"] {
            assert!(variables.contains(&expected), "{expected}");
        }
        for option in CommandLine::command().get_arguments() {
            let Some(variable) = option.get_env().and_then(|name| name.to_str()) else { continue };
            let long = option.get_long().expect("it is an option");
            let expected = match long {
                // The names of the options are those of `curl`; `ABIDE_KEY` would look like a key of the server.
                "cert" => "ABIDE_CLIENT_CERT".to_owned(),
                "key" => "ABIDE_CLIENT_KEY".to_owned(),
                _ => crate::configuration::variable_name(&[], long),
            };
            assert_eq!(variable, expected);
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
        // Built, so that it has --help.
        let mut all = CommandLine::command();
        all.build();
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
