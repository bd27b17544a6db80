//! Arguments as JSON values: when two texts say the same, and what several texts for one call say together.

use abide_json_integers as integers;
use serde_json::value::RawValue;
use serde_json::{Number, Value};

/// Returns a text that is the same for all texts with the same JSON value: white space, the order of members, escapes,
/// `1.0` for `1`, and the encoding as a string do not matter. Other texts are returned without surrounding spaces.
pub(super) fn canonical(text: &str) -> String {
    let text = text.trim();
    // Numbers that would be rounded could become equal.
    if integers::check(text).is_err() {
        return text.to_owned();
    }
    match serde_json::from_str::<Value>(text) {
        Ok(Value::String(inner)) => canonical(&inner),
        Ok(mut value) => {
            write_integers(&mut value);
            value.to_string()
        }
        Err(_) => text.to_owned(),
    }
}

/// Replaces each number that is whole by an integer.
fn write_integers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|float| float.fract() == 0.0);
            if let Some(integer) = whole.and_then(|float| format!("{float:.0}").parse::<i64>().ok())
            {
                *number = Number::from(integer);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(write_integers),
        Value::Object(members) => members.values_mut().for_each(write_integers),
        _ => {}
    }
}

/// Returns `true` if arguments say nothing. Some servers send `{}` or `null` before or after the real ones.
pub(super) fn is_placeholder(text: &str) -> bool {
    matches!(canonical(text).as_str(), "" | "{}" | "null")
}

/// Returns `true` if a text is JSON and more than a placeholder.
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok() && !is_placeholder(text)
}

/// Returns the arguments of a call for which these texts arrived, one after the other. If they are several JSON values
/// that are equal, except for placeholders, one counts. Otherwise they contradict each other, and the text stays as it is:
/// it is not JSON, so the call does not run.
pub(super) fn settled(text: String) -> String {
    let values: Result<Vec<&RawValue>, _> =
        serde_json::Deserializer::from_str(&text).into_iter().collect();
    let Ok([first, others @ ..]) = values.as_deref() else { return text };
    if others.is_empty() {
        return text;
    }
    let mut stated =
        values.iter().flatten().map(|value| value.get()).filter(|value| !is_placeholder(value));
    let Some(stated_first) = stated.next() else { return first.get().to_owned() };
    let expected = canonical(stated_first);
    if stated.all(|value| canonical(value) == expected) {
        return stated_first.to_owned();
    }
    text
}
