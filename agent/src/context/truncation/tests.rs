//! The model's view of long results.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::json;

use super::{TruncatedResult, Truncation};

fn check(max_chars: usize, text: &str, expected: Expect) {
    let TruncatedResult { text, left_out } =
        Truncation { max_chars, max_tokens: None }.apply(text, "c1");
    expected.assert_eq(&format!("{text}\n({left_out} omitted)"));
}

#[test]
fn short_results_are_unchanged() {
    check(
        10,
        "0123456789",
        expect![[r#"
        0123456789
        (0 omitted)"#]],
    );
    check(
        10,
        "ÄÖÜäöüßéèê",
        expect![[r#"
        ÄÖÜäöüßéèê
        (0 omitted)"#]],
    );
}

#[test]
fn the_beginning_and_the_end_are_shown() {
    let lines: String = (1..60).map(|n| format!("line {n}\n")).collect();
    check(
        130,
        &lines,
        expect![[r#"
            line 1
            line 2
            line 3
            line 4
            line 5
            l
            [… 410 bytes of the result of call c1 were omitted …]

            line 58
            line 59

            (410 omitted)"#]],
    );
}

#[test]
fn json_is_cut_between_values() {
    let rows: Vec<_> = (0..30).map(|n| json!({"id": n, "name": format!("row, {n}")})).collect();
    check(
        240,
        &json!(rows).to_string(),
        expect![[r#"
            [{"id":0,"name":"row, 0"},{"id":1,"name":"row, 1"},{"id":2,"name":"row, 2"},{"id":3,"name":"row, 3"},{"id":4,
            [… 628 bytes of the result of call c1 were omitted …]
            {"id":28,"name":"row, 28"},{"id":29,"name":"row, 29"}]
            (628 omitted)"#]],
    );
}

#[test]
fn a_cut_inside_a_string_is_marked() {
    let text = json!({"ok": true, "body": "\"\\\u{1}".repeat(60)}).to_string();
    check(
        200,
        &text,
        expect![[r#"
        {"body":"\"\\\u0001\"\\\u0001\"\\\u0001\"\\\u0001\"\\\u0001\"\\\u0001\"\\\u0001\"
        [… 500 bytes of the result of call c1 were omitted, from inside a string …]
        \\\u0001\"\\\u0001\"\\\u0001","ok":true}
        (500 omitted)"#]],
    );
}

#[test]
fn the_token_limit_applies_too() {
    let cut = Truncation { max_chars: 1_000, max_tokens: Some(50) };
    assert!(cut.apply(&"x".repeat(900), "c1").text.chars().count() <= 200);
    assert_eq!(cut.apply(&"x".repeat(200), "c1").left_out, 0);
}

proptest! {
    #[test]
    fn the_shown_text_is_within_the_limits_and_adds_up(
        text in "([a-zäß🙂\"\\\\{,\\[\n]|\\PC){0,400}",
        as_json in any::<bool>(),
        max_chars in 120..300_usize,
    ) {
        let text = if as_json { json!({"text": text, "n": [1, 2]}).to_string() } else { text };
        let shown = Truncation { max_chars, max_tokens: None }.apply(&text, "call-1");
        prop_assert!(shown.text.chars().count() <= max_chars.max(1));
        if shown.left_out == 0 {
            prop_assert_eq!(&shown.text, &text);
        } else {
            let (head, rest) = shown.text.split_once("\n[… ").expect("there is a marker");
            let (_, tail) = rest.split_once(" …]\n").expect("there is a marker");
            prop_assert!(text.starts_with(head) && text.ends_with(tail));
            prop_assert_eq!(head.len() + shown.left_out + tail.len(), text.len());
        }
    }
}
