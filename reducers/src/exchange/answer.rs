//! The answer to a question: what an approver gives, checked against the form that the server has asked for.

use std::sync::Arc;

use abide_schema::{Abort, Code, Context, Json, Refusal};
use serde_json::{Map, Value as JsonValue, json};

use super::rows::INPUT_TOOL;
use crate::tool;
use crate::tool_call::ToolCall;

/// The result of an approved question. The answer is the member `answer` of the approved arguments; without it, a comment
/// that is a JSON object, or the value of the only field, or of the only required field. Missing fields get their defaults.
///
/// # Errors
/// The answer does not fit the form.
pub(crate) fn accepted(
    ctx: &mut Context<'_>,
    question: &ToolCall,
    approved: Option<&JsonValue>,
    comment: Option<&str>,
) -> Result<Json, Abort> {
    let arguments = question.arguments.value();
    let form = arguments.get("schema").filter(|form| form.is_object());
    let answer = match approved {
        Some(approved) => Some(given(&arguments, approved)?),
        None => form.and_then(|form| in_words(form, comment.unwrap_or_default())),
    };
    let Some(form) = form else {
        return if answer.as_ref().and_then(JsonValue::as_object).is_none_or(Map::is_empty) {
            Ok(Json::from(json!({"action": "accept"})))
        } else {
            Err(unfit("this question has no form", "approve it without an answer").into())
        };
    };
    let mut answer = answer.unwrap_or_else(|| json!({}));
    add_defaults(form, &mut answer);
    let schema = Json::from(form.clone());
    let answer = Arc::new(answer);
    tool::check_value(ctx, INPUT_TOOL, &schema, &answer).map_err(|abort| match abort {
        Abort::Refused(refusal) if refusal.code == Code::BadArguments => {
            let what = "the arguments do not fit tool_input";
            let detail = refusal.detail.replacen(what, "the answer does not fit the form", 1);
            let hint = format!(
                "approve with `approved_arguments='{{\"answer\": {{…}}}}'` that fits the schema in \
                 the arguments of {}",
                question.call_id
            );
            Refusal::new(Code::BadArguments, detail).hint(hint).into()
        }
        abort => abort,
    })?;
    Ok(Json::from(json!({"action": "accept", "content": *answer})))
}

/// The answer in approved arguments. Its other members must be those of the question.
fn given(arguments: &JsonValue, approved: &JsonValue) -> Result<JsonValue, Refusal> {
    let members = approved.as_object();
    let changed = members
        .into_iter()
        .flatten()
        .find(|(name, value)| *name != "answer" && arguments.get(name.as_str()) != Some(value));
    if let Some((name, _)) = changed {
        let detail = format!("the member {name} of a question cannot be changed");
        return Err(unfit(&detail, "give only answer"));
    }
    members.and_then(|members| members.get("answer")).cloned().ok_or_else(|| {
        unfit("approved_arguments of a question need the member answer", "give {\"answer\": {…}}")
    })
}

fn unfit(detail: &str, hint: &str) -> Refusal {
    Refusal::new(Code::BadArguments, detail).hint(hint)
}

/// An answer in a comment.
fn in_words(form: &JsonValue, comment: &str) -> Option<JsonValue> {
    if let Ok(answer @ JsonValue::Object(_)) = serde_json::from_str(comment) {
        return Some(answer);
    }
    let (name, field) = only_field(form)?;
    let said = comment.trim();
    let value = match field["type"].as_str() {
        Some("string") if !said.is_empty() => json!(said),
        Some("boolean") => match said.to_lowercase().as_str() {
            "y" | "yes" | "true" => json!(true),
            "n" | "no" | "false" => json!(false),
            _ => return None,
        },
        Some("integer" | "number") => serde_json::from_str(said).ok()?,
        _ => return None,
    };
    Some(json!({name: value}))
}

/// The field of a form with one field, or else the only one that is required.
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
