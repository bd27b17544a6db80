//! Decoding of frames by protocol, regardless of how the stream is split.

use std::path::Path;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use serde_json::json;

use super::body::arguments_object;
use super::*;
use crate::frames::Frames;
use crate::{ModelError, ModelEvent, ModelMessage};

type DecodedEvents = Vec<Result<ModelEvent, ModelError>>;

/// All events of a stream that is split into these pieces.
fn rendered(protocol: Protocol, pieces: &[&[u8]]) -> DecodedEvents {
    let mut frames = Frames::new(protocol.framing());
    let mut decoder = protocol.decoder();
    let mut gathered = PartialResponse::default();
    let ended = (|| {
        let mut each = |frame: &str| match gathered.is_over() {
            true => Ok(()),
            false => decoder.frame(frame, &mut gathered),
        };
        pieces.iter().try_for_each(|piece| frames.feed(piece, &mut each))?;
        frames.finish(&mut each)?;
        decoder.close(&mut gathered);
        gathered.end("tested", "asked")
    })();
    let events = std::iter::from_fn(|| gathered.next_event());
    events.map(Ok).chain(ended.err().map(Err)).collect::<DecodedEvents>()
}

/// A stream of JSON texts, framed as in its protocol.
fn framed(protocol: Protocol, lines: &[&str]) -> String {
    let frame = |line: &&str| match protocol.framing() {
        Framing::Events => format!("data: {line}\r\n\r\n"),
        Framing::Lines => format!("{line}\n"),
    };
    lines.iter().map(frame).collect()
}

/// The events of a stream of these JSON texts, one per line.
fn check(protocol: Protocol, lines: &str, expected: Expect) {
    let lines: Vec<&str> = lines.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let stream = framed(protocol, &lines);
    let events = rendered(protocol, &[stream.as_bytes()]);
    let lines = events.iter().map(|event| match event {
        Ok(ModelEvent::Answer(answer)) => {
            let carry = answer.carry.as_ref().map(|carry| format!(" {carry}"));
            let usage = &answer.usage;
            let (input, output) = (usage.input_tokens, usage.output_tokens);
            format!("{:?} {input:?}/{output:?}{}", answer.stop, carry.unwrap_or_default())
        }
        Ok(ModelEvent::Call(call)) => format!("{} {} {}", call.id, call.name, call.arguments),
        Ok(event) => format!("{event:?}"),
        Err(error) => format!("{}: {error}", error.kind),
    });
    expected.assert_eq(&lines.collect::<Vec<_>>().join("\n"));
}

/// Gemini's compatible endpoint and some proxies send the same index with another id.
#[test]
fn chat_calls_with_the_same_index_are_distinguished_by_id() {
    let piece = |id: &str, name: &str, arguments: &str| {
        let function = json!({ "name": name, "arguments": arguments });
        let call = json!({ "index": 0, "id": id, "function": function });
        json!({ "choices": [{ "delta": { "tool_calls": [call] } }] }).to_string()
    };
    let lines = [
        piece("a", "f", "{\"x\":"),
        piece("", "", "1}"),
        piece("b", "f", "{}"),
        piece("b", "f", " "),
        r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#.to_owned(),
    ];
    check(
        Protocol::OpenAiCompatible,
        &lines.join("\n"),
        expect![[r#"
            a f {"x":1}
            b f {} 
            ToolUse None/None"#]],
    );
}

#[test]
fn chat_calls_may_lack_index_and_id_and_have_an_object_for_arguments() {
    let call = r#"{"id":null,"function":{"name":"f","arguments":{"b":1,"a":2}}}"#;
    let other = r#"{"function":{"name":"g"}}"#;
    let line = format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{call},{other}]}}}}]}}"#);
    check(
        Protocol::OpenAiCompatible,
        &[&line, r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#, "[DONE]"].join("\n"),
        expect![[r#"
             f {"a":2,"b":1}
             g 
            ToolUse None/None"#]],
    );
}

/// Regression: integers became `1e+23` if a provider sent arguments as an object instead of text.
#[test]
fn arguments_keep_all_digits() {
    const ARGUMENTS: &str = r#"{"b": [1, 100000000000000000000000], "a": 2}"#;
    let call = format!(r#"{{"id":"a","function":{{"name":"f","arguments":{ARGUMENTS}}}}}"#);
    let choices = format!(r#"[{{"index":1}},{{"delta":{{"tool_calls":[{{}},{call}]}}}}]"#);
    let end = r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#;
    let chat = [&format!(r#"{{"choices":{choices}}}"#), end, "[DONE]"].join("\n");
    let block = format!(r#"{{"type":"tool_use","id":"a","name":"f","input":{ARGUMENTS}}}"#);
    let anthropic = format!(
        r#"{{"type":"content_block_start","index":0,"content_block":{block}}}
        {{"type":"content_block_stop","index":0}}
        {{"type":"message_delta","delta":{{"stop_reason":"tool_use"}}}}"#
    );
    let call = format!(r#"{{"function":{{"name":"f","arguments":{ARGUMENTS}}}}}"#);
    let ollama = format!(r#"{{"message":{{"tool_calls":[{call}]}},"done":true}}"#);
    let part = format!(r#"{{"functionCall":{{"name":"f","args":{ARGUMENTS}}}}}"#);
    let content = format!(r#"{{"content":{{"parts":[{part}]}},"finishReason":"STOP"}}"#);
    let gemini = format!(r#"{{"candidates":[{content}]}}"#);
    for (protocol, lines) in [
        (Protocol::OpenAiCompatible, chat),
        (Protocol::Anthropic, anthropic),
        (Protocol::Ollama, ollama),
        (Protocol::Gemini, gemini),
    ] {
        let lines: Vec<&str> = lines.lines().map(str::trim).collect();
        let rendered = rendered(protocol, &[framed(protocol, &lines).as_bytes()]);
        let call = rendered.iter().find_map(|event| match event {
            Ok(ModelEvent::Call(call)) if call.name == "f" => Some(call.arguments.as_str()),
            _ => None,
        });
        assert_eq!(call, Some(ARGUMENTS), "{protocol:?}: {rendered:?}");
    }
    assert_eq!(arguments_object(ARGUMENTS), json!({ "unparsed": ARGUMENTS }));
}

/// The index is untrusted: a huge one must not allocate room for four billion calls.
#[test]
fn a_huge_index_is_accepted() {
    let call = r#"{"index":18446744073709551615,"id":"a","function":{"name":"f","arguments":""}}"#;
    let line = format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{call}]}}}}]}}"#);
    check(
        Protocol::OpenAi,
        &[&line, r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#, "[DONE]"].join("\n"),
        expect![[r#"
            a f 
            ToolUse None/None"#]],
    );
}

#[test]
fn chat_content_in_parts() {
    let thinking = r#"{"type":"thinking","thinking":[{"type":"text","text":"Hm."}]}"#;
    let line = format!(
        r#"{{"choices":[{{"delta":{{"content":[{thinking},{{"type":"text","text":"No"}}]}}}}]}}"#
    );
    check(
        Protocol::OpenAiCompatible,
        &(line
            + r#"
            {"choices":[{"index":1,"delta":{"content":"another choice"}}]}
            {"choices":[{"delta":{"content":null},"finish_reason":"length"}],"usage":{"prompt_tokens":0}}
        "#),
        expect![[r#"
            Reasoning("Hm.")
            Text("No")
            Length Some(0)/None"#]],
    );
}

#[test]
fn responses_with_all_output_at_the_end() {
    check(
        Protocol::OpenAiResponses,
        &r#"{"type":"response.completed","response":{"status":"completed","output":[
            {"type":"message","content":[{"type":"output_text","text":"So."}]},
            {"type":"function_call","call_id":"c","name":"f","arguments":"{ }"}]}}"#
            .replace('\n', " "),
        expect![[r#"
            Text("So.")
            c f { }
            ToolUse None/None"#]],
    );
    check(
        Protocol::OpenAiResponses,
        r#"
            {"type":"response.output_text.delta","delta":"So"}
            {"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"usage":{"input_tokens":1,"output_tokens":2}}}
            not read any more
        "#,
        expect![[r#"
            Text("So")
            Length Some(1)/Some(2)"#]],
    );
}

#[test]
fn anthropic_blocks_without_an_end() {
    check(
        Protocol::Anthropic,
        r#"
            {"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":1}}}
            {"type":"content_block_start","index":0,"content_block":{"type":"redacted_thinking","data":"x"}}
            {"type":"content_block_stop","index":0}
            {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}
            {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a"}}
            {"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":9}}
        "#,
        expect![[r#"
            t f {"a
            Length Some(7)/Some(9) {"anthropic":[{"data":"x","type":"redacted_thinking"}]}"#]],
    );
}

#[test]
fn gemini_can_withhold_the_whole_answer() {
    check(
        Protocol::Gemini,
        r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":5}}"#,
        expect!["Filtered Some(5)/None"],
    );
}

#[test]
fn gemini_continues_a_call_that_did_not_start() {
    let part = r#"{"functionCall":{"partialArgs":[{"jsonPath":"$.a","boolValue":true}]}}"#;
    check(
        Protocol::Gemini,
        &format!(r#"{{"candidates":[{{"content":{{"parts":[{part}]}}}}]}}"#),
        expect!["invalid_response: the stream continues a call that it did not start"],
    );
}

/// Signatures stay with their calls.
#[test]
fn gemini_signatures_stay_with_their_calls() {
    let parts = r#"{"functionCall":{"name":"f","args":{"b": 1, "a": 2}}},
        {"functionCall":{"id":"i","name":"g"},"thoughtSignature":"s"}"#
        .replace('\n', " ");
    let line =
        format!(r#"{{"candidates":[{{"content":{{"parts":[{parts}]}},"finishReason":"STOP"}}]}}"#);
    check(
        Protocol::Gemini,
        &line,
        expect![[r#"
             f {"b": 1, "a": 2}
            i g {}
            ToolUse None/None {"gemini":{"calls":[null,"s"],"text":null}}"#]],
    );
}

#[test]
fn ollama_streams_lines() {
    check(
        Protocol::Ollama,
        r#"
            {"model":"m","message":{"role":"assistant","thinking":"Hm.","content":""},"done":false}
            {"message":{"content":"So","tool_calls":[{"function":{"name":"f","arguments":{"b": 1, "a": 2}}},{"id":"i","function":{"name":"g","arguments":"{'x'"}}]}}
            {"message":{"content":"."},"done":true,"done_reason":"length","prompt_eval_count":5,"eval_count":6}
        "#,
        expect![[r#"
            Reasoning("Hm.")
            Text("So")
             f {"b": 1, "a": 2}
            i g {'x'
            Text(".")
            Length Some(5)/Some(6)"#]],
    );
    check(
        Protocol::Ollama,
        r#"{"message":{"content":"So"}}"#,
        expect![[r#"
            Text("So")
            invalid_response: the stream ended in the middle of an answer"#]],
    );
}

/// An empty message is skipped.
#[test]
fn empty_messages_are_skipped_so_that_turns_alternate() {
    let request = ModelRequest {
        messages: vec![
            ModelMessage::user("a"),
            ModelMessage::assistant(""),
            ModelMessage::user("b"),
            ModelMessage::assistant("c"),
        ],
        ..ModelRequest::default()
    };
    let body = Protocol::Gemini.body(&request);
    let roles = body["contents"].as_array().expect("a list").iter().map(|turn| &turn["role"]);
    assert_eq!(roles.collect::<Vec<_>>(), ["user", "model"]);
}

/// Recorded streams of real providers in this repository.
fn recorded() -> Vec<(Protocol, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/provider-streams");
    let streams = [
        (Protocol::OpenAiCompatible, "alibaba__alibaba-tool-call"),
        (Protocol::Anthropic, "anthropic__anthropic-combined-context-editing.1"),
        (Protocol::Anthropic, "anthropic__anthropic-json-tool.2"),
        (Protocol::Gemini, "google__google-stream-no-args-tool-call"),
        (Protocol::OpenAiResponses, "openai__openai-client-tool-search.2"),
    ];
    let read = |(protocol, name): (Protocol, &str)| {
        let text = std::fs::read_to_string(folder.join(format!("{name}.jsonl")));
        let text = text.expect("the recording can be read");
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        (protocol, framed(protocol, &lines))
    };
    streams.into_iter().map(read).collect()
}

/// Damage to the bytes of a stream.
#[derive(Clone, Debug)]
enum Damage {
    None,
    CutAt(usize),
    Flip(usize),
}

fn damaged(stream: &str, damage: &Damage) -> Vec<u8> {
    let mut bytes = stream.as_bytes().to_vec();
    match damage {
        Damage::None => {}
        Damage::CutAt(at) => bytes.truncate(at % bytes.len()),
        Damage::Flip(at) => {
            let at = at % bytes.len();
            bytes[at] ^= 0x15;
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The events of a complete, truncated or damaged stream do not depend on how its bytes are split.
    #[test]
    fn events_do_not_depend_on_how_bytes_are_split(
        which in 0..5_usize,
        damage in prop_oneof![
            Just(Damage::None), any::<usize>().prop_map(Damage::CutAt),
            any::<usize>().prop_map(Damage::Flip),
        ],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let (protocol, stream) = &recorded()[which];
        let stream = damaged(stream, &damage);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        at.extend([0, stream.len()]);
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
        let whole = rendered(*protocol, &[&stream]);
        prop_assert_eq!(&rendered(*protocol, &pieces), &whole);
        let ends = whole.iter().filter(|event| {
            matches!(event, Err(_) | Ok(ModelEvent::Answer(_)))
        });
        prop_assert_eq!(ends.count(), 1, "exactly one end");
    }
}

/// Split into single bytes.
#[test]
fn a_stream_of_single_bytes() {
    for (protocol, stream) in recorded() {
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        assert_eq!(rendered(protocol, &pieces), rendered(protocol, &[stream.as_bytes()]));
    }
}
