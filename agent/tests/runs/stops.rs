//! How runs end whose model stops before its answer is complete.

use abide_client::rows::Run;

use crate::fixture::RuntimeFixture;

/// Status, code and messages of a run with these answers.
async fn ends(script: &str) -> (String, Option<String>, String) {
    let fixture = RuntimeFixture::start("tools: [pay]\n", script).await;
    let run = fixture.begin("Go on.").await;
    fixture.output(&run.id, 0).await;
    let runs: Vec<Run> =
        fixture.abide.sql("SELECT * FROM runs").fetch().await.expect("the query succeeds");
    assert_eq!(fixture.ledger(), [""; 0], "no call runs");
    let transcript = fixture.transcript().await;
    fixture.close().await;
    let run = runs.into_iter().next().expect("there is a run");
    (run.status.as_str().to_owned(), run.error_code, transcript)
}

/// Regression: all of them ended as `done`, some with an empty text.
#[tokio::test]
async fn an_incomplete_answer_is_not_an_answer() {
    for (answer, code, transcript) in [
        ("text: Half, stop: length", "answer_truncated", "assistant: Half \n"),
        ("stop: length", "answer_truncated", ""),
        ("text: No., stop: filtered", "refused", "assistant: No. \n"),
        ("stop: filtered", "refused", ""),
        ("stop: { unknown_tool: web_search_call }", "tool_not_offered", ""),
        ("stop: { other: MALFORMED_FUNCTION_CALL }", "no_answer", ""),
        ("text: ''", "no_answer", ""),
        ("stop: end, usage: { input_tokens: 5, output_tokens: 0 }", "no_answer", ""),
        ("text: ' ', usage: { input_tokens: 5, output_tokens: 9 }", "no_answer", "assistant:   \n"),
        ("reasoning: Hm.", "no_answer", ""),
        ("calls: [{ name: pay, arguments: { order: A } }], stop: length", "answer_truncated", ""),
    ] {
        let (status, found, output) = ends(&format!("answers: [{{ {answer} }}]")).await;
        assert_eq!((status.as_str(), found.as_deref()), ("failed", Some(code)), "{answer}");
        assert_eq!(output, format!("user: Go on. \n{transcript}"), "{answer}");
    }
}

/// Regression: an empty answer after the results of tools was a success. The class: success although something is
/// missing.
#[tokio::test]
async fn an_empty_answer_is_an_answer_only_if_the_definition_says_so() {
    let script =
        "answers: [{ calls: [{ name: look, arguments: { order: A } }] }, { reasoning: Hm. }]";
    for (permission, status, code) in
        [("", "failed", Some("no_answer")), ("allow_empty_answers: true\n", "done", None)]
    {
        let definition = format!("tools: [look]\n{permission}");
        let fixture = RuntimeFixture::start(&definition, script).await;
        let run = fixture.begin("Go on.").await;
        fixture.output(&run.id, 0).await;
        let sql = "SELECT status, error_code FROM runs";
        let ended: Vec<(String, Option<String>)> =
            fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
        assert_eq!(ended, [(status.to_owned(), code.map(str::to_owned))], "{permission}");
        fixture.close().await;
    }
}

/// A reason that does not make the answer incomplete is kept with it.
#[tokio::test]
async fn another_stop_reason_is_kept() {
    let script = "answers: [{ text: So., stop: { other: pause_turn } }]";
    let fixture = RuntimeFixture::start("", script).await;
    let run = fixture.begin("Go on.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "So.");
    assert_eq!(last.data["assistant_data"]["stop_reason"], "pause_turn");
    fixture.close().await;
}

/// Regression: a text of the provider was published in place of a code, and no guardrail had seen it.
#[tokio::test]
async fn a_stop_reason_that_is_not_a_code_is_not_published() {
    let script = "answers: [{ text: So., stop: { other: It is swordfish. } }]";
    let fixture = RuntimeFixture::start("", script).await;
    let run = fixture.begin("Go on.").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["stop_reason"], "other");
    let sql = "SELECT output || (SELECT group_concat(data) FROM agent_state) FROM runs";
    let rows: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert!(!format!("{rendered}{rows:?}").contains("swordfish"), "{rendered}{rows:?}");
    fixture.close().await;
}
