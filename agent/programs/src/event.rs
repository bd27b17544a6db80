//! What a program says, in one vocabulary for all programs. How it is read out of a program's lines
//! is the parsers' business.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One thing that a run tells. [`ProgramEvent::Final`] and [`ProgramEvent::Error`] are terminal: every
/// run ends with exactly one of them, as its very last event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProgramEvent {
    /// A piece of what the agent says. No text comes twice, however often the program repeats it.
    AssistantDelta {
        /// The piece.
        text: String,
        /// The program's own id of the message it is a piece of, where there is one.
        message: Option<String>,
        /// The call within which a sub-agent says it; none for the agent itself.
        parent: Option<String>,
    },
    /// A piece of what the agent thinks.
    ThinkingDelta {
        /// The piece.
        text: String,
        /// The program's own id of the message it is a piece of, where there is one.
        message: Option<String>,
        /// The call within which a sub-agent thinks it; none for the agent itself.
        parent: Option<String>,
    },
    /// The program runs a tool of its own.
    ToolCallStarted {
        /// The program's own id of the call.
        id: String,
        /// The program's name of the tool.
        name: String,
        /// Its arguments, whole.
        arguments: Value,
        /// The call within which a sub-agent makes this one; none for the agent itself.
        parent: Option<String>,
    },
    /// A tool of the program's own has run.
    ToolCallFinished {
        /// The id of the call.
        id: String,
        /// What it gave, as the program tells it: text, or a list of blocks, or an object.
        output: Value,
        /// It failed, by the program's own word.
        is_error: bool,
        /// The exit code of a command, where the program tells it.
        exit_code: Option<i64>,
        /// The call within which a sub-agent made this one; none for the agent itself.
        parent: Option<String>,
    },
    /// The program waits for a decision: see [`Handle::answer`](crate::Handle::answer).
    ApprovalRequested {
        /// What the decision has to name.
        request_id: String,
        /// The tool that it wants to run.
        tool: String,
        /// With these arguments.
        input: Value,
        /// The id of the call that waits, where the program tells it.
        call_id: Option<String>,
        /// All else that the program says about it: suggestions, the blocked path, a description.
        details: Value,
    },
    /// The program no longer waits for this decision.
    ApprovalWithdrawn {
        /// What it had asked under.
        request_id: String,
    },
    /// Anything else that the program tells, as it tells it.
    Status {
        /// The JSON object of the line, or the part of it that no other event carries.
        data: Value,
    },
    /// Something a reader of the run should know that does not end it.
    Notice {
        /// What kind of thing.
        code: NoticeCode,
        /// In a sentence.
        message: String,
    },
    /// What the run has used so far, as the program reports it. It replaces what was told before.
    Usage(Usage),
    /// The program's own session, by which a later run can resume it.
    SessionId {
        /// The id.
        id: String,
    },
    /// Terminal: the program gave an answer, and all went well.
    Final(Answer),
    /// Terminal: the run failed.
    Error(Failure),
}

impl ProgramEvent {
    /// Whether this ends a run.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        matches!(self, Self::Final(_) | Self::Error(_))
    }
}

/// What a [`ProgramEvent::Notice`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NoticeCode {
    /// The program gave a second answer; the first one counts.
    ExtraFinal,
    /// The program told of an error that it may yet get over.
    Reported,
    /// The program closed its input, or ended, before it had read all of it.
    StdinUnread,
    /// A message that was streamed in pieces reads otherwise as a whole; the pieces stand.
    TextDiffers,
}

/// Tokens, as the program reports them: nothing is estimated, and what it does not tell is none. Whether
/// `input_tokens` includes the cached ones is the program's own custom (Codex: yes; Claude Code: no).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// What the models read.
    pub input_tokens: Option<u64>,
    /// What they wrote.
    pub output_tokens: Option<u64>,
    /// What of the input came out of a cache.
    pub cached_tokens: Option<u64>,
    /// What of the input was put into a cache.
    pub cache_write_tokens: Option<u64>,
    /// What of the output was thinking.
    pub reasoning_tokens: Option<u64>,
    /// Whether the run's whole use is in it.
    pub completeness: Completeness,
}

impl Usage {
    /// Whether nothing is reported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let empty = Self { completeness: self.completeness, ..Self::default() };
        *self == empty
    }

    /// The sum of two reports; a number that neither tells stays none.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (one, none) => one.or(none),
        };
        Self {
            input_tokens: sum(self.input_tokens, other.input_tokens),
            output_tokens: sum(self.output_tokens, other.output_tokens),
            cached_tokens: sum(self.cached_tokens, other.cached_tokens),
            cache_write_tokens: sum(self.cache_write_tokens, other.cache_write_tokens),
            reasoning_tokens: sum(self.reasoning_tokens, other.reasoning_tokens),
            completeness: self.completeness,
        }
    }
}

/// Whether a [`Usage`] is all that a run used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completeness {
    /// The program told it as its total.
    Complete,
    /// It is what was told so far.
    #[default]
    Partial,
}

/// The program's last word, with what it reports beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// The answer's text; empty where the program ends without one.
    pub text: String,
    /// What the run used, by the program's word.
    pub usage: Option<Usage>,
    /// What it cost in US dollars, by the program's word.
    pub cost_usd: Option<f64>,
    /// The program's own session.
    pub session_id: Option<String>,
    /// How many turns it took, by the program's word.
    pub turns: Option<i64>,
    /// The answer as data, where a schema was asked for.
    pub structured: Option<Value>,
    /// The tools that it wanted and was not let.
    pub denials: Vec<Denial>,
    /// What else stands in the line that the answer came in.
    pub details: Value,
    /// How the process ended.
    pub exit: Option<Exit>,
}

/// A tool call that the program was not let make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Denial {
    /// The tool.
    pub tool: String,
    /// The program's own id of the call.
    pub call_id: Option<String>,
    /// The arguments.
    pub input: Value,
}

/// Why a run failed, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What went wrong.
    pub kind: ErrorKind,
    /// In one sentence.
    pub message: String,
    /// Whether the program says that trying again may help. Never guessed.
    pub recoverable: bool,
    /// How the process ended; none if there was none.
    pub exit: Option<Exit>,
    /// The tail of what it wrote to stderr, with the secrets of its environment taken out.
    pub stderr: String,
    /// The program's last word, if it had one: the run is no success all the same.
    pub answer: Option<Box<Answer>>,
}

impl Failure {
    /// A failure of which only this is known yet.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message, recoverable: false, exit: None, stderr: String::new(), answer: None }
    }
}

/// The kinds of failure, with the codes of the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The deadline passed. The name is the seed's contract; no MCP needs to be in it.
    McpTimeout,
    /// More output than allowed, or the program's own budget of money is used up.
    BudgetExceeded,
    /// The process failed: an exit code, a signal, a program that does not start, a reported error.
    RuntimeCrash,
    /// The program ended well and gave no answer.
    BadModelOutput,
    /// Somebody asked for the end.
    Cancelled,
    /// The program used up the turns it was given.
    LoopLimit,
    /// What the declaration asks for, this program cannot do.
    CapabilityUnsupported,
}

impl ErrorKind {
    /// The stable code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::McpTimeout => "mcp_timeout",
            Self::BudgetExceeded => "budget_exceeded",
            Self::RuntimeCrash => "runtime_crash",
            Self::BadModelOutput => "bad_model_output",
            Self::Cancelled => "cancelled",
            Self::LoopLimit => "loop_limit",
            Self::CapabilityUnsupported => "capability_unsupported",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// How a process ended: by a code of its own, or by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The code that it gave.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl Exit {
    /// Whether it ended by itself, with 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self.code, Some(0))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exited with code {code}"),
            (None, Some(signal)) => write!(f, "was ended by signal {signal}"),
            (None, None) => f.write_str("ended without saying how"),
        }
    }
}
