//! A call never runs with a part of what the model wrote, and never twice because a server sent it again. Each test is a class
//! of streams that an outside tester made.

use super::one_call::{
    A, B, added, block, block_stop, check_all, completed, delta, done, input, item, piece, reason,
    start, stop_reason, tool_call,
};
use super::*;

fn tool_calls(calls: &[Value]) -> Value {
    delta(json!({ "tool_calls": calls }))
}

/// The class: a list of calls that came again was recognized by the ids of the calls only. Without ids, the list paid again.
#[test]
fn a_list_of_calls_without_ids_that_comes_again_repeats_them() {
    let pay = |arguments: &str| tool_call(None, "", "pay", arguments);
    let last = |calls: &[Value]| json!({ "choices": [{ "delta": { "tool_calls": calls }, "finish_reason": "tool_calls" }] });
    let end = reason("tool_calls");
    check_all(
        Protocol::OpenAiCompatible,
        &[
            (
                "all calls so far",
                vec![
                    tool_calls(&[pay(A)]),
                    tool_calls(&[pay(A), pay(B)]),
                    tool_calls(&[pay(B), pay(A)]),
                    end.clone(),
                ],
            ),
            ("last event", vec![tool_calls(&[pay(A)]), last(&[pay(A)])]),
            ("last event with one more", vec![tool_calls(&[pay(A)]), last(&[pay(B), pay(A)])]),
            (
                "one of them has an id",
                vec![
                    tool_calls(&[pay(A)]),
                    tool_calls(&[tool_call(None, "c1", "pay", A), pay(B)]),
                    end.clone(),
                ],
            ),
            (
                "another index in the last event",
                vec![
                    tool_calls(&[tool_call(Some(0), "", "pay", A)]),
                    last(&[tool_call(Some(1), "", "pay", A)]),
                ],
            ),
            ("one after the other", vec![tool_calls(&[pay(A)]), tool_calls(&[pay(A)]), end]),
        ],
        expect![[r#"
            all calls so far
               pay {"order":"A-7","cents":100}
               pay {"order":"B-8","cents":200}
            last event
               pay {"order":"A-7","cents":100}
            last event with one more
               pay {"order":"A-7","cents":100}
               pay {"order":"B-8","cents":200}
            one of them has an id
              c1 pay {"order":"A-7","cents":100}
               pay {"order":"B-8","cents":200}
            another index in the last event
               pay {"order":"A-7","cents":100}
               pay {"order":"A-7","cents":100}
            one after the other
               pay {"order":"A-7","cents":100}
               pay {"order":"A-7","cents":100}
        "#]],
    );
    let args = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
    let ollama = |texts: &[&str], is_done: bool| {
        let calls: Vec<Value> = texts
            .iter()
            .map(|text| json!({ "function": { "name": "pay", "arguments": args(text) } }))
            .collect();
        json!({ "message": { "content": "", "tool_calls": calls }, "done": is_done })
    };
    check_all(
        Protocol::Ollama,
        &[
            ("last event", vec![ollama(&[A, B], false), ollama(&[A, B], true)]),
            ("last event, one call", vec![ollama(&[A], false), ollama(&[A], true)]),
            (
                "all calls so far",
                vec![ollama(&[A], false), ollama(&[A, B], false), ollama(&[], true)],
            ),
            (
                "one after the other",
                vec![ollama(&[A], false), ollama(&[A], false), ollama(&[], true)],
            ),
            ("beside each other", vec![ollama(&[A, A], true)]),
        ],
        expect![[r#"
            last event
               pay {"cents":100,"order":"A-7"}
               pay {"cents":200,"order":"B-8"}
            last event, one call
               pay {"cents":100,"order":"A-7"}
            all calls so far
               pay {"cents":100,"order":"A-7"}
               pay {"cents":200,"order":"B-8"}
            one after the other
               pay {"cents":100,"order":"A-7"}
               pay {"cents":100,"order":"A-7"}
            beside each other
               pay {"cents":100,"order":"A-7"}
               pay {"cents":100,"order":"A-7"}
        "#]],
    );
    let gemini = |parts: &[Value], reason: Option<&str>| json!({ "candidates": [{ "content": { "parts": parts }, "finishReason": reason }] });
    let pay = |text: &str| json!({ "functionCall": { "name": "pay", "args": args(text) } });
    let partial = json!({ "functionCall": { "name": "pay", "willContinue": true } });
    let pieces = json!({ "functionCall": { "partialArgs": [
        { "jsonPath": "$.order", "stringValue": "A-7" }, { "jsonPath": "$.cents", "numberValue": 100 }
    ] } });
    check_all(
        Protocol::Gemini,
        &[
            (
                "all calls so far",
                vec![
                    gemini(&[pay(A)], None),
                    gemini(&[pay(A), pay(B)], None),
                    gemini(&[], Some("STOP")),
                ],
            ),
            ("last event", vec![gemini(&[pay(A)], None), gemini(&[pay(A)], Some("STOP"))]),
            (
                "last event after pieces",
                vec![gemini(&[partial, pieces], None), gemini(&[pay(A)], Some("STOP"))],
            ),
            (
                "without arguments",
                vec![gemini(&[pay("{}")], None), gemini(&[pay("{}"), pay(B)], Some("STOP"))],
            ),
            (
                "another call in the last event",
                vec![gemini(&[pay(A)], Some("STOP")), gemini(&[pay(B)], Some("STOP"))],
            ),
        ],
        expect![[r#"
            all calls so far
               pay {"cents":100,"order":"A-7"}
               pay {"cents":200,"order":"B-8"}
            last event
               pay {"cents":100,"order":"A-7"}
            last event after pieces
               pay {"cents":100,"order":"A-7"}
            without arguments
               pay {}
               pay {"cents":200,"order":"B-8"}
            another call in the last event
               pay {"cents":100,"order":"A-7"}
               pay {"cents":200,"order":"B-8"}
        "#]],
    );
}

/// A signature in the event that repeats a call belongs to this call.
#[test]
fn signatures_of_repeated_gemini_calls() {
    let part = r#"{"functionCall":{"name":"f","args":{"n":1}}}"#;
    let signed = r#"{"functionCall":{"name":"f","args":{"n":1}},"thoughtSignature":"s"}"#;
    let other = r#"{"functionCall":{"name":"f","args":{"n":2}},"thoughtSignature":"t"}"#;
    let line = |parts: &str, more: &str| {
        format!(r#"{{"candidates":[{{"content":{{"parts":[{parts}]}}{more}}}]}}"#)
    };
    check(
        Protocol::Gemini,
        &[line(part, ""), line(&format!("{other},{signed}"), r#","finishReason":"STOP""#)]
            .join("\n"),
        expect![[r#"
             f {"n":1}
             f {"n":2}
            ToolUse None/None {"gemini":{"calls":["s","t"],"text":null}}"#]],
    );
}

/// The class: arguments of an Anthropic block that had not started went to the call that began last: `wire` paid `eve`.
#[test]
fn arguments_of_a_block_that_never_started_belong_to_no_call() {
    let call = |id: &str| [block(0, id, json!({})), input(0, json!("")), block_stop(0)];
    let text = json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } });
    let end = [stop_reason("tool_use")];
    check_all(
        Protocol::Anthropic,
        &[
            (
                "the start of the second call is lost",
                [
                    &[start()][..],
                    &call("t"),
                    &[input(1, json!(&A[..9])), input(1, json!(&A[9..])), block_stop(1)],
                    &end,
                ]
                .concat(),
            ),
            (
                "another index before the end",
                vec![
                    start(),
                    block(0, "t", json!({})),
                    input(1, json!(A)),
                    block_stop(0),
                    stop_reason("tool_use"),
                ],
            ),
            ("no call", [&[start(), input(0, json!(A))][..], &end].concat()),
            ("in a text", [&[start(), text, input(0, json!(A))][..], &end].concat()),
        ],
        expect![[r#"
            the start of the second call is lost
              invalid_response: the stream has arguments of a call that it did not start
            another index before the end
              invalid_response: the stream has arguments of a call that it did not start
            no call
              invalid_response: the stream has arguments of a call that it did not start
            in a text
              invalid_response: the stream has arguments of a call that it did not start
        "#]],
    );
}

/// The class: a piece of an unknown kind was dropped, and the call ran with the others, or with `{}`.
#[test]
fn a_call_with_a_piece_that_is_not_understood_does_not_run() {
    let piece_of =
        |delta: Value| json!({ "type": "content_block_delta", "index": 0, "delta": delta });
    let anthropic = |pieces: &[Value]| {
        let begun = [start(), block(0, "t", json!({}))];
        [&begun[..], pieces, &[block_stop(0), stop_reason("tool_use")]].concat()
    };
    check_all(
        Protocol::Anthropic,
        &[
            ("unknown type", anthropic(&[piece_of(json!({ "type": "input_delta", "value": A }))])),
            ("no type", anthropic(&[piece_of(json!({ "partial_json": A }))])),
            ("text", anthropic(&[piece_of(json!({ "type": "text_delta", "text": A }))])),
            (
                "other field",
                anthropic(&[piece_of(json!({ "type": "input_json_delta", "json": A }))]),
            ),
            (
                "in the middle",
                anthropic(&[
                    input(0, json!(r#"{"order":"A-7""#)),
                    piece_of(json!({ "type": "input_delta", "v": r#","cents":100"# })),
                    input(0, json!("}")),
                ]),
            ),
            (
                "after the end",
                [
                    &anthropic(&[])[..3],
                    &[piece_of(json!({ "type": "input_delta", "v": A })), stop_reason("tool_use")],
                ]
                .concat(),
            ),
            (
                "known types without arguments",
                anthropic(&[
                    piece_of(json!({ "type": "signature_delta", "signature": "s" })),
                    piece_of(json!({ "type": "later_delta" })),
                    input(0, json!(A)),
                ]),
            ),
        ],
        expect![[r#"
            unknown type
              invalid_response: the stream has arguments of a call in an unknown format
            no type
              invalid_response: the stream has arguments of a call in an unknown format
            text
              invalid_response: the stream has arguments of a call in an unknown format
            other field
              invalid_response: the stream has arguments of a call in an unknown format
            in the middle
              invalid_response: the stream has arguments of a call in an unknown format
            after the end
              invalid_response: the stream has arguments of a call in an unknown format
            known types without arguments
              t pay {"order":"A-7","cents":100}
        "#]],
    );
    let with = |mut event: Value, pointer: &str, name: &str, value: Value| {
        event.pointer_mut(pointer).expect("it is there")[name] = value;
        event
    };
    let begun = |begin: Value, end: Value| vec![start(), begin, end, stop_reason("tool_use")];
    let empty = || block(0, "t", json!({}));
    check_all(
        Protocol::Anthropic,
        &[
            (
                "in the block",
                begun(with(empty(), "/content_block", "arguments", json!(A)), block_stop(0)),
            ),
            (
                "in the event that ends it",
                begun(empty(), with(block_stop(0), "", "input", json!({ "order": "A-7" }))),
            ),
            (
                "beside the delta",
                [
                    &begun(empty(), with(piece_of(json!({})), "", "partial_json", json!(A)))[..3],
                    &[block_stop(0), stop_reason("tool_use")],
                ]
                .concat(),
            ),
            (
                "no arguments, from a program and through a gateway",
                begun(
                    with(empty(), "/content_block", "caller", json!({ "type": "direct" })),
                    with(block_stop(0), "", "provider", json!("gateway")),
                ),
            ),
        ],
        expect![[r#"
            in the block
              not run: t pay 
            in the event that ends it
              not run: t pay 
            beside the delta
              not run: t pay 
            no arguments, from a program and through a gateway
              t pay {}
        "#]],
    );
    let chat = |function: Value| {
        vec![
            tool_calls(&[json!({ "index": 0, "id": "c", "function": function })]),
            reason("tool_calls"),
        ]
    };
    check_all(
        Protocol::OpenAiCompatible,
        &[
            (
                "parameters",
                chat(json!({ "name": "pay", "arguments": "{}", "parameters": { "order": "A-7" } })),
            ),
            ("partial", chat(json!({ "name": "pay", "partial_arguments": A }))),
            (
                "nothing",
                chat(json!({ "name": "pay", "arguments": A, "parameters": {}, "input": null })),
            ),
        ],
        expect![[r#"
            parameters
              invalid_response: the stream has arguments of a call in an unknown format
            partial
              invalid_response: the stream has arguments of a call in an unknown format
            nothing
              c pay {"order":"A-7","cents":100}
        "#]],
    );
    check_all(
        Protocol::Ollama,
        &[(
            "args",
            vec![json!({ "message": { "tool_calls": [
                { "function": { "name": "pay", "arguments": {}, "args": { "order": "A-7" } } }
            ] }, "done": true })],
        )],
        expect![[r#"
            args
              invalid_response: the stream has arguments of a call in an unknown format
        "#]],
    );
    let gemini = |call: Value| {
        vec![
            json!({ "candidates": [{ "content": { "parts": [{ "functionCall": call }] }, "finishReason": "STOP" }] }),
        ]
    };
    check_all(
        Protocol::Gemini,
        &[
            ("arguments", gemini(json!({ "name": "pay", "arguments": { "order": "A-7" } }))),
            (
                "value of an unknown type",
                gemini(
                    json!({ "name": "pay", "partialArgs": [{ "jsonPath": "$.order", "newValue": "A-7" }] }),
                ),
            ),
            ("field of another kind", gemini(json!({ "name": "pay", "args": {}, "index": 0 }))),
        ],
        expect![[r#"
            arguments
              invalid_response: the stream has arguments of a call in an unknown format
            value of an unknown type
              invalid_response: a piece of a call's arguments has no value of a known type
            field of another kind
               pay {}
        "#]],
    );
    let other = json!({ "type": "response.custom_tool_call_input.delta", "item_id": "fc1", "output_index": 0, "delta": A });
    check_all(
        Protocol::OpenAiResponses,
        &[(
            "event of an unknown type",
            vec![added(0, "fc1", "c1"), other, completed(&[item("fc1", "c1", "{}")])],
        )],
        expect![[r#"
            event of an unknown type
              invalid_response: the stream has arguments of a call in an unknown format
        "#]],
    );
}

/// The class: `willContinue` was ignored, so a call ran whose arguments, or a text in them, had not ended.
#[test]
fn a_gemini_call_that_has_not_ended_does_not_run() {
    let stream = |calls: &[Value], reason: &str| {
        let mut frames: Vec<Value> = calls
            .iter()
            .map(|call| json!({ "candidates": [{ "content": { "parts": [{ "functionCall": call }] } }] }))
            .collect();
        frames.push(json!({ "candidates": [{ "finishReason": reason }] }));
        frames
    };
    let head = json!({ "name": "pay", "willContinue": true });
    let half = |continues: bool| json!({ "partialArgs": [{ "jsonPath": "$.to", "stringValue": "b", "willContinue": true }], "willContinue": continues });
    let rest = json!({ "partialArgs": [{ "jsonPath": "$.to", "stringValue": "ob" }], "willContinue": true });
    let end = json!({});
    check_all(
        Protocol::Gemini,
        &[
            ("open call", stream(&[head.clone(), half(true), rest.clone()], "STOP")),
            ("open text", stream(&[head.clone(), half(true), end.clone()], "STOP")),
            ("open text in the last part", stream(&[head.clone(), half(false)], "STOP")),
            ("only the head", stream(std::slice::from_ref(&head), "STOP")),
            (
                "the first of two",
                stream(
                    &[
                        json!({ "id": "1", "name": "pay", "willContinue": true }),
                        json!({ "id": "2", "name": "pay", "willContinue": true }),
                        json!({ "id": "1", "partialArgs": [{ "jsonPath": "$.n", "numberValue": 1 }], "willContinue": true }),
                        json!({ "id": "2" }),
                    ],
                    "STOP",
                ),
            ),
            (
                "both end",
                stream(
                    &[
                        json!({ "id": "1", "name": "pay", "willContinue": true }),
                        json!({ "id": "2", "name": "pay", "willContinue": true }),
                        json!({ "id": "1", "partialArgs": [{ "jsonPath": "$.n", "numberValue": 1 }] }),
                        json!({ "id": "2" }),
                    ],
                    "STOP",
                ),
            ),
            ("ended", stream(&[head.clone(), half(true), rest, end], "STOP")),
            ("token limit", stream(&[head, half(true)], "MAX_TOKENS")),
        ],
        expect![[r#"
            open call
              invalid_response: the stream ended in the middle of a call of `pay`
            open text
              invalid_response: the stream ended in the middle of a call of `pay`
            open text in the last part
              invalid_response: the stream ended in the middle of a call of `pay`
            only the head
              invalid_response: the stream ended in the middle of a call of `pay`
            the first of two
              invalid_response: the stream ended in the middle of a call of `pay`
            both end
              1 pay {"n":1}
              2 pay {}
            ended
               pay {"to":"bob"}
            token limit
               pay {"to":"b"}
        "#]],
    );
}

/// The class: the status of an item was ignored, so a call or a message that is not complete was success.
#[test]
fn responses_items_that_are_not_complete() {
    let with = |status: &str| {
        let mut call = item("fc1", "c1", A);
        call["status"] = json!(status);
        call
    };
    let message = |status: &str| json!({ "type": "message", "status": status, "content": [{ "type": "output_text", "text": "Half" }] });
    let begun = [added(0, "fc1", "c1"), piece(0, "fc1", A)];
    let mut streams = Vec::new();
    for status in ["incomplete", "failed", "in_progress", "completed", ""] {
        let stream = [&begun[..], &[done(0, &with(status)), completed(&[with(status)])]].concat();
        streams.push((status, stream));
    }
    streams.push((
        "only done",
        [&begun[..], &[done(0, &with("incomplete")), completed(&[])]].concat(),
    ));
    streams.push(("only in the list", vec![completed(&[with("in_progress")])]));
    streams.push(("message", vec![completed(&[message("incomplete")])]));
    streams.push(("complete message", vec![completed(&[message("completed")])]));
    let response = json!({ "status": "incomplete", "incomplete_details": { "reason": "max_output_tokens" }, "output": [with("incomplete")] });
    streams.push((
        "token limit",
        vec![json!({ "type": "response.incomplete", "response": response })],
    ));
    check_all(
        Protocol::OpenAiResponses,
        &streams,
        expect![[r#"
        incomplete
          invalid_response: the provider ended the answer, but its function_call is `incomplete`
        failed
          invalid_response: the provider ended the answer, but its function_call is `failed`
        in_progress
          invalid_response: the provider ended the answer, but its function_call is `in_progress`
        completed
          c1 pay {"order":"A-7","cents":100}

          c1 pay {"order":"A-7","cents":100}
        only done
          invalid_response: the provider ended the answer, but its function_call is `incomplete`
        only in the list
          invalid_response: the provider ended the answer, but its function_call is `in_progress`
        message
          invalid_response: the provider ended the answer, but its message is `incomplete`
        complete message
        token limit
          c1 pay {"order":"A-7","cents":100}
    "#]],
    );
}

/// The class: events name different tools for one call, and one of the tools ran with the arguments of the other.
#[test]
fn a_contradiction_about_the_name_of_a_call() {
    let named = |name: &str, id: &str| {
        let mut call = item(id, id, A);
        call["name"] = json!(name);
        call
    };
    let begun = [added(0, "fc1", "fc1"), piece(0, "fc1", A)];
    let mut again = added(0, "fc1", "fc1");
    again["item"]["name"] = json!("look");
    let with = |more: &[Value]| [&begun[..], more].concat();
    check_all(
        Protocol::OpenAiResponses,
        &[
            ("done", with(&[done(0, &named("look", "fc1")), completed(&[])])),
            ("done with another id", with(&[done(0, &named("look", "zz")), completed(&[])])),
            ("final list", with(&[completed(&[named("look", "fc1")])])),
            ("final list with another id", with(&[completed(&[named("look", "zz")])])),
            (
                "final list with both names",
                with(&[completed(&[named("look", "fc1"), named("pay", "zz")])]),
            ),
            ("added", vec![added(0, "fc1", "fc1"), again, completed(&[])]),
        ],
        expect![[r#"
            done
              invalid_response: the stream names one call `pay` and `look`
            done with another id
              invalid_response: the stream names one call `pay` and `look`
            final list
              invalid_response: the stream names one call `pay` and `look`
            final list with another id
              invalid_response: the stream names one call `pay` and `look`
            final list with both names
              invalid_response: the stream names one call `pay` and `look`
            added
              invalid_response: the stream names one call `pay` and `look`
        "#]],
    );
    let message = |name: &str| {
        json!({ "choices": [{ "delta": {}, "message": { "tool_calls": [
        { "id": "c1", "function": { "name": name, "arguments": A } }
    ] }, "finish_reason": "tool_calls" }] })
    };
    let pay = tool_calls(&[tool_call(Some(0), "c1", "pay", A)]);
    check_all(
        Protocol::OpenAiCompatible,
        &[
            ("message", vec![pay.clone(), message("look")]),
            (
                "next piece",
                vec![
                    tool_calls(&[tool_call(Some(0), "c1", "pay", "")]),
                    tool_calls(&[tool_call(Some(0), "c1", "look", A)]),
                    reason("tool_calls"),
                ],
            ),
            (
                "one id at two indexes",
                vec![pay, tool_calls(&[tool_call(Some(1), "c1", "look", B)]), reason("tool_calls")],
            ),
        ],
        expect![[r#"
            message
              invalid_response: the stream names one call `pay` and `look`
            next piece
              invalid_response: the stream names one call `pay` and `look`
            one id at two indexes
              c1 pay {"order":"A-7","cents":100}
              c1 look {"order":"B-8","cents":200}
        "#]],
    );
}

/// The class: a call ran beside a refusal of the model. With the reason `Filtered` no call runs.
#[test]
fn calls_beside_a_refusal() {
    let call = json!({ "tool_calls": [tool_call(Some(0), "c1", "pay", A)] });
    let deltas = [call, json!({ "refusal": "I will not." })];
    let mut lines: Vec<String> =
        deltas.iter().map(|delta| choice(json!({ "delta": delta }))).collect();
    lines.push(reason("tool_calls").to_string());
    check(
        Protocol::OpenAiCompatible,
        &lines.join("\n"),
        expect![[r#"
        Text("I will not.")
        c1 pay {"order":"A-7","cents":100}
        Filtered None/None"#]],
    );
}

/// The class: a piece that a proxy has lost. The numbers of the events show it, and the call ran with the other pieces, if these were
/// JSON. What arrives as a whole lacks nothing: proxies also leave out events that say nothing.
#[test]
fn a_call_with_a_lost_piece_does_not_run() {
    let numbered = |frames: Vec<(u64, Value)>| -> Vec<Value> {
        let numbered = frames.into_iter().map(|(number, mut frame)| {
            frame["sequence_number"] = json!(number);
            frame
        });
        numbered.collect()
    };
    let pieces = [added(0, "i", "c"), piece(0, "i", r#"{"cents":1"#), piece(0, "i", "}")];
    let stream = |numbers: [u64; 4], output: &[Value]| {
        let frames = pieces.iter().cloned().chain([completed(output)]);
        numbered(numbers.into_iter().zip(frames).collect())
    };
    check_all(
        Protocol::OpenAiResponses,
        &[
            ("none is missing", stream([0, 1, 2, 3], &[])),
            ("no numbers", pieces.iter().cloned().chain([completed(&[])]).collect()),
            ("always the same number", stream([0, 0, 0, 0], &[])),
            ("a piece is missing", stream([0, 1, 3, 4], &[])),
            ("and the call follows", stream([0, 1, 3, 4], &[item("i", "c", A)])),
        ],
        expect![[r#"
            none is missing
              c pay {"cents":1}
            no numbers
              c pay {"cents":1}
            always the same number
              c pay {"cents":1}
            a piece is missing
              invalid_response: the stream has no event between those with the sequence numbers 1 and 3: a piece of a call of `pay` may be missing
            and the call follows
              not run: c pay {"cents":1}{"order":"A-7","cents":100}
        "#]],
    );
}
