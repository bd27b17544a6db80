//! The definition of an agent: a prompt, tools, limits and a model. It comes from a file, a request or Rust code.
//!
//! A definition is **resolved** before it is registered: the prompt, instruction files and skills are read and
//! stored in `instructions`. A revision therefore contains the complete instructions and does not depend on files.

mod check;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use abide_client::arguments::RegisterAgent;
use abide_client::rows::{AgentAllow, AgentMode};
use abide_programs::{CliConfig, ParserChoice, Parsers};
use abide_tools::{A2aConfig, BackendName, Selection, Tools, tool_matches};
use abide_yaml::Document;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

pub use crate::model_choice::ModelChoice;

use crate::agent_tool::{
    AgentTool, AsHandoff, AsTool, MEMORY_TOOLS, REQUEST_SUPERVISOR, RESERVED, RESPONSE, TASK,
};
use crate::error::{self, DefinitionError, InvalidSetting, Position};
use crate::folder_texts;
use crate::guardrail::GuardrailFunctions;
use crate::middleware::Middleware;
use crate::pause_rule::PauseRule;
use crate::profile::{Profile, ProfileSettings};
use crate::prompt_source::{PromptSource, PromptStores};
use crate::supervisor::Supervisor;

/// The part of the instructions about plans.
const PLAN_RULES: &str = "\
## Plan

Work that takes more than two steps has a plan: write it with manage_todo_list before you begin. Exactly one step is \
in-progress while there is work to do: complete a step and start the next one in the same call. Update the plan right \
after each step, and when it turns out to be wrong. Do not repeat the plan in what you say.";

/// An agent. Every field except the name is optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an agent definition: a map of its fields")]
pub struct AgentDefinition {
    /// The name; the default is the name of the file.
    pub name: String,
    /// The system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<PromptSource>,
    /// The tools that the agent may call, by name. `mail_*` selects all names with that prefix. The default is
    /// none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Tools that the model sees, but calls to them are denied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_tools: Vec<String>,
    /// Tools that are removed from the selection in `tools`; the model does not see them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded_tools: Vec<String>,
    /// Skills: texts in `skills/` that are added to the instructions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<String>,
    /// Instruction files in the folder, such as `AGENTS.md`, that are added to the instructions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<PathBuf>,
    /// Agents that this agent may delegate tasks to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subagents: Vec<Subagent>,
    /// Tools whose calls by this agent need approval. This adds to the approvals that tools themselves require.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub interrupt_on: BTreeMap<String, Permission>,
    /// Makes the agent a tool of the agents that have it in `subagents`, in place of a choice of `task`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_tool: Option<AsTool>,
    /// Lets the agent take over the turn of the agents that have it in `subagents`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_handoff: Option<AsHandoff>,
    /// Middleware around the requests to the model and the calls of tools, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub middleware: Vec<Middleware>,
    /// Rules that pause its runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pause: Vec<PauseRule>,
    /// The model as `PROVIDER/MODEL`, in place of `config.provider` and `config.model`. The name of a model can contain
    /// slashes, too: the first one separates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model and its parameters.
    pub config: AgentConfig,
    /// How the agent may be used.
    pub mode: AgentMode,
    /// The purpose of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether lists omit the agent.
    pub hidden: bool,
    /// Whether the agent comes with the runtime.
    pub native: bool,
    /// Who may start its runs. The default is every caller; for an agent that comes with the runtime, every caller without a
    /// scope. An inline subagent has the rule of its parent, unless it has its own.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "deserialize_some")]
    pub allow: Option<AgentAllow>,
    /// Whether other agents may reach it by A2A.
    pub a2a_exposed: bool,
    /// Whether clients of the MCP server may use it as a tool.
    pub mcp_exposed: bool,
    /// JSON Schema of the agent's final answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
    /// Whether an answer without text and calls is an answer. By default the run fails.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_empty_answers: bool,
    /// The settings for limits, planning, context, memory and watchdog.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Whether the agent keeps a plan of its work. If so, it has the tool `manage_todo_list`. The default is that of
    /// the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planning: Option<bool>,
    /// The supervisor that the agent can ask. With one, it has the tool `request_supervisor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<Supervisor>,
    /// Limits of one run.
    pub limits: Limits,
    /// The sandbox that the agent needs. It is refused where another one, or none, is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<BackendName>,
    /// The loop in Rust that drives its runs in place of the built-in one.
    #[serde(rename = "loop", skip_serializing_if = "Option::is_none")]
    pub agent_loop: Option<String>,
    /// A command-line program that runs instead of a model and tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cli: Option<CliConfig>,
    /// A remote agent, reached by A2A, that works instead of a model and tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub a2a: Option<A2aConfig>,
    /// The resolved texts of prompt, memory and skills. Set at registration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The resolved profile. Set at registration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<ProfileSettings>,
    /// The middleware of all agents, which applies before the agent's own. Set at registration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deployment_middleware: Vec<Middleware>,
}

/// An agent that another agent may delegate tasks to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Subagent {
    /// A reference by name.
    Named(String),
    /// An inline definition. It belongs to this agent: no other agent can name it.
    Inline(Box<AgentDefinition>),
}

/// Separates the name of an inline agent from that of its parent: `boss/helper`. No other name contains it.
pub const OF_PARENT: char = '/';

impl AgentDefinition {
    /// Returns `true` if its prompt, or that of an inline subagent, is in the table `prompts`.
    pub fn uses_stored_prompt(&self) -> bool {
        self.system_prompt.as_ref().is_some_and(PromptSource::is_stored)
            || self.subagents.iter().any(|subagent| match subagent {
                Subagent::Named(_) => false,
                Subagent::Inline(definition) => definition.uses_stored_prompt(),
            })
    }
}

impl Subagent {
    /// Its name, as the agent that delegates to it writes it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Subagent::Named(name) => name,
            Subagent::Inline(definition) => &definition.name,
        }
    }

    /// Returns the name under which it is registered: that of an inline agent begins with the name of its parent.
    #[must_use]
    pub fn registered_name(&self, parent: &str) -> String {
        match self {
            Subagent::Named(name) => name.clone(),
            Subagent::Inline(definition) => format!("{parent}{OF_PARENT}{}", definition.name),
        }
    }
}

/// Unlike a derived implementation, it reports errors of an inline definition with their reason.
impl<'de> Deserialize<'de> for Subagent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Subagent, D::Error> {
        struct NameOrDefinition;
        impl<'de> Visitor<'de> for NameOrDefinition {
            type Value = Subagent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an agent, or an agent definition")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Subagent, E> {
                Ok(Subagent::Named(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Subagent, A::Error> {
                let definition = AgentDefinition::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Subagent::Inline(Box::new(definition)))
            }
        }
        from.deserialize_any(NameOrDefinition)
    }
}

/// Reads a field that must not be `null`: an empty key would lift a restriction.
fn deserialize_some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Whether calls of a tool need approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Permission(pub bool);

/// The model and its parameters. Missing fields take the server's defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "the model and its parameters: a map")]
pub struct AgentConfig {
    /// The provider's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model's name at the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Maximum number of tokens in an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Maximum number of answers of the model in one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursion_limit: Option<i64>,
    /// Maximum size of a tool result in tokens. Of a larger result, the model sees only the beginning and the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_token_limit_before_evict: Option<usize>,
    /// The models to try, in order, when the first one fails.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<ModelChoice>,
}

/// Limits of one run. A missing field means no limit, unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "limits: a map")]
pub struct Limits {
    /// Maximum number of tool calls; the default is that of the profile, or 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<i64>,
    /// Maximum number of concurrent tool calls; the default is that of the profile, or 5. 0 counts as 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tools: Option<usize>,
    /// Maximum duration of the run in seconds, without the time that it waits for a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_clock_seconds: Option<i64>,
    /// Whether `wall_clock_seconds` includes the time that the run waits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub wall_clock_counts_waits: bool,
    /// Maximum number of input and output tokens, including delegated runs. An answer whose usage the provider does not
    /// report counts as estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<i64>,
    /// Maximum number of runs started by delegation, including indirect ones; the default is the server's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descendants: Option<i64>,
    /// Maximum depth of delegation; the default is the server's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegation_depth: Option<i64>,
    /// Maximum duration of one delegated task in seconds. The default is what is left of the run's own time limit,
    /// which always applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegation_seconds: Option<i64>,
    /// Maximum cost in dollars, as far as prices are known, including delegated runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

impl AgentDefinition {
    /// Returns the settings that apply to its runs. For a definition that was registered before profiles existed, they
    /// are computed.
    #[must_use]
    pub fn settings(&self) -> ProfileSettings {
        self.settings.clone().unwrap_or_else(|| self.computed_settings())
    }

    fn computed_settings(&self) -> ProfileSettings {
        let mut settings = Profile::settings(self.profile.as_ref());
        if let Some(max) = self.limits.tool_calls {
            settings.limits.tool_calls = max;
        }
        if let Some(max) = self.limits.parallel_tools {
            settings.limits.parallel_tools = max.max(1);
        }
        settings.planning = self.planning.unwrap_or(settings.planning);
        // The program or the remote agent has its own context, plans and memory.
        if self.external_kind().is_some() {
            settings.planning = false;
            settings.context.compaction = false;
            settings.memory.enabled = false;
            settings.watchdog.enabled = false;
        }
        settings
    }

    /// Returns `true` if the definition demands an approval of the calls of a tool.
    pub fn asks_for(&self, tool: &str) -> bool {
        self.approval_of(tool).unwrap_or(false)
    }

    /// What `interrupt_on` says about a tool; `None` if it says nothing. Its own name counts more than a pattern, and a pattern that
    /// demands an approval more than one that does not. Patterns do not mean the tools of the runtime that nobody may
    /// name, such as that of a plan.
    pub fn approval_of(&self, tool: &str) -> Option<bool> {
        if let Some(permission) = self.interrupt_on.get(tool) {
            return Some(permission.0);
        }
        let is_open = [TASK, REQUEST_SUPERVISOR].contains(&tool) || MEMORY_TOOLS.contains(&tool);
        if RESERVED.contains(&tool) && !is_open {
            return None;
        }
        let meant = self.interrupt_on.iter().filter(|(pattern, _)| tool_matches(pattern, tool));
        meant.map(|(_, permission)| permission.0).reduce(|one, other| one || other)
    }

    /// Returns `true` if the agent keeps a plan.
    pub fn keeps_plan(&self) -> bool {
        self.settings().planning
    }

    /// Parses YAML. JSON is valid YAML, too. A text without content is refused: an editor that is interrupted leaves such a
    /// file, and it would be an agent without a prompt and tools.
    ///
    /// # Errors
    /// [`DefinitionError::Malformed`], with the place if it is known.
    pub fn from_yaml(text: &str) -> Result<AgentDefinition, DefinitionError> {
        let document = error::parse_yaml(text)?;
        if document.is_empty() {
            return Err(DefinitionError::empty_file());
        }
        AgentDefinition::from_document(&document)
    }

    /// Returns the definition that a document has.
    ///
    /// # Errors
    /// [`DefinitionError::Malformed`], with the place if it is known.
    fn from_document(document: &Document) -> Result<AgentDefinition, DefinitionError> {
        let definition: AgentDefinition = error::from_document(document)?;
        definition
            .check_has_no_stored_field()
            .map_err(|name| DefinitionError::stored_field(name, document.position_of_text(name)))?;
        Ok(definition)
    }

    /// Checks that a person has not written a field that only stored revisions have. It would be replaced without a word.
    ///
    /// # Errors
    /// The name of the field.
    fn check_has_no_stored_field(&self) -> Result<(), &'static str> {
        let stored = [
            ("instructions", self.instructions.is_some()),
            ("settings", self.settings.is_some()),
            ("deployment_middleware", !self.deployment_middleware.is_empty()),
            ("native", self.native),
        ];
        if let Some((name, _)) = stored.into_iter().find(|(_, is_there)| *is_there) {
            return Err(name);
        }
        self.subagents.iter().try_for_each(|subagent| match subagent {
            Subagent::Inline(inline) => inline.check_has_no_stored_field(),
            Subagent::Named(_) => Ok(()),
        })
    }

    /// Reads a definition in JSON: that of a revision, or of a request.
    ///
    /// # Errors
    /// [`DefinitionError::Malformed`].
    pub fn from_json(definition: &Value) -> Result<AgentDefinition, DefinitionError> {
        AgentDefinition::deserialize(definition)
            .map_err(|why| DefinitionError::malformed(why.to_string(), None))
    }

    /// Parses Markdown with YAML front matter between two `---` lines. The text below is the system prompt. The
    /// agent has the name of the file.
    ///
    /// # Errors
    /// [`DefinitionError::Malformed`], also if the text is empty; [`DefinitionError::Contradiction`] if the front matter also
    /// has a prompt.
    pub fn from_markdown(name: &str, text: &str) -> Result<AgentDefinition, DefinitionError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.trim().is_empty() {
            return Err(DefinitionError::empty_file());
        }
        let (front, body) = front_matter(text)?;
        let mut definition = match front.trim() {
            "" => AgentDefinition::default(),
            _ => error::parse_yaml(front)
                .and_then(|document| AgentDefinition::from_document(&document))
                .map_err(below_first_line)?,
        };
        if definition.system_prompt.is_some() {
            let twice =
                "the front matter has a system_prompt, but the text below it is the prompt, too";
            return Err(DefinitionError::Contradiction(twice.to_owned()));
        }
        definition.name = name.to_owned();
        definition.system_prompt = Some(PromptSource::Inline(body.trim().to_owned()));
        Ok(definition)
    }

    /// Reads the texts that the definition refers to; files are relative to the folder.
    ///
    /// # Errors
    /// A text cannot be read, or the definition is invalid.
    pub fn resolved(
        mut self,
        folder: &Path,
        stores: &PromptStores,
    ) -> Result<AgentDefinition, DefinitionError> {
        self = self.expanded()?;
        self.check()?;
        let mut parts = Vec::new();
        if let Some(prompt) = &self.system_prompt {
            parts.push(prompt.text(folder, stores)?);
        }
        for path in &self.memory {
            parts.push(folder_texts::read(folder, path, &["md"])?);
        }
        for skill in &self.skills {
            parts.push(format!(
                "## Skill: {skill}\n\n{}",
                folder_texts::read_named(folder, "skills", skill)?
            ));
        }
        let settings = self.computed_settings();
        if settings.planning {
            parts.push(PLAN_RULES.to_owned());
        }
        self.settings = Some(settings);
        self.instructions = (!parts.is_empty()).then(|| parts.join("\n\n"));
        let subagents = self.subagents.into_iter().map(|subagent| match subagent {
            Subagent::Inline(mut inline) => {
                inline.mode = AgentMode::Subagent;
                inline.hidden = true;
                inline.resolved(folder, stores).map(|it| Subagent::Inline(Box::new(it)))
            }
            named @ Subagent::Named(_) => Ok(named),
        });
        self.subagents = subagents.collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Returns the definition with the middleware of all agents, including its inline subagents. It replaces the former
    /// middleware of all agents.
    pub fn with_deployment(mut self, middleware: &[Middleware]) -> AgentDefinition {
        let is_external = self.external_kind().is_some();
        self.deployment_middleware = middleware
            .iter()
            .filter(|it| !is_external || it.applies_to_external())
            .cloned()
            .collect();
        let subagents = self.subagents.into_iter().map(|subagent| match subagent {
            Subagent::Inline(inline) => {
                Subagent::Inline(Box::new(inline.with_deployment(middleware)))
            }
            named @ Subagent::Named(_) => named,
        });
        self.subagents = subagents.collect();
        self
    }

    /// Returns the middleware that applies to its runs: that of all agents now, that of all agents when it was
    /// registered, and its own. So a definition that was registered in another way lifts nothing.
    pub fn all_middleware<'a>(
        &'a self,
        deployment: &'a [Middleware],
    ) -> impl Iterator<Item = &'a Middleware> {
        let registered = self.deployment_middleware.iter();
        let registered = registered.filter(|it| !deployment.contains(it));
        deployment.iter().chain(registered).chain(&self.middleware)
    }

    /// Returns the definition with `model` as a part of `config`.
    ///
    /// # Errors
    /// [`DefinitionError::Setting`] if `config` has a model, too, or a part is empty.
    pub fn expanded(mut self) -> Result<AgentDefinition, DefinitionError> {
        let Some(model) = self.model.take() else { return Ok(self) };
        if self.config.provider.is_some() || self.config.model.is_some() {
            let why = "and config both name a model: remove one of them";
            return Err(InvalidSetting::new("model", why).into());
        }
        match model.split_once('/') {
            Some((provider, name)) if !provider.is_empty() && !name.is_empty() => {
                self.config.provider = Some(provider.to_owned());
                self.config.model = Some(name.to_owned());
                Ok(self)
            }
            _ => {
                let why = format!("is {model:?}: write PROVIDER/MODEL");
                Err(InvalidSetting::new("model", why).into())
            }
        }
    }

    /// Checks that the guardrails in Rust exist.
    ///
    /// # Errors
    /// [`DefinitionError::Contradiction`] about the first function that does not exist.
    pub fn check_guardrails(&self, functions: &GuardrailFunctions) -> Result<(), DefinitionError> {
        let rules = self.middleware.iter().filter_map(Middleware::guardrail);
        let named = rules.filter_map(|rule| rule.check.as_deref());
        if let Some(name) = named.into_iter().find(|name| !functions.knows(name)) {
            let why = format!("there is no guardrail function {name}: Catalog::guardrail adds it");
            return Err(DefinitionError::Contradiction(why));
        }
        self.subagents.iter().try_for_each(|subagent| match subagent {
            Subagent::Inline(inline) => inline.check_guardrails(functions),
            Subagent::Named(_) => Ok(()),
        })
    }

    /// Checks that the parsers in Rust exist, also those of inline subagents.
    ///
    /// # Errors
    /// [`DefinitionError::Parser`].
    pub fn check_parsers(&self, parsers: &Parsers) -> Result<(), DefinitionError> {
        for part in self.with_inline() {
            let parser = part.cli.as_ref().and_then(|cli| cli.parser.as_ref());
            if let Some(ParserChoice::Named(name)) = parser
                && !parsers.names().any(|known| known == name)
            {
                let known = parsers.names().map(str::to_owned).collect();
                return Err(DefinitionError::Parser { name: name.clone(), known });
            }
        }
        Ok(())
    }

    /// Checks that the definition and its inline subagents get the sandbox that they need.
    ///
    /// # Errors
    /// [`DefinitionError::Sandbox`].
    pub fn check_sandbox(&self, there: Option<BackendName>) -> Result<(), DefinitionError> {
        if let Some(wanted) = self.sandbox.filter(|wanted| Some(*wanted) != there) {
            let there = there.map(BackendName::as_str);
            return Err(DefinitionError::Sandbox { wanted: wanted.as_str(), there });
        }
        self.subagents.iter().try_for_each(|subagent| match subagent {
            Subagent::Inline(inline) => inline.check_sandbox(there),
            Subagent::Named(_) => Ok(()),
        })
    }

    /// Returns the agents that the definition registers, with their registered names: its inline subagents, each after
    /// its own, and then the agent itself.
    pub fn with_inline(&self) -> Vec<AgentDefinition> {
        let mut all = Vec::new();
        for subagent in &self.subagents {
            if let Subagent::Inline(inline) = subagent {
                let name = subagent.registered_name(&self.name);
                let allow = inline.allow.as_ref().or(self.allow.as_ref()).cloned();
                all.extend(AgentDefinition { name, allow, ..(**inline).clone() }.with_inline());
            }
        }
        all.push(self.clone());
        all
    }

    /// Returns the registered names of the agents that it can delegate to.
    pub fn delegates(&self) -> impl Iterator<Item = String> {
        self.subagents.iter().map(|subagent| subagent.registered_name(&self.name))
    }

    /// Checks that the definition's tools are available.
    ///
    /// # Errors
    /// A tool is unknown.
    pub fn check_tools(&self, tools: &Tools) -> Result<(), DefinitionError> {
        self.check_tools_with(tools, &BTreeSet::new())
    }

    /// Like [`AgentDefinition::check_tools`], if there are also these tools that stand for agents.
    ///
    /// # Errors
    /// Those of [`AgentDefinition::check_tools`].
    pub fn check_tools_with(
        &self,
        tools: &Tools,
        of_agents: &BTreeSet<String>,
    ) -> Result<(), DefinitionError> {
        let view = tools.view(self.selection())?;
        let takes_response = view.declarations().iter().any(|tool| tool.name == RESPONSE);
        if self.response_format.is_some() && takes_response {
            let why = "response_format uses the tool name response; rename the tool response";
            return Err(DefinitionError::Contradiction(why.to_owned()));
        }
        let has_memory = self.settings().memory.enabled;
        let taken = MEMORY_TOOLS.into_iter().find(|name| tools.get(name).is_some());
        if let Some(name) = taken.filter(|_| has_memory) {
            let why = format!(
                "the tool {name} belongs to the memory of the agent: rename your tool, or set \
                 profile.memory.enabled to false"
            );
            return Err(DefinitionError::Contradiction(why));
        }
        if self.supervisor.is_some() && tools.get(REQUEST_SUPERVISOR).is_some() {
            let why = format!(
                "the tool {REQUEST_SUPERVISOR} belongs to the supervisor of the agent: rename your \
                 tool, or remove supervisor"
            );
            return Err(DefinitionError::Contradiction(why));
        }
        let inline = self.subagents.iter().flat_map(|subagent| match subagent {
            Subagent::Inline(inline) => inline.agent_tools(),
            Subagent::Named(_) => Vec::new(),
        });
        let own: BTreeSet<String> = inline.map(|tool| tool.name).collect();
        let is_agent = |name: &&String| own.contains(*name) || of_agents.contains(*name);
        let asked = self.interrupt_on.keys().filter(|name| {
            let is_built_in = *name == TASK
                || (has_memory && MEMORY_TOOLS.contains(&name.as_str()))
                || (self.supervisor.is_some() && *name == REQUEST_SUPERVISOR);
            !is_agent(name) && !is_built_in
        });
        let pausing = self.pause.iter().flat_map(|rule| &rule.tools);
        let pausing = pausing.filter(|name| !is_agent(name) && !RESERVED.contains(&name.as_str()));
        let named = asked.chain(pausing).cloned().collect();
        tools.view(Selection { tools: Some(named), ..Selection::default() })?;
        let own_tools = tools.view(self.selection())?.names();
        let unused = self.interrupt_on.keys().find(|name| {
            tools.get(name).is_some() && !own_tools.contains(*name) && !is_agent(name)
        });
        if let Some(name) = unused {
            let why = format!(
                "interrupt_on names {name}, which is not among the tools of the agent: calls of \
                 other agents, also of its subagents, are not asked for"
            );
            return Err(DefinitionError::Contradiction(why));
        }
        for tool in self.agent_tools() {
            if tools.get(&tool.name).is_some() {
                let why = format!("as a tool the agent needs another name: {} exists", tool.name);
                return Err(DefinitionError::Contradiction(why));
            }
        }
        self.subagents.iter().try_for_each(|subagent| match subagent {
            Subagent::Inline(inline) => inline.check_tools_with(tools, of_agents),
            Subagent::Named(_) => Ok(()),
        })
    }

    /// Checks that the tools which rules of its middleware name are available.
    ///
    /// # Errors
    /// [`DefinitionError::Tools`] with the tools that are not available.
    pub fn check_rules(&self, tools: &Tools) -> Result<(), DefinitionError> {
        let named = self.middleware.iter().filter_map(|it| match it {
            Middleware::ToolRetry(retry) => Some(&retry.tools),
            _ => None,
        });
        let named = named.flatten().cloned().collect();
        tools.view(Selection { tools: Some(named), ..Selection::default() })?;
        Ok(())
    }

    /// Returns the tools that stand for the agent.
    pub fn agent_tools(&self) -> Vec<AgentTool> {
        let description = self.description.as_deref();
        AgentTool::for_agent(
            &self.name,
            description,
            self.as_tool.as_ref(),
            self.as_handoff.as_ref(),
        )
    }

    /// Returns the tools that the agent may use.
    #[must_use]
    pub fn selection(&self) -> Selection {
        let all = self.deployment_middleware.iter().chain(&self.middleware);
        let denied = all.filter_map(|it| match it {
            Middleware::ToolSecurity(security) => Some(&security.blocked_tools),
            _ => None,
        });
        Selection {
            tools: Some(self.tools.clone()),
            blocked: denied.flatten().chain(&self.blocked_tools).cloned().collect(),
            excluded: self.excluded_tools.clone(),
        }
    }

    /// Returns the names and patterns of tools in the definition and its inline subagents. Some stand for agents.
    pub fn named_tools(&self) -> BTreeSet<String> {
        let mut named = BTreeSet::new();
        for part in self.with_inline() {
            let lists = [&part.tools, &part.blocked_tools, &part.excluded_tools];
            named.extend(lists.into_iter().flatten().cloned());
            named.extend(part.interrupt_on.keys().cloned());
            named.extend(part.pause.iter().flat_map(|rule| rule.tools.clone()));
        }
        named
    }

    /// Uses the recorded instructions of agents, by registered name, in place of prompts that only another server has.
    /// Recorded instructions contain all texts of their agent.
    #[must_use]
    pub fn with_recorded_prompts(self, recorded: &BTreeMap<String, String>) -> AgentDefinition {
        let name = self.name.clone();
        self.with_recorded_prompts_as(&name, recorded)
    }

    fn with_recorded_prompts_as(
        mut self,
        name: &str,
        recorded: &BTreeMap<String, String>,
    ) -> AgentDefinition {
        let is_remote = self.system_prompt.as_ref().is_some_and(PromptSource::is_remote);
        if let Some(instructions) = recorded.get(name).filter(|_| is_remote) {
            let own = instructions.strip_suffix(PLAN_RULES).unwrap_or(instructions);
            self.system_prompt = Some(PromptSource::Inline(own.trim_end().to_owned()));
            self.memory.clear();
            self.skills.clear();
        }
        let subagents = std::mem::take(&mut self.subagents).into_iter();
        let subagents = subagents.map(|subagent| {
            let name = subagent.registered_name(name);
            match subagent {
                Subagent::Inline(inline) => {
                    Subagent::Inline(Box::new(inline.with_recorded_prompts_as(&name, recorded)))
                }
                named @ Subagent::Named(_) => named,
            }
        });
        self.subagents = subagents.collect();
        self
    }

    /// Returns the arguments of `register_agent`.
    #[must_use]
    pub fn to_register(&self) -> RegisterAgent {
        let definition = match serde_json::to_value(self) {
            Ok(Value::Object(definition)) => definition,
            _ => Map::new(),
        };
        RegisterAgent {
            description: self.description.clone(),
            ..RegisterAgent::new(&self.name, definition)
                .mode(self.mode)
                .hidden(self.hidden)
                .native(self.native)
        }
    }
}

/// Returns the error of a front matter, with the line of the file: the front matter begins on the second one.
fn below_first_line(mut error: DefinitionError) -> DefinitionError {
    if let DefinitionError::Malformed { at: Some(at), .. } = &mut error {
        at.line += 1;
    }
    error
}

/// Splits a text into its front matter, between the first two `---` lines, and the rest.
fn front_matter(text: &str) -> Result<(&str, &str), DefinitionError> {
    let Some(rest) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else {
        return Ok(("", text));
    };
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Ok((&rest[..at], &rest[at + line.len()..]));
        }
        at += line.len();
    }
    let open = "the front matter has no closing `---` line";
    Err(DefinitionError::malformed(open, Some(Position { line: 1, column: 1 })))
}

#[cfg(test)]
mod tests;
