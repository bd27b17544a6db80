//! A program as a tool: an argument vector with places for arguments, and no shell anywhere.
//!
//! It runs in a process group of its own, under one deadline for everything: writing its input, reading its output,
//! and its end. What is over time is asked to end (SIGTERM) and then made to (SIGKILL), with all that it started.
//! (What has left the group by `setsid` is out of reach; that it holds a pipe open keeps nobody waiting.)

mod running;
mod script;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use abide_client::{ApprovalPolicy, Effect, Retry, ToolLimits};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::{self, ConfigError};
use crate::environment::{Environment, Inherit, Setting};
use crate::outcome::{Failure, ToolOutcome};
use crate::process::Launch;
use crate::template::{Template, as_text};
use crate::tool::{Invocation, Tool, ToolDeclaration};
use running::Run;

/// A program as a tool, as a definition has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubprocessToolConfig {
    /// The tool's name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON Schema of its arguments; it takes none where this is left out.
    #[serde(default = "config::no_parameters")]
    pub parameters: Value,
    /// The program and its arguments, each with `{placeholders}`. One that is nothing but a placeholder becomes as many
    /// arguments as a list has items. One whose argument is left out is left out as a whole.
    ///
    /// A value that begins with `-` may not begin an argument, where a program would take it for an option, unless a
    /// literal `--` stands before. A placeholder is a whole argument, or the whole value of `--name={place}`. Of an
    /// interpreter it stands behind a script that is spelled out, which reads it as an argument.
    pub command: Vec<String>,
    /// What it reads on stdin.
    #[serde(default)]
    pub stdin: Stdin,
    /// The folder that it runs in; that of the worker unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Variables that are set for it, on top of what it inherits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Setting>,
    /// Variables that it inherits.
    #[serde(default)]
    pub inherit_env: Inherit,
    /// Exit codes that mean that all went well; 0 unless said.
    #[serde(default = "zero")]
    pub ok_exit_codes: Vec<i32>,
    /// What it writes on stdout.
    #[serde(default)]
    pub output: Output,
    /// Bytes that are taken of its stdout: 4,000,000 unless said. With more it is ended.
    #[serde(default = "four_megabytes")]
    pub max_output_bytes: usize,
    /// How long one run may take, in milliseconds; 60,000 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long it has to end when it is asked to, in milliseconds; 2,000 unless said.
    #[serde(default = "two_seconds")]
    pub grace_ms: u64,
    /// What running it twice would mean; that it must not, unless said.
    #[serde(default = "at_most_once")]
    pub effect: Effect,
    /// Whether somebody must approve each call.
    #[serde(default)]
    pub needs_approval: bool,
    /// How approvals are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalPolicy>,
    /// How a call is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// What whoever runs it must be capable of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_capability: Option<String>,
    /// What the world behind it can bear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ToolLimits>,
}

/// What a program reads on stdin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// The arguments as JSON, in one line.
    #[default]
    Arguments,
    /// Nothing.
    Empty,
}

/// What a program writes on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Text.
    #[default]
    Text,
    /// One JSON value; anything else is an error.
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

/// What each run has in common.
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
}

impl SubprocessTool {
    /// Reads a definition.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(
        config: SubprocessToolConfig,
        environment: &Environment,
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
                return Err(ConfigError::new(
                    &name,
                    "which program runs is not the model's to say",
                ));
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
            folder: config.folder,
            environment: environment.for_program(&name, &config.inherit_env, &config.env)?,
            ok_exit_codes: config.ok_exit_codes,
            output: config.output,
            max_output_bytes: config.max_output_bytes,
            timeout,
            grace: Duration::from_millis(config.grace_ms),
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
            let launch =
                Launch { argv, folder: plan.folder.clone(), environment: plan.environment.clone() };
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
    /// The argument vector of a call.
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
                    // What is left out, is left out with what stands around it.
                    Err(_) => continue,
                },
            };
            for (value, is_number) in values {
                let is_option = template.begins_with_place() && value.starts_with('-');
                if is_option && !options_over && !is_number {
                    return Err(format!("{value:?} begins with -, where it would be an option"));
                }
                if value.contains('\0') {
                    return Err("an argument holds a zero byte, which none can".to_owned());
                }
                argv.push(value);
            }
            options_over |=
                template.names().next().is_none() && argv.last().is_some_and(|it| it == "--");
        }
        Ok(argv)
    }
}
