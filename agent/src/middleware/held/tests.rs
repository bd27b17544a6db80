//! The release of text while an answer arrives.

use abide_definitions::guardrail::Guardrail;
use expect_test::{Expect, expect};

use super::{HeldAnswer, last_sentence_end};
use crate::middleware::pattern_reach::PatternReach;

fn rules(yaml: &str) -> Vec<Guardrail> {
    abide_yaml::from_str(yaml).expect("the rules are valid")
}

/// Adds a text character by character. Shows what left, and what was held at the end.
fn check(deny: &str, text: &str, expected: Expect) {
    let rules =
        rules(&format!("[{{ name: guardrail, at: response, deny: {deny:?}, message: no }}]"));
    let mut held = HeldAnswer::new(&rules, None, false);
    let mut left = Vec::new();
    let mut one = [0; 4];
    for c in text.chars() {
        left.extend(held.add(c.encode_utf8(&mut one)));
    }
    expected.assert_eq(&format!("{left:?} of {:?}", held.into_rest().0));
}

#[test]
fn a_pattern_clears_sentences() {
    check("secret", "One. Two! No end", expect![[r#"["One. ", "Two! "] of "No end""#]]);
    check("secret", "One. The secret. Two. ", expect![[r#"["One. "] of "The secret. Two. ""#]]);
    check("secret", "v1.2 is e.g.so", expect![[r#"[] of "v1.2 is e.g.so""#]]);
    check("secret", "One.\nTwo", expect![[r#"["One.\n"] of "Two""#]]);
}

/// A pattern that can match across sentences holds more than one.
#[test]
fn a_match_across_sentences_does_not_leave_in_parts() {
    check(
        "secret is.{1,9}42",
        "One. The secret is. So 42. Two. Three. ",
        expect![[r#"[] of "One. The secret is. So 42. Two. Three. ""#]],
    );
    check("secret.*42", "A secret. It. Is 42.\n", expect![[r#"[] of "A secret. It. Is 42.\n""#]]);
    check(
        "secret.*42",
        "A secret. It.\nIs 42.\n",
        expect![[r#"["A secret. It.\n", "Is 42.\n"] of """#]],
    );
    check(r"(?s)secret.*42", "One.\nTwo.\n", expect![[r#"[] of "One.\nTwo.\n""#]]);
    check(
        "sk-[a-z]{4,}",
        "One sk-ab. No sk-abcd. ",
        expect![[r#"["One sk-ab. "] of "No sk-abcd. ""#]],
    );
}

#[test]
fn other_rules_hold_the_whole_answer() {
    let rules = rules(
        "[{ name: guardrail, at: response, deny: secret, message: no }, \
          { name: guardrail, at: response, schema: {}, message: no }]",
    );
    let mut held = HeldAnswer::new(&rules, None, false);
    assert_eq!(held.add("One. Two. "), None);
    assert_eq!(held.reason("hm".to_owned()), None);
    assert_eq!(held.into_rest(), ("One. Two. ".to_owned(), "hm".to_owned()));
}

#[test]
fn rules_for_requests_hold_nothing() {
    let rules = rules("[{ name: guardrail, at: request, deny: secret, message: no }]");
    let mut held = HeldAnswer::new(&rules, None, false);
    assert_eq!(held.add("On"), Some("On".to_owned()));
    assert_eq!(held.reason("hm".to_owned()), Some("hm".to_owned()));
}

#[test]
fn reach_of_patterns() {
    let reach = |pattern| PatternReach::for_pattern(pattern);
    assert_eq!(reach("secret"), Some(PatternReach::Word));
    assert_eq!(reach(r"\S+"), Some(PatternReach::Word));
    assert_eq!(reach(r"\bpass word\b"), Some(PatternReach::Bytes(9)));
    assert_eq!(reach("a.*b"), Some(PatternReach::Line));
    assert_eq!(reach("a[^b]*b"), None);
    assert_eq!(reach(r"a\s+b"), None);
    assert_eq!(reach("^$"), Some(PatternReach::Word));
}

#[test]
fn sentences_end_with_white_space_or_a_line() {
    let ends = ["", "One", "One.", "One. ", "One. T", "One\n", "\"One.\" T", "一。二", "1. "];
    let ends = ends.map(|text| &text[..last_sentence_end(text)]);
    assert_eq!(ends, ["", "", "", "One. ", "One. ", "One\n", "\"One.\" ", "一。", "1. "]);
}
