//! Repaired arguments, and errors for the model.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::Parameters;

/// The repaired arguments and the conversions, or the error.
fn fit(schema: &Value, text: &str) -> String {
    let parameters = Parameters::compile(schema).expect("it is a schema");
    match parameters.fit_text(text) {
        Ok(fitted) if fitted.repairs.is_empty() => fitted.arguments.to_string(),
        Ok(fitted) => format!("{}\n  {}", fitted.arguments, fitted.repairs.join("\n  ")),
        Err(mismatch) => mismatch.to_string(),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "schemas are written in place")]
fn check(schema: Value, texts: &[&str], expected: Expect) {
    let output: Vec<String> =
        texts.iter().map(|text| format!("{text}\n  {}", fit(&schema, text))).collect();
    expected.assert_eq(&output.join("\n"));
}

fn object_schema(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required,
        "additionalProperties": false })
}

/// Regression: integers were stored, and passed to tools, as `1e+23`.
#[test]
fn integers_that_would_lose_digits_are_invalid() {
    check(
        object_schema(json!({"n": {"type": ["number", "object"]}}), &[]),
        &[
            r#"{"n": 100000000000000000000000}"#,
            r#"{"n": {"x": [18446744073709551615]}}"#,
            r#"{"n": "100000000000000000000000"}"#,
            r#"{"n": "{\"x\": 100000000000000000000000}"}"#,
            r#"{"n": 1e23}"#,
        ],
        expect![[r#"
            {"n": 100000000000000000000000}
              invalid arguments: the integer 100000000000000000000000 at /n does not fit a signed 64-bit integer; send it as a string: JSON integers are signed 64-bit integers. Parameters: n (number or object)
            {"n": {"x": [18446744073709551615]}}
              invalid arguments: the integer 18446744073709551615 at /n/x/0 does not fit a signed 64-bit integer; send it as a string: JSON integers are signed 64-bit integers. Parameters: n (number or object)
            {"n": "100000000000000000000000"}
              invalid arguments: at /n: "100000000000000000000000" is not of types "number", "object". Parameters: n (number or object)
            {"n": "{\"x\": 100000000000000000000000}"}
              invalid arguments: at /n: "{\"x\": 100000000000000000000000}" is not of types "number", "object". Parameters: n (number or object)
            {"n": 1e23}
              {"n":1e+23}"#]],
    );
    let schema = object_schema(json!({"n": {"type": "integer", "maximum": u64::MAX}}), &[]);
    let why = Parameters::compile(&schema).err().expect("it is refused");
    let at = "the integer 18446744073709551615 at /properties/n/maximum";
    assert!(why.starts_with(at), "{why}");
}

#[test]
fn valid_arguments_are_unchanged() {
    check(
        object_schema(
            json!({"n": {"type": ["string", "integer"]}, "text": {"type": "string"}}),
            &[],
        ),
        &[r#"{"n": "5", "text": ""}"#, r#"{"text": "{\"a\": 1}"}"#, "{}"],
        expect![[r#"
            {"n": "5", "text": ""}
              {"n":"5","text":""}
            {"text": "{\"a\": 1}"}
              {"text":"{\"a\": 1}"}
            {}
              {}"#]],
    );
}

/// Class: a tool runs with another value than the model wrote. The double of such a number is another number.
#[test]
fn a_number_that_a_double_does_not_keep_is_refused() {
    let schema = object_schema(json!({"n": {"type": "number"}}), &[]);
    let parameters = Parameters::compile(&schema).expect("it is a schema");
    for number in ["9007199254740993.0", "5.00000000000000000001", "1e-400"] {
        let refused = parameters.fit_text(&format!(r#"{{"n": {number}}}"#));
        let why = refused.expect_err("it would be another number").to_string();
        let start = format!("invalid arguments: the number {number} has more digits");
        assert!(why.starts_with(&start), "{why}");
    }
    for number in ["0.1", "1e3", "9007199254740992.0", "0.30000000000000004"] {
        parameters.fit_text(&format!(r#"{{"n": {number}}}"#)).expect("it is kept");
    }
}

/// A provider whose stream had an odd order left the arguments of a call empty, and `wipe {"place": "attic"}` ran as
/// `wipe {}`: no parameter is required, so an empty text was a valid choice. What was lost is no choice of the model.
#[test]
fn empty_arguments_are_no_choice_of_a_model() {
    check(
        object_schema(json!({"place": {"type": "string"}}), &[]),
        &["", "\"\"", "null", "{}"],
        expect![[r#"

              the arguments are empty; send {} for none. Parameters: place (string)
            ""
              the arguments are empty; send {} for none. Parameters: place (string)
            null
              invalid arguments: null is not of type "object". Parameters: place (string)
            {}
              {}"#]],
    );
    check(
        object_schema(json!({}), &[]),
        &["", "\"\""],
        expect![[r#"

          {}
        ""
          {}"#]],
    );
}

#[test]
fn values_in_strings_are_parsed() {
    check(
        object_schema(
            json!({"n": {"type": "integer"}, "x": {"type": "number"}, "on": {"type": "boolean"},
                "list": {"type": "array", "items": {"type": "integer"}},
                "deep": {"type": "object", "properties": {"n": {"type": "integer"}}},
                "none": {"type": ["integer", "null"]}}),
            &[],
        ),
        &[
            r#"{"n": "5", "x": " 1.5 ", "on": "True", "list": "[1, \"2\"]"}"#,
            r#"{"deep": "{\"n\": \"7\"}", "none": "null"}"#,
            r#""{\"n\": 1}""#,
            r#"{"n": "5.5"}"#,
            r#"{"n": "five"}"#,
            r#"{"x": "123456789012345678901234567890"}"#,
            r#"{"n": 5.5, "on": 1, "deep": "[]"}"#,
        ],
        expect![[r#"
            {"n": "5", "x": " 1.5 ", "on": "True", "list": "[1, \"2\"]"}
              {"list":[1,2],"n":5,"on":true,"x":1.5}
              /list: parsed the value in a string
              /n: parsed the value in a string
              /on: parsed the value in a string
              /x: parsed the value in a string
              /list/1: parsed the value in a string
            {"deep": "{\"n\": \"7\"}", "none": "null"}
              {"deep":{"n":7},"none":null}
              /deep: parsed the value in a string
              /none: parsed the value in a string
              /deep/n: parsed the value in a string
            "{\"n\": 1}"
              {"n":1}
              the arguments: parsed the value in a string
            {"n": "5.5"}
              invalid arguments: at /n: "5.5" is not of type "integer". Parameters: deep (object), list (array of integer), n (integer), none (integer or null), on (boolean), x (number)
            {"n": "five"}
              invalid arguments: at /n: "five" is not of type "integer". Parameters: deep (object), list (array of integer), n (integer), none (integer or null), on (boolean), x (number)
            {"x": "123456789012345678901234567890"}
              invalid arguments: at /x: "123456789012345678901234567890" is not of type "number". Parameters: deep (object), list (array of integer), n (integer), none (integer or null), on (boolean), x (number)
            {"n": 5.5, "on": 1, "deep": "[]"}
              invalid arguments: at /deep: "[]" is not of type "object"; at /n: 5.5 is not of type "integer"; at /on: 1 is not of type "boolean". Parameters: deep (object), list (array of integer), n (integer), none (integer or null), on (boolean), x (number)"#]],
    );
}

/// Regression: a filter whose alternatives refer to the whole schema. Each level of nesting was tried for each
/// alternative, so a few hundred bytes took seconds and gigabytes.
#[test]
fn arguments_that_are_too_expensive_to_validate_are_invalid() {
    let ways: Vec<Value> = ["a", "b", "c", "d"]
        .map(|name: &str| -> Value {
            json!({"properties": {"not": {"$ref": "#/$defs/f"}, name: {"type": "string"}}})
        })
        .into();
    let schema = json!({"$defs": {"f": {"oneOf": ways}}, "type": "object",
        "properties": {"f": {"$ref": "#/$defs/f"}}});
    let nested = (0..40).fold(json!({"z": 1}), |inner, _| json!({"not": inner}));
    let parameters = Parameters::compile(&schema).expect("it is a schema");
    // Both as an object and as a string that would be converted.
    for arguments in [json!({"f": nested}), Value::from(json!({"f": nested}).to_string())] {
        assert!(parameters.fit(arguments).is_err());
    }
    assert!(parameters.fit(json!({"f": {"a": 1, "b": 1, "c": 1}})).is_ok());
}

#[test]
fn an_empty_string_is_removed_only_if_invalid() {
    check(
        object_schema(
            json!({"must": {"type": "integer"}, "may": {"type": "integer"},
                "null": {"type": ["integer", "null"]}, "date": {"enum": ["today", "now"]}}),
            &["must", "null"],
        ),
        &[r#"{"must": 1, "may": "", "null": "", "date": ""}"#, r#"{"must": "", "null": 1}"#],
        expect![[r#"
            {"must": 1, "may": "", "null": "", "date": ""}
              {"must":1,"null":null}
              /date: removed an empty string
              /may: removed an empty string
              /null: replaced an empty string by null
            {"must": "", "null": 1}
              invalid arguments: at /must: "" is not of type "integer". Parameters: date (one of "today", "now"), may (integer), must (integer, required), null (integer or null, required)"#]],
    );
}

/// Class: a null for an optional parameter, which models write often. The call was refused, also for clients of MCP, and the
/// model tried again and again. A null that the schema of its place accepts is a value, and stays.
#[test]
fn a_null_is_removed_only_where_the_schema_refuses_it() {
    check(
        object_schema(
            json!({"must": {"type": "integer"}, "may": {"type": "boolean"}, "any": {},
                "null": {"type": ["integer", "null"]}, "date": {"enum": ["today", "now"]},
                "mode": {"enum": ["a", null]}, "list": {"type": "array", "items": {"type": "string"}},
                "deep": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
                "some": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "none": {"anyOf": [{"type": "string"}, {"type": "null"}]}}),
            &["must"],
        ),
        &[
            r#"{"must": 1, "may": null, "any": null, "null": null, "date": null, "mode": null}"#,
            r#"{"must": "1", "list": null, "some": null, "none": null}"#,
            r#"{"must": null}"#,
            r#"{"must": 1, "deep": {"n": null}}"#,
            r#"{"must": 1, "deep": {"n": 1, "other": null}, "list": null}"#,
            r#"{"must": 1, "list": ["a", null]}"#,
        ],
        expect![[r#"
            {"must": 1, "may": null, "any": null, "null": null, "date": null, "mode": null}
              {"any":null,"mode":null,"must":1,"null":null}
              /date: removed a null
              /may: removed a null
            {"must": "1", "list": null, "some": null, "none": null}
              {"must":1,"none":null}
              /list: removed a null
              /must: parsed the value in a string
              /some: removed a null
            {"must": null}
              invalid arguments: at /must: null is not of type "integer". Parameters: any (any), date (one of "today", "now"), deep (object), list (array of string), may (boolean), mode (one of "a", null), must (integer, required), none (string or null), null (integer or null), some (string or integer)
            {"must": 1, "deep": {"n": null}}
              invalid arguments: at /deep/n: null is not of type "integer". Parameters: any (any), date (one of "today", "now"), deep (object), list (array of string), may (boolean), mode (one of "a", null), must (integer, required), none (string or null), null (integer or null), some (string or integer)
            {"must": 1, "deep": {"n": 1, "other": null}, "list": null}
              {"deep":{"n":1,"other":null},"must":1}
              /list: removed a null
            {"must": 1, "list": ["a", null]}
              invalid arguments: at /list/1: null is not of type "string". Parameters: any (any), date (one of "today", "now"), deep (object), list (array of string), may (boolean), mode (one of "a", null), must (integer, required), none (string or null), null (integer or null), some (string or integer)"#]],
    );
    // The other alternative accepts the null.
    let one = json!({"properties": {"a": {"type": "null"}, "b": {"type": "string"}}});
    let other = json!({"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}});
    check(
        json!({"type": "object", "anyOf": [one, other]}),
        &[r#"{"a": null, "b": 5}"#, r#"{"a": null, "b": "x"}"#],
        expect![[r#"
            {"a": null, "b": 5}
              invalid arguments: {"a":null,"b":5} is valid under none of "anyOf" (at /b: 5 is not of type "string"; at /a: null is not of type "string"). Parameters: object
            {"a": null, "b": "x"}
              {"a":null,"b":"x"}"#]],
    );
}

#[test]
fn a_single_value_is_wrapped_in_an_array() {
    check(
        json!({"type": "object", "additionalProperties": false,
            "properties": {"paths": {"type": "array", "items": {"type": "string"}},
                "edits": {"type": "array", "items": {"type": "object"}},
                "ids": {"$ref": "#/$defs/ids"}},
            "$defs": {"ids": {"type": "array", "items": {"type": "integer"}}}}),
        &[
            r#"{"paths": "a.txt", "edits": {"old": "a"}, "ids": "7"}"#,
            r#"{"paths": ["a.txt"], "edits": "{\"old\": 1}"}"#,
            r#"{"paths": null}"#,
            r#"{"paths": ""}"#,
        ],
        expect![[r#"
            {"paths": "a.txt", "edits": {"old": "a"}, "ids": "7"}
              {"edits":[{"old":"a"}],"ids":[7],"paths":["a.txt"]}
              /edits: wrapped a single value in an array
              /ids: wrapped a single value in an array
              /paths: wrapped a single value in an array
              /ids/0: parsed the value in a string
            {"paths": ["a.txt"], "edits": "{\"old\": 1}"}
              {"edits":[{"old":1}],"paths":["a.txt"]}
              /edits: wrapped a single value in an array
              /edits/0: parsed the value in a string
            {"paths": null}
              {}
              /paths: removed a null
            {"paths": ""}
              {}
              /paths: removed an empty string"#]],
    );
}

#[test]
fn an_envelope_is_unwrapped_unless_it_is_a_parameter() {
    let path = json!({"path": {"type": "string"}});
    let texts = [
        r#"{"input": {"path": "a"}}"#,
        r#"{"args": "{\"path\": \"a\"}"}"#,
        r#"{"arguments": {"path": "a"}, "path": "b"}"#,
        r#"{"input": {"input": {"path": "a"}}}"#,
        r#"{"input": "a"}"#,
    ];
    check(
        object_schema(path, &["path"]),
        &texts,
        expect![[r#"
            {"input": {"path": "a"}}
              {"path":"a"}
              unwrapped the arguments from "input"
            {"args": "{\"path\": \"a\"}"}
              {"path":"a"}
              unwrapped the arguments from "args"
            {"arguments": {"path": "a"}, "path": "b"}
              invalid arguments: Additional properties are not allowed ('arguments' was unexpected). Parameters: path (string, required)
            {"input": {"input": {"path": "a"}}}
              invalid arguments: "path" is a required property; Additional properties are not allowed ('input' was unexpected). Parameters: path (string, required)
            {"input": "a"}
              invalid arguments: "path" is a required property; Additional properties are not allowed ('input' was unexpected). Parameters: path (string, required)"#]],
    );
    let schema =
        object_schema(json!({"input": {"type": "object"}, "path": {"type": "string"}}), &["path"]);
    check(
        schema,
        &texts[..1],
        expect![[r#"
        {"input": {"path": "a"}}
          invalid arguments: "path" is a required property. Parameters: input (object), path (string, required)"#]],
    );
}

#[test]
fn alternatives_are_repaired() {
    check(
        object_schema(
            json!({"when": {"anyOf": [{"type": "object", "properties": {"day": {"type": "integer"}},
                "required": ["day"], "additionalProperties": false}, {"type": "null"}]}}),
            &["when"],
        ),
        &[
            r#"{"when": "{\"day\": \"3\"}"}"#,
            r#"{"when": ""}"#,
            r#"{"when": "null"}"#,
            r#"{"when": "tomorrow"}"#,
        ],
        expect![[r#"
            {"when": "{\"day\": \"3\"}"}
              {"when":{"day":3}}
              /when: parsed the value in a string
              /when/day: parsed the value in a string
            {"when": ""}
              {"when":null}
              /when: replaced an empty string by null
            {"when": "null"}
              {"when":null}
              /when: parsed the value in a string
            {"when": "tomorrow"}
              invalid arguments: at /when: "tomorrow" is valid under none of "anyOf" (not of type "object"; not of type "null"). Parameters: when (object or null, required)"#]],
    );
}

#[test]
fn errors_list_all_parameters() {
    check(
        object_schema(
            json!({"path": {"type": "string"}, "mode": {"enum": ["r", "w"]},
                "lines": {"type": "array", "items": {"type": "integer"}},
                "at": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}),
            &["path"],
        ),
        &[
            r#"{"mode": "x", "lines": [1, "two"], "at": "noon", "extra": 1}"#,
            r#"{"path": "a"#,
            "[]",
        ],
        expect![[r#"
            {"mode": "x", "lines": [1, "two"], "at": "noon", "extra": 1}
              invalid arguments: "path" is a required property; at /at: "noon" is valid under none of "anyOf" (not of type "integer"; not of type "null"); at /lines/1: "two" is not of type "integer"; at /mode: "x" is not one of "r", "w"; Additional properties are not allowed ('extra' was unexpected). Parameters: at (integer or null), lines (array of integer), mode (one of "r", "w"), path (string, required)
            {"path": "a
              the arguments are not JSON: EOF while parsing a string at line 1 column 11. Parameters: at (integer or null), lines (array of integer), mode (one of "r", "w"), path (string, required)
            []
              invalid arguments: [] is not of type "object". Parameters: at (integer or null), lines (array of integer), mode (one of "r", "w"), path (string, required)"#]],
    );
    let long = format!(r#"{{"path": {:?}}}"#, "y".repeat(10_000));
    let output = fit(&object_schema(json!({"path": {"type": "integer"}}), &[]), &long);
    assert!(output.len() < 500, "{} bytes quote the whole value", output.len());
}

/// A tool that `register_tool` refuses is refused when it is added.
#[test]
fn unsupported_schemas_are_refused() {
    let why = |schema: Value| Parameters::compile(&object_schema(json!({"it": schema}), &[])).err();
    let output = [
        why(json!({"pattern": "^(?!con$)[a-z]+$"})),
        why(json!({"type": "objekt"})),
        why(json!({"$ref": "other.json"})),
        why(json!({"$id": "other.json"})),
    ];
    expect![[r#"
        lookaround in the pattern "^(?!con$)[a-z]+$" is not supported
        type must be the name of a type, not "objekt"
        unknown reference "other.json"
        $id in a subschema is not supported"#]]
    .assert_eq(&output.map(Option::unwrap_or_default).join("\n"));
}

#[test]
fn formats_are_not_checked() {
    check(
        object_schema(json!({"at": {"type": "string", "format": "date-time"}}), &[]),
        &[r#"{"at": "tomorrow"}"#],
        expect![[r#"
            {"at": "tomorrow"}
              {"at":"tomorrow"}"#]],
    );
}

#[test]
fn members_that_no_alternative_declares_are_invalid() {
    check(
        json!({"type": "object", "unevaluatedProperties": false, "oneOf": [
            {"properties": {"path": {"type": "string"}}, "required": ["path"]},
            {"properties": {"lines": {"type": "array"}}, "required": ["lines"]}]}),
        &[r#"{"path": "a"}"#, r#"{"lines": 1}"#, r#"{"path": "a", "lime": 1}"#, r#"{"lime": 1}"#],
        expect![[r#"
            {"path": "a"}
              {"path":"a"}
            {"lines": 1}
              {"lines":[1]}
              /lines: wrapped a single value in an array
            {"path": "a", "lime": 1}
              invalid arguments: Additional properties are not allowed ('lime' was unexpected). Parameters: object
            {"lime": 1}
              invalid arguments: {"lime":1} is valid under none of "oneOf" ("path" is a required property; "lines" is a required property). Parameters: object"#]],
    );
}

#[test]
fn errors_of_alternatives_are_listed() {
    let path = json!({"type": "object", "properties": {"path": {"type": "string"}},
        "required": ["path"]});
    check(
        object_schema(
            json!({"one": {"anyOf": [path, {"enum": ["a", "b"]}, {"type": ["integer", "null"]}]},
                "many": {"oneOf": vec![json!({"type": "null"}); 9]}}),
            &[],
        ),
        &[r#"{"one": {"path": true}}"#, r#"{"one": {}}"#, r#"{"one": "c", "many": 1}"#],
        expect![[r#"
            {"one": {"path": true}}
              invalid arguments: at /one: {"path":true} is valid under none of "anyOf" (at /one/path: true is not of type "string"; {"path":true} is not one of "a", "b"; not of type "integer" or "null"). Parameters: many (null), one (object or one of "a", "b" or integer or null)
            {"one": {}}
              invalid arguments: at /one: {} is valid under none of "anyOf" ("path" is a required property; {} is not one of "a", "b"; not of type "integer" or "null"). Parameters: many (null), one (object or one of "a", "b" or integer or null)
            {"one": "c", "many": 1}
              invalid arguments: at /many: 1 is valid under none of "oneOf" (not of type "null"; not of type "null"; not of type "null"; not of type "null"; 5 more); at /one: "c" is valid under none of "anyOf" (not of type "object"; "c" is not one of "a", "b"; not of type "integer" or "null"). Parameters: many (null), one (object or one of "a", "b" or integer or null)"#]],
    );
}

/// A schema with few types, and values that match or not.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "string"})),
        Just(json!({"type": "integer"})),
        Just(json!({"type": "number"})),
        Just(json!({"type": "boolean"})),
        Just(json!({"type": ["integer", "null"]})),
        Just(json!({"type": "string", "minLength": 1})),
        Just(json!({"enum": ["a", "b", 1]})),
        Just(json!({})),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| json!({"anyOf": [a, b]})),
            (inner.clone(), inner, any::<bool>()).prop_map(|(a, b, closed)| {
                json!({"type": "object", "properties": {"a": a, "input": b},
                    "required": ["a"], "additionalProperties": !closed})
            }),
        ]
    })
}

fn values() -> impl Strategy<Value = Value> {
    let texts = ["", "a", "5", "-1", "True", "false", "null", "1e2", " 7", "[1]", "{\"a\":\"1\"}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..3_i64).prop_map(Value::from),
        Just(json!(1.5)),
        prop::sample::select(texts.to_vec()).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let names = prop::sample::select(vec!["a", "b", "input", "args"]).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(names, inner.clone(), 0..3)
                .prop_map(|members| Value::from(Map::from_iter(members))),
            inner.prop_map(|value| Value::from(value.to_string())),
        ]
    })
}

/// All scalars and keys in a value, including those in JSON strings.
fn scalars_and_keys(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| scalars_and_keys(item, all)),
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            all.push(format!("key {name}"));
            scalars_and_keys(value, all);
        }),
        Value::String(text) => {
            all.push(value.to_string());
            // Both the string itself and its parsed form, also with `True` in Python's spelling: `["True"]` has a
            // string, not a boolean.
            for text in [text.clone(), text.to_lowercase()] {
                let held = serde_json::from_str(&text);
                held.iter().for_each(|value| scalars_and_keys(value, all));
            }
        }
        scalar => all.push(scalar.to_string()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_repair_changes_no_valid_value_and_invents_nothing(
        schema in schemas(),
        value in values(),
    ) {
        let parameters = Parameters::compile(&schema).expect("it is a schema");
        let fits = jsonschema::is_valid(&schema, &value);
        match parameters.fit(value.clone()) {
            Ok(fitted) if fits => {
                prop_assert_eq!(&fitted.arguments, &value);
                prop_assert!(fitted.repairs.is_empty());
            }
            Ok(fitted) => {
                prop_assert!(jsonschema::is_valid(&schema, &fitted.arguments));
                prop_assert!(!fitted.repairs.is_empty());
                let (mut before, mut after) = (Vec::new(), Vec::new());
                scalars_and_keys(&value, &mut before);
                scalars_and_keys(&fitted.arguments, &mut after);
                for one in after {
                    let empty = one == "null" && before.contains(&"\"\"".to_owned());
                    prop_assert!(before.contains(&one) || empty, "{one} is not in {value}");
                }
            }
            Err(_) => prop_assert!(!fits),
        }
    }
}

/// Regression: deeper arguments were recorded within events that nothing could read again.
#[test]
fn arguments_that_are_too_deep_are_an_error_for_the_model() {
    let schema = object_schema(json!({"z": {}}), &[]);
    for levels in 1..300 {
        let text = format!(r#"{{"z":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        let fitted = fit(&schema, &text);
        match levels {
            1..=63 => assert_eq!(fitted, text),
            64..=126 => assert!(fitted.contains("nested more than 64 levels deep"), "{fitted}"),
            _ => assert!(fitted.contains("the arguments are not JSON"), "{fitted}"),
        }
    }
}
