//! What an agent is: a prompt, tools, limits and a model, as a file, a request or Rust says it.
//!
//! A definition is **resolved** before it is registered: prompt, instruction files and skills are read and become its
//! `instructions`, so that a revision says all that a run of it is told, whatever happens to the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use abide_client::{AgentMode, NewAgent};
use abide_programs::CliConfig;
use abide_tools::{Parameters, Selection, Tools, ToolsError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::guardrail::Guardrail;
use crate::{plan, texts};

/// The longest name.
const NAME_CHARS: usize = 100;

/// An agent. Every field but the name may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentDefinition {
    /// Its name; a file's own where it is not said.
    pub name: String,
    /// What it is told before the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<PromptSource>,
    /// The tools that it may call, by name; `mail_*` is all that begin so. None unless said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Tools that it sees and whose calls are denied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_tools: Vec<String>,
    /// Tools that it does not see, where `tools` says many at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded_tools: Vec<String>,
    /// Skills: texts under `skills/` that are added to its instructions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<String>,
    /// Instruction files below the folder, such as `AGENTS.md`, that are added to its instructions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<PathBuf>,
    /// Agents that it may give tasks to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subagents: Vec<Subagent>,
    /// Tools of which each call of this agent must be approved. What a tool itself asks for stands in any case.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub interrupt_on: BTreeMap<String, Permission>,
    /// What looks at requests and answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub middleware: Vec<Guardrail>,
    /// Which model, and how it is asked.
    pub config: AgentConfig,
    /// What it may be used as.
    pub mode: Mode,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether lists leave it out.
    pub hidden: bool,
    /// Whether it comes with the runtime.
    pub native: bool,
    /// Whether other agents may reach it by A2A.
    pub a2a_exposed: bool,
    /// JSON Schema that its last answer must meet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
    /// Whether it keeps a plan of its work: it then has the tool `manage_todo_list`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub planning: bool,
    /// Bounds of one run.
    pub limits: Limits,
    /// A foreign program that is the agent, instead of a model and tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cli: Option<CliConfig>,
    /// What prompt, memory and skills said when it was registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

/// What an agent may be used as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It can own a session.
    #[default]
    Primary,
    /// Another agent can give it a task.
    Subagent,
    /// Both.
    All,
}

impl From<Mode> for AgentMode {
    fn from(mode: Mode) -> AgentMode {
        match mode {
            Mode::Primary => AgentMode::Primary,
            Mode::Subagent => AgentMode::Subagent,
            Mode::All => AgentMode::All,
        }
    }
}

/// Where a prompt stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PromptSource {
    /// Here.
    Inline(String),
    /// In `prompts/NAME.md`.
    File {
        /// The name.
        file: String,
    },
    /// In a [`PromptStore`]: `name@version`.
    Store {
        /// The name.
        #[serde(alias = "mlflow")]
        store: String,
    },
}

/// Prompts that are kept elsewhere.
pub trait PromptStore: Send + Sync {
    /// The prompt of a name, such as `greeting@v3`.
    ///
    /// # Errors
    /// Why there is none, in one sentence.
    fn prompt(&self, name: &str) -> Result<String, String>;
}

/// An agent that another may give tasks to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Subagent {
    /// By its name.
    Named(String),
    /// Defined on the spot; nobody else is told of it.
    Inline(Box<AgentDefinition>),
}

impl Subagent {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Subagent::Named(name) => name,
            Subagent::Inline(definition) => &definition.name,
        }
    }
}

/// Whether calls of a tool need somebody's yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Permission(pub bool);

/// Which model is asked, and how. What is left out is the server's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// The provider's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model, as its provider knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How freely it chooses its words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// How many tokens an answer may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Answers of the model in one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursion_limit: Option<i64>,
    /// Tokens of a tool's result beyond which the model is shown its beginning and end only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_token_limit_before_evict: Option<usize>,
    /// Whom to ask when that one does not answer, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<ModelChoice>,
}

/// A model of a provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelChoice {
    /// The provider's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Bounds of one run. What is left out has no bound, but for those that say so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Tool calls that the model may ask for: 50 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<i64>,
    /// Tool calls that run at once: 5 unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tools: Option<usize>,
    /// Seconds from its beginning, those that it waits included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_clock_seconds: Option<i64>,
    /// Tokens, in and out, as far as providers tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<i64>,
    /// Runs that it may cause by delegation, its descendants' included: the limit of the server unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descendants: Option<i64>,
    /// How many runs deep its delegations may go: the limit of the server unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegation_depth: Option<i64>,
    /// Dollars, as far as they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// Tool calls of a run, where nothing else is said: what the originals of these limits take.
const TOOL_CALLS: i64 = 50;
const PARALLEL_TOOLS: usize = 5;

impl Limits {
    /// Tool calls of a run.
    #[must_use]
    pub fn tool_calls(&self) -> i64 {
        self.tool_calls.unwrap_or(TOOL_CALLS)
    }

    /// Tool calls that run at once.
    #[must_use]
    pub fn parallel_tools(&self) -> usize {
        self.parallel_tools.unwrap_or(PARALLEL_TOOLS).max(1)
    }
}

/// Why a definition is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// It is not one: a field that there is not, a value of another kind.
    #[error("{0}")]
    Malformed(String),
    /// Its name is none.
    #[error("{0:?} is no name of an agent: letters, digits, . _ and -, at most {NAME_CHARS}")]
    Name(String),
    /// A prompt, an instruction file or a skill is not there.
    #[error("{what} cannot be read: {why}")]
    Missing {
        /// Which.
        what: String,
        /// The system's words.
        why: String,
    },
    /// It names tools that there are not, or one twice.
    #[error("{0}")]
    Tools(#[from] ToolsError),
    /// It delegates to itself, directly or by way of others.
    #[error("it delegates in a circle: {0}")]
    Cycle(String),
    /// Two parts of it do not go together.
    #[error("{0}")]
    Contradiction(String),
}

impl DefinitionError {
    /// A name that does not change, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            DefinitionError::Malformed(_) => "malformed_definition",
            DefinitionError::Name(_) => "bad_agent_name",
            DefinitionError::Missing { .. } => "missing_text",
            DefinitionError::Tools(error) => error.code(),
            DefinitionError::Cycle(_) => "delegation_cycle",
            DefinitionError::Contradiction(_) => "contradiction",
        }
    }
}

impl AgentDefinition {
    /// Of YAML, or of JSON, which is YAML.
    ///
    /// # Errors
    /// [`DefinitionError::Malformed`] with the line.
    pub fn from_yaml(text: &str) -> Result<AgentDefinition, DefinitionError> {
        serde_saphyr::from_str(text).map_err(|why| DefinitionError::Malformed(why.to_string()))
    }

    /// Of Markdown: YAML between two lines `---`, and the prompt after them. The name is the file's.
    ///
    /// # Errors
    /// [`DefinitionError::Malformed`], also where both say a prompt.
    pub fn from_markdown(name: &str, text: &str) -> Result<AgentDefinition, DefinitionError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let (front, body) = front_matter(text)?;
        let mut definition = match front.trim() {
            "" => AgentDefinition::default(),
            front => AgentDefinition::from_yaml(front)?,
        };
        if definition.system_prompt.is_some() {
            let twice = "its front matter has a system_prompt, and the text below it is one too";
            return Err(DefinitionError::Contradiction(twice.to_owned()));
        }
        definition.name = name.to_owned();
        definition.system_prompt = Some(PromptSource::Inline(body.trim().to_owned()));
        Ok(definition)
    }

    /// With its texts read: those of files lie under the folder.
    ///
    /// # Errors
    /// A text is not there, or the definition is none.
    pub fn resolved(
        mut self,
        folder: &Path,
        store: Option<&dyn PromptStore>,
    ) -> Result<AgentDefinition, DefinitionError> {
        self.check()?;
        let mut parts = Vec::new();
        match &self.system_prompt {
            Some(PromptSource::Inline(text)) => parts.push(text.clone()),
            Some(PromptSource::File { file }) => parts.push(text_of(folder, "prompts", file)?),
            Some(PromptSource::Store { store: name }) => parts.push(stored(store, name)?),
            None => {}
        }
        for path in &self.memory {
            parts.push(texts::read(folder, path, &["md"])?);
        }
        for skill in &self.skills {
            parts.push(format!("## Skill: {skill}\n\n{}", text_of(folder, "skills", skill)?));
        }
        if self.planning {
            parts.push(plan::RULES.to_owned());
        }
        self.instructions = (!parts.is_empty()).then(|| parts.join("\n\n"));
        let subagents = self.subagents.into_iter().map(|subagent| match subagent {
            Subagent::Inline(mut inline) => {
                inline.mode = Mode::Subagent;
                inline.hidden = true;
                inline.resolved(folder, store).map(|it| Subagent::Inline(Box::new(it)))
            }
            named @ Subagent::Named(_) => Ok(named),
        });
        self.subagents = subagents.collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Holds it to itself.
    fn check(&self) -> Result<(), DefinitionError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let length = self.name.chars().count();
        if length == 0 || length > NAME_CHARS || !self.name.chars().all(fits) {
            return Err(DefinitionError::Name(self.name.clone()));
        }
        let contradiction = |text: &str| Err(DefinitionError::Contradiction(text.to_owned()));
        if self.cli.is_some() && !(self.tools.is_empty() && self.subagents.is_empty()) {
            return contradiction("a program brings its own tools: leave out tools and subagents");
        }
        if self.cli.is_some() && self.planning {
            return contradiction("a program keeps its own plans: leave out planning");
        }
        if self.limits.tool_calls.is_some_and(|most| most < 0) {
            return contradiction("limits.tool_calls is less than 0");
        }
        for (name, most) in [
            ("descendants", self.limits.descendants),
            ("delegation_depth", self.limits.delegation_depth),
        ] {
            if most.is_some_and(|most| most < 0) {
                return contradiction(&format!("limits.{name} is less than 0"));
            }
        }
        if let Some(schema) = &self.response_format {
            Parameters::of(schema).map_err(|why| {
                DefinitionError::Contradiction(format!("response_format is no JSON Schema: {why}"))
            })?;
        }
        Ok(())
    }

    /// Holds it to the tools that there are.
    ///
    /// # Errors
    /// It names some that there are not.
    pub fn check_tools(&self, tools: &Tools) -> Result<(), DefinitionError> {
        tools.view(self.selection())?;
        let asked = Selection {
            tools: Some(self.interrupt_on.keys().cloned().collect()),
            ..Selection::default()
        };
        tools.view(asked)?;
        self.subagents.iter().try_for_each(|subagent| match subagent {
            Subagent::Inline(inline) => inline.check_tools(tools),
            Subagent::Named(_) => Ok(()),
        })
    }

    /// The tools that it may use.
    #[must_use]
    pub fn selection(&self) -> Selection {
        Selection {
            tools: Some(self.tools.clone()),
            blocked: self.blocked_tools.clone(),
            excluded: self.excluded_tools.clone(),
        }
    }

    /// As it is registered.
    #[must_use]
    pub fn to_register(&self) -> NewAgent {
        let definition = match serde_json::to_value(self) {
            Ok(Value::Object(definition)) => definition,
            _ => Map::new(),
        };
        NewAgent {
            mode: Some(self.mode.into()),
            description: self.description.clone(),
            hidden: self.hidden,
            native: self.native,
            ..NewAgent::of(&self.name, definition)
        }
    }
}

/// What stands between the first two lines `---`, and what comes after.
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
    let open = "the front matter has no end: a line --- is missing";
    Err(DefinitionError::Malformed(open.to_owned()))
}

fn text_of(folder: &Path, below: &str, name: &str) -> Result<String, DefinitionError> {
    // A name, not a path.
    if name.is_empty() || name.contains(['/', '\\']) || name.starts_with('.') {
        let why = "it is a name without folders".to_owned();
        return Err(DefinitionError::Missing { what: format!("{below}/{name}.md"), why });
    }
    texts::read(folder, &Path::new(below).join(format!("{name}.md")), &["md"])
}

fn stored(store: Option<&dyn PromptStore>, name: &str) -> Result<String, DefinitionError> {
    let found = match store {
        Some(store) => store.prompt(name),
        None => Err("there is no prompt store".to_owned()),
    };
    found.map_err(|why| DefinitionError::Missing { what: format!("the prompt {name}"), why })
}

#[cfg(test)]
mod tests;
