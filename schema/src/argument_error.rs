//! Refusals of arguments that a reducer cannot decode: they name the argument, the expected type and what was found.
//!
//! `serde` words its errors for programmers, and names the Rust types. Its words are fixed (`serde::de::Error`), so they
//! are read here.

use serde::de::DeserializeOwned;
use serde_json::Value as JsonValue;

use crate::nearest::nearest;
use crate::refusal::{Code, Refusal};

/// The most characters of a found text that an error repeats.
const FOUND_CHARACTERS: usize = 40;

/// The refusal of arguments that cannot be decoded as `T`. `takes` lists the arguments of the reducer. It decodes a second
/// time, because finding the place costs more than decoding.
#[must_use]
pub fn refusal<T: DeserializeOwned>(reducer: &str, takes: &str, arguments: &JsonValue) -> Refusal {
    let (path, why) = match serde_path_to_error::deserialize::<_, T>(arguments) {
        Ok(_) => (String::new(), "cannot be decoded".to_owned()),
        Err(error) => {
            let path = error.path().to_string();
            (path, error.inner().to_string())
        }
    };
    let ArgumentError { detail, hint } = ArgumentError::of(path.trim_matches('.'), &why);
    Refusal::new(Code::BadArguments, format!("{reducer}: {detail}"))
        .hint(hint.unwrap_or_else(|| format!("{reducer} takes {takes}")))
}

/// An error in the words of the caller.
struct ArgumentError {
    detail: String,
    hint: Option<String>,
}

impl ArgumentError {
    /// An error of `serde` at a path.
    fn of(path: &str, why: &str) -> ArgumentError {
        let plain = |detail| ArgumentError { detail, hint: None };
        if let Some((field, _)) = named(why, "missing field ") {
            return plain(format!("argument {} is missing", joined(path, field)));
        }
        if let Some((field, rest)) = named(why, "unknown field ") {
            return unknown(path, field, rest);
        }
        let mismatch = why.strip_prefix("invalid type: ").or(why.strip_prefix("invalid value: "));
        let what =
            if path.is_empty() { "arguments".to_owned() } else { format!("argument {path}") };
        plain(match mismatch.and_then(|why| why.rsplit_once(", expected ")) {
            Some((found, kind)) => {
                format!("{what}: expected {}, found {}", expected(kind), shown(found))
            }
            None => format!("{what}: {why}"),
        })
    }
}

/// An unknown name. `rest` is the list of the known ones.
fn unknown(path: &str, field: &str, rest: &str) -> ArgumentError {
    // The path ends with the unknown name.
    let parent = path.strip_suffix(field).map_or(path, |parent| parent.trim_end_matches('.'));
    let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    let hint = match nearest(field, known.iter().copied()) {
        Some(name) => Some(format!("did you mean {}?", joined(parent, name))),
        None if parent.is_empty() => None,
        None => Some(format!("{parent} has {}", known.join(", "))),
    };
    ArgumentError { detail: format!("there is no argument {}", joined(parent, field)), hint }
}

/// The name in backticks after the beginning of a text, and the rest.
fn named<'a>(text: &'a str, beginning: &str) -> Option<(&'a str, &'a str)> {
    text.strip_prefix(beginning)?.strip_prefix('`')?.split_once('`')
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A type in the words of JSON.
fn expected(kind: &str) -> &str {
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

/// A found value in the words of JSON.
fn shown(found: &str) -> String {
    match found {
        "map" => return "an object".to_owned(),
        "sequence" => return "an array".to_owned(),
        "unit" => return "null".to_owned(),
        _ => {}
    }
    let quoted = |kind: &str| found.strip_prefix(kind)?.strip_prefix(" `")?.strip_suffix('`');
    if let Some(integer) = quoted("integer") {
        return format!("the integer {integer}");
    }
    if let Some(number) = quoted("floating point") {
        return format!("the number {number}");
    }
    if let Some(boolean) = quoted("boolean") {
        return boolean.to_owned();
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

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only decoded")]
    struct Arguments {
        name: String,
        count: Option<i64>,
        limits: Option<Limits>,
        tags: Option<Vec<String>>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only decoded")]
    struct Limits {
        per_ms: u32,
    }

    #[test]
    fn an_error_names_the_argument_the_type_and_what_was_found() {
        let long = "x".repeat(100);
        let cut =
            format!("argument count: expected an integer, found the string \"{}…\"", &long[1..40]);
        let cases = [
            (json!({}), "argument name is missing"),
            (json!({"name": 7}), "argument name: expected a string, found the integer 7"),
            (json!({"name": null}), "argument name: expected a string, found null"),
            (
                json!({"name": "a", "count": 1.5}),
                "argument count: expected an integer, found the number 1.5",
            ),
            (
                json!({"name": "a", "count": ", expected x"}),
                "argument count: expected an integer, found the string \", expected x\"",
            ),
            (json!({"name": "a", "count": long}), &cut),
            (json!({"name": "a", "coumt": 1}), "there is no argument coumt"),
            (json!({"name": "a", "limits": {}}), "argument limits.per_ms is missing"),
            (json!({"name": "a", "limits": {"per_s": 1}}), "there is no argument limits.per_s"),
            (
                json!({"name": "a", "limits": true}),
                "argument limits: expected an object, found true",
            ),
            (
                json!({"name": "a", "limits": {"per_ms": -1}}),
                "argument limits.per_ms: expected an integer of 0 or more, found the integer -1",
            ),
            (
                json!({"name": "a", "tags": ["a", 1]}),
                "argument tags[1]: expected a string, found the integer 1",
            ),
        ];
        for (arguments, expected) in cases {
            let refusal = refusal::<Arguments>("f", "name, count?", &arguments);
            assert_eq!(refusal.detail, format!("f: {expected}"));
        }
        let hint = |arguments| refusal::<Arguments>("f", "name, count?", &arguments).hint;
        assert_eq!(hint(json!({"coumt": 1})).as_deref(), Some("did you mean count?"));
        assert_eq!(hint(json!({"colour": 1})).as_deref(), Some("f takes name, count?"));
        let nested = json!({"name": "a", "limits": {"per_m": 1}});
        assert_eq!(hint(nested).as_deref(), Some("did you mean limits.per_ms?"));
        let nested = json!({"name": "a", "limits": {"x": 1}});
        assert_eq!(hint(nested).as_deref(), Some("limits has per_ms"));
    }
}
