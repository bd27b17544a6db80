//! What runs a call: one type for everything that a tool of an agent can be.

use std::sync::Arc;

use abide_tools::{Effect, Tool};
use serde_json::Value;

use crate::context::entry::RequestedCall;
use crate::run::driver::Driver;
use crate::tools::registry;
use crate::tools::runtime_tool::{CallOrder, RuntimeTool};

/// What runs the calls of a tool.
pub(crate) enum Executor<'a> {
    /// The runtime: its tools change the run that the call belongs to.
    Runtime(&'a dyn RuntimeTool),
    /// Code of this process, which runs the call itself, or gives it to a program, an HTTP or MCP server, or a remote agent.
    Process(Arc<dyn Tool>),
    /// Nothing: the tool is not there, or was removed after the call was requested.
    Missing,
}

impl<'a> Executor<'a> {
    /// Returns what runs the calls of a tool. Whether the active agent may call it is decided before, by [`Executor::admit`]: a call
    /// that was requested runs to its end, even if the tool is no longer one of the agent's.
    pub(crate) fn for_tool(driver: &'a Driver, tool: &str) -> Executor<'a> {
        match registry::find(driver, tool) {
            Some(tool) => Executor::Runtime(tool),
            None => match driver.shared.tools.get(tool) {
                Some(tool) => Executor::Process(tool),
                None => Executor::Missing,
            },
        }
    }

    /// Returns the tool, if it is one of the runtime.
    pub(crate) fn runtime_tool(&self) -> Option<&'a dyn RuntimeTool> {
        match *self {
            Executor::Runtime(tool) => Some(tool),
            Executor::Process(_) | Executor::Missing => None,
        }
    }

    /// Returns the parsed arguments of a call that a model requests.
    ///
    /// # Errors
    /// The text for the model: the agent does not have the tool, or the arguments do not fit.
    pub(crate) fn admit(&self, driver: &Driver, call: &RequestedCall) -> Result<Value, String> {
        match self {
            Executor::Runtime(tool) => registry::admit(driver, *tool, &call.arguments),
            Executor::Process(_) | Executor::Missing => {
                let admitted = driver.agent.tools.admit(&call.name, &call.arguments);
                Ok(admitted.map_err(|refused| refused.text)?.arguments)
            }
        }
    }

    /// Returns what a repetition of a call would do: the most that is possible if nothing says less.
    pub(crate) fn effect(&self) -> Effect {
        match self {
            Executor::Runtime(tool) => tool.effect(),
            Executor::Process(tool) => tool.declaration().effect,
            Executor::Missing => Effect::AtMostOnce,
        }
    }

    /// Returns when a call may run, relative to the other calls of its answer.
    pub(crate) fn order(&self) -> CallOrder {
        self.runtime_tool().map_or(CallOrder::Any, RuntimeTool::order)
    }

    /// Returns `true` if a call must not run before its claim is durable: it may take effect, or another system learns its id.
    /// After a crash that undoes the claim, the model is asked again, and another call could have the id.
    pub(crate) fn waits_for_disk(&self) -> bool {
        match self {
            // All that its tools do are rows of the same log as the claim.
            Executor::Runtime(_) => false,
            Executor::Process(tool) => self.effect() != Effect::ReadOnly || !tool.is_local(),
            Executor::Missing => true,
        }
    }
}
