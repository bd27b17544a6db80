//! Whether a call needs an approval, and what one adds to it: the question for the approver, and the arguments that the approver has changed.

use abide_client::{Error, Json, ToolCall, ToolCallStatus};
use serde_json::{Value, json};

use crate::run::driver::Driver;

/// Whether calls of a tool need an approval: by the tool, or by the definition of the agent.
pub(crate) fn needs_approval(driver: &Driver, name: &str) -> bool {
    let by_tool =
        driver.shared.tools.get(name).is_some_and(|it| it.declaration().requires_approval());
    by_tool || driver.agent.definition.asks_for(name)
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

/// The arguments that the approver of a call has put in place of those of the model; `None` if the call ran as requested.
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
