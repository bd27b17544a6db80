//! The input of a program: prompt, environment, working directory, session.

use abide_programs::{
    CliConfig, ENV_ALLOWLIST, EnvValue, InheritEnv, Line, ProgramEvent, Prompt, PromptMessage, run,
};
use expect_test::{Expect, expect};
use futures_util::StreamExt as _;

use crate::{FINAL, SOON, end, fake, rendered};

async fn check(config: CliConfig, prompt: Prompt, expected: Expect) {
    let lines: Vec<Line> = run(config, prompt, None).collect().await;
    let raw: Vec<&str> = lines.iter().filter_map(|line| line.raw.as_deref()).collect();
    expected.assert_eq(&raw.join("\n"));
}

#[tokio::test]
async fn system_prompt_and_conversation_are_sent_in_the_specified_layout() {
    let messages = [("user", "What is 6 × 7?"), ("assistant", "41"), ("user", "Sure?")];
    let messages = messages.map(|(role, text)| PromptMessage::new(role, text)).to_vec();
    let prompt = Prompt { system: Some("You count.".to_owned()), messages };
    check(
        fake(&["echo"]),
        prompt,
        expect![[r#"
            {"echo":"System instructions:\nYou count.\n\nConversation:\nuser: What is 6 × 7?\nassistant: 41\nuser: Sure?"}"#]],
    )
    .await;
}

#[tokio::test]
async fn an_empty_system_prompt_sends_only_the_conversation() {
    let prompt = Prompt { system: Some(String::new()), ..Prompt::user("Hello") };
    check(fake(&["echo"]), prompt, expect![[r#"{"echo":"Conversation:\nuser: Hello"}"#]]).await;
}

/// Larger than the capacity of any pipe.
fn long() -> Prompt {
    Prompt::user("x".repeat(3_000_000))
}

#[tokio::test]
async fn a_long_prompt_is_written_while_output_is_read() {
    // The program writes more than the capacity of a pipe before it reads, so writing without reading would
    // deadlock.
    let config = fake(&["long", "500000", "stderr", "1000000", "echo", "line", FINAL]);
    let lines: Vec<Line> = run(config, long(), None).collect().await;
    let lengths: Vec<usize> =
        lines.iter().filter_map(|line| line.raw.as_ref()).map(String::len).collect();
    let echoed = r#"{"echo":"Conversation:\nuser: "}"#.len() + 3_000_000;
    assert_eq!(lengths, [500_000, echoed, FINAL.len()]);
}

#[tokio::test]
async fn output_of_a_program_that_closes_stdin_early_is_read() {
    let steps = ["echo-line", "close-stdin", "line", FINAL];
    expect![[r#"
        · => StdinUnread: the program did not read all of its input
        {"echo":"Conversation:\n"} => status
        {"type":"result","subtype":"success","is_error":false,"result":"42"} => 
        · => final "42", exited with code 0
    "#]]
    .assert_eq(&sorted(&rendered(run(fake(&steps), long(), None)).await));
}

/// The order of the notice and the line is not defined, because they come from two pipes.
fn sorted(output: &str) -> String {
    let (notices, rest): (Vec<&str>, Vec<&str>) =
        output.lines().partition(|line| line.contains("StdinUnread"));
    notices.into_iter().chain(rest).map(|line| format!("{line}\n")).collect()
}

#[tokio::test]
async fn a_program_that_never_reads_stdin_times_out() {
    let config = CliConfig { timeout: SOON, ..fake(&["hang"]) };
    let ProgramEvent::Error(failure) = end(run(config, long(), None)).await else {
        panic!("the run times out")
    };
    assert_eq!(failure.kind.code(), "mcp_timeout");
}

#[tokio::test]
async fn a_program_that_never_reads_stdin_can_answer() {
    let config = fake(&["line", FINAL]);
    let end = end(run(config, long(), None)).await;
    assert!(matches!(end, ProgramEvent::Final(_)), "{end:?}");
}

/// A variable of this process that is not in the allowlist, with its value.
fn unlisted() -> (String, String) {
    let unlisted = |name: &String| !ENV_ALLOWLIST.contains(&name.as_str());
    std::env::vars().find(|(name, _)| unlisted(name)).expect("cargo sets some for its tests")
}

#[tokio::test]
async fn the_environment_has_allowed_and_configured_variables() {
    let mut config = fake(&["env", &unlisted().0, "env", "TOKEN", "env", "LANG"]);
    config.env.insert("TOKEN".to_owned(), "t".to_owned().into());
    config.env.insert("LANG".to_owned(), "de".to_owned().into());
    check(
        config,
        Prompt::default(),
        expect![[r#"
            {"env":null}
            {"env":"t"}
            {"env":"de"}"#]],
    )
    .await;
}

#[tokio::test]
async fn inherit_all_inherits_the_whole_environment() {
    let (name, value) = unlisted();
    let config = CliConfig { inherit_env: InheritEnv::All, ..fake(&["env", &name]) };
    let lines: Vec<Line> = run(config, Prompt::default(), None).collect().await;
    let expected = serde_json::json!({"env": value}).to_string();
    assert_eq!(lines[0].raw.as_deref(), Some(expected.as_str()));
}

#[tokio::test]
async fn a_program_runs_in_its_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().canonicalize().expect("the folder exists");
    let config = CliConfig { working_dir: Some(path.clone()), ..fake(&["cwd"]) };
    let lines: Vec<Line> = run(config, Prompt::default(), None).collect().await;
    let expected = serde_json::json!({"cwd": path}).to_string();
    assert_eq!(lines[0].raw.as_deref(), Some(expected.as_str()));
}

#[tokio::test]
async fn a_session_that_cannot_be_resumed_is_refused() {
    let config = CliConfig { session: Some("s1".to_owned()), ..CliConfig::new(["my-tool"]) };
    expect![[r#"
        · => capability_unsupported: cannot resume a session of this program: resume_args are missing
    "#]]
    .assert_eq(&rendered(run(config, Prompt::default(), None)).await);
}

#[tokio::test]
async fn secrets_are_not_in_errors() {
    let mut config = fake(&["stderr", "0", "exit", "1"]);
    config.env.insert("API_KEY".to_owned(), "last words".to_owned().into());
    let ProgramEvent::Error(failure) = end(run(config, Prompt::default(), None)).await else {
        panic!("the run fails")
    };
    assert_eq!(failure.stderr, "\nthe [redacted]\n");
    assert_eq!(failure.message, "the program exited with code 1: the [redacted]");
}

/// Class: a check on one path of several. Only stderr was redacted, so the error that a program reported in its own format was
/// stored and printed with the secret, as were its lines and the results of its tools.
#[tokio::test]
async fn secrets_are_not_in_what_a_program_says() {
    let error = r#"{"type":"result","subtype":"error","is_error":true,"result":"quota of Bearer hunter2-and-more is over"}"#;
    let lines = [
        "hunter2-and-more",
        r#"{"type":"assistant","message":{"content":[{"type":"text","text":"hunter2-and-more"},{"type":"tool_use","id":"t","name":"Bash","input":{"command":"echo \u0068unter2-and-more"}}]}}"#,
        r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":"no hunter2-and-more"}]}}"#,
        r#"{"type":"other","hunter2-and-more":[{"a":"hunter2-and-more"}]}"#,
    ];
    for last in [error, FINAL.replace("42", "hunter2-and-more").as_str()] {
        let steps: Vec<&str> =
            lines.iter().chain([&last]).flat_map(|line| ["line", *line]).collect();
        let mut config = fake(&steps);
        let prefix = "Bearer ".to_owned();
        let value = "hunter2-and-more".to_owned();
        config.env.insert("AUTH".to_owned(), EnvValue::Secret { prefix, value });
        let running = run(config, Prompt::default(), None);
        let read: Vec<Line> = running.collect().await;
        let shown = serde_json::to_string(&read).expect("it is JSON");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("Bash") && shown.contains("echo [redacted]"), "{shown}");
        match read.last().and_then(|line| line.events.last()) {
            Some(ProgramEvent::Error(failure)) => {
                assert_eq!(failure.message, "quota of [redacted] is over");
            }
            Some(ProgramEvent::Final(answer)) => assert_eq!(answer.text, "[redacted]"),
            other => panic!("{other:?}"),
        }
    }
}
