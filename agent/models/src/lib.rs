//! Models as agents reach them: one trait, and behind it providers, retries and recordings.
//!
//! It changes when what we can ask of a model, or who can be asked, changes. It knows nothing of
//! sessions, tools that run, or databases, and depends on no other crate of ours.
//!
//! ```text
//! ModelRequest ──▶ ModelProvider::stream ──▶ Text* Reasoning* Call* … Answer
//!                     ├ Remote: a protocol over HTTP (OpenAI, Anthropic, Gemini, Ollama)
//!                     ├ Replay: what a recorded conversation says next
//!                     ├ Script: what a small file says next
//!                     └ Chain:  the first of several that answers, with retries
//! ```
//!
//! In reading order: [`ModelRequest`] and [`ModelEvent`] (what goes in and comes out), [`ModelError`]
//! (what can go wrong, and whether trying again helps), [`Models`] (from a configuration to a
//! provider), [`Chain`], [`Remote`], and for tests and demonstrations [`Replay`] and [`Script`].
//!
//! *Invariant:* what a model said is passed on as it said it. Ids of calls and texts of arguments are
//! the provider's own, numbers of tokens are those that it reported, and what it did not say is not
//! made up.
//!
//! *Invariant:* a stream ends with exactly one [`ModelEvent::Answer`] or exactly one error. An answer
//! that the provider did not say was over is an error, whatever had arrived of it.
//!
//! *Invariant:* no key is in an error, a `Debug` or a log.

mod answer;
mod chain;
mod config;
mod error;
mod frames;
mod models;
mod price;
mod protocol;
mod provider;
mod recording;
mod remote;
mod replay;
mod request;
mod script;
mod secret;
mod verdict;

pub use answer::{Completeness, ModelAnswer, ModelEvent, Restart, Stop, Usage};
pub use chain::{Chain, Retry};
pub use config::{DefaultModel, ModelsConfig, ProviderConfig, ProviderKind};
pub use error::{ModelError, ModelErrorKind};
pub use models::{ConfigError, Models, ProviderInfo, ResolveError, Resolved, Surroundings, Wanted};
pub use price::Price;
pub use protocol::Protocol;
pub use provider::{ModelProvider, ModelStream, answer_of};
pub use recording::{Conversation, RecordingError, read_conversations};
pub use remote::{Patience, Remote, RemoteSettings};
pub use replay::{Pace, Replay};
pub use request::{ModelCall, ModelMessage, ModelRequest, ToolSpec};
pub use script::{Script, ScriptedAnswer, ScriptedCall, ScriptedError, ScriptedUsage};
pub use secret::Secret;
