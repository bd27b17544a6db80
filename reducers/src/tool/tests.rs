//! Delays before retries of a call.

use super::*;

#[test]
fn delays_double_up_to_a_limit() {
    let waits = |retry: Retry| [0, 1, 2, 3, 4, 8, 9, 1_000].map(|n| retry.wait_ms(n));
    let unsaid = [0, 0, 1_000, 2_000, 4_000, 60_000, 60_000, 60_000];
    assert_eq!(waits(Retry::default()), unsaid);
    let retry = Retry { backoff_ms: Some(10), backoff_max_ms: Some(25), max_attempts: None };
    assert_eq!(waits(retry), [0, 0, 10, 20, 25, 25, 25, 25]);
    let max = *limits::AHEAD_MS.end();
    let longest =
        Retry { backoff_ms: Some(max), backoff_max_ms: Some(max), max_attempts: Some(1_000) };
    assert_eq!(waits(longest)[2..], [max; 6]);
    let none = Retry { backoff_ms: Some(0), ..Retry::default() };
    assert_eq!(waits(none), [0; 8]);
}

#[test]
fn omitted_annotations_are_not_assumed() {
    let effect = |text: &str| {
        let annotations = serde_json::from_str(text).expect("it is JSON");
        Effect::from_annotations(&annotations)
    };
    assert_eq!(effect(r#"{"readOnlyHint":true,"idempotentHint":false}"#), Effect::ReadOnly);
    assert_eq!(effect(r#"{"idempotentHint":true,"destructiveHint":true}"#), Effect::Idempotent);
    assert_eq!(effect(r#"{"destructiveHint":false}"#), Effect::AtMostOnce);
    assert_eq!(effect(r#"{"readOnlyHint":"true"}"#), Effect::AtMostOnce);
    assert_eq!(effect("{}"), Effect::AtMostOnce);
}
