//! A program as a tool: an argument vector with placeholders, without a shell.
//!
//! It runs in its own process group. One deadline covers the writing of its input, the reading of its output, and
//! its exit. At the deadline, the group receives SIGTERM and then SIGKILL. (A process that left the group with
//! `setsid` is not killed. If it holds a pipe open, the call does not wait for it.)

mod running;
mod script;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide_client::arguments::{ApprovalPolicy, Retry, ToolLimits};
use abide_client::rows::Effect;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::{self, ConfigError};
use crate::environment::{Inherit, Setting};
use crate::outcome::{Failure, ToolOutcome};
use crate::template::{Template, as_text};
use crate::tool::{CONTEXT_VARIABLE, Invocation, Tool, ToolDeclaration};
use abide_sandbox::Environment;
use abide_sandbox::Launch;
use abide_sandbox::{JobOptions, Sandbox};
use running::Run;

/// The definition of a program tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a tool: a map with name and command")]
pub struct SubprocessToolConfig {
    /// The name.
    pub name: String,
    /// The description for the model.
    pub description: String,
    /// The JSON Schema of the arguments; the default is no arguments.
    #[serde(default = "config::no_parameters")]
    pub parameters: Value,
    /// The program and its arguments, with `{placeholders}`. An argument that consists of one placeholder expands
    /// to one argument per item of a list. An argument is omitted if its placeholder's argument is absent.
    ///
    /// A value that begins with `-` must not be at the start of an argument, where a program would parse it as an
    /// option, unless a literal `--` precedes it. A placeholder must be a whole argument, or the whole value of
    /// `--name={place}`. For an interpreter, placeholders must follow a literal script, which receives them as
    /// arguments.
    pub command: Vec<String>,
    /// The input on stdin.
    #[serde(default)]
    pub stdin: Stdin,
    /// The working directory; the default is that of the worker, or the workspace if there is a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<PathBuf>,
    /// Further paths that the program can read and execute, if there is a sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readable: Vec<PathBuf>,
    /// Further paths that the program can change, if there is a sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable: Vec<PathBuf>,
    /// Environment variables to set, in addition to the inherited ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Setting>,
    /// The environment variables to inherit.
    #[serde(default)]
    pub inherit_env: Inherit,
    /// Exit codes that mean success; the default is 0.
    #[serde(default = "zero")]
    pub ok_exit_codes: Vec<i32>,
    /// The format of stdout.
    #[serde(default)]
    pub output: Output,
    /// Maximum size of stdout in bytes; the default is 4,000,000. A program that writes more is stopped.
    #[serde(default = "four_megabytes")]
    pub max_output_bytes: usize,
    /// Timeout of a call, in milliseconds; the default is 60,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Grace period between SIGTERM and SIGKILL, in milliseconds; the default is 2,000.
    #[serde(default = "two_seconds")]
    pub grace_ms: u64,
    /// The effect of the tool; the default is at most once.
    #[serde(default = "at_most_once")]
    pub effect: Effect,
    /// Whether each call needs approval.
    #[serde(default)]
    pub needs_approval: bool,
    /// How approvals are requested. If it is given, each call needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalPolicy>,
    /// How failed calls are retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// The capability that a worker needs to run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_capability: Option<String>,
    /// Rate and concurrency limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ToolLimits>,
}

/// The input on stdin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// The arguments as JSON, on one line.
    #[default]
    Arguments,
    /// Nothing.
    Empty,
}

/// The format of stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Text.
    #[default]
    Text,
    /// One JSON value; other output is an error.
    Json,
}

fn zero() -> Vec<i32> {
    vec![0]
}

fn four_megabytes() -> usize {
    4_000_000
}

fn two_seconds() -> u64 {
    2_000
}

pub(crate) fn at_most_once() -> Effect {
    Effect::AtMostOnce
}

/// A program as a tool.
pub struct SubprocessTool {
    declaration: ToolDeclaration,
    plan: Arc<Plan>,
}

/// The parts that all runs share.
struct Plan {
    name: String,
    argv: Vec<Template>,
    stdin: Stdin,
    folder: Option<PathBuf>,
    environment: BTreeMap<String, String>,
    ok_exit_codes: Vec<i32>,
    output: Output,
    max_output_bytes: usize,
    timeout: Duration,
    grace: Duration,
    sandbox: Option<Sandbox>,
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
}

impl SubprocessTool {
    /// Parses a definition. The program runs without a sandbox.
    ///
    /// # Errors
    /// The definition is invalid.
    pub fn new(
        config: SubprocessToolConfig,
        environment: &Environment,
    ) -> Result<SubprocessTool, ConfigError> {
        SubprocessTool::in_sandbox(config, environment, None)
    }

    /// Parses a definition. The program runs in the sandbox, if there is one.
    ///
    /// # Errors
    /// The definition is invalid.
    pub fn in_sandbox(
        config: SubprocessToolConfig,
        environment: &Environment,
        sandbox: Option<&Sandbox>,
    ) -> Result<SubprocessTool, ConfigError> {
        let name = config.name.clone();
        let timeout = config::timeout(&name, config.timeout_ms)?;
        let argv: Result<Vec<Template>, ConfigError> = config
            .command
            .iter()
            .map(|text| config::template(&name, text, &config.parameters))
            .collect();
        let argv = argv?;
        match argv.first() {
            None => return Err(ConfigError::new(&name, "its command is empty")),
            Some(program) if program.names().next().is_some() => {
                return Err(ConfigError::new(&name, "the program must not be a placeholder"));
            }
            Some(_) => {}
        }
        script::check(&argv, &config.command, config.stdin)
            .map_err(|why| ConfigError::new(&name, why))?;
        let declaration = ToolDeclaration {
            effect: config.effect,
            needs_approval: config.needs_approval,
            approval: config.approval,
            timeout,
            retry: config.retry,
            required_capability: config.required_capability,
            limits: config.limits,
            ..ToolDeclaration::new(&name, config.description, config.parameters)
        };
        let plan = Plan {
            argv,
            stdin: config.stdin,
            folder: config.working_dir,
            environment: config.inherit_env.variables(&name, environment, &config.env)?,
            ok_exit_codes: config.ok_exit_codes,
            output: config.output,
            max_output_bytes: config.max_output_bytes,
            timeout,
            grace: Duration::from_millis(config.grace_ms),
            sandbox: sandbox.cloned(),
            readable: config.readable,
            writable: config.writable,
            name,
        };
        Ok(SubprocessTool { declaration, plan: Arc::new(plan) })
    }
}

impl Tool for SubprocessTool {
    fn declaration(&self) -> &ToolDeclaration {
        &self.declaration
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'static, ToolOutcome> {
        let plan = Arc::clone(&self.plan);
        async move {
            let nothing = Map::new();
            let arguments = invocation.arguments.as_object().unwrap_or(&nothing);
            let argv = match plan.argv(arguments) {
                Ok(argv) => argv,
                Err(why) => return ToolOutcome::failed(Failure::Arguments, why),
            };
            let unavailable = |why| {
                let text = format!("{} did not run: {why}", plan.name);
                ToolOutcome::failed(Failure::Unavailable, text)
            };
            let permit = match &plan.sandbox {
                Some(sandbox) => {
                    sandbox.permit(&invocation.context.scope, &invocation.cancel).await.map(Some)
                }
                None => Ok(None),
            };
            let _permit = match permit {
                Ok(permit) => permit,
                Err(why) => return unavailable(why),
            };
            let launch = match plan.launch(&invocation, argv) {
                Ok(launch) => launch,
                Err(why) => return unavailable(why),
            };
            let input = match plan.stdin {
                Stdin::Arguments => format!("{}\n", invocation.arguments).into_bytes(),
                Stdin::Empty => Vec::new(),
            };
            let run = Run {
                name: &plan.name,
                timeout: plan.timeout,
                grace: plan.grace,
                max_output_bytes: plan.max_output_bytes,
                ok_exit_codes: &plan.ok_exit_codes,
                output: plan.output,
            };
            run.run(&launch, input, &invocation.cancel).await
        }
        .boxed()
    }
}

impl Plan {
    /// Returns the process of a call, with the context in a variable.
    fn launch(&self, invocation: &Invocation, argv: Vec<String>) -> Result<Launch, String> {
        let mut environment = self.environment.clone();
        environment.insert(CONTEXT_VARIABLE.to_owned(), invocation.context_json().to_string());
        let Some(sandbox) = &self.sandbox else {
            return Ok(Launch { argv, folder: self.folder.clone(), environment, supervised: None });
        };
        let options = JobOptions {
            folder: self.folder.as_ref().map_or_else(|| PathBuf::from("."), absolute_path),
            readable: self.readable.iter().map(absolute_path).collect(),
            writable: self.writable.iter().map(absolute_path).collect(),
            grace: self.grace,
        };
        sandbox.launch(&invocation.context.scope, argv, environment, options)
    }

    /// Returns the argument vector of a call.
    fn argv(&self, arguments: &Map<String, Value>) -> Result<Vec<String>, String> {
        let mut argv: Vec<String> = Vec::new();
        let mut options_over = false;
        for template in &self.argv {
            let only = template.only_place().and_then(|name| arguments.get(name));
            let values: Vec<(String, bool)> = match only {
                Some(Value::Array(items)) => items
                    .iter()
                    .filter_map(|item| Some((as_text(item)?, item.is_number())))
                    .collect(),
                _ => match template.fill(arguments, str::to_owned) {
                    Ok(filled) => vec![(filled, only.is_some_and(Value::is_number))],
                    // An absent argument removes the whole word.
                    Err(_) => continue,
                },
            };
            for (value, is_number) in values {
                let is_option = template.begins_with_place() && value.starts_with('-');
                if is_option && !options_over && !is_number {
                    return Err(format!(
                        "{value:?} begins with - and would be parsed as an option"
                    ));
                }
                if value.contains('\0') {
                    return Err("an argument contains a zero byte".to_owned());
                }
                argv.push(value);
            }
            options_over |=
                template.names().next().is_none() && argv.last().is_some_and(|it| it == "--");
        }
        Ok(argv)
    }
}

/// Returns the absolute path; the path itself if the current folder is unknown.
fn absolute_path(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
