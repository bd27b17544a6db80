//! The answer to a question: what an approver gives, checked against the form that the server has asked for.

use std::sync::Arc;

use abide_schema::{Abort, Code, Context, Json, Refusal};
use serde_json::{Map, Value as JsonValue, json};

use crate::tool;
use crate::tool_call::ToolCall;

/// Returns the result of an approved question. The answer is the member `answer` of the approved arguments; without it,
/// a comment that is a JSON object, or the value of the only field, or of the only required field. Missing fields get
/// their defaults.
///
/// # Errors
/// The answer does not fit the form.
pub(crate) fn accept(
    ctx: &mut Context<'_>,
    question: &ToolCall,
    approved: Option<&JsonValue>,
    comment: Option<&str>,
) -> Result<Json, Abort> {
    let arguments = question.arguments.value();
    let form = arguments.get("schema").filter(|form| form.is_object());
    let answer = match approved {
        Some(approved) => Some(answer_in(approved, &arguments)?),
        None => form.and_then(|form| answer_in_comment(form, comment.unwrap_or_default())),
    };
    let Some(form) = form else {
        return if answer.as_ref().and_then(JsonValue::as_object).is_none_or(Map::is_empty) {
            Ok(Json::from(json!({"action": "accept"})))
        } else {
            Err(bad_answer(
                "the question has no form for an answer",
                "approve it without an answer",
            )
            .into())
        };
    };
    let mut answer = answer.unwrap_or_else(|| json!({}));
    add_defaults(form, &mut answer);
    let schema = Json::from(form.clone());
    let answer = Arc::new(answer);
    tool::check_answer(ctx, &question.call_id, &schema, &answer)?;
    Ok(Json::from(json!({"action": "accept", "content": *answer})))
}

/// Returns the answer in approved arguments. Its other members must be those of the question.
fn answer_in(approved: &JsonValue, arguments: &JsonValue) -> Result<JsonValue, Refusal> {
    let members = approved.as_object();
    let changed = members
        .into_iter()
        .flatten()
        .find(|(name, value)| *name != "answer" && arguments.get(name.as_str()) != Some(value));
    if let Some((name, _)) = changed {
        let detail = format!("approved_arguments.{name} differs from the question");
        return Err(bad_answer(&detail, "give only answer"));
    }
    members.and_then(|members| members.get("answer")).cloned().ok_or_else(|| {
        bad_answer("missing argument approved_arguments.answer", "give {\"answer\": {…}}")
    })
}

fn bad_answer(detail: &str, hint: &str) -> Refusal {
    Refusal::new(Code::BadArguments, detail).hint(hint)
}

/// Returns the answer that a comment gives.
fn answer_in_comment(form: &JsonValue, comment: &str) -> Option<JsonValue> {
    if let Ok(answer @ JsonValue::Object(_)) = serde_json::from_str(comment) {
        return Some(answer);
    }
    let (name, field) = only_field(form)?;
    let comment = comment.trim();
    let value = match field["type"].as_str() {
        Some("string") if !comment.is_empty() => json!(comment),
        Some("boolean") => match comment.to_lowercase().as_str() {
            "y" | "yes" | "true" => json!(true),
            "n" | "no" | "false" => json!(false),
            _ => return None,
        },
        Some("integer" | "number") => serde_json::from_str(comment).ok()?,
        _ => return None,
    };
    Some(json!({name: value}))
}

/// Returns the field of a form with one field, or else the only one that is required.
fn only_field(form: &JsonValue) -> Option<(&str, &JsonValue)> {
    let fields = form["properties"].as_object()?;
    let only = match form["required"].as_array().map(Vec::as_slice) {
        Some([required]) => required.as_str()?,
        _ if fields.len() == 1 => fields.keys().next()?,
        _ => return None,
    };
    Some((only, fields.get(only)?))
}

fn add_defaults(form: &JsonValue, answer: &mut JsonValue) {
    let Some(answer) = answer.as_object_mut() else { return };
    for (name, field) in form["properties"].as_object().into_iter().flatten() {
        if let Some(default) = field.get("default") {
            answer.entry(name.clone()).or_insert_with(|| default.clone());
        }
    }
}
