//! What may be arguments of a call in places that are not read. A call without arguments runs only if there is nothing of that kind.

use serde_json::{Map, Value};

use crate::ModelError;

/// Words in the names of members that are not arguments, without `_` and `-`.
const METADATA: [&str; 20] = [
    "usage",
    "metrics",
    "metadata",
    "cost",
    "token",
    "timing",
    "guardrail",
    "trace",
    "diagnos",
    "contextmanagement",
    "container",
    "caller",
    "cachecontrol",
    "stopdetails",
    "contentfilter",
    "logprob",
    "reasoning",
    "signature",
    "extracontent",
    "provider",
];

/// The error for arguments that cannot be read, without which the call must not run.
pub(in super::super) fn unread_arguments() -> ModelError {
    ModelError::invalid_response("the stream has arguments of a call in an unknown format")
}

/// Whether fields of a call, other than `known`, have a name of arguments in a format that we do not read: without them, the call
/// would run with a part of what the model wrote.
pub(in super::super) fn has_unread_arguments(fields: &Map<String, Value>, known: &str) -> bool {
    fields.iter().any(|(name, value)| {
        let is_known = name == known || name == "parsed_arguments";
        !is_known && is_named_like_arguments(&plain(name), value)
    })
}

/// Whether a part of a stream has a value that may be the arguments of a call, whatever its name, apart from the members in `read`.
pub(in super::super) fn may_have_arguments(part: &Value, read: &[&str]) -> bool {
    match part {
        Value::Object(fields) => may_be_beside(fields, read),
        other => may_be_arguments(other),
    }
}

/// Whether one of these fields, apart from those in `read`, may be the arguments of a call.
pub(in super::super) fn may_be_beside(fields: &Map<String, Value>, read: &[&str]) -> bool {
    fields.iter().filter(|(name, _)| !read.contains(&name.as_str())).any(|(name, value)| {
        let name = plain(name);
        is_named_like_arguments(&name, value) || !is_metadata(&name) && may_be_arguments(value)
    })
}

fn is_named_like_arguments(plain_name: &str, value: &Value) -> bool {
    let has_value = match value {
        Value::Null | Value::Bool(_) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Number(_) => true,
    };
    let mut words = ["arg", "param", "input", "partial"].into_iter();
    has_value && !is_metadata(plain_name) && words.any(|word| plain_name.contains(word))
}

fn may_be_arguments(value: &Value) -> bool {
    match value {
        // A message or a block in it says nothing more than its members.
        Value::Object(members)
            if matches!(
                members.get("type").and_then(Value::as_str),
                Some("message" | "text" | "tool_use")
            ) =>
        {
            may_have_arguments(value, &[])
        }
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => items.iter().any(may_be_arguments),
        Value::String(text) => {
            text.trim_start_matches([' ', '\t', '\r', '\n', '"', '\\']).starts_with('{')
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns a name without the differences between ways to write it.
fn plain(name: &str) -> String {
    name.replace(['_', '-'], "").to_ascii_lowercase()
}

fn is_metadata(plain_name: &str) -> bool {
    METADATA.iter().any(|word| plain_name.contains(word))
}
