//! One call of the model is one call of the tool, with the arguments that the model wrote. An outside tester found streams
//! of real servers with which a tool paid twice, or with other arguments. Each test is a class of them.

use super::*;

pub(super) const A: &str = r#"{"order":"A-7","cents":100}"#;
pub(super) const B: &str = r#"{"order":"B-8","cents":200}"#;

/// Returns the calls of a stream, one per line, or its error. Arguments that would not run are marked.
pub(super) fn calls_of(protocol: Protocol, frames: &[Value]) -> String {
    let lines: Vec<String> = frames
        .iter()
        .map(|frame| frame.as_str().map_or_else(|| frame.to_string(), str::to_owned))
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let events = rendered(protocol, &[framed(protocol, &lines).as_bytes()]);
    match events.last().expect("the stream ends") {
        Ok(ModelEvent::Answer(answer)) => {
            let lines = answer.calls.iter().map(|call| {
                let runs = serde_json::from_str::<Value>(&call.arguments).is_ok();
                let mark = if runs { "" } else { "not run: " };
                format!("{mark}{} {} {}", call.id, call.name, call.arguments)
            });
            lines.collect::<Vec<_>>().join("\n")
        }
        Ok(event) => format!("{event:?}"),
        Err(error) => format!("{}: {error}", error.kind),
    }
}

/// Checks the calls of several streams, each with a title.
#[track_caller]
pub(super) fn check_all(protocol: Protocol, streams: &[(&str, Vec<Value>)], expected: Expect) {
    let shown = streams.iter().map(|(title, frames)| {
        let calls = calls_of(protocol, frames);
        let lines: Vec<String> = calls.lines().map(|line| format!("  {line}\n")).collect();
        format!("{title}\n{}", lines.concat())
    });
    expected.assert_eq(&shown.collect::<String>());
}

// Chat completions.

pub(super) fn delta(delta: Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
}

pub(super) fn reason(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

/// A call in a chunk. Each empty or absent field is left out, except for the arguments.
pub(super) fn tool_call(index: Option<u64>, id: &str, name: &str, arguments: &str) -> Value {
    let mut call = json!({ "function": { "arguments": arguments } });
    if let Some(index) = index {
        call["index"] = json!(index);
    }
    if !id.is_empty() {
        call["id"] = json!(id);
    }
    if !name.is_empty() {
        call["function"]["name"] = json!(name);
    }
    call
}

/// A stream with a call in each chunk.
pub(super) fn chat_stream(calls: &[(Option<u64>, &str, &str, &str)]) -> Vec<Value> {
    let mut frames: Vec<Value> = calls
        .iter()
        .map(|(index, id, name, arguments)| {
            delta(json!({ "tool_calls": [tool_call(*index, id, name, arguments)] }))
        })
        .collect();
    frames.push(reason("tool_calls"));
    frames
}

// Responses.

pub(super) fn item(id: &str, call_id: &str, arguments: &str) -> Value {
    json!({ "type": "function_call", "id": id, "call_id": call_id, "name": "pay", "arguments": arguments })
}

pub(super) fn added(index: u64, id: &str, call_id: &str) -> Value {
    let item = item(id, call_id, "");
    json!({ "type": "response.output_item.added", "output_index": index, "item": item })
}

pub(super) fn piece(index: u64, id: &str, text: &str) -> Value {
    let kind = "response.function_call_arguments.delta";
    json!({ "type": kind, "output_index": index, "item_id": id, "delta": text })
}

pub(super) fn arguments_done(index: u64, id: &str, text: &str) -> Value {
    let kind = "response.function_call_arguments.done";
    json!({ "type": kind, "output_index": index, "item_id": id, "arguments": text })
}

pub(super) fn done(index: u64, item: &Value) -> Value {
    json!({ "type": "response.output_item.done", "output_index": index, "item": item })
}

pub(super) fn completed(output: &[Value]) -> Value {
    let response = json!({ "status": "completed", "output": output });
    json!({ "type": "response.completed", "response": response })
}

// Anthropic.

pub(super) fn start() -> Value {
    json!({ "type": "message_start", "message": { "content": [] } })
}

pub(super) fn block(index: u64, id: &str, input: Value) -> Value {
    let block = json!({ "type": "tool_use", "id": id, "name": "pay", "input": input });
    json!({ "type": "content_block_start", "index": index, "content_block": block })
}

pub(super) fn input(index: u64, piece: Value) -> Value {
    let delta = json!({ "type": "input_json_delta", "partial_json": piece });
    json!({ "type": "content_block_delta", "index": index, "delta": delta })
}

pub(super) fn block_stop(index: u64) -> Value {
    json!({ "type": "content_block_stop", "index": index })
}

pub(super) fn stop_reason(reason: &str) -> Value {
    json!({ "type": "message_delta", "delta": { "stop_reason": reason } })
}

/// The class: the events of one Responses stream name one item with different ids (vllm-project/vllm#47916), and the tool
/// ran once for each name. The place in the output identifies an item, too.
#[test]
fn responses_items_are_identified_by_their_place_if_their_ids_change() {
    let whole = item("fc1", "c1", A);
    let other = item("zz", "zz", A);
    let reasoning = json!({ "type": "reasoning", "id": "rs", "summary": [] });
    let begun = vec![added(0, "fc1", "c1"), piece(0, "fc1", A)];
    let with = |more: &[Value]| [begun.clone(), more.to_vec()].concat();
    check_all(
        Protocol::OpenAiResponses,
        &[
            (
                "final list with other ids",
                with(&[
                    arguments_done(0, "fc1", A),
                    done(0, &whole),
                    completed(std::slice::from_ref(&other)),
                ]),
            ),
            ("no done", with(&[completed(std::slice::from_ref(&other))])),
            (
                "done with other ids",
                with(&[done(0, &other), completed(std::slice::from_ref(&whole))]),
            ),
            ("done with other ids, no list", with(&[done(0, &other), completed(&[])])),
            (
                "new ids in each event",
                with(&[
                    arguments_done(0, "x", A),
                    done(0, &item("y", "y", A)),
                    completed(&[item("z", "z", A)]),
                ]),
            ),
            ("only done", vec![done(0, &whole), completed(std::slice::from_ref(&other))]),
            (
                "shifted by reasoning",
                with(&[done(0, &whole), completed(&[reasoning, other.clone()])]),
            ),
            (
                "two calls, other ids and order",
                with(&[
                    added(1, "fc2", "c2"),
                    piece(1, "fc2", B),
                    completed(&[item("y", "y", B), item("z", "z", A)]),
                ]),
            ),
            (
                "two equal calls",
                with(&[
                    added(1, "fc2", "c2"),
                    piece(1, "fc2", A),
                    completed(&[item("y", "y", A), item("z", "z", A)]),
                ]),
            ),
            ("one more", with(&[completed(&[other.clone(), item("new", "new", B)])])),
            (
                "one id for all, in another order",
                with(&[
                    added(1, "fc2", "c1"),
                    piece(1, "fc2", B),
                    completed(&[item("y", "c1", B), item("z", "c1", A)]),
                ]),
            ),
            ("other arguments", with(&[completed(&[item("zz", "zz", B)])])),
            ("done with other arguments", with(&[done(0, &item("fc1", "c1", B)), completed(&[])])),
            (
                "arguments of a complete call with a new id do not go to the next call",
                with(&[
                    added(1, "fc2", "c2"),
                    arguments_done(0, "x", A),
                    piece(1, "fc2", B),
                    completed(&[]),
                ]),
            ),
            (
                "an item at the same place after the first was done",
                with(&[
                    done(0, &whole),
                    added(0, "fc2", "c2"),
                    piece(0, "fc2", B),
                    done(0, &item("fc2", "c2", B)),
                    completed(&[whole, item("fc2", "c2", B)]),
                ]),
            ),
        ],
        expect![[r#"
            final list with other ids
              c1 pay {"order":"A-7","cents":100}
            no done
              c1 pay {"order":"A-7","cents":100}
            done with other ids
              c1 pay {"order":"A-7","cents":100}
            done with other ids, no list
              c1 pay {"order":"A-7","cents":100}
            new ids in each event
              c1 pay {"order":"A-7","cents":100}
            only done
              c1 pay {"order":"A-7","cents":100}
            shifted by reasoning
              c1 pay {"order":"A-7","cents":100}
            two calls, other ids and order
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"B-8","cents":200}
            two equal calls
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"A-7","cents":100}
            one more
              c1 pay {"order":"A-7","cents":100}
              new pay {"order":"B-8","cents":200}
            one id for all, in another order
              c1 pay {"order":"A-7","cents":100}
              c1 pay {"order":"B-8","cents":200}
            other arguments
              not run: c1 pay {"order":"A-7","cents":100}{"order":"B-8","cents":200}
            done with other arguments
              not run: c1 pay {"order":"A-7","cents":100}{"order":"B-8","cents":200}
            arguments of a complete call with a new id do not go to the next call
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"B-8","cents":200}
            an item at the same place after the first was done
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"B-8","cents":200}
        "#]],
    );
}

/// The class: one id in several places was a call in each. LocalAI sends a call under each index.
#[test]
fn one_id_at_several_places_is_one_call() {
    let one = |index| (Some(index), "c1", "pay", A);
    check_all(
        Protocol::OpenAiCompatible,
        &[
            ("several indexes", chat_stream(&[one(0), one(1), one(2)])),
            (
                "head, pieces, and again under two indexes",
                chat_stream(&[(Some(0), "c1", "pay", ""), (Some(0), "c1", "", A), one(1), one(2)]),
            ),
            (
                "in pieces",
                chat_stream(&[
                    one(0),
                    (Some(1), "c1", "pay", ""),
                    (Some(1), "", "", &A[..9]),
                    (Some(1), "", "", &A[9..]),
                ]),
            ),
            (
                "bare heads",
                chat_stream(&[
                    (Some(0), "c1", "pay", ""),
                    (Some(1), "c1", "pay", ""),
                    (Some(1), "c1", "", A),
                ]),
            ),
            (
                "as JSON",
                chat_stream(&[
                    one(0),
                    (Some(1), "c1", "pay", r#"{"cents": 100.0, "order": "A-7"}"#),
                ]),
            ),
            ("without an index", chat_stream(&[(None, "c1", "pay", A), (None, "c1", "pay", A)])),
            ("again without the id", chat_stream(&[one(0), (Some(1), "", "pay", A)])),
            ("other arguments", chat_stream(&[one(0), (Some(1), "c1", "pay", B)])),
            ("another tool", chat_stream(&[one(0), (Some(0), "c1", "look", B)])),
            (
                "another tool before its arguments",
                chat_stream(&[(Some(0), "c1", "pay", ""), (Some(0), "c1", "look", B)]),
            ),
        ],
        expect![[r#"
            several indexes
              c1 pay {"order":"A-7","cents":100}
            head, pieces, and again under two indexes
              c1 pay {"order":"A-7","cents":100}
            in pieces
              c1 pay {"order":"A-7","cents":100}
            bare heads
              c1 pay {"order":"A-7","cents":100}
            as JSON
              c1 pay {"order":"A-7","cents":100}
            without an index
              c1 pay {"order":"A-7","cents":100}
            again without the id
              c1 pay {"order":"A-7","cents":100}
            other arguments
              c1 pay {"order":"A-7","cents":100}
              c1 pay {"order":"B-8","cents":200}
            another tool
              invalid_response: the stream names one call `pay` and `look`
            another tool before its arguments
              invalid_response: the stream names one call `pay` and `look`
        "#]],
    );
    check_all(
        Protocol::Anthropic,
        &[(
            "two blocks",
            vec![
                start(),
                block(0, "t", json!({})),
                input(0, json!(A)),
                block_stop(0),
                block(1, "t", json!({})),
                input(1, json!(A)),
                block_stop(1),
                stop_reason("tool_use"),
            ],
        )],
        expect![[r#"
            two blocks
              t pay {"order":"A-7","cents":100}
        "#]],
    );
    check_all(
        Protocol::OpenAiResponses,
        &[
            (
                "two items",
                vec![
                    added(0, "fc1", "c1"),
                    piece(0, "fc1", A),
                    added(1, "fc2", "c1"),
                    piece(1, "fc2", A),
                    completed(&[item("fc1", "c1", A), item("fc2", "c1", A)]),
                ],
            ),
            (
                "two items that are only done",
                vec![
                    done(0, &item("fc1", "c1", A)),
                    done(1, &item("fc2", "c1", A)),
                    done(2, &item("fc3", "c1", B)),
                    completed(&[]),
                ],
            ),
        ],
        expect![[r#"
            two items
              c1 pay {"order":"A-7","cents":100}
            two items that are only done
              c1 pay {"order":"A-7","cents":100}
              c1 pay {"order":"B-8","cents":200}
        "#]],
    );
    let args = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
    let call = |id: &str, text: &str| json!({ "functionCall": { "id": id, "name": "pay", "args": args(text) } });
    check_all(
        Protocol::Gemini,
        &[(
            "two parts",
            vec![
                json!({ "candidates": [{ "content": { "parts": [call("f", "{}"), call("f", A)] } }] }),
                json!({ "candidates": [{ "content": { "parts": [call("f", A), call("f", "{}")] }, "finishReason": "STOP" }] }),
            ],
        )],
        expect![[r#"
            two parts
              f pay {"cents":100,"order":"A-7"}
        "#]],
    );
}

/// The class: a repetition was compared as text, so white space made a second call of it (BerriAI/litellm#20480 encodes it
/// once more). Different arguments for one id and index contradict each other: neither runs.
#[test]
fn repeated_arguments_are_compared_as_json() {
    let encoded = json!(A).to_string();
    let twice = json!(encoded).to_string();
    let after =
        |text: &str| chat_stream(&[(Some(0), "c1", "pay", A), (Some(0), "c1", "pay", text)]);
    check_all(
        Protocol::OpenAiCompatible,
        &[
            ("the same", after(A)),
            ("white space", after(r#"{ "order": "A-7", "cents": 100 }"#)),
            ("order", after(r#"{"cents":100,"order":"A-7"}"#)),
            ("escapes", after(r#"{"order":"\u0041-7","cents":100}"#)),
            ("encoded", after(&encoded)),
            ("encoded twice", after(&twice)),
            (
                "encoded, without a name",
                chat_stream(&[(Some(0), "c1", "pay", A), (Some(0), "c1", "", &encoded)]),
            ),
            (
                "in pieces",
                chat_stream(&[
                    (Some(0), "c1", "pay", A),
                    (Some(0), "c1", "pay", &A[..7]),
                    (Some(0), "", "", &A[7..]),
                ]),
            ),
            ("other arguments", after(B)),
            ("more arguments", after(r#"{"order":"A-7","cents":100,"fast":true}"#)),
            (
                "integers that a double cannot tell apart",
                chat_stream(&[
                    (Some(0), "c1", "pay", r#"{"n":123456789012345678901}"#),
                    (Some(0), "c1", "pay", r#"{"n":123456789012345678902}"#),
                ]),
            ),
        ],
        expect![[r#"
            the same
              c1 pay {"order":"A-7","cents":100}
            white space
              c1 pay {"order":"A-7","cents":100}
            order
              c1 pay {"order":"A-7","cents":100}
            escapes
              c1 pay {"order":"A-7","cents":100}
            encoded
              c1 pay {"order":"A-7","cents":100}
            encoded twice
              c1 pay {"order":"A-7","cents":100}
            encoded, without a name
              c1 pay {"order":"A-7","cents":100}
            in pieces
              c1 pay {"order":"A-7","cents":100}
            other arguments
              not run: c1 pay {"order":"A-7","cents":100}{"order":"B-8","cents":200}
            more arguments
              not run: c1 pay {"order":"A-7","cents":100}{"order":"A-7","cents":100,"fast":true}
            integers that a double cannot tell apart
              not run: c1 pay {"n":123456789012345678901}{"n":123456789012345678902}
        "#]],
    );
    let with_input = |piece: &str| {
        let given = serde_json::from_str::<Value>(A).expect("it is JSON");
        vec![
            start(),
            block(0, "t", given),
            input(0, json!(piece)),
            block_stop(0),
            stop_reason("tool_use"),
        ]
    };
    let again = |text: &str| {
        vec![
            block(0, "t", json!({})),
            input(0, json!(text)),
            block_stop(0),
            stop_reason("tool_use"),
        ]
    };
    check_all(
        Protocol::Anthropic,
        &[
            ("input and equal pieces", with_input(A)),
            ("input and other pieces", with_input(B)),
            ("the block again", [again(A), again(A)].concat()),
            ("the block again with other input", [again(A), again(B)].concat()),
        ],
        expect![[r#"
            input and equal pieces
              t pay {"cents":100,"order":"A-7"}
            input and other pieces
              not run: t pay {"cents":100,"order":"A-7"}{"order":"B-8","cents":200}
            the block again
              t pay {"order":"A-7","cents":100}
            the block again with other input
              not run: t pay {"order":"A-7","cents":100}{"order":"B-8","cents":200}
        "#]],
    );
}

/// The class: `function_call`, the older form of `tool_calls`, was a second call beside it (llama.cpp sends both).
#[test]
fn function_call_beside_tool_calls_is_ignored() {
    let function = |name: &str, text: &str| json!({ "name": name, "arguments": text });
    let both = |name: &str, text: &str| {
        delta(json!({
            "function_call": function(name, text),
            "tool_calls": [tool_call(Some(0), "call_0", name, text)],
        }))
    };
    let legacy = |name: &str, text: &str| delta(json!({ "function_call": function(name, text) }));
    let modern =
        |text: &str| delta(json!({ "tool_calls": [tool_call(Some(0), "c1", "pay", text)] }));
    let message = json!({ "choices": [{ "message": {
        "function_call": function("pay", A), "tool_calls": [tool_call(None, "c1", "pay", A)]
    } }] });
    let end = reason("function_call");
    check_all(
        Protocol::OpenAiCompatible,
        &[
            ("both", vec![both("pay", A), end.clone()]),
            (
                "both in pieces",
                vec![both("pay", ""), both("pay", &A[..9]), both("pay", &A[9..]), end.clone()],
            ),
            ("older first", vec![legacy("pay", A), modern(A), end.clone()]),
            (
                "older first in pieces",
                vec![legacy("pay", &A[..9]), modern(A), legacy("", &A[9..]), end.clone()],
            ),
            ("older last", vec![modern(A), legacy("pay", A), end.clone()]),
            ("message", vec![message.clone(), end.clone()]),
            ("older, then message", vec![legacy("pay", A), message, end.clone()]),
            ("alone", vec![legacy("pay", ""), legacy("", &A[..9]), legacy("", &A[9..]), end]),
        ],
        expect![[r#"
            both
              call_0 pay {"order":"A-7","cents":100}
            both in pieces
              call_0 pay {"order":"A-7","cents":100}
            older first
              c1 pay {"order":"A-7","cents":100}
            older first in pieces
              c1 pay {"order":"A-7","cents":100}
            older last
              c1 pay {"order":"A-7","cents":100}
            message
              c1 pay {"order":"A-7","cents":100}
            older, then message
              c1 pay {"order":"A-7","cents":100}
            alone
               pay {"order":"A-7","cents":100}
        "#]],
    );
}

/// The class: a message or a list at the end repeats the calls under other ids or indexes, and they ran again.
#[test]
fn a_final_list_repeats_the_calls() {
    let message = |calls: &[Value]| json!({ "choices": [{ "delta": {}, "message": { "tool_calls": calls }, "finish_reason": "tool_calls" }] });
    let first = delta(json!({ "tool_calls": [tool_call(Some(0), "c1", "pay", A)] }));
    let second = delta(json!({ "tool_calls": [tool_call(Some(0), "c2", "pay", B)] }));
    let listed = delta(json!({ "tool_calls": [
        tool_call(Some(0), "c1", "pay", A), tool_call(Some(1), "c2", "pay", B)
    ] }));
    let renamed = delta(json!({ "tool_calls": [
        tool_call(Some(0), "y", "pay", A), tool_call(Some(1), "z", "pay", B)
    ] }));
    let end = reason("tool_calls");
    check_all(
        Protocol::OpenAiCompatible,
        &[
            ("other id", vec![first.clone(), message(&[tool_call(None, "zz", "pay", A)])]),
            ("no id", vec![first.clone(), message(&[tool_call(None, "", "pay", A)])]),
            (
                "other ids and order",
                vec![
                    first.clone(),
                    second.clone(),
                    message(&[tool_call(None, "y", "pay", B), tool_call(None, "z", "pay", A)]),
                ],
            ),
            ("other indexes", vec![first.clone(), second.clone(), listed, end.clone()]),
            ("list of pieces with other ids", vec![first.clone(), second.clone(), renamed, end]),
            (
                "white space",
                vec![
                    first.clone(),
                    message(&[tool_call(
                        Some(3),
                        "zz",
                        "pay",
                        r#"{ "cents": 100, "order": "A-7" }"#,
                    )]),
                ],
            ),
            ("placeholder", vec![first.clone(), message(&[tool_call(None, "zz", "pay", "{}")])]),
            ("other arguments", vec![first.clone(), message(&[tool_call(None, "zz", "pay", B)])]),
            (
                "one more",
                vec![
                    first,
                    message(&[tool_call(None, "c1", "pay", A), tool_call(None, "c2", "pay", B)]),
                ],
            ),
        ],
        expect![[r#"
            other id
              c1 pay {"order":"A-7","cents":100}
            no id
              c1 pay {"order":"A-7","cents":100}
            other ids and order
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"B-8","cents":200}
            other indexes
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"B-8","cents":200}
            list of pieces with other ids
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"B-8","cents":200}
            white space
              c1 pay {"order":"A-7","cents":100}
            placeholder
              c1 pay {"order":"A-7","cents":100}
            other arguments
              not run: c1 pay {"order":"A-7","cents":100}{"order":"B-8","cents":200}
            one more
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"B-8","cents":200}
        "#]],
    );
}

/// The class: `{}` that a server sends before or after the real arguments ran as a call of its own.
#[test]
fn a_placeholder_is_no_call() {
    let pair = |first: (u64, &'static str), second: (u64, &'static str)| {
        chat_stream(&[
            (Some(first.0), "c1", "pay", first.1),
            (Some(second.0), "c1", "pay", second.1),
        ])
    };
    check_all(
        Protocol::OpenAiCompatible,
        &[
            ("before", pair((0, "{}"), (0, A))),
            ("after", pair((0, A), (0, "{ }"))),
            ("before, other index", pair((0, "{}"), (1, A))),
            ("after, other index", pair((0, A), (1, "{}"))),
            ("null", pair((0, "null"), (0, A))),
            ("twice", pair((0, "{}"), (0, "{}"))),
            ("valid prefix", pair((0, r#"{"order":"A-7"}"#), (0, A))),
            ("without a name", chat_stream(&[(Some(0), "c1", "pay", "{}"), (Some(0), "", "", A)])),
            (
                "in pieces",
                chat_stream(&[
                    (Some(0), "c1", "pay", "{}"),
                    (Some(0), "c1", "pay", &A[..9]),
                    (Some(0), "c1", "pay", &A[9..]),
                ]),
            ),
            ("without an index", chat_stream(&[(None, "c1", "pay", "{}"), (None, "c1", "pay", A)])),
            ("without an id", chat_stream(&[(Some(0), "", "pay", "{}"), (Some(0), "", "pay", A)])),
            ("another id", chat_stream(&[(Some(0), "c1", "pay", "{}"), (Some(0), "c2", "pay", A)])),
        ],
        expect![[r#"
            before
              c1 pay {"order":"A-7","cents":100}
            after
              c1 pay {"order":"A-7","cents":100}
            before, other index
              c1 pay {"order":"A-7","cents":100}
            after, other index
              c1 pay {"order":"A-7","cents":100}
            null
              c1 pay {"order":"A-7","cents":100}
            twice
              c1 pay {}
            valid prefix
              not run: c1 pay {"order":"A-7"}{"order":"A-7","cents":100}
            without a name
              c1 pay {"order":"A-7","cents":100}
            in pieces
              c1 pay {"order":"A-7","cents":100}
            without an index
              c1 pay {"order":"A-7","cents":100}
            without an id
               pay {"order":"A-7","cents":100}
            another id
              c1 pay {}
              c2 pay {"order":"A-7","cents":100}
        "#]],
    );
    check_all(
        Protocol::OpenAiResponses,
        &[(
            "in the last events",
            vec![
                added(0, "fc1", "c1"),
                piece(0, "fc1", A),
                done(0, &item("fc1", "c1", "{}")),
                completed(&[item("zz", "zz", "{}")]),
            ],
        )],
        expect![[r#"
            in the last events
              c1 pay {"order":"A-7","cents":100}
        "#]],
    );
}

/// The class: arguments with another id and index than those of any call went to the call that began last.
#[test]
fn arguments_of_a_call_without_a_name_go_to_no_other_call() {
    let head = (Some(0), "c1", "pay", "");
    check_all(
        Protocol::OpenAiCompatible,
        &[
            ("other id and index", chat_stream(&[head, (Some(1), "c2", "", B)])),
            ("other index", chat_stream(&[head, (Some(1), "", "", B)])),
            (
                "after a complete call",
                chat_stream(&[(Some(0), "c1", "pay", A), (Some(1), "", "", B)]),
            ),
            (
                "other id without indexes",
                chat_stream(&[(None, "c1", "pay", ""), (None, "c2", "", B)]),
            ),
            (
                "other id after a placeholder",
                chat_stream(&[(Some(0), "c1", "pay", "{}"), (Some(0), "c2", "", B)]),
            ),
            (
                "third of two",
                chat_stream(&[head, (Some(1), "c2", "pay", ""), (Some(2), "", "", B)]),
            ),
            (
                "name follows",
                chat_stream(&[head, (Some(1), "c2", "", B), (Some(1), "c2", "pay", "")]),
            ),
            ("other id at the same index", chat_stream(&[head, (Some(0), "c2", "", A)])),
        ],
        expect![[r#"
            other id and index
              invalid_response: the stream has a tool call without a name
            other index
              invalid_response: the stream has a tool call without a name
            after a complete call
              invalid_response: the stream has a tool call without a name
            other id without indexes
              invalid_response: the stream has a tool call without a name
            other id after a placeholder
              invalid_response: the stream has a tool call without a name
            third of two
              invalid_response: the stream has a tool call without a name
            name follows
              not run: c1 pay 
              c2 pay {"order":"B-8","cents":200}
            other id at the same index
              c1 pay {"order":"A-7","cents":100}
        "#]],
    );
}

/// The class: a gateway tried again within one stream, and both answers were one: two calls, or joined text.
#[test]
fn a_second_message_in_one_anthropic_stream_is_an_error() {
    let call = |id: &str| [block(0, id, json!({})), input(0, json!(A)), block_stop(0)];
    let end = [stop_reason("tool_use")];
    let text = |text: &str| {
        let delta = json!({ "type": "text_delta", "text": text });
        [json!({ "type": "content_block_delta", "index": 0, "delta": delta })]
    };
    check_all(
        Protocol::Anthropic,
        &[
            ("calls", [&[start()][..], &call("t1"), &[start()], &call("t9"), &end].concat()),
            ("text", [&[start()][..], &text("Half"), &[start()], &text("Whole"), &end].concat()),
            ("first start is missing", [&call("t1")[..], &[start()], &call("t9"), &end].concat()),
            (
                "after the end",
                [&[start()][..], &call("t1"), &end, &[json!({ "type": "message_stop" }), start()]]
                    .concat(),
            ),
        ],
        expect![[r#"
            calls
              invalid_response: the stream begins a second message
            text
              invalid_response: the stream begins a second message
            first start is missing
              invalid_response: the stream begins a second message
            after the end
              t1 pay {"order":"A-7","cents":100}
        "#]],
    );
}

/// The class: input that is absent ran as `{}`. Only a block that says `{}` has no arguments.
#[test]
fn absent_anthropic_input_is_no_object() {
    let stream = |begin: Value, more: &[Value]| {
        [&[start(), begin][..], more, &[block_stop(0), stop_reason("tool_use")]].concat()
    };
    let mut missing = block(0, "t", Value::Null);
    missing["content_block"].as_object_mut().expect("it is an object").remove("input");
    check_all(
        Protocol::Anthropic,
        &[
            ("null", stream(block(0, "t", Value::Null), &[])),
            ("null and an empty piece", stream(block(0, "t", Value::Null), &[input(0, json!(""))])),
            ("missing", stream(missing.clone(), &[])),
            ("missing and pieces", stream(missing, &[input(0, json!(A))])),
            ("piece is null", stream(block(0, "t", json!({})), &[input(0, Value::Null)])),
            ("empty object", stream(block(0, "t", json!({})), &[])),
            ("empty piece", stream(block(0, "t", json!({})), &[input(0, json!(""))])),
        ],
        expect![[r#"
            null
              not run: t pay 
            null and an empty piece
              not run: t pay 
            missing
              not run: t pay 
            missing and pieces
              t pay {"order":"A-7","cents":100}
            piece is null
              not run: t pay 
            empty object
              t pay {}
            empty piece
              t pay {}
        "#]],
    );
}

/// The class: a reason that nobody has listed was success, with text cut in the middle, or with calls that ran.
#[test]
fn reasons_that_are_not_known_to_be_good() {
    let ends = |protocol: Protocol, frames: &[Value]| {
        let lines: Vec<String> = frames.iter().map(Value::to_string).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let events = rendered(protocol, &[framed(protocol, &lines).as_bytes()]);
        match events.last() {
            Some(Ok(ModelEvent::Answer(answer))) => format!("{:?}", answer.stop),
            Some(Err(error)) => error.to_string(),
            event => format!("{event:?}"),
        }
    };
    let text = delta(json!({ "content": "Half" }));
    let call = delta(json!({ "tool_calls": [tool_call(Some(0), "c1", "pay", A)] }));
    let mut shown = String::new();
    for code in [
        "RECITATION",
        "BLOCKLIST",
        "SPII",
        "LANGUAGE",
        "guardrail_intervened",
        "content_filter: RECITATION",
        "OTHER",
        "MISSING_THOUGHT_SIGNATURE",
        "TOO_MANY_TOOL_CALLS",
        "FINISH_REASON_UNSPECIFIED",
        "function_call_filter: MALFORMED_FUNCTION_CALL",
        "function_call_filter: UNEXPECTED_TOOL_CALL",
        "UNEXPECTED_TOOL_CALL",
        "incomplete",
        "repetition",
        "time_limit",
        "oom",
        "pause_turn",
        "truncated",
        "max_new_tokens",
        "max_len",
        "context_window",
        "cancelled: stop",
        "eos",
        "new_reason",
    ] {
        let with_text = ends(Protocol::OpenAiCompatible, &[text.clone(), reason(code)]);
        let with_call = ends(Protocol::OpenAiCompatible, &[call.clone(), reason(code)]);
        shown += &format!("{code}: {with_text}\n");
        if with_call != with_text {
            shown += &format!("  with a call: {with_call}\n");
        }
        let listed = matches!(code, "eos" | "new_reason");
        assert!(
            listed || !with_call.contains("ToolUse") && !with_call.contains("Other("),
            "{code}"
        );
    }
    let gemini = json!({ "candidates": [{
        "content": { "parts": [{ "functionCall": { "name": "pay", "args": {} } }] },
        "finishReason": "NEW_REASON"
    }] });
    shown += &format!("gemini: {}\n", ends(Protocol::Gemini, &[gemini]));
    for code in ["pause_turn", "new_reason", "tool_calls", "end_turn"] {
        let frames = [
            start(),
            block(0, "t", json!({})),
            input(0, json!(A)),
            block_stop(0),
            stop_reason(code),
        ];
        shown += &format!("anthropic {code}: {}\n", ends(Protocol::Anthropic, &frames));
    }
    let ollama = json!({
        "message": { "tool_calls": [{ "function": { "name": "pay", "arguments": {} } }] },
        "done": true, "done_reason": "new_reason"
    });
    shown += &format!("ollama: {}\n", ends(Protocol::Ollama, &[ollama]));
    expect![[r#"
        RECITATION: Filtered
        BLOCKLIST: Filtered
        SPII: Filtered
        LANGUAGE: Filtered
        guardrail_intervened: Filtered
        content_filter: RECITATION: Filtered
        OTHER: the provider ended the answer: OTHER
        MISSING_THOUGHT_SIGNATURE: the provider ended the answer: MISSING_THOUGHT_SIGNATURE
        TOO_MANY_TOOL_CALLS: the provider ended the answer: TOO_MANY_TOOL_CALLS
        FINISH_REASON_UNSPECIFIED: the provider ended the answer: FINISH_REASON_UNSPECIFIED
        function_call_filter: MALFORMED_FUNCTION_CALL: the provider ended the answer: function_call_filter: MALFORMED_FUNCTION_CALL
        function_call_filter: UNEXPECTED_TOOL_CALL: UnknownTool("a tool")
        UNEXPECTED_TOOL_CALL: UnknownTool("a tool")
        incomplete: the provider ended the answer: incomplete
        repetition: the provider ended the answer: repetition
        time_limit: the provider ended the answer: time_limit
        oom: the provider ended the answer: oom
        pause_turn: the provider ended the answer: pause_turn
        truncated: Length
        max_new_tokens: Length
        max_len: Length
        context_window: Length
        cancelled: stop: the provider ended the answer: cancelled: stop
        eos: End
          with a call: ToolUse
        new_reason: Other("new_reason")
          with a call: the provider ended the answer: new_reason
        gemini: the provider ended the answer: NEW_REASON
        anthropic pause_turn: the provider ended the answer: pause_turn
        anthropic new_reason: the provider ended the answer: new_reason
        anthropic tool_calls: ToolUse
        anthropic end_turn: ToolUse
        ollama: the provider ended the answer: new_reason
    "#]].assert_eq(&shown);
}

/// The class: `[DONE]`, which gateways append to every stream, made an error of a complete answer.
#[test]
fn the_marker_of_chat_completions_in_other_protocols() {
    let marker = json!("[DONE]");
    let call = [start(), block(0, "t", json!({})), input(0, json!(A)), block_stop(0)];
    let message_stop = json!({ "type": "message_stop" });
    check_all(
        Protocol::Anthropic,
        &[
            (
                "after the end",
                [&call[..], &[stop_reason("tool_use"), message_stop, marker.clone()]].concat(),
            ),
            (
                "in place of the end",
                [&call[..], &[stop_reason("tool_use"), marker.clone()]].concat(),
            ),
            ("in the middle", [&call[..], std::slice::from_ref(&marker)].concat()),
        ],
        expect![[r#"
            after the end
              t pay {"order":"A-7","cents":100}
            in place of the end
              t pay {"order":"A-7","cents":100}
            in the middle
              invalid_response: the stream ended in the middle of an answer
        "#]],
    );
    let gemini = |reason: Option<&str>| {
        json!({ "candidates": [{
            "content": { "parts": [{ "functionCall": { "id": "f", "name": "pay", "args": { "n": 1 } } }] },
            "finishReason": reason
        }] })
    };
    check_all(
        Protocol::Gemini,
        &[
            ("after the end", vec![gemini(Some("STOP")), marker.clone()]),
            ("in the middle", vec![gemini(None), marker]),
        ],
        expect![[r#"
            after the end
              f pay {"n":1}
            in the middle
              invalid_response: the stream ended in the middle of an answer
        "#]],
    );
}
