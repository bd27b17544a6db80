//! Command-line agents as subprocesses: Claude Code, Codex, Gemini CLI, OpenCode, and any program that
//! writes one JSON object per line. Their output becomes events, together with the original lines.
//!
//! This crate changes when the way such programs are run changes, or when one of them changes its format. It does
//! not depend on sessions, models, storage or other crates of Abide, and keeps no state. It needs Unix process
//! groups.
//!
//! In reading order: `config` (the configuration), `program` (known programs), `command` (the complete
//! command), `event` (the events), `parser` (events from lines), `parsers` (parsers in Rust by name), `dialogue`
//! (both directions: a text prompt, Claude Code's control protocol, ACP, Codex's app server), `control` (requests to
//! a run), `reading` (what lines mean, from a process or stored), `run` (the API of a run), `driver` (the loop behind
//! it), `run_result` (the result of a run), `secrets` (their removal from everything that a program says).
//!
//! ```no_run
//! use abide_programs::{CliConfig, ProgramEvent, Prompt, run};
//! use futures_util::StreamExt as _;
//!
//! # async fn example() {
//! let mut running = run(CliConfig::new(["claude", "-p"]), Prompt::user("What is here?"), None);
//! while let Some(line) = running.next().await {
//!     for event in line.events {
//!         match event {
//!             ProgramEvent::AssistantDelta { text, .. } => print!("{text}"),
//!             ProgramEvent::Final(answer) => println!("\n{:?}", answer.cost_usd),
//!             ProgramEvent::Error(failure) => eprintln!("{}: {}", failure.kind, failure.message),
//!             _ => {}
//!         }
//!     }
//! }
//! # }
//! ```

mod command;
mod config;
mod control;
mod dialogue;
mod driver;
mod env_value;
mod environment;
mod event;
mod lines;
mod parser;
mod parsers;
mod process;
mod process_identity;
mod program;
mod prompt;
mod reading;
mod run;
mod run_result;
mod secrets;

pub use config::{CliConfig, ENV_ALLOWLIST, InheritEnv, InputFormat, OutputFormat, TerminalRule};
pub use control::EndSignal;
pub use dialogue::Decision;
pub use env_value::{EnvValue, NamedValue};
pub use event::{
    Completeness, Denial, ErrorKind, Exit, Failure, Line, NoticeCode, ProgramEvent, ProgramResult,
    Usage,
};
pub use parser::{
    AnswerRule, ClaudeParser, CodexParser, Conditions, ErrorRule, FirstByDefault, GeminiParser,
    GenericParser, JsonPointer, LastByDefault, NotAPointer, OpenCodeParser, Parser, ParserChoice,
    ParserRules, TextParser, TextRule, ToolCallRule, ToolResultRule, UsageRule,
};
pub use parsers::Parsers;
pub use process_identity::ProcessIdentity;
pub use program::Program;
pub use prompt::{Prompt, PromptMessage};
pub use reading::{StoredEnd, StoredLines};
pub use run::{DecisionError, RunHandle, Running, run, spawn_paused};
