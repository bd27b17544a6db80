//! Handoffs between agents: another agent continues the turn in the same session and run, with its own prompt, tools
//! and limits, until it answers or hands back. The agent that is active follows from the results of the handoff
//! calls, so another driver continues with the same agent.

use abide_client::arguments::CompleteToolCall;
use abide_client::{Agent, Code, Error, RunEventKind, ToolCall};
use abide_definitions::agent_tool::{AgentToolKind, HAND_BACK, message};
use abide_models::ToolSpec;
use abide_tools::{Failure, Parameters, ToolDeclaration, ToolOutcome};
use serde_json::{Value, json};

use crate::run::driver::Driver;
use crate::run::lease::{fencing_token, run_event};
use crate::run::step::{Step, StepError};

/// The declaration of the tool that hands back.
pub(crate) fn declaration() -> ToolDeclaration {
    let description = "Returns the conversation to the agent that handed it over.";
    ToolDeclaration::new(HAND_BACK, description, message("What that agent should know."))
}

/// The tool that hands back, as the model sees it; `None` if no handoff is in effect.
pub(crate) fn spec(driver: &Driver) -> Option<ToolSpec> {
    driver.handoff().map(|_| {
        let ToolDeclaration { name, description, parameters, .. } = declaration();
        ToolSpec { name, description, parameters }
    })
}

/// The parsed arguments of the tool that hands back, or the error text for the model.
pub(crate) fn admit(driver: &Driver, arguments: &str) -> Result<Value, String> {
    if driver.handoff().is_none() {
        return Err(format!("there is no tool {HAND_BACK}: no agent has handed over"));
    }
    let fitted = Parameters::of(&declaration().parameters)?.fit_text(arguments);
    Ok(fitted.map_err(|mismatch| format!("{HAND_BACK}: {mismatch}"))?.arguments)
}

/// Whether a call changes the active agent.
pub(crate) fn changes_agent(driver: &Driver, call: &ToolCall) -> bool {
    let tool = driver.composition.tool(&call.tool_name);
    call.tool_name == HAND_BACK || tool.is_some_and(|tool| tool.kind == AgentToolKind::HandsOff)
}

/// Performs a handoff. It takes effect when the result is given to the model. Returns the outcome of a call that
/// failed.
pub(crate) async fn run(driver: &Driver, claimed: &ToolCall) -> Step<Option<ToolOutcome>> {
    let target = match target(driver, claimed).await? {
        Ok(target) => target,
        Err(why) => return Ok(Some(ToolOutcome::failed(Failure::Denied, why))),
    };
    let to = target["agent"].as_str().unwrap_or_default().to_owned();
    let message = claimed.arguments.value()["message"].clone();
    let data = json!({"from_agent": driver.definition.name, "to_agent": to, "task": message,
        "handoff": true});
    let text = match to.is_empty() {
        true => "ok: the other agent continues".to_owned(),
        false => format!("ok: agent {to} continues"),
    };
    let result = json!({"text": text, "content": {"handoff": target}, "exit_code": 0});
    let done = CompleteToolCall::new(&claimed.call_id, fencing_token(claimed), result);
    let event = run_event(RunEventKind::Delegation, data);
    match driver.record(&[event], None, vec![done.into()]).await {
        // The caller on whose behalf the run works may not use the other agent.
        Err(StepError::Refused(error))
            if matches!(error.code(), Some(Code::Denied | Code::NotFound)) =>
        {
            Ok(Some(ToolOutcome::failed(Failure::Denied, error.to_string())))
        }
        // The next step reads the call's current state.
        Err(StepError::Refused(error)) if error.code().is_some() => Ok(None),
        recorded => recorded.map(|()| None),
    }
}

/// The agent that takes over by a call, in its newest revision, or why it cannot; without an agent for the call that hands
/// back. The result of the call does not count: a worker of the tenant can claim the call and complete it.
pub(crate) async fn target(
    driver: &Driver,
    call: &ToolCall,
) -> Result<Result<Value, String>, Error> {
    let Some(tool) = driver.composition.tool(&call.tool_name) else { return Ok(Ok(json!({}))) };
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
