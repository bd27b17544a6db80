//! The replacement of a result, or of the arguments of a call, that a summary covers: by tool, as the
//! profile says. The originals stay in the rows, and the model gets them with `get_tool_response`.

use abide_definitions::agent_tool::{GET_TOOL_RESPONSE, MANAGE_TODO_LIST, RESPONSE};
use abide_definitions::reduction_rules::{Reduction, ReductionRules, rule_for};
use serde_json::{Map, Value, json};

/// Tools whose results are never reduced, and cannot be fetched again: what they return is the current state, or was just fetched.
pub(crate) const NEVER_REDUCED: [&str; 3] = [RESPONSE, MANAGE_TODO_LIST, GET_TOOL_RESPONSE];

/// Texts of at most this many characters stay: a marker would hardly be shorter.
const SMALL_CHARS: usize = 200;

/// Returns the size of a text in characters, if the rules reduce it.
pub(crate) fn reduced_chars(rules: &ReductionRules, tool: &str, text: &str) -> Option<usize> {
    let is_large = text.len() > SMALL_CHARS && text.chars().nth(SMALL_CHARS).is_some();
    let may = !NEVER_REDUCED.contains(&tool) && rule_for(rules, tool) != Reduction::KeepFull;
    (may && is_large).then(|| text.chars().count())
}

/// Returns `true` if the request for a summary leaves a text out.
pub(crate) fn drops(rules: &ReductionRules, tool: &str, text: &str) -> bool {
    rule_for(rules, tool) == Reduction::Drop && reduced_chars(rules, tool, text).is_some()
}

/// Returns the replacement of a result; `None` if it stays.
pub(crate) fn result_replacement(
    rules: &ReductionRules,
    tool: &str,
    call_id: &str,
    text: &str,
) -> Option<String> {
    let chars = reduced_chars(rules, tool, text)?;
    let rule = rule_for(rules, tool);
    let marker = marker(rule, call_id, "output", chars);
    if rule != Reduction::KeepStructured {
        return Some(marker);
    }
    let reduced = format!("{marker}\n{}", outline(text));
    (reduced.len() < text.len()).then_some(reduced)
}

/// Returns the replacement of arguments, as JSON; `None` if they stay.
pub(crate) fn arguments_replacement(
    rules: &ReductionRules,
    tool: &str,
    call_id: &str,
    text: &str,
) -> Option<String> {
    let chars = reduced_chars(rules, tool, text)?;
    let rule = rule_for(rules, tool);
    let mut reduced = Map::new();
    reduced.insert("archived".to_owned(), json!(marker(rule, call_id, "input", chars)));
    if rule == Reduction::KeepStructured {
        reduced.insert("outline".to_owned(), json!(outline(text)));
    }
    let reduced = Value::Object(reduced).to_string();
    (rule != Reduction::KeepStructured || reduced.len() < text.len()).then_some(reduced)
}

/// The first word of each marker.
const WORDS: [(Reduction, &str); 3] = [
    (Reduction::SummarizeArchive, "SUMMARIZED"),
    (Reduction::KeepStructured, "STRUCTURED"),
    (Reduction::Drop, "DROPPED"),
];

/// Returns the marker in place of a text.
fn marker(rule: Reduction, call_id: &str, part: &str, chars: usize) -> String {
    let word = WORDS.iter().find(|(it, _)| *it == rule).map_or("SUMMARIZED", |(_, word)| word);
    format!(
        "{word} executionId:'{call_id}' ({chars} characters: get_tool_response returns its {part})"
    )
}

/// Returns `true` if a result is a marker.
pub(crate) fn is_marker(text: &str) -> bool {
    WORDS.iter().any(|(_, word)| {
        text.strip_prefix(word).is_some_and(|rest| rest.starts_with(" executionId:'"))
    })
}

/// Maximum size of an outline in characters.
const OUTLINE_CHARS: usize = 400;

/// How many members of an object, items of an array and characters of a text an outline has.
const MEMBERS: usize = 20;
const ITEMS: usize = 3;
const TEXT_CHARS: usize = 80;

/// Returns the outline of a text: the shape of JSON, or the beginning and the end.
fn outline(text: &str) -> String {
    if let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
        // As deep as it fits.
        let mut shapes = (1..=3).rev().map(|depth| shape(&value, depth).to_string());
        let fitting = shapes.find(|shape| shape.chars().count() <= OUTLINE_CHARS);
        return fitting.unwrap_or_else(|| {
            format!("{}…", first(&shape(&value, 1).to_string(), OUTLINE_CHARS))
        });
    }
    let head = OUTLINE_CHARS * 2 / 3;
    let tail = OUTLINE_CHARS / 3;
    let chars = text.chars().count();
    if chars <= head + tail {
        return text.to_owned();
    }
    let end: String = text.chars().skip(chars - tail).collect();
    format!("{}\n[…]\n{end}", first(text, head))
}

/// Returns a value with short texts and few items, down to a depth.
fn shape(value: &Value, depth: usize) -> Value {
    match value {
        Value::Object(members) if depth == 0 => json!(format!("{{{} members}}", members.len())),
        Value::Array(items) if depth == 0 => json!(format!("[{} items]", items.len())),
        Value::Object(members) => {
            let shown = members.iter().take(MEMBERS);
            let mut shown: Map<String, Value> =
                shown.map(|(key, value)| (key.clone(), shape(value, depth - 1))).collect();
            if let Some(more) = members.len().checked_sub(MEMBERS).filter(|more| *more > 0) {
                shown.insert("…".to_owned(), json!(format!("{more} more members")));
            }
            Value::Object(shown)
        }
        Value::Array(items) => {
            let mut shown: Vec<Value> =
                items.iter().take(ITEMS).map(|item| shape(item, depth - 1)).collect();
            if let Some(more) = items.len().checked_sub(ITEMS).filter(|more| *more > 0) {
                shown.push(json!(format!("… {more} more items")));
            }
            Value::Array(shown)
        }
        Value::String(text) if text.chars().count() > TEXT_CHARS => {
            json!(format!("{}…", first(text, TEXT_CHARS)))
        }
        other => other.clone(),
    }
}

/// Returns the first characters of a text.
fn first(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

#[cfg(test)]
mod tests;
