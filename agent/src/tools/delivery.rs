//! What the model gets of a call that has ended: its outcome as a text, redacted and shortened, in the order in which it requested
//! its calls.
//!
//! The outcome itself is a row that `tools/claimed.rs` or another worker has recorded. Its message and event are written by
//! `run/record.rs`; with the message, a handoff takes effect.

use abide_client::Json;
use abide_client::rows::{ToolCall, ToolCallStatus};
use abide_tools::Effect;
use serde_json::Value;

use crate::context::entry::{CallResult, CallStatus, HandoffEntry};
use crate::context::truncation::Truncation;
use crate::delegation::handoff;
use crate::middleware;
use crate::run::driver::Driver;
use crate::run::step::Step;
use crate::tools;
use crate::tools::executor::Executor;

/// The text of a call that the model requests past the limit.
const SKIPPED: &str = "This call was skipped: the run has reached its tool call limit.";

/// What a model gets of a call.
pub(crate) struct Delivery {
    pub(crate) result: CallResult,
    /// The change of the active agent, which takes effect with the message of the result.
    pub(crate) handoff: Option<HandoffEntry>,
}

/// What the model gets of a finished call, with the arguments that its approver has changed.
pub(crate) async fn deliver(driver: &Driver, call: &ToolCall) -> Step<Delivery> {
    let mut result = call_result(driver, call);
    if call.status != ToolCallStatus::Rejected {
        result.approved_arguments = tools::approval::changed_arguments(driver, call).await?;
    }
    let Some(tool) = Executor::for_tool(driver, &call.tool_name).runtime_tool() else {
        return Ok(Delivery { result, handoff: None });
    };
    let result = tool.result_for_model(driver, call, result).await?;
    if !tool.changes_agent() || result.is_error() {
        return Ok(Delivery { result, handoff: None });
    }
    Ok(match handoff::accept(driver, call).await? {
        Ok(handoff) => Delivery { result, handoff: Some(handoff) },
        Err(why) => Delivery { result: CallResult::error(why), handoff: None },
    })
}

/// Returns the outcome of a finished call, for the model: text, whether it is an error, and exit code.
fn call_result(driver: &Driver, call: &ToolCall) -> CallResult {
    let result = match call.status {
        ToolCallStatus::Succeeded => {
            let result = call.result.as_ref().map(Json::value);
            let exit_code = exit_code(result.as_ref()).unwrap_or(0);
            CallResult::ok(success_text(result, call.settled_by.is_some()), exit_code)
        }
        ToolCallStatus::Rejected => {
            let why = call.error.as_deref().unwrap_or("no reason given");
            CallResult::without_success(CallStatus::Rejected, format!("Rejected: {why}"))
        }
        ToolCallStatus::Cancelled => {
            let has_effect =
                Executor::for_tool(driver, &call.tool_name).effect() != Effect::ReadOnly;
            CallResult::without_success(CallStatus::Cancelled, cancelled_text(call, has_effect))
        }
        _ => {
            let why = call.error.clone().unwrap_or_else(|| "The call failed.".to_owned());
            let exit_code = exit_code(call.result.as_ref().map(Json::value).as_ref());
            CallResult { exit_code: exit_code.unwrap_or(1), ..CallResult::error(why) }
        }
    };
    for_model(driver, &call.call_id, result)
}

/// Says whether a cancelled call has begun, and whether it may have taken effect: a model repeats a call that did not run.
fn cancelled_text(call: &ToolCall, has_effect: bool) -> &'static str {
    match (call.attempt, has_effect) {
        (0, _) => "The call was cancelled before it began: it did not run.",
        (_, false) => "The call was cancelled while it ran.",
        (_, true) => {
            "The call was cancelled while it ran. It may have taken effect: find out before you repeat it."
        }
    }
}

/// Returns the exit code in the result of a call.
fn exit_code(result: Option<&Value>) -> Option<i32> {
    result?["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok())
}

/// Returns the result of a call past the limit of tool calls.
pub(crate) fn skipped() -> CallResult {
    CallResult::without_success(CallStatus::Skipped, SKIPPED)
}

/// Returns a result as the model may see it: redacted, and shortened.
pub(crate) fn for_model(driver: &Driver, call_id: &str, result: CallResult) -> CallResult {
    let text = middleware::redaction::redact_result(driver, result.text);
    let cut = match driver.agent.definition.config.tool_token_limit_before_evict {
        Some(max) => Truncation { max_chars: usize::MAX, max_tokens: Some(max) },
        None => Truncation::default(),
    };
    let shortened = cut.apply(&text, call_id);
    let text = match shortened.left_out {
        0 => shortened.text,
        // A cut in personal data hides it from the rules for requests.
        _ => cut.apply(&middleware::redaction::for_model(driver, &text), call_id).text,
    };
    CallResult { text, ..result }
}

/// Returns the text of a call that succeeded, from its result.
fn success_text(result: Option<Value>, is_settled: bool) -> String {
    match result {
        // The result comes from an external worker and may have any shape.
        Some(Value::Object(object)) if object.contains_key("text") => text_of(&object["text"]),
        Some(other) => text_of(&other),
        None if is_settled => SETTLED.to_owned(),
        None => text_of(&Value::Null),
    }
}

/// The text of a call that a person has settled as succeeded, without a result. Without it the model could call the tool again.
const SETTLED: &str = "The call was interrupted. It was confirmed later that it has succeeded. \
     Its output is not known.";

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The model saw `null`, as for a tool without output.
    #[test]
    fn a_call_that_was_settled_without_a_result_has_a_text() {
        for (result, is_settled, expected) in [
            (None, true, SETTLED),
            (None, false, "null"),
            (Some(json!({"text": "It is paid."})), true, "It is paid."),
            (Some(json!("It is paid.")), true, "It is paid."),
        ] {
            assert_eq!(success_text(result, is_settled), expected);
        }
    }
}
