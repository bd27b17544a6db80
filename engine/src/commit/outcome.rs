//! The stored form of a result in the log, the column `outcome` of an event. Most results are rows that repeat what the
//! caller has just sent: storing both would double the log. So a long text of the result that repeats an argument is
//! stored as a mark, and restored from the event's own arguments when a retry needs the result.
//!
//! ```text
//! arguments  {"arguments":{"order":"…long…"},"call_id":"c1", …}
//! result     {"call_id":"c1","arguments":"{\"order\":\"…long…\"}","status":"pending", …}
//! outcome    {"call_id":"c1","arguments":{"$argument":"json"},"status":"pending", …}
//! ```
//!
//! `"text"` stands for the argument itself, `"json"` for its canonical JSON as a text. A result that
//! contains such a mark itself is stored as `{"$result":"<its text>"}`, so decoding is exact.
//!
//! The outcome of a refused call whose event is kept is the refusal:
//! `{"$refused":{"code":…,"detail":…,"hint":…}}`.

use std::borrow::Cow;
use std::ops::Range;

use abide_schema::{CallArgument, CallArguments, Code, Refusal, integers};
use serde_json::{Value as JsonValue, json};

const MARK: &str = "{\"$argument\":";
const TEXT_MARK: &str = "{\"$argument\":\"text\"}";
const JSON_MARK: &str = "{\"$argument\":\"json\"}";
const WRAPPED: &str = "{\"$result\":";
const REFUSED: &str = "{\"$refused\":";

/// Minimum length of a value that a mark replaces. Shorter ones are stored unchanged: marks only serve to reduce the
/// log's size.
const LONG_BYTES: usize = 64;

/// Returns the arguments that a result or a row may repeat.
fn long_arguments(arguments: &CallArguments) -> impl Iterator<Item = CallArgument<'_>> {
    arguments.members().filter(|argument| argument.value_range().len() >= LONG_BYTES)
}

/// Returns where the long values are in the text, in order, without the quotes of texts: rows may repeat them.
pub(crate) fn long_values(arguments: &CallArguments) -> impl Iterator<Item = Range<usize>> {
    long_arguments(arguments).map(|argument| {
        let Range { start, end } = argument.value_range();
        if argument.value().starts_with('"') { start + 1..end - 1 } else { start..end }
    })
}

/// Returns the stored form of the result of a call with these arguments.
pub(crate) fn encode_result(result: &str, arguments: &CallArguments) -> String {
    if result.contains(MARK) || result.starts_with(WRAPPED) || result.starts_with(REFUSED) {
        return format!("{WRAPPED}{}}}", JsonValue::from(result));
    }
    let mut outcome = Cow::Borrowed(result);
    for argument in long_arguments(arguments) {
        let name = argument.quoted_name();
        let value = argument.value();
        replace_value(&mut outcome, name, JSON_MARK, |text| quoted_prefix(text, value));
        if value.starts_with('"') {
            replace_value(&mut outcome, name, TEXT_MARK, |text| {
                text.starts_with(value).then_some(value.len())
            });
        }
    }
    outcome.into_owned()
}

/// Replaces the value of the first member with this name (with quotes) whose value `length` accepts. Quotes are escaped
/// inside JSON texts, so a match is a member, not a mention.
fn replace_value(
    text: &mut Cow<'_, str>,
    name: &str,
    new: &str,
    length: impl Fn(&str) -> Option<usize>,
) {
    let mut values = text.match_indices(name).filter_map(|(at, _)| {
        let value = at + name.len() + 1;
        let is_member = text.as_bytes().get(value - 1) == Some(&b':');
        is_member.then_some(value).and_then(|value| Some((value, length(&text[value..])?)))
    });
    let Some((value, bytes)) = values.next() else { return };
    // The replaced value is most of the text, and is not copied.
    *text = Cow::Owned([&text[..value], new, &text[value + bytes..]].concat());
}

/// Returns the length of `value`, canonical JSON, as a JSON text at the start of `text`, if it is there. Canonical JSON
/// contains no control characters, so only quotes and backslashes are escaped.
fn quoted_prefix(text: &str, value: &str) -> Option<usize> {
    let mut rest = text.strip_prefix('"')?;
    for part in value.split_inclusive(['"', '\\']) {
        let plain = part.trim_end_matches(['"', '\\']);
        rest = rest.strip_prefix(plain)?;
        if plain.len() < part.len() {
            rest = rest.strip_prefix('\\')?.strip_prefix(&part[plain.len()..])?;
        }
    }
    Some(text.len() - rest.strip_prefix('"')?.len())
}

/// Returns the stored form of a refusal.
pub(crate) fn encode_refusal(refusal: &Refusal) -> String {
    let Refusal { code, detail, hint, .. } = refusal;
    let mut refusal = json!({"code": code.as_str(), "detail": detail});
    if let Some(hint) = hint {
        refusal["hint"] = hint.as_str().into();
    }
    format!("{REFUSED}{refusal}}}")
}

/// Returns the refusal in an event's outcome; `None` if the outcome is a result, or cannot be read.
pub(crate) fn decode_refusal(outcome: &str) -> Option<Refusal> {
    if !outcome.starts_with(REFUSED) {
        return None;
    }
    let stored: JsonValue = integers::parse(outcome).ok()?;
    let refusal = &stored["$refused"];
    let code = Code::parse(refusal["code"].as_str()?)?;
    let hint = refusal["hint"].as_str().map(str::to_owned);
    Some(Refusal { hint, ..Refusal::new(code, refusal["detail"].as_str()?) })
}

/// Restores the result of an event from its stored form.
pub(crate) fn decode_result(outcome: &str, arguments: &str) -> String {
    if outcome.starts_with(WRAPPED) {
        let wrapped: JsonValue = integers::parse(outcome).unwrap_or_default();
        return wrapped["$result"].as_str().unwrap_or("null").to_owned();
    }
    if !outcome.contains(MARK) {
        return outcome.to_owned();
    }
    let arguments = CallArguments::from_value(&integers::parse(arguments).unwrap_or_default());
    let mut result = Cow::Borrowed(outcome);
    for argument in long_arguments(&arguments) {
        let name = argument.quoted_name();
        let value = argument.value();
        let quoted = JsonValue::from(value).to_string();
        for (mark, value) in [(JSON_MARK, quoted.as_str()), (TEXT_MARK, value)] {
            replace_value(&mut result, name, value, |text| {
                text.starts_with(mark).then_some(mark.len())
            });
        }
    }
    result.into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Checks the stored form of a result (long runs of x shown as `~`), and that it decodes to the same.
    fn check(arguments: &JsonValue, result: &JsonValue, kept: &str) {
        let result = result.to_string();
        let outcome = encode_result(&result, &CallArguments::from_value(arguments));
        assert_eq!(outcome.replace(&long(), "~"), kept);
        assert_eq!(decode_result(&outcome, &arguments.to_string()), result);
    }

    fn long() -> String {
        "x".repeat(100)
    }

    #[test]
    fn repeated_long_texts_are_stored_once() {
        let text = long();
        let object = json!({"order": long()});
        let kept_text = r#"{"a":{"$argument":"text"},"b":1}"#;
        let kept_json = r#"{"a":{"$argument":"json"},"b":1}"#;
        check(&json!({"a": text}), &json!({"a": text, "b": 1}), kept_text);
        check(&json!({"a": object}), &json!({"a": object.to_string(), "b": 1}), kept_json);
        check(&json!({"a": text}), &json!({"a": json!(text).to_string(), "b": 1}), kept_json);
    }

    #[test]
    fn other_results_are_stored_unchanged() {
        check(&json!({"a": "short"}), &json!({"a": "short"}), r#"{"a":"short"}"#);
        check(&json!({"a": long()}), &json!({"b": long()}), r#"{"b":"~"}"#);
        check(&json!({}), &json!(null), "null");
    }

    #[test]
    fn results_with_marks_round_trip() {
        let sent = json!({"a": long()});
        let marked = r#"{"$result":"{\"a\":{\"$argument\":\"text\"}}"}"#;
        check(&sent, &json!({"a": {"$argument": "text"}}), marked);
        check(&sent, &json!({"$result": "null"}), r#"{"$result":"{\"$result\":\"null\"}"}"#);
        let refused = r#"{"$result":"{\"$refused\":{}}"}"#;
        check(&sent, &json!({"$refused": {}}), refused);
        let mention = format!("\"a\":\"{}\"", long());
        check(&sent, &json!({"b": mention}), r#"{"b":"\"a\":\"~\""}"#);
    }

    #[test]
    fn refusals_round_trip() {
        let refusal = Refusal::new(Code::LeaseLost, "the lease of \"c1\" is lost");
        for refusal in [refusal.clone().hint("see lost_leases"), refusal] {
            assert_eq!(decode_refusal(&encode_refusal(&refusal)), Some(refusal));
        }
        assert_eq!(decode_refusal(r#"{"call_id":"c1"}"#), None);
    }
}
