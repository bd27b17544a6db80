//! Replays every recorded conversation by content and by name, and compares each answer with the recording.
//!
//! The expected answers are read from the recordings as plain JSON, without our own reader. The fixture of this
//! repository has 24 of the 1,734 recorded conversations; the others are not published.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use abide_models::{
    Conversation, ModelCall, ModelErrorKind, ModelEvent, ModelMessage, ModelProvider as _,
    ModelRequest, ModelResponse, Replay, Stop, read_conversations,
};
use futures_util::StreamExt as _;
use ruzstd::decoding::StreamingDecoder;
use serde_json::Value;
use std::io::Read as _;

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The conversations of a file as plain JSON.
fn plain(path: &Path) -> Vec<Value> {
    let bytes = std::fs::read(path).expect("the file can be read");
    let mut text = String::new();
    let mut decoder = StreamingDecoder::new(&bytes[..]).expect("it is a zst file");
    decoder.read_to_string(&mut text).expect("it unpacks");
    text.lines().map(|line| serde_json::from_str(line).expect("a conversation is JSON")).collect()
}

/// The recorded answers of a conversation: text and calls, with null as empty.
fn recorded(conversation: &Value) -> Vec<(String, Vec<ModelCall>)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let call = |call: &Value| ModelCall {
        id: text(&call["id"]),
        name: text(&call["name"]),
        arguments: text(&call["arguments"]),
    };
    let messages = conversation["messages"].as_array().expect("a list").iter();
    let answers = messages.filter(|message| message["role"] == "assistant");
    answers
        .map(|message| {
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            (text(&message["content"]), calls.map(call).collect())
        })
        .collect()
}

/// The answer to a request, after checking its chunks against the complete answer.
async fn answered(
    replay: &Replay,
    request: ModelRequest,
) -> Result<ModelResponse, abide_models::ModelError> {
    let mut text = String::new();
    let mut calls = Vec::new();
    let mut stream = replay.stream(request);
    while let Some(event) = stream.next().await {
        match event? {
            ModelEvent::Text(piece) => text.push_str(&piece),
            ModelEvent::Call(call) => calls.push(call),
            ModelEvent::Answer(answer) => {
                assert_eq!((&text, &calls), (&answer.text, &answer.calls));
                let stop = if calls.is_empty() { Stop::End } else { Stop::ToolUse };
                assert_eq!(answer.stop, stop);
                assert!(stream.next().await.is_none(), "the answer ends the stream");
                return Ok(answer);
            }
            other => panic!("unexpected event {other:?}"),
        }
    }
    panic!("a stream ends with an answer or an error");
}

/// The number of replayed answers, and how many of them are ambiguous by content.
async fn told_again(path: &Path) -> (usize, usize) {
    let read = read_conversations(path).expect("the recordings can be read");
    let plain = plain(path);
    assert_eq!(read.len(), plain.len());
    let replay = Replay::new("replay", read);
    let mut answers = 0;
    let mut ambiguous = 0;
    for (conversation, plain) in replay.conversations().iter().zip(&plain) {
        assert_eq!(Some(conversation.id.as_str()), plain["id"].as_str());
        let recorded = recorded(plain);
        assert_eq!(conversation.answers(), recorded.len());
        for (position, (at, (text, calls))) in
            answer_places(conversation).zip(&recorded).enumerate()
        {
            let history = conversation.messages[..at].to_vec();
            let request = |model: &str| ModelRequest {
                model: model.to_owned(),
                system: conversation.system.clone(),
                messages: history.clone(),
                ..ModelRequest::default()
            };
            let named = answered(&replay, request(&conversation.id)).await;
            let numbered = format!("{}@{}", conversation.id, position + 1);
            let numbered = answered(&replay, request(&numbered)).await;
            let by_content = answered(&replay, request("")).await;
            if matches!(&by_content, Err(error) if error.kind == ModelErrorKind::NoRecording) {
                ambiguous += 1;
                let error = by_content.as_ref().expect_err("the content is ambiguous").to_string();
                assert!(error.contains("continue differently from here"), "{error}");
            }
            let found = [named, numbered, by_content].into_iter().filter_map(Result::ok);
            let found: Vec<ModelResponse> = found.collect();
            assert!(found.len() >= 2, "a replay by name is never ambiguous");
            for answer in found {
                assert_eq!((&answer.text, &answer.calls), (text, calls), "{}", conversation.id);
            }
            answers += 1;
        }
    }
    (answers, ambiguous)
}

fn answer_places(conversation: &Conversation) -> impl Iterator<Item = usize> {
    let messages = conversation.messages.iter().enumerate();
    messages
        .filter_map(|(at, message)| matches!(message, ModelMessage::Assistant { .. }).then_some(at))
}

#[tokio::test]
async fn every_answer_of_the_fixture_is_replayed() {
    let (answers, ambiguous) =
        told_again(&in_repository("tests/fixtures/conversations.jsonl.zst")).await;
    assert_eq!((answers, ambiguous), (326, 0));
}

#[tokio::test]
async fn every_answer_of_all_recordings_is_replayed() {
    let external = std::env::var_os("ABIDE_EXTERNAL_FIXTURES").unwrap_or_default();
    let folder = Path::new(&external).join("data/conversations");
    if !folder.is_dir() {
        let why = "skipped: unpublished recordings of models (ABIDE_EXTERNAL_FIXTURES)";
        writeln!(std::io::stdout(), "{why}").expect("stdout can be written");
        return;
    }
    let entries = std::fs::read_dir(folder).expect("the folder can be read");
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    let mut conversations = 0;
    let mut answers = 0;
    let mut ambiguous = 0;
    for path in paths {
        let (output, unclear) = told_again(&path).await;
        conversations += plain(&path).len();
        answers += output;
        ambiguous += unclear;
    }
    assert_eq!((conversations, answers), (1_734, 22_577));
    // Several recordings of one file have the same beginning but different answers.
    println!("{ambiguous} of {answers} answers can be replayed only by name");
    assert!(ambiguous < answers / 10);
}
