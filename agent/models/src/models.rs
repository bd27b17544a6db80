//! The providers of a server, and which of them a request goes to.
//!
//! Nothing falls back in silence: what is not there, not enabled or not certain is an error that lists
//! what there is.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::config::{DefaultModel, ModelsConfig, ProviderConfig, ProviderKind};
use crate::{Chain, ModelProvider, Price, Remote, RemoteSettings, Replay, Retry, Script, Secret};

/// What a configuration is read against.
pub struct Surroundings<'a> {
    /// The value of an environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// What relative paths begin at.
    pub folder: &'a Path,
}

impl Surroundings<'static> {
    /// The process's own environment, and its current folder.
    #[must_use]
    pub fn of_process() -> Self {
        Self { environment: &|name| std::env::var(name).ok(), folder: Path::new("") }
    }
}

/// The providers of a server.
#[derive(Debug, Default)]
pub struct Models {
    default: Wanted,
    entries: Vec<Entry>,
}

/// What somebody asks for: a call, a definition, or the server by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The provider's id.
    pub provider: Option<String>,
    /// The model.
    pub model: Option<String>,
}

impl Wanted {
    /// What this asks for, and where it says nothing, what is below. A model stays with the provider
    /// that it was named with: another provider does not take it over, and another model does not
    /// take over its provider.
    #[must_use]
    pub fn over(&self, below: &Self) -> Self {
        let agree = |ours: &Option<String>, theirs: &Option<String>| {
            ours.is_none() || theirs.is_none() || ours == theirs
        };
        let provider = below.provider.clone().filter(|_| agree(&self.model, &below.model));
        let model = below.model.clone().filter(|_| agree(&self.provider, &below.provider));
        Self { provider: self.provider.clone().or(provider), model: self.model.clone().or(model) }
    }
}

/// Who is asked, and for which model.
#[derive(Clone)]
pub struct Resolved {
    /// The provider.
    pub provider: Arc<dyn ModelProvider>,
    /// The model.
    pub model: String,
    /// What its tokens cost, if that is known.
    pub price: Option<Price>,
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider.id(), self.model)
    }
}

/// One provider, for a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProviderInfo {
    /// Its id.
    pub id: String,
    /// Its kind; none if it was added by code.
    pub kind: Option<ProviderKind>,
    /// The models that it may be asked for; any if empty.
    pub models: Vec<String>,
    /// Of several that have a model, the one with the highest is asked.
    pub priority: i32,
    /// Whether it may be asked.
    pub enabled: bool,
    /// Why it cannot be asked although it may: a key that is not there.
    pub missing: Option<String>,
}

struct Entry {
    info: ProviderInfo,
    /// None if something is missing.
    provider: Option<Arc<dyn ModelProvider>>,
    price: Option<Price>,
    /// Of a model, where it is another.
    prices: BTreeMap<String, Price>,
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
    /// What is wrong with it, in one sentence.
    pub what: String,
}

/// Why it is not certain who should answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// There is no provider of that name.
    #[error("there is no provider `{wanted}`; there are {known}")]
    UnknownProvider {
        /// The name.
        wanted: String,
        /// Those that there are.
        known: String,
    },
    /// The provider may not be asked.
    #[error("the provider `{provider}` is not enabled")]
    Disabled {
        /// Its id.
        provider: String,
    },
    /// The provider's key is not there.
    #[error("the provider `{provider}` cannot be asked: {what}")]
    KeyMissing {
        /// Its id.
        provider: String,
        /// What is missing.
        what: String,
    },
    /// No provider has that model.
    #[error("no provider that may be asked has the model `{wanted}`; there are {known}")]
    UnknownModel {
        /// The model.
        wanted: String,
        /// Those that there are.
        known: String,
    },
    /// Several could answer, and nothing says which should.
    #[error("several could answer: {candidates}; name one, or give them different priorities")]
    Ambiguous {
        /// Those that could.
        candidates: String,
    },
    /// No model is named.
    #[error("no model is named, and {because}; there are {known}")]
    NoModel {
        /// Why none follows.
        because: String,
        /// Those that there are.
        known: String,
    },
}

impl ResolveError {
    /// Its stable name.
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
    /// The providers of a configuration. A key that is not there stops none of the others: whoever
    /// asks for that provider is told.
    ///
    /// # Errors
    /// Anything else that is wrong with a provider.
    pub fn new(config: ModelsConfig, surroundings: &Surroundings<'_>) -> Result<Self, ConfigError> {
        let mut models = Self::default();
        for config in config.providers {
            let provider = config.id.clone();
            let entry =
                entry(config, surroundings).map_err(|what| ConfigError { provider, what })?;
            models.insert(entry)?;
        }
        if let Some(DefaultModel { provider, model }) = config.default {
            models.default = Wanted { provider, model };
        }
        Ok(models)
    }

    /// Adds a provider of one's own, which may be asked for these models; for any if there are none.
    ///
    /// # Errors
    /// There is one of that id.
    pub fn add(
        &mut self,
        provider: Arc<dyn ModelProvider>,
        models: Vec<String>,
        priority: i32,
    ) -> Result<(), ConfigError> {
        let id = provider.id().to_owned();
        let (kind, enabled, missing) = (None, true, None);
        let info = ProviderInfo { id, kind, models, priority, enabled, missing };
        let (price, prices) = (None, BTreeMap::new());
        self.insert(Entry { info, provider: Some(provider), price, prices })
    }

    /// All providers, in the order in which they were configured.
    pub fn providers(&self) -> impl Iterator<Item = &ProviderInfo> {
        self.entries.iter().map(|entry| &entry.info)
    }

    /// Who answers. What is not wanted in particular is the server's default; a provider that is named
    /// without a model is asked for the only one that it has.
    ///
    /// # Errors
    /// It is not certain.
    pub fn resolve(&self, wanted: &Wanted) -> Result<Resolved, ResolveError> {
        let wanted = wanted.over(&self.default);
        let (entry, model) = match (wanted.provider, wanted.model) {
            (Some(provider), model) => {
                let entry = self.entry(&provider)?;
                (entry, entry.model(model)?)
            }
            (None, Some(model)) => (self.best_for(&model)?, model),
            (None, None) => self.only()?,
        };
        match (&entry.provider, entry.info.missing.clone()) {
            (Some(provider), _) => {
                let price = entry.prices.get(&model).copied().or(entry.price);
                Ok(Resolved { provider: Arc::clone(provider), model, price })
            }
            (None, what) => {
                let (provider, what) = (entry.info.id.clone(), what.unwrap_or_default());
                Err(ResolveError::KeyMissing { provider, what })
            }
        }
    }

    /// Those who answer one after another, each by what is wanted of it: see [`Chain`].
    ///
    /// # Errors
    /// It is not certain of one of them.
    ///
    /// # Panics
    /// Nobody is wanted.
    pub fn chain(&self, wanted: &[Wanted], retry: Retry) -> Result<Chain, ResolveError> {
        let candidates: Result<Vec<Resolved>, ResolveError> =
            wanted.iter().map(|wanted| self.resolve(wanted)).collect();
        Ok(Chain::new(candidates?, retry))
    }

    fn insert(&mut self, entry: Entry) -> Result<(), ConfigError> {
        let id = &entry.info.id;
        let known: BTreeSet<&str> = self.providers().map(|info| info.id.as_str()).collect();
        let wrong = match known.contains(id.as_str()) {
            true => Some("there are two of that id"),
            false if id.is_empty() => Some("its id is empty"),
            false => None,
        };
        if let Some(what) = wrong {
            return Err(ConfigError { provider: id.clone(), what: what.to_owned() });
        }
        self.entries.push(entry);
        Ok(())
    }

    fn entry(&self, id: &str) -> Result<&Entry, ResolveError> {
        let entry = self.entries.iter().find(|entry| entry.info.id == id).ok_or_else(|| {
            let known = list(self.providers().map(|info| info.id.as_str()));
            ResolveError::UnknownProvider { wanted: id.to_owned(), known }
        })?;
        match entry.info.enabled {
            true => Ok(entry),
            false => Err(ResolveError::Disabled { provider: id.to_owned() }),
        }
    }

    fn enabled(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.info.enabled)
    }

    /// The provider of highest priority that lists the model, or else that lists none at all.
    fn best_for(&self, model: &str) -> Result<&Entry, ResolveError> {
        let lists = |entry: &&Entry| entry.info.models.iter().any(|known| known == model);
        let listed: Vec<&Entry> = self.enabled().filter(lists).collect();
        let open = || self.enabled().filter(|entry| entry.info.models.is_empty()).collect();
        let candidates = if listed.is_empty() { open() } else { listed };
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
                because: "the server has no default".to_owned(),
                known: self.all_models(),
            }),
        }
    }

    fn all_models(&self) -> String {
        list(self.enabled().flat_map(|entry| entry.info.known()))
    }
}

impl Entry {
    /// The model to ask this provider for.
    fn model(&self, wanted: Option<String>) -> Result<String, ResolveError> {
        let ProviderInfo { id, models, .. } = &self.info;
        let known = || list(self.info.known());
        match (wanted, &models[..]) {
            (Some(wanted), models) if models.is_empty() || models.contains(&wanted) => Ok(wanted),
            (Some(wanted), _) => Err(ResolveError::UnknownModel { wanted, known: known() }),
            (None, [only]) => Ok(only.clone()),
            (None, _) => Err(ResolveError::NoModel {
                because: format!("the provider `{id}` has not just one"),
                known: known(),
            }),
        }
    }
}

impl ProviderInfo {
    /// Its models, with its id before them.
    fn known(&self) -> impl Iterator<Item = String> {
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

/// A provider as configured, or what is wrong with it.
fn entry(config: ProviderConfig, surroundings: &Surroundings<'_>) -> Result<Entry, String> {
    fits(&config)?;
    let (key, missing) = match key(&config, surroundings) {
        Ok(key) => (key, None),
        Err(missing) => (None, Some(missing)),
    };
    let provider: Option<Arc<dyn ModelProvider>> = match (missing.is_none(), config.enabled) {
        (true, true) => Some(provider(&config, key, surroundings.folder)?),
        _ => None,
    };
    let ProviderConfig { id, kind, models, priority, enabled, price, prices, .. } = config;
    let info = ProviderInfo { id, kind: Some(kind), models, priority, enabled, missing };
    Ok(Entry { info, provider, price, prices })
}

fn provider(
    config: &ProviderConfig,
    key: Option<Secret>,
    folder: &Path,
) -> Result<Arc<dyn ModelProvider>, String> {
    if let Some(protocol) = config.kind.protocol() {
        let remote = Remote::new(RemoteSettings {
            id: config.id.clone(),
            protocol,
            base_url: config.base_url.clone(),
            key,
            headers: config.headers.clone(),
            extra: config.extra.clone(),
            patience: config.patience(),
        })?;
        return Ok(Arc::new(remote));
    }
    if config.kind == ProviderKind::Script {
        let path = folder.join(config.script.as_deref().unwrap_or(Path::new("")));
        let script = Script::from_file(&path).map_err(|error| error.to_string())?;
        return Ok(Arc::new(script.named(&config.id)));
    }
    let mut conversations = Vec::new();
    for path in &config.recordings {
        let read = crate::read_conversations(&folder.join(path));
        conversations.extend(read.map_err(|error| error.to_string())?);
    }
    Ok(Arc::new(Replay::new(&config.id, conversations)))
}

/// Whether the fields belong to the kind.
fn fits(config: &ProviderConfig) -> Result<(), String> {
    let kind = config.kind;
    let keys = [config.key.is_some(), config.key_env.is_some(), config.key_file.is_some()];
    let has_key = keys.contains(&true);
    let has_recordings = !config.recordings.is_empty();
    let of_network = has_key
        || config.base_url.is_some()
        || !config.headers.is_empty()
        || !config.extra.is_empty()
        || config.first_token_seconds.is_some()
        || config.silence_seconds.is_some();
    let wrong = match kind {
        _ if keys.into_iter().filter(|told| *told).count() > 1 => {
            Some("it has several of `key`, `key_env` and `key_file`")
        }
        ProviderKind::Replay | ProviderKind::Script if of_network => {
            Some("it has settings of a provider across the network")
        }
        ProviderKind::Replay if !has_recordings => Some("it has no `recordings`"),
        ProviderKind::Script if config.script.is_none() => Some("it has no `script`"),
        _ if has_recordings && kind != ProviderKind::Replay => {
            Some("only a replay has `recordings`")
        }
        _ if config.script.is_some() && kind != ProviderKind::Script => {
            Some("only a script has a `script`")
        }
        _ => None,
    };
    if let Some(model) = config.prices.keys().find(|model| !has_model(config, model)) {
        return Err(format!("it has a price of `{model}`, which is none of its `models`"));
    }
    wrong.map_or(Ok(()), |wrong| Err(wrong.to_owned()))
}

fn has_model(config: &ProviderConfig, model: &String) -> bool {
    config.models.is_empty() || config.models.contains(model)
}

/// The provider's key, or what is missing of it.
fn key(config: &ProviderConfig, surroundings: &Surroundings<'_>) -> Result<Option<Secret>, String> {
    if let Some(name) = &config.key_env {
        let value = (surroundings.environment)(name).filter(|value| !value.trim().is_empty());
        let value = value.ok_or_else(|| format!("the environment variable `{name}` is not set"))?;
        return Ok(Some(Secret::new(value.trim())));
    }
    if let Some(path) = &config.key_file {
        let path: PathBuf = surroundings.folder.join(path);
        let value = std::fs::read_to_string(&path).map_err(|error| {
            format!("its key file `{}` cannot be read: {error}", path.display())
        })?;
        let value = value.trim();
        return match value.is_empty() {
            true => Err(format!("its key file `{}` is empty", path.display())),
            false => Ok(Some(Secret::new(value))),
        };
    }
    Ok(config.key.clone())
}
