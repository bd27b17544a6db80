//! Canonical JSON: equal values have equal texts.
//!
//! Object keys are sorted by their UTF-8 bytes, there is no white space, integers are digits, doubles have the
//! shortest form that reads back as the same double, and the last of duplicate keys is kept. Unlike in RFC 8785 (JCS),
//! `1.0` and `1` are different values, as in SQLite, and integers keep all of their digits: integers that do not
//! fit 64 bits are refused on input ([`crate::integers`]).
//!
//! The keys are sorted here and not by `serde_json::Map`: any dependency of a program can turn on the feature
//! `preserve_order` of `serde_json`, with which a map keeps the order of insertion.

use std::ops::Range;

use serde_json::{Map, Value};

/// The canonical text of a JSON value.
#[must_use]
pub fn to_text(value: &Value) -> String {
    let mut text = Vec::with_capacity(128);
    write(value, &mut text);
    String::from_utf8(text).expect("serde_json writes UTF-8")
}

/// Where a member of an object is in the object's canonical text, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, with the quotes.
    pub name: Range<usize>,
    /// Its value.
    pub value: Range<usize>,
}

/// The canonical text of a JSON object, with its members.
#[must_use]
pub fn object_to_text(object: &Map<String, Value>) -> (String, Vec<Member>) {
    let mut text = Vec::with_capacity(128);
    let mut members = Vec::with_capacity(object.len());
    write_object(object, &mut text, &mut |name, value| members.push(Member { name, value }));
    (String::from_utf8(text).expect("serde_json writes UTF-8"), members)
}

fn write(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::Object(members) => write_object(members, text, &mut |_, _| {}),
        Value::Array(items) => {
            text.push(b'[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    text.push(b',');
                }
                write(item, text);
            }
            text.push(b']');
        }
        scalar => write_scalar(scalar, text),
    }
}

/// Writes an object, and calls `each` with the position of each member.
fn write_object(
    members: &Map<String, Value>,
    text: &mut Vec<u8>,
    each: &mut impl FnMut(Range<usize>, Range<usize>),
) {
    text.push(b'{');
    if members.keys().is_sorted() {
        write_members(members.iter(), text, each);
    } else {
        let mut sorted: Vec<_> = members.iter().collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        write_members(sorted.into_iter(), text, each);
    }
    text.push(b'}');
}

fn write_members<'a>(
    members: impl Iterator<Item = (&'a String, &'a Value)>,
    text: &mut Vec<u8>,
    each: &mut impl FnMut(Range<usize>, Range<usize>),
) {
    for (position, (key, value)) in members.enumerate() {
        if position > 0 {
            text.push(b',');
        }
        let name = text.len();
        write_scalar(key, text);
        let colon = text.len();
        text.push(b':');
        write(value, text);
        each(name..colon, colon + 1..text.len());
    }
}

fn write_scalar(scalar: &impl serde::Serialize, text: &mut Vec<u8>) {
    serde_json::to_writer(text, scalar).expect("a scalar serialises into memory");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_values_have_equal_texts() {
        let text =
            r#" { "b" : [1, 1.0, 1e2, "\u00e9\/"], "a":{"z":null,"é":true,"B":-0.0} , "b":2.50 } "#;
        let value = serde_json::from_str(text).expect("it is JSON");
        assert_eq!(to_text(&value), r#"{"a":{"B":-0.0,"z":null,"é":true},"b":2.5}"#);
    }

    fn values() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::vec((".{0,3}", inner), 0..8)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Without `preserve_order` the maps of `serde_json` are sorted: its own text is the oracle.
        #[test]
        fn the_text_is_that_of_sorted_maps(value in values()) {
            prop_assert_eq!(to_text(&value), value.to_string());
            let Value::Object(object) = &value else { return Ok(()) };
            let (text, members) = object_to_text(object);
            prop_assert_eq!(&text, &value.to_string());
            let found: Vec<(Value, Value)> = members
                .into_iter()
                .map(|Member { name, value }| [name, value].map(|at| {
                    serde_json::from_str(&text[at]).expect("it is JSON")
                }))
                .map(|[name, value]| (name, value))
                .collect();
            let expected = object.iter().map(|(name, value)| (name.as_str().into(), value.clone()));
            prop_assert_eq!(found, expected.collect::<Vec<(Value, Value)>>());
        }
    }
}
