//! Foreign command-line agents as subprocesses: Claude Code, Codex, Gemini CLI, OpenCode, and any program
//! that writes one JSON object a line. What they write becomes events; the lines are kept beside them.
//!
//! It changes when the way such programs are run changes, or when one of them speaks otherwise. It knows
//! nothing of sessions, models, storage or the rest of Abide, and keeps nothing: whoever reads a run makes
//! of it what he wants. Unix only, for its process groups.
//!
//! In reading order: `config` (what may be said of a program), `program` (which one it is), `event` (what
//! it tells), `parser` (how its lines tell that), `run` (a run as its caller sees it), `driver` (the loop
//! behind that), `verdict` (how it ended).
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

mod config;
mod dialogue;
mod driver;
mod environment;
mod event;
mod lines;
mod parser;
mod process;
mod program;
mod prompt;
mod run;
mod verdict;

pub use config::{CliConfig, ENV_ALLOWLIST, InheritEnv, InputFormat, OutputFormat, TerminalRule};
pub use dialogue::Decision;
pub use event::{
    Answer, Completeness, Denial, ErrorKind, Exit, Failure, NoticeCode, ProgramEvent, Usage,
};
pub use parser::{
    ClaudeParser, CodexParser, GeminiParser, GenericParser, OpenCodeParser, Parser, TextParser,
};
pub use program::Program;
pub use prompt::Prompt;
pub use run::{DecisionError, Handle, Line, Running, run};
