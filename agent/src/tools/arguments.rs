//! The arguments of a call, as a model wrote them.

use abide_json_integers as integers;
use serde_json::{Value, json};

/// Parses a text as JSON arguments. Returns the text itself if it is not JSON or has integers that would lose
/// digits, or if it is too deep to be stored.
pub(crate) fn arguments_or_text(text: &str) -> Value {
    let exact = integers::check(text).ok().and_then(|()| serde_json::from_str(text).ok());
    let exact = exact.filter(|value| integers::check_depth(value).is_ok());
    exact.unwrap_or_else(|| json!(text))
}
