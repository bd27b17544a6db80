//! A decision of a client on a call that waits for an approval, and the checks that are the same in every protocol.
//!
//! *Invariant:* a decision has no member without an effect. A client that names a member in another way believes that the call runs
//! as its approver has edited it, so the decision is refused.

use abide_schema::wire::BatchCall;
use abide_schema::{Code, Refusal};
use abide_server::port::runs;
use serde_json::{Value as JsonValue, json};

/// A decision on a call.
pub(super) struct Decision {
    pub(super) call_id: String,
    pub(super) approve: bool,
    pub(super) comment: Option<String>,
    /// The answer to a question of a tool.
    pub(super) answer: Option<JsonValue>,
    /// The arguments with which the call runs, in place of those of the model.
    pub(super) approved_arguments: Option<JsonValue>,
}

impl Decision {
    /// Returns the call that records it.
    pub(super) fn into_call(self) -> BatchCall {
        let Decision { call_id, approve, comment, answer, approved_arguments } = self;
        let decision = if approve { "approve" } else { "reject" };
        let mut args = json!({"call_id": call_id, "decision": decision, "comment": comment});
        let answer = answer.filter(|_| approve).map(|answer| json!({"answer": answer}));
        if let Some(arguments) = approved_arguments.or(answer) {
            args["approved_arguments"] = arguments;
        }
        runs::reducer_call("decide_approval", args)
    }
}

/// Checks that a decision of a client has only known members. Members without a value are as good as absent.
///
/// # Errors
/// `bad_arguments` names the unknown ones.
pub(super) fn check_members<'a>(
    what: &str,
    members: impl IntoIterator<Item = (&'a String, &'a JsonValue)>,
    known: &[&str],
) -> Result<(), Refusal> {
    let unknown: Vec<&str> = members
        .into_iter()
        .filter(|(name, value)| !value.is_null() && !known.contains(&name.as_str()))
        .map(|(name, _)| name.as_str())
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let detail = format!("{what} has unknown members: {}", unknown.join(", "));
    Err(Refusal::new(Code::BadArguments, detail).hint(format!("it can have {}", known.join(", "))))
}

/// Returns the changed arguments of a decision, unless they are null.
///
/// # Errors
/// `bad_arguments`: there is an answer too, and only one of them can take effect.
pub(super) fn approved_arguments(
    name: &str,
    value: &JsonValue,
    answer: Option<&JsonValue>,
) -> Result<Option<JsonValue>, Refusal> {
    if value.is_null() {
        return Ok(None);
    }
    if answer.is_some() {
        let detail = format!("the decision has both answer and {name}");
        let hint = format!("send answer for a question of a tool, else {name}");
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
    }
    Ok(Some(value.clone()))
}
