//! Finds missing requirements of the definitions of a folder: subagents, models, programs, folders. The catalog
//! registers such definitions, because the missing part may appear later; `abide agent check` and the log report it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use abide_client::rows::AgentMode;
use abide_definitions::agent::{AgentDefinition, ModelChoice, Subagent};
use abide_definitions::error::DefinitionError;
use abide_definitions::literal_secret::literal_secrets;
use abide_definitions::middleware::Middleware;
use abide_models::{ModelSelection, Models, ModelsConfig, ResolveError};
use abide_programs::{CliConfig, EnvValue};
use abide_tools::{
    A2aConfig, BackendName, Environment, McpServer, Sandbox, SubprocessToolConfig, Tools,
    ToolsError, UnlistedName,
};

use crate::catalog::agents::{CONFIG, Catalog, CatalogSnapshot, Problem, name_in};
use crate::catalog::project::{self, AgentProject, ProjectSource};

impl Catalog {
    /// Everything in the folder that cannot work with these models and the environment of the programs: invalid
    /// files, and parts that definitions name and that do not exist. Sorted by file and place.
    #[must_use]
    pub fn check(&self, models: &Models, environment: &Environment) -> Vec<Problem> {
        let mut reading = self.reading();
        let read = std::mem::take(&mut reading.problems);
        let known = Known::new(&reading, &read);
        let one_each = read.into_iter().flat_map(|Problem { path, at, error }| {
            let all = split_unknown_names(error);
            // The place of the first one is known.
            let at = at.filter(|_| all.len() == 1);
            all.into_iter().map(move |error| (path.clone(), at, error))
        });
        let mut problems = Vec::new();
        for (path, at, error) in one_each {
            problems.push(match at {
                Some(_) => Problem { path, at, error },
                None => self.problem(path, error),
            });
        }
        let default = models.default_model().and_then(|default| models.resolve(default).err());
        problems.extend(
            default.as_ref().map(|error| self.problem_of_config(default_model_error(error))),
        );
        let of_all = AgentDefinition {
            middleware: self.shared_deployment().get().to_vec(),
            ..AgentDefinition::default()
        };
        // It has no model of its own.
        let of_all = model(&of_all, models, default.as_ref())
            .into_iter()
            .filter(|error| error.code() != "no_model")
            .chain(of_all.check_rules(self.tools()).err());
        problems.extend(
            of_all.flat_map(split_unknown_names).map(|error| self.problem_of_config(error)),
        );
        let ready = reading
            .definitions
            .iter()
            .filter_map(|it| Some((reading.sources.get(&it.name)?, it, true)));
        let refused = reading.refused.iter().map(|(path, definition)| (path, definition, false));
        for (path, definition, is_ready) in ready.chain(refused) {
            let mut errors = if is_ready {
                Vec::new()
            } else {
                self.missing_parts(definition, &reading.agent_tools)
            };
            errors.extend(self.unknown_rules(definition));
            for part in definition.with_inline() {
                errors.extend(subagents(&part, &known));
                errors.extend(secrets_of(&part));
                match (&part.cli, &part.a2a) {
                    (Some(cli), _) => errors.extend(program(cli, environment)),
                    (None, Some(a2a)) => errors.extend(remote_agent(a2a, environment)),
                    (None, None) => errors.extend(model(&part, models, default.as_ref())),
                }
            }
            for error in errors.into_iter().flat_map(split_unknown_names) {
                let problem = self.problem(path.clone(), error);
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
        problems.sort_by(|one, other| (&one.path, one.at).cmp(&(&other.path, other.at)));
        problems
    }
}

impl Catalog {
    /// Returns the problems that concern runs of these agents: those of their files, of the files of the agents that
    /// they can delegate to, and of `abide.yaml`.
    #[must_use]
    pub fn concerning(&self, agents: &[&str], problems: &[Problem]) -> Vec<Problem> {
        let reading = self.reading();
        let parsed = reading.definitions.iter().chain(reading.refused.iter().map(|(_, it)| it));
        let parts: Vec<AgentDefinition> = parsed.flat_map(AgentDefinition::with_inline).collect();
        let mut concerned: BTreeSet<String> = BTreeSet::new();
        let mut next: Vec<String> = agents.iter().map(|name| (*name).to_owned()).collect();
        while let Some(name) = next.pop() {
            for part in parts.iter().filter(|part| part.name == name) {
                next.extend(part.subagents.iter().map(|subagent| match subagent {
                    Subagent::Named(name) => name.clone(),
                    Subagent::Inline(part) => part.name.clone(),
                }));
            }
            next.retain(|name| !concerned.contains(name));
            concerned.insert(name);
        }
        let is_concerned = |path: &Path| {
            let ready = reading.files.get(path).into_iter().flatten().cloned();
            let refused = reading.refused.iter().filter(|(refused, _)| refused == path);
            let refused = refused.map(|(_, definition)| definition.name.clone());
            ready.chain(refused).chain(name_in(path)).any(|name| concerned.contains(&name))
        };
        let kept = problems.iter().filter(|it| it.path.ends_with(CONFIG) || is_concerned(&it.path));
        kept.cloned().collect()
    }
}

/// Returns the errors of the definitions of a folder whose `abide.yaml` cannot be used: those that no model, tool or
/// sandbox concerns.
#[must_use]
pub fn check_definitions(folder: &Path, environment: &Environment) -> Vec<Problem> {
    let Ok(models) = project::models(ModelsConfig::default(), folder, environment) else {
        return Vec::new();
    };
    let mut problems = Catalog::new(folder, Tools::new()).check(&models, environment);
    problems.retain(|problem| {
        let error = &problem.error;
        let needs_config = matches!(
            error,
            DefinitionError::Tools(_)
                | DefinitionError::Model { .. }
                | DefinitionError::Sandbox { .. }
                | DefinitionError::Config { .. }
        );
        !needs_config && !problem.path.ends_with(CONFIG)
    });
    problems
}

impl AgentProject {
    /// Returns the secrets that `abide.yaml` has in plain text.
    #[must_use]
    pub fn literal_secrets(&self) -> Vec<Problem> {
        let sections = self.source.sections.iter();
        let found = sections.flat_map(|(name, section)| literal_secrets(name, section));
        found.map(|error| self.catalog.problem_of_config(error)).collect()
    }

    /// Returns the names in definitions of MCP servers that are those of none of their tools: what they were meant to
    /// restrict is not restricted.
    #[must_use]
    pub fn unlisted_mcp_tools(&self) -> Vec<Problem> {
        let unlisted = self.servers.iter().flat_map(McpServer::unlisted);
        unlisted
            .map(|UnlistedName { name, why }| {
                let error = DefinitionError::Config { code: "unknown_tool", why, subject: name };
                self.catalog.problem_of_config(error)
            })
            .collect()
    }

    /// Returns the names in `mcp.reducers` that are none of these.
    #[must_use]
    pub fn unknown_reducers(&self, known: &[String]) -> Vec<Problem> {
        let unknown = self.mcp.reducers.iter().filter(|name| !known.contains(name));
        unknown
            .map(|name| {
                let error = DefinitionError::Reducer { name: name.clone(), known: known.to_vec() };
                self.catalog.problem_of_config(error)
            })
            .collect()
    }

    /// Returns the error of a model of an agent whose key is missing: its runs would fail at their first request.
    #[must_use]
    pub fn missing_key(&self, agent: &AgentDefinition) -> Option<DefinitionError> {
        if agent.cli.is_some() || agent.a2a.is_some() || agent.agent_loop.is_some() {
            // It may ask no model.
            return None;
        }
        let errors = model(agent, &self.models, None);
        errors.into_iter().find(|error| error.code() == "key_missing")
    }

    /// Returns the programs of `abide.yaml` that do not exist on this machine, or whose folder does not.
    #[must_use]
    pub fn missing_programs(&self) -> Vec<Problem> {
        missing_programs(&self.source, self.sandbox.as_ref(), &self.catalog)
    }
}

/// Returns the programs of a configuration that do not exist on this machine, or whose folder does not.
pub(crate) fn missing_programs(
    source: &ProjectSource,
    sandbox: Option<&Sandbox>,
    catalog: &Catalog,
) -> Vec<Problem> {
    let backend = sandbox.map(Sandbox::backend);
    // The image has programs of its own.
    if backend == Some(BackendName::Docker) {
        return Vec::new();
    }
    let section = source.sections.get("programs").cloned().unwrap_or_default();
    let programs: Vec<SubprocessToolConfig> = serde_json::from_value(section).unwrap_or_default();
    let missing_folders = programs.iter().filter_map(|it| {
        // In a sandbox a folder is one of the workspace, which a run can make.
        let folder = it.working_dir.as_ref().filter(|it| backend.is_none() && !it.is_dir())?;
        let subject = folder.display().to_string();
        let why = format!("there is no folder {subject} for the tool {}", it.name);
        Some(DefinitionError::Program { code: "missing_folder", why, subject })
    });
    let missing_programs = programs
        .iter()
        .filter(|it| {
            let name = it.command.first().map_or("", String::as_str);
            // A relative path is one of the workspace.
            let is_of_sandbox = backend.is_some() && name.contains('/') && !name.starts_with('/');
            !is_of_sandbox && !exists(name, it.working_dir.as_deref(), &source.environment)
        })
        .map(|it| {
            let program = it.command.first().map_or("", String::as_str);
            let why = format!("there is no program {program:?} for the tool {}", it.name);
            let subject = program.to_owned();
            DefinitionError::Program { code: "program_not_found", why, subject }
        });
    missing_folders.chain(missing_programs).map(|error| catalog.problem_of_config(error)).collect()
}

/// One error for each unknown name, so that each has its place.
fn split_unknown_names(error: DefinitionError) -> Vec<DefinitionError> {
    match error {
        DefinitionError::Tools(ToolsError::Unknown { mut names, known }) => {
            names.sort();
            names.dedup();
            names
                .into_iter()
                .map(|name| ToolsError::Unknown { names: vec![name], known: known.clone() }.into())
                .collect()
        }
        error => vec![error],
    }
}

/// The agents that definitions can name.
struct Known<'a> {
    modes: BTreeMap<&'a str, AgentMode>,
    /// The names of files that cannot be parsed. Their own error is enough.
    unreadable: BTreeSet<String>,
}

impl<'a> Known<'a> {
    fn new(reading: &'a CatalogSnapshot, problems: &[Problem]) -> Known<'a> {
        let refused = reading.refused.iter().map(|(_, definition)| definition);
        let all = reading.definitions.iter().chain(refused);
        let stems = problems.iter().filter_map(|it| it.path.file_stem()?.to_str());
        Known {
            modes: all.map(|it| (it.name.as_str(), it.mode)).collect(),
            unreadable: stems.map(str::to_owned).collect(),
        }
    }
}

/// Why the configured default model cannot be used.
fn default_model_error(error: &ResolveError) -> DefinitionError {
    match model_error(error) {
        DefinitionError::Model { code, why, wanted, known } => {
            DefinitionError::Model { code, why: format!("models.default: {why}"), wanted, known }
        }
        other => other,
    }
}

/// Why the models of an agent cannot be used: its own, its fallbacks, and those of its guardrails. The error of the default, which an agent
/// without a model of its own has, is reported once.
fn model(
    definition: &AgentDefinition,
    models: &Models,
    default_error: Option<&ResolveError>,
) -> Vec<DefinitionError> {
    let config = &definition.config;
    let own = ModelChoice { provider: config.provider.clone(), model: config.model.clone() };
    let rules = definition.middleware.iter().filter_map(Middleware::guardrail);
    let judges = rules.filter_map(|rule| rule.verdict.as_ref());
    let fallbacks = definition.middleware.iter().filter_map(|it| match it {
        Middleware::ModelFallback(fallback) => Some(&fallback.models),
        _ => None,
    });
    let judges: Vec<ModelChoice> = judges
        .map(|rule| ModelChoice { provider: rule.provider.clone(), model: rule.model.clone() })
        .collect();
    let all = [&own].into_iter().chain(&config.fallbacks).chain(fallbacks.flatten()).chain(&judges);
    let has_cost_limit = definition.limits.cost_usd.is_some();
    let errors = all.filter_map(|choice| {
        let wanted =
            ModelSelection { provider: choice.provider.clone(), model: choice.model.clone() };
        match models.resolve(&wanted) {
            Ok(model) if has_cost_limit && model.price.is_none() => Some(DefinitionError::Model {
                code: "price_unknown",
                why: format!("limits.cost_usd needs a price, and {} has none", model.name()),
                wanted: Some("cost_usd".to_owned()),
                known: Vec::new(),
            }),
            Ok(_) => None,
            Err(error) if Some(&error) == default_error => None,
            Err(error) => Some(model_error(&error)),
        }
    });
    errors.collect()
}

fn model_error(error: &ResolveError) -> DefinitionError {
    let (wanted, known) = match error {
        ResolveError::UnknownProvider { wanted, known }
        | ResolveError::UnknownModel { wanted, known } => (Some(wanted.clone()), quoted(known)),
        ResolveError::Disabled { provider } | ResolveError::KeyMissing { provider, .. } => {
            (Some(provider.clone()), Vec::new())
        }
        _ => (None, Vec::new()),
    };
    DefinitionError::Model { code: error.code(), why: error.to_string(), wanted, known }
}

/// Returns the names in backticks, without the provider of a model.
fn quoted(text: &str) -> Vec<String> {
    let names = text.split('`').skip(1).step_by(2);
    names.map(|name| name.rsplit_once('/').map_or(name, |(_, model)| model).to_owned()).collect()
}

/// Returns the subagents that do not exist, or accept no tasks.
fn subagents(definition: &AgentDefinition, known: &Known<'_>) -> Vec<DefinitionError> {
    let named = definition.subagents.iter().filter_map(|subagent| match subagent {
        Subagent::Named(name) => Some(name),
        Subagent::Inline(_) => None,
    });
    let errors = named.filter_map(|name| match known.modes.get(name.as_str()) {
        Some(mode) if mode.is_subagent() => None,
        Some(_) => Some(DefinitionError::Mode(name.clone())),
        None if known.unreadable.contains(name) => None,
        None => {
            let accept = known.modes.iter().filter(|(_, mode)| mode.is_subagent());
            let known = accept.map(|(name, _)| (*name).to_owned()).collect();
            Some(DefinitionError::Subagent { name: name.clone(), known })
        }
    });
    errors.collect()
}

/// Returns the secrets that a definition has in plain text. They are stored with it.
fn secrets_of(definition: &AgentDefinition) -> Vec<DefinitionError> {
    let Ok(definition) = serde_json::to_value(definition) else { return Vec::new() };
    let parts = ["cli", "a2a", "middleware"].into_iter();
    parts.flat_map(|part| literal_secrets(part, &definition[part])).collect()
}

/// Why a command-line program cannot be started, or its run can never end with an answer.
fn program(cli: &CliConfig, environment: &Environment) -> Vec<DefinitionError> {
    let mut errors = Vec::new();
    let mut add = |code, subject: &str, why: String| {
        errors.push(DefinitionError::Program { code, why, subject: subject.to_owned() });
    };
    let folder = cli.working_dir.as_deref();
    if let Some(missing) = folder.filter(|folder| !folder.is_dir()) {
        let missing = missing.display().to_string();
        add("missing_folder", &missing, format!("there is no folder {missing} for the program"));
    }
    let name = cli.command.first().map_or("", String::as_str);
    if !exists(name, folder, environment) {
        add("program_not_found", name, format!("there is no program {name:?}"));
    }
    for value in cli.env.values() {
        if let EnvValue::Named(named) = value
            && let Err(why) =
                value.clone().resolved(|name| environment.value(name).map(str::to_owned))
        {
            add("unset_variable", &named.env, format!("cannot start the program: {why}"));
        }
    }
    if !cli.can_answer() {
        let why = match &cli.parser {
            Some(_) => {
                "the parser has no rule terminal, so no output counts as an answer".to_owned()
            }
            None => format!(
                "the program {name:?} has no known format, so no output of it counts as an answer"
            ),
        };
        add("no_terminal_rule", name, why);
    }
    errors
}

/// Why a remote agent cannot be reached.
fn remote_agent(a2a: &A2aConfig, environment: &Environment) -> Option<DefinitionError> {
    if let Err(why) = a2a.check(environment) {
        let why = why.to_string();
        let subject = "a2a".to_owned();
        return Some(DefinitionError::Program { code: "contradiction", why, subject });
    }
    let why = format!("a2a.url: {}", a2a.refused_address()?);
    Some(DefinitionError::Program { code: "private_address", why, subject: a2a.url.clone() })
}

/// Returns `true` if a command can be found: by its path, or in the folders of `PATH`.
fn exists(name: &str, folder: Option<&Path>, environment: &Environment) -> bool {
    if name.contains('/') {
        return folder.unwrap_or(Path::new("")).join(name).is_file();
    }
    let path = environment.value("PATH").unwrap_or_default();
    !name.is_empty() && std::env::split_paths(path).any(|folder| folder.join(name).is_file())
}
