//! The arguments of a reducer: their schema, and reading them from JSON.
//!
//! `#[reducer]` declares each argument as an [`ArgumentSpec`], and reads one after another. Only the functions for the
//! type of an argument are generic: derived code for each struct of arguments was a third of what the compiler generated
//! for the reducers.

use schemars::{Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue, json};

use crate::argument_error::ArgumentError;
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

/// The JSON Schema of the arguments, an object.
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

/// Reads the arguments of one call.
#[derive(Clone, Copy, Debug)]
pub struct ArgumentReader<'a> {
    reducer: &'static str,
    specs: &'static [ArgumentSpec],
    values: &'a Map<String, JsonValue>,
}

impl<'a> ArgumentReader<'a> {
    /// A reader of the arguments of a reducer.
    ///
    /// # Errors
    /// `bad_arguments` if the reducer does not have one of them.
    pub fn new(
        reducer: &'static str,
        specs: &'static [ArgumentSpec],
        values: &'a Map<String, JsonValue>,
    ) -> Result<ArgumentReader<'a>, Refusal> {
        match values.keys().find(|name| specs.iter().all(|spec| spec.name != *name)) {
            Some(unknown) => {
                let known: Vec<&str> = specs.iter().map(|spec| spec.name).collect();
                Err(refusal(reducer, specs, ArgumentError::unknown("", unknown, &known)))
            }
            None => Ok(ArgumentReader { reducer, specs, values }),
        }
    }

    /// An argument that the caller must name.
    ///
    /// # Errors
    /// `bad_arguments` if it is missing, or has another type.
    pub fn required<T: Deserialize<'a>>(&self, name: &str) -> Result<T, Refusal> {
        match self.values.get(name) {
            Some(value) => self.read(name, value),
            None => Err(refusal(self.reducer, self.specs, ArgumentError::missing(name))),
        }
    }

    /// An argument that may be omitted, or null.
    ///
    /// # Errors
    /// `bad_arguments` if it has another type.
    pub fn optional<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, Refusal> {
        match self.values.get(name) {
            None | Some(JsonValue::Null) => Ok(None),
            Some(value) => self.read(name, value).map(Some),
        }
    }

    /// It decodes a wrong value a second time, because finding the place costs more than decoding.
    fn read<T: Deserialize<'a>>(&self, name: &str, value: &'a JsonValue) -> Result<T, Refusal> {
        T::deserialize(value).map_err(|why| {
            let at =
                serde_path_to_error::deserialize::<_, T>(value).map_err(|at| at.path().to_string());
            let error = ArgumentError::of(name, &at.err().unwrap_or_default(), &why.to_string());
            refusal(self.reducer, self.specs, error)
        })
    }
}

fn refusal(reducer: &str, specs: &[ArgumentSpec], error: ArgumentError) -> Refusal {
    let hint = error.hint.unwrap_or_else(|| format!("{reducer} takes {}", taken(specs)));
    Refusal::new(Code::BadArguments, format!("{reducer}: {}", error.detail)).hint(hint)
}

/// The names of the arguments; a question mark follows those that may be omitted.
fn taken(specs: &[ArgumentSpec]) -> String {
    let names: Vec<String> = specs
        .iter()
        .map(|spec| format!("{}{}", spec.name, if spec.optional { "?" } else { "" }))
        .collect();
    if names.is_empty() { "no arguments".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize, schemars::JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only decoded")]
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
        let arguments = arguments.as_object().expect("it is an object");
        let read = || {
            let arguments = ArgumentReader::new("f", SPECS, arguments)?;
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
            (json!({}), "argument name is missing"),
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
            (json!({"name": "a", "coumt": 1}), "there is no argument coumt"),
            (json!({"name": "a", "limits": {}}), "argument limits.per_ms is missing"),
            (json!({"name": "a", "limits": {"per_s": 1}}), "there is no argument limits.per_s"),
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
}
