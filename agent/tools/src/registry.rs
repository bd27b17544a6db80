//! The registry of tools.
//!
//! A worker has one registry. The tools that an agent may use are a **view** of it, derived from the names in the
//! agent's definition. Tools can be added and removed at any time (an MCP server may add one), so a view queries
//! the registry each time instead of copying it.

mod configured;
mod view;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::arguments::Parameters;
use crate::function::Function;
use crate::tool::{Tool, ToolContext, ToolDeclaration};

pub use configured::ConfiguredTools;
pub(crate) use view::matches_any;
pub use view::{AdmittedCall, Selection, ToolView, tool_matches};

/// Maximum length of a name that all providers accept.
pub(crate) const NAME_CHARS: usize = 64;

/// All tools of a worker, by name. A clone refers to the same registry.
#[derive(Clone)]
pub struct Tools {
    shared: Arc<Shared>,
}

struct Shared {
    /// Code that holds this lock neither awaits nor panics.
    registry: RwLock<RegistryState>,
    /// The number of changes.
    revision: watch::Sender<u64>,
}

#[derive(Clone, Default)]
struct RegistryState {
    entries: BTreeMap<String, Entry>,
    sources: BTreeMap<String, SourceState>,
    /// Names and patterns whose calls are denied to all agents.
    blocked: Vec<String>,
    /// Names and patterns that the configuration denies, which can change.
    configured_blocked: Vec<String>,
}

/// A registered tool.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) tool: Arc<dyn Tool>,
    pub(crate) parameters: Arc<Parameters>,
    /// The source that may remove it.
    source: Option<String>,
}

/// A source: a set of tools that are added and removed together.
#[derive(Clone, Default)]
struct SourceState {
    /// The prefix of its tools' names.
    prefix: String,
    /// Whether it has listed its tools.
    reported: bool,
    /// The reasons why some of its tools are not used.
    problems: Vec<String>,
}

/// Errors of the registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolsError {
    /// Two tools have the same name.
    #[error("tool {name} already exists")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A name that models do not accept.
    #[error("invalid tool name {name:?}: use letters, digits, _ and -, at most {NAME_CHARS}")]
    Name {
        /// The name.
        name: String,
    },
    /// An invalid or unsupported schema.
    #[error("the parameters of {name} are not a supported JSON Schema: {why}")]
    Schema {
        /// The tool.
        name: String,
        /// The error.
        why: String,
    },
    /// A limit, a rate, a retry or an approval that no tool can have.
    #[error("the tool {name} cannot be registered: {why}")]
    Terms {
        /// The tool.
        name: String,
        /// The error.
        why: String,
    },
    /// Two sources have the same name.
    #[error("tool source {name} already exists")]
    Source {
        /// The name.
        name: String,
    },
    /// A definition uses unknown names.
    #[error("unknown tool {}; available: {}", listed(.names), listed(.known))]
    Unknown {
        /// The names.
        names: Vec<String>,
        /// The available tools.
        known: Vec<String>,
    },
}

/// Maximum number of names in the text of an error.
const LISTED: usize = 50;

fn listed(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names if names.len() <= LISTED => names.join(", "),
        names => format!("{} and {} more", names[..LISTED].join(", "), names.len() - LISTED),
    }
}

impl ToolsError {
    /// A stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            ToolsError::Duplicate { .. } => "duplicate_tool",
            ToolsError::Name { .. } => "bad_tool_name",
            ToolsError::Schema { .. } => "bad_tool_schema",
            ToolsError::Terms { .. } => "bad_tool_terms",
            ToolsError::Source { .. } => "duplicate_source",
            ToolsError::Unknown { .. } => "unknown_tool",
        }
    }
}

impl Default for Tools {
    fn default() -> Tools {
        Tools::new()
    }
}

impl Tools {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Tools {
        let (revision, _) = watch::channel(0);
        Tools { shared: Arc::new(Shared { registry: RwLock::default(), revision }) }
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// The name already exists, or the name or the schema is invalid.
    pub fn add(&self, tool: impl Tool) -> Result<(), ToolsError> {
        let entry = Entry::new(Arc::new(tool), None)?;
        self.change(|registry| registry.insert(entry))
    }

    /// Adds a Rust function; the parameters are derived from `A`. It must run at most once, unless
    /// [`Function::effect`] says otherwise.
    ///
    /// # Errors
    /// As [`Tools::add`].
    pub fn function<A, F, R, T, E>(
        &self,
        name: &str,
        description: &str,
        function: F,
    ) -> Result<(), ToolsError>
    where
        A: DeserializeOwned + JsonSchema,
        F: Fn(A, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: Display,
    {
        self.add(Function::new(name, description, function))
    }

    /// The tool with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<dyn Tool>> {
        self.read(|registry| registry.entries.get(name).map(|entry| Arc::clone(&entry.tool)))
    }

    /// All names, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.read(|registry| registry.entries.keys().cloned().collect())
    }

    /// All declarations, sorted by name.
    #[must_use]
    pub fn declarations(&self) -> Vec<ToolDeclaration> {
        self.read(|registry| {
            registry.entries.values().map(|entry| entry.tool.declaration().clone()).collect()
        })
    }

    /// A counter that increases with every change of the tools.
    #[must_use]
    pub fn revision(&self) -> watch::Receiver<u64> {
        self.shared.revision.subscribe()
    }

    /// Announces a source and the prefix of its tools' names. Until it lists its tools, definitions may use any
    /// name with that prefix.
    ///
    /// # Errors
    /// A source with that name exists.
    pub fn announce(&self, source: &str, prefix: &str) -> Result<(), ToolsError> {
        self.change(|registry| {
            if registry.sources.contains_key(source) {
                return Err(ToolsError::Source { name: source.to_owned() });
            }
            let state = SourceState { prefix: prefix.to_owned(), ..SourceState::default() };
            registry.sources.insert(source.to_owned(), state);
            Ok(())
        })
    }

    /// Replaces a source's tools. Tools that cannot be added are skipped; the reasons are returned and stored.
    pub fn replace(&self, source: &str, tools: Vec<Arc<dyn Tool>>) -> Vec<String> {
        let mut problems = Vec::new();
        let mut entries = Vec::new();
        for tool in tools {
            match Entry::new(tool, Some(source.to_owned())) {
                Ok(entry) => entries.push(entry),
                Err(why) => problems.push(why.to_string()),
            }
        }
        self.change(|registry| {
            registry.entries.retain(|_, entry| entry.source.as_deref() != Some(source));
            for entry in entries {
                problems.extend(registry.insert(entry).err().map(|why| why.to_string()));
            }
            let state = registry.sources.entry(source.to_owned()).or_default();
            state.reported = true;
            state.problems.clone_from(&problems);
        });
        problems
    }

    /// Removes a source and its tools.
    pub fn withdraw(&self, source: &str) {
        self.change(|registry| {
            registry.entries.retain(|_, entry| entry.source.as_deref() != Some(source));
            registry.sources.remove(source);
        });
    }

    /// The reasons why some tools of sources are not used.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.read(|registry| {
            let sources = registry.sources.values();
            sources.flat_map(|source| source.problems.iter().cloned()).collect()
        })
    }

    fn read<T>(&self, look: impl FnOnce(&RegistryState) -> T) -> T {
        look(&self.shared.registry.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, change: impl FnOnce(&mut RegistryState) -> T) -> T {
        let changed =
            change(&mut self.shared.registry.write().unwrap_or_else(PoisonError::into_inner));
        self.shared.revision.send_modify(|revision| *revision += 1);
        changed
    }
}

impl RegistryState {
    fn insert(&mut self, entry: Entry) -> Result<(), ToolsError> {
        let name = entry.tool.declaration().name.clone();
        if self.entries.contains_key(&name) {
            return Err(ToolsError::Duplicate { name });
        }
        self.entries.insert(name, entry);
        Ok(())
    }

    /// Whether a source may still provide a name.
    fn may_come(&self, name: &str) -> bool {
        let mut waiting = self.sources.values().filter(|source| !source.reported);
        waiting.any(|source| name.starts_with(&source.prefix))
    }

    fn names(&self) -> BTreeSet<&str> {
        self.entries.keys().map(String::as_str).collect()
    }
}

impl Entry {
    fn new(tool: Arc<dyn Tool>, source: Option<String>) -> Result<Entry, ToolsError> {
        let ToolDeclaration { name, parameters, .. } = tool.declaration();
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > NAME_CHARS || !name.chars().all(fits) {
            return Err(ToolsError::Name { name: name.clone() });
        }
        let parameters = Parameters::compile(parameters)
            .map_err(|why| ToolsError::Schema { name: name.clone(), why })?;
        // A tool that cannot be registered must not replace one that is.
        if let Err(refusal) = tool.declaration().manifest().check_terms() {
            return Err(ToolsError::Terms { name: name.clone(), why: refusal.detail });
        }
        Ok(Entry { tool, parameters: Arc::new(parameters), source })
    }
}
