//! The repair of arguments that do not fit, led by what the validator objects to.
//!
//! It changes only values that the schema objects to, and only in these ways: a string that holds the JSON of an
//! object, an array, a number, a boolean or null, where such a one is asked for, becomes it; an empty string where
//! none fits is left out, or null where it may not be left out and null fits; a single value becomes the array of
//! it; and an object with the one key `input`, `args` or `arguments`, where the tool has no such parameter, stands
//! for what it holds. Because it goes by the validator's errors and not by the schema's text, it need not understand
//! references and combinations.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use abide_json_integers as integers;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, JsonTypeSet, ValidationError};
use serde_json::{Map, Number, Value};

use super::{Bounded, Fitted};

/// A round re-types all that is objected to, so this bounds how deep strings hold strings.
const ROUNDS: usize = 16;

/// Places that one round looks at: arguments with more mistakes than that were not meant for this schema.
const PLACES: usize = 1_000;

/// What models wrap arguments in that they were shown as the arguments of something.
const ENVELOPES: [&str; 3] = ["input", "args", "arguments"];

/// Digits that a float keeps.
const FLOAT_DIGITS: usize = 15;

/// The arguments re-typed so that they fit, if that is possible.
pub(super) fn repair(validator: &Bounded, schema: &Value, arguments: &Value) -> Option<Fitted> {
    retyped(validator, arguments).or_else(|| {
        let (envelope, inner) = unwrapped(schema, arguments)?;
        let mut fitted = if validator.is_valid(&inner) {
            Fitted { arguments: inner, repairs: Vec::new() }
        } else {
            retyped(validator, &inner)?
        };
        fitted.repairs.insert(0, format!("took the arguments out of {envelope:?}"));
        Some(fitted)
    })
}

/// What is in the envelope, if the arguments are nothing else.
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

fn retyped(validator: &Bounded, arguments: &Value) -> Option<Fitted> {
    let mut fitted = Fitted { arguments: arguments.clone(), repairs: Vec::new() };
    for _ in 0..ROUNDS {
        let mut places = Places::new();
        for error in validator.iter_errors(&fitted.arguments).take(PLACES) {
            collect(&error, &mut places);
        }
        let mut places: Vec<(String, JsonTypeSet)> = places.into_iter().collect();
        // Deeper places first: a value that is to be wrapped or left out is mended before it moves.
        places.sort_by_key(|(path, _)| Reverse(path.matches('/').count()));
        let before = fitted.repairs.len();
        for (path, types) in &places {
            fitted.repairs.extend(mend(validator, &mut fitted.arguments, path, *types));
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

/// Places that are objected to, as JSON pointers, and of which types what stands there might be.
type Places = BTreeMap<String, JsonTypeSet>;

/// The places that an error names, those of every alternative included.
fn collect(error: &ValidationError<'_>, places: &mut Places) {
    let mut types = JsonTypeSet::empty();
    match error.kind() {
        ValidationErrorKind::Type { kind: TypeKind::Single(one) } => types = types.insert(*one),
        ValidationErrorKind::Type { kind: TypeKind::Multiple(several) } => types = *several,
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            context.iter().flatten().for_each(|error| collect(error, places));
        }
        _ => {}
    }
    let place = places.entry(error.instance_path().to_string()).or_default();
    *place = place.union(types);
}

/// Re-types what stands at one place, and says how.
fn mend(
    validator: &Bounded,
    arguments: &mut Value,
    path: &str,
    types: JsonTypeSet,
) -> Option<String> {
    let place = if path.is_empty() { "the whole" } else { path };
    let stands = arguments.pointer_mut(path)?;
    if stands == "" {
        return leave_out(validator, arguments, path, types);
    }
    if let Some(value) = stands.as_str().and_then(|text| out_of_text(text, types)) {
        *stands = value;
        return Some(format!("{place}: took the value out of a string"));
    }
    if types.contains(JsonType::Array) && !stands.is_array() && !stands.is_null() {
        *stands = Value::Array(vec![stands.take()]);
        return Some(format!("{place}: made an array of a single value"));
    }
    None
}

/// Leaves out the empty string at a place, or puts null where something has to stand.
fn leave_out(
    validator: &Bounded,
    arguments: &mut Value,
    path: &str,
    types: JsonTypeSet,
) -> Option<String> {
    let Some((parent, key)) = path.rsplit_once('/') else {
        let nothing = Value::Object(Map::new());
        return types.contains(JsonType::Object).then(|| {
            *arguments = nothing;
            "the whole: took an empty string for no arguments".to_owned()
        });
    };
    let key = key.replace("~1", "/").replace("~0", "~");
    let members = arguments.pointer_mut(parent)?.as_object_mut()?;
    let kept = members.clone();
    members.remove(&key);
    let missed = validator.iter_errors(arguments).any(|error| misses(&error, parent, &key));
    if !missed {
        return Some(format!("{path}: left out an empty string"));
    }
    let members = arguments.pointer_mut(parent)?.as_object_mut()?;
    *members = kept;
    types.contains(JsonType::Null).then(|| {
        members.insert(key, Value::Null);
        format!("{path}: took an empty string for null")
    })
}

/// Whether an error says, of any alternative, that a member is missing.
fn misses(error: &ValidationError<'_>, parent: &str, key: &str) -> bool {
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            property == key && error.instance_path().to_string() == parent
        }
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            context.iter().flatten().any(|error| misses(error, parent, key))
        }
        _ => false,
    }
}

/// The value that a string holds the JSON of, if it is of one of the types.
fn out_of_text(text: &str, types: JsonTypeSet) -> Option<Value> {
    let text = text.trim();
    if types.contains(JsonType::Boolean) {
        // Python writes them with a capital.
        let told = [("true", true), ("false", false)];
        let found = told.into_iter().find(|(word, _)| text.eq_ignore_ascii_case(word));
        if let Some((_, value)) = found {
            return Some(Value::Bool(value));
        }
    }
    let value = exact(text)?;
    let fits = match &value {
        Value::Null => types.contains(JsonType::Null),
        Value::Number(number) => {
            let whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
            let fits = types.contains(JsonType::Number);
            (fits || whole && types.contains(JsonType::Integer)) && is_exact(number, text)
        }
        Value::Array(_) => types.contains(JsonType::Array),
        Value::Object(_) => types.contains(JsonType::Object),
        Value::Bool(_) | Value::String(_) => false,
    };
    fits.then_some(value)
}

/// The JSON that a text is, if none of its integers loses digits.
fn exact(text: &str) -> Option<Value> {
    integers::check(text).ok()?;
    serde_json::from_str(text).ok()
}

/// Whether reading the number lost nothing of it.
fn is_exact(number: &Number, text: &str) -> bool {
    let mantissa = text.split(['e', 'E']).next().unwrap_or(text);
    let digits = mantissa.chars().filter(char::is_ascii_digit).count();
    !number.is_f64() || digits <= FLOAT_DIGITS
}
