//! Detection of programs.

use super::*;

fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

fn runs(command: &str, expected: Program) {
    assert_eq!(Program::detect(&words(command)), expected, "{command}");
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
fn programs_with_a_protocol_are_detected_by_their_arguments() {
    runs("opencode acp", Program::Acp);
    runs("opencode run acp", Program::OpenCode);
    runs("npx -y opencode-ai acp --cwd x", Program::Acp);
    runs("gemini --acp", Program::Acp);
    runs("node /x/@google/gemini-cli/bundle/gemini.js --experimental-acp", Program::Acp);
    runs("npx @agentclientprotocol/claude-agent-acp", Program::Acp);
    runs("codex app-server -c approval_policy=untrusted", Program::CodexAppServer);
    runs("codex exec app-server", Program::Codex);
    runs("my-agent --acp", Program::Generic);
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
