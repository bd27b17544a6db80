//! Structured answers. Regression: they were parsed but not validated. A mismatch was reported as `null`, and the
//! run succeeded.

use expect_test::expect;
use serde_json::json;

use crate::fixture::RuntimeFixture;

const FORMAT: &str = r#"
response_format:
  type: object
  properties: { total: { type: integer } }
  required: [total]
"#;

/// The run's last event, and the transcript.
async fn ends(definition: &str, script: &str) -> (String, String) {
    let fixture = RuntimeFixture::of(definition, script).await;
    let run = fixture.begin("How much?").await;
    let (_, last) = fixture.told(&run.id, 0).await;
    let transcript = fixture.transcript().await;
    fixture.close().await;
    (format!("{} {}", last.kind, last.data), transcript)
}

#[tokio::test]
async fn a_matching_answer_is_returned_as_data() {
    let script = "answers: [{ text: '{\"total\": 7}' }]";
    let (told, _) = ends(FORMAT, script).await;
    let data = json!({"assistant_data": {"content": "{\"total\": 7}", "message_id": 2,
        "structured": {"total": 7}}});
    assert_eq!(told, format!("done {data}"));
}

#[tokio::test]
async fn a_code_fence_around_an_answer_is_ignored() {
    let script = "answers: [{ text: \"```json\\n{\\\"total\\\": 7}\\n```\" }]";
    let (told, _) = ends(FORMAT, script).await;
    assert!(told.contains(r#""structured":{"total":7}"#), "{told}");
}

#[tokio::test]
async fn the_model_can_correct_an_answer_once() {
    let script = "answers: [{ text: '{\"total\": \"seven\"}' }, { text: '{\"total\": 7}' }]";
    let (told, transcript) = ends(FORMAT, script).await;
    assert!(told.starts_with("done") && told.contains(r#""structured":{"total":7}"#), "{told}");
    expect![[r#"
        user: How much? 
        assistant: {"total": "seven"} 
        system: Your answer does not match the required format: at /total: "seven" is not of type "integer". Answer again, with JSON in that format and nothing else. 
        assistant: {"total": 7} 
    "#]].assert_eq(&transcript);
}

#[tokio::test]
async fn a_second_mismatch_is_an_error() {
    let script = "repeat: true\nanswers: [{ text: Seven. }]";
    let (told, transcript) = ends(FORMAT, script).await;
    let why = "the answer does not match the response_format: it is not JSON: expected \
               value at line 1 column 1";
    assert_eq!(
        told,
        format!("error {}", json!({"code": "response_format_mismatch", "message": why}))
    );
    assert_eq!(transcript.matches("assistant: Seven.").count(), 2, "{transcript}");
}

/// The guardrail's message replaces the answer, so the schema does not apply.
#[tokio::test]
async fn a_guardrail_message_needs_no_schema() {
    let definition = format!(
        "{FORMAT}middleware: [{{ name: guardrail, at: response, deny: secret, message: No. }}]\n"
    );
    let (told, _) = ends(&definition, "answers: [{ text: a secret }]").await;
    let data = json!({"assistant_data": {"content": "No.", "message_id": 2}});
    assert_eq!(told, format!("done {data}"));
}
