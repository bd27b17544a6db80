//! Numbers of a model's arguments that a double does not keep.

/// Returns the first number with a fraction or an exponent whose decimal value is not that of the double which it becomes:
/// `9007199254740993.0` would become …992. A number such as 0.1 is kept: it is what the double is written as. The text is JSON.
pub(super) fn first_inexact(json: &str) -> Option<&str> {
    let mut rest = json;
    while let Some(at) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        rest = &rest[at..];
        if let Some(string) = rest.strip_prefix('"') {
            rest = after_string(string);
            continue;
        }
        let end = rest
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E')))
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        if number.contains(['.', 'e', 'E']) && !is_kept(number) {
            return Some(number);
        }
        rest = after;
    }
    None
}

/// Returns the text after the end of a string.
fn after_string(string: &str) -> &str {
    let mut is_escaped = false;
    let end = string.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or("", |end| &string[end + 1..])
}

fn is_kept(number: &str) -> bool {
    let Ok(double) = number.parse::<f64>() else { return false };
    decimal(number) == decimal(&format!("{double:e}"))
}

/// Returns a number as its digits without zeros around them, and the power of ten of the last digit. Zero has no
/// digits.
fn decimal(number: &str) -> (String, i64) {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{}{fraction}", whole.trim_start_matches('-'));
    let kept = digits.trim_end_matches('0');
    let zeros = (digits.len() - kept.len()) as i64;
    let kept = kept.trim_start_matches('0').to_owned();
    let exponent = exponent.parse::<i64>().unwrap_or(i64::MAX / 2);
    let power = if kept.is_empty() { 0 } else { exponent + zeros - fraction.len() as i64 };
    (kept, power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_a_double_keeps() {
        for kept in [
            "0.1",
            "-0.0",
            "0e7",
            "1.50",
            "1e3",
            "1E+23",
            "5e-324",
            "0.30000000000000004",
            "100000000000000000000000.0",
            "9007199254740992.0",
            "9007199254740993",
            "12",
            r#"{"a\"9007199254740993.0": "9007199254740993.0", "b": [1.0]}"#,
        ] {
            assert_eq!(first_inexact(kept), None, "{kept}");
        }
    }

    #[test]
    fn numbers_that_a_double_changes() {
        for changed in [
            "9007199254740993.0",
            "5.00000000000000000001",
            "-1e-400",
            "1e400",
            "3.14159265358979323846",
        ] {
            assert_eq!(first_inexact(&format!("[0.5,{{\"n\":{changed}}}]")), Some(changed));
        }
    }
}
