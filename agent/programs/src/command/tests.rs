//! The complete commands.

use super::*;

fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

/// Checks the complete command of a configuration.
fn check(declaration: CliConfig, expected: &str) {
    let whole = command(&declaration).map(|words| words.join(" "));
    assert_eq!(whole.unwrap_or_else(|why| format!("! {why}")), expected);
}

fn declared(command: &str) -> CliConfig {
    CliConfig::new(words(command))
}

#[test]
fn missing_flags_are_added() {
    check(declared("claude"), "claude --print --output-format stream-json --verbose");
    check(declared("claude -p -"), "claude -p --output-format stream-json --verbose -");
    let whole = "claude --print --verbose --output-format stream-json -";
    check(declared(whole), whole);
    let whole = "claude -p --output-format=stream-json --verbose";
    check(declared(whole), whole);
    check(declared("codex -m o3 -"), "codex -m o3 exec --json -");
    check(declared("codex exec -"), "codex exec --json -");
    check(declared("gemini"), "gemini --output-format stream-json");
    check(declared("opencode run -m a/b"), "opencode run -m a/b --format json");
    check(declared("my-tool -"), "my-tool -");
}

/// A link to Claude Code with another name got no flags, and its run failed although it had answered.
#[test]
fn a_configured_program_has_its_flags_whatever_its_name() {
    let named = |program, command: &str| CliConfig { program: Some(program), ..declared(command) };
    check(named(Program::Claude, "mycl -p -"), "mycl -p --output-format stream-json --verbose -");
    check(named(Program::Codex, "./agent.sh -"), "./agent.sh exec --json -");
    check(named(Program::Generic, "./agent.sh -"), "./agent.sh -");
}

#[test]
fn plain_text_is_unchanged() {
    check(CliConfig { output_format: OutputFormat::Text, ..declared("claude -p") }, "claude -p");
}

#[test]
fn stream_json_input_enables_approvals_on_stdio() {
    check(
        CliConfig { input_format: InputFormat::StreamJson, ..declared("claude -p -") },
        "claude -p --output-format stream-json --verbose --input-format stream-json \
         --permission-prompt-tool stdio",
    );
}

#[test]
fn each_program_has_its_way_to_resume_a_session() {
    let resumed = |command: &str| CliConfig { session: Some("s1".into()), ..declared(command) };
    let claude = "claude -p --output-format stream-json --verbose";
    check(resumed(claude), &format!("{claude} --resume s1"));
    check(resumed("codex exec --json -"), "codex exec --json resume s1 -");
    let gemini = "gemini -o stream-json";
    check(resumed(gemini), &format!("{gemini} --resume s1"));
    let opencode = "opencode run --format json";
    check(resumed(opencode), &format!("{opencode} --session s1"));
    check(resumed("my-tool"), "! resume_args are missing");
    let template = Some(vec!["--continue={session}".to_owned()]);
    check(CliConfig { resume_args: template, ..resumed("my-tool -") }, "my-tool --continue=s1 -");
}

/// Class: a text of a program that becomes an argument. A program that reported `--dangerously-skip-permissions` as its session was
/// resumed without permissions.
#[test]
fn a_session_id_is_no_flag_and_no_path() {
    let why = "! its id may have letters, digits and ._:+=@- only, begins with a letter or a digit, \
               and has at most 256 bytes";
    let long = "x".repeat(257);
    for id in [
        "--dangerously-skip-permissions",
        "-c",
        "",
        "a b",
        "a\0b",
        "a\nb",
        "../other",
        "a/../b",
        "ses_é",
        "$(id)",
        &long,
    ] {
        let session = Some(id.to_owned());
        check(CliConfig { session: session.clone(), ..declared("claude -p") }, why);
        let resume_args = Some(vec!["--continue={session}".to_owned()]);
        check(CliConfig { session, resume_args, ..declared("my-tool") }, why);
    }
    let real = "ses_dffe44fc4ffedn6V15XoCgJPsH";
    let resumed = CliConfig { session: Some(real.to_owned()), ..declared("opencode run") };
    check(resumed, &format!("opencode run --format json --session {real}"));
}

#[test]
fn extra_arguments_precede_the_dash() {
    let extra = CliConfig { extra_args: words("--model x"), ..declared("my-tool --json -") };
    check(extra, "my-tool --json --model x -");
}
