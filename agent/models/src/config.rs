//! The configuration of a server's model providers: plain data, from YAML, JSON, TOML or code.
//!
//! [`crate::Models`] builds the providers from it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Price, Protocol, Secret, StallTimeouts, StructuredOutput};

/// All providers of a server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "models: a map with default, embedding and providers")]
pub struct ModelsConfig {
    /// The default for requests that name neither provider nor model.
    #[serde(default)]
    pub default: Option<DefaultModel>,
    /// The model that makes vectors of texts, for search by meaning. Without it, memory is searched by words.
    #[serde(default)]
    pub embedding: Option<EmbeddingModel>,
    /// The providers, in any order.
    #[serde(default)]
    pub providers: Vec<ProviderConfig>,
}

/// The model that makes vectors of texts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an embedding model: a map with provider and model")]
pub struct EmbeddingModel {
    /// The id of a provider with the `/embeddings` API of OpenAI: kind `openai`, `openai_responses` or
    /// `openai_compatible`.
    pub provider: String,
    /// The model. It needs no place in the provider's `models`, which are those that agents may use.
    pub model: String,
}

/// The default for requests that name neither provider nor model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a model: a map with provider, model or both")]
pub struct DefaultModel {
    /// The provider's id; the default is the provider that has the model.
    #[serde(default)]
    pub provider: Option<String>,
    /// The model; the default is the provider's only model.
    #[serde(default)]
    pub model: Option<String>,
}

/// One provider.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a model provider: a map with id and kind")]
pub struct ProviderConfig {
    /// The id that definitions use.
    pub id: String,
    /// The kind of provider.
    pub kind: ProviderKind,
    /// The base URL. Required for `openai_compatible`; overrides the default of the other kinds.
    #[serde(default)]
    pub base_url: Option<String>,
    /// The environment variable that holds the key.
    #[serde(default)]
    pub key_env: Option<String>,
    /// A file that contains only the key.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The key itself. Prefer one of the two above.
    #[serde(default)]
    pub key: Option<Secret>,
    /// The permitted models; empty means any.
    #[serde(default)]
    pub models: Vec<String>,
    /// If several providers have a model, the one with the highest priority is used.
    #[serde(default)]
    pub priority: i32,
    /// Whether the provider may be used. Default: true.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Headers to add to every request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Fields to set in the body of every request. They override ours; null removes a field.
    #[serde(default)]
    pub extra: Map<String, Value>,
    /// Maximum time without a byte before the first token, in seconds; the default is 60.
    #[serde(default)]
    pub first_token_timeout_seconds: Option<u64>,
    /// Maximum time without a byte after the first token, in seconds; the default is 30.
    #[serde(default)]
    pub idle_timeout_seconds: Option<u64>,
    /// Maximum time without a part of the answer, even if bytes arrive, in seconds; the default is 600.
    #[serde(default)]
    pub content_timeout_seconds: Option<u64>,
    /// Whether an answer without a `finish_reason` is an error, for `openai` and `openai_compatible`. Default: true.
    #[serde(default)]
    pub requires_stop_reason: Option<bool>,
    /// The price of its tokens; without one, costs are unknown.
    #[serde(default)]
    pub price: Option<Price>,
    /// Prices of single models; they override `price`.
    #[serde(default)]
    pub prices: BTreeMap<String, Price>,
    /// How the provider's models give structured answers. The default is `native`; for `openai_compatible` and `script`
    /// it is `tool`.
    #[serde(default)]
    pub structured_output: Option<StructuredOutput>,
    /// For `replay`: files of recorded conversations, `.jsonl` or `.jsonl.zst`.
    #[serde(default)]
    pub recordings: Vec<PathBuf>,
    /// For `script`: a file of answers, YAML or JSON.
    #[serde(default)]
    pub script: Option<PathBuf>,
}

/// The kinds of providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// OpenAI's Chat Completions.
    #[serde(rename = "openai")]
    OpenAi,
    /// OpenAI's Responses.
    #[serde(rename = "openai_responses")]
    OpenAiResponses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's Gemini.
    Gemini,
    /// Ollama.
    Ollama,
    /// Another server with the Chat Completions API.
    #[serde(rename = "openai_compatible")]
    OpenAiCompatible,
    /// Recorded conversations.
    Replay,
    /// A file of answers.
    Script,
}

impl ProviderKind {
    /// Its name in a configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::OpenAiResponses => "openai_responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
            Self::OpenAiCompatible => "openai_compatible",
            Self::Replay => "replay",
            Self::Script => "script",
        }
    }

    /// Its protocol, if it is a network provider.
    pub(crate) fn protocol(self) -> Option<Protocol> {
        match self {
            Self::OpenAi => Some(Protocol::OpenAi),
            Self::OpenAiResponses => Some(Protocol::OpenAiResponses),
            Self::Anthropic => Some(Protocol::Anthropic),
            Self::Gemini => Some(Protocol::Gemini),
            Self::Ollama => Some(Protocol::Ollama),
            Self::OpenAiCompatible => Some(Protocol::OpenAiCompatible),
            Self::Replay | Self::Script => None,
        }
    }
}

impl ProviderConfig {
    pub(crate) fn stall_timeouts(&self) -> StallTimeouts {
        let usual = StallTimeouts::default();
        let seconds =
            |configured: Option<u64>, usual| configured.map_or(usual, Duration::from_secs);
        StallTimeouts {
            first: seconds(self.first_token_timeout_seconds, usual.first),
            between: seconds(self.idle_timeout_seconds, usual.between),
            content: seconds(self.content_timeout_seconds, usual.content),
        }
    }
}

/// URLs, headers and extra fields may contain keys, so they are omitted.
impl fmt::Debug for ProviderConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ProviderConfig");
        shown.field("id", &self.id).field("kind", &self.kind).field("models", &self.models);
        shown.field("priority", &self.priority).field("enabled", &self.enabled);
        shown.finish_non_exhaustive()
    }
}

fn yes() -> bool {
    true
}
