//! Decoding of frames by protocol, regardless of how the stream is split.

mod misplaced;
mod odd_streams;
mod one_call;
mod unread_parts;

use std::path::Path;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use serde_json::json;

use super::body::{arguments_object, arguments_object_text};
use super::*;
use crate::frames::{Frame, Frames};
use crate::{ModelError, ModelEvent, ModelMessage};

type DecodedEvents = Vec<Result<ModelEvent, ModelError>>;

/// All events of a stream that is split into these pieces.
fn rendered(protocol: Protocol, pieces: &[&[u8]]) -> DecodedEvents {
    let mut frames = Frames::new(protocol.framing());
    let mut decoder = protocol.decoder(true);
    let mut gathered = PartialResponse::default();
    let ended = (|| {
        let mut each = |frame: Frame<'_>| gathered.take(decoder.as_mut(), frame);
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
    lines
        .iter()
        .map(|line| match protocol.framing() {
            Framing::Events => format!("data: {line}\r\n\r\n"),
            Framing::Lines => format!("{line}\n"),
        })
        .collect()
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
            let input = usage.input_tokens;
            let output = usage.output_tokens;
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

/// Class: an earlier mistake of the model that every later request repeats. vLLM and llama-server parse the arguments of earlier calls,
/// and refused each request of a session with a call whose arguments are no object.
#[test]
fn arguments_of_earlier_calls_are_sent_as_objects() {
    for (written, sent) in [
        ("", "{}"),
        (r#"{ "n": 1.0 }"#, r#"{ "n": 1.0 }"#),
        (r#"{"n":100000000000000000000000}"#, r#"{"n":100000000000000000000000}"#),
        (r#"{"n":1"#, r#"{"unparsed":"{\"n\":1"}"#),
        ("[1]", r#"{"unparsed":"[1]"}"#),
        ("null", r#"{"unparsed":"null"}"#),
        (r#"{"n":1}{"n":2}"#, r#"{"unparsed":"{\"n\":1}{\"n\":2}"}"#),
        (r#"{"n":NaN}"#, r#"{"unparsed":"{\"n\":NaN}"}"#),
        (r#"{"x":"\ud83d"}"#, r#"{"unparsed":"{\"x\":\"\\ud83d\"}"}"#),
    ] {
        assert_eq!(arguments_object_text(written), sent, "{written}");
    }
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
    // A reason that says nothing withholds nothing.
    check(
        Protocol::Gemini,
        r#"{"promptFeedback":{"blockReason":"BLOCK_REASON_UNSPECIFIED"},"candidates":[{"finishReason":"STOP"}]}"#,
        expect!["End None/None"],
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
            Text(".")
             f {"b": 1, "a": 2}
            i g {'x'
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

/// A chat chunk with this choice.
/// The class: what one answer lacks, or has for the provider only, made every later request of the session fail. Thoughts without
/// their signature are not sent back, and the `extra_content` of a call is.
#[test]
fn opaque_data_is_sent_back_if_it_is_complete() {
    let message_of = |protocol: Protocol, lines: &[String]| {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let events = rendered(protocol, &[framed(protocol, &lines).as_bytes()]);
        match events.into_iter().next_back() {
            Some(Ok(ModelEvent::Answer(answer))) => answer.to_message(),
            event => panic!("there is no answer: {event:?}"),
        }
    };
    let body_of = |protocol: Protocol, message: ModelMessage| {
        protocol.body(&ModelRequest { messages: vec![message], ..ModelRequest::default() })
    };
    let thought = |index: u64, delta: Value| {
        let begun = json!({ "type": "content_block_start", "index": index, "content_block": { "type": "thinking", "thinking": "" } });
        let piece = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        [begun.to_string(), piece.to_string()]
    };
    let end = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#.to_owned();
    let lines = [
        &thought(0, json!({ "type": "thinking_delta", "thinking": "Unsigned." }))[..],
        &thought(1, json!({ "type": "thinking_delta", "thinking": "Signed.", "signature": "s" })),
        &[r#"{"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"So."}}"#.to_owned(), end],
    ];
    let message = message_of(Protocol::Anthropic, &lines.concat());
    let sent = json!([
        { "type": "thinking", "thinking": "Signed.", "signature": "s" }, { "type": "text", "text": "So." }
    ]);
    assert_eq!(body_of(Protocol::Anthropic, message)["messages"][0]["content"], sent);
    let stored = ModelMessage::Assistant {
        text: "So.".to_owned(),
        reasoning: None,
        calls: Vec::new(),
        carry: Some(
            json!({ "anthropic": [{ "type": "thinking", "thinking": "", "signature": "" }] }),
        ),
    };
    let sent = json!([{ "type": "text", "text": "So." }]);
    assert_eq!(body_of(Protocol::Anthropic, stored)["messages"][0]["content"], sent);

    let extra = json!({ "google": { "thought_signature": "s" } });
    let call = |id: &str| json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let mut signed = call("b");
    signed["extra_content"] = extra.clone();
    for calls in [
        json!({ "delta": { "tool_calls": [call("a"), signed] }, "finish_reason": "tool_calls" }),
        json!({ "message": { "tool_calls": [call("a"), signed] }, "finish_reason": "tool_calls" }),
    ] {
        let message = message_of(Protocol::OpenAiCompatible, &[choice(calls)]);
        let sent = body_of(Protocol::OpenAiCompatible, message.clone());
        let sent = &sent["messages"][0]["tool_calls"];
        assert_eq!((&sent[0], &sent[1]), (&call("a"), &signed));
        let sent = body_of(Protocol::OpenAi, message);
        assert_eq!(sent["messages"][0]["tool_calls"][1], call("b"), "OpenAI does not know it");
    }
}

fn choice(choice: Value) -> String {
    json!({ "choices": [choice] }).to_string()
}

/// Regression: an empty `finish_reason` ended the answer, so each later piece of a call became a call of its own.
/// The class: an empty text in a field that means "absent" when it is missing.
#[test]
fn an_empty_text_is_absent() {
    let piece = |id: &str, name: &str, arguments: &str| {
        let function = json!({ "name": name, "arguments": arguments });
        let call = json!({ "index": 0, "id": id, "function": function });
        choice(json!({ "delta": { "tool_calls": [call] }, "finish_reason": "", "error": "" }))
    };
    let lines = [
        piece("a", "wipe", ""),
        piece("", "", "{\"place\": "),
        piece("", "", "\"attic\"}"),
        r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}],"error":""}"#.to_owned(),
    ];
    check(
        Protocol::OpenAiCompatible,
        &lines.join("\n"),
        expect![[r#"
            a wipe {"place": "attic"}
            ToolUse None/None"#]],
    );
    check(
        Protocol::Anthropic,
        r#"
            {"type":"message_start","message":{"content":[],"stop_reason":""},"error":""}
            {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}
            {"type":"message_delta","delta":{"stop_reason":""}}
            {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}}
            {"type":"message_delta","delta":{"stop_reason":"tool_use"}}
        "#,
        expect![[r#"
            t f {"a":1}
            ToolUse None/None"#]],
    );
    check(
        Protocol::Gemini,
        r#"
            {"candidates":[{"content":{"parts":[{"text":"So"}]},"finishReason":""}],"promptFeedback":{"blockReason":""}}
            {"candidates":[{"content":{"parts":null},"finishReason":"STOP"}],"error":{}}
        "#,
        expect![[r#"
            Text("So")
            End None/None"#]],
    );
    check(
        Protocol::Ollama,
        r#"
            {"message":{"content":"So"},"done":false,"done_reason":"","error":""}
            {"message":{"content":"."},"done":true,"done_reason":""}
        "#,
        expect![[r#"
            Text("So")
            Text(".")
            End None/None"#]],
    );
}

/// The class: a part of a call was dropped because no block with its index was open.
#[test]
fn anthropic_input_after_its_block_belongs_to_the_call_of_the_block() {
    let call = |index: u64, id: &str| {
        format!(
            r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"tool_use","id":"{id}","name":"f","input":{{}}}}}}"#
        )
    };
    let input = |index: u64, json: &str| {
        let delta = json!({ "type": "input_json_delta", "partial_json": json });
        json!({ "type": "content_block_delta", "index": index, "delta": delta }).to_string()
    };
    let stop = |index: u64| format!(r#"{{"type":"content_block_stop","index":{index}}}"#);
    let end = r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"}}"#.to_owned();
    // An index is used again without an end, and an end comes before the last piece.
    let lines = [
        call(0, "t1"),
        input(0, "{\"n\":1}"),
        call(0, "t2"),
        input(0, "{\"n\":"),
        stop(0),
        input(0, "2}"),
        call(3, "t3"),
        stop(3),
        input(3, "{\"n\":3}"),
        call(4, "t4"),
        stop(4),
        call(5, "t5"),
        end,
    ];
    // The last call has no end: nothing says that it has no arguments.
    check(
        Protocol::Anthropic,
        &lines.join("\n"),
        expect![[r#"
            t1 f {"n":1}
            t2 f {"n":2}
            t3 f {"n":3}
            t4 f {}
            t5 f 
            ToolUse None/None"#]],
    );
}

/// Regression: such an answer was complete. The class: parts that arrive in another event or shape were ignored.
#[test]
fn everything_that_was_announced_is_delivered() {
    let added = r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","id":"fc","call_id":"c","name":"look","arguments":""}}"#;
    let delta = |item: &str, piece: &str| {
        let kind = "response.function_call_arguments.delta";
        json!({ "type": kind, "item_id": item, "output_index": 0, "delta": piece }).to_string()
    };
    let completed =
        r#"{"type":"response.completed","response":{"status":"completed","output":[]}}"#;
    let lines = [added, &delta("fc", "{\"place\": "), &delta("rotated", "1}"), completed];
    check(
        Protocol::OpenAiResponses,
        &lines.join("\n"),
        expect![[r#"
            c look {"place": 1}
            ToolUse None/None"#]],
    );
    // In every event, and in the last one a second call and more text.
    let whole = r#"{"type":"function_call","id":"fc","call_id":"c","name":"look","arguments":"{\"place\": 1}"}"#;
    let other =
        r#"{"type":"function_call","id":"fd","call_id":"d","name":"look","arguments":"{}"}"#;
    let text = r#"{"type":"message","content":[{"type":"output_text","text":"So far."}]}"#;
    let lines = [
        r#"{"type":"response.output_text.delta","delta":"So"}"#.to_owned(),
        added.to_owned(),
        delta("fc", "{\"place\": 1}"),
        format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{whole}}}"#),
        format!(
            r#"{{"type":"response.completed","response":{{"status":"completed","output":[{text},{whole},{other}]}}}}"#
        ),
    ];
    check(
        Protocol::OpenAiResponses,
        &lines.join("\n"),
        expect![[r#"
            Text("So")
            Text(" far.")
            c look {"place": 1}
            d look {}
            ToolUse None/None"#]],
    );
    let call = r#"{"id":"c","function":{"name":"look","arguments":"{}"}}"#;
    for message in [
        format!(
            r#"{{"message":{{"content":"So.","tool_calls":[{call}]}},"finish_reason":"stop"}}"#
        ),
        format!(
            r#"{{"delta":{{"role":"assistant"}},"message":{{"content":"So.","tool_calls":{call}}},"finish_reason":"stop"}}"#
        ),
    ] {
        check(
            Protocol::OpenAiCompatible,
            &format!(r#"{{"choices":[{message}]}}"#),
            expect![[r#"
                Text("So.")
                c look {}
                ToolUse None/None"#]],
        );
    }
    let legacy = [
        r#"{"choices":[{"delta":{"function_call":{"name":"look","arguments":"{\"n\""}}}]}"#,
        r#"{"choices":[{"delta":{"function_call":{"arguments":":1}"}},"finish_reason":"function_call"}]}"#,
    ];
    check(
        Protocol::OpenAiCompatible,
        &legacy.join("\n"),
        expect![[r#"
             look {"n":1}
            ToolUse None/None"#]],
    );
    let announced = r#"{"choices":[{"delta":{"content":"Wait."},"finish_reason":"tool_calls"}]}"#;
    check(
        Protocol::OpenAiCompatible,
        announced,
        expect![[r#"
            Text("Wait.")
            invalid_response: the provider announced tool calls, but sent none"#]],
    );
}

/// Regression: `finish_reason: "error"` was a complete answer, and the provider's message was nowhere.
#[test]
fn a_reason_that_means_failure_is_an_error() {
    let ends = |protocol: Protocol, line: &str| {
        let events = rendered(protocol, &[framed(protocol, &[line]).as_bytes()]);
        match events.last() {
            Some(Ok(ModelEvent::Answer(answer))) => format!("{:?}", answer.stop),
            Some(Err(error)) => format!("{}: {error}", error.kind),
            other => format!("{other:?}"),
        }
    };
    let mut shown = String::new();
    for reason in ["error", "network_error", "upstream_timed-out", "eos", "max_tokens", "weird"] {
        let line = choice(json!({ "delta": { "content": "Half" }, "finish_reason": reason }));
        shown += &format!("{reason}: {}\n", ends(Protocol::OpenAiCompatible, &line));
    }
    let error = json!({ "code": 502, "message": "upstream broke" });
    for field in
        [json!({ "finish_reason": "error" }), json!({ "finish_reason": "stop" }), json!({})]
    {
        let mut failed = field;
        failed["error"] = error.clone();
        shown += &format!("{}\n", ends(Protocol::OpenAiCompatible, &choice(failed)));
    }
    for (protocol, line) in [
        (
            Protocol::Gemini,
            r#"{"candidates":[{"finishReason":"MALFORMED_FUNCTION_CALL","finishMessage":"bad call"}]}"#,
        ),
        (Protocol::Anthropic, r#"{"type":"message_delta","delta":{"stop_reason":"error"}}"#),
        (Protocol::Ollama, r#"{"done":true,"done_reason":"load"}"#),
        (
            Protocol::OpenAiResponses,
            r#"{"type":"response.completed","response":{"status":"failed"}}"#,
        ),
        (
            Protocol::OpenAiResponses,
            r#"{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"odd"}}}"#,
        ),
        (
            Protocol::OpenAiResponses,
            r#"{"type":"response.completed","response":{"status":"completed","error":{"message":"late"}}}"#,
        ),
        (
            Protocol::OpenAiResponses,
            r#"{"type":"response.cancelled","response":{"status":"cancelled","error":null,"output":[]}}"#,
        ),
        (Protocol::OpenAiCompatible, r#"{"object":"error","message":"no such model","code":404}"#),
    ] {
        shown += &format!("{}\n", ends(protocol, line));
    }
    expect![[r#"
        error: invalid_response: the provider ended the answer: error
        network_error: invalid_response: the provider ended the answer: network_error
        upstream_timed-out: invalid_response: the provider ended the answer: upstream_timed-out
        eos: End
        max_tokens: Length
        weird: Other("weird")
        unavailable: the provider reported an error: upstream broke
        unavailable: the provider reported an error: upstream broke
        unavailable: the provider reported an error: upstream broke
        invalid_response: the provider ended the answer: MALFORMED_FUNCTION_CALL: bad call
        invalid_response: the provider ended the answer: error
        invalid_response: the provider ended the answer: load
        invalid_response: the provider ended the answer: failed
        invalid_response: the provider ended the answer: odd
        unavailable: the provider reported an error: late
        invalid_response: the provider ended the answer: cancelled
        bad_request: the provider reported an error: no such model
    "#]]
    .assert_eq(&shown);
}

/// Regression: half an emoji cost three paid attempts and the answer. The class: one undecodable value.
#[test]
fn halves_of_surrogate_pairs_are_replaced_in_texts_and_stay_errors_in_arguments() {
    check(
        Protocol::OpenAiCompatible,
        r#"
            {"choices":[{"delta":{"content":"Key \ud83d"}}]}
            {"choices":[{"delta":{"content":"\udd11 found","tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":\"\ud83d"}}]}}]}
            {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\udd11\"}"}}]}}]}
            {"choices":[{"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"f","arguments":"{\"x\":\"\ud83d\"}"}}]},"finish_reason":"tool_calls"}]}
        "#,
        expect![[r#"
            Text("Key �")
            Text("� found")
            a f {"x":"\ud83d\udd11"}
            b f {"x":"\ud83d"}
            ToolUse None/None"#]],
    );
    let input = r#"{"x": "\ud83d"}"#;
    let lines = [
        (
            Protocol::Anthropic,
            format!(
                r#"{{"type":"message_start","message":{{"content":[{{"type":"text","text":"\udd11"}},{{"type":"tool_use","id":"t","name":"f","input":{input}}}],"stop_reason":"tool_use"}}}}"#
            ),
        ),
        (
            Protocol::Ollama,
            format!(
                r#"{{"message":{{"content":"\udd11","tool_calls":[{{"id":"t","function":{{"name":"f","arguments":{input}}}}}]}},"done":true}}"#
            ),
        ),
        (
            Protocol::Gemini,
            format!(
                r#"{{"candidates":[{{"content":{{"parts":[{{"text":"\udd11"}},{{"functionCall":{{"id":"t","name":"f","args":{input}}}}}]}},"finishReason":"STOP"}}]}}"#
            ),
        ),
    ];
    for (protocol, line) in lines {
        check(
            protocol,
            &line,
            expect![[r#"
                Text("�")
                t f {"x": "\ud83d"}
                ToolUse None/None"#]],
        );
    }
    let damaged = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\xffb\"},\"finish_reason\":\"stop\"}]}\n\n";
    let text = rendered(Protocol::OpenAiCompatible, &[damaged]);
    assert_eq!(text[0], Ok(ModelEvent::Text("a\u{fffd}b".to_owned())));
}
