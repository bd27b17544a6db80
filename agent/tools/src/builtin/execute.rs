//! The tool `execute`: a shell command in the sandbox.
//!
//! A command that fails, or is stopped at its time limit, is a result and not a failure of the tool: the sandbox has
//! ended everything that the command started, so the state of the workspace is known.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide_client::rows::Effect;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::call_files::CallFiles;
use super::file_states::FileStates;
use super::list::content;
use crate::capture::{Capture, Captured};
use crate::config::ConfigError;
use crate::environment::{Inherit, Setting};
use crate::function::Function;
use crate::outcome::{Failure, ToolOutcome};
use crate::tool::{CONTEXT_VARIABLE, Invocation, ToolDeclaration};
use abide_sandbox::End;
use abide_sandbox::Report;
use abide_sandbox::{JobOptions, Sandbox, Workspace};

/// The settings of `execute`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "the settings of execute: a map")]
pub struct ExecuteConfig {
    /// Environment variables to set, in addition to the inherited ones.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Setting>,
    /// The environment variables to inherit. `HOME` and `TMPDIR` are always a new empty folder.
    pub inherit_env: Inherit,
    /// Maximum duration of a command, in milliseconds; the default is 600,000.
    pub timeout_ms: u64,
    /// Maximum size of each of stdout and stderr in the result, in bytes; the default is 200,000. Of longer output, the
    /// beginning and the end are kept.
    pub max_output_bytes: usize,
    /// Whether each call needs an approval.
    pub needs_approval: bool,
}

impl Default for ExecuteConfig {
    fn default() -> ExecuteConfig {
        ExecuteConfig {
            env: BTreeMap::new(),
            inherit_env: Inherit::default(),
            timeout_ms: 600_000,
            max_output_bytes: 200_000,
            needs_approval: false,
        }
    }
}

/// Default duration of a command, in seconds.
const SECONDS: u64 = 120;

/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// Beyond this multiple of the kept output, a command is stopped.
const FLOOD: usize = 500;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Execute {
    /// The command, for sh -c.
    command: String,
    /// The working directory, relative to the workspace. The default is the workspace itself.
    folder: Option<PathBuf>,
    /// Stop the command after so many seconds. The default is 120.
    timeout_seconds: Option<u64>,
}

pub(super) fn execute(sandbox: &Sandbox, config: &ExecuteConfig) -> Result<Function, ConfigError> {
    if config.timeout_ms == 0 || config.max_output_bytes == 0 {
        return Err(ConfigError::new("execute", "a limit must not be 0"));
    }
    let environment =
        config.inherit_env.variables("execute", sandbox.environment(), &config.env)?;
    let max = Duration::from_millis(config.timeout_ms);
    let parameters = schemars::schema_for!(Execute).to_value();
    let declaration = ToolDeclaration {
        effect: Effect::AtMostOnce,
        needs_approval: config.needs_approval,
        timeout: max,
        ..ToolDeclaration::new("execute", description(sandbox), parameters)
    };
    let tool = Arc::new(Commands {
        sandbox: sandbox.clone(),
        environment,
        max,
        max_output_bytes: config.max_output_bytes,
    });
    let sandbox = sandbox.clone();
    let function = Function::untyped(declaration, move |invocation| {
        let tool = Arc::clone(&tool);
        async move { tool.run(invocation).await }
    });
    Ok(function.find_changes_with(move |call_id| interrupted(&sandbox, &call_id)))
}

fn description(sandbox: &Sandbox) -> String {
    let network = if sandbox.has_network() { "" } else { " There is no network." };
    format!(
        "Runs a shell command in the workspace and returns its output and exit code. Only the workspace and \
         temporary files can be changed.{network} Every process that the command starts ends with it, so a server \
         cannot be left running."
    )
}

struct Commands {
    sandbox: Sandbox,
    environment: BTreeMap<String, String>,
    max: Duration,
    max_output_bytes: usize,
}

impl Commands {
    async fn run(&self, invocation: Invocation) -> ToolOutcome {
        let failed = |failure, why: String| ToolOutcome::failed(failure, format!("execute: {why}"));
        let context = invocation.context_json().to_string();
        let arguments: Execute = match serde_json::from_value(invocation.arguments.clone()) {
            Ok(arguments) => arguments,
            Err(why) => return failed(Failure::Arguments, why.to_string()),
        };
        if arguments.command.contains('\0') {
            return failed(Failure::Arguments, "the command contains a zero byte".to_owned());
        }
        let folder = match self.folder(&invocation.context, arguments.folder).await {
            Ok(folder) => folder,
            Err(why) => return failed(Failure::Arguments, why),
        };
        let permit = self.sandbox.permit(&invocation.context.scope, &invocation.cancel).await;
        let _permit = match permit {
            Ok(permit) => permit,
            Err(why) => return failed(Failure::Unavailable, format!("it did not run: {why}")),
        };
        let before = self.begin(&invocation).await;
        let mut environment = self.environment.clone();
        environment.insert(CONTEXT_VARIABLE.to_owned(), context);
        let argv = ["sh", "-c", &arguments.command].map(str::to_owned).to_vec();
        let options = JobOptions { folder, grace: GRACE, ..JobOptions::default() };
        let launch =
            match self.sandbox.launch(&invocation.context.scope, argv, environment, options) {
                Ok(launch) => launch,
                Err(why) => return failed(Failure::Unavailable, why),
            };
        let asked = arguments.timeout_seconds.unwrap_or(SECONDS).max(1);
        let capture = Capture {
            timeout: Duration::from_secs(asked).min(self.max),
            grace: GRACE,
            kept: self.max_output_bytes,
            max: self.max_output_bytes.saturating_mul(FLOOD),
        };
        let captured = match capture.run(&launch, &invocation.cancel).await {
            Ok(captured) => captured,
            Err(why) => return failed(Failure::Unavailable, format!("it did not run: {why}")),
        };
        match &captured.report {
            Some(Report::NotStarted(why)) => {
                return failed(Failure::Unavailable, format!("it did not run: {why}"));
            }
            _ if captured.end == End::Cancelled => {
                return failed(Failure::Cancelled, "it was cancelled".to_owned());
            }
            _ => {}
        }
        let (files, is_complete) = self.end(&invocation, before).await;
        outcome(&captured, files, is_complete, capture.timeout)
    }

    /// Returns the files before the command. They are stored first: the command may be interrupted.
    async fn begin(&self, invocation: &Invocation) -> FileStates {
        let sandbox = self.sandbox.clone();
        let call_id = invocation.call_id.clone();
        let Ok(root) = sandbox.workspace_path(&invocation.context.scope) else {
            return FileStates::default();
        };
        tokio::task::spawn_blocking(move || {
            let before = states_at(&sandbox, &root);
            let root = Cow::Borrowed(root.as_path());
            let files = Cow::Borrowed(&before);
            keep(&sandbox, &call_id, &CallFiles::Before { root, files });
            before
        })
        .await
        .unwrap_or_default()
    }

    /// Returns the files that the command has changed. They are stored, too: the server may be killed before the call
    /// has a result.
    async fn end(&self, invocation: &Invocation, before: FileStates) -> (Vec<Value>, bool) {
        let sandbox = self.sandbox.clone();
        let call_id = invocation.call_id.clone();
        let Ok(root) = sandbox.workspace_path(&invocation.context.scope) else {
            return (Vec::new(), false);
        };
        tokio::task::spawn_blocking(move || record_changes(&sandbox, &call_id, &root, &before))
            .await
            .unwrap_or_default()
    }

    /// Returns the working directory, checked for the model: the supervisor resolves it again.
    async fn folder(
        &self,
        context: &crate::ToolContext,
        folder: Option<PathBuf>,
    ) -> Result<PathBuf, String> {
        let Some(folder) = folder else { return Ok(PathBuf::from(".")) };
        let files = self.sandbox.open_workspace(&context.scope).map_err(|why| why.to_string())?;
        let path = files.relative(&folder.to_string_lossy()).map_err(|why| why.to_string())?;
        let (_, real) = files.open_folder(&path).map_err(|why| why.to_string())?;
        Ok(if real.as_os_str().is_empty() { PathBuf::from(".") } else { real })
    }
}

fn states_at(sandbox: &Sandbox, root: &Path) -> FileStates {
    sandbox.open_workspace_at(root).map(|files| FileStates::read(&files)).unwrap_or_default()
}

/// What a command has changed until now; it is stored.
fn record_changes(
    sandbox: &Sandbox,
    call_id: &str,
    root: &Path,
    before: &FileStates,
) -> (Vec<Value>, bool) {
    let (mut files, is_complete) = before.changes(&states_at(sandbox, root));
    if let Ok(workspace) = sandbox.open_workspace_at(root) {
        add_digests(&workspace, &mut files);
    }
    let stored = Cow::Borrowed(files.as_slice());
    keep(sandbox, call_id, &CallFiles::Changes { files: stored, is_complete });
    (files, is_complete)
}

/// Maximum size of a file whose content has a digest in the list of changes, and of all such files, in bytes.
const DIGESTED: usize = 16 << 20;
const ALL_DIGESTED: usize = 256 << 20;

/// Adds size and digest of the files that exist, as file tools list them.
fn add_digests(workspace: &Workspace, files: &mut [Value]) {
    let mut left = ALL_DIGESTED;
    for entry in files.iter_mut().filter(|entry| entry["action"] != "deleted") {
        let path = Path::new(entry["path"].as_str().unwrap_or_default()).to_owned();
        // A symbolic link has no content of its own.
        let Ok((file, real)) = workspace.open_file(&path) else { continue };
        if real != path {
            continue;
        }
        let Ok(bytes) = content(file, &path, DIGESTED.min(left)) else { continue };
        left -= bytes.len();
        entry["bytes"] = json!(bytes.len());
        entry["sha256"] = json!(hex::encode(Sha256::digest(&bytes)));
    }
}

/// Stores the files of a call. A command runs also where they cannot be stored.
fn keep(sandbox: &Sandbox, call_id: &str, files: &CallFiles<'_>) {
    if let Err(why) = files.store(&sandbox.state_folder(), call_id) {
        tracing::warn!(
            name: "command_files_unknown",
            %why,
            call_id,
            "the files of a command are not known if it is interrupted"
        );
    }
}

/// What an interrupted command has changed, from the state that was stored before it began. The answer stays the same.
fn interrupted(sandbox: &Sandbox, call_id: &str) -> Option<Value> {
    let (files, is_complete) = match CallFiles::load(&sandbox.state_folder(), call_id)? {
        CallFiles::Before { root, files } => record_changes(sandbox, call_id, &root, &files),
        CallFiles::Changes { files, is_complete } => (files.into_owned(), is_complete),
    };
    Some(json!({"files": files, "files_complete": is_complete}))
}

fn outcome(
    captured: &Captured,
    files: Vec<Value>,
    is_complete: bool,
    timeout: Duration,
) -> ToolOutcome {
    let code = captured.exit_code;
    let note = match (&captured.report, captured.end) {
        (Some(Report::Stopped(why)), _) => Some(format!("the command was stopped: {why}")),
        (_, End::TimedOut) => {
            Some(format!("the command was stopped after {} s", timeout.as_secs_f64()))
        }
        (_, End::TooLarge) => Some("the command was stopped: it wrote too much".to_owned()),
        _ if code != 0 => Some(format!("exit code {code}")),
        _ => None,
    };
    let mut parts = Vec::new();
    let stdout = captured.stdout.text();
    let stderr = captured.stderr.text();
    parts.extend(Some(stdout.clone()).filter(|text| !text.is_empty()));
    parts.extend(Some(format!("stderr:\n{stderr}")).filter(|_| !stderr.is_empty()));
    parts.extend(note.clone());
    if parts.is_empty() {
        parts.push("no output".to_owned());
    }
    let content = json!({"exit_code": code, "stdout": stdout, "stderr": stderr, "files": files,
        "files_complete": is_complete, "stopped": captured.end != End::Exited, "note": note});
    ToolOutcome { text: parts.join("\n"), exit_code: code, ..ToolOutcome::json(content) }
}
