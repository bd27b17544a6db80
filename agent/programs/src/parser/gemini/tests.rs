//! Gemini CLI's lines.

use expect_test::{Expect, expect};

use super::*;

/// The events of a new parser for these lines, one per line.
fn check(lines: &[&str], expected: Expect) {
    let mut parser = GeminiParser::default();
    let events = lines.iter().flat_map(|line| parser.parse_line(line.trim()));
    let rendered: Vec<String> =
        events.map(|event| serde_json::to_string(&event).expect("an event is JSON")).collect();
    expected.assert_eq(&rendered.join("\n"));
}

#[test]
fn the_answer_is_the_text_after_the_last_tool_call() {
    check(
        &[
            r#"{"type":"init","session_id":"s1","model":"m"}"#,
            r#"{"type":"message","role":"user","content":"do it"}"#,
            r#"{"type":"message","role":"assistant","content":"Let me see.","delta":true}"#,
            r#"{"type":"tool_use","tool_name":"run","tool_id":"t1","parameters":{"c":1}}"#,
            r#"{"type":"tool_result","tool_id":"t1","status":"success","output":"hi"}"#,
            r#"{"type":"message","role":"assistant","content":"All ","delta":true}"#,
            r#"{"type":"message","role":"assistant","content":"done.","delta":true}"#,
            r#"{"type":"message","role":"assistant","content":"All done."}"#,
            r#"
            {"type":"result","status":"success","stats":{"input_tokens":20,"output_tokens":10,"cached":3}}"#,
        ],
        expect![[r#"
            {"type":"session_id","id":"s1"}
            {"type":"status","data":{"model":"m","session_id":"s1","type":"init"}}
            {"type":"status","data":{"content":"do it","role":"user","type":"message"}}
            {"type":"assistant_delta","text":"Let me see.","message":null,"parent":null}
            {"type":"tool_call_started","id":"t1","name":"run","arguments":{"c":1},"parent":null}
            {"type":"tool_call_finished","id":"t1","output":"hi","is_error":false,"exit_code":null,"parent":null}
            {"type":"assistant_delta","text":"All ","message":null,"parent":null}
            {"type":"assistant_delta","text":"done.","message":null,"parent":null}
            {"type":"usage","input_tokens":20,"output_tokens":10,"cached_tokens":3,"cache_write_tokens":null,"reasoning_tokens":null,"completeness":"complete"}
            {"type":"final","text":"All done.","usage":{"input_tokens":20,"output_tokens":10,"cached_tokens":3,"cache_write_tokens":null,"reasoning_tokens":null,"completeness":"complete"},"cost_usd":null,"session_id":"s1","turns":null,"structured":null,"denials":[],"details":{"stats":{"cached":3,"input_tokens":20,"output_tokens":10},"status":"success"},"exit":null}"#]],
    );
}

#[test]
fn a_failed_tool_has_its_error() {
    check(
        &[r#"{"type":"tool_result","tool_id":"t1","status":"error","error":{"message":"denied"}}"#],
        expect![[r#"
            {"type":"tool_call_finished","id":"t1","output":{"message":"denied"},"is_error":true,"exit_code":null,"parent":null}"#]],
    );
}

/// Regression: after its turn limit and after loop detection, the program reports success. The answer was taken for
/// complete, even if it was empty.
#[test]
fn a_turn_limit_and_a_loop_are_failures_with_the_answer_so_far() {
    for (severity, message) in [
        ("error", "Maximum session turns exceeded"),
        ("warning", "Loop detected, stopping execution"),
    ] {
        let mut parser = GeminiParser::default();
        parser.parse_line(r#"{"type":"message","role":"assistant","content":"Half","delta":true}"#);
        let error = format!(r#"{{"type":"error","severity":"{severity}","message":"{message}"}}"#);
        parser.parse_line(&error);
        let events =
            parser.parse_line(r#"{"type":"result","status":"success","stats":{"input_tokens":4}}"#);
        let Some(ProgramEvent::Error(failure)) = events.last() else { panic!("{events:?}") };
        assert_eq!((failure.kind, failure.message.as_str()), (ErrorKind::LoopLimit, message));
        let answer = failure.answer.as_ref().expect("the answer is kept");
        assert_eq!((answer.text.as_str(), answer.usage.is_some()), ("Half", true));
    }
    let mut parser = GeminiParser::default();
    parser.parse_line(r#"{"type":"error","severity":"warning","message":"slow"}"#);
    let events = parser.parse_line(r#"{"type":"result","status":"success"}"#);
    assert!(matches!(events.last(), Some(ProgramEvent::Final(_))), "a warning is no error");
}

/// Checks the failure of a result with this error.
fn fails(error: &str, expected: &str) {
    let line = format!(r#"{{"type":"result","status":"error","error":{error}}}"#);
    let events = GeminiParser::default().parse_line(&line);
    let [ProgramEvent::Error(failure)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(format!("{}: {}", failure.kind, failure.message), expected);
}

#[test]
fn an_error_result_is_a_failure() {
    fails(r#"{"type":"FatalTurnLimitedError","message":"turns"}"#, "loop_limit: turns");
    fails(r#"{"type":"FatalCancellationError","message":"ctrl-c"}"#, "cancelled: ctrl-c");
    fails(r#"{"type":"Error","message":"quota"}"#, "runtime_crash: quota");
    fails("null", "runtime_crash: the program reported an error");
}

/// Class: success must be stated. A result that was not `error` was a success, also after an error.
#[test]
fn only_the_status_success_without_an_error_is_success() {
    let ends = |lines: &[&str]| {
        let mut parser = GeminiParser::default();
        parser.parse_line(r#"{"type":"message","role":"assistant","content":"Half","delta":true}"#);
        let events: Vec<_> = lines.iter().flat_map(|line| parser.parse_line(line)).collect();
        match events.last() {
            Some(ProgramEvent::Error(failure)) => format!("{}: {}", failure.kind, failure.message),
            other => panic!("{other:?}"),
        }
    };
    for (fields, expected) in [
        (r#","status":"cancelled""#, "cancelled: the program reported cancelled"),
        (r#","status":"paused""#, "runtime_crash: the program reported paused"),
        (r#","status":null"#, "runtime_crash: the program did not report success"),
        ("", "runtime_crash: the program did not report success"),
        (
            r#","status":"success","error":{"type":"X"}"#,
            "runtime_crash: the program reported an error",
        ),
    ] {
        assert_eq!(ends(&[&format!(r#"{{"type":"result"{fields}}}"#)]), expected, "{fields}");
    }
    let success = r#"{"type":"result","status":"success"}"#;
    for severity in [r#""severity":"error","#, r#""severity":"fatal","#, ""] {
        let error = format!(r#"{{"type":"error",{severity}"message":"Invalid stream"}}"#);
        assert_eq!(ends(&[&error, success]), "runtime_crash: Invalid stream", "{severity}");
    }
}

#[test]
fn a_reported_error_is_not_the_end() {
    check(
        &[r#"{"type":"error","severity":"warning","message":"loop detected"}"#, "no JSON", "[]"],
        expect![[r#"{"type":"notice","code":"reported","message":"loop detected"}"#]],
    );
}
