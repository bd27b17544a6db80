//! Recorded streams of real providers, served over loopback and compared with golden lines.
//!
//! Twelve of them are in this repository. The golden file also covers the other 20, which are not published.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use abide_models::{
    ModelEvent, ModelProvider as _, ModelRequest, ModelResponse, Protocol, answer_of,
};
use expect_test::expect_file;
use ruzstd::decoding::StreamingDecoder;
use serde_json::Value;
use std::io::Read as _;

use super::server::{Reply, Server};
use super::{all, question, remote, shown};

const GOLDEN: &str = "golden/provider-streams.txt";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

/// The recordings of a folder: their names and lines.
fn recordings(folder: &Path) -> Vec<(String, Vec<String>)> {
    let entries = std::fs::read_dir(folder).expect("the folder can be read");
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.retain(|path| path.to_string_lossy().contains(".jsonl"));
    paths.sort();
    paths.into_iter().map(|path| (name(&path), lines(&path))).collect()
}

fn name(path: &Path) -> String {
    let name = path.file_name().expect("it is a file").to_string_lossy();
    name.split(".jsonl").next().expect("there is a first part").to_owned()
}

fn lines(path: &Path) -> Vec<String> {
    let bytes = std::fs::read(path).expect("the file can be read");
    let mut text = String::new();
    if path.extension().is_some_and(|extension| extension == "zst") {
        let mut decoder = StreamingDecoder::new(&bytes[..]).expect("it is a zst file");
        decoder.read_to_string(&mut text).expect("the file unpacks");
    } else {
        text = String::from_utf8(bytes).expect("a recording is text");
    }
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The protocol of a recording, by its name, or why it is not supported.
fn protocol(name: &str) -> Result<Protocol, &'static str> {
    match name.split("__").next().expect("there is a first part") {
        "anthropic" => Ok(Protocol::Anthropic),
        "google" => Ok(Protocol::Gemini),
        "openai" => Ok(Protocol::OpenAiResponses),
        "alibaba" | "deepseek" | "groq" | "openai-compatible" | "xai" => {
            Ok(Protocol::OpenAiCompatible)
        }
        "cohere" => Err("not supported: Cohere's own protocol"),
        other => panic!("unknown provider `{other}`"),
    }
}

/// The answers in a recording; some contain two in sequence.
fn answers(protocol: Protocol, lines: &[String]) -> Vec<Vec<String>> {
    let begins = |line: &str| match protocol {
        Protocol::Anthropic => line.contains("\"type\":\"message_start\""),
        Protocol::OpenAiResponses => line.contains("\"type\":\"response.created\""),
        _ => false,
    };
    let mut answers: Vec<Vec<String>> = Vec::new();
    for line in lines {
        if answers.is_empty() || begins(line) {
            answers.push(Vec::new());
        }
        answers.last_mut().expect("one has begun").push(line.clone());
    }
    answers
}

/// The lines of JSON as the provider sends them.
fn stream(protocol: Protocol, lines: &[String]) -> String {
    let event = |line: &String| match protocol {
        Protocol::Gemini => format!("data: {line}\r\n\r\n"),
        Protocol::Anthropic | Protocol::OpenAiResponses => {
            let event: Value = serde_json::from_str(line).expect("a line is JSON");
            format!("event: {}\ndata: {line}\n\n", event["type"].as_str().expect("it has a type"))
        }
        _ => format!("data: {line}\n\n"),
    };
    let end = if protocol == Protocol::OpenAiCompatible { "data: [DONE]\n\n" } else { "" };
    lines.iter().map(event).collect::<String>() + end
}

/// The outcome of a recording, in one line.
async fn received(name: &str, lines: &[String]) -> String {
    let protocol = match protocol(name) {
        Ok(protocol) => protocol,
        Err(why) => return format!("{name}: {why}\n"),
    };
    let mut output = String::new();
    for answer in answers(protocol, lines) {
        let server = Server::start(vec![Reply::events(stream(protocol, &answer))]).await;
        let events = all(remote(protocol, &server.url).stream(question())).await;
        let Some(Ok(ModelEvent::Answer(whole))) = events.last() else {
            panic!("{name} has no answer:\n{}", shown(&events));
        };
        pieces_are_the_whole(&events, whole);
        output.push_str(&format!("{name}: {}\n", in_short(whole)));
    }
    output
}

/// Checks that the chunks add up to the complete answer.
fn pieces_are_the_whole(
    events: &[Result<ModelEvent, abide_models::ModelError>],
    whole: &ModelResponse,
) {
    let mut text = String::new();
    let mut reasoning = String::new();
    let mut calls = Vec::new();
    for event in events {
        match event.as_ref().expect("no error") {
            ModelEvent::Text(piece) => text.push_str(piece),
            ModelEvent::Reasoning(piece) => reasoning.push_str(piece),
            ModelEvent::Call(call) => calls.push(call.clone()),
            ModelEvent::Answer(_) | ModelEvent::Restarted(_) => {}
        }
    }
    assert_eq!((&text, &calls), (&whole.text, &whole.calls));
    assert_eq!(reasoning, whole.reasoning.clone().unwrap_or_default());
}

/// An answer in one line; long texts as length and beginning.
fn in_short(answer: &ModelResponse) -> String {
    let cut = |text: &str, max: usize| {
        let beginning: String = text.chars().take(max).collect();
        let more = if text.chars().count() > max { "…" } else { "" };
        format!("{} {:?}{more}", text.len(), beginning)
    };
    let calls = answer
        .calls
        .iter()
        .map(|call| format!("; call {} {} {}", call.id, call.name, cut(&call.arguments, 80)));
    let reasoning =
        answer.reasoning.as_deref().map(|text| format!("; reasoning {}", cut(text, 30)));
    let carry = answer.carry.as_ref().map(|carry| {
        let keys = carry.as_object().expect("it is an object").keys().cloned();
        format!("; carries {} bytes for {}", carry.to_string().len(), keys.collect::<String>())
    });
    let usage = &answer.usage;
    let tokens =
        [usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens];
    let tokens = tokens.map(|tokens| tokens.map_or("-".to_owned(), |tokens| tokens.to_string()));
    format!(
        "text {}{}{}{}; {:?}; tokens {} {:?}; {}",
        cut(&answer.text, 40),
        reasoning.unwrap_or_default(),
        calls.collect::<String>(),
        carry.unwrap_or_default(),
        answer.stop,
        tokens.join("/"),
        usage.completeness,
        answer.model
    )
}

#[tokio::test]
async fn every_recorded_stream_matches_the_golden_lines() {
    let external = std::env::var_os("ABIDE_EXTERNAL_FIXTURES").unwrap_or_default();
    let shared = Path::new(&external).join("data/recordings/provider-streams");
    if shared.is_dir() {
        let mut output = String::new();
        for (name, lines) in recordings(&shared) {
            output.push_str(&received(&name, &lines).await);
        }
        expect_file![here(GOLDEN)].assert_eq(&output);
    } else {
        let why = "skipped: unpublished recordings of models (ABIDE_EXTERNAL_FIXTURES)";
        writeln!(std::io::stdout(), "{why}").expect("stdout can be written");
    }
}

#[tokio::test]
async fn the_published_streams_match_the_golden_lines() {
    let golden = std::fs::read_to_string(here(GOLDEN)).expect("it can be read");
    let fixtures = recordings(&here("fixtures/provider-streams"));
    assert_eq!(fixtures.len(), 12);
    for (name, lines) in fixtures {
        let prefix = format!("{name}: ");
        let expected = golden.lines().filter(|line| line.starts_with(&prefix));
        let expected: String = expected.map(|line| format!("{line}\n")).collect();
        assert_eq!(received(&name, &lines).await, expected);
    }
}

/// Opaque data is sent back to the provider unchanged.
#[tokio::test]
async fn opaque_data_is_sent_back() {
    for (name, place, field) in [
        ("anthropic__anthropic-combined-context-editing.1", "/messages/1/content/0", "signature"),
        ("google__google-tool-call", "/contents/1/parts/0", "thoughtSignature"),
    ] {
        let protocol = protocol(name).expect("the protocol is supported");
        let lines = lines(&here(&format!("fixtures/provider-streams/{name}.jsonl")));
        let replies =
            vec![Reply::events(stream(protocol, &lines)), Reply::events(stream(protocol, &lines))];
        let mut server = Server::start(replies).await;
        let remote = remote(protocol, &server.url);
        let first = answer_of(remote.stream(question())).await.expect("there is an answer");
        server.request().await;
        let mut again = question();
        again.messages.push(first.to_message());
        answer_of(remote.stream(again)).await.expect("there is an answer");
        let body: Value = serde_json::from_str(&server.request().await.body).expect("it is JSON");
        let back =
            body.pointer(place).expect("the field exists")[field].as_str().expect("it is a string");
        let given: String = lines
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).expect("it is JSON"))
            .filter_map(|line| {
                let places = ["/delta", "/candidates/0/content/parts/0"];
                let found = places.iter().find_map(|place| line.pointer(place))?;
                found[field].as_str().map(str::to_owned)
            })
            .collect();
        assert_eq!(back, given, "{name}");
    }
}

/// Opaque data of another provider is ignored.
#[test]
fn opaque_data_is_read_only_by_its_own_protocol() {
    let carry = serde_json::json!({ "another": [1] });
    let answered = abide_models::ModelMessage::Assistant {
        text: "So.".to_owned(),
        reasoning: None,
        calls: Vec::new(),
        carry: Some(carry),
    };
    let text = serde_json::to_string(&ModelRequest {
        messages: vec![answered],
        ..ModelRequest::default()
    });
    assert!(text.expect("it is JSON").contains("another"), "it is stored with the message");
}

/// The signature of a part that continues the first of two open calls went to the second one, and Gemini rejects a conversation
/// whose signatures are not those of their calls.
#[tokio::test]
async fn gemini_signatures_follow_the_id_of_their_call() {
    let frame = |call: &str| {
        format!("data: {{\"candidates\":[{{\"content\":{{\"parts\":[{call}]}}}}]}}\n\n")
    };
    let stream = [
        frame(r#"{"functionCall":{"id":"i","name":"f","willContinue":true}}"#),
        frame(r#"{"functionCall":{"id":"j","name":"g","willContinue":true}}"#),
        frame(
            r#"{"functionCall":{"id":"i","partialArgs":[{"jsonPath":"$.a","numberValue":1}]},"thoughtSignature":"s"}"#,
        ),
        frame(r#"{"functionCall":{"id":"j","partialArgs":[{"jsonPath":"$.b","numberValue":2}]}}"#),
        "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\n".to_owned(),
    ];
    let events = crate::received(Protocol::Gemini, Reply::events(stream.concat())).await;
    let Some(Ok(ModelEvent::Answer(answer))) = events.last() else {
        panic!("no answer: {events:?}")
    };
    let carry = answer.carry.as_ref().expect("there is a signature");
    assert_eq!(carry["gemini"]["calls"], serde_json::json!(["s"]), "{answer:?}");
}
