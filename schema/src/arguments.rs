//! The arguments of a reducer: their schema, and how they are decoded from the arguments of a call.
//!
//! `#[reducer]` declares each argument as an [`ArgumentSpec`], and reads one after another. Only the functions for the
//! type of an argument are generic: derived code for each struct of arguments was a third of what the compiler generated
//! for the reducers.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value as JsonValue, json};

use crate::argument_error::ArgumentError;
use crate::call_arguments::CallArguments;
use crate::integers;
use crate::refusal::{Code, Refusal};

/// The declaration of an argument.
#[derive(Clone, Copy, Debug)]
pub struct ArgumentSpec {
    /// Its name.
    pub name: &'static str,
    /// Whether the caller may omit it.
    pub optional: bool,
    /// The schema of its type.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

/// Returns the JSON Schema of the arguments, an object.
#[must_use]
pub fn schema(arguments: &[ArgumentSpec]) -> JsonValue {
    let mut generator = SchemaGenerator::default();
    let mut properties = Map::new();
    for argument in arguments {
        properties.insert(argument.name.to_owned(), (argument.schema)(&mut generator).to_value());
    }
    let required: Vec<&str> = arguments
        .iter()
        .filter(|argument| !argument.optional)
        .map(|argument| argument.name)
        .collect();
    let mut schema = json!({
        "$schema": generator.settings().meta_schema,
        "title": "Arguments",
        "type": "object",
        "additionalProperties": false,
    });
    if !properties.is_empty() {
        schema["properties"] = JsonValue::Object(properties);
    }
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    let definitions = generator.take_definitions(true);
    if !definitions.is_empty() {
        schema["$defs"] = JsonValue::Object(definitions);
    }
    schema
}

/// Decodes the arguments of one call.
#[derive(Clone, Copy, Debug)]
pub struct ArgumentReader<'a> {
    reducer: &'static str,
    specs: &'static [ArgumentSpec],
    arguments: &'a CallArguments,
}

impl<'a> ArgumentReader<'a> {
    /// Returns a reader of the arguments of a reducer.
    ///
    /// # Errors
    /// `bad_arguments` if the reducer does not have one of them.
    pub fn new(
        reducer: &'static str,
        specs: &'static [ArgumentSpec],
        arguments: &'a CallArguments,
    ) -> Result<ArgumentReader<'a>, Refusal> {
        match arguments
            .members()
            .find(|argument| !specs.iter().any(|spec| argument.is_named(spec.name)))
        {
            Some(unknown) => {
                let known: Vec<&str> = specs.iter().map(|spec| spec.name).collect();
                Err(refusal(reducer, specs, ArgumentError::unknown("", &unknown.name(), &known)))
            }
            None => Ok(ArgumentReader { reducer, specs, arguments }),
        }
    }

    /// Returns an argument that the caller must give.
    ///
    /// # Errors
    /// `bad_arguments` if it is missing, or has another type.
    pub fn required<T: DeserializeOwned>(&self, name: &str) -> Result<T, Refusal> {
        match self.arguments.get(name) {
            Some(text) => self.decode(name, text),
            None => Err(refusal(self.reducer, self.specs, ArgumentError::missing(name))),
        }
    }

    /// Returns an argument that may be omitted, or null.
    ///
    /// # Errors
    /// `bad_arguments` if it has another type.
    pub fn optional<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Refusal> {
        match self.arguments.get(name) {
            None | Some("null") => Ok(None),
            Some(text) => self.decode(name, text).map(Some),
        }
    }

    /// Decodes an argument from a JSON value, not directly from the text: `serde_json` accepts more in a text than in a
    /// value, such as an array for a variant with fields; and old events have deeper values than it reads from a text.
    /// The strings of the value are moved.
    fn decode<T: DeserializeOwned>(&self, name: &str, text: &str) -> Result<T, Refusal> {
        let value = integers::parse(text).map_err(|why| self.refused(name, "", &why))?;
        T::deserialize(value).or_else(|_| self.decode_again(name, text))
    }

    /// Decodes an argument that cannot be decoded again, to name the place in it that is wrong. This costs more.
    fn decode_again<T: DeserializeOwned>(&self, name: &str, text: &str) -> Result<T, Refusal> {
        let value = integers::parse(text).map_err(|why| self.refused(name, "", &why))?;
        T::deserialize(&value).map_err(|why| {
            let at = serde_path_to_error::deserialize::<_, T>(&value);
            let path = at.err().map(|at| at.path().to_string()).unwrap_or_default();
            self.refused(name, &path, &why)
        })
    }

    fn refused(&self, name: &str, path: &str, why: &serde_json::Error) -> Refusal {
        refusal(self.reducer, self.specs, ArgumentError::from_serde(name, path, &why.to_string()))
    }
}

fn refusal(reducer: &str, specs: &[ArgumentSpec], error: ArgumentError) -> Refusal {
    let hint = error.hint.unwrap_or_else(|| format!("{reducer} takes {}", list_names(specs)));
    Refusal::new(Code::BadArguments, format!("{reducer}: {}", error.detail)).hint(hint)
}

/// Returns the names of the arguments; a question mark follows those that may be omitted.
fn list_names(specs: &[ArgumentSpec]) -> String {
    let names: Vec<String> = specs
        .iter()
        .map(|spec| format!("{}{}", spec.name, if spec.optional { "?" } else { "" }))
        .collect();
    if names.is_empty() { "no arguments".to_owned() } else { names.join(", ") }
}

/// A required argument that can be null. An argument of type `Option` can also be omitted. Both have the same JSON.
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

impl<T: Serialize> Serialize for Nullable<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for Nullable<T> {
    fn schema_name() -> Cow<'static, str> {
        Option::<T>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Option::<T>::json_schema(generator)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Nullable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Through a JSON value: `deserialize_option` would treat a missing field as null.
        match JsonValue::deserialize(deserializer)? {
            JsonValue::Null => Ok(Nullable(None)),
            value => T::deserialize(value)
                .map(|value| Nullable(Some(value)))
                .map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::any::type_name;
    use std::collections::{BTreeMap, BTreeSet};
    use std::fmt::Debug;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq, schemars::JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Limits {
        per_ms: u32,
    }

    const SPECS: &[ArgumentSpec] = &[
        ArgumentSpec {
            name: "name",
            optional: false,
            schema: SchemaGenerator::subschema_for::<String>,
        },
        ArgumentSpec {
            name: "count",
            optional: true,
            schema: SchemaGenerator::subschema_for::<Option<i64>>,
        },
        ArgumentSpec {
            name: "limits",
            optional: true,
            schema: SchemaGenerator::subschema_for::<Option<Limits>>,
        },
        ArgumentSpec {
            name: "tags",
            optional: true,
            schema: SchemaGenerator::subschema_for::<Option<Vec<String>>>,
        },
    ];

    fn refusal(arguments: &JsonValue) -> Refusal {
        let arguments = CallArguments::from_value(arguments);
        let read = || {
            let arguments = ArgumentReader::new("f", SPECS, &arguments)?;
            arguments.required::<String>("name")?;
            arguments.optional::<i64>("count")?;
            arguments.optional::<Limits>("limits")?;
            arguments.optional::<Vec<String>>("tags")
        };
        read().expect_err("the arguments are wrong")
    }

    #[test]
    fn an_error_names_the_argument_the_type_and_what_was_found() {
        let long = "x".repeat(100);
        let cut =
            format!("argument count: expected an integer, found the string \"{}…\"", &long[1..40]);
        let cases = [
            (json!({}), "missing argument name"),
            (json!({"name": 7}), "argument name: expected a string, found the integer 7"),
            (json!({"name": null}), "argument name: expected a string, found null"),
            (
                json!({"name": "a", "count": 1.5}),
                "argument count: expected an integer, found the number 1.5",
            ),
            (
                json!({"name": "a", "count": ", expected x"}),
                "argument count: expected an integer, found the string \", expected x\"",
            ),
            (json!({"name": "a", "count": long}), &cut),
            (json!({"name": "a", "coumt": 1}), "unexpected argument coumt"),
            (json!({"name": "a", "limits": {}}), "missing argument limits.per_ms"),
            (json!({"name": "a", "limits": {"per_s": 1}}), "unexpected argument limits.per_s"),
            (
                json!({"name": "a", "limits": true}),
                "argument limits: expected an object, found true",
            ),
            (
                json!({"name": "a", "limits": {"per_ms": -1}}),
                "argument limits.per_ms: expected an integer of 0 or more, found the integer -1",
            ),
            (
                json!({"name": "a", "tags": ["a", 1]}),
                "argument tags[1]: expected a string, found the integer 1",
            ),
        ];
        for (arguments, expected) in cases {
            let refusal = refusal(&arguments);
            assert_eq!(refusal.detail, format!("f: {expected}"));
        }
        let hint = |arguments| refusal(&arguments).hint;
        assert_eq!(hint(json!({"coumt": 1})).as_deref(), Some("did you mean count?"));
        assert_eq!(
            hint(json!({"colour": 1})).as_deref(),
            Some("f takes name, count?, limits?, tags?")
        );
        let nested = json!({"name": "a", "limits": {"per_m": 1}});
        assert_eq!(hint(nested).as_deref(), Some("did you mean limits.per_ms?"));
        let nested = json!({"name": "a", "limits": {"x": 1}});
        assert_eq!(hint(nested).as_deref(), Some("limits has per_ms"));
    }

    /// Any JSON value, often of the kinds that arguments have.
    fn values() -> impl Strategy<Value = JsonValue> {
        let scalar = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(JsonValue::from),
            any::<i64>().prop_map(JsonValue::from),
            any::<u64>().prop_map(JsonValue::from),
            (-300_i64..300).prop_map(JsonValue::from),
            any::<f64>().prop_map(JsonValue::from),
            any::<String>().prop_map(JsonValue::from),
            prop::sample::select(vec!["open", "closed", "$blob"]).prop_map(JsonValue::from),
        ];
        scalar.prop_recursive(3, 20, 4, |inner| {
            let names = prop::sample::select(vec!["per_ms", "open", "a", "kind"]);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(JsonValue::from),
                prop::collection::vec((names.prop_map(str::to_owned), inner), 0..4)
                    .prop_map(|members| JsonValue::Object(members.into_iter().collect())),
            ]
        })
    }

    /// Checks that an argument is decoded from its text as it is from a value in memory.
    fn check_decoded<T: DeserializeOwned + PartialEq + Debug>(value: &JsonValue) {
        let arguments = CallArguments::from_value(&json!({"name": value}));
        let reader = ArgumentReader::new("f", SPECS, &arguments).expect("the name is known");
        let decoded = reader.required::<T>("name");
        let expected = T::deserialize(value);
        assert_eq!(decoded.is_ok(), expected.is_ok(), "{} {value}", type_name::<T>());
        if let (Ok(decoded), Ok(expected)) = (decoded, expected) {
            assert_eq!(decoded, expected, "{value}");
        }
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Status {
        Open,
        Closed(u32),
        Kind { a: String },
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(tag = "kind")]
    enum Tagged {
        #[serde(rename = "open")]
        Open { a: Option<f64> },
    }

    proptest! {
        #[test]
        fn the_text_of_an_argument_is_decoded_as_its_value(value in values()) {
            check_decoded::<String>(&value);
            check_decoded::<bool>(&value);
            check_decoded::<i64>(&value);
            check_decoded::<u8>(&value);
            check_decoded::<u64>(&value);
            check_decoded::<f32>(&value);
            check_decoded::<f64>(&value);
            check_decoded::<()>(&value);
            check_decoded::<char>(&value);
            check_decoded::<JsonValue>(&value);
            check_decoded::<crate::Micros>(&value);
            check_decoded::<crate::Json>(&value);
            check_decoded::<Option<i64>>(&value);
            check_decoded::<Nullable<String>>(&value);
            check_decoded::<Vec<String>>(&value);
            check_decoded::<Vec<JsonValue>>(&value);
            check_decoded::<(i64, String)>(&value);
            check_decoded::<BTreeSet<String>>(&value);
            check_decoded::<BTreeMap<String, f64>>(&value);
            check_decoded::<Limits>(&value);
            check_decoded::<Status>(&value);
            check_decoded::<Tagged>(&value);
        }
    }

    /// Events from before there was a limit have arguments that `serde_json` does not read from text.
    #[test]
    fn deep_arguments_of_old_events_are_decoded() {
        let deep = (0..300).fold(json!(1), |inner, _| JsonValue::Array(vec![inner]));
        let arguments = CallArguments::from_value(&json!({"name": deep}));
        let read = ArgumentReader::new("f", SPECS, &arguments).expect("the name is known");
        assert_eq!(read.required::<JsonValue>("name").expect("it is decoded"), deep);
    }
}
