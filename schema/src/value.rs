//! The value of a table cell, and its JSON form.

use std::sync::Arc;

use base64::Engine as _;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, Number, Value as JsonValue};

/// A cell: one of SQLite's five storage classes.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// A 64-bit signed integer.
    Integer(i64),
    /// An IEEE 754 double; never NaN, which SQLite stores as NULL.
    Real(f64),
    /// UTF-8 text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

/// A borrowed [`Value`]: a cell of a row that SQLite is reading, for instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueRef<'a> {
    /// SQL NULL.
    Null,
    /// A 64-bit signed integer.
    Integer(i64),
    /// An IEEE 754 double; never NaN.
    Real(f64),
    /// UTF-8 text.
    Text(&'a str),
    /// Bytes.
    Blob(&'a [u8]),
}

/// One row, its cells in column order. Shared, because a changed row is in the cache, in the undo image
/// and in the deltas at the same time.
pub type Row = Arc<[Value]>;

/// A JSON value that is not a valid cell: an array, or an object other than `{"$blob": …}` and `{"$real": …}`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct NotACell(&'static str);

impl Value {
    /// Returns the JSON form of the protocol: NULL → null, INTEGER → number, REAL → number with a fraction
    /// or exponent, TEXT → string, BLOB → `{"$blob": base64}`. The two infinities, which JSON
    /// numbers cannot express, are `{"$real": "Infinity"}` and `{"$real": "-Infinity"}`.
    #[must_use]
    pub fn to_json(&self) -> JsonValue {
        match self {
            Value::Null => JsonValue::Null,
            Value::Integer(n) => JsonValue::from(*n),
            Value::Real(x) => match Number::from_f64(*x) {
                Some(number) => JsonValue::Number(number),
                None => {
                    JsonValue::Object(Map::from_iter([("$real".to_owned(), infinity(*x).into())]))
                }
            },
            Value::Text(text) => JsonValue::String(text.clone()),
            Value::Blob(bytes) => {
                let text = BASE64.encode(bytes).into();
                JsonValue::Object(Map::from_iter([("$blob".to_owned(), text)]))
            }
        }
    }

    /// Returns the inverse of [`Value::to_json`]; `true` and `false` are 1 and 0, as in SQLite.
    ///
    /// # Errors
    /// [`NotACell`] for arrays, other objects, invalid base64, and integers beyond 64 bits.
    pub fn from_json(json: &JsonValue) -> Result<Value, NotACell> {
        Ok(match json {
            JsonValue::Null => Value::Null,
            JsonValue::Bool(yes) => Value::Integer(i64::from(*yes)),
            JsonValue::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(n), _) => Value::Integer(n),
                (None, Some(x)) if !number.is_u64() => Value::Real(x),
                _ => return Err(NotACell("an integer that does not fit a signed 64-bit integer")),
            },
            JsonValue::String(text) => Value::Text(text.clone()),
            JsonValue::Array(_) => return Err(NotACell("an array")),
            JsonValue::Object(object) => match (object.len(), object.iter().next()) {
                (1, Some((key, JsonValue::String(text)))) if key == "$blob" => {
                    let bytes = BASE64.decode(text);
                    Value::Blob(bytes.map_err(|_| NotACell("a $blob that is not base64"))?)
                }
                (1, Some((key, JsonValue::String(text)))) if key == "$real" => {
                    match text.as_str() {
                        "Infinity" => Value::Real(f64::INFINITY),
                        "-Infinity" => Value::Real(f64::NEG_INFINITY),
                        _ => return Err(NotACell("a $real other than Infinity and -Infinity")),
                    }
                }
                _ => return Err(NotACell("an object")),
            },
        })
    }

    /// Returns the cell, borrowed.
    #[must_use]
    pub fn borrowed(&self) -> ValueRef<'_> {
        match self {
            Value::Null => ValueRef::Null,
            Value::Integer(n) => ValueRef::Integer(*n),
            Value::Real(x) => ValueRef::Real(*x),
            Value::Text(text) => ValueRef::Text(text),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }
    }

    /// Returns the size of the cell in bytes, for limits and accounting.
    #[must_use]
    pub fn size(&self) -> usize {
        self.borrowed().size()
    }
}

impl ValueRef<'_> {
    /// Returns a copy of the cell.
    #[must_use]
    pub fn to_value(self) -> Value {
        match self {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(n) => Value::Integer(n),
            ValueRef::Real(x) => Value::Real(x),
            ValueRef::Text(text) => Value::Text(text.to_owned()),
            ValueRef::Blob(bytes) => Value::Blob(bytes.to_owned()),
        }
    }

    /// The size of the cell in bytes, for limits and accounting.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            ValueRef::Null => 1,
            ValueRef::Integer(_) | ValueRef::Real(_) => 8,
            ValueRef::Text(text) => text.len(),
            ValueRef::Blob(bytes) => bytes.len(),
        }
    }

    /// Returns how many bytes the cell has as JSON, at most; exactly as many if it is TEXT.
    #[must_use]
    pub fn json_bytes(self) -> usize {
        match self {
            ValueRef::Null => 4,
            // The longest integer, and `{"$real":"-Infinity"}` or 17 digits with sign, point and exponent.
            ValueRef::Integer(_) => 20,
            ValueRef::Real(_) => 24,
            ValueRef::Text(text) => json_text_bytes(text),
            ValueRef::Blob(bytes) => r#"{"$blob":""}"#.len() + bytes.len().div_ceil(3) * 4,
        }
    }
}

/// Returns how many bytes a text has as a JSON string, with its quotes.
#[must_use]
pub fn json_text_bytes(text: &str) -> usize {
    2 + text.bytes().map(escaped_bytes).sum::<usize>()
}

/// Returns how many bytes a byte of a text has in a JSON string, as serde_json writes it.
fn escaped_bytes(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    }
}

/// The form of [`Value::to_json`], without a tree in between: every row of every delta and query result is written here.
impl Serialize for ValueRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            ValueRef::Null => serializer.serialize_unit(),
            ValueRef::Integer(n) => serializer.serialize_i64(n),
            ValueRef::Real(x) if x.is_finite() => serializer.serialize_f64(x),
            ValueRef::Real(x) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("$real", infinity(x))?;
                map.end()
            }
            ValueRef::Text(text) => serializer.serialize_str(text),
            ValueRef::Blob(bytes) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("$blob", &Base64Text(bytes))?;
                map.end()
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.borrowed().serialize(serializer)
    }
}

/// Bytes that are encoded while they are written.
struct Base64Text<'a>(&'a [u8]);

impl Serialize for Base64Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &BASE64))
    }
}

/// The name of an infinity.
fn infinity(x: f64) -> &'static str {
    if x < 0.0 { "-Infinity" } else { "Infinity" }
}

impl From<i64> for Value {
    fn from(n: i64) -> Value {
        Value::Integer(n)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_round_trip_through_json() {
        let cells = [
            Value::Null,
            Value::Integer(i64::MIN),
            Value::Integer(i64::MAX),
            Value::Real(1.0),
            Value::Real(-0.0),
            Value::Real(1e300),
            Value::Real(5e-324),
            Value::Real(f64::INFINITY),
            Value::Real(f64::NEG_INFINITY),
            Value::Real(-f64::MIN_POSITIVE),
            Value::Text("line\u{2028}\"\\\0é".to_owned()),
            Value::Text((0..=0x7f).map(char::from).collect()),
            Value::Blob(vec![]),
            Value::Blob(vec![0, 255, 10]),
        ];
        for cell in cells {
            let text = serde_json::to_string(&cell).expect("a cell is JSON");
            let json: JsonValue = serde_json::from_str(&text).expect("it is JSON");
            assert_eq!(json, cell.to_json());
            let most = cell.borrowed().json_bytes();
            match &cell {
                Value::Text(_) => assert_eq!(text.len(), most, "{text}"),
                _ => assert!(text.len() <= most, "{text}"),
            }
            assert_eq!(Value::from_json(&json), Ok(cell));
        }
    }

    #[test]
    fn a_real_is_written_with_a_fraction() {
        assert_eq!(Value::Real(1.0).to_json().to_string(), "1.0");
        assert!(Value::Real(1e16).to_json().to_string().contains(['.', 'e']));
    }

    #[test]
    fn invalid_cells_are_refused() {
        for text in ["[1]", "{}", r#"{"$blob":"*"}"#, r#"{"$blob":1}"#, "18446744073709551615"] {
            let json = serde_json::from_str(text).expect("it is JSON");
            assert!(Value::from_json(&json).is_err(), "{text}");
        }
    }
}
