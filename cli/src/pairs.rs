//! Parses arguments: `key=value`, `key:=json`, `key@=text`.
//!
//! `key=value` is parsed as JSON if it is valid JSON (a number, `true`, `null`, an object, a list, a quoted text),
//! and is text otherwise, unless it begins as an object or a list: then its quotes are probably lost. The other two forms
//! are explicit.

use abide_schema::{Refusal, integers};
use serde_json::{Map, Value as JsonValue};

use crate::failure::Failure;

/// The arguments of a call or the parameters of a query.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Pairs {
    /// By name.
    pub(crate) values: Map<String, JsonValue>,
    /// Used in hints when a server expects text.
    pub(crate) guesses: Vec<Guess>,
}

/// A value of the form `key=value` that was parsed as JSON.
#[derive(Debug, PartialEq)]
pub(crate) struct Guess {
    pub(crate) key: String,
    /// The value as typed.
    pub(crate) text: String,
}

/// Parses all arguments.
///
/// # Errors
/// An argument has none of the three forms, a name is repeated, or `:=` is not followed by JSON.
pub(crate) fn parse(texts: &[String]) -> Result<Pairs, Failure> {
    let mut pairs = Pairs::default();
    for text in texts {
        let (key, value) = split_pair(text)?;
        let value = match value {
            Typed::Text(text) => JsonValue::String(text.to_owned()),
            Typed::Json(json) => {
                let value = serde_json::from_str(json).map_err(|why| {
                    let detail = format!("the value of {key} is not JSON: {why}");
                    let hint = format!("quote it for the shell: '{key}:={{\"a\": 1}}'");
                    Failure::usage(detail, hint)
                })?;
                check_integers(key, json)?;
                value
            }
            Typed::Guess(typed) => match parse_if_json(typed) {
                Some(json) => {
                    check_integers(key, typed)?;
                    pairs.guesses.push(Guess { key: key.to_owned(), text: typed.to_owned() });
                    json
                }
                None => {
                    check_text(key, typed)?;
                    JsonValue::String(typed.to_owned())
                }
            },
        };
        if pairs.values.insert(key.to_owned(), value).is_some() {
            return Err(Failure::usage(format!("{key} is given twice"), "give each argument once"));
        }
    }
    Ok(pairs)
}

/// If a statement has a parameter without a value, adds the hint for the command line.
pub(crate) fn explain_parameter(failure: Failure) -> Failure {
    let Failure::Refused(refusal) = failure else { return failure };
    let detail = refusal.detail.clone();
    let named = detail.strip_prefix("parameter ").and_then(|rest| rest.split_once(' '));
    match named {
        // The engine knows a given parameter that was probably meant.
        Some((_, "is missing")) if suggests_a_name(&refusal) => refusal.into(),
        Some((name, "is not given" | "is missing")) => {
            let name = name.trim_start_matches([':', '@', '$', '?']);
            let hint = format!("give it after the statement: `{name}=…`");
            Failure::Refused(refusal.hint(hint))
        }
        _ => refusal.into(),
    }
}

/// Whether the hint of a refusal names what was probably meant.
fn suggests_a_name(refusal: &Refusal) -> bool {
    refusal.hint.as_ref().is_some_and(|hint| hint.starts_with("did you mean"))
}

/// Whether a text is one of the three forms, not the name of a file.
pub(crate) fn is_pair(text: &str) -> bool {
    split_pair(text).is_ok()
}

enum Typed<'a> {
    Guess(&'a str),
    Json(&'a str),
    Text(&'a str),
}

fn split_pair(text: &str) -> Result<(&str, Typed<'_>), Failure> {
    let forms = || {
        let detail = format!("{text:?} is not an argument");
        Failure::usage(detail, "give arguments as key=value, key:=json or key@=text")
    };
    let (key, value) = text.split_once('=').ok_or_else(forms)?;
    let (key, typed) = match (key.strip_suffix(':'), key.strip_suffix('@')) {
        (Some(key), _) => (key, Typed::Json(value)),
        (_, Some(key)) => (key, Typed::Text(value)),
        _ => (key, Typed::Guess(value)),
    };
    if key.is_empty() || !key.chars().all(|c| c.is_alphanumeric() || c == '_') {
        return Err(forms());
    }
    Ok((key, typed))
}

/// The value of a text that is JSON.
fn parse_if_json(typed: &str) -> Option<JsonValue> {
    let json: JsonValue = serde_json::from_str(typed).ok()?;
    // An integer that does not fit 64 bits is an id.
    let is_id = json.is_number() && integers::check(typed).is_err();
    (!is_id).then_some(json)
}

/// Refuses a text that begins as an object or a list and is not JSON: a shell that takes the quotes of `{"a": 1}` leaves
/// `{a: 1}`, which would be stored as a text.
fn check_text(key: &str, typed: &str) -> Result<(), Failure> {
    let begins_json = typed.trim_start().starts_with(['{', '[']);
    let Some(why) = serde_json::from_str::<JsonValue>(typed).err().filter(|_| begins_json) else {
        return Ok(());
    };
    let detail = format!("the value of {key} begins as JSON and is not: {why}");
    let text = typed.replace('\'', r"'\''");
    let hint =
        format!("quote it for the shell: {key}='{{\"a\": 1}}'; to send the text:  '{key}@={text}'");
    Err(Failure::usage(detail, hint))
}

fn check_integers(key: &str, json: &str) -> Result<(), Failure> {
    integers::check(json)
        .map_err(|found| Failure::usage(format!("the value of {key}: {found}"), integers::HINT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(texts: &[&str], expected: Expect) {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let output = match parse(&texts) {
            Ok(pairs) => JsonValue::Object(pairs.values).to_string().replace(",\"", ",\n\""),
            Err(Failure::Usage(refusal)) => {
                format!("{}\n{}", refusal.detail, refusal.hint.unwrap_or_default())
            }
            Err(other) => format!("{other:?}"),
        };
        expected.assert_eq(&output);
    }

    #[test]
    fn values_that_parse_as_json_are_json() {
        check(
            &["n=42", "x=1.50", "yes=true", "nothing=null", "list=[1,2]", r#"map={"a": 1}"#],
            expect![[r#"
                {"list":[1,2],
                "map":{"a":1},
                "n":42,
                "nothing":null,
                "x":1.5,
                "yes":true}"#]],
        );
    }

    #[test]
    fn anything_else_is_text() {
        check(
            &["a=Where is my parcel?", "b=", "c=a=b", "d=007", "e='{id}'", "f=ho_01J"],
            expect![[r#"
                {"a":"Where is my parcel?",
                "b":"",
                "c":"a=b",
                "d":"007",
                "e":"'{id}'",
                "f":"ho_01J"}"#]],
        );
    }

    /// A shell had taken the quotes.
    #[test]
    fn what_begins_as_json_is_json() {
        check(
            &["e={'id': 1}"],
            expect![[r#"
                the value of e begins as JSON and is not: key must be a string at line 1 column 2
                quote it for the shell: e='{"a": 1}'; to send the text:  'e@={'\''id'\'': 1}'"#]],
        );
    }

    #[test]
    fn a_number_is_made_text_in_two_ways() {
        check(
            &["a@=42", r#"b="42""#],
            expect![[r#"
            {"a":"42",
            "b":"42"}"#]],
        );
    }

    #[test]
    fn no_digit_of_a_long_number_is_lost() {
        check(
            &[
                "id=123456789012345678901234567890",
                "n=9223372036854775807",
                "next=9223372036854775808",
                "least=-9223372036854775809",
            ],
            expect![[r#"
                {"id":"123456789012345678901234567890",
                "least":"-9223372036854775809",
                "n":9223372036854775807,
                "next":"9223372036854775808"}"#]],
        );
        let lost_digits = || {
            expect![[r#"
            the value of a: the integer 100000000000000000000000 at /0/x does not fit a signed 64-bit integer
            send it as a string: JSON integers are signed 64-bit integers"#]]
        };
        check(&[r#"a=[{"x": 100000000000000000000000}]"#], lost_digits());
        check(&[r#"a:=[{"x": 100000000000000000000000}]"#], lost_digits());
    }

    #[test]
    fn json_can_be_demanded() {
        check(&["a:=1"], expect![[r#"{"a":1}"#]]);
        check(
            &["a:=one"],
            expect![[r#"
                the value of a is not JSON: expected value at line 1 column 1
                quote it for the shell: 'a:={"a": 1}'"#]],
        );
    }

    #[test]
    fn unknown_arguments_are_named() {
        let forms = expect![[r#"
            "create" is not an argument
            give arguments as key=value, key:=json or key@=text"#]];
        check(&["create"], forms);
        check(
            &["=1"],
            expect![[r#"
                "=1" is not an argument
                give arguments as key=value, key:=json or key@=text"#]],
        );
        check(
            &["a=1", "a=2"],
            expect![[r#"
                a is given twice
                give each argument once"#]],
        );
    }
}
