//! Compares verdicts with those of `jsonschema`, and tests the step budget.

mod mismatches;
mod unevaluated;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{BudgetExhausted, Failure, Schema};

/// More than enough for any schema that is not an attack.
const STEPS: u64 = 1_000_000;

fn fits(schema: &Value, value: &Value) -> bool {
    let compiled = Schema::compile(schema).unwrap_or_else(|why| panic!("{schema}: {why}"));
    match compiled.check(value, STEPS) {
        Ok(()) => true,
        Err(Failure::Mismatch { .. }) => false,
        Err(Failure::OverBudget) => panic!("{schema} takes too long for {value}"),
    }
}

#[track_caller]
fn agree(schema: &Value, values: &[Value]) {
    let oracle = jsonschema::options().should_validate_formats(false).build(schema);
    let oracle = oracle.unwrap_or_else(|why| panic!("{schema}: {why}"));
    let wrong = values.iter().filter(|value| fits(schema, value) != oracle.is_valid(value));
    let wrong: Vec<&Value> = wrong.collect();
    assert!(wrong.is_empty(), "{schema} and {wrong:?}");
}

/// Values of every type, including equal numbers in several notations.
fn some_values() -> Vec<Value> {
    let mut values = vec![
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(1.0),
        json!(-1),
        json!(1.5),
        json!(0.0075),
        json!(1e308),
        json!(12391239123_i64),
        json!(9007199254740993_i64),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("a"),
        json!("foo"),
        json!("ἄνδρα"),
        json!("💩"),
        json!("a-b"),
        json!("2020-01-01"),
        json!([]),
        json!([1]),
        json!([1, 1.0]),
        json!([1, "a", null]),
        json!(["a", "b", "a"]),
        json!([{"a": 1}, {"a": 1.0}]),
        json!([[1], [1]]),
        json!([1, true]),
        json!({}),
        json!({"a": 1}),
        json!({"a": "x", "b": 2}),
        json!({"foo": [1, "2"], "bar": {"a": null}}),
        json!({"a": {"a": {"a": 1}}}),
        json!({"x-1": 1, "y": "z"}),
        json!({"kind": "circle", "r": 1}),
        json!({"kind": "square", "side": -1}),
        json!({"$ref": 1}),
        json!({"a/b": 1, "c~d": 2}),
    ];
    values.extend((0..4).map(|n| json!(vec![n; n])));
    values
}

/// At least one schema for each keyword, similar to the official test suite.
fn schemas_of_2020() -> Vec<Value> {
    vec![
        json!(true),
        json!(false),
        json!({}),
        json!({"type": "integer"}),
        json!({"type": "number"}),
        json!({"type": ["string", "null"]}),
        json!({"type": "object"}),
        json!({"enum": [1, "a", null, [1], {"a": 1}]}),
        json!({"const": {"a": 1}}),
        json!({"const": 1}),
        json!({"const": [1, 1]}),
        json!({"minimum": 1}),
        json!({"maximum": 1.5}),
        json!({"exclusiveMinimum": 0}),
        json!({"exclusiveMaximum": 1}),
        json!({"minimum": 9007199254740992_i64}),
        json!({"maximum": 9007199254740993.0}),
        json!({"minimum": -2}),
        json!({"multipleOf": 2}),
        json!({"minLength": 2}),
        json!({"maxLength": 1}),
        json!({"minLength": 2.0}),
        json!({"pattern": "^a"}),
        json!({"pattern": "\\d{4}-\\d\\d"}),
        json!({"pattern": "^\\p{L}+$"}),
        json!({"pattern": "^[a-z-]+$"}),
        json!({"pattern": "^\\S*$"}),
        json!({"minItems": 1}),
        json!({"maxItems": 1}),
        json!({"uniqueItems": true}),
        json!({"items": {"type": "integer"}}),
        json!({"items": false}),
        json!({"prefixItems": [{"type": "integer"}, {"type": "string"}]}),
        json!({"prefixItems": [{}], "items": {"const": 1}}),
        json!({"contains": {"const": 1}}),
        json!({"contains": {"type": "string"}, "minContains": 2}),
        json!({"contains": {"const": 1}, "maxContains": 1}),
        json!({"contains": {"const": "z"}, "minContains": 0}),
        json!({"minProperties": 1}),
        json!({"maxProperties": 1}),
        json!({"required": ["a"]}),
        json!({"required": []}),
        json!({"properties": {"a": {"type": "integer"}}}),
        json!({"properties": {"a": {}}, "additionalProperties": false}),
        json!({"patternProperties": {"^x-": {"type": "string"}},
            "additionalProperties": {"type": "string"}}),
        json!({"additionalProperties": {"type": "integer"}}),
        json!({"propertyNames": {"maxLength": 1}}),
        json!({"propertyNames": false}),
        json!({"dependentRequired": {"a": ["b"]}}),
        json!({"dependentSchemas": {"a": {"maxProperties": 1}}}),
        json!({"dependencies": {"a": ["b"]}}),
        json!({"additionalItems": false}),
        json!({"definitions": {"a": false}}),
    ]
}

/// Schemas for keywords that combine or reference schemas, or have no effect.
fn combinations_of_2020() -> Vec<Value> {
    vec![
        json!({"allOf": [{"type": "integer"}, {"minimum": 1}]}),
        json!({"anyOf": [{"type": "integer"}, {"minLength": 2}]}),
        json!({"oneOf": [{"type": "integer"}, {"minimum": 1}]}),
        json!({"oneOf": [true, false]}),
        json!({"oneOf": [true, true]}),
        json!({"not": {"type": "integer"}}),
        json!({"not": {}}),
        json!({"if": {"type": "integer"}, "then": {"minimum": 1}, "else": {"type": "string"}}),
        json!({"if": {"const": 1}}),
        json!({"then": false}),
        json!({"if": false, "else": {"type": "array"}}),
        json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}, "maximum": 1}),
        json!({"properties": {"a": {"$ref": "#"}}, "additionalProperties": false}),
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a~1b/properties/c%20d",
            "$defs": {"a/b": {"properties": {"c d": {"type": "string"}}}}}),
        json!({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "array"}}}),
        json!({"$id": "https://a.example/s", "$ref": "https://a.example/s#/$defs/x",
            "$defs": {"x": {"type": "array"}}}),
        json!({"$defs": {"tree": {"type": "object", "properties": {
            "a": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "integer"}]}}}},
            "$ref": "#/$defs/tree"}),
        json!({"oneOf": [
            {"properties": {"kind": {"const": "circle"}, "r": {"exclusiveMinimum": 0}},
                "required": ["kind", "r"]},
            {"properties": {"kind": {"const": "square"}, "side": {"minimum": 0}},
                "required": ["kind", "side"]}]}),
        json!({"format": "email"}),
        json!({"unknown": {"type": "nonsense"}}),
        json!({"title": "a", "default": 2, "examples": []}),
        json!({"unevaluatedProperties": true}),
        json!({"$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n", "type": "integer"}}}),
        json!({"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}},
            "type": "object"}),
        json!({"$dynamicRef": "#/$defs/n", "$defs": {"n": {"type": "array"}}}),
        json!({"$dynamicRef": "#n", "$defs": {"n": {"$anchor": "n", "type": "array"}}}),
        json!({"$recursiveRef": "#", "maximum": 0}),
    ]
}

#[test]
fn keywords_agree_with_the_oracle() {
    let values = some_values();
    let schemas = schemas_of_2020().into_iter().chain(combinations_of_2020());
    schemas.for_each(|schema| agree(&schema, &values));
}

/// As decimals: the oracle uses floats, which are wrong for large numbers.
#[test]
fn multiples_are_exact() {
    for (number, of, is) in [
        (json!(0.0075), json!(0.0001), true),
        (json!(0.00751), json!(0.0001), false),
        (json!(9_007_199_254_740_993_i64), json!(1.5), true),
        (json!(9_007_199_254_740_992_i64), json!(1.5), false),
        (json!(1e308), json!(0.5), true),
        (json!(-4.5), json!(1.5), true),
        (json!(0), json!(0.01), true),
    ] {
        assert_eq!(fits(&json!({"multipleOf": of}), &number), is, "{number} and {of}");
    }
}

#[test]
fn older_drafts_agree_with_the_oracle() {
    let values = some_values();
    let seven = "http://json-schema.org/draft-07/schema#";
    let four = "http://json-schema.org/draft-04/schema#";
    let of_2019 = "https://json-schema.org/draft/2019-09/schema";
    for schema in [
        json!({"$schema": seven, "items": [{"type": "integer"}, {"type": "string"}],
            "additionalItems": false}),
        json!({"$schema": seven, "items": [{"type": "integer"}]}),
        json!({"$schema": seven, "additionalItems": false}),
        json!({"$schema": seven, "$ref": "#/definitions/a", "maximum": 0,
            "definitions": {"a": {"type": "integer"}}}),
        json!({"$schema": seven, "dependencies": {"a": ["b"], "foo": {"maxProperties": 1}}}),
        json!({"$schema": seven, "contains": {"const": 1}, "minContains": 2}),
        json!({"$schema": seven, "if": {"type": "integer"}, "then": {"minimum": 1}}),
        json!({"$schema": seven, "prefixItems": [false]}),
        json!({"$schema": seven, "dependentRequired": {"a": ["b"]}}),
        json!({"$schema": four, "minimum": 1, "exclusiveMinimum": true}),
        json!({"$schema": four, "maximum": 1, "exclusiveMaximum": false}),
        json!({"$schema": four, "const": 1}),
        json!({"$schema": of_2019, "items": [{"type": "integer"}],
            "additionalItems": {"type": "string"}}),
        json!({"$schema": of_2019, "dependentRequired": {"a": ["b"]},
            "contains": {"const": 1}, "maxContains": 1}),
        json!({"$schema": of_2019, "properties": {"a": {"$recursiveRef": "#"}},
            "additionalProperties": false}),
        json!({"$schema": of_2019, "$recursiveAnchor": true, "type": ["array", "integer"],
            "items": {"$recursiveRef": "#"}}),
        json!({"$schema": of_2019, "$dynamicRef": "#none"}),
        json!({"$schema": seven, "unevaluatedProperties": false, "unevaluatedItems": false}),
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema",
            "prefixItems": [true], "items": false}),
    ] {
        agree(&schema, &values);
    }
}

#[test]
fn unsupported_schemas_are_refused() {
    for (schema, why) in [
        (json!(7), "7 is not a schema"),
        (json!({"type": "nonsense"}), "type must be the name of a type, not \"nonsense\""),
        (json!({"properties": {"a": {"minimum": "1"}}}), "minimum must be a number, not \"1\""),
        (json!({"anyOf": []}), "anyOf must be an array of schemas, not []"),
        (json!({"multipleOf": 0}), "multipleOf must be greater than 0, not 0"),
        (json!({"minLength": -1}), "minLength must be a count, not -1"),
        (json!({"pattern": "(?=a)"}), "lookaround in the pattern \"(?=a)\" is not supported"),
        (json!({"pattern": "(a)\\1"}), "the pattern \"(a)\\\\1\" cannot be matched in linear time"),
        (
            json!({"pattern": "[a-z]{1000}{1000}"}),
            "the patterns up to \"[a-z]{1000}{1000}\" are too large",
        ),
        (json!({"$ref": "other.json"}), "unknown reference \"other.json\""),
        (json!({"$dynamicRef": "#a"}), "unknown reference \"#a\""),
        (json!({"$dynamicRef": 1}), "$dynamicRef must be a string, not 1"),
        (
            json!({"$defs": {"a": {"$id": "b"}}, "$ref": "#/$defs/a"}),
            "$id in a subschema is not supported",
        ),
        (json!({"$schema": "https://example.com/s"}), "unknown $schema \"https://example.com/s\""),
    ] {
        assert_eq!(Schema::compile(&schema).err().as_deref(), Some(why), "{schema}");
    }
}

/// A filter whose alternatives refer to the whole schema: each level of nesting was tried by each alternative, and a
/// few hundred bytes of arguments took seconds and gigabytes.
#[test]
fn an_expensive_schema_stops_at_its_budget() {
    let ways: Vec<Value> = ["a", "b", "c", "d"]
        .map(|name: &str| -> Value {
            json!({"properties": {"not": {"$ref": "#/$defs/filter"}, name: {"type": "string"}}})
        })
        .into();
    let schema = json!({"$defs": {"filter": {"oneOf": ways}}, "$ref": "#/$defs/filter"});
    let nested = (0..40).fold(json!({"z": 1}), |inner, _| json!({"not": inner}));
    let compiled = Schema::compile(&schema).expect("it is a schema");
    assert_eq!(compiled.check(&nested, 100_000), Err(Failure::OverBudget));
    assert_eq!(compiled.mismatches(&nested, 100_000, 1_000), Err(BudgetExhausted));
    let chain: Map<String, Value> = (0..3_000)
        .map(|n| (format!("d{n}"), json!({"$ref": format!("#/$defs/d{}", n + 1)})))
        .chain([("d3000".to_owned(), json!(true))])
        .collect();
    let schema = json!({"$defs": chain, "$ref": "#/$defs/d0"});
    let compiled = Schema::compile(&schema).expect("it is a schema");
    assert_eq!(
        compiled.check(&json!(1), STEPS),
        Err(Failure::OverBudget),
        "too deep for the stack"
    );
}

/// Schemas of every combination, with references to the whole.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(true)),
        Just(json!(false)),
        Just(json!({"$ref": "#"})),
        Just(json!({"$ref": "#/$defs/d"})),
        Just(json!({"type": "integer"})),
        Just(json!({"type": ["string", "array"]})),
        Just(json!({"minimum": 1})),
        Just(json!({"maxLength": 1})),
        Just(json!({"pattern": "^a"})),
        Just(json!({"enum": [1, "a", [1]]})),
        Just(json!({"uniqueItems": true})),
        Just(json!({"required": ["a"]})),
        Just(json!({"minItems": 1})),
    ];
    let inner = leaf.prop_recursive(4, 24, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..4);
        let named = prop::collection::btree_map("[ab]", inner.clone(), 0..3);
        prop_oneof![
            (prop::sample::select(vec!["anyOf", "oneOf", "allOf", "prefixItems"]), list)
                .prop_map(|(name, list)| json!({name: list})),
            (
                prop::sample::select(vec![
                    "not",
                    "items",
                    "contains",
                    "additionalProperties",
                    "propertyNames"
                ]),
                inner.clone()
            )
                .prop_map(|(name, schema)| json!({name: schema})),
            (named, inner.clone()).prop_map(
                |(named, rest)| json!({"properties": named, "additionalProperties": rest})
            ),
            (inner.clone(), inner.clone(), inner)
                .prop_map(|(a, b, c)| json!({"if": a, "then": b, "else": c})),
        ]
    });
    (inner.clone(), inner).prop_map(|(root, def)| {
        let mut root = if let Value::Object(root) = root {
            root
        } else {
            Map::from_iter([("allOf".to_owned(), json!([root]))])
        };
        root.insert("$defs".to_owned(), json!({"d": def}));
        Value::Object(root)
    })
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(1)),
        Just(json!(1.0)),
        Just(json!(0)),
        Just(json!("a")),
        Just(json!("bb")),
    ];
    leaf.prop_recursive(5, 20, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[ab]", inner, 0..3)
                .prop_map(|all| Value::from(Map::from_iter(all))),
        ]
    })
}

/// Whether a reference returns to itself for the same value: then the verdict is undefined.
fn leads_in_circles(schema: &Value) -> bool {
    fn in_place<'a>(schema: &'a Value, root: &'a Value, seen: &mut Vec<&'a Value>) -> bool {
        if seen.iter().any(|one| std::ptr::eq(*one, schema)) {
            return true;
        }
        seen.push(schema);
        let mut found = false;
        for name in ["not", "if", "then", "else"] {
            found |= schema.get(name).is_some_and(|next| in_place(next, root, seen));
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            let list = schema.get(name).and_then(Value::as_array);
            found |= list.into_iter().flatten().any(|next| in_place(next, root, seen));
        }
        let target = schema.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|target| root.pointer(target.trim_start_matches('#')));
        found |= target.is_some_and(|next| in_place(next, root, seen));
        seen.pop();
        found
    }
    fn every<'a>(value: &'a Value, all: &mut Vec<&'a Value>) {
        all.push(value);
        match value {
            Value::Object(members) => members.values().for_each(|member| every(member, all)),
            Value::Array(items) => items.iter().for_each(|item| every(item, all)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    every(schema, &mut all);
    all.into_iter().any(|one| in_place(one, schema, &mut Vec::new()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// If the budget suffices, the verdict equals the oracle's; a smaller budget never changes the verdict.
    #[test]
    fn generated_schemas_agree_with_the_oracle(
        schema in schemas(),
        value in values(),
        few in 0..200_u64,
    ) {
        prop_assume!(!leads_in_circles(&schema));
        let compiled = Schema::compile(&schema).expect("it is a schema");
        let expected = jsonschema::is_valid(&schema, &value);
        match compiled.check(&value, STEPS) {
            Err(Failure::OverBudget) => {}
            verdict => prop_assert_eq!(verdict.is_ok(), expected, "{} and {}", schema, value),
        }
        match compiled.check(&value, few) {
            Err(Failure::OverBudget) => {}
            verdict => prop_assert_eq!(verdict.is_ok(), expected),
        }
    }
}
