//! Redaction of whole texts and of parts.

use abide_definitions::middleware::{Middleware, Pii, PiiAt};
use serde_json::json;

use super::Redactor;
use crate::middleware::held::HeldAnswer;

fn pii(yaml: &str) -> Pii {
    let read: Middleware = abide_yaml::from_str(yaml).expect("the settings are valid");
    read.pii().expect("it is pii").clone()
}

const ALL: &str = "{ name: pii, kinds: [email, phone, credit_card, iban, us_ssn, ip_address], \
                   patterns: { order: 'A-[0-9]+' } }";

const TEXTS: [(&str, &str); 17] = [
    ("Write to bob@example.com.", "Write to [email]."),
    ("Schreib an jörg.groß+x@bücher.example, bitte. Ja.", "Schreib an [email], bitte. Ja."),
    ("Call +49 30 123456-78 now. Yes.", "Call [phone] now. Yes."),
    ("Call (555) 010-9999. Or 555-010-9999!", "Call [phone]. Or [phone]!"),
    ("Card: 4111 1111 1111 1111. Next.", "Card: [credit_card]. Next."),
    ("Card 4111-1111-1111-1111 and 4111111111111111", "Card [credit_card] and [credit_card]"),
    // Digits in front do not hide a card.
    ("1 4111 1111 1111 1111 2", "[credit_card]"),
    ("Not a card: 4111 1111 1111 1112.", "Not a card: 4111 1111 1111 1112."),
    ("IBAN DE89 3704 0044 0532 0130 00. OK", "IBAN [iban]. OK"),
    ("DE89370400440532013000", "[iban]"),
    ("SSN 078-05-1120", "SSN [us_ssn]"),
    (
        "From 192.168.0.1 or fe80::1:2. At 10:30:15.",
        "From [ip_address] or [ip_address]. At 10:30:15.",
    ),
    ("Order A-17. And A-18", "Order [order]. And [order]"),
    // Matches that overlap are one.
    ("A-1@example.com", "[email]"),
    ("On 2024-01-15 at 10:30, version 1.2.3", "On 2024-01-15 at 10:30, version 1.2.3"),
    ("[email] stays", "[email] stays"),
    ("Nothing here.", "Nothing here."),
];

#[test]
fn personal_data_is_replaced_with_its_kind() {
    let pii = pii(ALL);
    let redactor = Redactor::for_place([&pii], PiiAt::Response).expect("there are rules");
    for (text, expected) in TEXTS {
        assert_eq!(redactor.redact_text(text), expected, "{text}");
        assert_eq!(redactor.redact_text(expected), expected, "it is redacted once: {text}");
    }
}

/// An answer that arrives in chunks of any size is redacted like the whole, and no part of a match leaves.
#[test]
fn chunks_are_redacted_like_the_whole() {
    let pii = pii(ALL);
    let whole: String = TEXTS.iter().map(|(text, _)| format!("{text} Then. \n")).collect();
    let redactor = || Redactor::for_place([&pii], PiiAt::Response);
    let expected = redactor().expect("there are rules").redact_text(&whole);
    for size in [1, 2, 7, 31, 1_000] {
        let mut held = HeldAnswer::new([], redactor(), false);
        let chars: Vec<char> = whole.chars().collect();
        let chunks = chars.chunks(size).map(|chunk| chunk.iter().collect::<String>());
        let left: Vec<String> = chunks.filter_map(|chunk| held.add(&chunk)).collect();
        assert!(size > 31 || left.len() > 10, "sentences leave before the end: {left:?}");
        assert_eq!(held.released(), left.concat());
        assert_eq!(left.concat() + &held.into_rest().0, expected, "chunks of {size}");
    }
}

/// A pattern whose matches have no known end holds the answer to its end.
#[test]
fn a_pattern_of_any_length_holds_the_answer() {
    let pii = pii("{ name: pii, kinds: [], patterns: { secret: 'BEGIN[^#]*END' } }");
    let mut held = HeldAnswer::new([], Redactor::for_place([&pii], PiiAt::Response), false);
    assert_eq!(held.add("One. BEGIN two. Three. \nFour. "), None);
    assert_eq!(held.add("END. Five."), None);
    assert_eq!(held.into_rest().0, "One. [secret]. Five.");
}

/// An escape does not hide a text, and neither does a number or the name of a member.
#[test]
fn json_is_redacted_value_by_value() {
    let pii = pii("pii");
    let redactor = Redactor::for_place([&pii], PiiAt::Arguments).expect("there are rules");
    let text = r#"{"to":"bob\u0040example.com","bob@example.com":[4111111111111111,7,true,null]}"#;
    let expected = json!({"to": "[email]", "[email]": ["[credit_card]", 7, true, null]});
    assert_eq!(redactor.redact_json(text), expected.to_string());
    let same = r#"{"b": 1,  "a": "x"}"#;
    assert_eq!(redactor.redact_json(same), same, "what has no data keeps its form");
    assert_eq!(redactor.redact_json("{ bob@example.com"), "{ [email]", "it is not JSON");
}

#[test]
fn each_place_has_its_own_rules() {
    let one = pii("{ name: pii, at: request }");
    let two = pii("{ name: pii, at: [results] }");
    for (place, is_redacted) in
        [(PiiAt::Request, true), (PiiAt::Results, true), (PiiAt::Response, false)]
    {
        assert_eq!(Redactor::for_place([&one, &two], place).is_some(), is_redacted, "{place:?}");
    }
}
