//! Output on stdout, valid or not, and the choice of the answer.

use abide_programs::{
    CliConfig, OutputFormat, Parser, Program, ProgramEvent, ProgramResult, Prompt, TerminalRule,
    run,
};
use expect_test::{Expect, expect};

use crate::{FINAL, end, fake, rendered, start};

async fn check(config: CliConfig, expected: Expect) {
    expected.assert_eq(&rendered(start(config)).await);
}

#[tokio::test]
async fn the_last_line_needs_no_newline() {
    check(
        fake(&["text", FINAL]),
        expect![[r#"
            {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
            · => final "42", exited with code 0
        "#]],
    )
    .await;
}

#[tokio::test]
async fn invalid_utf_8_is_replaced() {
    // `{"type":"assistant","message":{"content":"a?b"}}`, with an invalid UTF-8 byte.
    let head = r#"{"type":"assistant","message":{"content":"a"#;
    let tail = r#"b"}}"#;
    check(
        fake(&["text", head, "hex", "ff", "line", tail, "line", FINAL]),
        expect![[r#"
            {"type":"assistant","message":{"content":"a�b"}} => says "a�b"
            {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
            · => final "42", exited with code 0
        "#]],
    )
    .await;
}

/// Class: a lost part is counted as success. A line that begins as an object and cannot be read was a notice only, and the run succeeded
/// without what it had.
#[tokio::test]
async fn a_line_that_cannot_be_read_is_a_lost_part() {
    let why = "a part of the answer may be missing";
    let done = r#"{"type":"turn.completed"}"#;
    let said = r#"{"type":"item.completed","item":{"id":"1","type":"agent_message","text":"42"}}"#;
    let cut = &said[..said.len() - 1];
    let gemini = r#"{"type":"result","status":"success"}"#;
    let gemini_said = r#"{"type":"message","role":"assistant","content":"42","delta":true}"#;
    for (program, lines) in [
        (Program::Claude, &["Loading…", cut, FINAL][..]),
        (Program::Claude, &["[1]", "  {\"a\": NaN}", FINAL]),
        (Program::Claude, &["7", "{", FINAL]),
        (Program::Claude, &[FINAL, "{\"type\":\"result\""]),
        (Program::Codex, &[said, cut, done]),
        (Program::Gemini, &[gemini_said, &gemini_said[..30], gemini]),
    ] {
        let steps: Vec<&str> = lines.iter().flat_map(|line| ["line", *line]).collect();
        let config = CliConfig { program: Some(program), ..fake(&steps) };
        let ProgramEvent::Error(failure) = end(start(config)).await else { panic!("{lines:?}") };
        let expected = format!("line 2 of the program cannot be read: {why}");
        assert_eq!((failure.kind.code(), failure.message), ("bad_model_output", expected));
        assert!(failure.answer.is_some(), "{lines:?}");
    }
    // An unknown program may print anything.
    let steps = ["line", "{", "line", r#"{"type":"done","text":"42"}"#];
    let config = generic(&steps, TerminalRule::line_type("done", Some("/text")));
    let ProgramEvent::Final(answer) = end(start(config)).await else { panic!("it succeeds") };
    assert_eq!(answer.text, "42");
}

#[tokio::test]
async fn lines_without_a_json_object_are_kept_raw() {
    let steps = ["line", "Loading…", "line", "[1]", "line", "7", "line", "", "line", FINAL];
    check(
        fake(&steps),
        expect![[r#"
            Loading… => 
            [1] => 
            7 => 
            {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
            · => final "42", exited with code 0
        "#]],
    )
    .await;
}

/// Class: one undecodable value costs the line, silently. Claude Code cuts texts by UTF-16 units: the result of a call, or the
/// answer of the run, was lost.
#[tokio::test]
async fn half_a_surrogate_pair_costs_no_line_and_a_dropped_line_is_a_notice() {
    let said = r#"{"type":"assistant","message":{"content":"a\ud83d"}}"#;
    let last = r#"{"type":"result","subtype":"success","is_error":false,"result":"4\udd11"}"#;
    let no_number = r#"{"type":"assistant","x":NaN}"#;
    check(
        fake(&["line", said, "line", last]),
        expect![[r#"
            {"type":"assistant","message":{"content":"a\ud83d"}} => says "a�"
            {"type":"result","subtype":"success","is_error":false,"result":"4\udd11"} => 
            · => final "4�", exited with code 0
        "#]],
    )
    .await;
    check(
        fake(&["line", said, "line", no_number, "line", last]),
        expect![[r#"
            {"type":"assistant","message":{"content":"a\ud83d"}} => says "a�"
            {"type":"assistant","x":NaN} => LineUnread: a line of the program cannot be read: expected value at line 1 column 25
            {"type":"result","subtype":"success","is_error":false,"result":"4\udd11"} => 
            · => bad_model_output: line 2 of the program cannot be read: a part of the answer may be missing, answer "4�"
        "#]],
    )
    .await;
}

/// Class: the wrong one of several answers. Claude Code reports a result for each background task that ends, and the first one
/// was the answer of the run.
#[tokio::test]
async fn the_last_of_several_finals_is_used_with_a_notice() {
    let second = r#"{"type":"result","subtype":"success","is_error":false,"result":"43"}"#;
    check(
        fake(&["line", FINAL, "line", second]),
        expect![[r#"
            {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
            {"type":"result","subtype":"success","is_error":false,"result":"43"} => ExtraFinal: the program gave another answer; the last one is used
            · => final "43", exited with code 0
        "#]],
    )
    .await;
}

/// Class: success although the answer is missing. The result of Claude Code is empty when its text was in the message.
#[tokio::test]
async fn an_empty_final_does_not_replace_a_text() {
    let said = r#"{"type":"assistant","message":{"content":"41"}}"#;
    let empty = r#"{"type":"result","subtype":"success","is_error":false,"result":""}"#;
    for (steps, answer) in [
        (&["line", said, "line", empty][..], "41"),
        (&["line", FINAL, "line", empty], "42"),
        (&["line", empty, "line", FINAL, "line", said], "42"),
    ] {
        let ProgramEvent::Final(last) = end(start(fake(steps))).await else { panic!("{steps:?}") };
        assert_eq!(last.text, answer, "{steps:?}");
    }
    check(
        fake(&["line", empty]),
        expect![[r#"
            {"type":"result","subtype":"success","is_error":false,"result":""} => 
            · => no_answer: the program reported success and gave no answer, answer ""
        "#]],
    )
    .await;
}

#[tokio::test]
async fn output_after_a_final_precedes_the_terminal_event() {
    let late = r#"{"type":"assistant","message":{"content":"by the way"}}"#;
    check(
        fake(&["line", FINAL, "line", late]),
        expect![[r#"
            {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
            {"type":"assistant","message":{"content":"by the way"}} => says "by the way"
            · => final "42", exited with code 0
        "#]],
    )
    .await;
}

fn generic(steps: &[&str], terminal: TerminalRule) -> CliConfig {
    CliConfig { program: Some(Program::Generic), terminal, ..fake(steps) }
}

#[tokio::test]
async fn the_generic_parser_yields_status_and_so_no_final() {
    check(
        generic(&["line", r#"{"type":"result","result":"42"}"#], TerminalRule::Parser),
        expect![[r#"
            {"type":"result","result":"42"} => status
            · => bad_model_output: the program exited with code 0 and gave no answer
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_predicate_makes_a_line_the_final() {
    let rule = TerminalRule::line_type("done", Some("/text"));
    let steps = ["line", r#"{"type":"step"}"#, "line", r#"{"type":"done","text":"42"}"#];
    check(
        generic(&steps, rule.clone()),
        expect![[r#"
            {"type":"step"} => status
            {"type":"done","text":"42"} => status
            · => final "42", exited with code 0
        "#]],
    )
    .await;
    let again = [&steps[..], &["line", r#"{"type":"done"}"#, "exit", "3"]].concat();
    check(
        generic(&again, rule),
        expect![[r#"
            {"type":"step"} => status
            {"type":"done","text":"42"} => status
            {"type":"done"} => status, ExtraFinal: the program gave another answer; the last one is used
            · => runtime_crash: the program exited with code 3 after it had given an answer, answer "42"
        "#]],
    )
    .await;
}

#[tokio::test]
async fn exit_code_0_can_be_the_final() {
    let line = r#"{"type":"step","n":7}"#;
    let config = generic(&["line", line], TerminalRule::ExitZero);
    let ProgramEvent::Final(answer) = end(start(config)).await else { panic!("the run succeeds") };
    assert_eq!((answer.text.as_str(), answer.details["n"].as_i64()), ("", Some(7)));
    check(
        generic(&["line", line, "exit", "1"], TerminalRule::ExitZero),
        expect![[r#"
            {"type":"step","n":7} => status
            · => runtime_crash: the program exited with code 1
        "#]],
    )
    .await;
}

#[tokio::test]
async fn plain_text_is_the_agents_message() {
    let config = CliConfig {
        output_format: OutputFormat::Text,
        terminal: TerminalRule::ExitZero,
        ..fake(&["line", "Let me see.", "line", "It is {42}."])
    };
    check(
        config,
        expect![[r#"
            Let me see. => says "Let me see.\n"
            It is {42}. => says "It is {42}.\n"
            · => final "Let me see.\nIt is {42}.", exited with code 0
        "#]],
    )
    .await;
}

/// A custom parser takes precedence over the configured and the detected program.
#[tokio::test]
async fn an_explicit_parser_overrides_the_selection() {
    struct MyTool;
    impl Parser for MyTool {
        fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
            let text = line.to_owned();
            vec![ProgramEvent::Final(ProgramResult { text, ..ProgramResult::default() })]
        }
    }
    let running = run(fake(&["line", "42"]), Prompt::default(), Some(Box::new(MyTool)));
    expect![[r#"
        42 => 
        · => final "42", exited with code 0
    "#]]
    .assert_eq(&rendered(running).await);
}
