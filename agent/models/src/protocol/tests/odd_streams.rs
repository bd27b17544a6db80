//! Streams of servers and gateways as users have reported them, each with the report. The class: what a client ignores or
//! assigns wrongly becomes a success with something missing, or a call with other arguments.

use super::*;
use crate::Stop;

/// Chunks of a chat stream with these deltas, and a last one with this reason.
fn chat(deltas: &[Value], reason: Value) -> String {
    let mut lines: Vec<String> = deltas
        .iter()
        .map(|delta| choice(json!({ "delta": delta, "finish_reason": null })))
        .collect();
    lines.push(choice(json!({ "delta": {}, "finish_reason": reason })));
    lines.join("\n")
}

fn calls(calls: Value) -> Value {
    json!({ "tool_calls": calls })
}

/// BerriAI/litellm#35663 (the reason is `stop`), google/adk-python#7004 (all calls in the last chunk).
#[test]
fn all_calls_in_the_last_chunk_with_another_reason() {
    let each = |n: u64| json!({ "index": n, "id": format!("c{n}"), "function": { "name": "f", "arguments": format!("{{\"n\":{n}}}") } });
    let last = choice(json!({
        "delta": { "tool_calls": [each(0), each(1), each(2)] }, "finish_reason": "stop"
    }));
    check(
        Protocol::OpenAiCompatible,
        &last,
        expect![[r#"
            c0 f {"n":0}
            c1 f {"n":1}
            c2 f {"n":2}
            ToolUse None/None"#]],
    );
}

/// diegosouzapw/OmniRoute#11044: neither index nor id differ between the calls. Nothing tells them from one call that the
/// server contradicts, so nothing runs.
#[test]
fn parallel_calls_with_one_id_and_one_index() {
    let each = |n: u64| {
        calls(
            json!([{ "index": 0, "id": "c", "function": { "name": "f", "arguments": format!("{{\"n\":{n}}}") } }]),
        )
    };
    check(
        Protocol::OpenAiCompatible,
        &chat(&[each(1), each(2), each(2), each(3)], json!("tool_calls")),
        expect![[r#"
            c f {"n":1}{"n":2}{"n":2}{"n":3}
            ToolUse None/None"#]],
    );
}

/// An id that comes with the last piece, ids that are numbers, and indexes that are texts.
#[test]
fn ids_and_indexes_in_other_places_and_types() {
    let deltas = [
        calls(json!([{ "index": "0", "function": { "name": "f", "arguments": "{\"n\"" } }])),
        calls(json!([{ "index": "1", "id": 7, "function": { "name": "g", "arguments": "{" } }])),
        calls(json!([{ "index": "0", "function": { "arguments": ":1" } }])),
        calls(json!([{ "index": "1", "function": { "name": null, "arguments": "}" } }])),
        calls(json!([{ "index": "0", "id": "late", "function": { "arguments": "}" } }])),
    ];
    check(
        Protocol::OpenAiCompatible,
        &chat(&deltas, json!("tool_calls")),
        expect![[r#"
            late f {"n":1}
            7 g {}
            ToolUse None/None"#]],
    );
}

/// BerriAI/litellm#31634: each chunk of a call has the reason.
#[test]
fn a_reason_in_each_chunk() {
    let piece = |name: Value, arguments: &str| {
        let call =
            json!({ "index": 0, "id": "c", "function": { "name": name, "arguments": arguments } });
        choice(json!({ "delta": { "tool_calls": [call] }, "finish_reason": "tool_calls" }))
    };
    let lines = [piece(json!("f"), "{\"n\":"), piece(Value::Null, "1}")];
    check(
        Protocol::OpenAiCompatible,
        &lines.join("\n"),
        expect![[r#"
            c f {"n":1}
            ToolUse None/None"#]],
    );
}

/// An answer that lacks something stays so if another reason follows.
#[test]
fn a_good_reason_after_a_bad_one() {
    for (first, then) in [("length", "stop"), ("content_filter", "stop"), ("stop", "length")] {
        let lines = [
            choice(json!({ "delta": { "content": "Half" }, "finish_reason": first })),
            choice(json!({ "delta": {}, "finish_reason": then })),
        ];
        let events = rendered(
            Protocol::OpenAi,
            &[framed(Protocol::OpenAi, &lines.each_ref().map(String::as_str)).as_bytes()],
        );
        let Some(Ok(ModelEvent::Answer(answer))) = events.last() else { panic!("{events:?}") };
        assert!(matches!(answer.stop, Stop::Length | Stop::Filtered), "{first}: {answer:?}");
    }
    check(
        Protocol::OpenAiCompatible,
        &[
            choice(json!({ "delta": { "content": "So." }, "finish_reason": "tool_calls" })),
            choice(json!({ "delta": {}, "finish_reason": "stop" })),
        ]
        .join("\n"),
        expect![[r#"
            Text("So.")
            invalid_response: the provider announced tool calls, but sent none"#]],
    );
}

/// vllm-project/vllm#27572 (the last reason is null), and streams without `[DONE]`.
#[test]
fn a_stream_without_its_end() {
    let text = chat(&[json!({ "content": "So." })], Value::Null);
    check(
        Protocol::OpenAiCompatible,
        &(text.clone() + "\n[DONE] "),
        expect![[r#"
            Text("So.")
            invalid_response: the provider ended the answer without a `finish_reason`: if it never sends one, set `requires_stop_reason: false`"#]],
    );
    check(
        Protocol::OpenAiCompatible,
        &text,
        expect![[r#"
            Text("So.")
            invalid_response: the stream ended in the middle of an answer"#]],
    );
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
    check(
        Protocol::OpenAiCompatible,
        &[r#"{"choices":null}"#, &chat(&[json!({ "content": "So." })], json!("stop")), usage]
            .join("\n"),
        expect![[r#"
            Text("So.")
            End Some(3)/Some(4)"#]],
    );
}

/// Class: a call runs only after a stop reason that is known to be good. After `[DONE]` without one, and after `response.incomplete`
/// without a reason, the call ran.
#[test]
fn a_call_without_a_stop_reason_does_not_run() {
    let call = json!({ "index": 0, "id": "a", "function": { "name": "pay", "arguments": "{}" } });
    check(
        Protocol::OpenAiCompatible,
        &(chat(&[json!({ "tool_calls": [call] })], Value::Null) + "\n[DONE]"),
        expect!["invalid_response: the provider gave no stop reason after calls"],
    );
    let item = json!({ "type": "function_call", "id": "i", "call_id": "a", "name": "pay", "arguments": "{}" });
    let ended = |kind: &str| json!({ "type": kind, "response": { "output": [item] } }).to_string();
    check(
        Protocol::OpenAiResponses,
        &ended("response.incomplete"),
        expect!["invalid_response: the provider ended the answer: incomplete"],
    );
    check(
        Protocol::OpenAiResponses,
        &ended("response.completed"),
        expect![[r#"
            a pay {}
            ToolUse None/None"#]],
    );
}

/// apache/rocketmq-dashboard#2178, farzaa/clicky#132, maximhq/bifrost#6302, Wei-Shaw/sub2api#1471, and web frameworks.
#[test]
fn an_error_in_a_stream_with_status_200() {
    let ends = |protocol: Protocol, lines: &[&str]| {
        let events = rendered(protocol, &[framed(protocol, lines).as_bytes()]);
        let error = events.last().expect("the stream ends").as_ref().expect_err("it has failed");
        format!("{}: {error}\n", error.kind)
    };
    let text = r#"{"choices":[{"delta":{"content":"Half"},"finish_reason":"stop"}]}"#;
    let shown = [
        ends(Protocol::OpenAi, &[r#"{"error":{"message":"quota exceeded"}}"#, "[DONE]"]),
        ends(Protocol::OpenAi, &[text, r#"{"detail":"worker died"}"#]),
        ends(Protocol::OpenAi, &[text, r#"{"code":"InternalError","message":"worker died"}"#]),
        ends(
            Protocol::OpenAi,
            &[
                r#"{"choices":[{"delta":{"content":"So.","error":{"message":"late"}},"finish_reason":"stop"}]}"#,
            ],
        ),
        ends(
            Protocol::Anthropic,
            &[
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Half"}}"#,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            ],
        ),
        ends(
            Protocol::Anthropic,
            &[
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","error":{"message":"late"}}}"#,
            ],
        ),
        ends(
            Protocol::OpenAiResponses,
            &[
                r#"{"type":"response.in_progress","response":{"status":"in_progress"}}"#,
                r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"broke"}}}"#,
            ],
        ),
        ends(
            Protocol::OpenAiResponses,
            &[
                r#"{"type":"response.completed","response":{"status":"completed","error":{"message":"late"}}}"#,
            ],
        ),
        ends(
            Protocol::OpenAiResponses,
            &[
                r#"{"type":"response.completed","response":{"status" {"type":"error","error":{"message":"stream_read_error"}}"#,
            ],
        ),
        ends(
            Protocol::Gemini,
            &[r#"{"candidates":[{"finishReason":"STOP","error":{"message":"late"}}]}"#],
        ),
        ends(
            Protocol::Ollama,
            &[r#"{"message":{"content":"So."},"done":true,"error":"out of memory"}"#],
        ),
    ];
    expect![[r#"
        unavailable: the provider reported an error: quota exceeded
        unavailable: the provider reported an error: worker died
        unavailable: the provider reported an error: worker died
        unavailable: the provider reported an error: late
        overloaded: the provider reported an error: Overloaded
        unavailable: the provider reported an error: late
        unavailable: the provider reported an error: broke
        unavailable: the provider reported an error: late
        invalid_response: the stream has an invalid event: expected `:` at line 1 column 51
        unavailable: the provider reported an error: late
        unavailable: the provider reported an error: out of memory
    "#]]
    .assert_eq(&shown.concat());
}

/// The class: half a text was a complete answer, because an error in the stream was not recognized, and `[DONE]` followed.
#[test]
fn an_error_of_a_vendor_in_a_stream_with_status_200() {
    let half = choice(json!({ "delta": { "content": "Half" } }));
    let call = choice(
        json!({ "delta": { "tool_calls": [{ "id": "c", "function": { "name": "pay", "arguments": "{}" } }] } }),
    );
    let end = choice(json!({ "delta": {}, "finish_reason": "tool_calls" }));
    let mut shown = String::new();
    for error in [
        r#"{"choices":null,"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}"#,
        r#"{"choices":[{"delta":{}}],"base_resp":{"status_code":1027,"status_msg":"output sensitive"}}"#,
        r#"{"error_code":336003,"error_msg":"token exceeded"}"#,
        r#"{"success":false,"errors":[{"code":7009,"message":"upstream error"}],"result":null}"#,
        r#"{"error_code":"REQUEST_LIMIT_EXCEEDED","message":"quota"}"#,
        r#"{"header":{"code":10013,"message":"audit failed"},"payload":{}}"#,
        r#"{"status":"error","message":"GPU lost"}"#,
        r#"{"statusCode":503,"message":"backend down"}"#,
        r#"{"errmsg":"bad","errcode":5}"#,
        r#"{"exception":"CUDA out of memory"}"#,
        r#"{"detail":[{"msg":"field required"}]}"#,
        r#"{"message":"Internal Server Error"}"#,
    ] {
        for lines in
            [&[half.as_str(), error, "[DONE]"][..], &[&call, error, &end, "[DONE]"], &[error]]
        {
            let stream = framed(Protocol::OpenAiCompatible, lines);
            let events = rendered(Protocol::OpenAiCompatible, &[stream.as_bytes()]);
            let error =
                events.last().expect("the stream ends").as_ref().expect_err("it has failed");
            let line = format!("{}: {error}\n", error.kind);
            if !shown.ends_with(&line) {
                shown += &line;
            }
        }
    }
    expect![[r#"
        unauthorized: the provider reported an error: insufficient balance
        unavailable: the provider reported an error: output sensitive
        unavailable: the provider reported an error: token exceeded
        unavailable: the provider reported an error: upstream error
        unavailable: the provider reported an error: quota
        unavailable: the provider reported an error: audit failed
        unavailable: the provider reported an error: GPU lost
        overloaded: the provider reported an error: backend down
        unavailable: the provider reported an error: bad
        unavailable: the provider reported an error: CUDA out of memory
        unavailable: the provider reported an error: field required
        unavailable: the provider reported an error: Internal Server Error
    "#]]
    .assert_eq(&shown);
    let llama = format!(
        "{}error: {{\"code\":500,\"message\":\"the request exceeds the available context size\"}}\n\ndata: [DONE]\n\n",
        framed(Protocol::OpenAiCompatible, &[half.as_str()]),
    );
    let events = rendered(Protocol::OpenAiCompatible, &[llama.as_bytes()]);
    let error = events.last().expect("the stream ends").as_ref().expect_err("it has failed");
    expect!["context_too_long: the provider reported an error: the request exceeds the available context size"].assert_eq(&format!("{}: {error}", error.kind));
    for line in [
        r#"{"choices":[{"delta":{"content":"So."},"finish_reason":"stop"}],"base_resp":{"status_code":0,"status_msg":""},"code":0,"message":"success"}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":1},"code":200,"message":"success","status":"ok"}"#,
        r#"{"choices":[{"delta":{"content":" a"}}],"error":0}"#,
        r#"{"type":"ping"}"#,
    ] {
        let good = choice(json!({ "delta": {}, "finish_reason": "stop" }));
        let stream = framed(Protocol::OpenAiCompatible, &[half.as_str(), line, good.as_str()]);
        let events = rendered(Protocol::OpenAiCompatible, &[stream.as_bytes()]);
        assert!(matches!(events.last(), Some(Ok(ModelEvent::Answer(_)))), "{line}: {events:?}");
    }
}

/// Content as a list of texts and typed parts, and a refusal among them.
#[test]
fn content_in_other_shapes() {
    let parts = json!([
        "So", { "type": "reasoning", "text": "Hm." }, { "type": "output_text", "text": " far" },
        { "type": "text", "text": { "value": "." } }, { "type": "thinking", "thinking": "Hm?" }
    ]);
    check(
        Protocol::OpenAiCompatible,
        &chat(&[json!({ "content": parts })], json!("stop")),
        expect![[r#"
            Text("So")
            Reasoning("Hm.")
            Text(" far")
            Text(".")
            Reasoning("Hm?")
            End None/None"#]],
    );
    let refusal = json!({ "content": [{ "type": "refusal", "refusal": "No." }] });
    check(
        Protocol::OpenAiCompatible,
        &chat(&[refusal], json!("stop")),
        expect![[r#"
            Text("No.")
            Filtered None/None"#]],
    );
    // Pieces of a completion, pieces in `message`, and a message that grows and is repeated after the pieces.
    let text = |text: &str| choice(json!({ "text": text, "finish_reason": null }));
    let message =
        |text: &str| choice(json!({ "message": { "role": "assistant", "content": text } }));
    let end = choice(json!({ "finish_reason": "stop" }));
    let pieces = choice(json!({ "delta": { "content": "So" } }));
    for lines in [
        vec![text("So"), text(" far."), end.clone()],
        vec![message("So"), message(" far."), end.clone()],
        vec![message("So"), message("So far."), end.clone()],
        vec![pieces.clone(), message("So far."), end.clone()],
    ] {
        check(
            Protocol::OpenAiCompatible,
            &lines.join("\n"),
            expect![[r#"
                Text("So")
                Text(" far.")
                End None/None"#]],
        );
    }
    let call = json!({ "function": { "name": "f", "arguments": { "n": 1 } } });
    let whole = json!({ "content": "So", "tool_calls": [call, call] });
    check(
        Protocol::OpenAiCompatible,
        &[pieces, choice(json!({ "message": whole, "finish_reason": "tool_calls" }))].join("\n"),
        expect![[r#"
            Text("So")
             f {"n":1}
             f {"n":1}
            ToolUse None/None"#]],
    );
}

/// BerriAI/litellm#27792 (arguments in the event that ends them), Soju06/codex-lb#542 (the calls are named by items only).
#[test]
fn responses_with_arguments_in_their_last_event_only() {
    let added = |n: u64| {
        let item = json!({ "type": "function_call", "id": format!("fc{n}"), "call_id": format!("c{n}"), "name": "f", "arguments": "" });
        json!({ "type": "response.output_item.added", "item": item }).to_string()
    };
    let done = |n: u64| {
        json!({ "type": "response.function_call_arguments.done", "item_id": format!("fc{n}"), "arguments": format!("{{\"n\":{n}}}") })
            .to_string()
    };
    let completed =
        r#"{"type":"response.completed","response":{"status":"completed","output":[]}}"#;
    check(
        Protocol::OpenAiResponses,
        &[added(1), added(2), done(2), done(1), completed.to_owned()].join("\n"),
        expect![[r#"
            c1 f {"n":1}
            c2 f {"n":2}
            ToolUse None/None"#]],
    );
    // A call that was announced and never filled: nothing says that it has no arguments.
    check(
        Protocol::OpenAiResponses,
        &[added(1), completed.to_owned()].join("\n"),
        expect![[r#"
            c1 f 
            ToolUse None/None"#]],
    );
}

/// mlx-node/mlx-node#45 (the text is in the event that ends it), and a tool that the client must run.
#[test]
fn responses_with_text_in_its_last_event_only() {
    let completed =
        r#"{"type":"response.completed","response":{"status":"completed","output":[]}}"#;
    for event in [
        r#"{"type":"response.output_text.done","text":"So far."}"#,
        r#"{"type":"response.content_part.done","part":{"type":"output_text","text":"So far."}}"#,
        r#"{"type":"response.output_item.done","item":{"type":"message","content":"So far."}}"#,
    ] {
        check(
            Protocol::OpenAiResponses,
            &[event, completed].join("\n"),
            expect![[r#"
                Text("So far.")
                End None/None"#]],
        );
    }
    check(
        Protocol::OpenAiResponses,
        &[r#"{"type":"response.refusal.done","refusal":"No."}"#, completed].join("\n"),
        expect![[r#"
            Text("No.")
            Filtered None/None"#]],
    );
    check(
        Protocol::OpenAiResponses,
        &[
            r#"{"type":"response.output_text.delta","delta":"So"}"#,
            r#"{"type":"response.output_item.done","item":{"type":"custom_tool_call","name":"f"}}"#,
            completed,
        ]
        .join("\n"),
        expect![[r#"
            Text("So")
            UnknownTool("custom_tool_call") None/None"#]],
    );
}

/// Input that is a text, a list or a number is what the model wrote: the call does not run with `{}`.
#[test]
fn anthropic_input_that_is_no_object() {
    let block = |input: &str| {
        format!(
            r#"{{"type":"content_block_start","index":0,"content_block":{{"type":"tool_use","id":"t","name":"f","input":{input}}}}}"#
        )
    };
    for (input, arguments) in [
        (r#""{\"n\":1}""#, r#"{"n":1}"#),
        ("[1]", "[1]"),
        ("7", "7"),
        (r#""""#, "{}"),
        ("{}", "{}"),
    ] {
        let lines = [
            &block(input),
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"}}"#,
        ];
        let events =
            rendered(Protocol::Anthropic, &[framed(Protocol::Anthropic, &lines).as_bytes()]);
        let call = Ok(ModelEvent::Call(crate::ModelCall {
            id: "t".to_owned(),
            name: "f".to_owned(),
            arguments: arguments.to_owned(),
        }));
        assert_eq!(events.first(), Some(&call), "{input}");
    }
}

/// smallmain/vscode-unify-chat-provider#48 (arguments in a part without a name), gateways with other names of the fields,
/// and a call that is sent twice.
#[test]
fn gemini_calls_in_other_shapes() {
    let parts = |parts: &str, more: &str| {
        format!(r#"{{"candidates":[{{"content":{{"parts":[{parts}]}}{more}}}]}}"#)
    };
    let stop = r#","finishReason":"STOP""#;
    let lines = [
        parts(r#"{"functionCall":{"name":"f","args":{}}}"#, ""),
        parts(r#"{"functionCall":{"args":{"path":"/a"}}}"#, ""),
        parts(r#"{"functionCall":{"name":"g","args":{}}}"#, stop),
    ];
    check(
        Protocol::Gemini,
        &lines.join("\n"),
        expect![[r#"
             f {"path":"/a"}
             g {}
            ToolUse None/None"#]],
    );
    let lines = [
        parts(r#"{"function_call":{"id":"c","name":"f","args":{"n":1}}}"#, ""),
        parts(
            r#"{"functionCall":{"id":"c","name":"f","args":{"n":1}}}"#,
            r#","finish_reason":"STOP""#,
        ),
    ];
    check(
        Protocol::Gemini,
        &lines.join("\n"),
        expect![[r#"
            c f {"n":1}
            ToolUse None/None"#]],
    );
}

/// Wei-Shaw/sub2api#7081 and NousResearch/hermes-agent#83886: with a signature or even a call, it has failed.
/// agentjido/req_llm#944: no content at all.
#[test]
fn gemini_answers_without_content() {
    for line in [
        r#"{"candidates":[{"content":{"parts":[{"thoughtSignature":"s"}]},"finishReason":"MALFORMED_FUNCTION_CALL"}]}"#,
        r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{}}}]},"finishReason":"MALFORMED_FUNCTION_CALL"}]}"#,
    ] {
        let events = rendered(Protocol::Gemini, &[framed(Protocol::Gemini, &[line]).as_bytes()]);
        assert!(matches!(events.as_slice(), [Err(_)]), "{events:?}");
    }
    check(
        Protocol::Gemini,
        r#"{"candidates":[{"finishReason":"UNEXPECTED_TOOL_CALL"}]}"#,
        expect![[r#"UnknownTool("a tool") None/None"#]],
    );
    check(
        Protocol::Gemini,
        r#"
            {"promptFeedback":{"blockReason":"SAFETY"}}
            {"candidates":[{"content":{"role":"model"},"finishReason":"STOP"}]}
        "#,
        expect!["Filtered None/None"],
    );
}

/// Ollama: a call that is sent twice, arguments as text, and an answer that is only thoughts.
#[test]
fn ollama_calls_in_other_shapes() {
    let call = r#"{"id":"c","function":{"name":"f","arguments":"{\"n\":1}"}}"#;
    let line = format!(r#"{{"message":{{"content":"","tool_calls":[{call}]}}}}"#);
    check(
        Protocol::Ollama,
        &[&line, &line, r#"{"message":{"content":""},"done":true,"done_reason":"stop"}"#]
            .join("\n"),
        expect![[r#"
            c f {"n":1}
            ToolUse None/None"#]],
    );
    check(
        Protocol::Ollama,
        r#"{"message":{"content":"","thinking":"Hm."},"done":true,"done_reason":"stop","eval_count":9}"#,
        expect![[r#"
            Reasoning("Hm.")
            End None/Some(9)"#]],
    );
}
