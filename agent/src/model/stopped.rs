//! Why a model stopped, and which of the reasons end the run: an answer that is cut off, withheld or absent must not
//! look like a complete one.

use abide_models::{ModelResponse, Stop};

use crate::run::step::RunFailure;

/// Returns the reason in the provider's term, unless the answer is complete or the model waits for results.
pub(crate) fn reason(stop: &Stop) -> Option<String> {
    match stop {
        Stop::End | Stop::ToolUse => None,
        Stop::Length => Some("length".to_owned()),
        Stop::Filtered => Some("filtered".to_owned()),
        Stop::UnknownTool(tool) => Some(format!("unknown_tool: {tool}")),
        Stop::Other(reason) => Some(reason.clone()),
    }
}

/// Returns `true` if an answer has neither text nor calls. A refusal has text, or the stop reason of one.
pub(crate) fn is_empty(answer: &ModelResponse) -> bool {
    answer.text.trim().is_empty() && answer.calls.is_empty()
}

/// Why the run cannot continue after an answer. Calls of such an answer do not run: their arguments may be cut off.
/// `needs_content`: an empty answer is a failure.
pub(crate) fn failure(answer: &ModelResponse, needs_content: bool) -> Option<RunFailure> {
    let is_missing = needs_content && is_empty(answer);
    let (code, message) = match &answer.stop {
        Stop::End | Stop::ToolUse if is_missing => (
            "no_answer",
            "the model's answer has neither text nor tool calls: set allow_empty_answers if that \
             can be an answer"
                .to_owned(),
        ),
        Stop::End | Stop::ToolUse => return None,
        Stop::Length => (
            "answer_truncated",
            "the model's answer was cut off at the token limit: raise config.max_tokens, or ask \
             for less"
                .to_owned(),
        ),
        Stop::Filtered => {
            ("refused", "the model refused to answer, or its provider withheld the answer".into())
        }
        Stop::UnknownTool(tool) => {
            ("tool_not_offered", format!("the model requested {tool}, which is not offered"))
        }
        Stop::Other(reason) if is_missing => {
            ("no_answer", format!("the model stopped without an answer: {reason}"))
        }
        Stop::Other(_) => return None,
    };
    Some(RunFailure::new(code, message))
}
