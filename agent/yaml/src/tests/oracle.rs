//! Valid documents have the same values as with `serde-saphyr`, in the configuration that was used before this crate.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use expect_test::expect;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::from_str;

/// The position and the values of the other reader.
fn oracle<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        underscored_numbers_as_strings: true,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}

/// Adds a line unless both readers have the same value, or both refuse the text.
fn compare<T: DeserializeOwned + Serialize>(text: &str, differences: &mut String) {
    let shown = |value: T| serde_json::to_string(&value).expect("it is JSON");
    let theirs = oracle::<T>(text).map_or("refused".to_owned(), shown);
    let ours = from_str::<T>(text).map_or("refused".to_owned(), shown);
    if ours != theirs {
        writeln!(differences, "{text:?}: {ours}, was {theirs}").expect("a String accepts text");
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Typed {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    integer: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsigned: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boolean: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    map: Option<BTreeMap<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    word: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    One,
    Two(String),
    Three { four: i64 },
}

/// Scalars at the edges of each type.
const SCALARS: &[&str] = &[
    "",
    "~",
    "null",
    "Null",
    "NULL",
    "nULL",
    "true",
    "True",
    "TRUE",
    "tRUE",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "y",
    "n",
    "Yes",
    "0",
    "-0",
    "+0",
    "1",
    "+1",
    "-1",
    "01",
    "007",
    "0127",
    "-01",
    "08",
    "1_000",
    "1__0",
    "_1",
    "1_",
    "0x1F",
    "0X1f",
    "-0x1F",
    "0xZ",
    "0x",
    "0o17",
    "0O17",
    "0o8",
    "0b101",
    "0B2",
    "0x_1",
    "0b1_0",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999999999999999999999",
    "4294967296",
    "1.5",
    "-1.5",
    "+1.5",
    ".5",
    "5.",
    "-.5",
    "1.",
    ".",
    "1e3",
    "1E3",
    "1e+3",
    "1e-3",
    "1e",
    "e1",
    "1e400",
    "-1e400",
    "1e-400",
    ".inf",
    "-.inf",
    "+.inf",
    ".Inf",
    ".INF",
    ".iNF",
    ".nan",
    ".NaN",
    ".NAN",
    "-.nan",
    "inf",
    "infinity",
    "nan",
    "NaN",
    "1_0.5",
    "0x1.8",
    "12:30",
    "190:20:30",
    "2001-12-14",
    "a",
    "a b",
    "a_b",
    "é",
    "日本",
    "- a",
    "a: b",
    "#",
    "a #b",
    "a#b",
    "\"\"",
    "''",
    "\"null\"",
    "'~'",
    "\"true\"",
    "'5'",
    "\" 5 \"",
    "\"5\\n\"",
    "\"a\\tb\\u00e9\\x41\"",
    "'it''s'",
    "\"\\\"\"",
    "!!str 5",
    "!!str",
    "!!str null",
    "!!int 5",
    "!!int \"5\"",
    "!!int -5",
    "!!int x",
    "!!float 5",
    "!!float x",
    "!!bool true",
    "!!bool 1",
    "!!null x",
    "!!null",
    "!!null null",
    "! 5",
    "! null",
    "!local 5",
    "!local",
    "!local null",
    "!int 7",
    "!<tag:yaml.org,2002:int> 7",
    "!!binary aGVsbG8=",
    "!!binary \"aGVs\\nbG8=\"",
    "!!timestamp 2001-12-14",
    "!!seq x",
    "!!map x",
    "!!set x",
    "&a x",
    "&a",
    "[]",
    "{}",
    "[a, b]",
    "{ a: b }",
    "[a: b]",
    "[~, '', 1]",
    "!!seq [a]",
    "!!map { a: b }",
    "!local [a]",
    "{ a }",
    "{ a, b: c }",
    "{ a: }",
    "{ 'a': 1, \"b\": 2 }",
    "{ 1: a, 2: b }",
    "{ true: a }",
    "{ one: }",
    "{ two: x }",
    "{ two: }",
    "{ three: { four: 4 } }",
    "{ one: x }",
    "one",
    "\"one\"",
    "{ \"a\":b }",
    "{ \"a\":1 }",
    "[\"a\",\"b\"]",
    "{ ? a : b }",
    "<<",
    "{ <<: { a: 1 } }",
    "{ <<: ~ }",
    "{ <<: [] }",
    "{ <<: [{ a: 1 }, { a: 2, b: 3 }], b: 4 }",
    "{ \"<<\": 1 }",
    "{ !!merge <<: { a: 1 } }",
    "{ ! <<: 1 }",
    "|\n    a\n    b",
    "|-\n    a\n    b\n",
    "|+\n    a\n\n",
    ">\n    a\n    b\n\n    c",
    ">-\n    a\n    b",
    "|2\n     a",
    "a\n    b",
    "\"a\n    b\"",
    "'a\n\n    b'",
    "\n    a",
    "\n    - a\n    - b",
    "\n    a: b\n    c: d",
    "\n    - a: b\n      c: d\n    - - e\n      - f",
    "@",
    "`",
    "%",
    "\"\\ud83d\\ude00\"",
    "\"\\U0001F600\"",
    "?",
    ":",
    "-",
    "a:b",
    "http://a/b?c#d",
    "C:\\a",
];

#[test]
fn scalars_have_the_same_types() {
    let mut differences = String::new();
    for scalar in SCALARS {
        compare::<Value>(scalar, &mut differences);
        let fields =
            ["text", "integer", "unsigned", "number", "boolean", "word", "value", "texts", "map"];
        for field in fields {
            compare::<Typed>(&format!("{field}: {scalar}\n"), &mut differences);
        }
        compare::<Typed>(&format!("texts: [{scalar}]\n"), &mut differences);
        compare::<Typed>(&format!("texts:\n  - {scalar}\n"), &mut differences);
        compare::<Typed>(&format!("value:\n  - {scalar}\n  - {scalar}\n"), &mut differences);
    }
    expect![[r#"
        "text: \n": refused, was {}
        "integer: \n": refused, was {}
        "unsigned: \n": refused, was {}
        "number: \n": refused, was {}
        "boolean: \n": refused, was {}
        "word: \n": refused, was {}
        "value: \n": refused, was {}
        "texts: \n": refused, was {}
        "map: \n": refused, was {}
        "unsigned: -0\n": {"unsigned":0}, was refused
        "text: #\n": refused, was {}
        "integer: #\n": refused, was {}
        "unsigned: #\n": refused, was {}
        "number: #\n": refused, was {}
        "boolean: #\n": refused, was {}
        "word: #\n": refused, was {}
        "value: #\n": refused, was {}
        "texts: #\n": refused, was {}
        "map: #\n": refused, was {}
        "text: !local\n": refused, was {}
        "integer: !local\n": refused, was {}
        "unsigned: !local\n": refused, was {}
        "number: !local\n": refused, was {}
        "boolean: !local\n": refused, was {}
        "word: !local\n": refused, was {}
        "value: !local\n": refused, was {}
        "texts: !local\n": refused, was {}
        "map: !local\n": refused, was {}
        "text: &a\n": refused, was {}
        "integer: &a\n": refused, was {}
        "unsigned: &a\n": refused, was {}
        "number: &a\n": refused, was {}
        "boolean: &a\n": refused, was {}
        "word: &a\n": refused, was {}
        "value: &a\n": refused, was {}
        "texts: &a\n": refused, was {}
        "map: &a\n": refused, was {}
    "#]]
    .assert_eq(&differences);
}

const DOCUMENTS: &[&str] = &[
    "",
    " ",
    "\n",
    "# a\n",
    "---\n",
    "--- a\n",
    "---\na: 1\n",
    "a: 1\n...\n",
    "%YAML 1.2\n---\na: 1\n",
    "...\n",
    "---\n...\n",
    "\u{feff}a: 1\n",
    "a: 1\r\nb: 2\r\n",
    "a:\t1\n",
    "a: 1 # b\n",
    "a: &x 1\nb: *x\n",
    "a: &x [1, 2]\nb: [*x, *x]\n",
    "a: &x { c: 1 }\nb: { <<: *x, d: 2 }\n",
    "a: &x { c: 1 }\nb: { d: 2, <<: *x, c: 3 }\n",
    "&x a: *x\n",
    "a: *x\n",
    "a: &x 1\nb: &x 2\nc: *x\n",
    "a: &x { b: &y 1 }\nc: *y\n",
    "a: &x\nb: *x\n",
    "*x : 1\n",
    "a: &k b\n*k : 1\n",
    "x: &a { p: 1 }\ny: &b { <<: *a, q: 2 }\nz: { <<: [*b, { p: 3, r: 4 }] }\n",
    "x: &a { p: 1 }\nz: { <<: *a, <<: { p: 2, q: 3 } }\n",
    "a: 1\na: 2\n",
    "a: 1\nb: 2\n\"a\": 3\n",
    "- a\n- b\n",
    "- - a\n  - b\n- c\n",
    "a:\n- b\n- c\n",
    "a:\n  - b\n  -\n  - c\n",
    "{ \"a\": [1, 2, {\"b\": null}], \"c\": -1.5e3 }",
    "{\"a\":\"b\\/c\\u0041\",\"d\":[true,false,null]}",
    "a: |\n  x\n   y\n\n  z\nb: 1\n",
    "a: >\n  x\n  y\n\n  z\nb: 1\n",
    "a: b\n  c\n",
    "a: \"b\n  c\"\n",
    "? a\n: b\n",
    "? a\n",
    "a: 'b\n",
    "a: [b\n",
    "a: {b\n",
    "a: b: c\n",
    "\ta: 1\n",
    "a\n---\nb\n",
    "a: 1\n b: 2\n",
    "a: [1,]\n",
    "a: [1,,2]\n",
    "a: {b: 1,}\n",
    "[a]: b\n",
    "? [a]\n: b\n",
    "{a: b}: c\n",
    "!local\na: 1\n",
    "%TAG !e! tag:yaml.org,2002:\n---\na: !e!int \"5\"\n",
    "a: !<!local> x\n",
    "~: a\n",
    ": a\n",
    "null: a\n",
];

#[test]
fn documents_have_the_same_values() {
    let mut differences = String::new();
    for document in DOCUMENTS {
        compare::<Value>(document, &mut differences);
        compare::<BTreeMap<String, Value>>(document, &mut differences);
        compare::<Option<Value>>(document, &mut differences);
        compare::<Vec<String>>(document, &mut differences);
        compare::<Typed>(document, &mut differences);
    }
    expect![[r#"
        "---\n": refused, was null
        "---\n...\n": refused, was null
    "#]]
    .assert_eq(&differences);
}

/// Decoding is stricter than that of the oracle where a value would be lost, and more lenient where it ignores a value.
#[test]
fn what_differs() {
    let twice = "{ 1: a, '1': b }";
    assert_eq!(oracle::<Value>(twice).map(|it| it.to_string()), Ok(r#"{"1":"b"}"#.to_owned()));
    from_str::<Value>(twice).expect_err("a value would be lost");
    oracle::<Value>("{ 16: a, 0x10: b }").expect_err("they are the same number");
    let read = from_str::<Value>("{ 16: a, 0x10: b }").expect("the texts differ");
    assert_eq!(read.to_string(), r#"{"0x10":"b","16":"a"}"#);
}

fn arbitrary_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("JSON", |it| it.is_finite()).prop_map(Value::from),
        "[ -~é日]{0,8}".prop_map(Value::from),
    ];
    scalar.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z0-9 ]{0,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Lines of pieces that have a meaning in YAML.
fn arbitrary_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(SCALARS);
    let key = prop::sample::select(
        &["a", "b", "'c'", "\"d\"", "- ", "- a", "? e", "<<", "1", "&x f", "*x "][..],
    );
    let line = (0..4_usize, key, piece)
        .prop_map(|(depth, key, scalar)| format!("{}{key}: {scalar}\n", "  ".repeat(depth)));
    prop::collection::vec(line, 0..6).prop_map(|lines| lines.concat())
}

proptest! {
    #[test]
    fn json_is_yaml(value in arbitrary_value()) {
        let text = value.to_string();
        prop_assert_eq!(from_str::<Value>(&text).expect("it is valid"), value.clone());
        prop_assert_eq!(oracle::<Value>(&text).expect("it is valid"), value.clone());
        let pretty = serde_json::to_string_pretty(&value).expect("it is JSON");
        prop_assert_eq!(from_str::<Value>(&pretty).expect("it is valid"), value);
    }

    #[test]
    fn generated_documents_have_the_same_values(text in arbitrary_text()) {
        let ours = from_str::<Value>(&text);
        match oracle::<Value>(&text) {
            Ok(theirs) => prop_assert_eq!(ours.map_err(|it| it.to_string()), Ok(theirs), "{:?}", text),
            Err(why) => prop_assert!(ours.is_err(), "{:?}: {:?}, but {}", text, ours, why),
        }
    }

    #[test]
    fn no_text_panics(text in "[\\PC\n\t ]{0,40}") {
        let read = from_str::<Value>(&text);
        if let Err(error) = read {
            prop_assert!(error.position().is_some(), "{:?}: {}", text, error);
        }
    }
}
