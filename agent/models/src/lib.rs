//! The model API of agents: one trait, with providers, retries and recordings behind it.
//!
//! This crate changes when the features of model requests or the set of providers change. It does not depend on
//! sessions, the execution of tools, databases, or any other crate of ours except `json-integers` and
//! `yaml`.
//!
//! ```text
//! ModelRequest ──▶ ModelProvider::stream ──▶ Text* Reasoning* Call* … Answer
//!                     ├ Remote: a protocol over HTTP (OpenAI, Anthropic, Gemini, Ollama)
//!                     ├ Replay: what a recorded conversation says next
//!                     ├ Script: what a small file says next
//!                     └ Chain:  the first of several that answers, with retries
//! EmbeddingRequest ──▶ ModelProvider::embed ──▶ Embeddings
//! ```
//!
//! In reading order: [`ModelRequest`] and [`ModelEvent`] (input and output), [`ModelError`] (failures, and whether
//! a retry helps), [`Models`] (providers from a configuration), [`Chain`], [`Remote`], and for tests and demos
//! [`Replay`] and [`Script`].
//!
//! *Invariant:* model output is passed on unchanged. Call ids and argument texts are the provider's own, token
//! counts are as reported, and missing values are not invented. Only the reason why a model stopped is a code, without
//! free text.
//!
//! *Invariant:* a stream ends with exactly one [`ModelEvent::Answer`] or exactly one error. An answer without the
//! provider's end marker is an error, regardless of the data received.
//!
//! *Invariant:* errors, `Debug` output and logs contain no key.

mod chain;
mod classify;
mod config;
mod embedding;
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
mod resolved;
mod response;
mod script;
mod secret;
mod tokens;

pub use chain::{Chain, Retry};
pub use config::{DefaultModel, EmbeddingModel, ModelsConfig, ProviderConfig, ProviderKind};
pub use embedding::{EMBEDDED_TEXTS, EmbeddingRequest, Embeddings, VECTOR_NUMBERS};
pub use error::{ModelError, ModelErrorKind};
pub use models::{ConfigContext, ConfigError, ModelSelection, Models, ProviderInfo, ResolveError};
pub use price::{Price, dollars};
pub use protocol::Protocol;
pub use provider::{ModelProvider, ModelStream, answer_of};
pub use recording::{Conversation, FilePlace, RecordingError, read_conversations};
pub use remote::{Remote, RemoteSettings, StallTimeouts};
pub use replay::{Replay, ReplaySpeed};
pub use request::{ModelCall, ModelMessage, ModelRequest, RequestPurpose, ToolSpec};
pub use resolved::{Resolved, StructuredOutput};
pub use response::{Completeness, ModelEvent, ModelResponse, Restart, Stop, Usage};
pub use script::{Script, ScriptedCall, ScriptedError, ScriptedResponse, ScriptedUsage};
pub use secret::Secret;
pub use tokens::TokenEstimate;
