//! The providers of a server, and the choice of the provider for a request.
//!
//! There are no silent fallbacks: an unknown, disabled or ambiguous provider is an error that lists the options.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::config::{DefaultModel, EmbeddingModel, ModelsConfig, ProviderConfig, ProviderKind};
use crate::{
    Chain, FilePlace, ModelProvider, Price, RecordingError, Remote, RemoteSettings, Replay,
    Resolved, Retry, Script, Secret, StructuredOutput,
};

/// The context for reading a configuration.
pub struct ConfigContext<'a> {
    /// Returns the value of an environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// The base of relative paths.
    pub folder: &'a Path,
}

impl ConfigContext<'static> {
    /// The environment and the current folder of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self { environment: &|name| std::env::var(name).ok(), folder: Path::new("") }
    }
}

/// The providers of a server.
#[derive(Debug, Default)]
pub struct Models {
    default: ModelSelection,
    embedding: Option<EmbeddingModel>,
    entries: Vec<Entry>,
}

/// The provider and model that a call, a definition or the server's default asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSelection {
    /// The provider's id.
    pub provider: Option<String>,
    /// The model.
    pub model: Option<String>,
}

impl ModelSelection {
    /// Fills missing values from `below`. A model applies only to the provider that it was named with: a different
    /// provider does not inherit the model, and a different model does not inherit the provider.
    #[must_use]
    pub fn over(&self, below: &Self) -> Self {
        let same_model = agree(self.model.as_deref(), below.model.as_deref());
        let same_provider = agree(self.provider.as_deref(), below.provider.as_deref());
        let provider = below.provider.clone().filter(|_| same_model);
        let model = below.model.clone().filter(|_| same_provider);
        Self { provider: self.provider.clone().or(provider), model: self.model.clone().or(model) }
    }
}

/// Returns `true` if two selections do not name different values.
fn agree(ours: Option<&str>, theirs: Option<&str>) -> bool {
    ours.is_none() || theirs.is_none() || ours == theirs
}

/// One provider, for a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProviderInfo {
    /// The id.
    pub id: String,
    /// The kind; `None` if it was added by code.
    pub kind: Option<ProviderKind>,
    /// The permitted models; empty means any.
    pub models: Vec<String>,
    /// If several providers have a model, the one with the highest priority is used.
    pub priority: i32,
    /// Whether it may be used.
    pub enabled: bool,
    /// Why an enabled provider cannot be used: its key is missing.
    pub missing: Option<String>,
}

#[derive(Clone)]
struct Entry {
    info: ProviderInfo,
    /// `None` if something is missing.
    provider: Option<Arc<dyn ModelProvider>>,
    price: Option<Price>,
    /// Prices of single models; they override `price`.
    prices: BTreeMap<String, Price>,
    structured_output: StructuredOutput,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("provider `{provider}`: {what}")]
pub struct ConfigError {
    /// The provider's id.
    pub provider: String,
    /// The error, in one sentence.
    pub what: String,
    /// The place of the error, if it is in a file that the provider names: a script or a recording.
    pub place: Option<FilePlace>,
}

/// Why a provider cannot be created.
struct Invalid {
    what: String,
    place: Option<FilePlace>,
}

impl From<String> for Invalid {
    fn from(what: String) -> Invalid {
        Invalid { what, place: None }
    }
}

impl From<RecordingError> for Invalid {
    fn from(error: RecordingError) -> Invalid {
        Invalid { what: error.to_string(), place: error.place() }
    }
}

/// Why no provider could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// Unknown provider.
    #[error("unknown provider `{wanted}`; available: {known}")]
    UnknownProvider {
        /// The id.
        wanted: String,
        /// The available providers.
        known: String,
    },
    /// The provider is disabled.
    #[error("provider `{provider}` is disabled")]
    Disabled {
        /// The id.
        provider: String,
    },
    /// The provider's key is missing.
    #[error("provider `{provider}` cannot be used: {what}")]
    KeyMissing {
        /// The id.
        provider: String,
        /// The problem.
        what: String,
    },
    /// No provider has the model.
    #[error("no enabled provider has the model `{wanted}`; available: {known}")]
    UnknownModel {
        /// The model.
        wanted: String,
        /// The available models.
        known: String,
    },
    /// Several providers have the model, with equal priority.
    #[error("several providers match: {candidates}; name one, or set different priorities")]
    Ambiguous {
        /// The matching providers.
        candidates: String,
    },
    /// No model is named.
    #[error("no model is named, and {because}; available: {known}")]
    NoModel {
        /// Why there is no default.
        because: String,
        /// The available models.
        known: String,
    },
}

impl ResolveError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownProvider { .. } => "unknown_provider",
            Self::Disabled { .. } => "provider_disabled",
            Self::KeyMissing { .. } => "key_missing",
            Self::UnknownModel { .. } => "unknown_model",
            Self::Ambiguous { .. } => "ambiguous_model",
            Self::NoModel { .. } => "no_model",
        }
    }
}

impl Models {
    /// The providers of a configuration. A missing key does not affect other providers; requests to that provider
    /// fail.
    ///
    /// # Errors
    /// The configuration of a provider is invalid.
    pub fn new(
        config: ModelsConfig,
        surroundings: &ConfigContext<'_>,
    ) -> Result<Self, ConfigError> {
        let mut models = Self::default();
        for config in config.providers {
            let provider = config.id.clone();
            let entry = entry(config, surroundings)
                .map_err(|Invalid { what, place }| ConfigError { provider, what, place })?;
            models.insert(entry)?;
        }
        if let Some(DefaultModel { provider, model }) = config.default {
            models.default = ModelSelection { provider, model };
        }
        if let Some(embedding) = config.embedding {
            models.set_embedding(embedding)?;
        }
        Ok(models)
    }

    /// Adds a custom provider with its permitted models; an empty list means any.
    ///
    /// # Errors
    /// The id is already in use.
    pub fn add(
        &mut self,
        provider: Arc<dyn ModelProvider>,
        models: Vec<String>,
        priority: i32,
    ) -> Result<(), ConfigError> {
        let id = provider.id().to_owned();
        let kind = None;
        let enabled = true;
        let missing = None;
        let info = ProviderInfo { id, kind, models, priority, enabled, missing };
        let price = None;
        let prices = BTreeMap::new();
        let structured_output = provider.structured_output();
        self.insert(Entry { info, provider: Some(provider), price, prices, structured_output })
    }

    /// Adds the providers that code has added to other models, for a configuration that is read again.
    ///
    /// # Errors
    /// The configuration has a provider with the id of one of them.
    pub fn copy_custom_providers(&mut self, other: &Models) -> Result<(), ConfigError> {
        let added = other.entries.iter().filter(|entry| entry.info.kind.is_none());
        added.cloned().try_for_each(|entry| self.insert(entry))
    }

    /// Sets the model that makes vectors of texts.
    ///
    /// # Errors
    /// There is no such provider.
    pub fn set_embedding(&mut self, embedding: EmbeddingModel) -> Result<(), ConfigError> {
        let provider = embedding.provider.clone();
        if let Err(why) = self.entry(&provider) {
            let what = format!("models.embedding: {why}");
            return Err(ConfigError { provider, what, place: None });
        }
        self.embedding = Some(embedding);
        Ok(())
    }

    /// The provider and the model that make vectors of texts; `None` if none is configured.
    ///
    /// # Errors
    /// The provider's key is missing.
    pub fn embedding(&self) -> Result<Option<Resolved>, ResolveError> {
        let Some(EmbeddingModel { provider, model }) = &self.embedding else { return Ok(None) };
        self.entry(provider)?.with_model(model.clone()).map(Some)
    }

    /// The configured default, if there is one.
    #[must_use]
    pub fn default_model(&self) -> Option<&ModelSelection> {
        Some(&self.default).filter(|default| **default != ModelSelection::default())
    }

    /// All providers, in the order of the configuration.
    pub fn providers(&self) -> impl Iterator<Item = &ProviderInfo> {
        self.entries.iter().map(|entry| &entry.info)
    }

    /// Chooses provider and model. Missing values are filled from the server's default; a provider without a model
    /// is asked for its only model.
    ///
    /// # Errors
    /// The choice is not unique, or there is none.
    pub fn resolve(&self, wanted: &ModelSelection) -> Result<Resolved, ResolveError> {
        let wanted = wanted.over(&self.default);
        let (entry, model) = match (wanted.provider, wanted.model) {
            (Some(provider), model) => {
                let entry = self.entry(&provider)?;
                (entry, entry.model(model)?)
            }
            (None, Some(model)) => (self.best_for(&model)?, model),
            (None, None) => self.only()?,
        };
        entry.with_model(model)
    }

    /// A [`Chain`] of these candidates.
    ///
    /// # Errors
    /// As [`Self::resolve`], for any candidate.
    ///
    /// # Panics
    /// If the list is empty.
    pub fn chain(&self, wanted: &[ModelSelection], retry: Retry) -> Result<Chain, ResolveError> {
        let candidates: Result<Vec<Resolved>, ResolveError> =
            wanted.iter().map(|wanted| self.resolve(wanted)).collect();
        Ok(Chain::new(candidates?, retry))
    }

    fn insert(&mut self, entry: Entry) -> Result<(), ConfigError> {
        let id = &entry.info.id;
        let known: BTreeSet<&str> = self.providers().map(|info| info.id.as_str()).collect();
        let wrong = if known.contains(id.as_str()) {
            Some("another provider has the same id")
        } else if id.is_empty() {
            Some("its id is empty")
        } else {
            None
        };
        if let Some(what) = wrong {
            let provider = id.clone();
            return Err(ConfigError { provider, what: what.to_owned(), place: None });
        }
        self.entries.push(entry);
        Ok(())
    }

    fn entry(&self, id: &str) -> Result<&Entry, ResolveError> {
        let entry = self.entries.iter().find(|entry| entry.info.id == id).ok_or_else(|| {
            let known = list(self.providers().map(|info| info.id.as_str()));
            ResolveError::UnknownProvider { wanted: id.to_owned(), known }
        })?;
        if entry.info.enabled {
            Ok(entry)
        } else {
            Err(ResolveError::Disabled { provider: id.to_owned() })
        }
    }

    fn enabled(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.info.enabled)
    }

    /// The provider of highest priority that lists the model, or else that permits any model.
    fn best_for(&self, model: &str) -> Result<&Entry, ResolveError> {
        let listed: Vec<&Entry> = self
            .enabled()
            .filter(|entry| entry.info.models.iter().any(|known| known == model))
            .collect();
        let candidates = if listed.is_empty() {
            self.enabled().filter(|entry| entry.info.models.is_empty()).collect()
        } else {
            listed
        };
        let highest = candidates.iter().map(|entry| entry.info.priority).max();
        let best: Vec<&Entry> =
            candidates.into_iter().filter(|entry| Some(entry.info.priority) == highest).collect();
        match best[..] {
            [one] => Ok(one),
            [] => Err(ResolveError::UnknownModel {
                wanted: model.to_owned(),
                known: self.all_models(),
            }),
            _ => Err(ambiguous(best.iter().map(|entry| format!("{}/{model}", entry.info.id)))),
        }
    }

    /// The only model of the only provider.
    fn only(&self) -> Result<(&Entry, String), ResolveError> {
        let all: Vec<(&Entry, &String)> = self
            .enabled()
            .flat_map(|entry| entry.info.models.iter().map(move |model| (entry, model)))
            .collect();
        match (&all[..], self.enabled().count()) {
            ([(entry, model)], 1) => Ok((entry, (*model).clone())),
            _ => Err(ResolveError::NoModel {
                because: "there is no default".to_owned(),
                known: self.all_models(),
            }),
        }
    }

    fn all_models(&self) -> String {
        list(self.enabled().flat_map(|entry| entry.info.known_models()))
    }
}

impl Entry {
    /// The provider with a model, unless its key is missing.
    fn with_model(&self, model: String) -> Result<Resolved, ResolveError> {
        match (&self.provider, self.info.missing.clone()) {
            (Some(provider), _) => {
                let price = self.prices.get(&model).copied().or(self.price);
                let structured_output = self.structured_output;
                Ok(Resolved { provider: Arc::clone(provider), model, price, structured_output })
            }
            (None, what) => {
                let provider = self.info.id.clone();
                let what = what.unwrap_or_default();
                Err(ResolveError::KeyMissing { provider, what })
            }
        }
    }

    /// The model to request from this provider.
    fn model(&self, wanted: Option<String>) -> Result<String, ResolveError> {
        let ProviderInfo { id, models, .. } = &self.info;
        let known = || list(self.info.known_models());
        match (wanted, &models[..]) {
            (Some(wanted), models) if models.is_empty() || models.contains(&wanted) => Ok(wanted),
            (Some(wanted), _) => Err(ResolveError::UnknownModel { wanted, known: known() }),
            (None, [only]) => Ok(only.clone()),
            (None, _) => Err(ResolveError::NoModel {
                because: format!("provider `{id}` does not have exactly one"),
                known: known(),
            }),
        }
    }
}

impl ProviderInfo {
    /// Its models, prefixed with its id.
    fn known_models(&self) -> impl Iterator<Item = String> {
        let any = self.models.is_empty().then(|| format!("{}/(any)", self.id));
        self.models.iter().map(|model| format!("{}/{model}", self.id)).chain(any)
    }
}

fn ambiguous(candidates: impl Iterator<Item = String>) -> ResolveError {
    ResolveError::Ambiguous { candidates: list(candidates) }
}

fn list(names: impl Iterator<Item = impl AsRef<str>>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{}`", name.as_ref())).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Builds a provider from its configuration.
fn entry(config: ProviderConfig, surroundings: &ConfigContext<'_>) -> Result<Entry, Invalid> {
    fits(&config)?;
    let (key, missing) = match key(&config, surroundings) {
        Ok(key) => (key, None),
        Err(missing) => (None, Some(missing)),
    };
    let provider: Option<Arc<dyn ModelProvider>> = match (missing.is_none(), config.enabled) {
        (true, true) => Some(provider(&config, key, surroundings.folder)?),
        _ => None,
    };
    let by_default = match config.kind {
        ProviderKind::OpenAiCompatible | ProviderKind::Script => StructuredOutput::Tool,
        _ => StructuredOutput::Native,
    };
    let structured_output = config.structured_output.unwrap_or(by_default);
    let ProviderConfig { id, kind, models, priority, enabled, price, prices, .. } = config;
    let info = ProviderInfo { id, kind: Some(kind), models, priority, enabled, missing };
    Ok(Entry { info, provider, price, prices, structured_output })
}

fn provider(
    config: &ProviderConfig,
    key: Option<Secret>,
    folder: &Path,
) -> Result<Arc<dyn ModelProvider>, Invalid> {
    if let Some(protocol) = config.kind.protocol() {
        let remote = Remote::new(RemoteSettings {
            id: config.id.clone(),
            protocol,
            base_url: config.base_url.clone(),
            key,
            headers: config.headers.clone(),
            extra: config.extra.clone(),
            stall_timeouts: config.stall_timeouts(),
            requires_stop_reason: config.requires_stop_reason.unwrap_or(true),
        })?;
        return Ok(Arc::new(remote));
    }
    if config.kind == ProviderKind::Script {
        let path = folder.join(config.script.as_deref().unwrap_or(Path::new("")));
        let script = Script::from_file(&path)?;
        return Ok(Arc::new(script.named(&config.id)));
    }
    let mut conversations = Vec::new();
    for path in &config.recordings {
        conversations.extend(crate::read_conversations(&folder.join(path))?);
    }
    Ok(Arc::new(Replay::new(&config.id, conversations)))
}

/// Checks that the fields fit the kind.
fn fits(config: &ProviderConfig) -> Result<(), String> {
    let kind = config.kind;
    let keys = [config.key.is_some(), config.key_env.is_some(), config.key_file.is_some()];
    let has_key = keys.contains(&true);
    let has_recordings = !config.recordings.is_empty();
    let of_network = has_key
        || config.base_url.is_some()
        || !config.headers.is_empty()
        || !config.extra.is_empty()
        || config.first_token_timeout_seconds.is_some()
        || config.idle_timeout_seconds.is_some()
        || config.content_timeout_seconds.is_some();
    let wrong = match kind {
        _ if keys.into_iter().filter(|present| *present).count() > 1 => {
            Some("it has several of `key`, `key_env` and `key_file`")
        }
        ProviderKind::Replay | ProviderKind::Script if of_network => {
            Some("it has settings that only network providers support")
        }
        _ if config.requires_stop_reason.is_some()
            && !matches!(kind, ProviderKind::OpenAi | ProviderKind::OpenAiCompatible) =>
        {
            Some("only `openai` and `openai_compatible` providers support `requires_stop_reason`")
        }
        ProviderKind::Replay if !has_recordings => Some("it has no `recordings`"),
        ProviderKind::Script if config.script.is_none() => Some("it has no `script`"),
        _ if has_recordings && kind != ProviderKind::Replay => {
            Some("only a `replay` provider supports `recordings`")
        }
        _ if config.script.is_some() && kind != ProviderKind::Script => {
            Some("only a `script` provider supports `script`")
        }
        _ => None,
    };
    if let Some(model) = config.prices.keys().find(|model| !has_model(config, model)) {
        return Err(format!("it has a price for `{model}`, which is not in its `models`"));
    }
    wrong.map_or(Ok(()), |wrong| Err(wrong.to_owned()))
}

fn has_model(config: &ProviderConfig, model: &String) -> bool {
    config.models.is_empty() || config.models.contains(model)
}

/// Reads the file of a key. A pipe would be waited for, and a configuration is read again while agents run.
fn read_key_file(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    fs::read_to_string(path)
}

/// The provider's key, or why it is missing.
fn key(
    config: &ProviderConfig,
    surroundings: &ConfigContext<'_>,
) -> Result<Option<Secret>, String> {
    if let Some(name) = &config.key_env {
        let value = (surroundings.environment)(name).filter(|value| !value.trim().is_empty());
        let value = value.ok_or_else(|| format!("the environment variable `{name}` is not set"))?;
        return Ok(Some(Secret::new(value.trim())));
    }
    if let Some(path) = &config.key_file {
        let path: PathBuf = surroundings.folder.join(path);
        let value = read_key_file(&path).map_err(|error| {
            format!("its key file `{}` cannot be read: {error}", path.display())
        })?;
        let value = value.trim();
        return if value.is_empty() {
            Err(format!("its key file `{}` is empty", path.display()))
        } else {
            Ok(Some(Secret::new(value)))
        };
    }
    Ok(config.key.clone())
}
