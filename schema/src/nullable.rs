//! A required argument that can be null.

use serde_json::Value as JsonValue;

/// A required argument that can be null. (A plain `Option` can be omitted.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nullable<T>(pub Option<T>);

impl<T> From<T> for Nullable<T> {
    fn from(value: T) -> Nullable<T> {
        Nullable(Some(value))
    }
}

impl<T> From<Option<T>> for Nullable<T> {
    fn from(value: Option<T>) -> Nullable<T> {
        Nullable(value)
    }
}

impl From<&str> for Nullable<String> {
    fn from(value: &str) -> Nullable<String> {
        Nullable(Some(value.to_owned()))
    }
}

impl<T: serde::Serialize> serde::Serialize for Nullable<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<T: schemars::JsonSchema> schemars::JsonSchema for Nullable<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        Option::<T>::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Option::<T>::json_schema(generator)
    }
}

impl<'de, T: serde::de::DeserializeOwned> serde::Deserialize<'de> for Nullable<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Through a JSON value: `deserialize_option` would treat a missing field as null.
        let value = JsonValue::deserialize(deserializer)?;
        let value = match value {
            JsonValue::Null => None,
            value => Some(T::deserialize(value).map_err(serde::de::Error::custom)?),
        };
        Ok(Nullable(value))
    }
}
