//! Errors of arguments that a reducer cannot decode: they name the argument, the expected type and what was found.
//!
//! `serde` words its errors for programmers, and names the Rust types. Its words are fixed (`serde::de::Error`), so they
//! are read here.

use crate::nearest::nearest;

/// The most characters of a found text that an error repeats.
const FOUND_CHARACTERS: usize = 40;

/// An error in the words of the caller. Without another hint, the arguments of the reducer are the hint.
pub(crate) struct ArgumentError {
    pub(crate) detail: String,
    pub(crate) hint: Option<String>,
}

impl ArgumentError {
    pub(crate) fn missing(path: &str) -> ArgumentError {
        ArgumentError { detail: format!("missing argument {path}"), hint: None }
    }

    /// Returns the error of a name that is not among the known ones.
    pub(crate) fn unknown(path: &str, field: &str, known: &[&str]) -> ArgumentError {
        // The path ends with the unknown name.
        let parent = path.strip_suffix(field).map_or(path, |parent| parent.trim_end_matches('.'));
        let hint = match nearest(field, known.iter().copied()) {
            Some(name) => Some(format!("did you mean {}?", join(parent, name))),
            None if parent.is_empty() => None,
            None => Some(format!("{parent} has {}", known.join(", "))),
        };
        ArgumentError { detail: format!("unexpected argument {}", join(parent, field)), hint }
    }

    /// Translates an error of `serde` within an argument, at a path as `serde_path_to_error` writes it.
    pub(crate) fn from_serde(argument: &str, path: &str, why: &str) -> ArgumentError {
        let path = &match path.trim_matches('.') {
            "" => argument.to_owned(),
            path if path.starts_with('[') => format!("{argument}{path}"),
            path => format!("{argument}.{path}"),
        };
        if let Some((field, _)) = split_name(why, "missing field ") {
            return ArgumentError::missing(&join(path, field));
        }
        if let Some((field, rest)) = split_name(why, "unknown field ") {
            let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
            return ArgumentError::unknown(path, field, &known);
        }
        let mismatch = why.strip_prefix("invalid type: ").or(why.strip_prefix("invalid value: "));
        let detail = match mismatch.and_then(|why| why.rsplit_once(", expected ")) {
            Some((found, kind)) => {
                let expected = json_type(kind);
                format!("argument {path}: expected {expected}, found {}", json_value(found))
            }
            None => format!("argument {path}: {why}"),
        };
        ArgumentError { detail, hint: None }
    }
}

/// Splits a text after its beginning into a name in backticks and the rest.
fn split_name<'a>(text: &'a str, beginning: &str) -> Option<(&'a str, &'a str)> {
    text.strip_prefix(beginning)?.strip_prefix('`')?.split_once('`')
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns the name in JSON of a type that `serde` names.
fn json_type(kind: &str) -> &str {
    match kind {
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer",
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer of 0 or more",
        "f32" | "f64" => "a number",
        "a map" => "an object",
        "a sequence" => "an array",
        "unit" => "null",
        kind if kind.starts_with("struct ") => "an object",
        kind => kind,
    }
}

/// Returns the description in JSON of a value that `serde` describes.
fn json_value(found: &str) -> String {
    match found {
        "map" => return "an object".to_owned(),
        "sequence" => return "an array".to_owned(),
        "unit" => return "null".to_owned(),
        _ => {}
    }
    match found.strip_suffix('`').and_then(|found| found.split_once(" `")) {
        Some(("integer", integer)) => return format!("the integer {integer}"),
        Some(("floating point", number)) => return format!("the number {number}"),
        Some(("boolean", boolean)) => return boolean.to_owned(),
        _ => {}
    }
    match found.strip_prefix("string ") {
        Some(text) if text.chars().count() > FOUND_CHARACTERS => {
            let begin: String = text.chars().take(FOUND_CHARACTERS).collect();
            format!("the string {begin}…\"")
        }
        Some(text) => format!("the string {text}"),
        None => found.to_owned(),
    }
}
