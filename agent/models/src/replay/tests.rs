//! The choice of the next recorded answer, and the error if there is none.

use expect_test::{Expect, expect};
use serde_json::json;

use super::*;
use crate::{ModelCall, answer_of};

/// Two recordings with the same beginning, one with a system prompt; one in which the agent speaks first.
fn recordings() -> Replay {
    let lines = [
        json!({ "id": "rome", "model": "gpt", "messages": [
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Weather?" },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": null, "name": "weather", "arguments": "{'city': 'Rome'}" },
                { "id": "c", "name": "now", "arguments": "{}" },
            ] },
            { "role": "tool", "content": "sun", "tool_call_id": null },
            { "role": "tool", "content": "noon", "tool_call_id": "c", "error": true },
            { "role": "assistant", "content": "Sun." },
            { "role": "user", "content": "Thanks." },
        ] }),
        json!({ "id": "oslo", "messages": [
            { "role": "user", "content": "Weather?" },
            { "role": "assistant", "content": "Where?" },
            { "role": "subtask_creator", "content": "Oslo." },
            { "role": "user", "content": null, "tool_calls": [
                { "id": "u", "name": "look", "arguments": "{}", "requestor": "user" },
            ] },
            { "role": "tool", "content": "up", "tool_call_id": "u", "requestor": "user" },
            { "role": "assistant", "content": "Snow." },
        ] }),
        json!({ "id": "first@home", "messages": [
            { "role": "assistant", "content": "Hello!" },
            { "role": "user", "content": "Weather?" },
            { "role": "assistant", "content": "Rain." },
        ] }),
    ];
    let conversations = lines
        .iter()
        .map(|line| Conversation::from_json(&line.to_string()).expect("it is a conversation"));
    Replay::new("replay", conversations.collect())
}

fn request(model: &str, system: &str, messages: Vec<ModelMessage>) -> ModelRequest {
    let system = (!system.is_empty()).then(|| system.to_owned());
    ModelRequest { model: model.to_owned(), system, messages, ..ModelRequest::default() }
}

async fn check(request: ModelRequest, expected: Expect) {
    let output = match answer_of(recordings().stream(request)).await {
        Ok(answer) => {
            let calls = answer
                .calls
                .iter()
                .map(|call| format!("[{} {} {}] ", call.id, call.name, call.arguments));
            let calls: String = calls.collect();
            format!("{calls}{:?} {:?} of {}", answer.text, answer.stop, answer.model)
        }
        Err(error) => format!("{}: {error}", error.code()),
    };
    expected.assert_eq(&output);
}

fn user(text: &str) -> ModelMessage {
    ModelMessage::user(text)
}

/// The first answer of `rome` and the results of its calls. The tool name and the failure differ from the
/// recording, which is ignored.
fn called(first_result: &str) -> Vec<ModelMessage> {
    let call = |id: &str, name: &str, arguments: &str| ModelCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    let result = |id: &str, content: &str| ModelMessage::Tool {
        call_id: id.to_owned(),
        name: "any".to_owned(),
        content: content.to_owned(),
        is_error: false,
    };
    let calls = vec![call("", "weather", "{'city': 'Rome'}"), call("c", "now", "{}")];
    let reasoning = Some("never recorded".to_owned());
    let asked = ModelMessage::Assistant { text: String::new(), reasoning, calls, carry: None };
    vec![user("Weather?"), asked, result("", first_result), result("c", "noon")]
}

#[tokio::test]
async fn a_request_is_answered_by_its_content() {
    let messages = || vec![user("Weather?")];
    let expected = expect![[r#"[ weather {'city': 'Rome'}] [c now {}] "" ToolUse of gpt"#]];
    check(request("any", "Be brief.", called("sun")[..1].to_vec()), expected).await;
    check(request("any", "Be brief.", called("sun")), expect![[r#""Sun." End of gpt"#]]).await;
    let expected = expect![[r#""Where?" End of oslo"#]];
    check(request("any", "Something else.", messages()), expected).await;
    let expected = expect![[r#""Hello!" End of first@home"#]];
    check(request("any", "", vec![]), expected).await;
    // The system prompt may be the first message.
    let system = ModelMessage::System { text: "Be brief.".to_owned() };
    let messages = [vec![system], called("sun")].concat();
    check(request("any", "", messages), expect![[r#""Sun." End of gpt"#]]).await;
}

/// An unknown role is treated as a user; the user's own calls are omitted.
#[tokio::test]
async fn an_unknown_role_counts_as_a_user() {
    let messages = vec![user("Weather?"), ModelMessage::assistant("Where?"), user("Oslo.")];
    check(request("any", "", messages), expect![[r#""Snow." End of oslo"#]]).await;
}

#[tokio::test]
async fn without_a_match_the_first_difference_is_reported() {
    check(
        request("any", "", vec![user("Who are you?")]),
        expect!["no_recording: no recording starts with `user: Who are you?`"],
    )
    .await;
    check(
        request("any", "Be brief.", called("rain")),
        expect![[r#"
            no_recording: message 3 is `result of "": rain`, but `result of "": sun` in recording `rome`"#]],
    )
    .await;
    check(
        request("any", "Be long.", called("sun")),
        expect![[r#"
            no_recording: the system prompt is `Be long.`, but `Be brief.` in recording `rome`"#]],
    )
    .await;
    let ended = [called("sun"), vec![ModelMessage::assistant("Sun."), user("Thanks.")]].concat();
    check(
        request("any", "Be brief.", ended.clone()),
        expect!["no_recording: recording `rome` ends here"],
    )
    .await;
    check(
        request("any", "Be brief.", ended[..5].to_vec()),
        expect![
            "no_recording: recording `rome` has no answer here; its message 6 is `user: Thanks.`"
        ],
    )
    .await;
    check(
        request("any", "Be brief.", [ended, vec![user("Bye.")]].concat()),
        expect!["no_recording: message 7 is `user: Bye.`, but recording `rome` ends before it"],
    )
    .await;
}

#[tokio::test]
async fn a_request_that_fits_several_recordings_is_refused() {
    let read = |id: &str, answer: &str| {
        let messages = json!([
            { "role": "user", "content": "Time?" }, { "role": "assistant", "content": answer },
        ]);
        let line = json!({ "id": id, "messages": messages }).to_string();
        Conversation::from_json(&line).expect("it is a conversation")
    };
    let ask = async |conversations| {
        let replay = Replay::new("replay", conversations);
        let output = answer_of(replay.stream(request("any", "", vec![user("Time?")]))).await;
        output.map_or_else(|error| error.to_string(), |answer| answer.text)
    };
    let differently = ask(vec![read("a", "Noon."), read("b", "Noon."), read("c", "One.")]).await;
    expect!["recordings `a` and `c` continue differently from here: name one as the model"]
        .assert_eq(&differently);
    assert_eq!(ask(vec![read("a", "Noon."), read("b", "Noon.")]).await, "Noon.");
}

/// Answers can be streamed slowly.
#[tokio::test(start_paused = true)]
async fn a_replay_has_a_speed() {
    let pace = ReplaySpeed { first: Duration::from_millis(500), token: Duration::from_millis(20) };
    let began = tokio::time::Instant::now();
    let stream = recordings().at_speed(pace).stream(request("rome@1", "", vec![]));
    assert_eq!(answer_of(stream).await.expect("there is an answer").calls.len(), 2);
    assert_eq!(began.elapsed(), Duration::from_millis(520));
}

#[tokio::test]
async fn a_model_name_selects_its_recording() {
    let answers_so_far = |answers: usize| vec![ModelMessage::assistant("anything"); answers];
    let expected = expect![[r#""Sun." End of gpt"#]];
    check(request("rome", "any", answers_so_far(1)), expected).await;
    check(request("rome@2", "", answers_so_far(9)), expect![[r#""Sun." End of gpt"#]]).await;
    check(request("first@home", "", answers_so_far(1)), expect![[r#""Rain." End of first@home"#]])
        .await;
    check(
        request("first@home@1", "", answers_so_far(1)),
        expect![[r#""Hello!" End of first@home"#]],
    )
    .await;
    let expected =
        expect!["no_recording: recording `rome` has 2 answers, but number 3 is requested"];
    check(request("rome", "", answers_so_far(2)), expected).await;
    let expected = expect!["no_recording: no recording starts with `assistant: anything`"];
    check(request("rome@0", "", answers_so_far(1)), expected).await;
}

#[test]
fn results_match_calls_by_position_and_id() {
    let line = json!({ "id": "x", "messages": [
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "a", "name": "f", "arguments": "" },
            { "id": "b", "name": "g", "arguments": "" },
            { "id": "a", "name": "h", "arguments": "" },
            { "id": "z", "name": "i", "arguments": "" },
        ] },
        { "role": "tool", "content": "1", "tool_call_id": "b" },
        { "role": "tool", "content": "2", "tool_call_id": "a" },
        { "role": "tool", "content": "3", "tool_call_id": "a", "error": "yes" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "z", "name": "f", "arguments": "" },
        ] },
        { "role": "tool", "content": "4", "tool_call_id": "z" },
    ] });
    let conversation = Conversation::from_json(&line.to_string()).expect("it is a conversation");
    let contents = |at: usize| -> Vec<Option<String>> {
        let content = |result: Option<&ModelMessage>| match result? {
            ModelMessage::Tool { content, name, is_error, .. } => {
                Some(format!("{content} {name}{}", if *is_error { "!" } else { "" }))
            }
            _ => None,
        };
        conversation.results(at).into_iter().map(content).collect()
    };
    let some = |text: &str| Some(text.to_owned());
    // A result without a name gets that of the last call with its id.
    assert_eq!(contents(0), [some("2 f"), some("1 g"), some("3 f!"), None]);
    assert_eq!(contents(4), [some("4 f")]);
    assert_eq!(contents(1), []);
}

#[test]
fn invalid_recordings_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("some.jsonl");
    std::fs::write(&path, "{\"id\":\"a\",\"messages\":[]}\n\n{\"id\":1}\n")
        .expect("the file can be written");
    let error = crate::read_conversations(&path).expect_err("line 3 is invalid").to_string();
    assert!(error.contains("line 3: invalid type: integer"), "{error}");
    let path = folder.path().join("some.jsonl.zst");
    std::fs::write(&path, "not packed").expect("the file can be written");
    crate::read_conversations(&path).expect_err("the file is not compressed");
}
