//! Parsers by configuration: what their lines mean, and which rules are refused.

use expect_test::{Expect, expect};
use serde_json::json;

use super::*;

const RULES: &str = r#"{
    "session": "/sid",
    "text": {"when": {"/type": "chunk"}, "text": "/text", "message": "/m"},
    "thinking": {"when": {"/type": "thought"}, "text": "/text"},
    "tool_call": {"when": {"/type": "call"}, "id": "/id", "name": "/tool", "arguments": "/in"},
    "tool_result": {"when": {"/type": "result"}, "id": "/id", "output": "/out",
                    "is_error": "/failed", "exit_code": "/code"},
    "usage": {"input_tokens": "/usage/in", "output_tokens": "/usage/out", "cost_usd": "/usd"},
    "terminal": {"when": {"/type": "done"}, "text": "/answer"},
    "error": {"when": {"/type": "error"}, "message": "/why"}
}"#;

/// All events of the lines, one per line of text.
fn check(change: &[(&str, Value)], lines: &[&str], expected: &Expect) {
    let mut rules: Value = serde_json::from_str(RULES).expect("the rules are JSON");
    for (pointer, value) in change {
        let (parent, key) = pointer.rsplit_once('/').expect("it is a pointer");
        rules.pointer_mut(parent).expect("it exists")[key] = value.clone();
    }
    let rules: ParserRules = serde_json::from_value(rules).expect("the rules are valid");
    rules.check().expect("the rules are useful");
    let mut parser = CustomParser::new(rules);
    let mut events: Vec<ProgramEvent> =
        lines.iter().flat_map(|line| parser.parse_line(line)).collect();
    events.extend(parser.finish());
    let rendered: Vec<String> = events
        .iter()
        .map(|event| serde_json::to_string(event).expect("an event is JSON") + "\n")
        .collect();
    expected.assert_eq(&rendered.concat());
}

#[test]
fn each_rule_becomes_its_event() {
    check(
        &[],
        &[
            r#"{"type": "start", "sid": "s1"}"#,
            r#"{"type": "thought", "text": "Hm."}"#,
            r#"{"type": "call", "id": 7, "tool": "sh", "in": {"cmd": "ls"}}"#,
            r#"{"type": "call", "id": 7, "tool": "sh", "in": {"cmd": "ls"}}"#,
            r#"{"type": "result", "id": 7, "out": "a b", "failed": "", "code": 0}"#,
            r#"{"type": "chunk", "text": "It is ", "m": "m1"}"#,
            r#"
{"type": "done", "answer": "It is 42.", "usage": {"in": 10, "out": 5}, "usd": 0.25}"#,
        ],
        &expect![[r#"
            {"type":"session_id","id":"s1"}
            {"type":"status","data":{"sid":"s1","type":"start"}}
            {"type":"thinking_delta","text":"Hm.","message":null,"parent":null}
            {"type":"tool_call_started","id":"7","name":"sh","arguments":{"cmd":"ls"},"parent":null}
            {"type":"status","data":{"id":7,"in":{"cmd":"ls"},"tool":"sh","type":"call"}}
            {"type":"tool_call_finished","id":"7","output":"a b","is_error":false,"exit_code":0,"parent":null}
            {"type":"assistant_delta","text":"It is ","message":"m1","parent":null}
            {"type":"usage","input_tokens":10,"output_tokens":5,"cached_tokens":null,"cache_write_tokens":null,"reasoning_tokens":null,"completeness":"partial"}
            {"type":"usage","input_tokens":10,"output_tokens":5,"cached_tokens":null,"cache_write_tokens":null,"reasoning_tokens":null,"completeness":"complete"}
            {"type":"final","text":"It is 42.","usage":{"input_tokens":10,"output_tokens":5,"cached_tokens":null,"cache_write_tokens":null,"reasoning_tokens":null,"completeness":"complete"},"cost_usd":0.25,"session_id":"s1","turns":null,"structured":null,"denials":[],"details":{"answer":"It is 42.","type":"done","usage":{"in":10,"out":5},"usd":0.25},"exit":null}
        "#]],
    );
}

/// The answer of a run, and the notices before it.
fn ends(change: &[(&str, Value)], lines: &[&str], expected: &str) {
    let mut rules: Value = serde_json::from_str(RULES).expect("the rules are JSON");
    for (pointer, value) in change {
        let (parent, key) = pointer.rsplit_once('/').expect("it is a pointer");
        rules.pointer_mut(parent).expect("it exists")[key] = value.clone();
    }
    let mut parser = CustomParser::new(serde_json::from_value(rules).expect("they are valid"));
    let mut events: Vec<ProgramEvent> =
        lines.iter().flat_map(|line| parser.parse_line(line)).collect();
    events.extend(parser.finish());
    let rendered = events.iter().filter_map(|event| match event {
        ProgramEvent::Notice { code, .. } => Some(format!("{code:?}")),
        ProgramEvent::Final(answer) => Some(format!("final {:?}", answer.text)),
        ProgramEvent::Error(failure) => {
            let answer = failure.answer.as_ref().map(|answer| answer.text.clone());
            Some(format!("error {:?} {answer:?}", failure.message))
        }
        _ => None,
    });
    assert_eq!(rendered.collect::<Vec<_>>().join(", "), expected);
}

#[test]
fn the_first_or_the_last_match_counts() {
    let answers = [r#"{"type": "done", "answer": "one"}"#, r#"{"type": "done", "answer": "two"}"#];
    ends(&[], &answers, r#"ExtraFinal, final "two""#);
    ends(&[("/terminal/match", json!("first"))], &answers, r#"ExtraFinal, final "one""#);
    let empty = [answers[0], r#"{"type": "done", "answer": ""}"#];
    ends(&[], &empty, r#"ExtraFinal, final "one""#);
    let errors = [r#"{"type": "error", "why": "one"}"#, r#"{"type": "error", "why": "two"}"#];
    ends(&[], &errors, r#"Reported, Reported, error "one" None"#);
    ends(&[("/error/match", json!("last"))], &errors, r#"Reported, Reported, error "two" None"#);
    let both = [answers[0], errors[0]];
    ends(&[], &both, r#"Reported, error "one" Some("one")"#);
    for (which, tokens) in [("first", 1), ("last", 2)] {
        let mut rules: Value = serde_json::from_str(RULES).expect("the rules are JSON");
        rules["usage"]["match"] = json!(which);
        let mut parser = CustomParser::new(serde_json::from_value(rules).expect("they are valid"));
        for line in [r#"{"usage": {"in": 1}}"#, r#"{"usage": {"in": 2}}"#, answers[0]] {
            parser.parse_line(line);
        }
        let Some(ProgramEvent::Final(answer)) = parser.finish().pop() else { panic!("no answer") };
        assert_eq!(answer.usage.and_then(|usage| usage.input_tokens), Some(tokens), "{which}");
    }
}

#[test]
fn without_a_text_of_its_own_the_answer_is_the_last_message() {
    let lines = [
        r#"{"type": "chunk", "text": "Let me see.", "m": 1}"#,
        r#"{"type": "chunk", "text": "It is ", "m": 2}"#,
        r#"{"type": "chunk", "text": "42.\n", "m": 2}"#,
        r#"{"type": "done"}"#,
    ];
    ends(&[("/terminal/text", Value::Null)], &lines, r#"final "It is 42.""#);
    // The location is configured and absent: the answer is empty, not another text.
    ends(&[], &lines, r#"final """#);
}

/// Lines of other shapes than the rules expect never fail, and are kept as a status.
#[test]
fn other_lines_are_a_status_and_values_of_other_types_are_ignored() {
    check(
        &[],
        &[
            "no JSON",
            "[1]",
            r#"{"type": "chunk", "text": {"a": 1}}"#,
            r#"{"type": "call", "id": null, "tool": "sh"}"#,
            r#"{"type": "result"}"#,
            r#"{"usage": {"in": -1, "out": "5"}}"#,
            r#"{"type": "error", "why": {"code": 3}}"#,
        ],
        &expect![[r#"
            {"type":"status","data":{"text":{"a":1},"type":"chunk"}}
            {"type":"status","data":{"id":null,"tool":"sh","type":"call"}}
            {"type":"status","data":{"type":"result"}}
            {"type":"status","data":{"usage":{"in":-1,"out":"5"}}}
            {"type":"notice","code":"reported","message":"{\"code\":3}"}
            {"type":"error","kind":"runtime_crash","message":"{\"code\":3}","recoverable":false,"exit":null,"stderr":"","answer":null}
        "#]],
    );
}

/// A configuration that cannot work is refused, with what is probably meant.
#[test]
fn bad_rules_are_refused() {
    let refused = |rules: Value, expected: &str| {
        let read = serde_json::from_value::<ParserChoice>(rules);
        let why = match read {
            Ok(ParserChoice::Rules(rules)) => {
                rules.check().err().map(|(subject, why)| format!("{subject}: {why}"))
            }
            Ok(ParserChoice::Named(name)) => Some(format!("named {name}")),
            Err(why) => Some(why.to_string()),
        };
        assert_eq!(why.as_deref(), Some(expected));
    };
    refused(json!({}), "parser: the parser has no rule");
    refused(json!("mine"), "named mine");
    let pointer = |text: &str| json!({"session": text});
    refused(pointer("sid"), "`sid` is not a JSON pointer: write `/sid`");
    refused(pointer("$.a.b"), "`$.a.b` is not a JSON pointer: write `/a/b`");
    refused(pointer("/a~b"), "`/a~b` is not a JSON pointer: write `/a~0b`");
    refused(
        json!({"terminal": {"when": {}}}),
        "terminal: the rule terminal has an empty when, so each line fits it",
    );
    refused(
        json!({"error": {"when": {}}}),
        "error: the rule error has an empty when, so each line fits it",
    );
    refused(json!({"usage": {"match": "last"}}), "usage: the rule usage has no pointer");
    refused(json!({"terminal": {"text": "/a"}}), "missing field `when`");
    refused(
        json!(7),
        "invalid type: integer `7`, expected the name of a parser, or a map of rules",
    );
    refused(
        json!({"final": {}}),
        "unknown field `final`, expected one of `session`, `text`, `thinking`, `tool_call`, \
         `tool_result`, `usage`, `terminal`, `error`",
    );
}
