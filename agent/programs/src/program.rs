//! The program that a command runs, and its parser.

use serde::{Deserialize, Serialize};

use crate::dialogue::acp::AcpDialogue;
use crate::dialogue::app_server::AppServer;
use crate::parser::{
    ClaudeParser, CodexParser, GeminiParser, GenericParser, OpenCodeParser, Parser,
};

/// The programs whose output is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// Claude Code: `claude --print --verbose --output-format stream-json -`.
    Claude,
    /// Codex: `codex exec --json -`.
    Codex,
    /// Gemini CLI: `gemini --output-format stream-json`.
    Gemini,
    /// OpenCode: `opencode run --format json`.
    OpenCode,
    /// Any agent that speaks the Agent Client Protocol: `opencode acp`, `gemini --acp`.
    Acp,
    /// Codex with approvals: `codex app-server`.
    #[serde(rename = "codex-app-server")]
    CodexAppServer,
    /// Any other program that writes one JSON object per line.
    Generic,
}

/// Names of executables and packages.
const NAMES: [(&str, Program); 10] = [
    ("claude", Program::Claude),
    ("claude-agent-acp", Program::Acp),
    ("claude-code", Program::Claude),
    ("claude-code-acp", Program::Acp),
    ("codex", Program::Codex),
    ("codex-acp", Program::Acp),
    ("gemini", Program::Gemini),
    ("gemini-cli", Program::Gemini),
    ("opencode", Program::OpenCode),
    ("opencode-ai", Program::OpenCode),
];

/// Programs that run another program from their arguments, and their options with a value.
const WRAPPERS: [(&str, &[&str]); 15] = [
    ("bun", &["--preload", "-r", "--cwd"]),
    ("bunx", &["-p", "--package"]),
    ("deno", &["--config", "-c", "--import-map"]),
    ("env", &["-u", "--unset", "-C", "--chdir"]),
    ("nice", &["-n", "--adjustment"]),
    ("node", &["-r", "--require", "--import", "--loader", "--env-file"]),
    ("nohup", &[]),
    ("npm", &["-p", "--package", "-w", "--workspace"]),
    ("npx", &["-p", "--package", "-w", "--workspace"]),
    ("pnpm", &["-C", "--dir", "--package"]),
    ("setsid", &[]),
    ("stdbuf", &["-i", "-o", "-e"]),
    ("sudo", &["-u", "--user", "-g", "--group"]),
    ("timeout", &["-s", "--signal", "-k", "--kill-after"]),
    ("yarn", &["--cwd"]),
];

/// Words between a package manager and the package to run.
const VERBS: [&str; 5] = ["dlx", "exec", "run", "x", "--"];

/// File name extensions to ignore.
const ENDINGS: [&str; 8] = [".exe", ".cmd", ".bat", ".ps1", ".js", ".mjs", ".cjs", ".ts"];

impl Program {
    /// Detects the program of a command by its basename: `claude`, `/opt/bin/claude`, `claude.exe`. After a wrapper
    /// (`npx`, `node`, `env`, `timeout` …), it is the wrapped command: a package (`@openai/codex@latest`), a path,
    /// or a script in a folder of that name (`node …/claude-code/cli.js`). Commands within a shell or a container
    /// are not detected, and only some agents with ACP are; set [`CliConfig::program`](crate::CliConfig::program) for them.
    #[must_use]
    pub fn detect(command: &[String]) -> Self {
        let program = Self::detect_by_name(command).unwrap_or(Self::Generic);
        let has = |words: &[&str]| command.iter().any(|word| words.contains(&word.as_str()));
        match program {
            Self::OpenCode if has(&["acp"]) && !has(&["run"]) => Self::Acp,
            Self::Gemini if has(&["--acp", "--experimental-acp"]) => Self::Acp,
            Self::Codex if has(&["app-server"]) && !has(&["exec", "e"]) => Self::CodexAppServer,
            other => other,
        }
    }

    /// Returns `true` if the program has a protocol of its own for both directions: prompts, decisions and sessions.
    #[must_use]
    pub const fn has_protocol(self) -> bool {
        matches!(self, Self::Acp | Self::CodexAppServer)
    }

    fn detect_by_name(command: &[String]) -> Option<Self> {
        let (first, rest) = command.split_first()?;
        let name = basename(first);
        let Some((_, valued)) = WRAPPERS.iter().find(|(wrapper, _)| *wrapper == name) else {
            return detect_by_path(first);
        };
        let mut rest = rest;
        while let Some((word, behind)) = rest.split_first() {
            let skipped = if valued.contains(&word.as_str()) {
                2
            } else if word.starts_with('-') || is_filler(word) {
                1
            } else {
                return Self::detect_by_name(rest);
            };
            rest = behind.get(skipped - 1..).unwrap_or_default();
        }
        None
    }

    /// Returns a new parser for its output. Parsers have state, so each run needs its own.
    #[must_use]
    pub fn parser(self) -> Box<dyn Parser> {
        match self {
            Self::Claude => Box::new(ClaudeParser::default()),
            Self::Codex => Box::new(CodexParser::default()),
            Self::Gemini => Box::new(GeminiParser::default()),
            Self::OpenCode => Box::new(OpenCodeParser::default()),
            Self::Acp => Box::new(AcpDialogue::default()),
            Self::CodexAppServer => Box::new(AppServer::default()),
            Self::Generic => Box::new(GenericParser),
        }
    }
}

/// Returns the last part of a path, without the extension of an executable or script.
fn basename(path: &str) -> &str {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

/// Detects a program by its name; for a script (`cli.js`, `index.js`) by its folders, the innermost first. A
/// package may have a version: `codex@0.169`.
fn detect_by_path(path: &str) -> Option<Program> {
    let file = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let by_name = find_by_name(basename(path));
    let is_script = ENDINGS.iter().any(|ending| file.ends_with(ending));
    by_name.or_else(|| {
        let mut folders = path.rsplit(['/', '\\']).skip(1);
        if is_script { folders.find_map(find_by_name) } else { None }
    })
}

/// Returns the program with a name, which may have a version.
fn find_by_name(name: &str) -> Option<Program> {
    let name = name.split('@').next().filter(|name| !name.is_empty()).unwrap_or(name);
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, program)| *program)
}

/// Words that may precede the wrapped command: `A=b` of env, `5m` of timeout, `exec` of npm.
fn is_filler(word: &str) -> bool {
    let assignment = word.split_once('=').is_some_and(|(name, _)| !name.contains(['/', '@']));
    let span = word.trim_end_matches(['s', 'm', 'h', 'd']);
    let number = !span.is_empty() && span.chars().all(|c| c.is_ascii_digit() || c == '.');
    assignment || number || VERBS.contains(&word)
}

#[cfg(test)]
mod tests;
