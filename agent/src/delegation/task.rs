//! Delegation to another agent, with the tool `task` or with a tool that stands for the agent. The other agent runs
//! in a new child session, with its own tools and instructions. Its answer is the result of the call.
//!
//! The reducer `start_child_run` derives session and run from the call, so a driver that takes over the call finds
//! the same run. It counts depth and descendants; when a limit is reached, the model gets the error.
//!
//! A child that waits for a decision makes its parent wait: the call becomes pending again, the parent rests with an
//! `interrupt` that names the child's calls, and the call is claimed again when the child continues.

use abide_client::Error;
use abide_client::arguments::{AbortRun, RegisterTool, StartChildRun};
use abide_client::rows::{Run, RunStatus, ToolCall};
use abide_definitions::agent_tool::{self, TASK};
use abide_models::ToolSpec;
use abide_tools::{Effect, Failure, ToolDeclaration, ToolOutcome};
use futures_util::future::{BoxFuture, FutureExt as _};
use serde_json::{Value, json};

use crate::run::driver::Driver;
use crate::run::lease::fencing_token;
use crate::run::step::Step;
use crate::tools;
use crate::tools::runtime_tool::{CallOrder, RunningCall, RuntimeTool};

/// The tool `task`.
pub(crate) struct Task;

impl RuntimeTool for Task {
    fn declaration(&self) -> ToolDeclaration {
        ToolDeclaration::new(TASK, "Gives a task to another agent.", schema(&[]))
    }

    fn name(&self) -> &str {
        TASK
    }

    fn registration(&self) -> RegisterTool {
        agent_tool::registration(self.declaration())
    }

    fn missing(&self, driver: &Driver) -> Option<&'static str> {
        driver.agent.composition.tasks.is_empty().then_some("this agent has no subagents")
    }

    fn spec(&self, driver: &Driver) -> ToolSpec {
        let agents = &driver.agent.composition.tasks;
        let description = format!(
            "Gives a task to another agent and waits for its answer: {}.",
            agents.join(", ")
        );
        ToolSpec { name: TASK.to_owned(), description, parameters: schema(agents) }
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn order(&self) -> CallOrder {
        CallOrder::Any
    }

    fn starts_run(&self) -> bool {
        true
    }

    fn run<'a>(&'a self, call: RunningCall<'a>) -> BoxFuture<'a, Step<Option<ToolOutcome>>> {
        run(call).boxed()
    }
}

/// Returns the schema of the arguments, with the permitted agents if they are known.
fn schema(agents: &[String]) -> Value {
    let mut agent = json!({"type": "string", "description": "The agent."});
    if !agents.is_empty() {
        agent["enum"] = json!(agents);
    }
    let description = "The task, with all the information that the agent needs.";
    let task = json!({"type": "string", "description": description});
    json!({"type": "object", "properties": {"agent": agent, "task": task},
        "required": ["agent", "task"], "additionalProperties": false})
}

/// Starts the child run, and waits until it ends or waits for a decision.
pub(crate) async fn run(call: RunningCall<'_>) -> Step<Option<ToolOutcome>> {
    Ok(Some(outcome(call).await))
}

async fn outcome(call: RunningCall<'_>) -> ToolOutcome {
    let RunningCall { driver, claimed, cancel } = call;
    let begun = match begin(driver, claimed).await {
        Ok(begun) => begun,
        Err(error) if error.code().is_some() => {
            return ToolOutcome::failed(Failure::Denied, error.to_string());
        }
        Err(error) => return ToolOutcome::failed(Failure::Unavailable, error.to_string()),
    };
    tokio::select! {
        rested = until_rested(driver, &begun.id) => match rested {
            Ok(run) => outcome_of(&run),
            Err(error) => ToolOutcome::failed(Failure::Unavailable, error.to_string()),
        },
        // The other run is released, too. The call becomes pending again, and the next driver waits for the same run.
        () = driver.shutdown.draining() => {
            ToolOutcome::failed(Failure::Unavailable, "the runtime stops; the task goes on later")
        }
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
    let (agent, task) = match driver.agent.composition.tool(&claimed.tool_name) {
        Some(tool) => (tool.agent.clone(), input(&arguments)),
        None => {
            let named = string_of(&arguments["agent"]);
            let task = string_of(&arguments["task"]);
            let subagent = driver.agent.definition.subagents.iter().find(|it| it.name() == named);
            let own = &driver.agent.definition.name;
            (subagent.map_or(named, |subagent| subagent.registered_name(own)), task)
        }
    };
    let seconds = driver.agent.definition.limits.delegation_seconds;
    let start = StartChildRun {
        deadline_ms: seconds.map(|seconds| seconds.saturating_mul(1_000)),
        ..StartChildRun::new(&claimed.call_id, fencing_token(claimed), agent, task)
    };
    // A repeated call returns the same run, even if another driver held the call before.
    Ok(driver.abide.call(start).await?.into_inner())
}

fn string_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the message for an agent from the arguments of its tool: a single text as it is, else the JSON.
fn input(arguments: &Value) -> String {
    let members = arguments.as_object().filter(|members| members.len() == 1);
    let only = members.and_then(|members| members.values().next()).and_then(Value::as_str);
    only.map_or_else(|| arguments.to_string(), str::to_owned)
}

/// Waits until a run has ended or waits for a decision.
async fn until_rested(driver: &Driver, id: &str) -> Result<Run, Error> {
    let sql = "SELECT * FROM runs WHERE id = :id";
    let mut runs = driver.abide.subscribe(sql).param("id", id).await?;
    while runs.try_next().await?.is_some() {
        let now: Vec<Run> = runs.typed_rows()?;
        let rests = |run: &Run| run.status.is_terminal() || run.status == RunStatus::Waiting;
        if let Some(run) = now.into_iter().find(rests) {
            return Ok(run);
        }
    }
    Err(Error::Closed)
}

fn outcome_of(run: &Run) -> ToolOutcome {
    let content = run.output.as_ref().map(|output| output.value()["content"].clone());
    match (run.status, content) {
        (RunStatus::Done, Some(content)) => ToolOutcome::json(content),
        // A temporary failure: the call becomes pending again.
        (RunStatus::Waiting, _) => {
            let what = run.reason.as_deref().unwrap_or("a decision");
            let why = format!("agent {} waits for {what}", run.agent);
            ToolOutcome::failed(Failure::Unavailable, why)
        }
        _ => {
            let why = run.error_message.as_deref().unwrap_or("the run has no answer");
            ToolOutcome::failed(Failure::Tool, format!("agent {} failed: {why}", run.agent))
        }
    }
}

/// Returns the runs that these calls have started and that wait for a decision.
pub(crate) async fn waiting<'c>(
    driver: &Driver,
    started: impl Iterator<Item = &'c ToolCall>,
) -> Result<Vec<Run>, Error> {
    let open = started.filter(|call| !call.status.is_terminal());
    let ids: Vec<&str> = open.map(|call| call.call_id.as_str()).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    // The session of a child has the id of its call.
    let sql = "SELECT * FROM runs WHERE status = 'waiting' \
               AND session_id IN (SELECT value FROM json_each(:ids))";
    let ids = serde_json::to_string(&ids).unwrap_or_default();
    driver.abide.sql(sql).param("ids", ids).fetch().await
}

/// The decisions that waiting runs need.
#[derive(Debug, Default)]
pub(crate) struct Undecided {
    /// The calls that need a decision, with the run of each.
    pub(crate) calls: Vec<(Run, ToolCall)>,
    /// The runs that wait for something else, such as the resumption of their session.
    pub(crate) runs: Vec<Run>,
}

/// Returns the decisions that these waiting runs and the waiting runs below them need.
pub(crate) async fn undecided(driver: &Driver, waiting: Vec<Run>) -> Result<Undecided, Error> {
    let mut undecided = Undecided::default();
    let mut open = waiting;
    while let Some(run) = open.pop() {
        let sql = "SELECT * FROM tool_calls WHERE session_id = :sid \
                   AND status IN ('awaiting_approval', 'unknown') ORDER BY created_seq, call_id";
        let calls: Vec<ToolCall> =
            driver.abide.sql(sql).param("sid", &run.session_id).fetch().await?;
        let calls = tools::exchange::to_decide(&driver.abide, &run.session_id, calls).await?;
        let sql = "SELECT r.* FROM delegations AS d JOIN runs AS r ON r.id = d.run_id \
                   WHERE d.parent_id = :id AND r.status = 'waiting'";
        let below: Vec<Run> = driver.abide.sql(sql).param("id", &run.id).fetch().await?;
        if calls.is_empty() && below.is_empty() {
            undecided.runs.push(run)
        } else {
            undecided.calls.extend(calls.into_iter().map(|call| (run.clone(), call)))
        }
        open.extend(below);
    }
    undecided.calls.sort_by(|one, other| one.1.call_id.cmp(&other.1.call_id));
    Ok(undecided)
}

/// Waits until one of these runs changes; for ever if there is none.
pub(crate) async fn one_changes(driver: &Driver, runs: &[Run]) -> Result<(), Error> {
    let Some(first) = runs.first() else { return std::future::pending().await };
    let sql = "SELECT run_id FROM delegations AS d JOIN runs AS r ON r.id = d.run_id \
               WHERE d.parent_id = :id AND r.status = 'waiting'";
    let parent = first.parent_id.as_deref().unwrap_or_default();
    let mut waiting = driver.abide.subscribe(sql).param("id", parent).await?;
    while waiting.try_next().await?.is_some() {
        if waiting.rows().len() != runs.len() {
            return Ok(());
        }
    }
    Err(Error::Closed)
}
