//! The tools of the runtime itself: what the loop has to know about each of them, and the list of all.
//!
//! A new one is a file that implements [`RuntimeTool`], an entry in [`TOOLS`], and its name in
//! [`RESERVED`](abide_definitions::agent_tool::RESERVED).

use abide_client::ToolCall;
use abide_client::arguments::RegisterTool;
use abide_models::ToolSpec;
use abide_tools::{Effect, Parameters, ToolDeclaration, ToolOutcome};
use futures_util::future::{self, BoxFuture, FutureExt as _};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::context::entry::{CallResult, HandoffEntry};
use crate::delegation::handoff::HandBack;
use crate::delegation::supervisor::RequestSupervisor;
use crate::delegation::task::Task;
use crate::memory::tools::MemoryTool;
use crate::plan::todo_list::ManageTodoList;
use crate::run::driver::Driver;
use crate::run::step::Step;
use crate::tools::response::GetToolResponse;

/// The tools of the runtime, in the order in which a model sees them. Agents that are tools of other agents come after the first.
static TOOLS: [&dyn RuntimeTool; 8] = [
    &Task,
    &HandBack,
    &RequestSupervisor,
    &ManageTodoList,
    &GetToolResponse,
    &MemoryTool::Save,
    &MemoryTool::Search,
    &MemoryTool::Forget,
];

/// When a call may run, relative to the other calls of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOrder {
    /// One after the other, in the order of the answer, before all others: its effect depends on the calls before it.
    InSequence,
    /// Together with other calls.
    Any,
}

/// A claimed call of such a tool.
#[derive(Clone, Copy)]
pub(crate) struct RunningCall<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) claimed: &'a ToolCall,
    /// Cancelled when the call has to stop.
    pub(crate) cancel: &'a CancellationToken,
}

/// What a model gets of a call.
pub(crate) struct Delivery {
    pub(crate) result: CallResult,
    /// The change of the active agent, which takes effect with the message of the result.
    pub(crate) handoff: Option<HandoffEntry>,
}

/// A tool that the runtime provides. Its calls are rows like all others: they are requested, approved, claimed and recorded by
/// the same code.
pub(crate) trait RuntimeTool: Send + Sync {
    /// Returns the tool as it is registered.
    fn declaration(&self) -> ToolDeclaration;

    fn name(&self) -> &str;

    /// Returns the registration of the tool.
    fn registration(&self) -> RegisterTool {
        ToolDeclaration { effect: self.effect(), ..self.declaration() }.manifest()
    }

    /// Returns `false` if an agent that does not have the tool can have a tool of the user with its name.
    fn is_reserved(&self) -> bool {
        true
    }

    /// Returns why the active agent does not have the tool now, for the model; `None` if it has it.
    fn missing(&self, driver: &Driver) -> Option<&'static str>;

    /// Returns the tool as the model of an agent sees it that has it.
    fn spec(&self, _: &Driver) -> ToolSpec {
        let ToolDeclaration { name, description, parameters, .. } = self.declaration();
        ToolSpec { name, description, parameters }
    }

    /// Returns what a repetition of a call would do. All effects are rows of the same log as the claim of the call, so a claim
    /// need not be durable before the call runs: a crash undoes both.
    fn effect(&self) -> Effect;

    fn order(&self) -> CallOrder;

    /// Returns `true` if its calls start runs. The session of such a run has the id of the call.
    fn starts_run(&self) -> bool {
        false
    }

    /// Returns `true` if a call changes the active agent when its result is delivered.
    fn changes_agent(&self) -> bool {
        false
    }

    /// Runs a call. Returns its outcome; `None` if the call has recorded it, or if it waits.
    fn run<'a>(&'a self, call: RunningCall<'a>) -> BoxFuture<'a, Step<Option<ToolOutcome>>>;

    /// Returns what the model gets of a call that has ended.
    fn deliver<'a>(
        &'a self,
        _: &'a Driver,
        _: &'a ToolCall,
        result: CallResult,
    ) -> BoxFuture<'a, Step<Delivery>> {
        future::ready(Ok(Delivery { result, handoff: None })).boxed()
    }
}

/// Returns all tools of the runtime, also those that no agent has.
pub(crate) fn all() -> impl Iterator<Item = &'static dyn RuntimeTool> {
    TOOLS.into_iter()
}

/// Returns the tool of the runtime that a name means for the active agent.
pub(crate) fn find<'a>(driver: &'a Driver, name: &str) -> Option<&'a dyn RuntimeTool> {
    if let Some(tool) = driver.composition.tool(name) {
        return Some(tool);
    }
    let tool = TOOLS.into_iter().find(|tool| tool.name() == name)?;
    (tool.is_reserved() || tool.missing(driver).is_none()).then_some(tool)
}

/// Returns `true` if a call starts a run, or has started one.
pub(crate) fn starts_run(driver: &Driver, call: &ToolCall) -> bool {
    find(driver, &call.tool_name).is_some_and(RuntimeTool::starts_run)
}

/// Returns `true` if a call changes the active agent when its result is delivered.
pub(crate) fn changes_agent(driver: &Driver, call: &ToolCall) -> bool {
    find(driver, &call.tool_name).is_some_and(RuntimeTool::changes_agent)
}

/// Returns the tools of the runtime that the active agent has, as its model sees them.
pub(crate) fn specs(driver: &Driver) -> Vec<ToolSpec> {
    let (delegates, others) = TOOLS.split_at(1);
    let agents = driver.composition.tools.iter().map(|tool| tool as &dyn RuntimeTool);
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
    let fitted = Parameters::of(&tool.spec(driver).parameters)?.fit_text(arguments);
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
        assert_eq!(names, RESERVED.into());
    }

    #[test]
    fn the_name_of_a_tool_is_that_of_its_declaration() {
        for tool in TOOLS {
            assert_eq!(tool.declaration().name, tool.name());
        }
    }
}
