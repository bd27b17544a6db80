//! Claude Code's lines; each row of the table of its lines in `docs/programs.md` has a test.

use expect_test::{Expect, expect};

use super::*;

/// The events of a new parser for these lines, one per line.
fn check(lines: &[&str], expected: Expect) {
    let mut parser = ClaudeParser::default();
    let events = lines.iter().flat_map(|line| parser.parse_line(line.trim()));
    let rendered: Vec<String> =
        events.map(|event| serde_json::to_string(&event).expect("an event is JSON")).collect();
    expected.assert_eq(&rendered.join("\n"));
}

#[test]
fn assistant_text_is_assistant_delta() {
    check(
        &[r#"{"type":"assistant","message":{"content":[{"type":"text","text":"Hi"}]}}"#],
        expect![[r#"{"type":"assistant_delta","text":"Hi","message":null,"parent":null}"#]],
    );
}

#[test]
fn assistant_tool_use_is_tool_call_started() {
    check(
        &[r#"
            {"type":"assistant","message":{"content":[{"type":"tool_use","id":"toolu_1","name":"Bash","input":{"command":"ls"}}]}}"#],
        expect![[r#"
            {"type":"tool_call_started","id":"toolu_1","name":"Bash","arguments":{"command":"ls"},"parent":null}"#]],
    );
}

#[test]
fn result_is_final() {
    check(
        &[r#"{"type":"result","subtype":"success","result":"42"}"#],
        expect![[r#"
            {"type":"final","text":"42","usage":null,"cost_usd":null,"session_id":null,"turns":null,"structured":null,"denials":[],"details":{"subtype":"success"},"exit":null}"#]],
    );
}

#[test]
fn invalid_json_is_skipped() {
    check(&["{\"type\":", "[]", "3", "null", "\"assistant\"", ""], expect![""]);
}

/// Unknown lines are kept.
#[test]
fn an_unknown_type_is_status() {
    check(
        &[r#"{"type":"rate_limit_event","rate_limit_info":{}}"#, "{}"],
        expect![[r#"
            {"type":"status","data":{"rate_limit_info":{},"type":"rate_limit_event"}}
            {"type":"status","data":{}}"#]],
    );
}

#[test]
fn all_blocks_are_parsed_in_order() {
    check(
        &[r#"
            {"type":"assistant","message":{"id":"m","content":[{"type":"thinking","thinking":"Hm."},{"type":"text","text":"A"},{"type":"tool_use","id":"t","name":"Read","input":{}},{"type":"redacted_thinking","data":"…"},{"type":"text","text":"B"}]}}"#],
        expect![[r#"
            {"type":"thinking_delta","text":"Hm.","message":"m","parent":null}
            {"type":"assistant_delta","text":"A","message":"m","parent":null}
            {"type":"tool_call_started","id":"t","name":"Read","arguments":{},"parent":null}
            {"type":"status","data":{"data":"…","type":"redacted_thinking"}}
            {"type":"assistant_delta","text":"B","message":"m","parent":null}"#]],
    );
}

#[test]
fn tool_result_is_tool_call_finished() {
    check(
        &[r#"
            {"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"21","is_error":false},{"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"no"}],"is_error":true},{"type":"text","text":"[Request interrupted by user]"}]}}"#],
        expect![[r#"
            {"type":"tool_call_finished","id":"t1","output":"21","is_error":false,"exit_code":null,"parent":null}
            {"type":"tool_call_finished","id":"t2","output":[{"text":"no","type":"text"}],"is_error":true,"exit_code":null,"parent":null}
            {"type":"status","data":{"block":{"text":"[Request interrupted by user]","type":"text"},"parent_tool_use_id":null,"type":"user"}}"#]],
    );
}

#[test]
fn server_side_tools_finish_in_the_assistant_message() {
    check(
        &[r#"
            {"type":"assistant","message":{"id":"m","content":[{"type":"server_tool_use","id":"s1","name":"web_search","input":{"query":"x"}},{"type":"web_search_tool_result","tool_use_id":"s1","content":[]}]}}"#],
        expect![[r#"
            {"type":"tool_call_started","id":"s1","name":"web_search","arguments":{"query":"x"},"parent":null}
            {"type":"tool_call_finished","id":"s1","output":[],"is_error":false,"exit_code":null,"parent":null}"#]],
    );
}

/// Results refer to calls by id, so a missing id is not invented.
#[test]
fn a_tool_use_without_an_id_is_status() {
    check(
        &[r#"
            {"type":"assistant","message":{"content":[{"type":"tool_use","name":"ls","input":{}},{"type":"text"}]}}"#],
        expect![[r#"
            {"type":"status","data":{"input":{},"name":"ls","type":"tool_use"}}
            {"type":"status","data":{"type":"text"}}"#]],
    );
}

/// A streamed message: its start and its chunks.
fn streamed(event: &str) -> String {
    format!(r#"{{"type":"stream_event","event":{event},"parent_tool_use_id":null}}"#)
}

fn piece(index: u32, kind: &str, text: &str) -> String {
    let key = kind.strip_suffix("_delta").expect("a kind of piece");
    let delta = format!(r#"{{"type":"{kind}","{key}":"{text}"}}"#);
    streamed(&format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#))
}

/// The texts of these lines, with their kinds.
fn texts(lines: &[String]) -> Vec<String> {
    let mut parser = ClaudeParser::default();
    let events = lines.iter().flat_map(|line| parser.parse_line(line.trim()));
    events
        .filter_map(|event| match event {
            ProgramEvent::AssistantDelta { text, .. } => Some(format!("says {text}")),
            ProgramEvent::ThinkingDelta { text, .. } => Some(format!("thinks {text}")),
            ProgramEvent::Notice { code, .. } => Some(format!("{code:?}")),
            _ => None,
        })
        .collect()
}

#[test]
fn streamed_text_is_not_repeated() {
    let start = streamed(r#"{"type":"message_start","message":{"id":"m"}}"#);
    let whole = |block: &str| {
        format!(r#"{{"type":"assistant","message":{{"id":"m","content":[{block}]}}}}"#)
    };
    let block = |kind: &str| {
        streamed(&format!(
            r#"{{"type":"content_block_start","index":1,"content_block":{{"type":"{kind}"}}}}"#
        ))
    };
    let pieces = [
        start.clone(),
        piece(0, "thinking_delta", "Hm"),
        piece(0, "thinking_delta", "."),
        whole(r#"{"type":"thinking","thinking":"Hm."}"#),
        block("text"),
        piece(1, "text_delta", "6 × 7"),
        piece(1, "text_delta", " = 4"),
        whole(r#"{"type":"text","text":"6 × 7 = 42"}"#),
        whole(r#"{"type":"text","text":"Done."}"#),
    ];
    let expected = ["thinks Hm", "thinks .", "says 6 × 7", "says  = 4", "says 2", "says Done."];
    assert_eq!(texts(&pieces), expected);
    let other = [start, piece(0, "text_delta", "A"), whole(r#"{"type":"text","text":"B"}"#)];
    assert_eq!(texts(&other), ["says A", "TextDiffers"]);
}

#[test]
fn text_of_a_sub_agent_belongs_to_its_call() {
    check(
        &[
            r#"
            {"type":"assistant","parent_tool_use_id":"t1","message":{"id":"m","usage":{"input_tokens":9},"content":[{"type":"text","text":"Looking."},{"type":"tool_use","id":"t2","name":"Bash","input":{}}]}}"#,
            r#"
            {"type":"user","parent_tool_use_id":"t1","message":{"content":[{"type":"tool_result","tool_use_id":"t2","content":"21"}]}}"#,
        ],
        expect![[r#"
            {"type":"assistant_delta","text":"Looking.","message":"m","parent":"t1"}
            {"type":"tool_call_started","id":"t2","name":"Bash","arguments":{},"parent":"t1"}
            {"type":"tool_call_finished","id":"t2","output":"21","is_error":false,"exit_code":null,"parent":"t1"}"#]],
    );
}

/// There is one line for each block, all with the same id and the same usage.
#[test]
fn the_usage_of_a_message_is_counted_once() {
    let line = |id: &str, text: &str| {
        let usage = r#"{"input_tokens":3,"output_tokens":1,"cache_read_input_tokens":10}"#;
        let content = format!(r#"[{{"type":"text","text":"{text}"}}]"#);
        format!(
            r#"
                {{"type":"assistant","message":{{"id":"{id}","content":{content},"usage":{usage}}}}}"#
        )
    };
    let mut parser = ClaudeParser::default();
    let lines = [line("m1", "a"), line("m1", "b"), line("m2", "c")];
    let events = lines.iter().flat_map(|line| parser.parse_line(line.trim()));
    let usages: Vec<(Option<u64>, Option<u64>)> = events
        .filter_map(|event| match event {
            ProgramEvent::Usage(usage) => Some((usage.input_tokens, usage.cached_tokens)),
            _ => None,
        })
        .collect();
    assert_eq!(usages, [(Some(3), Some(10)), (Some(6), Some(20))]);
}

#[test]
fn a_result_keeps_usage_cost_session_and_denials() {
    check(
        &[r#"
            {"type":"result","subtype":"success","is_error":false,"result":"42","session_id":"s","num_turns":2,"total_cost_usd":0.5,"usage":{"input_tokens":4,"output_tokens":2,"cache_creation_input_tokens":7},"structured_output":{"n":42},"permission_denials":[{"tool_name":"Bash","tool_use_id":"t","tool_input":{"command":"rm"}}],"duration_ms":9,"modelUsage":{"x":{"inputTokens":4}}}"#],
        expect![[r#"
            {"type":"session_id","id":"s"}
            {"type":"usage","input_tokens":4,"output_tokens":2,"cached_tokens":null,"cache_write_tokens":7,"reasoning_tokens":null,"completeness":"complete"}
            {"type":"final","text":"42","usage":{"input_tokens":4,"output_tokens":2,"cached_tokens":null,"cache_write_tokens":7,"reasoning_tokens":null,"completeness":"complete"},"cost_usd":0.5,"session_id":"s","turns":2,"structured":{"n":42},"denials":[{"tool":"Bash","call_id":"t","input":{"command":"rm"}}],"details":{"duration_ms":9,"is_error":false,"modelUsage":{"x":{"inputTokens":4}},"subtype":"success"},"exit":null}"#]],
    );
}

/// Checks the failure of a result with these fields.
fn fails(fields: &str, expected: &str) {
    let mut parser = ClaudeParser::default();
    let events = parser.parse_line(&format!(r#"{{"type":"result",{fields}}}"#));
    let Some(ProgramEvent::Error(failure)) = events.last() else { panic!("{events:?}") };
    let again = if failure.recoverable { ", again" } else { "" };
    assert_eq!(format!("{}: {}{again}", failure.kind, failure.message), expected);
    assert!(failure.answer.is_some(), "usage and cost are kept");
}

#[test]
fn an_error_result_is_a_failure() {
    fails(
        r#""subtype":"error_max_turns","is_error":false"#,
        "loop_limit: the program reported error_max_turns",
    );
    fails(
        r#""subtype":"error_max_budget_usd","is_error":true,"errors":["over","budget"]"#,
        "budget_exceeded: over; budget",
    );
    fails(
        r#""subtype":"error_max_structured_output_retries","is_error":true"#,
        "bad_model_output: the program reported error_max_structured_output_retries",
    );
    fails(
        r#""subtype":"error_during_execution","is_error":true"#,
        "runtime_crash: the program reported error_during_execution",
    );
    fails(
        r#""subtype":"success","is_error":true,"result":"Invalid API key","api_error_status":401"#,
        "runtime_crash: Invalid API key",
    );
    fails(
        r#""subtype":"success","is_error":true,"result":"Overloaded","api_error_status":529"#,
        "runtime_crash: Overloaded, again",
    );
}

/// Regression: the text in `error` was dropped.
#[test]
fn the_programs_own_error_is_the_message() {
    fails(
        r#""subtype":"error_during_execution","is_error":true,"error":"no such model""#,
        "runtime_crash: no such model",
    );
    fails(
        r#""subtype":"error_during_execution","is_error":true,"error":{"message":"no credit"}"#,
        "runtime_crash: no credit",
    );
}

/// Regression: an answer that was cut off or refused was taken for a complete one.
#[test]
fn an_incomplete_answer_is_a_failure() {
    fails(
        r#""subtype":"success","is_error":false,"result":"Half","stop_reason":"max_tokens""#,
        "answer_truncated: the model's answer was cut off at the token limit",
    );
    fails(
        r#""subtype":"success","is_error":false,"result":"","stop_reason":"refusal""#,
        "refused: the model refused to answer",
    );
}

/// Class: success must be stated.
#[test]
fn only_the_subtype_success_without_an_error_is_success() {
    fails(r#""result":"42""#, "runtime_crash: the program did not report success: 42");
    fails(
        r#""subtype":"interrupted","is_error":false,"result":"half""#,
        "runtime_crash: the program reported interrupted: half",
    );
    fails(r#""subtype":"success","is_error":"true","result":"bad""#, "runtime_crash: bad");
    fails(r#""subtype":"success","is_error":1,"result":"bad""#, "runtime_crash: bad");
    fails(r#""subtype":"success","result":"42","errors":["boom"]"#, "runtime_crash: boom");
    fails(r#""subtype":"success","result":"42","error":{"message":"no"}"#, "runtime_crash: no");
    fails(
        r#""subtype":"success","result":"42","stop_reason":"pause_turn""#,
        "runtime_crash: the model stopped before its answer was complete: pause_turn",
    );
    fails(
        r#""subtype":"success","result":"42","terminal_reason":"aborted_tools""#,
        "runtime_crash: the program reported aborted_tools",
    );
}

/// Regression: only the result was looked at. The last message of the agent says more: an error of the API, and the stop reason.
#[test]
fn the_last_message_can_be_a_failure() {
    let ends = |lines: &[&str]| {
        let mut parser = ClaudeParser::default();
        lines.iter().for_each(|line| drop(parser.parse_line(line.trim())));
        let success = r#"{"type":"result","subtype":"success","is_error":false,"result":"42"}"#;
        match parser.parse_line(success).pop() {
            Some(ProgramEvent::Error(failure)) => format!("{}: {}", failure.kind, failure.message),
            Some(ProgramEvent::Final(answer)) => answer.text,
            other => panic!("{other:?}"),
        }
    };
    let said = |fields: &str, message: &str| {
        format!(
            r#"{{"type":"assistant",{fields}"message":{{"id":"m",{message}"content":[{{"type":"text","text":"Oh."}}]}}}}"#
        )
    };
    let well = said("", r#""stop_reason":"end_turn","#);
    let refused = said("", r#""stop_reason":"refusal","#);
    let cut = said("", r#""stop_reason":"max_tokens","#);
    let limited = said(r#""error":"rate_limit","#, "");
    let failed = said(r#""isApiErrorMessage":true,"#, "");
    assert_eq!(ends(&[&refused]), "refused: the model refused to answer");
    let truncated = "answer_truncated: the model's answer was cut off at the token limit";
    assert_eq!(ends(&[&cut]), truncated);
    assert_eq!(ends(&[&limited]), "runtime_crash: Oh.");
    assert_eq!(ends(&[&failed]), "runtime_crash: Oh.");
    let delta = r#"{"type":"stream_event","event":{"type":"message_delta","delta":{"stop_reason":"max_tokens"}}}"#;
    assert_eq!(ends(&[&said("", r#""stop_reason":null,"#), delta]), truncated);
    // The agent has gone on, and a sub-agent is not the agent.
    assert_eq!(ends(&[&cut, &limited, &well]), "42");
    let below = said(r#""parent_tool_use_id":"t1","#, r#""stop_reason":"refusal","#);
    assert_eq!(ends(&[&well, &below]), "42");
}

/// Regression: a session log repeats messages, and each repetition counted as another call.
#[test]
fn a_repeated_call_starts_once() {
    let line = r#"
        {"type":"assistant","message":{"id":"m1","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{}}]}}"#;
    check(
        &[line, line],
        expect![[
            r#"{"type":"tool_call_started","id":"t1","name":"Bash","arguments":{},"parent":null}"#
        ]],
    );
}

#[test]
fn a_session_is_reported_when_it_changes() {
    let line = |id: &str| format!(r#"{{"type":"system","subtype":"init","session_id":"{id}"}}"#);
    let mut parser = ClaudeParser::default();
    let lines = [line("a"), line("a"), line("b"), line("")];
    let events = lines.iter().flat_map(|line| parser.parse_line(line.trim()));
    let ids: Vec<ProgramEvent> =
        events.filter(|event| matches!(event, ProgramEvent::SessionId { .. })).collect();
    let id = |id: &str| ProgramEvent::SessionId { id: id.to_owned() };
    assert_eq!(ids, [id("a"), id("b")]);
}

/// Class: a part is assigned by its place instead of its identity. A call with the id of an earlier one and another content was
/// dropped as a repetition, and one without an id took the place of the next.
#[test]
fn a_repeated_id_with_another_content_is_another_call() {
    let call = |id: &str, place: &str| {
        format!(
            r#"{{"type":"assistant","message":{{"content":[{{"type":"tool_use","id":"{id}","name":"look","input":{{"place":"{place}"}}}}]}}}}"#
        )
    };
    let lines = [call("t1", "attic"), call("t1", "attic"), call("t1", "cellar"), call("", "x")];
    check(
        &lines.each_ref().map(String::as_str),
        expect![[r#"
        {"type":"tool_call_started","id":"t1","name":"look","arguments":{"place":"attic"},"parent":null}
        {"type":"tool_call_started","id":"t1","name":"look","arguments":{"place":"cellar"},"parent":null}
        {"type":"status","data":{"id":"","input":{"place":"x"},"name":"look","type":"tool_use"}}"#]],
    );
}
