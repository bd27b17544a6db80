//! Approvals, as the driver of a run sees them: which calls need one, whether a call has one, the question for the
//! approver, and what the decision adds to the call.
//!
//! The reducer `request_tool_call` stores the call as `awaiting_approval` with a row of `approvals`. `RunState::decide`
//! then interrupts the run (`run/decide.rs`). The reducer `decide_approval` makes the call `pending` or `rejected`, and
//! the run claimable (`reducers/src/approval.rs`).

use abide_client::arguments::NewRunEvent;
use abide_client::rows::{RunEventKind, ToolCall, ToolCallStatus};
use abide_client::{Code, Error, Json, Refusal};
use serde_json::{Value, json};

use crate::run::driver::Driver;
use crate::run::lease::run_event;

/// Returns `true` if calls of a tool need an approval: because of the tool, or because of the agent's definition. The
/// reducer that requests a call decides by the same two conditions: the tool's is in the row of the tool, the
/// definition's is an argument of the request. The driver needs the answer to run approved calls first, and to publish
/// their decisions.
pub(crate) fn needs_approval(driver: &Driver, name: &str) -> bool {
    let by_tool =
        driver.shared.tools.get(name).is_some_and(|it| it.declaration().requires_approval());
    by_tool || driver.agent.definition.asks_for(name)
}

/// Checks that a call has an approval, if the agent's definition demands one (`interrupt_on`). A pending call need not
/// have one: another caller with the role `agent` can claim the run, request the call without the approval that only
/// the definition demands, and release the run.
///
/// # Errors
/// [`Code::Denied`] if the call has no approval; another error if the rows cannot be read.
pub(crate) async fn check_approved(driver: &Driver, call: &ToolCall) -> Result<(), Error> {
    let sql = "SELECT 1 FROM approvals WHERE call_id = :id AND status = 'approved'";
    let found: Vec<(i64,)> = driver.abide.sql(sql).param("id", &call.call_id).fetch().await?;
    if !found.is_empty() {
        return Ok(());
    }
    let detail = format!("call {} of {} has no approval", call.call_id, call.tool_name);
    let hint = "the definition of the agent demands one (interrupt_on)";
    Err(Error::Refused(Refusal::new(Code::Denied, detail).hint(hint)))
}

/// Returns the event for a decision on a call, with the arguments that the approver has changed.
pub(crate) fn decision_event(
    call: &ToolCall,
    decision: &str,
    approved_arguments: Option<Value>,
) -> NewRunEvent {
    let mut data = json!({"status": "tool_approval", "tool_call_id": call.call_id,
        "tool_name": call.tool_name, "decision": decision});
    if let Some(why) = &call.error {
        data["comment"] = json!(why);
    }
    if let Some(arguments) = approved_arguments {
        data["approved_args"] = arguments;
    }
    run_event(RunEventKind::Status, data)
}

/// Adds what the approver has to know to the calls of an interrupt: the id of the approval, its question, its initial values,
/// and when it expires.
///
/// # Errors
/// [`Error`] if the rows cannot be read.
pub(crate) async fn add_questions(driver: &Driver, requests: &mut [Value]) -> Result<(), Error> {
    for request in requests {
        if request["status"] != ToolCallStatus::AwaitingApproval.as_str() {
            continue;
        }
        let sql = "SELECT id, prompt, defaults, expires_at FROM approvals WHERE call_id = :id";
        let call_id = request["tool_call_id"].as_str().unwrap_or_default();
        type Cells = (String, Option<String>, Option<Json>, Option<i64>);
        let found: Vec<Cells> = driver.abide.sql(sql).param("id", call_id).fetch().await?;
        let Some((id, prompt, defaults, expires_at)) = found.into_iter().next() else { continue };
        request["approval_id"] = json!(id);
        if let Some(prompt) = prompt {
            request["prompt"] = json!(prompt);
        }
        if let Some(defaults) = defaults {
            request["defaults"] = defaults.value();
        }
        if let Some(expires_at) = expires_at {
            request["expires_at"] = json!(expires_at);
        }
    }
    Ok(())
}

/// Returns the arguments that the approver of a call has put in place of those of the model; `None` if the call ran as
/// requested.
///
/// # Errors
/// [`Error`] if the rows cannot be read.
pub(crate) async fn changed_arguments(
    driver: &Driver,
    call: &ToolCall,
) -> Result<Option<Value>, Error> {
    if !needs_approval(driver, &call.tool_name) {
        return Ok(None);
    }
    approved_arguments(driver, call).await
}

/// As [`changed_arguments`], of a call of any run: the current definition says nothing about its approval.
///
/// # Errors
/// [`Error`] if the rows cannot be read.
pub(crate) async fn approved_arguments(
    driver: &Driver,
    call: &ToolCall,
) -> Result<Option<Value>, Error> {
    let sql = "SELECT approved_arguments FROM approvals \
               WHERE call_id = :id AND approved_arguments IS NOT NULL";
    let found: Vec<(Json,)> = driver.abide.sql(sql).param("id", &call.call_id).fetch().await?;
    Ok(found.into_iter().next().map(|(arguments,)| arguments.value()))
}

/// Adds the changed files to the requests to settle calls, as far as their tools know them. The event that asks for a decision
/// has them, so an auditor finds them also if the call is settled as failed.
pub(crate) async fn add_changed_files(driver: &Driver, requests: &mut [Value]) {
    for request in requests.iter_mut().filter(|request| request["status"] == "unknown") {
        let name = request["tool_name"].as_str().unwrap_or_default().to_owned();
        let call_id = request["tool_call_id"].as_str().unwrap_or_default().to_owned();
        let Some(tool) = driver.shared.tools.get(&name) else { continue };
        if let Some(Value::Object(found)) = tool.interrupted(call_id).await
            && let Some(fields) = request.as_object_mut()
        {
            fields.extend(found);
        }
    }
}
