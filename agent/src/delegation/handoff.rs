//! Handoffs between agents: another agent continues the turn in the same session and run, with its own prompt, tools
//! and limits, until it answers or hands back. The agent that is active follows from the results of the handoff
//! calls, so another driver continues with the same agent.

use abide_client::Error;
use abide_client::arguments::{CompleteToolCall, RegisterTool};
use abide_client::rows::{Agent, RunEventKind, ToolCall};
use abide_definitions::agent_tool::{self, HAND_BACK, message};
use abide_tools::{Effect, Failure, ToolDeclaration, ToolOutcome};
use futures_util::future::{BoxFuture, FutureExt as _};
use serde_json::{Value, json};

use crate::context::entry::HandoffEntry;
use crate::run::driver::Driver;
use crate::run::lease::{fencing_token, run_event};
use crate::run::step::{Step, StepError};
use crate::tools::runtime_tool::{CallOrder, RunningCall, RuntimeTool, refused};

/// The tool that hands back.
pub(crate) struct HandBack;

impl RuntimeTool for HandBack {
    fn declaration(&self) -> ToolDeclaration {
        let description = "Returns the conversation to the agent that handed it over.";
        ToolDeclaration::new(HAND_BACK, description, message("What that agent should know."))
    }

    fn name(&self) -> &str {
        HAND_BACK
    }

    fn registration(&self) -> RegisterTool {
        agent_tool::registration(self.declaration())
    }

    fn missing(&self, driver: &Driver) -> Option<&'static str> {
        driver.state.handoff().is_none().then_some("no agent has handed over")
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn order(&self) -> CallOrder {
        CallOrder::InSequence
    }

    fn changes_agent(&self) -> bool {
        true
    }

    fn run<'a>(&'a self, call: RunningCall<'a>) -> BoxFuture<'a, Step<Option<ToolOutcome>>> {
        run(call).boxed()
    }
}

/// Returns the agent that becomes active with the result of a call.
///
/// # Errors
/// Why no other agent can take over, for the model.
pub(crate) async fn accept(driver: &Driver, call: &ToolCall) -> Step<Result<HandoffEntry, String>> {
    let target = target(driver, call).await?;
    let now = driver.shared.settings.now();
    Ok(target.map(|target| HandoffEntry::now(&driver.state.run, now, &target)))
}

/// Performs a handoff. It takes effect when the result is given to the model. Returns the outcome of a call that
/// failed.
pub(crate) async fn run(call: RunningCall<'_>) -> Step<Option<ToolOutcome>> {
    let RunningCall { driver, claimed, .. } = call;
    let target = match target(driver, claimed).await? {
        Ok(target) => target,
        Err(why) => return Ok(Some(ToolOutcome::failed(Failure::Denied, why))),
    };
    let to = target["agent"].as_str().unwrap_or_default().to_owned();
    let message = claimed.arguments.value()["message"].clone();
    let data = json!({"from_agent": driver.agent.definition.name, "to_agent": to, "task": message,
        "handoff": true});
    let text = if to.is_empty() {
        "ok: the other agent continues".to_owned()
    } else {
        format!("ok: agent {to} continues")
    };
    let result = json!({"text": text, "content": {"handoff": target}, "exit_code": 0});
    let done = CompleteToolCall::new(&claimed.call_id, fencing_token(claimed), result);
    let event = run_event(RunEventKind::Delegation, data);
    match driver.record(&[event], None, vec![done.into()]).await {
        // For example, the caller on whose behalf the run works may not use the other agent.
        Err(StepError::Refused(error)) => refused(error),
        recorded => recorded.map(|()| None),
    }
}

/// Returns the agent that takes over by a call, in its newest revision, or why it cannot; without an agent for the call
/// that hands back. The result of the call does not count: a worker of the tenant can claim the call and complete it.
async fn target(driver: &Driver, call: &ToolCall) -> Result<Result<Value, String>, Error> {
    let Some(tool) = driver.agent.composition.tool(&call.tool_name) else {
        return Ok(Ok(json!({})));
    };
    let name = &tool.agent;
    let sql = "SELECT * FROM agents WHERE name = :name";
    let found: Vec<Agent> = driver.shared.abide.sql(sql).param("name", name).fetch().await?;
    Ok(match found.into_iter().next() {
        None => Err(format!("there is no agent {name}")),
        Some(agent) if agent.retired_at.is_some() => Err(format!("agent {name} is retired")),
        Some(agent) if !agent.mode.is_subagent() => {
            Err(format!("agent {name} is {} and cannot take over", agent.mode))
        }
        Some(agent) => Ok(json!({"agent": agent.name, "revision": agent.revision})),
    })
}
