//! Canonical JSON: exactly one text for each value.
//!
//! Object keys sorted by their UTF-8 bytes, no white space, integers as digits, doubles in the
//! shortest form that round-trips, the last of duplicate keys kept. Unlike in RFC 8785 (JCS),
//! `1.0` and `1` are distinct, as in SQLite, and integers keep all of their digits: integers beyond
//! signed 64 bits are refused on input ([`crate::integers`]).

use serde_json::Value;

/// The canonical text of a JSON value.
#[must_use]
pub fn to_text(value: &Value) -> String {
    // `serde_json::Map` is sorted unless a dependency enables `preserve_order`; the test below
    // detects that.
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_text_is_unique() {
        let text =
            r#" { "b" : [1, 1.0, 1e2, "\u00e9\/"], "a":{"z":null,"é":true,"B":-0.0} , "b":2.50 } "#;
        let value = serde_json::from_str(text).expect("it is JSON");
        assert_eq!(to_text(&value), r#"{"a":{"B":-0.0,"z":null,"é":true},"b":2.5}"#);
    }
}
