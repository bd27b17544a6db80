//! The types of JSON values, as JSON Schema names them.

use std::fmt;

use serde_json::Value;

/// The type of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JsonType {
    /// An array.
    Array,
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Integer,
    /// `null`.
    Null,
    /// Any number, whole or not.
    Number,
    /// An object.
    Object,
    /// A string.
    String,
}

impl JsonType {
    /// All types.
    const ALL: [JsonType; 7] = [
        JsonType::Array,
        JsonType::Boolean,
        JsonType::Integer,
        JsonType::Null,
        JsonType::Number,
        JsonType::Object,
        JsonType::String,
    ];

    /// Returns the type of a value; [`Number`](JsonType::Number) for every number.
    pub(crate) fn from_value(value: &Value) -> JsonType {
        match value {
            Value::Null => JsonType::Null,
            Value::Bool(_) => JsonType::Boolean,
            Value::Number(_) => JsonType::Number,
            Value::String(_) => JsonType::String,
            Value::Array(_) => JsonType::Array,
            Value::Object(_) => JsonType::Object,
        }
    }

    /// Returns the type with this name.
    pub(crate) fn from_name(name: &str) -> Option<JsonType> {
        JsonType::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Returns the name in a schema.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            JsonType::Array => "array",
            JsonType::Boolean => "boolean",
            JsonType::Integer => "integer",
            JsonType::Null => "null",
            JsonType::Number => "number",
            JsonType::Object => "object",
            JsonType::String => "string",
        }
    }
}

impl fmt::Display for JsonType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
