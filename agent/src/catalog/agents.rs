//! The catalog of agents: those of a folder, and the native ones. It reads, resolves and registers definitions; it
//! does not store registrations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use abide_client::{Abide, Error};
use abide_definitions::agent::AgentDefinition;
use abide_definitions::error::{DefinitionError, Position};
use abide_definitions::folder_texts;
use abide_definitions::guardrail::GuardrailFunctions;
use abide_definitions::middleware::Middleware;
use abide_definitions::prompt_source::{PromptStore, PromptStores};
use abide_programs::{Parser, Parsers};
use abide_tools::{BackendName, Tools};

use crate::agent_loop::{AgentLoop, AgentLoops};
use crate::catalog;
use crate::catalog::cycles::Delegations;
use crate::catalog::shared_setting::SharedSetting;
use crate::catalog::stored_prompts::StoredPrompts;
use crate::middleware::agent_middleware::{AgentMiddleware, RegisteredMiddleware};

/// The file of the configuration.
pub(crate) const CONFIG: &str = "abide.yaml";

/// A folder of definitions: `agents/*.{yaml,yml,md}`, `prompts/*.md` and `skills/*.md`.
pub struct Catalog {
    folder: PathBuf,
    tools: Tools,
    stores: PromptStores,
    /// The instructions of agents in a recording, for prompts that only another server has.
    recorded_prompts: BTreeMap<String, String>,
    guardrails: GuardrailFunctions,
    middleware: RegisteredMiddleware,
    loops: AgentLoops,
    parsers: Parsers,
    sandbox: SharedSetting<Option<BackendName>>,
    /// The middleware of all agents.
    deployment: SharedSetting<Vec<Middleware>>,
}

/// A file that is not a valid definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// The place in the file, if it is known.
    pub at: Option<Position>,
    /// The error.
    pub error: DefinitionError,
}

impl fmt::Display for Problem {
    /// `path:line:column: error`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if let Some(at) = self.at {
            write!(f, "{at}:")?;
        }
        write!(f, " {}", self.error)
    }
}

impl Problem {
    /// Returns a problem of the file `abide.yaml` of a folder.
    pub(crate) fn in_config(folder: &Path, error: DefinitionError) -> Problem {
        let path = folder.join(CONFIG);
        let text = std::fs::read_to_string(&path).ok();
        let at = text.map_or(error.position(), |text| error.place_in(&text));
        Problem { path, at, error }
    }
}

/// The definition of an agent in a folder, or why there is none.
#[derive(Clone, Debug)]
pub enum FoundAgent {
    /// It can be registered.
    Ready(Box<AgentDefinition>),
    /// The file of the agent is invalid.
    Invalid(Box<Problem>),
    /// No file defines the agent.
    Missing {
        /// The agents that lists show.
        known: Vec<String>,
        /// Whether a file of the folder is invalid.
        has_problems: bool,
    },
}

/// The content of the folder at one point in time.
#[derive(Debug, Default)]
pub(crate) struct CatalogSnapshot {
    /// All definitions, resolved and sorted by name, including the native ones.
    pub(crate) definitions: Vec<AgentDefinition>,
    /// The agents that each file defines: its own agent and its inline subagents.
    pub(crate) files: BTreeMap<PathBuf, BTreeSet<String>>,
    /// The file of each agent that is not native and not inline.
    pub(crate) sources: BTreeMap<String, PathBuf>,
    /// What is wrong in the files of the folder.
    pub(crate) problems: Vec<Problem>,
    /// The definitions of such files, as far as they can be parsed.
    pub(crate) refused: Vec<(PathBuf, AgentDefinition)>,
    /// The tools that stand for agents.
    pub(crate) agent_tools: BTreeSet<String>,
}

/// Modification time and size of the folder's files at the last check.
pub(crate) type Signature = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

impl Catalog {
    /// Creates a catalog of a folder, which may be absent. Definitions can use these tools.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, tools: Tools) -> Catalog {
        Catalog {
            folder: folder.into(),
            tools,
            stores: PromptStores::default(),
            recorded_prompts: BTreeMap::new(),
            guardrails: GuardrailFunctions::default(),
            middleware: RegisteredMiddleware::default(),
            loops: AgentLoops::default(),
            parsers: Parsers::default(),
            sandbox: SharedSetting::new(None),
            deployment: SharedSetting::new(Vec::new()),
        }
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sets the sandbox of the tools. Definitions that need another one are refused.
    #[must_use]
    pub fn sandbox(self, sandbox: Option<BackendName>) -> Catalog {
        self.sandbox.set(sandbox);
        self
    }

    /// Returns the sandbox of the tools.
    #[must_use]
    pub fn sandbox_name(&self) -> Option<BackendName> {
        *self.sandbox.get()
    }

    /// Returns the sandbox of the tools, as a setting that changes with the configuration.
    pub(crate) fn shared_sandbox(&self) -> SharedSetting<Option<BackendName>> {
        self.sandbox.clone()
    }

    /// Sets the middleware of all agents.
    #[must_use]
    pub(crate) fn deployment(self, middleware: Vec<Middleware>) -> Catalog {
        self.deployment.set(middleware);
        self
    }

    /// Sets the middleware of all agents to that of another catalog.
    #[must_use]
    pub fn deployment_of(self, other: &Catalog) -> Catalog {
        self.deployment(other.deployment.get().to_vec())
    }

    /// Returns the middleware of all agents, as a setting that changes with the configuration.
    pub(crate) fn shared_deployment(&self) -> SharedSetting<Vec<Middleware>> {
        self.deployment.clone()
    }

    /// Sets the store of `{store: NAME}`. Without this, it is the database of the runtime.
    #[must_use]
    pub fn store(mut self, store: impl PromptStore + 'static) -> Catalog {
        self.stores.store = Some(Arc::new(store));
        self
    }

    /// Takes the prompts of `{store: NAME}` from the prompts of a database, unless there is a store.
    #[must_use]
    pub fn prompts_of(mut self, abide: &Abide) -> Catalog {
        self.stores
            .store
            .get_or_insert_with(|| Arc::new(StoredPrompts::new(abide)) as Arc<dyn PromptStore>);
        self
    }

    /// Sets the store of `{mlflow: NAME}`.
    #[must_use]
    pub(crate) fn mlflow(mut self, store: Option<impl PromptStore + 'static>) -> Catalog {
        self.stores.mlflow = store.map(|store| Arc::new(store) as Arc<dyn PromptStore>);
        self
    }

    /// Sets the instructions of agents for prompts `{mlflow: NAME}`, in place of a store.
    #[must_use]
    pub(crate) fn recorded_prompts(mut self, instructions: BTreeMap<String, String>) -> Catalog {
        self.recorded_prompts = instructions;
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

    /// Adds middleware in Rust, which definitions name in `middleware`. The names of built-in middleware are taken:
    /// under one of them, it is never called.
    #[must_use]
    pub fn middleware(
        mut self,
        name: impl Into<String>,
        middleware: impl AgentMiddleware + 'static,
    ) -> Catalog {
        self.middleware.add(name.into(), Arc::new(middleware));
        self
    }

    /// Adds a loop in Rust, which definitions name in `loop`.
    #[must_use]
    pub fn agent_loop(mut self, name: impl Into<String>, agent_loop: impl AgentLoop) -> Catalog {
        self.loops.add(name, agent_loop);
        self
    }

    /// Takes these loops in place of its own.
    #[must_use]
    pub fn with_agent_loops(self, loops: AgentLoops) -> Catalog {
        Catalog { loops, ..self }
    }

    /// Returns the loops in Rust.
    pub(crate) fn agent_loops(&self) -> &AgentLoops {
        &self.loops
    }

    /// Adds a parser in Rust, which definitions name in `cli.parser`. The factory makes one for each run.
    #[must_use]
    pub fn parser<P: Parser + 'static>(
        mut self,
        name: impl Into<String>,
        factory: impl Fn() -> P + Send + Sync + 'static,
    ) -> Catalog {
        self.parsers.add(name, factory);
        self
    }

    /// Takes the guardrails, the middleware, the loops and the parsers of another catalog.
    pub(crate) fn with_guardrails_of(mut self, other: &Catalog) -> Catalog {
        self.parsers = other.parsers.clone();
        self.loops = other.loops.clone();
        self.guardrails = other.guardrails.clone();
        self.middleware = other.middleware.clone();
        self
    }

    /// Returns the guardrails in Rust.
    pub(crate) fn guardrails(&self) -> &GuardrailFunctions {
        &self.guardrails
    }

    /// Returns the middleware in Rust.
    pub(crate) fn registered_middleware(&self) -> &RegisteredMiddleware {
        &self.middleware
    }

    /// Returns the tools that definitions can use.
    pub(crate) fn tools(&self) -> &Tools {
        &self.tools
    }

    /// Returns the parsers in Rust.
    pub(crate) fn parsers(&self) -> &Parsers {
        &self.parsers
    }

    /// Returns all definitions, resolved and sorted by name, and the invalid files. A definition in a file overrides
    /// the native agent of the same name.
    ///
    /// It reads files and waits for stores of prompts: call it outside of async tasks.
    #[must_use]
    pub fn read(&self) -> (Vec<AgentDefinition>, Vec<Problem>) {
        let CatalogSnapshot { definitions, problems, .. } = self.reading();
        (definitions, problems)
    }

    /// Finds the definition of an agent, also that of an inline subagent. It reads as [`Catalog::read`] does.
    #[must_use]
    pub fn find(&self, agent: &str) -> FoundAgent {
        let reading = self.reading();
        let mut known = Vec::new();
        for definition in reading.definitions.iter().flat_map(AgentDefinition::with_inline) {
            if definition.name == agent {
                return FoundAgent::Ready(Box::new(definition));
            }
            if !definition.hidden {
                known.push(definition.name);
            }
        }
        let config = self.folder.join(CONFIG);
        let invalid = reading.problems.iter().filter(|problem| problem.path != config).find(|it| {
            let parsed = reading.refused.iter().filter(|(path, _)| *path == it.path);
            let parsed = parsed.flat_map(|(_, definition)| names_of(definition));
            parsed.chain(name_in(&it.path)).any(|name| name == agent)
        });
        match invalid {
            Some(problem) => FoundAgent::Invalid(Box::new(problem.clone())),
            None => FoundAgent::Missing { known, has_problems: !reading.problems.is_empty() },
        }
    }

    /// Returns `true` if a definition of the folder has a prompt `{store: …}`, so that a check needs a database.
    #[must_use]
    pub fn uses_stored_prompts(&self) -> bool {
        let read = self.files().into_iter().filter_map(|path| read(&self.folder, &path).ok());
        read.into_iter().any(|definition| definition.uses_stored_prompt())
    }

    /// Returns the content of the folder, read on a thread that may block.
    ///
    /// # Errors
    /// [`Error::Closed`] if the folder could not be read to the end: its reading panicked, or the process ends.
    pub(crate) async fn read_in_background(self: &Arc<Catalog>) -> Result<CatalogSnapshot, Error> {
        let catalog = Arc::clone(self);
        // A thread that runs tasks must not wait for a store of prompts: it may be the only one that drives its connection.
        let reading = tokio::task::spawn_blocking(move || catalog.reading());
        reading.await.map_err(|_| Error::Closed)
    }

    /// As [`Catalog::read`], with the agents of each file.
    pub(crate) fn reading(&self) -> CatalogSnapshot {
        let mut reading = CatalogSnapshot::default();
        let mut valid: BTreeMap<String, Vec<(PathBuf, AgentDefinition)>> = BTreeMap::new();
        let files: Vec<_> =
            self.files().into_iter().map(|path| (read(&self.folder, &path), path)).collect();
        let mut of_agents = AgentToolNames::default();
        let claimed: Vec<_> = files
            .into_iter()
            .map(|(read, path)| (read.and_then(|it| of_agents.claim(&it).map(|()| it)), path))
            .collect();
        let of_agents = of_agents.names();
        for (read, path) in claimed {
            let read = read.and_then(|definition| {
                let parsed = definition.clone();
                self.ready_with(definition, &of_agents)
                    .inspect_err(|_| reading.refused.push((path.clone(), parsed)))
            });
            match read {
                Ok(definition) => {
                    valid.entry(definition.name.clone()).or_default().push((path, definition));
                }
                Err(error) => reading.problems.push(self.problem(path, error)),
            }
        }
        reading.agent_tools = of_agents;
        let of_all = self.check_deployment(&self.deployment.get()).err();
        reading.problems.extend(of_all.map(|error| self.problem_of_config(error)));
        let mut found = BTreeMap::new();
        for native in catalog::native::definitions(&self.tools.declarations()) {
            if let Ok(native) = self.ready_with(native, &BTreeSet::new()) {
                found.insert(native.name.clone(), native);
            }
        }
        for (name, mut files) in valid {
            match (files.pop(), &files[..]) {
                (Some((path, definition)), []) => {
                    reading.files.insert(path.clone(), names_of(&definition));
                    reading.sources.insert(name.clone(), path);
                    found.insert(name, definition);
                }
                (last, others) => {
                    // None of them is used: any choice would depend on the names of the files.
                    let paths = others.iter().chain(&last).map(|(path, _)| path);
                    reading.problems.extend(duplicates(&name, &paths.collect::<Vec<_>>()));
                }
            }
        }
        self.refuse_cycles(&mut reading, found.into_values().collect());
        reading.problems.sort_by(|one, other| one.path.cmp(&other.path));
        reading
    }

    /// Keeps the definitions that are not part of a delegation cycle. Files of the others are reported as problems.
    fn refuse_cycles(&self, reading: &mut CatalogSnapshot, definitions: Vec<AgentDefinition>) {
        let delegations = Delegations::from_definitions(&definitions);
        for definition in definitions {
            // Inline subagents count as well.
            let cycle = names_of(&definition).iter().find_map(|name| delegations.cycle_of(name));
            match (cycle, reading.sources.get(&definition.name).cloned()) {
                (None, _) => reading.definitions.push(definition),
                (Some(cycle), Some(path)) => {
                    reading.files.remove(&path);
                    reading.problems.push(self.problem(path, DefinitionError::Cycle(cycle)));
                }
                (Some(_), None) => {}
            }
        }
    }

    /// Returns the problem of a file, with the place that the error concerns.
    pub(crate) fn problem(&self, path: PathBuf, error: DefinitionError) -> Problem {
        let below = path.strip_prefix(&self.folder).unwrap_or(&path);
        let text = folder_texts::read(&self.folder, below, &ENDINGS).ok();
        let at = text.map_or(error.position(), |text| error.place_in(&text));
        Problem { path, at, error }
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

    /// Like [`Catalog::ready`], if there are also these tools that stand for agents.
    fn ready_with(
        &self,
        definition: AgentDefinition,
        of_agents: &BTreeSet<String>,
    ) -> Result<AgentDefinition, DefinitionError> {
        let definition = definition
            .with_recorded_prompts(&self.recorded_prompts)
            .resolved(&self.folder, &self.stores)?
            .with_deployment(&self.deployment.get());
        definition.check_tools_with(&self.tools, of_agents)?;
        definition.check_guardrails(&self.guardrails)?;
        self.middleware.check(&definition)?;
        self.loops.check(&definition)?;
        definition.check_parsers(&self.parsers)?;
        definition.check_sandbox(self.sandbox_name())?;
        Ok(definition)
    }

    /// Everything that a definition names and that does not exist: unlike [`Catalog::ready`], not only the first such
    /// error.
    pub(crate) fn missing_parts(
        &self,
        definition: &AgentDefinition,
        of_agents: &BTreeSet<String>,
    ) -> Vec<DefinitionError> {
        let mut errors = Vec::new();
        for part in definition.with_inline() {
            let prompt = part.system_prompt.as_ref();
            let checks = [
                prompt.map_or(Ok(()), |it| it.text(&self.folder, &self.stores).map(drop)),
                part.check_tools_with(&self.tools, of_agents),
                part.check_guardrails(&self.guardrails),
                self.middleware.check(&part),
                self.loops.check(&part),
                part.check_parsers(&self.parsers),
                part.check_sandbox(self.sandbox_name()),
            ];
            errors.extend(checks.into_iter().filter_map(Result::err));
        }
        errors
    }

    /// Checks the middleware of all agents.
    pub(crate) fn check_deployment(
        &self,
        middleware: &[Middleware],
    ) -> Result<(), DefinitionError> {
        let wrong = middleware.iter().find_map(|rule| Some((rule.name(), rule.check().err()?)));
        if let Some((name, why)) = wrong {
            let code = "contradiction";
            let subject = name.to_owned();
            return Err(DefinitionError::Config { code, why, subject });
        }
        let of_all =
            AgentDefinition { middleware: middleware.to_vec(), ..AgentDefinition::default() };
        of_all.check_guardrails(&self.guardrails)?;
        self.middleware.check(&of_all)
    }

    /// Returns the tools that rules of middleware name and that do not exist. Such a rule has no effect.
    pub(crate) fn unknown_rules(&self, definition: &AgentDefinition) -> Vec<DefinitionError> {
        let parts = definition.with_inline();
        parts.iter().filter_map(|part| part.check_rules(&self.tools).err()).collect()
    }

    /// Registers definitions. An unchanged definition creates no new revision.
    ///
    /// # Errors
    /// [`Error`] of the call.
    pub async fn register(abide: &Abide, definitions: &[AgentDefinition]) -> Result<(), Error> {
        // Subagents come first: a definition is validated against its subagents as they are registered at that
        // time.
        let all: Vec<AgentDefinition> =
            definitions.iter().flat_map(AgentDefinition::with_inline).collect();
        for definition in Delegations::from_definitions(&all).sorted(&all) {
            abide.call(definition.to_register()).await?;
        }
        Ok(())
    }

    /// Returns the current state of the files, to detect changes.
    pub(crate) fn signature(&self) -> Signature {
        let mut all: Vec<PathBuf> = self.files();
        for below in ["prompts", "skills"] {
            all.extend(listed(&self.folder.join(below), &["md"]));
        }
        let output = all.into_iter().map(|path| {
            let meta = std::fs::metadata(&path).ok();
            let changed = meta.as_ref().and_then(|meta| meta.modified().ok());
            (path, (changed, meta.map_or(0, |meta| meta.len())))
        });
        output.collect()
    }

    /// Returns a problem of `abide.yaml`.
    pub(crate) fn problem_of_config(&self, error: DefinitionError) -> Problem {
        Problem::in_config(&self.folder, error)
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
        for agent in definition.with_inline() {
            for tool in agent.agent_tools() {
                if let Some(other) = self.0.insert(tool.name.clone(), agent.name.clone()) {
                    let tool = &tool.name;
                    let agent = &agent.name;
                    let why = if other == *agent {
                        format!(
                            "agent {agent} uses the tool name {tool} for both as_tool and as_handoff"
                        )
                    } else {
                        format!("agents {other} and {agent} both use the tool name {tool}")
                    };
                    return Err(DefinitionError::Contradiction(why));
                }
            }
        }
        Ok(())
    }

    fn names(self) -> BTreeSet<String> {
        self.0.into_keys().collect()
    }
}

/// File name extensions of definitions.
const ENDINGS: [&str; 3] = ["yaml", "yml", "md"];

/// Returns the agent of a file that may be invalid: its top-level `name`, or the name of the file.
pub(crate) fn name_in(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let named = text
        .lines()
        .find_map(|line| line.strip_prefix("name:"))
        .map(|name| name.split(" #").next().unwrap_or_default().trim().trim_matches(['"', '\'']))
        .filter(|name| !name.is_empty());
    named.or_else(|| path.file_stem()?.to_str()).map(str::to_owned)
}

/// Returns the problems of files that define an agent of the same name.
fn duplicates(name: &str, paths: &[&PathBuf]) -> Vec<Problem> {
    paths
        .iter()
        .map(|path| {
            let others = paths.iter().filter(|other| *other != path);
            let others: Vec<String> = others.map(|other| other.display().to_string()).collect();
            let why = format!("{} also defines agent {name}", others.join(" and "));
            let error = DefinitionError::Contradiction(why);
            Problem { path: path.to_path_buf(), at: None, error }
        })
        .collect()
}

/// Returns the agents that a definition creates.
pub(crate) fn names_of(definition: &AgentDefinition) -> BTreeSet<String> {
    definition.with_inline().into_iter().map(|it| it.name).collect()
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
    let below = path.strip_prefix(folder).unwrap_or(path);
    let text = folder_texts::read(folder, below, &ENDINGS).map_err(DefinitionError::of_own_file)?;
    let name = path.file_stem().and_then(|it| it.to_str()).unwrap_or_default();
    if path.extension().is_some_and(|it| it == "md") {
        return AgentDefinition::from_markdown(name, &text)?.expanded();
    }
    let mut definition = AgentDefinition::from_yaml(&text)?;
    if definition.name.is_empty() {
        definition.name = name.to_owned();
    }
    definition.expanded()
}

#[cfg(test)]
mod tests;
