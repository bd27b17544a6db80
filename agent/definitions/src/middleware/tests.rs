//! Entries of `middleware`: names, settings, and errors that list the known ones.

use expect_test::{Expect, expect};
use serde_json::Value;

use super::Middleware;
use crate::error;

fn check_error(yaml: &str, expected: Expect) {
    let document = error::parse_yaml(yaml).expect("it is YAML");
    let why = match error::from_document::<Middleware>(&document) {
        Ok(read) => read.check().expect_err("the settings are refused"),
        Err(why) => why.to_string(),
    };
    expected.assert_eq(&why);
}

#[test]
fn middleware_is_named_alone_or_with_settings() {
    for (yaml, json) in [
        ("pii", r#"{"name":"pii"}"#),
        (
            "{ name: pii, at: [response], kinds: [email], patterns: { order: 'A[0-9]+' } }",
            r#"{"at":["response"],"kinds":["email"],"name":"pii","patterns":{"order":"A[0-9]+"}}"#,
        ),
        (
            "{ name: tool_retry, tools: [look], attempts: 2 }",
            r#"{"attempts":2,"name":"tool_retry","tools":["look"]}"#,
        ),
        (
            "{ name: tool_security, blocked_tools: [pay] }",
            r#"{"blocked_tools":["pay"],"name":"tool_security"}"#,
        ),
        (
            "{ name: model_fallback, models: [{ provider: other }] }",
            r#"{"models":[{"provider":"other"}],"name":"model_fallback"}"#,
        ),
        // A word is never read as another type.
        (
            "{ name: guardrail, at: request, deny: 7, message: no }",
            r#"{"at":"request","deny":"7","message":"no","name":"guardrail"}"#,
        ),
        ("audit", r#""audit""#),
        ("{ name: audit, settings: { level: 2 } }", r#"{"name":"audit","settings":{"level":2}}"#),
    ] {
        let read: Middleware = abide_yaml::from_str(yaml).expect("it is valid");
        let written = serde_json::to_value(&read).expect("it is JSON");
        let expected: Value = serde_json::from_str(json).expect("it is JSON");
        assert_eq!(written, expected, "{yaml}");
        let again: Middleware = serde_json::from_value(written).expect("it is valid");
        assert_eq!(again, read, "a revision has the same settings");
    }
}

#[test]
fn unknown_names_and_settings_list_the_known_ones() {
    check_error(
        "{ name: gardrail, at: request }",
        expect![
            "unknown middleware `gardrail`; available: `guardrail`, `tool_security`, `tool_retry`, `model_fallback`, `pii`, `observability`, `streaming`"
        ],
    );
    check_error(
        "{ name: pii, kind: email }",
        expect![
            "unknown setting `kind` of the middleware pii, expected one of `at`, `kinds`, `patterns`"
        ],
    );
    check_error(
        "{ name: tool_retry, models: [] }",
        expect![
            "unknown setting `models` of the middleware tool_retry, expected one of `tools`, `attempts`"
        ],
    );
    check_error(
        "{ name: pii, kinds: [mail] }",
        expect![
            "unknown value `mail`, expected one of email, phone, credit_card, iban, us_ssn, ip_address"
        ],
    );
    check_error(
        "{ name: pii, at: answer }",
        expect![
            "unknown value `answer`, expected one of `request`, `response`, `arguments`, `results`"
        ],
    );
    check_error("guardrail", expect!["a guardrail has no `at`"]);
    check_error("model_fallback", expect!["model_fallback needs models"]);
    check_error(
        "{ name: tool_retry, attempts: 0 }",
        expect!["tool_retry: attempts is 0; it is 1 to 100"],
    );
    check_error("{ name: pii, kinds: [] }", expect!["pii has neither kinds nor patterns"]);
    check_error(
        "{ name: pii, patterns: { 'a]': x } }",
        expect![[
            r#"pii: the name "a]" of a pattern is not made of lower-case letters, digits and _"#
        ]],
    );
}
