//! Errors of programs: a test for each row of the table in `docs/programs.md`, and for related failures.

use std::time::{Duration, Instant};

use abide_programs::{CliConfig, ErrorKind, Failure, Parser, Program, ProgramEvent, Prompt, run};
use expect_test::{Expect, expect};

use crate::{FINAL, NEVER, SOON, end, fake, rendered, start, until};

async fn check(config: CliConfig, expected: Expect) {
    expected.assert_eq(&rendered(start(config)).await);
}

async fn failed(config: CliConfig) -> Failure {
    match end(start(config)).await {
        ProgramEvent::Error(failure) => failure,
        other => panic!("{other:?} is not a failure"),
    }
}

#[tokio::test]
async fn timeout_exceeded_is_mcp_timeout_and_not_recoverable() {
    let failure = failed(CliConfig { timeout: SOON, ..fake(&["hang"]) }).await;
    assert_eq!((failure.kind.code(), failure.recoverable), ("mcp_timeout", false));
    assert_eq!(failure.message, "the program timed out after 0.3 s");
    assert_eq!(failure.exit.and_then(|exit| exit.signal), Some(15));
}

#[tokio::test]
async fn output_exceeds_max_output_bytes_is_budget_exceeded() {
    let steps = ["line", "{}", "line", "{\"a\":1}", "line", "{}", "hang"];
    check(
        CliConfig { max_output_bytes: 10, ..fake(&steps) },
        expect![[r#"
            {} => status
            · => budget_exceeded: the program wrote more than 10 bytes within a minute (max_output_bytes)
        "#]],
    )
    .await;
}

#[tokio::test]
async fn non_zero_exit_code_is_runtime_crash() {
    check(
        fake(&["stderr", "0", "exit", "2"]),
        expect![[r#"
            · => runtime_crash: the program exited with code 2: the last words
        "#]],
    )
    .await;
}

#[tokio::test]
async fn exit_code_0_without_terminal_event_is_bad_model_output() {
    check(
        fake(&["line", r#"{"type":"assistant","message":{"content":"half"}}"#]),
        expect![[r#"
            {"type":"assistant","message":{"content":"half"}} => says "half"
            · => bad_model_output: the program exited with code 0 and gave no answer
        "#]],
    )
    .await;
}

#[tokio::test]
async fn unexpected_exception_is_runtime_crash() {
    let config = CliConfig::new(["/nonexistent/claude"]);
    check(
        config,
        expect![[r#"
            · => runtime_crash: cannot start program "/nonexistent/claude": No such file or directory (os error 2)
        "#]],
    )
    .await;
    let nothing: [&str; 0] = [];
    assert_eq!(failed(CliConfig::new(nothing)).await.kind, ErrorKind::RuntimeCrash);
}

/// A custom parser may panic. Only its own run fails.
#[tokio::test]
async fn a_parser_that_panics_is_runtime_crash() {
    struct Panics;
    impl Parser for Panics {
        fn parse_line(&mut self, line: &str) -> Vec<ProgramEvent> {
            panic!("{line} is too much");
        }
    }
    let config = fake(&["line", "{}", "hang"]);
    let running = run(config, Prompt::default(), Some(Box::new(Panics)));
    expect![[r#"
        · => runtime_crash: the run's driver panicked
    "#]]
    .assert_eq(&rendered(running).await);
}

#[tokio::test]
async fn cancel_sends_sigterm_and_is_cancelled() {
    let mut running = start(fake(&["line", "{}", "hang"]));
    until(&mut running, |event| matches!(event, ProgramEvent::Status { .. })).await;
    running.cancel();
    let ProgramEvent::Error(failure) = end(running).await else { panic!("the run is cancelled") };
    assert_eq!(failure.kind.code(), "cancelled");
    assert_eq!(failure.exit.and_then(|exit| exit.signal), Some(15));
}

#[tokio::test]
async fn cancel_is_cancelled_even_if_final_was_seen() {
    let mut running = start(fake(&["line", FINAL, "line", "{}", "hang"]));
    until(&mut running, |event| matches!(event, ProgramEvent::Status { .. })).await;
    running.cancel();
    running.cancel();
    expect![[r#"
        · => cancelled: the run was cancelled, answer "42"
    "#]]
    .assert_eq(&rendered(running).await);
}

/// Class: trust in the peer to end. OpenCode reported its last step and never exited, so the run waited for its whole timeout
/// and then failed without the answer.
#[tokio::test]
async fn a_program_that_has_answered_and_does_not_exit_is_ended() {
    let step = r#"{"type":"step_finish","part":{"reason":"stop"}}"#;
    let text = r#"{"type":"text","part":{"text":"42"}}"#;
    let failed = r#"{"type":"turn.failed","error":{"message":"no"}}"#;
    let turn = r#"{"type":"turn.completed"}"#;
    let message =
        r#"{"type":"item.completed","item":{"id":"1","type":"agent_message","text":"42"}}"#;
    let cases: [(Program, &[&str], &str); 4] = [
        (Program::Claude, &["line", FINAL, "hang"], "final \"42\", was killed by signal 15"),
        (
            Program::Claude,
            &["line", FINAL, "drip", "{}\n"],
            "final \"42\", was killed by signal 15",
        ),
        (
            Program::Codex,
            &["line", message, "line", turn, "hang"],
            "final \"42\", was killed by signal 15",
        ),
        (Program::Codex, &["line", failed, "hang"], "runtime_crash: no"),
    ];
    for (program, steps, expected) in cases {
        let config = CliConfig { program: Some(program), grace: SOON, ..fake(steps) };
        assert_eq!(crate::event(&end(start(config)).await), expected, "{steps:?}");
    }
    // Without a final line, the answer counts at the deadline, or earlier after a longer silence.
    let steps = ["line", text, "line", step, "hang"];
    let open_code = |steps: &[&str]| CliConfig {
        program: Some(Program::OpenCode),
        timeout: SOON,
        ..fake(steps)
    };
    let ended = end(start(open_code(&steps))).await;
    assert_eq!(crate::event(&ended), "final \"42\", was killed by signal 15");
    // A step that has begun is not finished.
    let working = ["line", text, "line", step, "line", r#"{"type":"step_start"}"#, "hang"];
    let ended = end(start(open_code(&working))).await;
    assert_eq!(
        crate::event(&ended),
        "mcp_timeout: the program timed out after 0.3 s, answer \"42\""
    );
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_is_killed_after_the_grace() {
    let config = CliConfig { grace: SOON, ..fake(&["ignore-term", "line", "{}", "hang"]) };
    let mut running = start(config);
    until(&mut running, |event| matches!(event, ProgramEvent::Status { .. })).await;
    let asked = Instant::now();
    running.cancel();
    let ProgramEvent::Error(failure) = end(running).await else { panic!("the run is cancelled") };
    assert_eq!(failure.exit.and_then(|exit| exit.signal), Some(9));
    assert!(asked.elapsed() >= SOON, "the grace period has passed");
}

/// The final line is written after the request to stop: it is too late, but kept.
#[tokio::test]
async fn a_program_can_clean_up_during_the_grace_period() {
    let mut running = start(fake(&["on-term", FINAL, "exit", "0"]));
    until(&mut running, |event| matches!(event, ProgramEvent::Status { .. })).await;
    running.cancel();
    expect![[r#"
        {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
        · => cancelled: the run was cancelled, answer "42"
    "#]]
    .assert_eq(&rendered(running).await);
}

#[tokio::test]
async fn continuous_output_does_not_extend_the_deadline() {
    let config = CliConfig { timeout: SOON, ..fake(&["drip", "{}"]) };
    assert_eq!(failed(config).await.kind, ErrorKind::McpTimeout);
}

#[tokio::test]
async fn a_program_that_dies_by_sigkill_is_runtime_crash() {
    check(
        fake(&["line", FINAL, "die"]),
        expect![[r#"
            {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
            · => runtime_crash: the program was killed by signal 9 after it had given an answer, answer "42"
        "#]],
    )
    .await;
}

#[tokio::test]
async fn exit_3_after_a_final_is_runtime_crash_with_both_facts() {
    check(
        fake(&["line", FINAL, "exit", "3"]),
        expect![[r#"
            {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
            · => runtime_crash: the program exited with code 3 after it had given an answer, answer "42"
        "#]],
    )
    .await;
}

#[tokio::test]
async fn stderr_is_drained_and_its_end_is_kept() {
    let config = fake(&["stderr", "3000000", "line", "{}", "exit", "1"]);
    let failure = failed(config).await;
    assert_eq!(failure.stderr.len(), 8 * 1024);
    assert!(failure.stderr.ends_with("xxx\nthe last words\n"), "{}", failure.stderr);
    assert_eq!(failure.message, "the program exited with code 1: the last words");
}

/// Child processes would keep the pipes open; they are killed with the program. Otherwise the run would take the
/// grace period, which is longer than the test's deadline.
#[tokio::test]
async fn a_grandchild_with_an_open_stdout_is_killed() {
    let began = Instant::now();
    check(
        fake(&["child", "line", FINAL]),
        expect![[r#"
            {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
            · => final "42", exited with code 0
        "#]],
    )
    .await;
    assert!(began.elapsed() < NEVER);
}

/// A process outside of the group cannot be killed. The run waits for it only for the grace period.
#[tokio::test]
async fn a_process_outside_the_group_with_an_open_stdout_is_abandoned() {
    let config = CliConfig { grace: SOON, ..fake(&["stray", "line", FINAL]) };
    let mut running = start(config);
    let lines = until(&mut running, |event| matches!(event, ProgramEvent::Status { .. })).await;
    let stray = lines[0].raw.as_deref().expect("the id is printed");
    let stray: serde_json::Value = serde_json::from_str(stray).expect("it is JSON");
    let stray = stray["stray"].as_i64().and_then(|id| i32::try_from(id).ok());
    let stray = stray.and_then(rustix::process::Pid::from_raw).expect("the id is valid");
    let end = end(running).await;
    rustix::process::kill_process(stray, rustix::process::Signal::KILL)
        .expect("the process is still running");
    assert!(matches!(end, ProgramEvent::Final(_)), "{end:?}");
}

/// Dropping a run ends the process, which closes its files.
#[tokio::test]
async fn a_dropped_run_is_cancelled() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pipe = folder.path().join("held");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU)
        .expect("it can be created");
    let held = pipe.to_str().expect("it is text");
    let mut running = start(fake(&["hold", held, "line", "{}", "hang"]));
    // Opening blocks until the program has opened it, and reading blocks until no process has it open.
    let opened = pipe.clone();
    let reader = tokio::task::spawn_blocking(move || std::fs::read(opened));
    until(&mut running, |event| matches!(event, ProgramEvent::Status { .. })).await;
    drop(running);
    let read = tokio::time::timeout(Duration::from_secs(20), reader).await;
    assert_eq!(
        read.expect("the program has closed it").expect("no panic").expect("the pipe can be read"),
        b""
    );
}
