//! Repair of invalid arguments, based on the validator's errors.
//!
//! Only invalid values are changed, and only as follows. A string with the JSON of an object, array, number,
//! boolean or null is parsed if such a type is required. An empty string, or a null, is removed if it is invalid: models write
//! both for an optional parameter that they do not use. If the member is required and may be null, an empty string becomes
//! null. A single value becomes an array with that value. An object with
//! the single key `input`, `args` or `arguments` is replaced by its value if the tool has no such parameter. The
//! repair uses the validator's errors instead of the schema, so it does not need to interpret references and
//! combinations.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use abide_json_integers as integers;
use abide_json_schema::{JsonType, Mismatch, MismatchKind};
use serde_json::{Number, Value};

use super::decimals;
use super::validator::{BoundedValidator, CheckedArguments};

/// A round converts all invalid values, so this limits the nesting of strings in strings.
const ROUNDS: usize = 16;

/// Maximum number of errors per round. Arguments with more errors do not match the schema at all.
const ERRORS: usize = 1_000;

/// Keys that models use to wrap arguments.
const ENVELOPES: [&str; 3] = ["input", "args", "arguments"];

/// The number of decimal digits that a float preserves.
const FLOAT_DIGITS: usize = 15;

/// Returns the repaired arguments, if a repair is possible.
pub(super) fn repair(
    validator: &BoundedValidator,
    schema: &Value,
    arguments: &Value,
) -> Option<CheckedArguments> {
    retyped(validator, arguments).or_else(|| {
        let (envelope, inner) = unwrapped(schema, arguments)?;
        let mut fitted = if validator.is_valid(&inner) {
            CheckedArguments { arguments: inner, repairs: Vec::new() }
        } else {
            retyped(validator, &inner)?
        };
        fitted.repairs.insert(0, format!("unwrapped the arguments from {envelope:?}"));
        Some(fitted)
    })
}

/// Returns the wrapped arguments, if there is nothing else.
fn unwrapped(schema: &Value, arguments: &Value) -> Option<(String, Value)> {
    let from_text;
    let arguments = match arguments {
        Value::String(text) => {
            from_text = exact(text)?;
            &from_text
        }
        other => other,
    };
    let members = arguments.as_object().filter(|members| members.len() == 1)?;
    let (name, inner) = members.iter().next()?;
    let is_parameter = schema["properties"].get(name).is_some();
    if !ENVELOPES.contains(&name.as_str()) || is_parameter {
        return None;
    }
    let inner = match inner {
        Value::String(text) => exact(text)?,
        other => other.clone(),
    };
    inner.is_object().then(|| (name.clone(), inner))
}

fn retyped(validator: &BoundedValidator, arguments: &Value) -> Option<CheckedArguments> {
    let mut fitted = CheckedArguments { arguments: arguments.clone(), repairs: Vec::new() };
    for _ in 0..ROUNDS {
        let mut places = TypeErrors::new();
        collect(&validator.mismatches(&fitted.arguments, ERRORS), &mut places);
        let mut places: Vec<(String, BTreeSet<JsonType>)> = places.into_iter().collect();
        // Deeper locations first: a value to be wrapped or removed is repaired before it moves.
        places.sort_by_key(|(path, _)| Reverse(path.matches('/').count()));
        let before = fitted.repairs.len();
        for (path, types) in &places {
            fitted.repairs.extend(repair_value(validator, &mut fitted.arguments, path, types));
        }
        if fitted.repairs.len() == before {
            return None;
        }
        if validator.is_valid(&fitted.arguments) {
            return Some(fitted);
        }
    }
    None
}

/// Invalid locations, as JSON pointers, and the types that are valid there.
type TypeErrors = BTreeMap<String, BTreeSet<JsonType>>;

/// Collects the locations of errors, including those of all alternatives.
fn collect(errors: &[Mismatch], places: &mut TypeErrors) {
    for error in errors {
        let place = places.entry(error.path.clone()).or_default();
        match &error.kind {
            MismatchKind::Type(accepted) => place.extend(accepted),
            MismatchKind::Alternatives(branches) => {
                branches.iter().for_each(|branch| collect(branch, places));
            }
            MismatchKind::Missing(_) | MismatchKind::Other => {}
        }
    }
}

/// Repairs one location. Returns a description of the conversion.
fn repair_value(
    validator: &BoundedValidator,
    arguments: &mut Value,
    path: &str,
    types: &BTreeSet<JsonType>,
) -> Option<String> {
    let place = if path.is_empty() { "the arguments" } else { path };
    let stands = arguments.pointer_mut(path)?;
    if stands == "" || stands.is_null() {
        return leave_out(validator, arguments, path, types);
    }
    if let Some(value) = stands.as_str().and_then(|text| out_of_text(text, types)) {
        *stands = value;
        return Some(format!("{place}: parsed the value in a string"));
    }
    if types.contains(&JsonType::Array) && !stands.is_array() {
        *stands = Value::Array(vec![stands.take()]);
        return Some(format!("{place}: wrapped a single value in an array"));
    }
    None
}

/// Removes the empty string or the null at a location, or replaces a required empty string by null.
fn leave_out(
    validator: &BoundedValidator,
    arguments: &mut Value,
    path: &str,
    types: &BTreeSet<JsonType>,
) -> Option<String> {
    // In place of all arguments it is no choice of the model.
    let (parent, key) = path.rsplit_once('/')?;
    let is_null = arguments.pointer(path)?.is_null();
    // A null that one of several alternatives accepts may be the choice of the model.
    if is_null && !refuses(&validator.mismatches(arguments, ERRORS), path) {
        return None;
    }
    let key = key.replace("~1", "/").replace("~0", "~");
    let members = arguments.pointer_mut(parent)?.as_object_mut()?;
    let kept = members.clone();
    members.remove(&key);
    let missed = misses(&validator.mismatches(arguments, ERRORS), parent, &key);
    if !missed {
        let what = if is_null { "a null" } else { "an empty string" };
        return Some(format!("{path}: removed {what}"));
    }
    let members = arguments.pointer_mut(parent)?.as_object_mut()?;
    *members = kept;
    types.contains(&JsonType::Null).then(|| {
        members.insert(key, Value::Null);
        format!("{path}: replaced an empty string by null")
    })
}

/// Returns `true` if the value at a location is invalid in every alternative.
fn refuses(errors: &[Mismatch], path: &str) -> bool {
    errors.iter().any(|error| match &error.kind {
        MismatchKind::Alternatives(branches) => branches.iter().all(|branch| refuses(branch, path)),
        MismatchKind::Type(_) | MismatchKind::Missing(_) | MismatchKind::Other => {
            error.path == path
        }
    })
}

/// Returns `true` if one of the errors, or of their alternatives, reports a missing member.
fn misses(errors: &[Mismatch], parent: &str, key: &str) -> bool {
    errors.iter().any(|error| match &error.kind {
        MismatchKind::Missing(name) => name == key && error.path == parent,
        MismatchKind::Alternatives(branches) => {
            branches.iter().any(|branch| misses(branch, parent, key))
        }
        MismatchKind::Type(_) | MismatchKind::Other => false,
    })
}

/// Returns the JSON value in a string, if it has one of the types.
fn out_of_text(text: &str, types: &BTreeSet<JsonType>) -> Option<Value> {
    let text = text.trim();
    if types.contains(&JsonType::Boolean) {
        // Python capitalizes them.
        let output = [("true", true), ("false", false)];
        let found = output.into_iter().find(|(word, _)| text.eq_ignore_ascii_case(word));
        if let Some((_, value)) = found {
            return Some(Value::Bool(value));
        }
    }
    let value = exact(text)?;
    let fits = match &value {
        Value::Null => types.contains(&JsonType::Null),
        Value::Number(number) => {
            let whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
            let fits = types.contains(&JsonType::Number);
            (fits || whole && types.contains(&JsonType::Integer)) && is_exact(number, text)
        }
        Value::Array(_) => types.contains(&JsonType::Array),
        Value::Object(_) => types.contains(&JsonType::Object),
        Value::Bool(_) | Value::String(_) => false,
    };
    fits.then_some(value)
}

/// Returns the JSON value of a text, if none of its numbers loses digits.
fn exact(text: &str) -> Option<Value> {
    integers::check(text).ok()?;
    let value = serde_json::from_str(text).ok()?;
    decimals::first_inexact(text).is_none().then_some(value)
}

/// Returns `true` if the parsed number equals the text.
fn is_exact(number: &Number, text: &str) -> bool {
    let mantissa = text.split(['e', 'E']).next().unwrap_or(text);
    let digits = mantissa.chars().filter(char::is_ascii_digit).count();
    !number.is_f64() || digits <= FLOAT_DIGITS
}
