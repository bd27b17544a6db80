//! Parameters of operations: JSON in the form of `ProtoJSON`, in which a field has two names (`taskId` and `task_id`) and
//! null is the same as absent. Queries of HTTP+JSON have the same fields as texts.

use serde_json::Value as JsonValue;

use super::error::{A2aError, A2aResult};

/// Returns a field by its name in camel case; null if it is absent.
pub(super) fn field<'a>(object: &'a JsonValue, name: &str) -> &'a JsonValue {
    match &object[name] {
        JsonValue::Null => &object[snake_case(name).as_str()],
        value => value,
    }
}

fn snake_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

/// Returns a text; `None` if it is absent or empty, which `ProtoJSON` does not distinguish.
pub(super) fn text_field<'a>(object: &'a JsonValue, name: &str) -> A2aResult<Option<&'a str>> {
    match field(object, name) {
        JsonValue::Null => Ok(None),
        JsonValue::String(text) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        _ => Err(A2aError::invalid(format!("{name} must be a string"))),
    }
}

/// Returns a text that must be there.
pub(super) fn required_text<'a>(object: &'a JsonValue, name: &str) -> A2aResult<&'a str> {
    text_field(object, name)?.ok_or_else(|| A2aError::invalid(format!("{name} is missing")))
}

/// Returns a number that is not negative.
pub(super) fn number_field(object: &JsonValue, name: &str) -> A2aResult<Option<u32>> {
    let number = match field(object, name) {
        JsonValue::Null => return Ok(None),
        JsonValue::String(text) => text.parse().ok(),
        value => value.as_u64().and_then(|number| u32::try_from(number).ok()),
    };
    number
        .map(Some)
        .ok_or_else(|| A2aError::invalid(format!("{name} must be a number from 0 to {}", u32::MAX)))
}

pub(super) fn bool_field(object: &JsonValue, name: &str) -> A2aResult<bool> {
    match field(object, name) {
        JsonValue::Null => Ok(false),
        JsonValue::Bool(flag) => Ok(*flag),
        JsonValue::String(text) if text == "true" => Ok(true),
        JsonValue::String(text) if text == "false" => Ok(false),
        _ => Err(A2aError::invalid(format!("{name} must be true or false"))),
    }
}

/// Parses a range of a text that has only digits.
fn parse_digits(text: &str, from: usize, to: usize) -> Option<i64> {
    let digits = text.get(from..to)?;
    if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}

/// Parses a time as RFC 3339 describes it, to microseconds.
pub(super) fn parse_time(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let marks = [(4, b"-".as_slice()), (7, b"-"), (10, b"Tt "), (13, b":"), (16, b":")];
    if !marks.iter().all(|(at, signs)| bytes.get(*at).is_some_and(|it| signs.contains(it))) {
        return None;
    }
    let year = parse_digits(text, 0, 4)?;
    let month = parse_digits(text, 5, 7)?;
    let day = parse_digits(text, 8, 10)?;
    let hour = parse_digits(text, 11, 13)?;
    let minute = parse_digits(text, 14, 16)?;
    let second = parse_digits(text, 17, 19)?;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let is_valid = (1..=12).contains(&month) && (1..=days).contains(&day);
    if !is_valid || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut micros = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        let kept = fraction.get(..digits.min(6))?;
        micros = format!("{kept:0<6}").parse().ok().filter(|_| digits > 0)?;
        rest = fraction.get(digits..)?;
    }
    let offset_s = match (rest, rest.as_bytes()) {
        ("Z" | "z", _) => 0,
        (_, [sign @ (b'+' | b'-'), _, _, b':', _, _]) => {
            let from = text.len() - 6;
            let hours = parse_digits(text, from + 1, from + 3)?;
            let minutes = parse_digits(text, from + 4, from + 6)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            let seconds = hours * 3_600 + minutes * 60;
            if *sign == b'+' { seconds } else { -seconds }
        }
        _ => return None,
    };
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", days_from_civil.
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let shifted_month = (month + 9) % 12;
    let of_era = year.rem_euclid(400);
    let of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset_s;
    Some(seconds * 1_000_000 + micros)
}

/// Returns a time in microseconds, as the protocol shows it: with milliseconds.
pub(super) fn format_time(micros: i64) -> String {
    let text = abide_schema::Micros(micros).to_string();
    let ms = micros.rem_euclid(1_000_000) / 1_000;
    format!("{}.{ms:03}Z", text.trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed() {
        for (text, shown) in [
            ("2026-11-21T14:02:11Z", "2026-11-21T14:02:11.000Z"),
            ("2026-11-21T14:02:11.5Z", "2026-11-21T14:02:11.500Z"),
            ("2026-11-21t16:02:11.1234567+02:00", "2026-11-21T14:02:11.123Z"),
            ("2000-02-29 00:00:00-00:30", "2000-02-29T00:30:00.000Z"),
            ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(parse_time(text).map(format_time).as_deref(), Some(shown), "{text}");
        }
        for text in [
            "",
            "2026-11-21",
            "2026-11-21T14:02:11",
            "2026-13-21T14:02:11Z",
            "2026-02-29T00:00:00Z",
            "2026-11-21T14:02:11+24:00",
            "2026-11-21T14:02:11+02:60",
            "2026-11-21T14:02:11.Z",
            "2026-11-21T14:02:11+2:00",
            "+026-11-21T14:02:11Z",
            "2026-11-21T14:02:1é",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
