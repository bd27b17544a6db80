//! The agents that an agent can use, as its model sees them: by the tool `task`, as tools of their own, or as agents
//! that take over the turn.
//!
//! The definitions of agents that are referred to by name are read when a driver starts. Their tools are registered
//! then, because a call belongs to a registered tool.

use abide_client::rows::{AgentRevision, Tool};
use abide_client::{Abide, Error};
use abide_definitions::agent::{AgentDefinition, Subagent};
use abide_definitions::agent_tool::AgentTool;

use crate::run::step::RunFailure;

/// The agents that an agent can use.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Composition {
    /// The agents that `task` can name.
    pub(crate) tasks: Vec<String>,
    /// The agents with tools of their own.
    pub(crate) tools: Vec<AgentTool>,
}

impl Composition {
    /// Reads the definitions that a definition refers to, and registers the tools that stand for them.
    pub(crate) async fn load(
        abide: &Abide,
        definition: &AgentDefinition,
    ) -> Result<Result<Composition, RunFailure>, Error> {
        let mut composition = Composition::default();
        for subagent in &definition.subagents {
            let agent = subagent.registered_name(&definition.name);
            let tools = match subagent {
                Subagent::Inline(inline) => {
                    AgentDefinition { name: agent, ..(**inline).clone() }.agent_tools()
                }
                Subagent::Named(name) => {
                    let named = newest(abide, name).await?;
                    named.as_ref().map(AgentDefinition::agent_tools).unwrap_or_default()
                }
            };
            if tools.is_empty() {
                composition.tasks.push(subagent.name().to_owned())
            } else {
                composition.tools.extend(tools)
            }
        }
        for tool in &composition.tools {
            if let Err(why) = register(abide, tool).await? {
                return Ok(Err(why));
            }
        }
        Ok(Ok(composition))
    }

    /// Returns the tool with a name.
    pub(crate) fn tool(&self, name: &str) -> Option<&AgentTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

/// Returns the newest definition of an agent, if it can be read.
async fn newest(abide: &Abide, name: &str) -> Result<Option<AgentDefinition>, Error> {
    let sql = "SELECT r.* FROM agents AS a JOIN agent_revisions AS r ON r.agent = a.name \
               AND r.revision = a.revision WHERE a.name = :name";
    let found: Vec<AgentRevision> = abide.sql(sql).param("name", name).fetch().await?;
    let definition = found.first().map(|found| found.definition.value());
    Ok(definition.and_then(|definition| AgentDefinition::from_json(&definition).ok()))
}

/// Registers a tool, unless another tool has its name.
async fn register(abide: &Abide, tool: &AgentTool) -> Result<Result<(), RunFailure>, Error> {
    let sql = "SELECT * FROM tools WHERE name = :name";
    let found: Vec<Tool> = abide.sql(sql).param("name", &tool.name).fetch().await?;
    let belongs_to_other = found.first().is_some_and(|found| {
        let annotations = found.annotations.as_ref().map(|it| it.value());
        annotations.is_none_or(|it| it["agent"] != tool.agent.as_str())
    });
    if belongs_to_other {
        let name = &tool.name;
        let agent = &tool.agent;
        let why = format!("agent {agent} cannot be the tool {name}: another tool has that name");
        return Ok(Err(RunFailure::new("tool_conflict", why)));
    }
    abide.call(tool.registration()).await?;
    Ok(Ok(()))
}
