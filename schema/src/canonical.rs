//! Canonical JSON: one text for one value.
//!
//! Object keys sorted by their UTF-8 bytes, no white space, integers as digits, doubles in the
//! shortest form that reads back the same, the last of duplicate keys kept. Unlike in RFC 8785 (JCS),
//! `1.0` and `1` stay apart, as they do in SQLite, and integers keep all of their digits: what does not
//! fit 64 bits with sign is refused where it comes in ([`crate::integers`]).

use serde_json::Value;

/// The canonical text of a JSON value.
#[must_use]
pub fn to_text(value: &Value) -> String {
    // `serde_json::Map` is sorted unless some dependency turns on `preserve_order`; the test below
    // would tell.
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_has_one_text() {
        let text =
            r#" { "b" : [1, 1.0, 1e2, "\u00e9\/"], "a":{"z":null,"é":true,"B":-0.0} , "b":2.50 } "#;
        let value = serde_json::from_str(text).expect("it is JSON");
        assert_eq!(to_text(&value), r#"{"a":{"B":-0.0,"z":null,"é":true},"b":2.5}"#);
    }
}
