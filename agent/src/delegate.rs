//! Delegation to another agent with the tool `task`. The other agent runs in a new child session, with its own
//! tools and instructions. Its answer is the result of the call.
//!
//! The reducer `start_child_run` derives session and run from the call, so a driver that takes over the call finds
//! the same run. It counts depth and descendants; when a limit is reached, the model gets the error.

use abide_client::arguments::{AbortRun, StartChildRun};
use abide_client::{Error, Run, RunStatus, ToolCall};
use abide_models::ToolSpec;
use abide_tools::{Effect, Failure, Parameters, ToolDeclaration, ToolOutcome};
use serde_json::{Value, json};

use tokio_util::sync::CancellationToken;

use crate::driver::Driver;
use crate::run_lease::fencing_token;

/// The name of the tool.
pub(crate) const TOOL: &str = "task";

/// The declaration to register.
pub(crate) fn declaration() -> ToolDeclaration {
    let mut declaration = ToolDeclaration::new(TOOL, "Gives a task to another agent.", schema(&[]));
    // A repeated call finds the existing run.
    declaration.effect = Effect::Idempotent;
    declaration
}

/// The schema of the arguments, with the permitted agents if they are known.
fn schema(agents: &[&str]) -> Value {
    let mut agent = json!({"type": "string", "description": "The agent."});
    if !agents.is_empty() {
        agent["enum"] = json!(agents);
    }
    let description = "The task, with all the information that the agent needs.";
    let task = json!({"type": "string", "description": description});
    json!({"type": "object", "properties": {"agent": agent, "task": task},
        "required": ["agent", "task"], "additionalProperties": false})
}

/// The tool as the model sees it; `None` if the agent has no subagents.
pub(crate) fn spec(driver: &Driver) -> Option<ToolSpec> {
    let agents: Vec<&str> = driver.definition.subagents.iter().map(|it| it.name()).collect();
    if agents.is_empty() {
        return None;
    }
    let description =
        format!("Gives a task to another agent and waits for its answer: {}.", agents.join(", "));
    Some(ToolSpec { name: TOOL.to_owned(), description, parameters: schema(&agents) })
}

/// The parsed arguments, or the error text for the model.
pub(crate) fn admit(driver: &Driver, arguments: &str) -> Result<Value, String> {
    let agents: Vec<&str> = driver.definition.subagents.iter().map(|it| it.name()).collect();
    if agents.is_empty() {
        return Err("there is no tool task: this agent has no subagents".to_owned());
    }
    let parameters = Parameters::of(&schema(&agents))?;
    let fitted =
        parameters.fit_text(arguments).map_err(|mismatch| format!("{TOOL}: {mismatch}"))?;
    Ok(fitted.arguments)
}

/// Starts the child run and waits for its end.
pub(crate) async fn run(
    driver: &Driver,
    claimed: &ToolCall,
    cancel: &CancellationToken,
) -> ToolOutcome {
    let begun = match begin(driver, claimed).await {
        Ok(begun) => begun,
        Err(error) if error.code().is_some() => {
            return ToolOutcome::failed(Failure::Denied, error.to_string());
        }
        Err(error) => return ToolOutcome::failed(Failure::Unavailable, error.to_string()),
    };
    tokio::select! {
        ended = until_ended(driver, &begun.id) => match ended {
            Ok(run) => told(&run),
            Err(error) => ToolOutcome::failed(Failure::Unavailable, error.to_string()),
        },
        () = cancel.cancelled() => {
            let reason = "the delegating run no longer needs the task";
            let abort = AbortRun::new(&begun.id).reason(reason);
            let text = match driver.abide.call(abort).await {
                Ok(_) => "the task was cancelled".to_owned(),
                Err(error) => format!("the task was cancelled: {error}"),
            };
            ToolOutcome::failed(Failure::Cancelled, text)
        }
    }
}

async fn begin(driver: &Driver, claimed: &ToolCall) -> Result<Run, Error> {
    let arguments = claimed.arguments.value();
    let (named, task) = (text(&arguments["agent"]), text(&arguments["task"]));
    let subagent = driver.definition.subagents.iter().find(|it| it.name() == named);
    let agent = match subagent {
        Some(subagent) => subagent.registered_name(&driver.definition.name),
        None => named,
    };
    // A repeated call returns the same run, even if another driver held the call before.
    Ok(driver
        .abide
        .call(StartChildRun::new(&claimed.call_id, fencing_token(claimed), agent, task))
        .await?
        .into_inner())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

async fn until_ended(driver: &Driver, id: &str) -> Result<Run, Error> {
    let sql = "SELECT * FROM runs WHERE id = :id";
    let mut runs = driver.abide.subscribe(sql).param("id", id).await?;
    while runs.next().await.is_some() {
        let now: Vec<Run> = runs.typed_rows()?;
        if let Some(run) = now.into_iter().find(|run| run.status.is_terminal()) {
            return Ok(run);
        }
    }
    Err(runs.error().cloned().unwrap_or(Error::Closed))
}

fn told(run: &Run) -> ToolOutcome {
    let content = run.output.as_ref().map(|output| output.value()["content"].clone());
    match (run.status, content) {
        (RunStatus::Done, Some(content)) => ToolOutcome::json(content),
        _ => {
            let why = run.error_message.as_deref().unwrap_or("the run has no answer");
            ToolOutcome::failed(Failure::Tool, format!("agent {} failed: {why}", run.agent))
        }
    }
}
