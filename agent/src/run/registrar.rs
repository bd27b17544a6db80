//! Registers the tools of a runtime and the definitions of its folder, and registers them again when one of their sources has
//! changed: a file, a tool, or a stored prompt.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_client::Error;
use abide_client::arguments::RetireAgent;
use abide_definitions::agent::AgentDefinition;
use tokio::sync::watch;

use crate::catalog::agents::{
    CONFIG, Catalog, CatalogSnapshot, Problem, Signature, name_in, names_of,
};
use crate::catalog::project_reload::FolderChange;
use crate::delegation::composition::Composition;
use crate::run::context::RuntimeContext;
use crate::tools::registry;
use crate::{program, remote_agent, tools};

/// Registers tools and definitions.
pub(crate) struct Registrar {
    context: Arc<RuntimeContext>,
    catalog: Arc<Catalog>,
    /// The event of the last change of a stored prompt.
    prompts: AtomicI64,
    /// The last registration.
    registered: Mutex<RegisteredDefinitions>,
    /// The problem of the file of each agent that it does not register.
    unregistered: watch::Sender<BTreeMap<String, Problem>>,
}

/// The result of a registration.
pub(crate) struct Registration {
    /// The invalid files of the folder.
    pub(crate) problems: Vec<Problem>,
    /// What has changed since the last registration.
    pub(crate) change: Option<FolderChange>,
}

impl Registrar {
    pub(crate) fn new(context: Arc<RuntimeContext>, catalog: Arc<Catalog>) -> Registrar {
        Registrar {
            context,
            catalog,
            prompts: AtomicI64::new(0),
            registered: Mutex::default(),
            unregistered: watch::Sender::new(BTreeMap::new()),
        }
    }

    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Returns the agents whose files were invalid at the last registration, with the problem of the file.
    pub(crate) fn unregistered(&self) -> watch::Receiver<BTreeMap<String, Problem>> {
        self.unregistered.subscribe()
    }

    /// A stored prompt has changed with this event.
    pub(crate) fn prompt_changed(&self, seq: i64) {
        self.prompts.store(seq, Ordering::Relaxed);
    }

    /// Returns `true` if nothing has changed since the last registration, or if there was none.
    pub(crate) fn is_current(&self) -> bool {
        self.registered().of.as_ref().is_none_or(|of| *of == self.sources())
    }

    /// Registers the tools and the definitions. If the file of an agent was removed
    /// since the last call, the agent is retired: its active runs continue, and no new runs start. If a file can no
    /// longer be read, its agents stay as they are.
    ///
    /// # Errors
    /// [`Error`] of a call.
    pub(crate) async fn register(&self) -> Result<Registration, Error> {
        let abide = &self.context.abide;
        // Taken before anything is read, so that a concurrent change is detected at the next check.
        let of = Some(self.sources());
        let declared = self.context.tools.declarations();
        let questions = [
            program::approvals::declaration(),
            remote_agent::input::declaration(),
            tools::exchange::declaration(),
        ];
        for declaration in declared.into_iter().chain(questions) {
            abide.call(declaration.manifest()).await?;
        }
        for tool in registry::all() {
            if tool.is_reserved() || self.context.tools.get(tool.name()).is_none() {
                abide.call(tool.registration()).await?;
            }
        }
        let reading = self.catalog.read_in_background().await?;
        let unregistered = self.unregistered_by(&reading);
        let CatalogChanges { reading, gone, files, definitions } = self.changes(reading);
        reading.definitions.iter().for_each(|it| self.context.trusted_programs.learn(it));
        Catalog::register(abide, &reading.definitions).await?;
        // The tools that stand for agents: a run that is imported can have called them. A name that is taken fails the
        // runs of the agent.
        for definition in reading.definitions.iter().flat_map(AgentDefinition::with_inline) {
            drop(Composition::load(abide, &definition).await?);
        }
        for name in gone {
            match abide.call(RetireAgent::new(&name)).await {
                Ok(_) => tracing::info!(
                    name: "agent_retired",
                    agent = name,
                    "retired an agent: its file was removed"
                ),
                // The agent was never registered.
                Err(error) if error.code().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        let mut registered = self.registered();
        let change = FolderChange::between("agents", &registered.definitions, &definitions);
        // The first registration is not a change.
        let change = change.filter(|_| registered.of.is_some());
        *registered = RegisteredDefinitions { of, files, definitions };
        drop(registered);
        self.unregistered.send_replace(unregistered);
        Ok(Registration { problems: reading.problems, change })
    }

    /// Returns the problem of the file of each agent that cannot be registered again.
    fn unregistered_by(&self, reading: &CatalogSnapshot) -> BTreeMap<String, Problem> {
        let registered = self.registered();
        let config = self.catalog.folder().join(CONFIG);
        let mut unregistered = BTreeMap::new();
        for problem in reading.problems.iter().filter(|problem| problem.path != config) {
            let before = registered.files.get(&problem.path).into_iter().flatten().cloned();
            let parsed = reading.refused.iter().filter(|(path, _)| *path == problem.path);
            let parsed = parsed.flat_map(|(_, definition)| names_of(definition));
            for name in before.chain(parsed).chain(name_in(&problem.path)) {
                unregistered.insert(name, problem.clone());
            }
        }
        unregistered.retain(|name, _| !reading.files.values().any(|names| names.contains(name)));
        unregistered
    }

    /// Returns the folder's content, compared with the last registration.
    fn changes(&self, mut reading: CatalogSnapshot) -> CatalogChanges {
        let registered = self.registered();
        let before = &registered.files;
        let mut files = std::mem::take(&mut reading.files);
        let mut kept = BTreeSet::new();
        for Problem { path, .. } in &reading.problems {
            if let Some(names) = before.get(path) {
                kept.extend(names.iter().cloned());
                files.insert(path.clone(), names.clone());
            }
        }
        // A native agent must not replace an agent whose file is temporarily unreadable.
        reading.definitions.retain(|it| !it.native || !kept.contains(&it.name));
        let there: BTreeSet<&String> = files.values().flatten().collect();
        let is_native = |name: &String| reading.definitions.iter().any(|it| it.name == *name);
        let gone = before.values().flatten().filter(|it| !there.contains(it) && !is_native(it));
        let gone: BTreeSet<String> = gone.cloned().collect();
        let mut definitions = registered.definitions.clone();
        definitions.retain(|name, _| kept.contains(name));
        let read = reading.definitions.iter().map(|it| (it.name.clone(), it.clone()));
        definitions.extend(read);
        CatalogChanges { reading, gone, files, definitions }
    }

    /// Returns the current versions of everything that definitions depend on.
    fn sources(&self) -> DefinitionSources {
        let tools = *self.context.tools.revision().borrow();
        let prompts = self.prompts.load(Ordering::Relaxed);
        DefinitionSources { tools, prompts, files: self.catalog.signature() }
    }

    fn registered(&self) -> MutexGuard<'_, RegisteredDefinitions> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last registration.
#[derive(Default)]
struct RegisteredDefinitions {
    /// The versions it was based on; `None` before the first registration.
    of: Option<DefinitionSources>,
    /// The agents of each file, when the file was last readable.
    files: BTreeMap<PathBuf, BTreeSet<String>>,
    /// The definitions by name.
    definitions: BTreeMap<String, AgentDefinition>,
}

/// The versions of everything that definitions depend on.
#[derive(PartialEq)]
struct DefinitionSources {
    tools: u64,
    prompts: i64,
    files: Signature,
}

/// The folder's content, compared with the last registration.
struct CatalogChanges {
    reading: CatalogSnapshot,
    /// Agents that no file defines any more.
    gone: BTreeSet<String>,
    /// The agents of each file, when the file was last readable.
    files: BTreeMap<PathBuf, BTreeSet<String>>,
    /// The definitions that are registered now, by name.
    definitions: BTreeMap<String, AgentDefinition>,
}
