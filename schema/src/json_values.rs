//! A limit on the number of values in incoming JSON.
//!
//! A parsed value takes up to a hundred times the memory of its text: `{"":0}` has 6 bytes, and its map about 600. So
//! the values are counted before anything parses the text.

use crate::{Code, Refusal, limits};

/// Refuses a text with too many values.
///
/// # Errors
/// `limit_exceeded`.
pub fn check(text: &str) -> Result<(), Refusal> {
    check_most(text, limits::JSON_VALUES)
}

/// Refuses a text with more than this many values.
///
/// # Errors
/// `limit_exceeded`.
pub fn check_most(text: &str, max: usize) -> Result<(), Refusal> {
    // Every value after the first has a byte before it.
    if text.len() <= max || count(text.as_bytes()) <= max {
        return Ok(());
    }
    let detail = format!("the JSON has more than {max} values");
    Err(Refusal::new(Code::LimitExceeded, detail)
        .hint("send several requests, or send a large array as one string"))
}

/// Returns the number of characters outside of strings that a value, or the key of one, follows.
fn count(text: &[u8]) -> usize {
    let mut values = 0;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b',' | b':' | b'[' | b'{' => values += 1,
            b'"' => at = end_of_string(text, at),
            _ => {}
        }
    }
    values
}

/// Returns the position after the closing quote.
fn end_of_string(text: &[u8], mut at: usize) -> usize {
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::{check, count};
    use crate::limits::JSON_VALUES;

    #[test]
    fn values_are_counted_outside_of_strings() {
        let counts = [
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[1,2],"b":"x,y:[{"}"#, 6),
            (r#"["\\",",","\",",":"]"#, 4),
            (r#"["no end,,,"#, 1),
            (r#"["no end\"#, 1),
        ];
        for (text, values) in counts {
            assert_eq!(count(text.as_bytes()), values, "{text}");
        }
    }

    #[test]
    fn a_small_text_of_many_values_is_refused() {
        let objects = |n: usize| format!("[{}]", vec![r#"{"":0}"#; n].join(","));
        // An object with one member counts 3: its brace, its colon, and the comma before it.
        assert!(check(&objects(JSON_VALUES / 3 - 1)).is_ok());
        assert!(check(&objects(JSON_VALUES / 3 + 1)).is_err());
        assert!(check(&format!("{:?}", ",".repeat(4 * JSON_VALUES))).is_ok());
    }
}
