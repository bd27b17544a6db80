//! Which agents there are: those of a folder, and the native ones. It reads, resolves and registers;
//! what is registered is the database's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use abide_client::{Abide, Error};
use abide_tools::Tools;

use crate::cycles::Delegations;
use crate::definition::{AgentDefinition, DefinitionError, PromptStore, Subagent};
use crate::{native, texts};

/// A folder of definitions: `agents/*.{yaml,yml,md}`, with `prompts/*.md` and `skills/*.md` beside.
pub struct Catalog {
    folder: PathBuf,
    tools: Tools,
    store: Option<Box<dyn PromptStore>>,
}

/// A file that is no definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub error: DefinitionError,
}

/// What a folder says at a moment.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// All definitions, resolved, by name, the native ones too.
    pub(crate) definitions: Vec<AgentDefinition>,
    /// The agents that each file defines: its own, and those that it defines on the spot.
    pub(crate) files: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Files that are no definition.
    pub(crate) problems: Vec<Problem>,
}

/// What a folder's files were when they were last looked at.
pub(crate) type Signature = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

impl Catalog {
    /// Of a folder, which need not be there, over the tools that definitions may name.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, tools: Tools) -> Catalog {
        Catalog { folder: folder.into(), tools, store: None }
    }

    /// With prompts that are kept elsewhere.
    #[must_use]
    pub fn store(mut self, store: impl PromptStore + 'static) -> Catalog {
        self.store = Some(Box::new(store));
        self
    }

    /// All definitions, resolved, by name, and the files that are none. A file's agent goes before a native
    /// one of its name.
    #[must_use]
    pub fn read(&self) -> (Vec<AgentDefinition>, Vec<Problem>) {
        let Reading { definitions, problems, .. } = self.reading();
        (definitions, problems)
    }

    /// The same, and which file says what.
    pub(crate) fn reading(&self) -> Reading {
        let mut found = BTreeMap::new();
        for native in native::definitions(&self.tools.declarations()) {
            if let Ok(native) = self.ready(native) {
                found.insert(native.name.clone(), native);
            }
        }
        let mut reading = Reading::default();
        let mut taken: BTreeMap<String, PathBuf> = BTreeMap::new();
        for path in self.files() {
            let read = read(&self.folder, &path).and_then(|definition| self.ready(definition));
            match read {
                Ok(definition) => match taken.insert(definition.name.clone(), path.clone()) {
                    None => {
                        reading.files.insert(path, names_of(&definition));
                        found.insert(definition.name.clone(), definition);
                    }
                    Some(other) => {
                        let why = format!("{} defines {} too", other.display(), definition.name);
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

    /// A definition with its texts, held to the tools that there are.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn ready(&self, definition: AgentDefinition) -> Result<AgentDefinition, DefinitionError> {
        let definition = definition.resolved(&self.folder, self.store.as_deref())?;
        definition.check_tools(&self.tools)?;
        Ok(definition)
    }

    /// Registers definitions; those that are as they were make no new revision.
    ///
    /// # Errors
    /// [`Error`] of the call.
    pub async fn register(abide: &Abide, definitions: &[AgentDefinition]) -> Result<(), Error> {
        // Those that are delegated to come first: a definition is held to what its subagents are by then.
        for definition in Delegations::of(definitions).sorted(definitions) {
            for subagent in &definition.subagents {
                if let Subagent::Inline(inline) = subagent {
                    abide.register_agent(inline.to_register()).await?;
                }
            }
            abide.register_agent(definition.to_register()).await?;
        }
        Ok(())
    }

    /// What the files are now, to see whether they have changed.
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

/// How files of definitions end.
const ENDINGS: [&str; 3] = ["yaml", "yml", "md"];

/// Keeps the definitions that delegate in no circle; the files of the others are problems.
fn refuse_cycles(
    reading: &mut Reading,
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

/// The agents that a definition makes.
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
    let text = texts::read(folder, path.strip_prefix(folder).unwrap_or(path), &ENDINGS)?;
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
