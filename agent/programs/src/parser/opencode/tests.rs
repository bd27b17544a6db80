//! OpenCode's lines.

use expect_test::{Expect, expect};

use super::*;

/// The events of a new parser for these lines and their end, one per line.
fn check(lines: &[&str], expected: Expect) {
    let mut parser = OpenCodeParser::default();
    let mut events: Vec<ProgramEvent> =
        lines.iter().flat_map(|line| parser.parse_line(line.trim())).collect();
    events.extend(parser.finish());
    let events = events.iter().filter(|event| !matches!(event, ProgramEvent::Status { .. }));
    let rendered: Vec<String> =
        events.map(|event| serde_json::to_string(&event).expect("an event is JSON")).collect();
    expected.assert_eq(&rendered.join("\n"));
}

const CALLS: &str = r#"
    {"type":"step_finish","part":{"reason":"tool-calls","tokens":{"input":10,"output":5,"reasoning":1,"cache":{"read":2,"write":0}},"cost":0.25}}"#;
const TEXT: &str = r#"{"type":"text","part":{"id":"p1","text":"42"}}"#;
const STOPS: &str = r#"
    {"type":"step_finish","part":{"reason":"stop","tokens":{"input":20,"output":5},"cost":0.5}}"#;
const ERROR: &str = r#"
    {"type":"error","error":{"name":"APIError","data":{"message":"gateway timeout","isRetryable":true}}}"#;

#[test]
fn steps_add_up_and_the_last_one_is_the_answer() {
    check(
        &[r#"{"type":"step_start","sessionID":"s1"}"#, CALLS, TEXT, STOPS, "no JSON"],
        expect![[r#"
            {"type":"session_id","id":"s1"}
            {"type":"usage","input_tokens":10,"output_tokens":5,"cached_tokens":2,"cache_write_tokens":0,"reasoning_tokens":1,"completeness":"partial"}
            {"type":"assistant_delta","text":"42","message":"p1","parent":null}
            {"type":"usage","input_tokens":30,"output_tokens":10,"cached_tokens":2,"cache_write_tokens":0,"reasoning_tokens":1,"completeness":"partial"}
            {"type":"usage","input_tokens":30,"output_tokens":10,"cached_tokens":2,"cache_write_tokens":0,"reasoning_tokens":1,"completeness":"complete"}
            {"type":"final","text":"42","usage":{"input_tokens":30,"output_tokens":10,"cached_tokens":2,"cache_write_tokens":0,"reasoning_tokens":1,"completeness":"complete"},"cost_usd":0.75,"session_id":"s1","turns":null,"structured":null,"denials":[],"details":{"reason":"stop"},"exit":null}"#]],
    );
}

#[test]
fn an_end_between_tool_calls_is_not_an_answer() {
    check(
        &[TEXT, CALLS],
        expect![[r#"
            {"type":"assistant_delta","text":"42","message":"p1","parent":null}
            {"type":"usage","input_tokens":10,"output_tokens":5,"cached_tokens":2,"cache_write_tokens":0,"reasoning_tokens":1,"completeness":"partial"}"#]],
    );
}

#[test]
fn calls_have_their_exit_codes() {
    check(
        &[
            r#"
                {"type":"tool_use","part":{"callID":"c1","tool":"bash","state":{"status":"completed","input":{"command":"ls"},"output":"a\n","metadata":{"exit":0}}}}"#,
            r#"
                {"type":"tool_use","part":{"callID":"c2","tool":"read","state":{"status":"running","input":{}}}}"#,
            r#"
                {"type":"tool_use","part":{"callID":"c2","tool":"read","state":{"status":"error","input":{},"error":"no such file"}}}"#,
            r#"{"type":"reasoning","part":{"id":"p","text":"Hm."}}"#,
        ],
        expect![[r#"
            {"type":"tool_call_started","id":"c1","name":"bash","arguments":{"command":"ls"},"parent":null}
            {"type":"tool_call_finished","id":"c1","output":"a\n","is_error":false,"exit_code":0,"parent":null}
            {"type":"tool_call_started","id":"c2","name":"read","arguments":{},"parent":null}
            {"type":"tool_call_finished","id":"c2","output":"no such file","is_error":true,"exit_code":null,"parent":null}
            {"type":"thinking_delta","text":"Hm.","message":"p","parent":null}"#]],
    );
}

#[test]
fn an_error_at_the_end_is_a_failure() {
    check(
        &[ERROR],
        expect![[r#"
            {"type":"notice","code":"reported","message":"gateway timeout"}
            {"type":"error","kind":"runtime_crash","message":"gateway timeout","recoverable":true,"exit":null,"stderr":"","answer":null}"#]],
    );
    check(
        &[r#"{"type":"error","error":{"name":"MessageAbortedError"}}"#],
        expect![[r#"
            {"type":"notice","code":"reported","message":"the program reported MessageAbortedError"}
            {"type":"error","kind":"cancelled","message":"the program reported MessageAbortedError","recoverable":false,"exit":null,"stderr":"","answer":null}"#]],
    );
}

/// Another step shows that the program goes on. Regression: so did the end of the step with the error, and each unknown reason.
#[test]
fn an_error_before_another_step_is_a_notice() {
    let starts = r#"{"type":"step_start"}"#;
    let stops = r#"{"type":"step_finish","part":{"reason":"stop"}}"#;
    check(
        &[ERROR, starts, stops],
        expect![[r#"
            {"type":"notice","code":"reported","message":"gateway timeout"}
            {"type":"final","text":"","usage":null,"cost_usd":null,"session_id":null,"turns":null,"structured":null,"denials":[],"details":{"reason":"stop"},"exit":null}"#]],
    );
    fails(&[starts, TEXT, ERROR, stops], "runtime_crash: gateway timeout, answer \"42\"");
}

/// Checks how a program ends with these lines.
fn fails(lines: &[&str], expected: &str) {
    let mut parser = OpenCodeParser::default();
    lines.iter().for_each(|line| drop(parser.parse_line(line.trim())));
    let events = parser.finish();
    let Some(ProgramEvent::Error(failure)) = events.last() else { panic!("{events:?}") };
    let answer = failure.answer.as_ref().map_or("", |answer| &answer.text);
    assert_eq!(format!("{}: {}, answer {answer:?}", failure.kind, failure.message), expected);
}

/// Class: success must be stated.
#[test]
fn only_the_reason_stop_is_success() {
    let why = "the model stopped before its answer was complete";
    for (reason, expected) in [
        (r#""error""#, format!("runtime_crash: {why}: error")),
        (r#""other""#, format!("runtime_crash: {why}: other")),
        (
            r#""length""#,
            "answer_truncated: the model's answer was cut off at the token limit".into(),
        ),
        (r#""content-filter""#, "refused: the model refused to answer".into()),
        ("null", "runtime_crash: the last step of the program has no reason".into()),
    ] {
        let finish = format!(r#"{{"type":"step_finish","part":{{"reason":{reason}}}}}"#);
        fails(&[r#"{"type":"step_start"}"#, TEXT, &finish], &format!("{expected}, answer \"42\""));
    }
    let why = "the program began another step and did not complete it";
    let again = r#"{"type":"step_start"}"#;
    fails(&[again, TEXT, STOPS, again], &format!("runtime_crash: {why}, answer \"42\""));
}
