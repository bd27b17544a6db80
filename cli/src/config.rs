//! `abide config`: checks the configuration, and shows where the value of each option is from. It shows no secret.

use std::path::Path;

use abide_agent::{AgentProject, Launcher};
use clap::{Args, Subcommand};
use serde_json::{Value as JsonValue, json};

use crate::agent::{agents_option, check_folder_exists};
use crate::cells::pluralize;
use crate::configuration::{Configuration, Origin, Setting};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{note, print_json, print_line};
use crate::printable::one_line;
use crate::token_source::{self, Token};
use crate::user_info::hide_user_info;

/// Arguments of `abide config`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Config {
    #[command(subcommand)]
    what: ConfigCommand,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum ConfigCommand {
    /// Report all mistakes in the file, the variables, the files of secrets and the folders of agents
    Check,
    /// Show the options that have a value, and where it is from
    Show,
}

const EXAMPLES: &str = "\
Every option has a key and a variable: --listen of `abide serve` is `listen` in the table [serve] of
abide.toml, and ABIDE_SERVE_LISTEN. The command line comes first, then the environment, then the
file, then the default. See docs/configuration.md.

Examples:
  abide config check
  abide config check --config /etc/abide/abide.toml
  abide config show
  abide config show --json             # all options, also those without a value";

/// Runs the command.
///
/// # Errors
/// The configuration has a mistake.
pub(crate) async fn run(options: &Options, args: Config) -> Result<(), Failure> {
    match args.what {
        ConfigCommand::Check => check(options).await,
        ConfigCommand::Show => show(options),
    }
}

async fn check(options: &Options) -> Result<(), Failure> {
    let configuration = &options.configuration;
    let problems = configuration.problems.iter().chain(&configuration.variable_problems);
    let mut failures: Vec<Failure> = problems.map(|problem| problem.to_failure(0)).collect();
    // A token file of a wrong configuration is not known.
    if configuration.problems.is_empty() {
        let checked = token_source::find(options).and_then(|token| match token {
            Some(token) => token_source::check_address(options, &token),
            None => Ok(()),
        });
        failures.extend(checked.err());
        failures.extend(check_agents(options).await);
    }
    for (name, meant) in configuration.misspelled_variables() {
        note(format!("warning: {name} is not the variable of an option; did you mean {meant}?"));
    }
    let count = failures.len();
    let Some(last) = failures.pop() else { return print_summary(options) };
    for failure in failures {
        failure.print(options.json);
    }
    if count > 1 && !options.json {
        note(format!("{count} mistakes, the last one:"));
    }
    Err(last)
}

/// Checks the folders of agents that the configuration names: each exists, and its `abide.yaml` can be used.
async fn check_agents(options: &Options) -> Vec<Failure> {
    let configuration = &options.configuration;
    let mut failures = Vec::new();
    for setting in &configuration.settings {
        let is_folder = setting.key.rsplit('.').next() == Some("agents");
        let Some(value) = setting.value.as_ref().filter(|_| is_folder) else { continue };
        if setting.origin == Origin::Default {
            continue;
        }
        let source = source_of(configuration, setting);
        let folder = Path::new(value);
        if let Err(refusal) = check_folder_exists(folder) {
            let detail = format!("{source}: {}", refusal.detail);
            failures.push(Failure::usage(detail, refusal.hint.unwrap_or_default()));
            continue;
        }
        let launcher = Launcher::this_program();
        if let Err(why) = AgentProject::open_offline(folder, &options.environment, launcher).await {
            let option = agents_option(folder);
            let hint = format!("`abide agent check{option}` lists all errors of the folder");
            failures.push(Failure::usage(format!("{source}: {why}"), hint));
        }
    }
    failures
}

fn print_summary(options: &Options) -> Result<(), Failure> {
    let configuration = &options.configuration;
    let mut keys = 0;
    let mut variables = 0;
    for setting in &configuration.settings {
        match setting.origin {
            Origin::File(_) => keys += 1,
            Origin::Variable => variables += 1,
            Origin::Default | Origin::CommandLine => {}
        }
    }
    if options.json {
        let file = configuration.file.as_ref().map(|file| file.display().to_string());
        return print_json(&json!({"file": file, "keys": keys, "variables": variables}));
    }
    let file = match &configuration.file {
        Some(file) => file.display().to_string(),
        None => "no abide.toml".to_owned(),
    };
    print_line(one_line(&format!(
        "{file}  ·  {} from the file, {} from variables  ·  no errors",
        pluralize(keys, "option"),
        pluralize(variables, "option")
    )))
}

/// An option as it is shown.
struct Row {
    setting: Setting,
    value: Option<String>,
    source: String,
}

fn show(options: &Options) -> Result<(), Failure> {
    let configuration = &options.configuration;
    if let Some(problem) = configuration.problems.first() {
        return Err(problem.to_failure(configuration.problems.len() - 1));
    }
    let token = token_source::find(options)?;
    let rows: Vec<Row> = configuration
        .settings
        .iter()
        .map(|setting| {
            if setting.is_secret {
                to_secret_row(setting, token.as_ref())
            } else {
                to_row(configuration, setting)
            }
        })
        .collect();
    if options.json {
        let settings: Vec<JsonValue> = rows.iter().map(to_json).collect();
        let file = configuration.file.as_ref().map(|file| file.display().to_string());
        return print_json(&json!({"file": file, "settings": settings}));
    }
    let lines: Vec<[&str; 3]> = rows
        .iter()
        .filter_map(|row| Some([row.setting.key.as_str(), row.value.as_deref()?, &row.source]))
        .collect();
    let key_width = width_of_column(&lines, 0);
    let value_width = width_of_column(&lines, 1).min(MAX_VALUE_WIDTH);
    for [key, value, source] in lines {
        print_line(one_line(&format!("{key:key_width$}  {value:value_width$}  {source}")))?;
    }
    Ok(())
}

/// Returns the characters of the longest cell of a column.
fn width_of_column(rows: &[[&str; 3]], column: usize) -> usize {
    rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
}

/// Longer values move the source of their line to the right, and no other.
const MAX_VALUE_WIDTH: usize = 40;

/// Returns the row of the token, without its value.
fn to_secret_row(setting: &Setting, token: Option<&Token>) -> Row {
    let setting = setting.clone();
    match token {
        Some(token) => Row { setting, value: Some("set".to_owned()), source: token.source.clone() },
        None => Row { setting, value: Some("unset".to_owned()), source: "default".to_owned() },
    }
}

fn to_row(configuration: &Configuration, setting: &Setting) -> Row {
    let typed = configuration.typed.get(&setting.key).cloned();
    let is_typed = typed.is_some();
    let value = typed.or_else(|| setting.value.clone());
    let source =
        if is_typed { format!("--{}", setting.key) } else { source_of(configuration, setting) };
    Row { setting: setting.clone(), value: value.map(|value| hide_user_info(&value)), source }
}

/// Returns where the value of an option that was not typed is from.
fn source_of(configuration: &Configuration, setting: &Setting) -> String {
    match setting.origin {
        Origin::CommandLine | Origin::Default => "default".to_owned(),
        Origin::Variable => setting.variable.clone(),
        Origin::File(line) => match &configuration.file {
            Some(file) => format!("{}:{line}", file.display()),
            None => format!("line {line}"),
        },
    }
}

fn to_json(row: &Row) -> JsonValue {
    let Row { setting, value, source } = row;
    if setting.is_secret {
        let is_set = value.as_deref() == Some("set");
        let source = is_set.then_some(source);
        return json!({"key": setting.key, "variable": setting.variable, "secret": true, "set": is_set,
            "source": source});
    }
    let source = value.is_some().then_some(source);
    json!({"key": setting.key, "variable": setting.variable, "value": value, "source": source})
}
