//! The program that a command runs, and what depends on it: its parser, the flags that the parser needs, and the
//! way to resume a session.

use serde::{Deserialize, Serialize};

use crate::config::{CliConfig, InputFormat, OutputFormat};
use crate::parser::{
    ClaudeParser, CodexParser, GeminiParser, GenericParser, OpenCodeParser, Parser, TextParser,
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
    /// Any other program that writes one JSON object per line.
    Generic,
}

/// Names of executables and packages.
const NAMES: [(&str, Program); 7] = [
    ("claude", Program::Claude),
    ("claude-code", Program::Claude),
    ("codex", Program::Codex),
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
    /// are not detected; set [`CliConfig::program`] for them.
    #[must_use]
    pub fn of(command: &[String]) -> Self {
        Self::named(command).unwrap_or(Self::Generic)
    }

    fn named(command: &[String]) -> Option<Self> {
        let (first, rest) = command.split_first()?;
        let name = basename(first);
        let Some((_, valued)) = WRAPPERS.iter().find(|(wrapper, _)| *wrapper == name) else {
            return of_path(first);
        };
        let mut rest = rest;
        while let Some((word, behind)) = rest.split_first() {
            let skipped = if valued.contains(&word.as_str()) {
                2
            } else if word.starts_with('-') || is_filler(word) {
                1
            } else {
                return Self::named(rest);
            };
            rest = behind.get(skipped - 1..).unwrap_or_default();
        }
        None
    }

    /// A new parser for its output. Parsers have state, so each run needs its own.
    #[must_use]
    pub fn parser(self) -> Box<dyn Parser> {
        match self {
            Self::Claude => Box::new(ClaudeParser::default()),
            Self::Codex => Box::new(CodexParser::default()),
            Self::Gemini => Box::new(GeminiParser::default()),
            Self::OpenCode => Box::new(OpenCodeParser::default()),
            Self::Generic => Box::new(GenericParser),
        }
    }

    /// The arguments that resume a session; `None` if unknown.
    const fn resume(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Claude | Self::Gemini => Some(&["--resume", "{session}"]),
            Self::Codex => Some(&["resume", "{session}"]),
            Self::OpenCode => Some(&["--session", "{session}"]),
            Self::Generic => None,
        }
    }

    /// The flags that the parser needs, each with an alternative spelling.
    fn flags(self, config: &CliConfig) -> Vec<Flag> {
        let input = config.input_format == InputFormat::StreamJson;
        match self {
            _ if config.output_format == OutputFormat::Text => Vec::new(),
            Self::Claude => {
                let mut flags = vec![
                    Flag { also: Some("-p"), words: &["--print"] },
                    Flag { also: None, words: &["--output-format", "stream-json"] },
                    Flag { also: Some("-v"), words: &["--verbose"] },
                ];
                if input {
                    flags.push(Flag { also: None, words: &["--input-format", "stream-json"] });
                    flags.push(Flag { also: None, words: &["--permission-prompt-tool", "stdio"] });
                }
                flags
            }
            Self::Codex => vec![
                Flag { also: Some("e"), words: &["exec"] },
                Flag { also: Some("--experimental-json"), words: &["--json"] },
            ],
            Self::Gemini => {
                vec![Flag { also: Some("-o"), words: &["--output-format", "stream-json"] }]
            }
            Self::OpenCode => vec![
                Flag { also: None, words: &["run"] },
                Flag { also: None, words: &["--format", "json"] },
            ],
            Self::Generic => Vec::new(),
        }
    }
}

/// A flag and its value.
struct Flag {
    words: &'static [&'static str],
    also: Option<&'static str>,
}

impl Flag {
    fn stands_in(&self, arguments: &[String]) -> bool {
        let [name, ..] = self.words else { return true };
        arguments.iter().any(|word| {
            let word = word.split_once('=').map_or(word.as_str(), |(name, _)| name);
            word == *name || Some(word) == self.also
        })
    }
}

/// The parser for a configuration: of the configured program, else of the detected one.
pub(crate) fn parser(config: &CliConfig) -> Box<dyn Parser> {
    match config.output_format {
        OutputFormat::Text => Box::new(TextParser),
        OutputFormat::StreamJson => {
            config.program.unwrap_or_else(|| Program::of(&config.command)).parser()
        }
    }
}

/// The complete command: the configured one, missing flags, the session to resume, extra arguments, and a final `-`
/// if the command has one. An error if the session cannot be resumed.
pub(crate) fn command(config: &CliConfig) -> Result<Vec<String>, &'static str> {
    let program = config.program.unwrap_or_else(|| Program::of(&config.command));
    let mut words = config.command.clone();
    let dash = words.pop_if(|word| word == "-" && config.command.len() > 1).is_some();
    // If the program is configured explicitly, the command may be a wrapper, whose arguments are not the program's.
    if config.program.is_none() {
        let missing: Vec<Flag> = program.flags(config);
        for flag in missing.iter().filter(|flag| !flag.stands_in(&config.command)) {
            words.extend(flag.words.iter().map(|word| (*word).to_owned()));
        }
    }
    if let Some(session) = &config.session {
        let known = || program.resume().map(|words| words.iter().map(|w| (*w).into()).collect());
        let template: Vec<String> =
            config.resume_args.clone().or_else(known).ok_or("resume_args are missing")?;
        words.extend(template.into_iter().map(|word| word.replace("{session}", session)));
    }
    words.extend(config.extra_args.iter().cloned());
    // In this mode, Claude Code reads JSON lines from stdin by default and would use the dash as a prompt.
    let streamed = config.input_format == InputFormat::StreamJson;
    words.extend((dash && !streamed).then(|| "-".to_owned()));
    Ok(words)
}

/// The last part of a path, without the extension of an executable or script.
fn basename(path: &str) -> &str {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

/// Detects a program by its name; for a script (`cli.js`, `index.js`) by its folders, the innermost first. A
/// package may have a version: `codex@0.169`.
fn of_path(path: &str) -> Option<Program> {
    let known = |name: &str| {
        let name = name.split('@').next().filter(|name| !name.is_empty()).unwrap_or(name);
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, program)| *program)
    };
    let file = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let by_name = known(basename(path));
    let is_script = ENDINGS.iter().any(|ending| file.ends_with(ending));
    by_name.or_else(|| {
        let mut folders = path.rsplit(['/', '\\']).skip(1);
        if is_script { folders.find_map(known) } else { None }
    })
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
