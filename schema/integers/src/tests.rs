//! The check agrees with `serde_json` on every JSON text.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

#[track_caller]
fn found(text: &str) -> Option<(String, String)> {
    check(text).err().map(|it| (it.pointer, it.literal))
}

#[test]
fn signed_64_bit_integers_are_accepted() {
    for text in [
        "9223372036854775807",
        "-9223372036854775808",
        "0",
        "-0",
        "1e400",
        "100000000000000000000000.0",
        "1E+23",
        "100000000000000000000000e0",
        r#""100000000000000000000000""#,
        r#"{"100000000000000000000000": "\"100000000000000000000000"}"#,
        r#"["\\", 1, "\\\\\" 99999999999999999999"]"#,
        "",
        "no JSON",
    ] {
        assert_eq!(check(text), Ok(()), "{text}");
    }
}

#[test]
fn larger_integers_are_reported_with_their_position() {
    for (text, pointer, literal) in [
        ("9223372036854775808", "", "9223372036854775808"),
        ("-9223372036854775809", "", "-9223372036854775809"),
        ("18446744073709551615", "", "18446744073709551615"),
        ("[1, [2, 100000000000000000000000]]", "/1/1", "100000000000000000000000"),
        (r#"{"a": {"x": [0]}, "b": -99999999999999999999}"#, "/b", "-99999999999999999999"),
        (
            r#"{"a/b~": [{"é\"\n": 99999999999999999999}]}"#,
            "/a~1b~0/0/é\"\n",
            "99999999999999999999",
        ),
        (r#"{"\u00e9\ud83d\ude00": 99999999999999999999}"#, "/é😀", "99999999999999999999"),
        (r#"{"\ud83d": 99999999999999999999}"#, "/\\ud83d", "99999999999999999999"),
        (r#"{"": 99999999999999999999, "b": 1}"#, "/", "99999999999999999999"),
    ] {
        assert_eq!(found(text), Some((pointer.to_owned(), literal.to_owned())), "{text}");
    }
}

#[test]
fn long_numbers_are_truncated_in_errors() {
    let long = check(&"1".repeat(1_000_000)).expect_err("it is out of range").to_string();
    assert!(long.len() < 200 && long.contains("(1000000 bytes)"), "{long}");
    let short = check(r#"{"n": 99999999999999999999}"#).expect_err("it is out of range");
    let output = "the integer 99999999999999999999 at /n does not fit a signed 64-bit integer";
    assert_eq!(short.to_string(), output);
}

#[test]
fn out_of_range_integers_are_quoted() {
    assert_eq!(quoted(r#"{"a":1}"#), r#"{"a":1}"#);
    assert_eq!(
        quoted(r#"[99999999999999999999,1,{"a":-99999999999999999999}]"#),
        r#"["99999999999999999999",1,{"a":"-99999999999999999999"}]"#
    );
}

/// Collects the positions and texts of a document's out-of-range integers, in order.
fn reference(value: &Doc, at: &str, out: &mut Vec<(String, String)>) {
    match value {
        Doc::Number(literal) => {
            let is_integer = literal.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
            if is_integer && literal.parse::<i64>().is_err() {
                out.push((at.to_owned(), literal.clone()));
            }
        }
        Doc::Text(_) => {}
        Doc::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                reference(item, &format!("{at}/{index}"), out);
            }
        }
        Doc::Object(members) => {
            for (name, value) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                reference(value, &format!("{at}/{name}"), out);
            }
        }
    }
}

/// A JSON value whose numbers are texts.
#[derive(Clone, Debug)]
enum Doc {
    Number(String),
    Text(String),
    Array(Vec<Doc>),
    Object(Vec<(String, Doc)>),
}

impl Doc {
    fn write(&self, out: &mut String) {
        let quote = |text: &str| serde_json::to_string(text).expect("it is text");
        match self {
            Doc::Number(literal) => out.push_str(literal),
            Doc::Text(text) => out.push_str(&quote(text)),
            Doc::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index > 0 { " , " } else { "" });
                    item.write(out);
                }
                out.push(']');
            }
            Doc::Object(members) => {
                out.push_str("{ ");
                for (index, (name, value)) in members.iter().enumerate() {
                    out.push_str(if index > 0 { ",\n" } else { "" });
                    out.push_str(&quote(name));
                    out.push_str(" :");
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

fn docs() -> impl Strategy<Value = Doc> {
    let number = prop_oneof![
        "-?(0|[1-9][0-9]{0,25})",
        "-?922337203685477580[0-9]",
        "1844674407370955161[0-9]",
        "-?(0|[1-9][0-9]{0,22})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?",
    ];
    let text = prop_oneof![any::<String>(), "[\"\\\\0-9~/a]{0,30}"];
    let leaf = prop_oneof![number.prop_map(Doc::Number), text.clone().prop_map(Doc::Text)];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Doc::Array),
            prop::collection::vec((text.clone(), inner), 0..6).prop_map(Doc::Object),
        ]
    })
}

/// Whether parsing lost information: an out-of-range integer, or a double in place of an integer.
fn has_lost(value: &Value, written: &Doc) -> bool {
    let mut expected = Vec::new();
    reference(written, "", &mut expected);
    expected.iter().any(|(place, literal)| {
        value
            .pointer(place)
            .is_none_or(|it| it.as_i64().is_none() || it.as_i64() != literal.parse().ok())
    })
}

proptest! {
    #[test]
    fn the_check_agrees_with_the_reference(doc in docs()) {
        let mut text = String::new();
        doc.write(&mut text);
        let value: Value = serde_json::from_str(&text).expect("it is JSON");
        let mut expected = Vec::new();
        reference(&doc, "", &mut expected);
        prop_assert_eq!(found(&text), expected.first().cloned(), "{}", text);
        prop_assert_eq!(check(&text).is_err(), has_lost(&value, &doc));
        let exact = quoted(&text);
        prop_assert_eq!(check(&exact), Ok(()));
        prop_assert!(serde_json::from_str::<Value>(&exact).is_ok());
    }

    #[test]
    fn no_text_causes_a_panic(
        text in any::<String>(),
        like in "[\\[\\]{}:,\"\\\\0-9eE.ué+-]{0,80}",
    ) {
        for text in [text, like] {
            if let Err(found) = check(&text) {
                prop_assert!(text.contains(&found.literal));
            }
            prop_assert_eq!(check(&quoted(&text)), Ok(()));
        }
    }
}
