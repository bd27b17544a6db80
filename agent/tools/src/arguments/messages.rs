//! Schemas and errors as text for a model.

use abide_json_schema::{Mismatch, MismatchKind};
use serde_json::Value;

/// Maximum length of the location and of the message of one error. They quote names and values of the arguments,
/// which may have megabytes.
const ERROR_CHARS: usize = 200;

/// Maximum number of alternatives whose errors are listed.
const ALTERNATIVES: usize = 4;

/// Maximum number of listed parameters and enumeration values.
const PARAMETERS: usize = 40;
const CHOICES: usize = 12;

/// Maximum depth of nested types.
const DEPTH: usize = 3;

/// Returns the location and the message of an error.
pub(super) fn error(error: &Mismatch) -> String {
    match &error.kind {
        MismatchKind::Alternatives(branches) => {
            let mut parts: Vec<String> = branches
                .iter()
                .take(ALTERNATIVES)
                .filter_map(|branch| Some(inner(branch.first()?, &error.path)))
                .collect();
            if branches.len() > ALTERNATIVES {
                parts.push(format!("{} more", branches.len() - ALTERNATIVES));
            }
            format!("{} ({})", error_at(&error.path, &error.what), parts.join("; "))
        }
        _ => error_at(&error.path, &error.what),
    }
}

/// Returns the error of an alternative, without a location or value that was named before.
fn inner(error: &Mismatch, outer: &str) -> String {
    match &error.kind {
        MismatchKind::Type(types) if error.path == outer => {
            format!("not of type {}", join(types.iter().map(|one| format!("\"{one}\""))))
        }
        _ if error.path == outer => truncated(&error.what),
        _ => error_at(&error.path, &error.what),
    }
}

/// Returns an error at a location.
pub(super) fn error_at(path: &str, what: &str) -> String {
    let place = if path.is_empty() { String::new() } else { format!("at {}: ", truncated(path)) };
    place + &truncated(what)
}

fn truncated(text: &str) -> String {
    let mut short: String = text.chars().take(ERROR_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// `Parameters: path (string, required), lines (integer)`.
pub(super) fn parameters(schema: &Value) -> String {
    let Some(properties) = schema["properties"].as_object().filter(|all| !all.is_empty()) else {
        return format!("Parameters: {}", type_of(schema, schema, DEPTH));
    };
    let mut parts: Vec<String> = properties
        .iter()
        .take(PARAMETERS)
        .map(|(name, schema_of_it)| {
            let required = if is_required(schema, name) { ", required" } else { "" };
            format!("{name} ({}{required})", type_of(schema, schema_of_it, DEPTH))
        })
        .collect();
    if properties.len() > PARAMETERS {
        parts.push(format!("and {} more", properties.len() - PARAMETERS));
    }
    format!("Parameters: {}", parts.join(", "))
}

fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
}

/// Returns a short description of a type: `array of string`, `integer or null`, `one of "a", "b"`.
fn type_of(root: &Value, schema: &Value, depth: usize) -> String {
    if depth == 0 {
        return "any".to_owned();
    }
    if let Some(target) = schema["$ref"].as_str() {
        let found = target.strip_prefix('#').and_then(|path| root.pointer(path));
        return found.map_or_else(|| "any".to_owned(), |it| type_of(root, it, depth - 1));
    }
    if let Some(choices) = schema["enum"].as_array() {
        let mut parts: Vec<String> = choices.iter().take(CHOICES).map(Value::to_string).collect();
        if choices.len() > CHOICES {
            parts.push(format!("{} more", choices.len() - CHOICES));
        }
        return format!("one of {}", parts.join(", "));
    }
    if let Some(only) = schema.get("const") {
        return only.to_string();
    }
    for keyword in ["anyOf", "oneOf"] {
        if let Some(branches) = schema[keyword].as_array() {
            return join(branches.iter().map(|branch| type_of(root, branch, depth - 1)));
        }
    }
    match &schema["type"] {
        Value::String(name) if name == "array" && schema["items"].is_object() => {
            format!("array of {}", type_of(root, &schema["items"], depth - 1))
        }
        Value::String(name) => name.clone(),
        Value::Array(names) => join(names.iter().filter_map(Value::as_str).map(str::to_owned)),
        _ if schema["properties"].is_object() => "object".to_owned(),
        _ => "any".to_owned(),
    }
}

fn join(types: impl Iterator<Item = String>) -> String {
    let mut parts: Vec<String> = Vec::new();
    for one in types {
        if !parts.contains(&one) {
            parts.push(one);
        }
    }
    parts.join(" or ")
}
