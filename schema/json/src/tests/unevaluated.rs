//! `unevaluatedProperties` and `unevaluatedItems`, compared with `jsonschema`.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{STEPS, agree, fits, leads_in_circles, schemas, some_values, values};
use crate::Schema;

fn more_values() -> Vec<Value> {
    let mut values = some_values();
    values.extend([
        json!({"a": 1, "b": 2}),
        json!({"a": 1, "b": 2, "c": 3}),
        json!({"a": "x"}),
        json!({"b": 1}),
        json!({"c": {"a": 1, "b": 1}}),
        json!([1, "a"]),
        json!(["a", 1, "b"]),
        json!(["a", "b", 1, null]),
        json!([[1, "a"], 2]),
    ]);
    values
}

#[test]
fn unevaluated_properties_agree_with_the_oracle() {
    let values = more_values();
    let a = json!({"properties": {"a": {"type": "integer"}}});
    let b = json!({"properties": {"b": {"type": "integer"}}, "required": ["b"]});
    for schema in [
        json!({"unevaluatedProperties": false}),
        json!({"unevaluatedProperties": {"type": "integer"}}),
        json!({"properties": {"a": true}, "unevaluatedProperties": false}),
        json!({"patternProperties": {"^[ax]": true}, "unevaluatedProperties": false}),
        json!({"additionalProperties": {"type": "integer"}, "unevaluatedProperties": false}),
        json!({"allOf": [a, b], "unevaluatedProperties": false}),
        json!({"anyOf": [a, b], "unevaluatedProperties": false}),
        json!({"oneOf": [a, b], "unevaluatedProperties": false}),
        json!({"not": {"not": a}, "unevaluatedProperties": false}),
        json!({"if": b, "then": a, "else": {"properties": {"c": true}},
            "unevaluatedProperties": false}),
        json!({"if": b, "unevaluatedProperties": false}),
        json!({"dependentSchemas": {"a": b}, "unevaluatedProperties": false}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": a}, "unevaluatedProperties": false}),
        json!({"$dynamicRef": "#x", "$defs": {"x": {"$dynamicAnchor": "x", "properties":
            {"a": true}}}, "unevaluatedProperties": false}),
        // Nested: what the inner one evaluates, the outer one does not see as left.
        json!({"allOf": [{"properties": {"a": true}, "unevaluatedProperties": true}],
            "unevaluatedProperties": false}),
        json!({"allOf": [{"unevaluatedProperties": {"type": "integer"}}],
            "unevaluatedProperties": false}),
        // Not a parent, but a neighbour: it is not visible.
        json!({"allOf": [{"properties": {"a": true}}, {"unevaluatedProperties": false}]}),
        json!({"properties": {"c": {"properties": {"a": true}}}, "unevaluatedProperties": false}),
        json!({"properties": {"c": {"properties": {"a": true}, "unevaluatedProperties": false}}}),
        json!({"properties": {"c": {"$ref": "#"}, "a": true}, "unevaluatedProperties": false}),
        json!({"propertyNames": {"maxLength": 1}, "unevaluatedProperties": false}),
        json!({"contains": {"properties": {"a": true}}, "unevaluatedProperties": false}),
    ] {
        agree(&schema, &values);
        let mut of_2019 = schema.clone();
        of_2019["$schema"] = json!("https://json-schema.org/draft/2019-09/schema");
        if !schema.to_string().contains("$dynamicRef") {
            agree(&of_2019, &values);
        }
    }
}

#[test]
fn unevaluated_items_agree_with_the_oracle() {
    let values = more_values();
    let one = json!({"prefixItems": [true]});
    let two = json!({"prefixItems": [true, true]});
    for schema in [
        json!({"unevaluatedItems": false}),
        json!({"unevaluatedItems": {"type": "integer"}}),
        json!({"prefixItems": [true], "unevaluatedItems": false}),
        json!({"items": true, "unevaluatedItems": false}),
        json!({"prefixItems": [true], "items": {"type": "integer"}, "unevaluatedItems": false}),
        json!({"contains": {"type": "string"}, "unevaluatedItems": {"type": "integer"}}),
        json!({"contains": {"type": "string"}, "minContains": 0, "unevaluatedItems": false}),
        json!({"allOf": [one, {"contains": {"type": "string"}}], "unevaluatedItems": false}),
        json!({"anyOf": [one, two], "unevaluatedItems": false}),
        json!({"oneOf": [{"maxItems": 1, "prefixItems": [true]}, {"minItems": 2,
            "prefixItems": [true, true]}], "unevaluatedItems": false}),
        json!({"if": {"prefixItems": [{"type": "integer"}]}, "then": two,
            "unevaluatedItems": false}),
        json!({"allOf": [{"unevaluatedItems": true}], "unevaluatedItems": false}),
        json!({"allOf": [one, {"unevaluatedItems": false}]}),
        json!({"items": {"prefixItems": [true], "unevaluatedItems": false}}),
        json!({"unevaluatedItems": {"prefixItems": [true], "unevaluatedItems": false}}),
        json!({"unevaluatedItems": false, "unevaluatedProperties": false}),
    ] {
        agree(&schema, &values);
    }
    let of_2019 = "https://json-schema.org/draft/2019-09/schema";
    for schema in [
        json!({"$schema": of_2019, "items": [true], "unevaluatedItems": false}),
        json!({"$schema": of_2019, "items": [true], "additionalItems": {"type": "string"},
            "unevaluatedItems": false}),
        json!({"$schema": of_2019, "items": true, "unevaluatedItems": false}),
        json!({"$schema": of_2019, "allOf": [{"items": [true]}], "unevaluatedItems": false}),
    ] {
        agree(&schema, &values);
    }
}

/// In 2019-09, `contains` only counts. The oracle applies the rule of 2020-12.
#[test]
fn contains_evaluates_items_since_2020() {
    let mut schema = json!({"contains": {"type": "string"}, "unevaluatedItems": false});
    assert!(fits(&schema, &json!(["a"])));
    schema["$schema"] = json!("https://json-schema.org/draft/2019-09/schema");
    assert!(!fits(&schema, &json!(["a"])));
}

#[test]
fn unevaluated_members_are_named() {
    let schema = json!({"properties": {"a": true}, "unevaluatedProperties": false,
        "prefixItems": [true], "unevaluatedItems": false});
    let compiled = Schema::compile(&schema).expect("it is a schema");
    let what = |value: Value| -> Vec<String> {
        let found = compiled.mismatches(&value, STEPS, 10).expect("the budget suffices");
        found.into_iter().map(|it| it.path + ": " + &it.what).collect()
    };
    assert_eq!(
        what(json!({"a": 1, "b": 1, "c": 1})),
        [": Additional properties are not allowed ('b', 'c' were unexpected)"]
    );
    assert_eq!(what(json!([1, 2])), [": Additional items are not allowed (item 1 was unexpected)"]);
}

/// Objects with the keywords of several schemas.
fn merged() -> impl Strategy<Value = Value> {
    let named = prop::collection::btree_map("[ab]", schemas(), 0..2);
    let kind = prop::sample::select(vec!["unevaluatedProperties", "unevaluatedItems"]);
    let rest = prop_oneof![Just(json!(false)), Just(json!(true)), Just(json!({"type": "integer"}))];
    let member = prop_oneof![
        named.prop_map(|all| json!({"properties": all})),
        prop::collection::vec(schemas(), 1..3).prop_map(|all| json!({"prefixItems": all})),
        schemas(),
        (kind, rest).prop_map(|(kind, rest)| json!({kind: rest})),
    ];
    let object = prop::collection::vec(member, 1..4).prop_map(|all| {
        let mut merged = Map::new();
        for one in all {
            merged.extend(one.as_object().cloned().unwrap_or_default());
        }
        Value::Object(merged)
    });
    let combined = prop::sample::select(vec!["allOf", "anyOf", "oneOf"]);
    (object.clone(), combined, prop::collection::vec(object, 0..3), any::<bool>()).prop_map(
        |(mut root, combined, parts, properties)| {
            if !parts.is_empty() {
                root[combined] = json!(parts);
            }
            let kind = if properties { "unevaluatedProperties" } else { "unevaluatedItems" };
            root[kind] = json!(false);
            root["$defs"] = json!({"d": {"type": "integer"}});
            root
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn generated_schemas_agree_with_the_oracle(schema in merged(), value in values()) {
        prop_assume!(!leads_in_circles(&schema));
        let compiled = Schema::compile(&schema).expect("it is a schema");
        let expected = jsonschema::is_valid(&schema, &value);
        if let Ok(found) = compiled.mismatches(&value, STEPS, 100) {
            prop_assert_eq!(found.is_empty(), expected, "{} and {}: {:?}", schema, value, found);
            prop_assert_eq!(compiled.check(&value, STEPS).is_ok(), expected);
        }
    }
}
