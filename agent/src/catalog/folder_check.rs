//! What the definitions of a folder need and do not have: subagents, models, programs, folders. The catalog
//! registers such definitions, because the missing part may appear later; `abide agent check` and the log report it.

use std::path::Path;

use abide_client::AgentMode;
use abide_models::{ModelSelection, Models, ResolveError};
use abide_programs::CliConfig;
use abide_tools::{A2aConfig, Environment};

use crate::catalog::agents::{Catalog, CatalogSnapshot, Problem};
use crate::definition::agent::{AgentDefinition, ModelChoice, Subagent};
use crate::definition::error::DefinitionError;
use crate::definition::middleware::Middleware;

impl Catalog {
    /// Everything in the folder that cannot work with these models and the environment of the programs: invalid
    /// files, and parts that definitions name and that do not exist. Sorted by file.
    #[must_use]
    pub fn check(&self, models: &Models, environment: &Environment) -> Vec<Problem> {
        let mut reading = self.reading();
        let mut problems = std::mem::take(&mut reading.problems);
        let default = models.default_model().and_then(|default| models.resolve(default).err());
        problems.extend(default.as_ref().map(|error| self.problem_of_config(of_default(error))));
        for definition in &reading.definitions {
            let Some(path) = reading.sources.get(&definition.name) else { continue };
            let mut errors = Vec::new();
            for part in definition.with_inline() {
                errors.extend(subagents(&part, &reading));
                match (&part.cli, &part.a2a) {
                    (Some(cli), _) => errors.extend(program(cli, environment)),
                    (None, Some(a2a)) => errors.extend(remote_agent(a2a, environment)),
                    (None, None) => errors.extend(model(&part, models, default.as_ref())),
                }
            }
            for error in errors {
                let problem = self.problem(path.clone(), error);
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
        problems.sort_by(|one, other| one.path.cmp(&other.path));
        problems
    }
}

/// Why the configured default model cannot be used.
fn of_default(error: &ResolveError) -> DefinitionError {
    match of_model(error) {
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
    of_default: Option<&ResolveError>,
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
    let errors = all.filter_map(|choice| {
        let wanted =
            ModelSelection { provider: choice.provider.clone(), model: choice.model.clone() };
        models.resolve(&wanted).err()
    });
    errors.filter(|error| Some(error) != of_default).map(|error| of_model(&error)).collect()
}

fn of_model(error: &ResolveError) -> DefinitionError {
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

/// The names in backticks, without the provider of a model.
fn quoted(text: &str) -> Vec<String> {
    let names = text.split('`').skip(1).step_by(2);
    names.map(|name| name.rsplit_once('/').map_or(name, |(_, model)| model).to_owned()).collect()
}

/// The subagents that do not exist, or accept no tasks.
fn subagents(definition: &AgentDefinition, reading: &CatalogSnapshot) -> Vec<DefinitionError> {
    let all = &reading.definitions;
    let named = definition.subagents.iter().filter_map(|subagent| match subagent {
        Subagent::Named(name) => Some(name),
        Subagent::Inline(_) => None,
    });
    let errors = named.filter_map(|name| match all.iter().find(|it| it.name == *name) {
        Some(found) if found.mode.is_subagent() => None,
        Some(_) => Some(DefinitionError::Mode(name.clone())),
        None => {
            let known = all.iter().filter(|it| it.mode != AgentMode::Primary);
            let known = known.map(|it| it.name.clone()).collect();
            Some(DefinitionError::Subagent { name: name.clone(), known })
        }
    });
    errors.collect()
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
    a2a.check(environment).err().map(|why| DefinitionError::Contradiction(why.to_string()))
}

/// Whether a command can be found: by its path, or in the folders of `PATH`.
fn exists(name: &str, folder: Option<&Path>, environment: &Environment) -> bool {
    if name.contains('/') {
        return folder.unwrap_or(Path::new("")).join(name).is_file();
    }
    let path = environment.value("PATH").unwrap_or_default();
    !name.is_empty() && std::env::split_paths(path).any(|folder| folder.join(name).is_file())
}
