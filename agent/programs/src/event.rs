//! The events of programs, in one vocabulary for all of them. The parsers produce them from a program's lines.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An event of a run. [`ProgramEvent::Final`] and [`ProgramEvent::Error`] are terminal: every run ends with exactly
/// one of them, as its last event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProgramEvent {
    /// A chunk of the agent's message. No text is sent twice, even if the program repeats it.
    AssistantDelta {
        /// The chunk.
        text: String,
        /// The program's id of the message, if it has one.
        message: Option<String>,
        /// The call of the sub-agent that sends it; `None` for the agent itself.
        parent: Option<String>,
    },
    /// A chunk of the agent's reasoning.
    ThinkingDelta {
        /// The chunk.
        text: String,
        /// The program's id of the message, if it has one.
        message: Option<String>,
        /// The call of the sub-agent that sends it; `None` for the agent itself.
        parent: Option<String>,
    },
    /// The program has started one of its own tools.
    ToolCallStarted {
        /// The program's id of the call.
        id: String,
        /// The program's name of the tool.
        name: String,
        /// The complete arguments.
        arguments: Value,
        /// The call of the sub-agent that makes this call; `None` for the agent itself.
        parent: Option<String>,
    },
    /// One of the program's own tools has finished.
    ToolCallFinished {
        /// The id of the call.
        id: String,
        /// The result as the program reports it: text, a list of blocks, or an object.
        output: Value,
        /// Whether the call failed, according to the program.
        is_error: bool,
        /// The exit code of a command, if the program reports it.
        exit_code: Option<i64>,
        /// The call of the sub-agent that made this call; `None` for the agent itself.
        parent: Option<String>,
    },
    /// The program waits for a decision: see [`RunHandle::answer`](crate::RunHandle::answer).
    ApprovalRequested {
        /// The id to use in the decision.
        request_id: String,
        /// The tool that it wants to run.
        tool: String,
        /// The arguments.
        input: Value,
        /// The id of the waiting call, if the program reports it.
        call_id: Option<String>,
        /// Other details from the program: suggestions, the blocked path, a description.
        details: Value,
    },
    /// The program no longer waits for this decision.
    ApprovalWithdrawn {
        /// The id of the request.
        request_id: String,
    },
    /// Other output of the program, unchanged.
    Status {
        /// The JSON object of the line, or the part of it that no other event contains.
        data: Value,
    },
    /// Information for a reader of the run that does not end it.
    Notice {
        /// The kind of notice.
        code: NoticeCode,
        /// One sentence.
        message: String,
    },
    /// The usage of the run so far, as reported by the program. It replaces earlier reports.
    Usage(Usage),
    /// The id of the program's own session, with which a later run can resume it.
    SessionId {
        /// The id.
        id: String,
    },
    /// Terminal: the program gave an answer and exited successfully.
    Final(ProgramResult),
    /// Terminal: the run failed.
    Error(Failure),
}

impl ProgramEvent {
    /// Returns `true` if the event ends the run.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        matches!(self, Self::Final(_) | Self::Error(_))
    }

    /// Returns `true` if the event shows that the agent works: text, reasoning, or a call.
    #[must_use]
    pub(crate) const fn is_work(&self) -> bool {
        matches!(
            self,
            Self::AssistantDelta { .. } | Self::ThinkingDelta { .. } | Self::ToolCallStarted { .. }
        )
    }
}

/// The kinds of [`ProgramEvent::Notice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NoticeCode {
    /// The program gave another answer; the last one is used.
    ExtraFinal,
    /// The program cannot take a decision as it is; it got a denial.
    Denied,
    /// The program reported an error that may be temporary.
    Reported,
    /// The program closed its input, or exited, before it had read all of it.
    StdinUnread,
    /// A line looks like a JSON object and cannot be read. Its content is not among the events.
    LineUnread,
    /// The complete text of a streamed message differs from its chunks; the chunks are kept.
    TextDiffers,
}

/// Token usage as reported by the program. Nothing is estimated; unreported values are `None`. Whether
/// `input_tokens` includes cached tokens depends on the program (Codex: yes; Claude Code: no).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Input tokens.
    pub input_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
    /// Input tokens that were read from a cache.
    pub cached_tokens: Option<u64>,
    /// Input tokens that were written to a cache.
    pub cache_write_tokens: Option<u64>,
    /// Output tokens of reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Whether this is the complete usage of the run.
    pub completeness: Completeness,
}

impl Usage {
    /// Returns `true` if nothing is reported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let empty = Self { completeness: self.completeness, ..Self::default() };
        *self == empty
    }

    /// Returns the sum of two reports. A value that neither report has stays `None`.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self {
            input_tokens: add_counts(self.input_tokens, other.input_tokens),
            output_tokens: add_counts(self.output_tokens, other.output_tokens),
            cached_tokens: add_counts(self.cached_tokens, other.cached_tokens),
            cache_write_tokens: add_counts(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens: add_counts(self.reasoning_tokens, other.reasoning_tokens),
            completeness: self.completeness,
        }
    }
}

fn add_counts(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}

/// Whether a [`Usage`] is the complete usage of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completeness {
    /// The program reported it as its total.
    Complete,
    /// The usage so far.
    #[default]
    Partial,
}

/// The program's final answer, with the data that it reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramResult {
    /// The text; may be empty.
    pub text: String,
    /// The usage of the run, as reported.
    pub usage: Option<Usage>,
    /// The cost in US dollars, as reported.
    pub cost_usd: Option<f64>,
    /// The id of the program's own session.
    pub session_id: Option<String>,
    /// The number of turns, as reported.
    pub turns: Option<i64>,
    /// The structured answer, if a schema was requested.
    pub structured: Option<Value>,
    /// The tool calls that were denied.
    pub denials: Vec<Denial>,
    /// The other fields of the line with the answer.
    pub details: Value,
    /// How the process ended.
    pub exit: Option<Exit>,
}

/// A denied tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Denial {
    /// The tool.
    pub tool: String,
    /// The program's id of the call.
    pub call_id: Option<String>,
    /// The arguments.
    pub input: Value,
}

/// Why a run failed, with all available information.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure.
    pub kind: ErrorKind,
    /// One sentence.
    pub message: String,
    /// Whether the program reports that a retry may help. Never guessed.
    pub recoverable: bool,
    /// How the process ended; `None` if it did not start.
    pub exit: Option<Exit>,
    /// The end of stderr, with the secrets of the environment removed.
    pub stderr: String,
    /// The program's answer, if it gave one before the failure.
    pub answer: Option<Box<ProgramResult>>,
}

impl Failure {
    /// Creates a failure without further information.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message, recoverable: false, exit: None, stderr: String::new(), answer: None }
    }
}

/// The kinds of failure, with stable codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The deadline has passed. The name is part of the specified contract; it is not limited to MCP.
    McpTimeout,
    /// Too much output, or the program's own cost budget is used up.
    BudgetExceeded,
    /// The process failed: an exit code, a signal, a failed start, or a reported error.
    RuntimeCrash,
    /// The program exited successfully without an answer, or a part of its answer may be missing: a line or the end of a message is lost.
    BadModelOutput,
    /// The program reported success, and neither its answer nor its messages have text.
    NoAnswer,
    /// The caller cancelled the run.
    Cancelled,
    /// The program reached its limit of turns, or detected that its model repeats itself.
    LoopLimit,
    /// The model refused to answer.
    Refused,
    /// The answer was cut off at the token limit.
    AnswerTruncated,
    /// The program does not support a configured feature.
    CapabilityUnsupported,
}

impl ErrorKind {
    /// Returns the stable code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::McpTimeout => "mcp_timeout",
            Self::BudgetExceeded => "budget_exceeded",
            Self::RuntimeCrash => "runtime_crash",
            Self::BadModelOutput => "bad_model_output",
            Self::NoAnswer => "no_answer",
            Self::Cancelled => "cancelled",
            Self::LoopLimit => "loop_limit",
            Self::Refused => "refused",
            Self::AnswerTruncated => "answer_truncated",
            Self::CapabilityUnsupported => "capability_unsupported",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// How a process ended: with an exit code, or by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code.
    pub code: Option<i32>,
    /// The signal.
    pub signal: Option<i32>,
}

impl Exit {
    /// Returns `true` if the exit code is 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self.code, Some(0))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exited with code {code}"),
            (None, Some(signal)) => write!(f, "was killed by signal {signal}"),
            (None, None) => f.write_str("ended with an unknown status"),
        }
    }
}

/// A line of stdout and its events. Events without a line have no raw text: notices of the driver, and the terminal
/// event. The terminal event is the last one, and has the exit status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The line without its newline, with invalid UTF-8 replaced.
    pub raw: Option<String>,
    /// The events in order; empty if the line is not recognized.
    pub events: Vec<ProgramEvent>,
}
