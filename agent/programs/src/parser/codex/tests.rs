//! Codex's lines.

use expect_test::{Expect, expect};

use super::*;

/// The events of a new parser for these lines, one per line.
fn check(lines: &[&str], expected: Expect) {
    let mut parser = CodexParser::default();
    let events = lines.iter().flat_map(|line| parser.parse_line(line.trim()));
    let rendered: Vec<String> =
        events.map(|event| serde_json::to_string(&event).expect("an event is JSON")).collect();
    expected.assert_eq(&rendered.join("\n"));
}

#[test]
fn a_thread_is_a_session() {
    check(
        &[r#"{"type":"thread.started","thread_id":"t1"}"#, "nothing", "[]"],
        expect![[r#"
            {"type":"session_id","id":"t1"}
            {"type":"status","data":{"thread_id":"t1","type":"thread.started"}}"#]],
    );
}

#[test]
fn a_command_has_its_exit_code() {
    check(
        &[
            r#"
                {"type":"item.started","item":{"id":"i1","type":"command_execution","command":"exit 42","aggregated_output":"","exit_code":null,"status":"in_progress"}}"#,
            r#"
                {"type":"item.completed","item":{"id":"i1","type":"command_execution","command":"exit 42","aggregated_output":"no\n","exit_code":42,"status":"failed"}}"#,
        ],
        expect![[r#"
            {"type":"tool_call_started","id":"i1","name":"command_execution","arguments":{"command":"exit 42"},"parent":null}
            {"type":"tool_call_finished","id":"i1","output":"no\n","is_error":true,"exit_code":42,"parent":null}"#]],
    );
}

#[test]
fn a_short_item_starts_and_finishes_in_one_line() {
    check(
        &[
            r#"
                {"type":"item.completed","item":{"id":"i1","type":"file_change","changes":[{"path":"a"}],"status":"completed"}}"#,
            r#"{"type":"item.completed","item":{"id":"i2","type":"web_search","query":"x"}}"#,
        ],
        expect![[r#"
            {"type":"tool_call_started","id":"i1","name":"file_change","arguments":{"changes":[{"path":"a"}]},"parent":null}
            {"type":"tool_call_finished","id":"i1","output":"completed","is_error":false,"exit_code":null,"parent":null}
            {"type":"tool_call_started","id":"i2","name":"web_search","arguments":{"query":"x"},"parent":null}
            {"type":"tool_call_finished","id":"i2","output":null,"is_error":false,"exit_code":null,"parent":null}"#]],
    );
}

#[test]
fn a_failed_mcp_call_has_its_error() {
    check(
        &[
            r#"
                {"type":"item.started","item":{"id":"i1","type":"mcp_tool_call","server":"github","tool":"search","arguments":{"q":1},"result":null,"error":null,"status":"in_progress"}}"#,
            r#"
                {"type":"item.updated","item":{"id":"i1","type":"mcp_tool_call","server":"github","tool":"search","arguments":{"q":1},"status":"in_progress"}}"#,
            r#"
                {"type":"item.completed","item":{"id":"i1","type":"mcp_tool_call","server":"github","tool":"search","arguments":{"q":1},"result":null,"error":{"message":"timeout"},"status":"failed"}}"#,
        ],
        expect![[r#"
            {"type":"tool_call_started","id":"i1","name":"mcp__github__search","arguments":{"q":1},"parent":null}
            {"type":"status","data":{"item":{"arguments":{"q":1},"id":"i1","server":"github","status":"in_progress","tool":"search","type":"mcp_tool_call"},"type":"item.updated"}}
            {"type":"tool_call_finished","id":"i1","output":{"message":"timeout"},"is_error":true,"exit_code":null,"parent":null}"#]],
    );
}

#[test]
fn only_new_text_of_a_message_is_sent() {
    check(
        &[
            r#"
                {"type":"item.agent_message.delta","item":{"id":"i1","type":"agent_message","content":{"type":"text","text":"6 × 7"}}}"#,
            r#"{"type":"item.agent_message.delta","item_id":"i1","delta":" = "}"#,
            r#"
                {"type":"item.updated","item":{"id":"i1","type":"agent_message","text":"6 × 7 = 4"}}"#,
            r#"
                {"type":"item.completed","item":{"id":"i1","type":"agent_message","text":"6 × 7 = 42"}}"#,
            r#"{"type":"item.completed","item":{"id":"i2","type":"reasoning","text":"Easy."}}"#,
        ],
        expect![[r#"
            {"type":"assistant_delta","text":"6 × 7","message":"i1","parent":null}
            {"type":"assistant_delta","text":" = ","message":"i1","parent":null}
            {"type":"assistant_delta","text":"4","message":"i1","parent":null}
            {"type":"assistant_delta","text":"2","message":"i1","parent":null}
            {"type":"thinking_delta","text":"Easy.","message":"i2","parent":null}"#]],
    );
}

#[test]
fn the_answer_is_the_last_message() {
    check(
        &[
            r#"
                {"type":"item.completed","item":{"id":"i1","type":"agent_message","text":"Let me see."}}"#,
            r#"{"type":"item.completed","item":{"id":"i2","type":"agent_message","text":"42"}}"#,
            r#"
                {"type":"turn.completed","usage":{"input_tokens":20,"cached_input_tokens":5,"output_tokens":10}}"#,
        ],
        expect![[r#"
            {"type":"assistant_delta","text":"Let me see.","message":"i1","parent":null}
            {"type":"assistant_delta","text":"42","message":"i2","parent":null}
            {"type":"usage","input_tokens":20,"output_tokens":10,"cached_tokens":5,"cache_write_tokens":null,"reasoning_tokens":null,"completeness":"complete"}
            {"type":"final","text":"42","usage":{"input_tokens":20,"output_tokens":10,"cached_tokens":5,"cache_write_tokens":null,"reasoning_tokens":null,"completeness":"complete"},"cost_usd":null,"session_id":null,"turns":null,"structured":null,"denials":[],"details":{},"exit":null}"#]],
    );
}

#[test]
fn a_pending_turn_has_no_answer() {
    check(
        &[r#"{"type":"turn.completed","status":"pending"}"#],
        expect![[r#"{"type":"status","data":{"status":"pending","type":"turn.completed"}}"#]],
    );
}

#[test]
fn a_failed_turn_is_a_failure_and_a_reported_error_is_not() {
    check(
        &[
            r#"{"type":"error","message":"Reconnecting... 1/5","will_retry":true}"#,
            r#"{"type":"item.completed","item":{"id":"i","type":"error","message":"truncated"}}"#,
            r#"{"type":"turn.failed","error":{"message":"no quota"}}"#,
            r#"{"type":"turn.completed","status":"failed","error":{"message":"no"}}"#,
        ],
        expect![[r#"
            {"type":"notice","code":"reported","message":"Reconnecting... 1/5"}
            {"type":"notice","code":"reported","message":"truncated"}
            {"type":"error","kind":"runtime_crash","message":"no quota","recoverable":false,"exit":null,"stderr":"","answer":null}
            {"type":"error","kind":"runtime_crash","message":"no","recoverable":false,"exit":null,"stderr":"","answer":null}"#]],
    );
}

#[test]
fn plans_and_unknown_items_are_status() {
    check(
        &[
            r#"{"type":"item.started","item":{"id":"i1","type":"todo_list","items":[]}}"#,
            r#"{"type":"turn/compaction/completed","compaction":{}}"#,
        ],
        expect![[r#"
            {"type":"status","data":{"item":{"id":"i1","items":[],"type":"todo_list"},"type":"item.started"}}
            {"type":"status","data":{"compaction":{},"type":"turn/compaction/completed"}}"#]],
    );
}

/// Class: an empty text in a field that means "absent", and an error beside success. A command whose `error` is `""` counted as
/// failed, and a completed turn with an error as a success.
#[test]
fn an_empty_field_is_absent_and_an_error_counts() {
    let call = r#"{"type":"item.completed","item":{"id":"1","type":"mcp_tool_call","server":"","tool":"look","error":"","result":"ok"}}"#;
    let no_id = r#"{"type":"item.completed","item":{"id":"","type":"command_execution","command":"ls","exit_code":0}}"#;
    check(
        &[call, no_id],
        expect![[r#"
        {"type":"tool_call_started","id":"1","name":"look","arguments":null,"parent":null}
        {"type":"tool_call_finished","id":"1","output":"ok","is_error":false,"exit_code":null,"parent":null}
        {"type":"status","data":{"item":{"command":"ls","exit_code":0,"id":"","type":"command_execution"},"type":"item.completed"}}"#]],
    );
    check(
        &[r#"{"type":"turn.completed","error":"the stream ended early"}"#],
        expect![[
            r#"{"type":"error","kind":"runtime_crash","message":"the stream ended early","recoverable":false,"exit":null,"stderr":"","answer":null}"#
        ]],
    );
    let said = r#"{"type":"item.completed","item":{"id":"1","type":"agent_message","text":"42"}}"#;
    check(
        &[said, r#"{"type":"turn.completed","error":{},"final_response":{"text":""}}"#],
        expect![[r#"
            {"type":"assistant_delta","text":"42","message":"1","parent":null}
            {"type":"final","text":"42","usage":null,"cost_usd":null,"session_id":null,"turns":null,"structured":null,"denials":[],"details":{"error":{}},"exit":null}"#]],
    );
}

/// Class: success must be stated.
#[test]
fn only_a_completed_last_turn_without_an_error_is_success() {
    const SAID: &str =
        r#"{"type":"item.completed","item":{"id":"1","type":"agent_message","text":"42"}}"#;
    const DONE: &str = r#"{"type":"turn.completed"}"#;
    const ITEM_ERROR: &str =
        r#"{"type":"item.completed","item":{"id":"2","type":"error","message":"oops"}}"#;
    const ERROR: &str = r#"{"type":"error","message":"fatal"}"#;
    let ends = |lines: &[&str]| {
        let mut parser = CodexParser::default();
        let mut events: Vec<_> = lines.iter().flat_map(|line| parser.parse_line(line)).collect();
        events.extend(parser.finish());
        match events.pop() {
            Some(ProgramEvent::Error(failure)) => format!("{}: {}", failure.kind, failure.message),
            Some(ProgramEvent::Final(answer)) => answer.text,
            other => panic!("{other:?}"),
        }
    };
    for (status, expected) in [
        ("incomplete", "runtime_crash: the turn is incomplete"),
        ("cancelled", "runtime_crash: the turn is cancelled"),
        ("interrupted", "runtime_crash: the turn is interrupted"),
    ] {
        let line = format!(r#"{{"type":"turn.completed","status":"{status}"}}"#);
        assert_eq!(ends(&[SAID, &line]), expected);
    }
    let cut = r#"{"type":"turn.completed","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}"#;
    let expected = "answer_truncated: the model's answer was cut off at the token limit";
    assert_eq!(ends(&[SAID, cut]), expected);
    assert_eq!(ends(&[SAID, ITEM_ERROR, DONE]), "runtime_crash: oops");
    assert_eq!(ends(&[SAID, ERROR, DONE]), "runtime_crash: fatal");
    let aborted = r#"{"type":"turn.aborted","reason":"interrupted"}"#;
    assert_eq!(ends(&[SAID, aborted]), "runtime_crash: interrupted");
    let begins = r#"{"type":"turn.started"}"#;
    let why = "runtime_crash: the program began another turn and did not complete it";
    assert_eq!(ends(&[begins, SAID, DONE, begins, SAID]), why);
    // A message that has begun and has not completed is no answer.
    let open = |kind: &str, id: &str| {
        format!(r#"{{"type":"{kind}","item":{{"id":"{id}","type":"agent_message","text":"4"}}}}"#)
    };
    let delta = r#"{"type":"item.agent_message.delta","item_id":"9","delta":"4"}"#;
    let why = "bad_model_output: the turn completed before its last message did: a part of the answer may be missing";
    for begun in [&open("item.started", "9"), &open("item.updated", "9"), delta] {
        assert_eq!(ends(&[begun, DONE]), why);
        assert_eq!(ends(&[SAID, begun, DONE]), why);
        assert_eq!(ends(&[begun, SAID, DONE]), "42");
        assert_eq!(ends(&[begun, &open("item.completed", "9"), DONE]), "4");
        let response = r#"{"type":"turn.completed","final_response":{"text":"42"}}"#;
        assert_eq!(ends(&[begun, response]), "42");
    }
    // The program has gone on after the error.
    assert_eq!(ends(&[ITEM_ERROR, ERROR, SAID, DONE]), "42");
    assert_eq!(ends(&[begins, SAID, DONE, begins, SAID, DONE]), "42");
}

#[test]
fn a_command_without_an_exit_code_has_not_succeeded() {
    for (fields, is_error) in [
        (r#""exit_code":null,"status":"completed""#, true),
        (r#""exit_code":0,"status":"in_progress""#, true),
        (r#""exit_code":0,"status":"completed""#, false),
    ] {
        let line = format!(
            r#"{{"type":"item.completed","item":{{"id":"1","type":"command_execution",{fields}}}}}"#
        );
        let events = CodexParser::default().parse_line(&line);
        let Some(ProgramEvent::ToolCallFinished { is_error: failed, .. }) = events.last() else {
            panic!("{events:?}")
        };
        assert_eq!(*failed, is_error, "{fields}");
    }
}
