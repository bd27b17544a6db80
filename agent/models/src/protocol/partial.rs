//! Arguments that Gemini streams in pieces, each with its path.
//!
//! We do not request this (`streamFunctionCallArguments`), but some gateways do.

use std::collections::BTreeMap;

use abide_json_integers as integers;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::ModelError;

/// A piece of the arguments.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PathPiece {
    #[serde(alias = "json_path")]
    json_path: String,
    #[serde(alias = "string_value")]
    string_value: Option<String>,
    #[serde(alias = "number_value")]
    number_value: Option<Box<RawValue>>,
    #[serde(alias = "bool_value")]
    bool_value: Option<bool>,
    /// Whether a later piece continues this text.
    #[serde(alias = "will_continue")]
    will_continue: Option<bool>,
    /// All other fields. `null_value` is among them, because its value is null.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

impl PathPiece {
    pub(super) fn path(&self) -> &str {
        &self.json_path
    }

    /// Returns `true` if the provider has announced more of this text.
    pub(super) fn continues(&self) -> bool {
        self.will_continue == Some(true)
    }
}

/// A step of a path.
enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

/// Inserts a piece. Strings are appended, other values arrive complete. Returns the bytes that are new: a piece that says what is
/// known adds nothing.
pub(super) fn insert(arguments: &mut Value, piece: PathPiece) -> Result<usize, ModelError> {
    let wrong =
        || ModelError::invalid_response("a piece of a call's arguments has an invalid path");
    let is_announced = piece.continues();
    let mut place = arguments;
    for step in steps(&piece.json_path).ok_or_else(wrong)? {
        place = down(place, step).ok_or_else(wrong)?;
    }
    let value = match (piece.string_value, piece.number_value, piece.bool_value) {
        (Some(more), _, _) => {
            let added = more.len();
            match place {
                // Not copied: a long text has many pieces.
                Value::String(text) => text.push_str(&more),
                other => *other = Value::String(more),
            }
            return Ok(added);
        }
        // Numbers should be doubles. An integer that would lose digits is stored as a string.
        (_, Some(number), _) => match integers::check(number.get()) {
            Ok(()) => serde_json::from_str(number.get()).unwrap_or_default(),
            Err(_) => json!(number.get()),
        },
        (_, _, Some(truth)) => json!(truth),
        _ if ["nullValue", "null_value"].iter().any(|field| piece.others.contains_key(*field)) => {
            Value::Null
        }
        // The beginning or the end of a text, without a part of it.
        _ if piece.others.is_empty() && (place.is_string() || is_announced) => return Ok(0),
        _ => {
            let why = "a piece of a call's arguments has no value of a known type";
            return Err(ModelError::invalid_response(why));
        }
    };
    let added = if *place == value { 0 } else { value.to_string().len() };
    *place = value;
    Ok(added)
}

/// Returns the steps of `$.a.b[0]`.
fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let mut rest = path.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(item) = rest.strip_prefix('[') {
            let (index, after) = item.split_once(']')?;
            steps.push(match index.trim_matches(['\'', '"']) {
                name if name.len() < index.len() => Step::Field(name),
                number => Step::Item(number.parse().ok()?),
            });
            rest = after;
        } else {
            let field = rest.strip_prefix('.')?;
            let (name, after) = field.split_at(field.find(['.', '[']).unwrap_or(field.len()));
            steps.push(Step::Field(name));
            rest = after;
        }
    }
    Some(steps)
}

/// Goes one step down and creates missing containers. Array items arrive in order.
fn down<'a>(place: &'a mut Value, step: Step<'_>) -> Option<&'a mut Value> {
    match step {
        Step::Field(name) => {
            if place.is_null() {
                *place = json!({});
            }
            Some(place.as_object_mut()?.entry(name).or_insert(Value::Null))
        }
        Step::Item(index) => {
            if place.is_null() {
                *place = json!([]);
            }
            let items = place.as_array_mut()?;
            if index == items.len() {
                items.push(Value::Null);
            }
            items.get_mut(index)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn assembled(pieces: &[Value]) -> Result<String, ModelError> {
        let mut arguments = json!({});
        for piece in pieces {
            insert(&mut arguments, serde_json::from_value(piece.clone()).expect("it is a piece"))?;
        }
        Ok(arguments.to_string())
    }

    #[test]
    fn pieces_are_inserted_at_their_paths() {
        let arguments = assembled(&[
            json!({ "jsonPath": "$.a[0].b", "stringValue": "on" }),
            json!({ "jsonPath": "$.a[0].b", "stringValue": "e" }),
            json!({ "jsonPath": "$.a[1]", "numberValue": 0.5 }),
            json!({ "jsonPath": "$['a b'].c", "boolValue": true }),
            json!({ "jsonPath": "$.d", "nullValue": null }),
        ]);
        expect![[r#"{"a":[{"b":"one"},0.5],"a b":{"c":true},"d":null}"#]]
            .assert_eq(&arguments.expect("all paths are valid"));
        let text = r#"{"jsonPath": "$.a", "numberValue": 100000000000000000000000}"#;
        let mut arguments = json!({});
        let piece = serde_json::from_str(text).expect("it is a piece");
        insert(&mut arguments, piece).expect("the path is valid");
        assert_eq!(arguments.to_string(), r#"{"a":"100000000000000000000000"}"#);
    }

    /// The size of the arguments was measured as their text for each piece, which took time in the square of their length.
    #[test]
    fn the_size_of_new_pieces_is_known() {
        let mut arguments = json!({});
        let added = [
            json!({ "jsonPath": "$.a", "stringValue": "on" }),
            json!({ "jsonPath": "$.a", "stringValue": "" }),
            json!({ "jsonPath": "$.a", "stringValue": "e" }),
            json!({ "jsonPath": "$.b", "numberValue": 0.5 }),
            json!({ "jsonPath": "$.b", "numberValue": 0.5 }),
            json!({ "jsonPath": "$.c", "boolValue": true }),
            json!({ "jsonPath": "$.c", "boolValue": true }),
        ]
        .map(|piece| {
            let piece = serde_json::from_value(piece).expect("it is a piece");
            insert(&mut arguments, piece).expect("the path is valid")
        });
        assert_eq!(added, [2, 0, 1, 3, 0, 4, 0]);
    }

    /// The class: a value of an unknown type was null, and the call ran with it.
    #[test]
    fn values_of_unknown_types_are_errors() {
        let value_of = |piece: Value| assembled(&[piece]).map_err(|error| error.message);
        let unread = "a piece of a call's arguments has no value of a known type".to_owned();
        for piece in [
            json!({ "jsonPath": "$.a", "newValue": "one" }),
            json!({ "jsonPath": "$.a", "stringValue": null }),
            json!({ "jsonPath": "$.a" }),
        ] {
            assert_eq!(value_of(piece.clone()), Err(unread.clone()), "{piece}");
        }
        let null = json!({ "json_path": "$.a", "null_value": "NULL_VALUE" });
        assert_eq!(value_of(null), Ok(r#"{"a":null}"#.to_owned()));
        let text = [
            json!({ "jsonPath": "$.a", "willContinue": true }),
            json!({ "jsonPath": "$.a", "stringValue": "one", "willContinue": true }),
            json!({ "jsonPath": "$.a" }),
        ];
        assert_eq!(assembled(&text).expect("it is a text"), r#"{"a":"one"}"#);
    }

    #[test]
    fn invalid_paths_are_errors() {
        for path in ["a", "$.a[9]", "$.a[4294967295]", "$[x", "$.a.b.c", "$x"] {
            let first = json!({ "jsonPath": "$.a.b", "stringValue": "text" });
            let outcome = assembled(&[first, json!({ "jsonPath": path, "boolValue": true })]);
            assert!(outcome.is_err(), "{path}");
        }
    }
}
