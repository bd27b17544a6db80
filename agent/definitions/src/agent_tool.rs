//! Tools that stand for agents: `as_tool` starts a run of the agent, `as_handoff` lets it take over the turn.

use abide_client::arguments::{RegisterTool, Retry};
use abide_tools::{Effect, Parameters, ToolDeclaration};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How an agent appears as a tool of other agents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AsTool {
    /// The name of the tool; the default is the agent's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The description for the model; the default is the agent's description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the arguments, an object. The default has one text, `input`. The agent gets a single text as it
    /// is, and other arguments as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// How an agent takes over the turn of other agents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AsHandoff {
    /// The name of the tool; the default is `handoff_to_` and the agent's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The description for the model; the default is the agent's description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Names that belong to the runtime: no agent can be a tool with one of them, and a pause can name them in a definition without
/// the tool. Most are tools of the runtime, in `TOOLS` of `agent/src/tools/registry.rs`; a test there compares both lists.
pub const RESERVED: &[&str] = &[
    TASK,
    MANAGE_TODO_LIST,
    GET_TOOL_RESPONSE,
    "program_call",
    "remote_agent_input",
    HAND_BACK,
    REQUEST_SUPERVISOR,
    RESPONSE,
    SAVE_MEMORY,
    SEARCH_MEMORIES,
    FORGET_MEMORY,
];

/// The tool that keeps the plan.
pub const MANAGE_TODO_LIST: &str = "manage_todo_list";

/// The tool that fetches an archived result.
pub const GET_TOOL_RESPONSE: &str = "get_tool_response";

/// The tool that delegates to an agent by its name.
pub const TASK: &str = "task";

/// The hidden tool whose arguments are a structured answer.
pub const RESPONSE: &str = "response";

/// The tool that saves a fact.
pub const SAVE_MEMORY: &str = "save_memory";

/// The tool that searches facts.
pub const SEARCH_MEMORIES: &str = "search_memories";

/// The tool that deletes a fact.
pub const FORGET_MEMORY: &str = "forget_memory";

/// The tools of an agent with a memory.
pub const MEMORY_TOOLS: [&str; 3] = [SAVE_MEMORY, SEARCH_MEMORIES, FORGET_MEMORY];

/// The tool that ends a handoff.
pub const HAND_BACK: &str = "hand_back";

/// The tool that asks for a supervisor.
pub const REQUEST_SUPERVISOR: &str = "request_supervisor";

/// A tool that stands for an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentTool {
    /// Its name.
    pub name: String,
    /// The agent.
    pub agent: String,
    /// The effect of a call.
    pub kind: AgentToolKind,
    description: String,
    input: Value,
}

/// The effect of a call of such a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentToolKind {
    /// It starts a run of the agent in a session of its own.
    Delegates,
    /// The agent takes over the turn.
    HandsOff,
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

impl AgentTool {
    /// Returns the tools that stand for an agent with this name and description.
    pub fn for_agent(
        agent: &str,
        description: Option<&str>,
        as_tool: Option<&AsTool>,
        as_handoff: Option<&AsHandoff>,
    ) -> Vec<AgentTool> {
        // The name of an inline agent begins with that of its parent.
        let short = agent.rsplit('/').next().unwrap_or(agent);
        let about = |own: &Option<String>| own.clone().or_else(|| description.map(str::to_owned));
        let tool = as_tool.map(|tool| AgentTool {
            name: tool.name.clone().unwrap_or_else(|| short.to_owned()),
            agent: agent.to_owned(),
            kind: AgentToolKind::Delegates,
            description: about(&tool.description)
                .unwrap_or_else(|| format!("Asks the agent {agent} and waits for its answer.")),
            input: tool.input.clone().unwrap_or_else(|| {
                let what = "The task, with all the information that the agent needs.";
                json!({"type": "object", "additionalProperties": false, "required": ["input"],
                    "properties": {"input": {"type": "string", "description": what}}})
            }),
        });
        let handoff = as_handoff.map(|handoff| AgentTool {
            name: handoff.name.clone().unwrap_or_else(|| format!("handoff_to_{short}")),
            agent: agent.to_owned(),
            kind: AgentToolKind::HandsOff,
            description: about(&handoff.description)
                .unwrap_or_else(|| format!("Hands the conversation over to the agent {agent}.")),
            input: message("What the agent should know."),
        });
        tool.into_iter().chain(handoff).collect()
    }

    /// Checks the name and the schema.
    ///
    /// # Errors
    /// One sentence about the name or the schema.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_name_char) {
            return Err(format!(
                "{name:?} is not a tool name; a name has 1 to 64 letters, digits, _ and -; set name"
            ));
        }
        if RESERVED.contains(&name.as_str()) {
            return Err(format!(
                "the tool name {name} belongs to the runtime: choose another name"
            ));
        }
        Parameters::compile(&self.input)
            .map(drop)
            .map_err(|why| format!("as_tool.input is not a supported JSON Schema: {why}"))
    }

    /// Returns the tool as the model sees it.
    pub fn declaration(&self) -> ToolDeclaration {
        ToolDeclaration::new(&self.name, &self.description, self.input.clone())
    }

    /// Returns the registration of the tool.
    pub fn registration(&self) -> RegisterTool {
        let mark = json!({"agent": self.agent});
        RegisterTool { annotations: mark.as_object().cloned(), ..registration(self.declaration()) }
    }
}

/// Returns the registration of a tool that starts a run. The run has its own time limit, and each time that it waits
/// for a decision is an attempt of the call.
pub fn registration(mut declaration: ToolDeclaration) -> RegisterTool {
    // A repeated call finds the existing run.
    declaration.effect = Effect::Idempotent;
    declaration.retry =
        Some(Retry { max_attempts: Some(1_000), backoff_ms: Some(0), backoff_max_ms: Some(0) });
    RegisterTool { timeout_ms: None, ..declaration.manifest() }
}

/// Returns the schema of arguments with one optional message.
pub fn message(description: &str) -> Value {
    json!({"type": "object", "additionalProperties": false,
        "properties": {"message": {"type": "string", "description": description}}})
}
