//! Arguments in places that are not read, events that come twice or in another order, and calls that come again. Each test is a class
//! of streams of an outside tester, with which a tool ran without the arguments that the model wrote, or twice.

use super::one_call::{
    A, B, added, block, block_stop, check_all, completed, delta, done, input, item, piece, reason,
    start, stop_reason, tool_call,
};
use super::*;

/// The class: the input of an Anthropic call was in a place that nobody reads, so the call ran with `{}`.
#[test]
fn anthropic_input_in_a_place_that_is_not_read() {
    let place = json!({ "place": "attic" });
    let message = |input: &Value| {
        json!({ "type": "message", "role": "assistant", "content": [
            { "type": "tool_use", "id": "t", "name": "pay", "input": input }
        ] })
    };
    let stream = |x: Value| {
        vec![
            start(),
            block(0, "t", json!({})),
            x,
            block_stop(0),
            stop_reason("tool_use"),
            json!({ "type": "message_stop" }),
        ]
    };
    let piece_with = |name: &str, value: &Value| {
        let mut event = input(0, json!(""));
        event["delta"][name] = value.clone();
        stream(event)
    };
    let stop_with = |name: &str, value: Value| {
        let mut event = block_stop(0);
        event[name] = value;
        vec![start(), block(0, "t", json!({})), event, stop_reason("tool_use")]
    };
    let end_with = |pointer: &str, name: &str, value: Value| {
        let mut event = stop_reason("tool_use");
        event.pointer_mut(pointer).expect("it is there")[name] = value;
        vec![start(), block(0, "t", json!({})), block_stop(0), event]
    };
    let with_last = |event: Value| {
        vec![start(), block(0, "t", json!({})), block_stop(0), stop_reason("tool_use"), event]
    };
    let delta = |delta: Value| json!({ "type": "content_block_delta", "index": 0, "delta": delta });
    check_all(
        Protocol::Anthropic,
        &[
            ("delta is a text", stream(delta(json!(A)))),
            (
                "delta is a list",
                stream(delta(json!([{ "type": "input_json_delta", "partial_json": A }]))),
            ),
            ("snapshot", piece_with("snapshot", &place)),
            ("json", piece_with("json", &json!(A))),
            ("value", piece_with("value", &json!([place]))),
            ("encoded", piece_with("value", &json!(json!(A).to_string()))),
            ("block in its end", stop_with("content_block", message(&place)["content"][0].clone())),
            (
                "delta in its end",
                stop_with("delta", json!({ "type": "input_json_delta", "partial_json": A })),
            ),
            ("input in its end", stop_with("input", place.clone())),
            (
                "message_delta.delta.content",
                end_with("/delta", "content", message(&place)["content"].clone()),
            ),
            ("message_delta.content", end_with("", "content", message(&place)["content"].clone())),
            (
                "delta of message_delta is a list",
                stream(json!({ "type": "message_delta", "delta": [place] })),
            ),
            ("message_delta.delta.input", end_with("/delta", "input", json!("place=attic"))),
            (
                "text_delta with input",
                stream(
                    json!({ "type": "content_block_delta", "index": 1, "delta": { "type": "text_delta", "text": "", "partial_json": A } }),
                ),
            ),
            (
                "message_stop.message",
                with_last(json!({ "type": "message_stop", "message": message(&place) })),
            ),
            ("message", with_last(message(&place))),
            ("unknown event", stream(json!({ "type": "tool_input", "index": 0, "data": place }))),
            (
                "unknown event without an object",
                stream(json!({ "type": "tool", "input": "place=attic" })),
            ),
            ("no type", stream(place.clone())),
            (
                "message_start",
                vec![
                    json!({ "type": "message_start", "message": { "content": [], "input": place } }),
                    block(0, "t", json!({})),
                    block_stop(0),
                    stop_reason("tool_use"),
                ],
            ),
            (
                "unknown block",
                stream(
                    json!({ "type": "content_block_start", "index": 1, "content_block": { "type": "tool_input", "value": place } }),
                ),
            ),
            (
                "`{}` in a piece",
                [
                    &stream(input(0, json!("{}")))[..3],
                    &[
                        json!({ "type": "tool_input", "data": place }),
                        block_stop(0),
                        stop_reason("tool_use"),
                    ],
                ]
                .concat(),
            ),
            (
                "a call with all its input",
                [
                    &stream(input(0, json!(A)))[..3],
                    &[
                        json!({ "type": "later", "data": place }),
                        block_stop(0),
                        stop_reason("tool_use"),
                    ],
                ]
                .concat(),
            ),
        ],
        expect![[r#"
            delta is a text
              invalid_response: the stream has a piece of the answer in an unknown format
            delta is a list
              invalid_response: the stream has a piece of the answer in an unknown format
            snapshot
              not run: t pay 
            json
              not run: t pay 
            value
              not run: t pay 
            encoded
              not run: t pay 
            block in its end
              not run: t pay 
            delta in its end
              not run: t pay 
            input in its end
              not run: t pay 
            message_delta.delta.content
              not run: t pay 
            message_delta.content
              not run: t pay 
            delta of message_delta is a list
              not run: t pay 
            message_delta.delta.input
              not run: t pay 
            text_delta with input
              not run: t pay 
            message_stop.message
              not run: t pay 
            message
              not run: t pay 
            unknown event
              not run: t pay 
            unknown event without an object
              not run: t pay 
            no type
              not run: t pay 
            message_start
              not run: t pay 
            unknown block
              not run: t pay 
            `{}` in a piece
              not run: t pay 
            a call with all its input
              t pay {"order":"A-7","cents":100}
        "#]],
    );
    // What servers and gateways add is not the input of a call.
    let metadata = |name: &str| (name.to_owned(), json!({ "value": { "a": 1 } }));
    let decorated = |mut event: Value| {
        let names = [
            "usage",
            "amazon-bedrock-invocationMetrics",
            "amazon-bedrock-trace",
            "metadata",
            "cost_details",
            "guardrailAction",
            "context_management",
            "container",
            "caller",
            "cache_control",
            "provider_info",
        ];
        for name in names {
            let (name, value) = metadata(name);
            event[&name] = value.clone();
            for part in ["message", "delta", "content_block"] {
                if event[part].is_object() {
                    event[part][&name] = value.clone();
                }
            }
        }
        event
    };
    let mut plain = vec![
        start(),
        json!({ "type": "ping" }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "", "citations": [{ "cited_text": "So" }] } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "{\"json\":1}" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "citations_delta", "citation": { "cited_text": "So" } } }),
        block_stop(0),
        json!({ "type": "content_block_start", "index": 1, "content_block": { "type": "server_tool_use", "id": "s", "name": "web_search", "input": { "query": "a" } } }),
        block_stop(1),
        json!({ "type": "content_block_start", "index": 2, "content_block": { "type": "web_search_tool_result", "content": [{ "title": "a" }] } }),
        block_stop(2),
        block(3, "t", json!({})),
        input(3, json!("")),
        block_stop(3),
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use", "stop_sequence": null, "stop_details": { "type": "a" } } }),
        json!({ "type": "message_stop", "message": message(&json!({})) }),
    ];
    let bare = plain.clone();
    for event in &mut plain {
        *event = decorated(event.take());
    }
    check_all(
        Protocol::Anthropic,
        &[("no arguments", bare), ("no arguments and metadata", plain)],
        expect![[r#"
            no arguments
              t pay {}
            no arguments and metadata
              t pay {}
        "#]],
    );
}

/// The class: an event whose type is only in its name (`event:`) was ignored, with what it has.
#[test]
fn anthropic_events_without_a_type_in_their_data() {
    let untyped = |mut event: Value| {
        event.as_object_mut().expect("it is an object").remove("type");
        event
    };
    let frames = [
        start(),
        block(0, "t", json!({})),
        input(0, json!(A)),
        block_stop(0),
        stop_reason("tool_use"),
    ];
    let only = |position: usize| {
        let events = frames.iter().enumerate();
        events
            .map(|(at, event)| if at == position { untyped(event.clone()) } else { event.clone() })
            .collect()
    };
    let usage = json!({ "delta": {}, "usage": { "output_tokens": 1 } });
    check_all(
        Protocol::Anthropic,
        &[
            ("message_start", only(0)),
            ("content_block_start", only(1)),
            ("content_block_delta", only(2)),
            ("content_block_stop", only(3)),
            ("message_delta", only(4)),
            ("all", frames.iter().cloned().map(untyped).collect()),
            (
                "no pieces",
                vec![
                    untyped(start()),
                    untyped(block(0, "t", json!({}))),
                    untyped(block_stop(0)),
                    usage,
                    untyped(stop_reason("tool_use")),
                ],
            ),
            (
                "a piece without any type",
                vec![
                    start(),
                    block(0, "t", json!({})),
                    json!({ "index": 0, "delta": { "partial_json": A } }),
                    block_stop(0),
                    stop_reason("tool_use"),
                ],
            ),
        ],
        expect![[r#"
            message_start
              t pay {"order":"A-7","cents":100}
            content_block_start
              t pay {"order":"A-7","cents":100}
            content_block_delta
              t pay {"order":"A-7","cents":100}
            content_block_stop
              t pay {"order":"A-7","cents":100}
            message_delta
              t pay {"order":"A-7","cents":100}
            all
              t pay {"order":"A-7","cents":100}
            no pieces
              t pay {}
            a piece without any type
              invalid_response: the stream has arguments of a call in an unknown format
        "#]],
    );
}

/// The class: arguments beside the place where they belong were ignored, and the call ran with `{}`.
#[test]
fn arguments_beside_a_call() {
    let place = json!({ "place": "attic" });
    let names = ["args", "input", "parameters", "value"];
    let with = |mut value: Value, pointer: &str, name: &str, added: &Value| {
        value.pointer_mut(pointer).expect("it is there")[name] = added.clone();
        value
    };
    let gemini = json!({ "candidates": [{ "content": { "parts": [{ "functionCall": { "name": "pay", "args": {} } }] }, "finishReason": "STOP" }] });
    let places = ["/candidates/0/content/parts/0", "/candidates/0/content", "/candidates/0", ""];
    let mut streams = vec![("none".to_owned(), vec![gemini.clone()])];
    for (name, pointer) in
        names.into_iter().map(|name| (name, places[0])).chain(places.map(|place| ("args", place)))
    {
        streams
            .push((format!("{pointer} {name}"), vec![with(gemini.clone(), pointer, name, &place)]));
    }
    streams.push((
        "call value".to_owned(),
        vec![with(gemini.clone(), "/candidates/0/content/parts/0/functionCall", "value", &place)],
    ));
    streams.push((
        "part of its own".to_owned(),
        vec![
            json!({ "candidates": [{ "content": { "parts": [{ "args": place }] } }] }),
            gemini.clone(),
        ],
    ));
    streams.push((
        "metadata".to_owned(),
        vec![with(
            with(gemini, places[0], "partMetadata", &place),
            places[2],
            "groundingMetadata",
            &place,
        )],
    ));
    check_named(
        Protocol::Gemini,
        &streams,
        expect![[r#"
        none
           pay {}
        /candidates/0/content/parts/0 args
          invalid_response: the stream has arguments of a call in an unknown format
        /candidates/0/content/parts/0 input
          invalid_response: the stream has arguments of a call in an unknown format
        /candidates/0/content/parts/0 parameters
          invalid_response: the stream has arguments of a call in an unknown format
        /candidates/0/content/parts/0 value
          not run:  pay 
        /candidates/0/content/parts/0 args
          invalid_response: the stream has arguments of a call in an unknown format
        /candidates/0/content args
          not run:  pay 
        /candidates/0 args
          not run:  pay 
         args
          not run:  pay 
        call value
          not run:  pay 
        part of its own
          not run:  pay 
        metadata
           pay {}
    "#]],
    );

    let ollama = json!({ "message": { "content": "", "tool_calls": [{ "function": { "name": "pay", "arguments": {} } }] }, "done": true });
    let mut streams = vec![("none".to_owned(), vec![ollama.clone()])];
    for pointer in ["/message/tool_calls/0", "/message/tool_calls/0/function", "/message", ""] {
        for name in ["input", "value"] {
            streams.push((
                format!("{pointer} {name}"),
                vec![with(ollama.clone(), pointer, name, &place)],
            ));
        }
    }
    streams.push((
        "arguments".to_owned(),
        vec![with(ollama, "/message/tool_calls/0", "arguments", &place)],
    ));
    check_named(
        Protocol::Ollama,
        &streams,
        expect![[r#"
        none
           pay {}
        /message/tool_calls/0 input
          invalid_response: the stream has arguments of a call in an unknown format
        /message/tool_calls/0 value
          not run:  pay 
        /message/tool_calls/0/function input
          invalid_response: the stream has arguments of a call in an unknown format
        /message/tool_calls/0/function value
          not run:  pay 
        /message input
          not run:  pay 
        /message value
           pay {}
         input
          not run:  pay 
         value
           pay {}
        arguments
          invalid_response: the stream has arguments of a call in an unknown format
    "#]],
    );

    let call = item("fc1", "c1", "{}");
    let event = done(0, &call);
    let mut streams = vec![("none".to_owned(), vec![event.clone(), completed(&[])])];
    for name in ["input", "value"] {
        streams.push((
            format!("done {name}"),
            vec![with(event.clone(), "/item", name, &place), completed(&[])],
        ));
        streams.push((
            format!("added {name}"),
            vec![with(added(0, "fc1", "c1"), "/item", name, &place), event.clone(), completed(&[])],
        ));
        streams.push((
            format!("list {name}"),
            vec![event.clone(), completed(&[with(call.clone(), "", name, &place)])],
        ));
    }
    streams
        .push(("event input".to_owned(), vec![with(event, "", "input", &place), completed(&[])]));
    check_named(
        Protocol::OpenAiResponses,
        &streams,
        expect![[r#"
        none
          c1 pay {}
        done input
          invalid_response: the stream has arguments of a call in an unknown format
        added input
          invalid_response: the stream has arguments of a call in an unknown format
        list input
          invalid_response: the stream has arguments of a call in an unknown format
        done value
          not run: c1 pay 
        added value
          not run: c1 pay 
        list value
          not run: c1 pay 
        event input
          not run: c1 pay 
    "#]],
    );

    let unknown = json!({ "type": "response.call.changed", "item_id": "fc1", "data": place });
    let other = json!({ "type": "response.part.changed", "item_id": "m", "data": place });
    check_all(
        Protocol::OpenAiResponses,
        &[
            (
                "unknown event of the call",
                vec![added(0, "fc1", "c1"), unknown, done(0, &call), completed(&[])],
            ),
            (
                "unknown event of another item",
                vec![added(0, "fc1", "c1"), other, done(0, &call), completed(&[])],
            ),
        ],
        expect![[r#"
            unknown event of the call
              not run: c1 pay 
            unknown event of another item
              c1 pay {}
        "#]],
    );

    let calls = json!([tool_call(Some(0), "c", "pay", "{}")]);
    let head = delta(json!({ "tool_calls": calls }));
    let pieces = json!([tool_call(Some(0), "", "", A)]);
    let choice = |fields: Value| json!({ "choices": [fields] });
    let end = reason("tool_calls");
    let between = |event: Value| vec![head.clone(), event, end.clone()];
    let mut streams = vec![
        ("none".to_owned(), vec![head.clone(), end.clone()]),
        ("delta is a list".to_owned(), between(delta(json!([{ "tool_calls": pieces }])))),
        ("delta is a text".to_owned(), between(delta(json!("{\"place\"")))),
        ("delta is an empty list".to_owned(), between(delta(json!([])))),
        (
            "message is a list".to_owned(),
            between(choice(json!({ "message": [{ "tool_calls": pieces }] }))),
        ),
        ("in the choice".to_owned(), between(choice(json!({ "delta": {}, "tool_calls": pieces })))),
        (
            "in the chunk".to_owned(),
            between(json!({ "choices": [{ "delta": {} }], "tool_calls": pieces })),
        ),
        ("calls are a text".to_owned(), between(delta(json!({ "tool_calls": A })))),
        (
            "metadata".to_owned(),
            between(with(head.clone(), "/choices/0/delta/tool_calls/0", "extra_content", &place)),
        ),
    ];
    for pointer in
        ["/tool_calls/0", "/tool_calls/0/function", ""].map(|it| format!("/choices/0/delta{it}"))
    {
        for name in ["input", "value"] {
            streams.push((
                format!("{pointer} {name}"),
                vec![with(head.clone(), &pointer, name, &place), end.clone()],
            ));
        }
    }
    streams.push((
        "beside the function".to_owned(),
        vec![with(head.clone(), "/choices/0/delta/tool_calls/0", "arguments", &place), end],
    ));
    check_named(
        Protocol::OpenAiCompatible,
        &streams,
        expect![[r#"
        none
          c pay {}
        delta is a list
          invalid_response: the stream has a piece of the answer in an unknown format
        delta is a text
          invalid_response: the stream has a piece of the answer in an unknown format
        delta is an empty list
          c pay {}
        message is a list
          invalid_response: the stream has a piece of the answer in an unknown format
        in the choice
          not run: c pay 
        in the chunk
          not run: c pay 
        calls are a text
          not run: c pay 
        metadata
          c pay {}
        /choices/0/delta/tool_calls/0 input
          invalid_response: the stream has arguments of a call in an unknown format
        /choices/0/delta/tool_calls/0 value
          not run: c pay 
        /choices/0/delta/tool_calls/0/function input
          invalid_response: the stream has arguments of a call in an unknown format
        /choices/0/delta/tool_calls/0/function value
          not run: c pay 
        /choices/0/delta input
          not run: c pay 
        /choices/0/delta value
          c pay {}
        beside the function
          invalid_response: the stream has arguments of a call in an unknown format
    "#]],
    );
}

#[track_caller]
fn check_named(protocol: Protocol, streams: &[(String, Vec<Value>)], expected: Expect) {
    let streams: Vec<(&str, Vec<Value>)> =
        streams.iter().map(|(title, frames)| (title.as_str(), frames.clone())).collect();
    check_all(protocol, &streams, expected);
}

/// The class: a piece of a call that came twice was added twice, and pieces in another order were joined as they came. The numbers of
/// the events tell it.
#[test]
fn responses_events_that_come_twice_or_in_another_order() {
    let numbered = |events: &[(u64, Value)]| -> Vec<Value> {
        let numbered = events.iter().map(|(number, event)| {
            let mut event = event.clone();
            event["sequence_number"] = json!(number);
            event
        });
        numbered.collect()
    };
    let head = || added(0, "i", "c");
    let one = || piece(0, "i", r#"{"cents":1"#);
    let zero = || piece(0, "i", "0");
    let end = || piece(0, "i", "}");
    let last = || completed(&[]);
    let text =
        |text: &str| json!({ "type": "response.output_text.delta", "item_id": "m", "delta": text });
    check_all(
        Protocol::OpenAiResponses,
        &[
            (
                "twice",
                numbered(&[
                    (0, head()),
                    (1, one()),
                    (2, zero()),
                    (2, zero()),
                    (3, end()),
                    (4, last()),
                ]),
            ),
            (
                "twice, later",
                numbered(&[
                    (0, head()),
                    (1, one()),
                    (2, zero()),
                    (3, end()),
                    (2, zero()),
                    (4, last()),
                ]),
            ),
            (
                "all twice",
                numbered(&[
                    (0, head()),
                    (0, head()),
                    (1, one()),
                    (1, one()),
                    (2, end()),
                    (2, end()),
                    (3, last()),
                ]),
            ),
            (
                "equal pieces with their own numbers",
                numbered(&[
                    (0, head()),
                    (1, one()),
                    (2, zero()),
                    (3, zero()),
                    (4, end()),
                    (5, last()),
                ]),
            ),
            (
                "another piece with the same number",
                numbered(&[
                    (0, head()),
                    (1, one()),
                    (2, zero()),
                    (2, piece(0, "i", "9")),
                    (3, end()),
                    (4, last()),
                ]),
            ),
            (
                "another order",
                numbered(&[
                    (0, head()),
                    (1, one()),
                    (3, piece(0, "i", "9")),
                    (2, zero()),
                    (4, end()),
                    (5, last()),
                ]),
            ),
            (
                "a smaller number at the end",
                numbered(&[
                    (0, head()),
                    (1, one()),
                    (2, end()),
                    (1, piece(0, "i", " ")),
                    (3, last()),
                ]),
            ),
            (
                "always the same number",
                numbered(&[
                    (7, head()),
                    (7, one()),
                    (7, zero()),
                    (7, zero()),
                    (7, end()),
                    (7, last()),
                ]),
            ),
            (
                "another order, and the call follows",
                numbered(&[
                    (0, head()),
                    (1, end()),
                    (0, one()),
                    (2, done(0, &item("i", "c", A))),
                    (3, last()),
                ]),
            ),
            (
                "only a text",
                numbered(&[(0, text("a")), (2, text("b")), (1, text("c")), (3, last())]),
            ),
        ],
        expect![[r#"
            twice
              c pay {"cents":10}
            twice, later
              c pay {"cents":10}
            all twice
              c pay {"cents":1}
            equal pieces with their own numbers
              c pay {"cents":100}
            another piece with the same number
              invalid_response: the stream has the sequence number 2 after 2: the pieces of a call of `pay` may be in another order
            another order
              invalid_response: the stream has no event between those with the sequence numbers 1 and 3: a piece of a call of `pay` may be missing
            a smaller number at the end
              invalid_response: the stream has the sequence number 1 after 2: the pieces of a call of `pay` may be in another order
            always the same number
              c pay {"cents":100}
            another order, and the call follows
              not run: c pay }{"cents":1{"order":"A-7","cents":100}
            only a text
        "#]],
    );
}

/// The class: the calls, or the whole stream, came once more after the stop reason, and the tool ran again.
#[test]
fn calls_that_come_again_after_the_stop_reason() {
    let call = |id: &str, arguments: &str| {
        delta(json!({ "tool_calls": [tool_call(Some(0), id, "pay", arguments)] }))
    };
    let end = || reason("tool_calls");
    let pieces =
        |id: &str| [call(id, ""), delta(json!({ "tool_calls": [tool_call(Some(0), "", "", A)] }))];
    check_all(
        Protocol::OpenAiCompatible,
        &[
            ("another id", vec![call("c1", A), end(), call("c9", A)]),
            ("another id and reason", vec![call("c1", A), end(), call("c9", A), end()]),
            ("no id", vec![call("c1", A), end(), call("", A)]),
            ("never an id", vec![call("", A), end(), call("", A)]),
            (
                "white space",
                vec![call("c1", A), end(), call("c9", r#"{"cents": 100, "order": "A-7"}"#)],
            ),
            ("in pieces", [&pieces("c1")[..], &[end()], &pieces("c9"), &[end()]].concat()),
            ("no arguments", vec![call("c1", "{}"), end(), call("c9", "{}")]),
            ("three times", vec![call("c1", A), end(), call("c2", A), end(), call("c3", A), end()]),
            (
                "two equal calls",
                vec![call("c1", A), call("c2", A), end(), call("c3", A), call("c4", A), end()],
            ),
            ("one more", vec![call("c1", A), end(), call("c3", A), call("c4", A), end()]),
            ("another call", vec![call("c1", A), end(), call("c2", B), end()]),
            ("equal calls before the reason", vec![call("c1", A), call("c2", A), end()]),
        ],
        expect![[r#"
            another id
              c1 pay {"order":"A-7","cents":100}
            another id and reason
              c1 pay {"order":"A-7","cents":100}
            no id
              c1 pay {"order":"A-7","cents":100}
            never an id
               pay {"order":"A-7","cents":100}
            white space
              c1 pay {"order":"A-7","cents":100}
            in pieces
              c1 pay {"order":"A-7","cents":100}
            no arguments
              c1 pay {}
            three times
              c1 pay {"order":"A-7","cents":100}
            two equal calls
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"A-7","cents":100}
            one more
              c1 pay {"order":"A-7","cents":100}
              c4 pay {"order":"A-7","cents":100}
            another call
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"B-8","cents":200}
            equal calls before the reason
              c1 pay {"order":"A-7","cents":100}
              c2 pay {"order":"A-7","cents":100}
        "#]],
    );
    let args = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
    let gemini = |text: &str, reason: Option<&str>| {
        let call = json!({ "functionCall": { "name": "pay", "args": args(text) } });
        json!({ "candidates": [{ "content": { "parts": [call] }, "finishReason": reason }] })
    };
    check_all(
        Protocol::Gemini,
        &[
            ("without the reason", vec![gemini(A, Some("STOP")), gemini(A, None)]),
            ("with the reason", vec![gemini(A, Some("STOP")), gemini(A, Some("STOP"))]),
            (
                "all",
                vec![
                    gemini(A, None),
                    gemini(B, Some("STOP")),
                    gemini(A, None),
                    gemini(B, Some("STOP")),
                ],
            ),
            ("a reason in each chunk", vec![gemini(A, Some("STOP")), gemini(B, Some("STOP"))]),
        ],
        expect![[r#"
            without the reason
               pay {"cents":100,"order":"A-7"}
            with the reason
               pay {"cents":100,"order":"A-7"}
            all
               pay {"cents":100,"order":"A-7"}
               pay {"cents":200,"order":"B-8"}
            a reason in each chunk
               pay {"cents":100,"order":"A-7"}
               pay {"cents":200,"order":"B-8"}
        "#]],
    );
    let block_of = |index: u64, id: &str| {
        [block(index, id, json!({})), input(index, json!(A)), block_stop(index)]
    };
    let end = || [stop_reason("tool_use")];
    check_all(
        Protocol::Anthropic,
        &[(
            "a block",
            [&[start()][..], &block_of(0, "t"), &end(), &block_of(1, "u"), &end()].concat(),
        )],
        expect![[r#"
            a block
              t pay {"order":"A-7","cents":100}
        "#]],
    );
}

/// The class: a call came again with other arguments, and both ran; or without arguments first, and `{}` ran, too.
#[test]
fn whole_calls_that_contradict_each_other() {
    let args = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
    let gemini = |call: Value| json!({ "candidates": [{ "content": { "parts": [{ "functionCall": call }] } }] });
    let call = |id: &str, name: &str, text: &str| {
        gemini(json!({ "id": id, "name": name, "args": args(text) }))
    };
    let pieces = |id: &str, text: &str| {
        gemini(
            json!({ "id": id, "name": "pay", "partialArgs": [{ "jsonPath": "$.order", "stringValue": text }] }),
        )
    };
    let stop = json!({ "candidates": [{ "finishReason": "STOP" }] });
    let stream = |calls: &[Value]| [calls, std::slice::from_ref(&stop)].concat();
    let both = |first: Value, second: Value| {
        let mut frame = first;
        let part = second["candidates"][0]["content"]["parts"][0].clone();
        frame["candidates"][0]["content"]["parts"].as_array_mut().expect("it is a list").push(part);
        frame
    };
    check_all(
        Protocol::Gemini,
        &[
            ("other arguments", stream(&[call("f", "pay", A), call("f", "pay", B)])),
            (
                "other arguments after the reason",
                [stream(&[call("f", "pay", A)]), stream(&[call("f", "pay", B)])].concat(),
            ),
            ("in one frame", stream(&[both(call("f", "pay", A), call("f", "pay", B))])),
            (
                "in a list of all",
                stream(&[call("f", "pay", A), both(call("f", "pay", A), call("f", "pay", B))]),
            ),
            ("other pieces", stream(&[pieces("f", "a"), pieces("f", "b")])),
            ("equal pieces", stream(&[pieces("f", "a"), pieces("f", "a")])),
            ("pieces and other arguments", stream(&[pieces("f", "a"), call("f", "pay", A)])),
            (
                "pieces and equal arguments",
                stream(&[pieces("f", "a"), call("f", "pay", r#"{"order":"a"}"#)]),
            ),
            ("without arguments first", stream(&[call("f", "pay", "{}"), call("f", "pay", A)])),
            ("without arguments last", stream(&[call("f", "pay", A), call("f", "pay", "{}")])),
            ("another tool", stream(&[call("f", "pay", A), call("f", "look", A)])),
            ("the same", stream(&[call("f", "pay", A), call("f", "pay", A)])),
            (
                "other ids",
                stream(&[call("f", "pay", A), call("g", "pay", B), call("h", "pay", "{}")]),
            ),
            ("no ids", stream(&[call("", "pay", A), call("", "pay", B)])),
        ],
        expect![[r#"
            other arguments
              not run: f pay {"cents":100,"order":"A-7"}{"cents":200,"order":"B-8"}
            other arguments after the reason
              not run: f pay {"cents":100,"order":"A-7"}{"cents":200,"order":"B-8"}
            in one frame
              not run: f pay {"cents":100,"order":"A-7"}{"cents":200,"order":"B-8"}
            in a list of all
              not run: f pay {"cents":100,"order":"A-7"}{"cents":200,"order":"B-8"}
            other pieces
              not run: f pay {"order":"a"}{"order":"b"}
            equal pieces
              f pay {"order":"a"}
            pieces and other arguments
              not run: f pay {"order":"a"}{"cents":100,"order":"A-7"}
            pieces and equal arguments
              f pay {"order":"a"}
            without arguments first
              f pay {"cents":100,"order":"A-7"}
            without arguments last
              f pay {"cents":100,"order":"A-7"}
            another tool
              invalid_response: the stream names one call `pay` and `look`
            the same
              f pay {"cents":100,"order":"A-7"}
            other ids
              f pay {"cents":100,"order":"A-7"}
              g pay {"cents":200,"order":"B-8"}
              h pay {}
            no ids
               pay {"cents":100,"order":"A-7"}
               pay {"cents":200,"order":"B-8"}
        "#]],
    );
    let ollama = |calls: &[Value]| {
        let calls = calls.iter().map(|call| json!({ "message": { "tool_calls": [call] } }));
        calls.chain([json!({ "done": true })]).collect::<Vec<_>>()
    };
    let call = |id: &str, index: Option<u64>, text: &str| json!({ "id": id, "function": { "index": index, "name": "pay", "arguments": args(text) } });
    check_all(
        Protocol::Ollama,
        &[
            ("without arguments first", ollama(&[call("", Some(0), "{}"), call("", Some(0), A)])),
            (
                "without arguments first, with an id",
                ollama(&[call("a", Some(0), "{}"), call("a", Some(0), A)]),
            ),
            ("an id that follows", ollama(&[call("", Some(0), "{}"), call("a", Some(0), A)])),
            ("without arguments last", ollama(&[call("", Some(0), A), call("", Some(0), "{}")])),
            ("no arguments twice", ollama(&[call("", Some(0), "{}"), call("", Some(0), "{}")])),
            ("one id, other arguments", ollama(&[call("a", None, A), call("a", None, B)])),
            (
                "one id and index, other arguments",
                ollama(&[call("a", Some(0), A), call("a", Some(0), B)]),
            ),
            ("one index, other ids", ollama(&[call("a", Some(0), "{}"), call("b", Some(0), A)])),
            (
                "one index, no ids, other arguments",
                ollama(&[call("", Some(0), A), call("", Some(0), B)]),
            ),
            ("other indexes", ollama(&[call("", Some(0), "{}"), call("", Some(1), A)])),
            ("no indexes", ollama(&[call("", None, "{}"), call("", None, A)])),
        ],
        expect![[r#"
            without arguments first
               pay {"cents":100,"order":"A-7"}
            without arguments first, with an id
              a pay {"cents":100,"order":"A-7"}
            an id that follows
              a pay {"cents":100,"order":"A-7"}
            without arguments last
               pay {"cents":100,"order":"A-7"}
            no arguments twice
               pay {}
            one id, other arguments
              not run: a pay {"cents":100,"order":"A-7"}{"cents":200,"order":"B-8"}
            one id and index, other arguments
              not run: a pay {"cents":100,"order":"A-7"}{"cents":200,"order":"B-8"}
            one index, other ids
              a pay {}
              b pay {"cents":100,"order":"A-7"}
            one index, no ids, other arguments
               pay {"cents":100,"order":"A-7"}
               pay {"cents":200,"order":"B-8"}
            other indexes
               pay {}
               pay {"cents":100,"order":"A-7"}
            no indexes
               pay {}
               pay {"cents":100,"order":"A-7"}
        "#]],
    );
}

/// Returns the text of an answer, or its error.
fn text_of(protocol: Protocol, frames: &[Value]) -> String {
    let lines: Vec<String> = frames.iter().map(Value::to_string).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let events = rendered(protocol, &[framed(protocol, &lines).as_bytes()]);
    match events.last() {
        Some(Ok(ModelEvent::Answer(answer))) => format!("{:?} {:?}", answer.text, answer.stop),
        event => format!("{event:?}"),
    }
}

/// The class: the text of an answer was that of its pieces, also if one of them was lost, and what ends a text was added once more if it
/// came twice.
#[test]
fn the_text_of_responses_is_the_whole_one() {
    let piece_of = |id: &str, index: u64, text: &str| json!({ "type": "response.output_text.delta", "item_id": id, "output_index": index, "content_index": 0, "delta": text });
    let text_done = |id: &str, index: u64, text: &str| json!({ "type": "response.output_text.done", "item_id": id, "output_index": index, "content_index": 0, "text": text });
    let part_done = |id: &str, at: u64, text: &str| json!({ "type": "response.content_part.done", "item_id": id, "output_index": 0, "content_index": at, "part": { "type": "output_text", "text": text } });
    let part_unindexed = |text: &str| json!({ "type": "response.content_part.done", "item_id": "m", "part": { "type": "output_text", "text": text } });
    let message = |id: &str, texts: &[&str]| {
        let content: Vec<Value> =
            texts.iter().map(|text| json!({ "type": "output_text", "text": text })).collect();
        json!({ "type": "message", "id": id, "content": content })
    };
    let refusal = json!({ "type": "message", "id": "m", "content": [{ "type": "refusal", "refusal": "No, never." }] });
    let lost = || vec![piece_of("m", 0, "Hello "), piece_of("m", 0, "!")];
    let with = |more: &[Value]| [&lost()[..], more].concat();
    let whole = "Hello World!";
    let streams = [
        ("in the last event", with(&[completed(&[message("m", &[whole])])])),
        ("in the last event, other id", with(&[completed(&[message("x", &["Hello ", "World!"])])])),
        ("in the item", with(&[done(0, &message("m", &[whole])), completed(&[])])),
        ("in the part", with(&[part_done("m", 0, whole), completed(&[])])),
        ("in the text", with(&[text_done("m", 0, whole), completed(&[])])),
        (
            "in all",
            with(&[
                text_done("m", 0, whole),
                part_done("m", 0, whole),
                done(0, &message("m", &[whole])),
                completed(&[message("m", &[whole])]),
            ]),
        ),
        ("pieces twice", [lost(), lost(), vec![completed(&[message("m", &["Hello !"])])]].concat()),
        ("nowhere else", with(&[completed(&[])])),
        (
            "only the first of two items",
            [
                lost(),
                vec![piece_of("n", 1, " More."), done(0, &message("m", &[whole])), completed(&[])],
            ]
            .concat(),
        ),
        (
            "both items",
            [
                lost(),
                vec![
                    piece_of("n", 1, " More."),
                    done(0, &message("m", &[whole])),
                    done(1, &message("n", &[" More."])),
                    completed(&[]),
                ],
            ]
            .concat(),
        ),
        ("text twice", vec![text_done("m", 0, whole), text_done("m", 0, whole), completed(&[])]),
        ("part twice", vec![part_done("m", 0, whole), part_done("m", 0, whole), completed(&[])]),
        (
            "item twice",
            vec![
                done(0, &message("m", &[whole])),
                done(0, &message("m", &[whole])),
                completed(&[]),
            ],
        ),
        (
            "pieces, and text twice",
            vec![
                piece_of("m", 0, whole),
                text_done("m", 0, whole),
                text_done("m", 0, whole),
                completed(&[]),
            ],
        ),
        (
            "two parts",
            vec![part_done("m", 0, "Hello "), part_done("m", 1, "World!"), completed(&[])],
        ),
        (
            "two equal items",
            vec![text_done("m", 0, "So. "), text_done("n", 1, "So. "), completed(&[])],
        ),
        (
            "two equal messages in the list",
            vec![completed(&[message("m", &["So. "]), message("m", &["So. "])])],
        ),
        (
            "an item without an id",
            with(&[
                json!({ "type": "response.output_item.done", "item": { "type": "message", "content": whole } }),
                completed(&[]),
            ]),
        ),
        (
            "parts without indexes, twice",
            vec![
                part_unindexed("Hello "),
                part_unindexed("World!"),
                part_unindexed("World!"),
                completed(&[]),
            ],
        ),
        (
            "a refusal",
            vec![
                json!({ "type": "response.refusal.delta", "delta": "never." }),
                completed(&[refusal]),
            ],
        ),
    ];
    let shown = streams.iter().map(|(title, frames)| {
        format!("{title}: {}\n", text_of(Protocol::OpenAiResponses, frames))
    });
    expect![[r#"
        in the last event: "Hello World!" End
        in the last event, other id: "Hello World!" End
        in the item: "Hello World!" End
        in the part: "Hello World!" End
        in the text: "Hello World!" End
        in all: "Hello World!" End
        pieces twice: "Hello !" End
        nowhere else: "Hello !" End
        only the first of two items: "Hello ! More." End
        both items: "Hello World! More." End
        text twice: "Hello World!" End
        part twice: "Hello World!" End
        item twice: "Hello World!" End
        pieces, and text twice: "Hello World!" End
        two parts: "Hello World!" End
        two equal items: "So. So. " End
        two equal messages in the list: "So. So. " End
        an item without an id: "Hello World!" End
        parts without indexes, twice: "Hello World!" End
        a refusal: "No, never." Filtered
    "#]]
    .assert_eq(&shown.collect::<String>());
}

/// The class: a stream that was cut after its first event was said to be of another kind of provider, which is not tried again.
#[test]
fn the_first_event_of_a_stream_shows_its_protocol() {
    for (protocol, frame) in [
        (Protocol::OpenAiResponses, json!({ "type": "response.created", "response": {} })),
        (Protocol::OpenAiResponses, json!({ "type": "response.in_progress" })),
        (Protocol::OpenAiCompatible, delta(json!({ "role": "assistant" }))),
        (Protocol::Anthropic, start()),
        (Protocol::Gemini, json!({ "candidates": [{ "content": { "parts": [] } }] })),
    ] {
        let mut gathered = PartialResponse::default();
        let data = frame.to_string();
        let mut decoder = protocol.decoder(true);
        decoder.frame(&data, &mut gathered).expect("it is valid");
        assert!(!gathered.is_untouched(), "{frame}");
        let error = gathered.end("tested", "asked").expect_err("it is cut");
        assert_eq!(error.kind, crate::ModelErrorKind::InvalidResponse, "{frame}");
    }
    let mut gathered = PartialResponse::default();
    let mut decoder = Protocol::OpenAiResponses.decoder(true);
    let chunk = delta(json!({ "content": "So." })).to_string();
    decoder.frame(&chunk, &mut gathered).expect("it is ignored");
    assert!(gathered.is_untouched());
}

/// The class: what a provider wants back with a call belonged to another one, if a repetition before it was left out. Gemini refuses a
/// conversation with a call that lacks its signature.
#[test]
fn signatures_stay_with_their_calls() {
    let call = |text: &str, signature: &str| {
        let args = serde_json::from_str::<Value>(text).expect("it is JSON");
        let part = json!({ "functionCall": { "name": "pay", "args": args }, "thoughtSignature": signature });
        json!({ "candidates": [{ "content": { "parts": [part] }, "finishReason": "STOP" }] })
    };
    let lines = [call(A, "a"), call(A, "again"), call(B, "b")].map(|frame| frame.to_string());
    check(
        Protocol::Gemini,
        &lines.join("\n"),
        expect![[r#"
         pay {"cents":100,"order":"A-7"}
         pay {"cents":200,"order":"B-8"}
        ToolUse None/None {"gemini":{"calls":["again","b"],"text":null}}"#]],
    );
    let call = |id: &str, text: &str, signature: &str| {
        let mut call = tool_call(Some(0), id, "pay", text);
        call["extra_content"] = json!({ "signature": signature });
        json!({ "choices": [{ "delta": { "tool_calls": [call] }, "finish_reason": "tool_calls" }] })
    };
    let frames = [call("a", A, "a"), call("x", A, "again"), call("b", B, "b")];
    let lines = frames.map(|frame| frame.to_string());
    check(
        Protocol::OpenAiCompatible,
        &lines.join("\n"),
        expect![[r#"
        a pay {"order":"A-7","cents":100}
        b pay {"order":"B-8","cents":200}
        ToolUse None/None {"chat_completions":[{"signature":"a"},{"signature":"b"}]}"#]],
    );
}
