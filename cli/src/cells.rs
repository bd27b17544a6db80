//! Formats one value for people: on one line, without control sequences.

use abide_schema::Micros;
use serde_json::Value as JsonValue;

pub(crate) use crate::printable::one_line;

/// A value on one line. An integer in a column named `at` or `…_at` is a time.
pub(crate) fn format_value(column: &str, value: &JsonValue) -> String {
    match value {
        JsonValue::Null => "null".to_owned(),
        JsonValue::String(text) => one_line(text),
        JsonValue::Number(number) => match number.as_i64().filter(|_| is_moment(column, value)) {
            Some(micros) => format_time(Micros(micros)),
            None => number.to_string(),
        },
        JsonValue::Object(object) => match object.get("$blob").and_then(JsonValue::as_str) {
            Some(base64) if object.len() == 1 => pluralize(base64_bytes(base64), "byte"),
            _ => one_line(&value.to_string()),
        },
        JsonValue::Array(_) | JsonValue::Bool(_) => one_line(&value.to_string()),
    }
}

/// Whether a value is right-aligned.
pub(crate) fn is_number(column: &str, value: &JsonValue) -> bool {
    value.is_number() && !is_moment(column, value)
}

/// A time in UTC: `2026-11-21 14:02:11`.
pub(crate) fn format_time(at: Micros) -> String {
    at.to_string().replace('T', " ").trim_end_matches('Z').to_owned()
}

/// A text cut to at most this many characters, with `…` at the end if it was cut.
pub(crate) fn truncate(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some(_) if max == 0 => String::new(),
        Some(_) => text.chars().take(max - 1).chain(['…']).collect(),
    }
}

/// A count with thousands separators: `1,204,551`.
pub(crate) fn format_count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun: `1 event`, `2 events`.
pub(crate) fn pluralize(n: u64, noun: &str) -> String {
    let ending = if n == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", format_count(n))
}

/// The smallest value of a column `at` that is a time, in 1973: `session_forks.at` is the number of an event.
const FIRST_MOMENT: i64 = 100_000_000_000_000;

fn is_moment(column: &str, value: &JsonValue) -> bool {
    column.ends_with("_at") || (column == "at" && value.as_i64() >= Some(FIRST_MOMENT))
}

fn base64_bytes(base64: &str) -> u64 {
    let padding = base64.bytes().rev().take_while(|byte| *byte == b'=').count();
    (base64.len() / 4 * 3).saturating_sub(padding) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_value_is_one_harmless_line() {
        let cases = [
            ("a", json!(null), "null"),
            ("a", json!("two\nlines\tand \u{1b}[31mred"), "two\\nlines\\tand \\u{1b}[31mred"),
            ("a", json!("abc\u{202e}def"), "abc\\u{202e}def"),
            ("a", json!("grüße 😊"), "grüße 😊"),
            ("a", json!(1.0), "1.0"),
            ("seq", json!(1_795_269_731_000_000_i64), "1795269731000000"),
            ("created_at", json!(1_795_269_731_000_000_i64), "2026-11-21 14:02:11"),
            ("created_at", json!("soon"), "soon"),
            ("at", json!(1_795_269_731_000_000_i64), "2026-11-21 14:02:11"),
            // Regression: the event at which a session was forked was a time in 1970.
            ("at", json!(8_812), "8812"),
            ("hash", json!({"$blob": "AP8K"}), "3 bytes"),
            ("hash", json!({"$blob": "AA=="}), "1 byte"),
            ("data", json!({"a": [1, "x"]}), r#"{"a":[1,"x"]}"#),
        ];
        for (column, value, expected) in cases {
            assert_eq!(format_value(column, &value), expected, "{column} {value}");
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(truncate("parcel", 6), "parcel");
        assert_eq!(truncate("parcels", 6), "parce…");
        assert_eq!(truncate("grüße", 4), "grü…");
        assert_eq!(truncate("x", 0), "");
        assert_eq!(truncate("", 0), "");
    }

    #[test]
    fn counts_have_thousands_separators() {
        let texts = [0, 999, 1_000, 18_204, 1_204_551].map(format_count);
        assert_eq!(texts, ["0", "999", "1,000", "18,204", "1,204,551"]);
        assert_eq!(pluralize(1, "event"), "1 event");
        assert_eq!(pluralize(2_018, "event"), "2,018 events");
    }
}
