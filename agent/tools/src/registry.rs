//! Which tools there are, and which of them an agent may use.
//!
//! The registry is one for a worker; what an agent may use is a **view** of it, made of the names in its definition.
//! Tools come and go while it stands (an MCP server learns a new one), so a view is a question that is asked of the
//! registry anew each time, and not a copy.

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

pub(crate) use view::matches_any;
pub use view::{Admitted, Selection, ToolView};

/// The longest name that every provider takes.
pub(crate) const NAME_CHARS: usize = 64;

/// All tools of a worker, by name. A clone is the same registry.
#[derive(Clone)]
pub struct Tools {
    shared: Arc<Shared>,
}

struct Shared {
    /// Nothing is awaited and nothing can panic while it is held.
    stock: RwLock<Stock>,
    /// How often the stock has changed.
    revision: watch::Sender<u64>,
}

#[derive(Default)]
struct Stock {
    entries: BTreeMap<String, Entry>,
    sources: BTreeMap<String, SourceState>,
}

/// A tool, ready to be called.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) tool: Arc<dyn Tool>,
    pub(crate) parameters: Arc<Parameters>,
    /// The source that may take it back.
    source: Option<String>,
}

/// Something whose tools come and go together.
#[derive(Clone, Default)]
struct SourceState {
    /// What all of its tools' names begin with.
    prefix: String,
    /// Whether it has told which tools it has.
    told: bool,
    /// Tools of it that are left out, each with the reason.
    problems: Vec<String>,
}

/// Why the registry does not take or give something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolsError {
    /// Two tools of one name.
    #[error("there is already a tool {name}")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A name that models cannot be told.
    #[error("{name:?} is no name of a tool: letters, digits, _ and -, {NAME_CHARS} at most")]
    Name {
        /// The name.
        name: String,
    },
    /// A schema that is none.
    #[error("the parameters of {name} are no JSON Schema: {why}")]
    Schema {
        /// The tool.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Two sources of one name.
    #[error("there are already tools of a source {name}")]
    Source {
        /// The name.
        name: String,
    },
    /// Names that a definition uses and nothing bears.
    #[error("there is no tool {}; there are: {}", .names.join(", "), listed(.known))]
    Unknown {
        /// The names.
        names: Vec<String>,
        /// What there is.
        known: Vec<String>,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl ToolsError {
    /// A name that does not change, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            ToolsError::Duplicate { .. } => "duplicate_tool",
            ToolsError::Name { .. } => "bad_tool_name",
            ToolsError::Schema { .. } => "bad_tool_schema",
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
    /// A registry with nothing in it.
    #[must_use]
    pub fn new() -> Tools {
        let (revision, _) = watch::channel(0);
        Tools { shared: Arc::new(Shared { stock: RwLock::default(), revision }) }
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// There is one of its name, or its name or schema is none.
    pub fn add(&self, tool: impl Tool) -> Result<(), ToolsError> {
        let entry = Entry::of(Arc::new(tool), None)?;
        self.change(|stock| stock.insert(entry))
    }

    /// Adds a Rust function: its parameters are what `A` derives. It may not run twice, see [`Function::effect`].
    ///
    /// # Errors
    /// As of [`Tools::add`].
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

    /// The tool of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<dyn Tool>> {
        self.read(|stock| stock.entries.get(name).map(|entry| Arc::clone(&entry.tool)))
    }

    /// All names, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.read(|stock| stock.entries.keys().cloned().collect())
    }

    /// All declarations, by name.
    #[must_use]
    pub fn declarations(&self) -> Vec<ToolDeclaration> {
        self.read(|stock| {
            stock.entries.values().map(|entry| entry.tool.declaration().clone()).collect()
        })
    }

    /// A number that changes whenever the tools do, to be waited on.
    #[must_use]
    pub fn revision(&self) -> watch::Receiver<u64> {
        self.shared.revision.subscribe()
    }

    /// What an agent may use.
    ///
    /// # Errors
    /// It names what is not there, and cannot come from a source that has not told yet.
    pub fn view(&self, selection: Selection) -> Result<ToolView, ToolsError> {
        ToolView::of(self.clone(), selection)
    }

    /// Announces a source, whose tools' names will begin so: until it tells which it has, names that begin so may be
    /// used in definitions.
    ///
    /// # Errors
    /// There is a source of its name.
    pub fn announce(&self, source: &str, prefix: &str) -> Result<(), ToolsError> {
        self.change(|stock| {
            if stock.sources.contains_key(source) {
                return Err(ToolsError::Source { name: source.to_owned() });
            }
            let state = SourceState { prefix: prefix.to_owned(), ..SourceState::default() };
            stock.sources.insert(source.to_owned(), state);
            Ok(())
        })
    }

    /// Puts a source's tools in the place of those that it had. Tools that cannot be taken are left out, and the
    /// reasons are returned and kept.
    pub fn replace(&self, source: &str, tools: Vec<Arc<dyn Tool>>) -> Vec<String> {
        let mut problems = Vec::new();
        let mut entries = Vec::new();
        for tool in tools {
            match Entry::of(tool, Some(source.to_owned())) {
                Ok(entry) => entries.push(entry),
                Err(why) => problems.push(why.to_string()),
            }
        }
        self.change(|stock| {
            stock.entries.retain(|_, entry| entry.source.as_deref() != Some(source));
            for entry in entries {
                problems.extend(stock.insert(entry).err().map(|why| why.to_string()));
            }
            let state = stock.sources.entry(source.to_owned()).or_default();
            state.told = true;
            state.problems.clone_from(&problems);
        });
        problems
    }

    /// Takes a source and its tools back.
    pub fn withdraw(&self, source: &str) {
        self.change(|stock| {
            stock.entries.retain(|_, entry| entry.source.as_deref() != Some(source));
            stock.sources.remove(source);
        });
    }

    /// Tools of sources that are left out, each with the reason.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.read(|stock| {
            let sources = stock.sources.values();
            sources.flat_map(|source| source.problems.iter().cloned()).collect()
        })
    }

    fn read<T>(&self, look: impl FnOnce(&Stock) -> T) -> T {
        look(&self.shared.stock.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Stock) -> T) -> T {
        let changed =
            change(&mut self.shared.stock.write().unwrap_or_else(PoisonError::into_inner));
        self.shared.revision.send_modify(|revision| *revision += 1);
        changed
    }
}

impl Stock {
    fn insert(&mut self, entry: Entry) -> Result<(), ToolsError> {
        let name = entry.tool.declaration().name.clone();
        if self.entries.contains_key(&name) {
            return Err(ToolsError::Duplicate { name });
        }
        self.entries.insert(name, entry);
        Ok(())
    }

    /// Whether a name may yet come.
    fn may_come(&self, name: &str) -> bool {
        let mut waiting = self.sources.values().filter(|source| !source.told);
        waiting.any(|source| name.starts_with(&source.prefix))
    }

    fn names(&self) -> BTreeSet<&str> {
        self.entries.keys().map(String::as_str).collect()
    }
}

impl Entry {
    fn of(tool: Arc<dyn Tool>, source: Option<String>) -> Result<Entry, ToolsError> {
        let ToolDeclaration { name, parameters, .. } = tool.declaration();
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > NAME_CHARS || !name.chars().all(fits) {
            return Err(ToolsError::Name { name: name.clone() });
        }
        let parameters = Parameters::of(parameters)
            .map_err(|why| ToolsError::Schema { name: name.clone(), why })?;
        Ok(Entry { tool, parameters: Arc::new(parameters), source })
    }
}
