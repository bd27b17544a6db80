//! What a server is told about its providers: plain data, from YAML, JSON, TOML or code.
//!
//! Not what comes of it: that is [`crate::Models`]'s.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Patience, Price, Protocol, Secret};

/// All providers of a server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelsConfig {
    /// Who answers what names neither provider nor model.
    #[serde(default)]
    pub default: Option<DefaultModel>,
    /// The providers, in any order.
    #[serde(default)]
    pub providers: Vec<ProviderConfig>,
}

/// Who answers what names neither provider nor model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultModel {
    /// The provider's id; the one that has the model if absent.
    #[serde(default)]
    pub provider: Option<String>,
    /// The model; the only one of the provider if absent.
    #[serde(default)]
    pub model: Option<String>,
}

/// One provider.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// The name that definitions call it by.
    pub id: String,
    /// What it is.
    pub kind: ProviderKind,
    /// Where it is; needed for `openai_compatible`, and for the others when they are elsewhere.
    #[serde(default)]
    pub base_url: Option<String>,
    /// The environment variable that holds its key.
    #[serde(default)]
    pub key_env: Option<String>,
    /// The file that holds its key, and nothing else.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The key itself. Better one of the two above.
    #[serde(default)]
    pub key: Option<Secret>,
    /// The models that it may be asked for; any if empty.
    #[serde(default)]
    pub models: Vec<String>,
    /// Of several that have a model, the one with the highest is asked.
    #[serde(default)]
    pub priority: i32,
    /// Whether it may be asked at all.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Headers that go with every request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Fields that go into the body of every request, over ours; null takes one out.
    #[serde(default)]
    pub extra: Map<String, Value>,
    /// How many seconds may pass without a byte before the first token; 60 if absent.
    #[serde(default)]
    pub first_token_seconds: Option<u64>,
    /// How many seconds may pass without a byte from then on; 30 if absent.
    #[serde(default)]
    pub silence_seconds: Option<u64>,
    /// What its tokens cost; nothing is known of it if absent.
    #[serde(default)]
    pub price: Option<Price>,
    /// What those of a model cost, where that is something else.
    #[serde(default)]
    pub prices: BTreeMap<String, Price>,
    /// Of `replay`: files of recorded conversations, `.jsonl` or `.jsonl.zst`.
    #[serde(default)]
    pub recordings: Vec<PathBuf>,
    /// Of `script`: a file of answers, YAML or JSON.
    #[serde(default)]
    pub script: Option<PathBuf>,
}

/// What a provider is.
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
    /// Anyone who speaks Chat Completions.
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

    /// What it speaks, if it is across the network.
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
    pub(crate) fn patience(&self) -> Patience {
        let usual = Patience::default();
        let seconds = |told: Option<u64>, usual| told.map_or(usual, Duration::from_secs);
        Patience {
            first: seconds(self.first_token_seconds, usual.first),
            between: seconds(self.silence_seconds, usual.between),
        }
    }
}

/// URLs, headers and extra fields may bear keys too, so none of them is shown.
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
