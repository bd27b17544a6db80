//! The list of the runtime's tools.
//!
//! A new one is a file that implements [`RuntimeTool`], an entry in [`TOOLS`], and its name in
//! [`RESERVED`](abide_definitions::agent_tool::RESERVED); `CONTRIBUTING.md` describes the steps.

use abide_client::rows::ToolCall;
use abide_models::ToolSpec;
use abide_tools::Parameters;
use serde_json::Value;

use crate::delegation::handoff::HandBack;
use crate::delegation::supervisor::RequestSupervisor;
use crate::delegation::task::Task;
use crate::memory::tools::MemoryTool;
use crate::plan::todo_list::ManageTodoList;
use crate::run::driver::Driver;
use crate::tools::response::GetToolResponse;
use crate::tools::runtime_tool::RuntimeTool;

/// The tools of the runtime, in the order in which a model sees them. Agents that are tools of other agents come after the first.
static TOOLS: &[&dyn RuntimeTool] = &[
    &Task,
    &HandBack,
    &RequestSupervisor,
    &ManageTodoList,
    &GetToolResponse,
    &MemoryTool::Save,
    &MemoryTool::Search,
    &MemoryTool::Forget,
];

/// Returns all tools of the runtime, also those that no agent has.
pub(crate) fn all() -> impl Iterator<Item = &'static dyn RuntimeTool> {
    TOOLS.iter().copied()
}

/// Returns the tool of the runtime that a name means for the active agent: a tool that stands for an agent, or one of [`TOOLS`]. A
/// reserved name never means a tool of the user, even for an agent without the tool.
pub(crate) fn find<'a>(driver: &'a Driver, name: &str) -> Option<&'a dyn RuntimeTool> {
    if let Some(tool) = driver.agent.composition.tool(name) {
        return Some(tool);
    }
    let tool = all().find(|tool| tool.name() == name)?;
    (tool.is_reserved() || tool.missing(driver).is_none()).then_some(tool)
}

/// Returns `true` if a call starts a run, or has started one.
pub(crate) fn starts_run(driver: &Driver, call: &ToolCall) -> bool {
    find(driver, &call.tool_name).is_some_and(RuntimeTool::starts_run)
}

/// Returns those calls that have started runs.
pub(crate) fn started_runs<'a>(
    driver: &'a Driver,
    calls: &'a [ToolCall],
) -> impl Iterator<Item = &'a ToolCall> {
    calls.iter().filter(move |call| call.attempt > 0 && starts_run(driver, call))
}

/// Returns `true` if a call changes the active agent when its result is delivered.
pub(crate) fn changes_agent(driver: &Driver, call: &ToolCall) -> bool {
    find(driver, &call.tool_name).is_some_and(RuntimeTool::changes_agent)
}

/// Returns the tools of the runtime that the active agent has, as its model sees them.
pub(crate) fn specs(driver: &Driver) -> Vec<ToolSpec> {
    let (delegates, others) = TOOLS.split_at(1);
    let agents = driver.agent.composition.tools.iter().map(|tool| tool as &dyn RuntimeTool);
    let all = delegates.iter().copied().chain(agents).chain(others.iter().copied());
    all.filter(|tool| tool.missing(driver).is_none()).map(|tool| tool.spec(driver)).collect()
}

/// Returns the parsed arguments of a call.
///
/// # Errors
/// The text for the model: the agent does not have the tool, or the arguments do not fit.
pub(crate) fn admit(
    driver: &Driver,
    tool: &dyn RuntimeTool,
    arguments: &str,
) -> Result<Value, String> {
    let name = tool.name();
    if let Some(why) = tool.missing(driver) {
        return Err(format!("there is no tool {name}: {why}"));
    }
    let fitted = Parameters::compile(&tool.spec(driver).parameters)?.fit_text(arguments);
    Ok(fitted.map_err(|mismatch| format!("{name}: {mismatch}"))?.arguments)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use abide_definitions::agent_tool::{RESERVED, RESPONSE};

    use super::TOOLS;

    /// Names of the runtime that are no tools of a model: questions of programs and servers, and the structured answer.
    const NOT_CALLED: [&str; 3] = ["program_call", "remote_agent_input", RESPONSE];

    #[test]
    fn every_tool_has_a_reserved_name() {
        let names: BTreeSet<&str> =
            TOOLS.iter().map(|tool| tool.name()).chain(NOT_CALLED).collect();
        assert_eq!(names, RESERVED.iter().copied().collect());
    }

    #[test]
    fn the_name_of_a_tool_is_that_of_its_declaration() {
        for tool in TOOLS {
            assert_eq!(tool.declaration().name, tool.name());
        }
    }
}
