//! The catalog of agents: those of a folder, and the native ones. It reads, resolves and registers definitions; it
//! does not store registrations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use abide_client::{Abide, Error};
use abide_tools::Tools;

use crate::cycles::Delegations;
use crate::definition::{AgentDefinition, PromptStore, Subagent};
use crate::definition_error::DefinitionError;
use crate::guardrail::GuardrailFunctions;
use crate::{folder_texts, native};

/// A folder of definitions: `agents/*.{yaml,yml,md}`, `prompts/*.md` and `skills/*.md`.
pub struct Catalog {
    folder: PathBuf,
    tools: Tools,
    store: Option<Box<dyn PromptStore>>,
    guardrails: GuardrailFunctions,
}

/// A file that is not a valid definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// The error.
    pub error: DefinitionError,
}

/// The content of the folder at one point in time.
#[derive(Debug, Default)]
pub(crate) struct CatalogSnapshot {
    /// All definitions, resolved and sorted by name, including the native ones.
    pub(crate) definitions: Vec<AgentDefinition>,
    /// The agents that each file defines: its own agent and its inline subagents.
    pub(crate) files: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Files that are not valid definitions.
    pub(crate) problems: Vec<Problem>,
}

/// Modification time and size of the folder's files at the last check.
pub(crate) type Signature = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

impl Catalog {
    /// A catalog of a folder, which may be absent. Definitions can use these tools.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, tools: Tools) -> Catalog {
        Catalog {
            folder: folder.into(),
            tools,
            store: None,
            guardrails: GuardrailFunctions::default(),
        }
    }

    /// Adds a prompt store.
    #[must_use]
    pub fn store(mut self, store: impl PromptStore + 'static) -> Catalog {
        self.store = Some(Box::new(store));
        self
    }

    /// Adds a guardrail in Rust, which definitions name in `check`. The function returns an error for a text that is
    /// not allowed. It must not block.
    #[must_use]
    pub fn guardrail(
        mut self,
        name: impl Into<String>,
        function: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Catalog {
        self.guardrails.add(name.into(), Arc::new(function));
        self
    }

    /// The guardrails in Rust.
    pub(crate) fn guardrails(&self) -> &GuardrailFunctions {
        &self.guardrails
    }

    /// All definitions, resolved and sorted by name, and the invalid files. A definition in a file overrides the
    /// native agent of the same name.
    #[must_use]
    pub fn read(&self) -> (Vec<AgentDefinition>, Vec<Problem>) {
        let CatalogSnapshot { definitions, problems, .. } = self.reading();
        (definitions, problems)
    }

    /// As [`Catalog::read`], with the agents of each file.
    pub(crate) fn reading(&self) -> CatalogSnapshot {
        let mut found = BTreeMap::new();
        for native in native::definitions(&self.tools.declarations()) {
            if let Ok(native) = self.ready_with(native, &BTreeSet::new()) {
                found.insert(native.name.clone(), native);
            }
        }
        let mut reading = CatalogSnapshot::default();
        let mut taken: BTreeMap<String, PathBuf> = BTreeMap::new();
        let files: Vec<_> =
            self.files().into_iter().map(|path| (read(&self.folder, &path), path)).collect();
        let mut of_agents = AgentToolNames::default();
        let claimed: Vec<_> = files
            .into_iter()
            .map(|(read, path)| (read.and_then(|it| of_agents.claim(&it).map(|()| it)), path))
            .collect();
        let of_agents = of_agents.names();
        for (read, path) in claimed {
            let read = read.and_then(|definition| self.ready_with(definition, &of_agents));
            match read {
                Ok(definition) => match taken.insert(definition.name.clone(), path.clone()) {
                    None => {
                        reading.files.insert(path, names_of(&definition));
                        found.insert(definition.name.clone(), definition);
                    }
                    Some(other) => {
                        let why = format!("{} also defines {}", other.display(), definition.name);
                        let error = DefinitionError::Contradiction(why);
                        reading.problems.push(Problem { path, error });
                    }
                },
                Err(error) => reading.problems.push(Problem { path, error }),
            }
        }
        let definitions: Vec<AgentDefinition> = found.into_values().collect();
        refuse_cycles(&mut reading, definitions, &taken);
        reading
    }

    /// Resolves the texts of a definition and checks it against the available tools.
    ///
    /// # Errors
    /// The definition is invalid.
    pub fn ready(&self, definition: AgentDefinition) -> Result<AgentDefinition, DefinitionError> {
        let mut of_agents = AgentToolNames::default();
        for path in self.files() {
            let read = read(&self.folder, &path).ok().filter(|it| it.name != definition.name);
            // A conflict within the folder is reported with the folder.
            read.map(|it| of_agents.claim(&it)).transpose().unwrap_or_default();
        }
        of_agents.claim(&definition)?;
        self.ready_with(definition, &of_agents.names())
    }

    /// The same if there are also these tools that stand for agents.
    fn ready_with(
        &self,
        definition: AgentDefinition,
        of_agents: &BTreeSet<String>,
    ) -> Result<AgentDefinition, DefinitionError> {
        let definition = definition.resolved(&self.folder, self.store.as_deref())?;
        definition.check_tools_with(&self.tools, of_agents)?;
        definition.check_guardrails(&self.guardrails)?;
        Ok(definition)
    }

    /// Registers definitions. An unchanged definition creates no new revision.
    ///
    /// # Errors
    /// [`Error`] of the call.
    pub async fn register(abide: &Abide, definitions: &[AgentDefinition]) -> Result<(), Error> {
        // Subagents come first: a definition is validated against its subagents as they are registered at that
        // time.
        for definition in Delegations::of(definitions).sorted(definitions) {
            for subagent in &definition.subagents {
                if let Subagent::Inline(inline) = subagent {
                    abide.call(inline.to_register()).await?;
                }
            }
            abide.call(definition.to_register()).await?;
        }
        Ok(())
    }

    /// The current state of the files, to detect changes.
    pub(crate) fn signature(&self) -> Signature {
        let mut all: Vec<PathBuf> = self.files();
        for below in ["prompts", "skills"] {
            all.extend(listed(&self.folder.join(below), &["md"]));
        }
        let told = all.into_iter().map(|path| {
            let meta = std::fs::metadata(&path).ok();
            let changed = meta.as_ref().and_then(|meta| meta.modified().ok());
            (path, (changed, meta.map_or(0, |meta| meta.len())))
        });
        told.collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        listed(&self.folder.join("agents"), &ENDINGS)
    }
}

/// The tools that stand for the agents of a folder. Two agents cannot be the same tool.
#[derive(Default)]
struct AgentToolNames(BTreeMap<String, String>);

impl AgentToolNames {
    fn claim(&mut self, definition: &AgentDefinition) -> Result<(), DefinitionError> {
        for tool in definition.agent_tools() {
            if let Some(other) = self.0.insert(tool.name.clone(), definition.name.clone()) {
                let (tool, agent) = (&tool.name, &definition.name);
                let why = format!("agents {other} and {agent} are both the tool {tool}");
                return Err(DefinitionError::Contradiction(why));
            }
        }
        definition.subagents.iter().try_for_each(|subagent| match subagent {
            Subagent::Inline(inline) => self.claim(inline),
            Subagent::Named(_) => Ok(()),
        })
    }

    fn names(self) -> BTreeSet<String> {
        self.0.into_keys().collect()
    }
}

/// File name extensions of definitions.
const ENDINGS: [&str; 3] = ["yaml", "yml", "md"];

/// Keeps the definitions that are not part of a delegation cycle. Files of the others are reported as problems.
fn refuse_cycles(
    reading: &mut CatalogSnapshot,
    definitions: Vec<AgentDefinition>,
    files: &BTreeMap<String, PathBuf>,
) {
    let delegations = Delegations::of(&definitions);
    let cycle = |definition: &AgentDefinition| {
        // Inline subagents count as well.
        let mut names = names_of(definition).into_iter();
        names.find_map(|name| Some(delegations.cycle_of(&name)?.join(" → ")))
    };
    let cycles: Vec<Option<String>> = definitions.iter().map(cycle).collect();
    for (definition, cycle) in definitions.into_iter().zip(cycles) {
        match (cycle, files.get(&definition.name)) {
            (None, _) => reading.definitions.push(definition),
            (Some(cycle), Some(path)) => {
                reading.files.remove(path);
                let error = DefinitionError::Cycle(cycle);
                reading.problems.push(Problem { path: path.clone(), error });
            }
            (Some(_), None) => {}
        }
    }
}

/// The agents that a definition creates.
pub(crate) fn names_of(definition: &AgentDefinition) -> BTreeSet<String> {
    let inline = definition.subagents.iter().filter_map(|subagent| match subagent {
        Subagent::Inline(inline) => Some(inline.name.clone()),
        Subagent::Named(_) => None,
    });
    inline.chain([definition.name.clone()]).collect()
}

fn listed(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension().and_then(|it| it.to_str()).is_some_and(|it| endings.contains(&it))
        })
        .collect();
    paths.sort();
    paths
}

fn read(folder: &Path, path: &Path) -> Result<AgentDefinition, DefinitionError> {
    let text = folder_texts::read(folder, path.strip_prefix(folder).unwrap_or(path), &ENDINGS)?;
    let name = path.file_stem().and_then(|it| it.to_str()).unwrap_or_default();
    if path.extension().is_some_and(|it| it == "md") {
        return AgentDefinition::from_markdown(name, &text);
    }
    let mut definition = AgentDefinition::from_yaml(&text)?;
    if definition.name.is_empty() {
        definition.name = name.to_owned();
    }
    Ok(definition)
}

#[cfg(test)]
mod tests;
