//! The configuration of a program: the command, its environment, and limits.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::env_value::EnvValue;
use crate::parser::ParserChoice;
use crate::program::Program;

/// The environment variables that a program inherits by default. It needs them to find its files and to print text, and
/// none of them has a secret.
pub const ENV_ALLOWLIST: [&str; 12] = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP", "LANG", "LC_ALL",
    "LC_CTYPE",
];

/// How a command-line program is run. Files use the field names `timeout_seconds`, `max_output_bytes` …; only `command`
/// is required.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a program: a map with command")]
pub struct CliConfig {
    /// The program and its arguments. For a known program, the flags that its parser needs are added if they are
    /// missing.
    pub command: Vec<String>,
    /// The format of stdout. Default: `stream-json`, one JSON object per line.
    #[serde(default)]
    pub output_format: OutputFormat,
    /// The format of stdin. Default: `text`, the prompt as text, followed by the end of input.
    #[serde(default)]
    pub input_format: InputFormat,
    /// Timeout of the whole run: writing the prompt, reading the output, and the process's exit. Default: 300 s.
    #[serde(default = "timeout", rename = "timeout_seconds", with = "seconds")]
    pub timeout: Duration,
    /// Time between SIGTERM and SIGKILL. Also the maximum time to wait for the program's exit after its answer, and for
    /// output that another process holds open after that. Default: 5 s.
    #[serde(default = "grace", rename = "grace_seconds", with = "seconds")]
    pub grace: Duration,
    /// Maximum size of stdout in bytes within a minute, including newlines and blank lines. Default: 4,000,000.
    #[serde(default = "max_output_bytes")]
    pub max_output_bytes: usize,
    /// Maximum size of a line in bytes; at most `max_output_bytes`. Default: 4,000,000.
    #[serde(default = "max_output_bytes")]
    pub max_line_bytes: usize,
    /// Environment variables to set. They override inherited ones.
    #[serde(default)]
    pub env: BTreeMap<String, EnvValue>,
    /// Which environment variables to inherit. Default: `allowlist`.
    #[serde(default)]
    pub inherit_env: InheritEnv,
    /// More names of the allowlist, besides those of [`ENV_ALLOWLIST`].
    #[serde(default)]
    pub env_allowlist: Vec<String>,
    /// The working directory. Default: that of this process.
    #[serde(default)]
    pub working_dir: Option<PathBuf>,
    /// The program whose output format is used, if the command does not show it: a wrapper script, a container.
    #[serde(default)]
    pub program: Option<Program>,
    /// The parser of the output, if it is not the one of the program: rules, or the name of a registered parser.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parser: Option<ParserChoice>,
    /// Which output counts as the answer. Default: only what the parser recognizes.
    #[serde(default)]
    pub terminal: TerminalRule,
    /// The id of the program's own session to resume, as reported by an earlier run.
    #[serde(default)]
    pub session: Option<String>,
    /// The arguments that resume a session, with `{session}` for its id. Known programs have a default.
    #[serde(default)]
    pub resume_args: Option<Vec<String>>,
    /// Arguments to append to the command, before a final `-`.
    #[serde(default)]
    pub extra_args: Vec<String>,
}

impl CliConfig {
    /// Creates a configuration with a command and defaults.
    pub fn new(command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            output_format: OutputFormat::default(),
            input_format: InputFormat::default(),
            timeout: timeout(),
            grace: grace(),
            max_output_bytes: max_output_bytes(),
            max_line_bytes: max_output_bytes(),
            env: BTreeMap::new(),
            inherit_env: InheritEnv::default(),
            env_allowlist: Vec::new(),
            working_dir: None,
            program: None,
            parser: None,
            terminal: TerminalRule::default(),
            session: None,
            resume_args: None,
            extra_args: Vec::new(),
        }
    }
}

impl CliConfig {
    /// Returns `true` if the program inherits the environment variable of this name from this process.
    #[must_use]
    pub fn inherits(&self, name: &str) -> bool {
        self.inherit_env == InheritEnv::All
            || ENV_ALLOWLIST.contains(&name)
            || self.env_allowlist.iter().any(|allowed| allowed == name)
    }

    /// Returns the program: the configured one, else the detected one.
    #[must_use]
    pub fn kind(&self) -> Program {
        self.program.unwrap_or_else(|| Program::detect(&self.command))
    }

    /// Returns `true` if the program waits for decisions on its approval requests.
    #[must_use]
    pub fn takes_decisions(&self) -> bool {
        self.input_format == InputFormat::StreamJson || self.kind().has_protocol()
    }

    /// Returns `true` if some output of the program can count as an answer.
    #[must_use]
    pub fn can_answer(&self) -> bool {
        let by_parser = match &self.parser {
            Some(ParserChoice::Named(_)) => true,
            Some(ParserChoice::Rules(rules)) => rules.terminal.is_some(),
            None => {
                let kind = self.kind();
                let has_format = kind != Program::Generic;
                has_format
                    && (kind.has_protocol() || self.output_format == OutputFormat::StreamJson)
            }
        };
        by_parser || self.terminal != TerminalRule::Parser
    }

    /// Returns the field that makes the configuration useless, and the reason in one sentence.
    ///
    /// # Errors
    /// Two fields contradict each other, or the rules of the parser are useless.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if self.parser.is_some() && self.output_format == OutputFormat::Text {
            return Err(("output_format", "a parser needs output_format: stream-json"));
        }
        if self.parser.is_some() && self.kind().has_protocol() {
            return Err(("parser", "the program has a protocol of its own: remove parser"));
        }
        match &self.parser {
            Some(ParserChoice::Rules(rules)) => rules.check(),
            _ => Ok(()),
        }
    }
}

/// Values of environment variables are omitted, because they may be keys.
impl fmt::Debug for CliConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CliConfig")
            .field("command", &self.command)
            .field("output_format", &self.output_format)
            .field("input_format", &self.input_format)
            .field("timeout", &self.timeout)
            .field("grace", &self.grace)
            .field("max_output_bytes", &self.max_output_bytes)
            .field("max_line_bytes", &self.max_line_bytes)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("inherit_env", &self.inherit_env)
            .field("env_allowlist", &self.env_allowlist)
            .field("working_dir", &self.working_dir)
            .field("program", &self.program)
            .field("parser", &self.parser)
            .field("terminal", &self.terminal)
            .field("session", &self.session)
            .field("resume_args", &self.resume_args)
            .field("extra_args", &self.extra_args)
            .finish()
    }
}

/// The format of stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// One JSON object per line.
    #[default]
    StreamJson,
    /// Plain text: every line is part of the agent's message. Use with [`TerminalRule::ExitZero`].
    Text,
}

/// The format of stdin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputFormat {
    /// The prompt as text, followed by the end of input.
    #[default]
    Text,
    /// Claude Code's bidirectional JSON lines: approvals can be answered and a turn interrupted.
    StreamJson,
}

/// Which environment variables a program inherits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InheritEnv {
    /// The variables of the allowlist.
    #[default]
    Allowlist,
    /// All variables, including secrets.
    All,
}

/// Which output counts as a program's answer, besides what its parser recognizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminalRule {
    /// No other output. A program that exits successfully without an answer has failed.
    #[default]
    Parser,
    /// A JSON line with a given value at a given location: for a generic program with a final line.
    Line {
        /// The location, as a JSON pointer: `/type`.
        pointer: String,
        /// The expected value.
        equals: Value,
        /// The location of the answer's text; `None` for all text so far.
        text: Option<String>,
    },
    /// Exit code 0: the answer is all text so far.
    ExitZero,
}

impl TerminalRule {
    /// Returns `true` if a line is the answer, whatever its text.
    pub(crate) const fn is_line_without_text(&self) -> bool {
        matches!(self, Self::Line { text: None, .. })
    }

    /// Returns the line whose `type` has this value, with its text at the pointer.
    #[must_use]
    pub fn line_type(name: &str, text: Option<&str>) -> Self {
        Self::Line {
            pointer: "/type".to_owned(),
            equals: Value::from(name),
            text: text.map(str::to_owned),
        }
    }
}

const fn timeout() -> Duration {
    Duration::from_secs(300)
}

const fn grace() -> Duration {
    Duration::from_secs(5)
}

const fn max_output_bytes() -> usize {
    4_000_000
}

/// Durations as fractional seconds.
mod seconds {
    use std::time::Duration;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| D::Error::custom(format!("{seconds} is not a valid number of seconds")))
    }
}

#[cfg(test)]
mod tests;
