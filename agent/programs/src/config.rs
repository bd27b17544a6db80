//! The declaration of a program: what to run, with what, and within which limits. The defaults are the
//! seed's.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::program::Program;

/// Host variables that a program is given by default: what it takes to find files and print text, and
/// no secret of whoever runs it.
pub const ENV_ALLOWLIST: [&str; 12] = [
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP", "LANG", "LC_ALL",
    "LC_CTYPE",
];

/// How a foreign program is run. In files it has the names of the seed: `timeout_seconds`,
/// `max_output_bytes` …; only `command` must be there.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CliConfig {
    /// The program and its arguments. Where the program is a known one, the flags that make its output
    /// readable are added if they are missing.
    pub command: Vec<String>,
    /// What it writes on stdout. Default: `stream-json`, one JSON object a line.
    #[serde(default)]
    pub output_format: OutputFormat,
    /// What it reads on stdin. Default: `text`, the prompt in the seed's layout, and then the end.
    #[serde(default)]
    pub input_format: InputFormat,
    /// Everything has to be over by then: prompt written, output read, process gone. Default: 300 s.
    #[serde(default = "timeout", rename = "timeout_seconds", with = "seconds")]
    pub timeout: Duration,
    /// Between SIGTERM and SIGKILL, and how long output is waited for that somebody else still holds
    /// open when the process is gone. Default: 5 s.
    #[serde(default = "grace", rename = "grace_seconds", with = "seconds")]
    pub grace: Duration,
    /// Bytes of stdout, with newlines and blank lines. Default: 4,000,000.
    #[serde(default = "max_output_bytes")]
    pub max_output_bytes: usize,
    /// Bytes of one line of it; never more than `max_output_bytes`. Default: 4,000,000.
    #[serde(default = "max_output_bytes")]
    pub max_line_bytes: usize,
    /// Variables of its environment. They win over what is inherited.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What it inherits of the host's environment. Default: `allowlist`.
    #[serde(default)]
    pub inherit_env: InheritEnv,
    /// The names that may be inherited. Default: [`ENV_ALLOWLIST`].
    #[serde(default = "env_allowlist")]
    pub env_allowlist: Vec<String>,
    /// The folder it runs in. Default: that of this process.
    #[serde(default)]
    pub working_dir: Option<PathBuf>,
    /// Whose output it writes, where the command does not tell: a wrapper script, a container.
    #[serde(default)]
    pub program: Option<Program>,
    /// What counts as its answer. Default: what the parser says is one.
    #[serde(default)]
    pub terminal: TerminalRule,
    /// The program's own session to go on with, as an earlier run told it.
    #[serde(default)]
    pub session: Option<String>,
    /// The arguments that resume a session, with `{session}` for its id. Known programs have theirs.
    #[serde(default)]
    pub resume_args: Option<Vec<String>>,
    /// Arguments behind those of the command, before a final `-`.
    #[serde(default)]
    pub extra_args: Vec<String>,
}

impl CliConfig {
    /// A program with its arguments, and everything else as the seed has it.
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
            env_allowlist: env_allowlist(),
            working_dir: None,
            program: None,
            terminal: TerminalRule::default(),
            session: None,
            resume_args: None,
            extra_args: Vec::new(),
        }
    }
}

/// Values of the environment are not shown: they are where keys are passed.
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
            .field("terminal", &self.terminal)
            .field("session", &self.session)
            .field("resume_args", &self.resume_args)
            .field("extra_args", &self.extra_args)
            .finish()
    }
}

/// What a program writes on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// One JSON object a line.
    #[default]
    StreamJson,
    /// Plain text: every line is something that the agent says. Goes with [`TerminalRule::ExitZero`].
    Text,
}

/// What a program reads on stdin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputFormat {
    /// The prompt in the seed's layout, and then the end.
    #[default]
    Text,
    /// Claude Code's JSON lines, both ways: approvals can be answered and a turn interrupted.
    StreamJson,
}

/// What a program inherits of the host's environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InheritEnv {
    /// What the list names.
    #[default]
    Allowlist,
    /// Everything, secrets too: what the seed does.
    All,
}

/// What counts as a program's answer. What its parser says is one, always does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminalRule {
    /// Nothing else: a program that ends well without one gave bad output. So does the seed have it.
    #[default]
    Parser,
    /// Also a JSON line in which a place holds a value: of a generic program that has a last line.
    Line {
        /// Where to look, as a JSON pointer: `/type`.
        pointer: String,
        /// What has to stand there.
        equals: Value,
        /// Where the text of the answer stands; none: it is what was said until then.
        text: Option<String>,
    },
    /// Also the exit code 0: the answer is what was said until then.
    ExitZero,
}

impl TerminalRule {
    /// The line whose `type` is this, with its text at the pointer.
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

fn env_allowlist() -> Vec<String> {
    ENV_ALLOWLIST.map(str::to_owned).to_vec()
}

/// Durations as seconds with a fraction, as the seed writes them.
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
            .map_err(|_| D::Error::custom(format!("{seconds} is no number of seconds")))
    }
}

#[cfg(test)]
mod tests;
