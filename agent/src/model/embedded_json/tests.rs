//! JSON in texts of models.

use super::*;

/// The values of a text, one per line.
fn found(text: &str) -> String {
    find(text).iter().map(|json| format!("{}\n", json.value)).collect()
}

/// Regression: only a text that was JSON as a whole, or in one fence, was read. The class: an answer in another wrapping.
#[test]
fn values_are_found_in_prose_and_fences() {
    for (text, values) in [
        (r#"{"n": 1}"#, "{\"n\":1}\n"),
        ("  7 ", "7\n"),
        ("```json\n{\"n\": 1}\n```", "{\"n\":1}\n"),
        ("```\n\"so\"\n```", "\"so\"\n"),
        ("```json {\"n\": 1}```", "{\"n\":1}\n"),
        ("Sure:\r\n\r\n```JSON\r\n{\"n\": 1}\r\n```\r\nDone.", "{\"n\":1}\n"),
        ("First\n```json\n{\"n\": 1}\n```\nthen\n```json\n[2]\n```", "{\"n\":1}\n[2]\n"),
        ("The total is\n```\n7\n```\nas you see.", "7\n"),
        (r#"It is {"a": {"b": "}] \" {"}} and not {x} or [y]."#, "{\"a\":{\"b\":\"}] \\\" {\"}}\n"),
        (r#"<think>{"n": 0}</think>{"n": 1}{"n": 2}"#, "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n"),
        (r#"Use `{"n": 1}`, see [1]."#, "{\"n\":1}\n[1]\n"),
        (r#"{"n": 1} is what I found. ```"#, "{\"n\":1}\n"),
        ("{\"n\": 1", ""),
        ("```json\n7 apples\n```", ""),
        ("Seven.", ""),
        ("", ""),
    ] {
        assert_eq!(found(text), values, "{text}");
    }
}

/// The text is the model's, so it can be hostile.
#[test]
fn brackets_that_never_close_are_read_in_linear_time() {
    for opening in ["{\"a\":", "[", "[1,", "[\"[", "{", "`", "```\n", "```\n[1,"] {
        assert_eq!(find(&opening.repeat(20_000)), Vec::new(), "{opening}");
    }
}
