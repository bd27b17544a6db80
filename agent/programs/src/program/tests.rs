//! Detection of programs, and the complete commands.

use super::*;

fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

fn runs(command: &str, expected: Program) {
    assert_eq!(Program::of(&words(command)), expected, "{command}");
}

#[test]
fn command_basename_is_claude_uses_the_claude_parser() {
    runs("claude --print --verbose --output-format stream-json -", Program::Claude);
    runs("/opt/anthropic/bin/claude", Program::Claude);
    runs("./claude", Program::Claude);
    runs(r"C:\Tools\claude.exe -p", Program::Claude);
    runs("claude.cmd", Program::Claude);
}

#[test]
fn any_other_command_uses_the_generic_parser() {
    runs("my-tool --json", Program::Generic);
    runs("/home/claude/bin/my-tool", Program::Generic);
    runs("claudette", Program::Generic);
    runs("my-tool claude", Program::Generic);
    runs("", Program::Generic);
}

#[test]
fn the_other_known_programs_are_detected_by_name() {
    runs("codex exec --json -", Program::Codex);
    runs("/usr/local/bin/gemini -o stream-json", Program::Gemini);
    runs("opencode run --format json", Program::OpenCode);
}

#[test]
fn wrapped_programs_are_detected() {
    runs("npx claude -p", Program::Claude);
    runs("npx -y @anthropic-ai/claude-code@2.1.12 -p", Program::Claude);
    runs("npx --yes @openai/codex exec", Program::Codex);
    runs("npx -p typescript codex exec", Program::Codex);
    runs("npm exec -- @google/gemini-cli", Program::Gemini);
    runs("pnpm dlx opencode-ai run", Program::OpenCode);
    runs("node /lib/node_modules/@anthropic-ai/claude-code/cli.js -p", Program::Claude);
    runs("node --import tsx /lib/node_modules/@google/gemini-cli/dist/index.js", Program::Gemini);
    runs("env A=b -u C timeout -k 5s 10m nice -n 5 claude", Program::Claude);
    runs("node server.js claude", Program::Generic);
    runs("node", Program::Generic);
    runs("sh -c claude", Program::Generic);
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

#[test]
fn wrapped_commands_and_plain_text_are_unchanged() {
    let wrapped = CliConfig { program: Some(Program::Claude), ..declared("./agent.sh -") };
    check(wrapped, "./agent.sh -");
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

#[test]
fn extra_arguments_precede_the_dash() {
    let extra = CliConfig { extra_args: words("--model x"), ..declared("my-tool --json -") };
    check(extra, "my-tool --json --model x -");
}
