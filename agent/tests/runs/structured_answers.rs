//! Structured answers. Regression: they were parsed but not validated. A mismatch was reported as `null`, and the
//! run succeeded.

use abide_models::{ModelProvider, ModelRequest, ModelStream, Script};
use expect_test::expect;
use serde_json::json;

use crate::fixture::{FixtureOptions, RuntimeFixture, answering};

const FORMAT: &str = r#"
response_format:
  type: object
  properties: { total: { type: integer } }
  required: [total]
"#;

/// A model whose provider enforces the schema. Its answers are scripted, so they can be wrong nevertheless.
struct NativeModel(Script);

impl ModelProvider for NativeModel {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        assert!(request.tools.iter().all(|tool| tool.name != "response"), "{request:?}");
        assert!(request.response_schema.is_some(), "{request:?}");
        self.0.stream(request)
    }
}

/// The run's last event, and the transcript, with a provider that enforces the schema.
async fn ends(definition: &str, script: &str) -> (String, String) {
    let models = answering(NativeModel(Script::from_text(script).expect("the script is valid")));
    let plan = FixtureOptions { models, ..FixtureOptions::new(definition, "answers: []") };
    outcome(plan.open().await).await
}

/// The run's last event, and the transcript, with a provider that does not enforce the schema.
async fn ends_by_tool(definition: &str, script: &str) -> (String, String) {
    outcome(RuntimeFixture::start(definition, script).await).await
}

async fn outcome(fixture: RuntimeFixture) -> (String, String) {
    let run = fixture.begin("How much?").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    let transcript = fixture.transcript().await;
    fixture.close().await;
    (format!("{} {}", last.kind, last.data), transcript)
}

#[tokio::test]
async fn a_matching_answer_is_returned_as_data() {
    let script = "answers: [{ text: '{\"total\": 7}' }]";
    let (output, _) = ends(FORMAT, script).await;
    let data = json!({"assistant_data": {"content": "{\"total\": 7}", "message_id": 2,
        "structured": {"total": 7}}});
    assert_eq!(output, format!("done {data}"));
}

#[tokio::test]
async fn a_code_fence_around_an_answer_is_ignored() {
    let script = "answers: [{ text: \"```json\\n{\\\"total\\\": 7}\\n```\" }]";
    let (output, _) = ends(FORMAT, script).await;
    assert!(output.contains(r#""structured":{"total":7}"#), "{output}");
}

/// Regression: prose around the JSON was a mismatch. The class: an answer that arrives in another wrapping.
#[tokio::test]
async fn the_last_matching_object_in_prose_is_the_answer() {
    let text = "First {\"total\": 6} [1].\\n```json\\n{\"total\": 7}\\n```\\nNot {\"total\": \"8\"}, {x} or {}.";
    let script = format!("answers: [{{ text: \"{}\" }}]", text.replace('"', "\\\""));
    for (output, _) in [ends(FORMAT, &script).await, ends_by_tool(FORMAT, &script).await] {
        assert!(output.contains(r#""structured":{"total":7}"#), "{output}");
    }
}

/// The error is about an object of the text, and an empty answer can be corrected too.
#[tokio::test]
async fn a_mismatch_in_prose_names_its_reason() {
    for (text, why) in [
        (
            "It is {\\\"total\\\": \\\"7\\\"}, see [1].",
            "at /total: \"7\" is not of type \"integer\"",
        ),
        ("", "it is empty"),
    ] {
        let script = format!("repeat: true\nanswers: [{{ text: \"{text}\" }}]");
        let (output, transcript) = ends(FORMAT, &script).await;
        let why = format!("the answer does not match the response_format: {why}");
        let error = json!({"code": "response_format_mismatch", "message": why});
        assert_eq!(output, format!("error {error}"));
        assert_eq!(transcript.matches("system: Your answer does not match").count(), 1);
    }
}

#[tokio::test]
async fn the_model_can_correct_an_answer_once() {
    let script = "answers: [{ text: '{\"total\": \"seven\"}' }, { text: '{\"total\": 7}' }]";
    let (output, transcript) = ends(FORMAT, script).await;
    assert!(
        output.starts_with("done") && output.contains(r#""structured":{"total":7}"#),
        "{output}"
    );
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
    let (output, transcript) = ends(FORMAT, script).await;
    let why = "the answer does not match the response_format: it is not JSON: expected \
               value at line 1 column 1";
    assert_eq!(
        output,
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
    let (output, _) = ends(&definition, "answers: [{ text: a secret }]").await;
    let data = json!({"assistant_data": {"content": "No.", "message_id": 2}});
    assert_eq!(output, format!("done {data}"));
}

/// The call has neither events nor rows: its arguments are the answer.
#[tokio::test]
async fn the_arguments_of_the_tool_response_are_the_answer() {
    let script = "answers: [{ text: Here it is., calls: [{ name: response, arguments: \
                  { total: 7 } }, { name: look, arguments: { order: A } }] }]";
    let fixture = RuntimeFixture::start(&format!("tools: [look]\n{FORMAT}"), script).await;
    let run = fixture.begin("How much?").await;
    let (output, _) = fixture.output(&run.id, 0).await;
    expect![[r#"
        1 status {"status":"thinking"}
        1 says "Here it is.{\"total\":7}"
        1 usage {"cached_tokens":null,"completeness":"unavailable","estimated_cost":null,"input_tokens":null,"model":"scripted","output_tokens":null,"provider":"script","reasoning_tokens":null}
        1 status {"status":"idle"}
        1 done {"assistant_data":{"content":"{\"total\":7}","message_id":2,"structured":{"total":7}}}
    "#]].assert_eq(&output);
    assert_eq!(fixture.transcript().await, "user: How much? \nassistant: {\"total\":7} \n");
    let sql = "SELECT (SELECT count(*) FROM tool_calls), tool_calls FROM runs";
    let calls: Vec<(i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(calls, [(0, 0)]);
    fixture.close().await;
}

#[tokio::test]
async fn an_answer_as_text_counts_if_it_matches() {
    let (output, _) = ends_by_tool(FORMAT, "answers: [{ text: '{\"total\": 7}' }]").await;
    assert!(output.contains(r#""structured":{"total":7}"#), "{output}");
}

#[tokio::test]
async fn wrong_arguments_of_the_tool_response_are_reported_to_the_model() {
    let script = "answers: [{ calls: [{ name: response, arguments: { total: x } }, \
                  { name: response, arguments: { total: 1 } }] }, { text: Seven. }, \
                  { calls: [{ name: response, arguments: { total: 7 } }] }]";
    let (output, transcript) = ends_by_tool(FORMAT, script).await;
    assert!(output.contains(r#""structured":{"total":7}"#), "{output}");
    expect![[r#"
        user: How much? 
        assistant:  "r1~1.1" "response", "r1~1.2" "response"
        tool [r1~1.1]: response: invalid arguments: at /total: "x" is not of type "integer". Parameters: total (integer, required) 
        tool [r1~1.2]: ignored: call response once 
        assistant: Seven. 
        system: Your answer does not match the required format: it is not JSON: expected value at line 1 column 1. Answer again, with JSON in that format and nothing else. 
        assistant: {"total":7} 
    "#]].assert_eq(&transcript);
}

#[tokio::test]
async fn a_model_that_never_matches_ends_with_an_error() {
    for wrong in ["calls: [{ name: response, arguments: {} }]", "text: Seven."] {
        let script = format!("repeat: true\nanswers: [{{ {wrong} }}]");
        let (output, transcript) = ends_by_tool(FORMAT, &script).await;
        assert!(output.contains("response_format_mismatch"), "{output}");
        assert_eq!(transcript.matches("assistant:").count(), 4, "{transcript}");
    }
}

#[tokio::test]
async fn an_answer_that_is_not_an_object_is_a_member_of_the_arguments() {
    let format = "response_format: { type: array, items: { type: integer } }\n";
    let script = "answers: [{ calls: [{ name: response, arguments: { value: [7, 8] } }] }]";
    let (output, _) = ends_by_tool(format, script).await;
    assert!(
        output.contains(r#""content":"[7,8]""#) && output.contains(r#""structured":[7,8]"#),
        "{output}"
    );
}

/// The limit of tool calls is no limit for the answer.
#[tokio::test]
async fn the_tool_response_remains_beyond_the_limit_of_tool_calls() {
    let definition = format!("tools: [look]\nlimits: {{ tool_calls: 1 }}\n{FORMAT}");
    let script = "answers: [{ calls: [{ name: look, arguments: { order: A } }] }, \
                  { calls: [{ name: response, arguments: { total: 7 } }] }]";
    let (output, _) = ends_by_tool(&definition, script).await;
    assert!(output.contains(r#""structured":{"total":7}"#), "{output}");
}

/// A model is not asked for its answer while a call waits for an approval.
#[tokio::test]
async fn a_paused_run_is_not_asked_for_its_answer() {
    let definition = format!("tools: [pay]\ninterrupt_on: {{ pay: true }}\n{FORMAT}");
    let script = "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }]";
    let (output, transcript) = ends_by_tool(&definition, script).await;
    assert!(output.starts_with("interrupt"), "{output}");
    assert_eq!(transcript.matches("assistant:").count(), 1, "{transcript}");
}

#[tokio::test]
async fn guardrails_apply_to_the_arguments_of_the_tool_response() {
    let definition = format!(
        "{FORMAT}middleware: [{{ name: guardrail, at: response, deny: '7', message: No. }}]\n"
    );
    let script = "answers: [{ calls: [{ name: response, arguments: { total: 7 } }] }]";
    let (output, transcript) = ends_by_tool(&definition, script).await;
    assert!(output.contains(r#""content":"No.""#), "{output}");
    assert!(!transcript.contains('7'), "{transcript}");
}
