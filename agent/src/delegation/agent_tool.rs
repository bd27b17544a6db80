//! Tools that stand for agents. A call of one kind starts a run of the agent in a session of its own (`task`); a call
//! of the other lets the agent take over the turn (`handoff`).

use abide_client::arguments::RegisterTool;
use abide_definitions::agent_tool::{AgentTool, AgentToolKind};
use abide_tools::{Effect, ToolDeclaration, ToolOutcome};
use futures_util::future::{BoxFuture, FutureExt as _};

use crate::delegation::{handoff, task};
use crate::run::driver::Driver;
use crate::run::step::Step;
use crate::tools::runtime_tool::{CallOrder, RunningCall, RuntimeTool};

impl RuntimeTool for AgentTool {
    fn declaration(&self) -> ToolDeclaration {
        AgentTool::declaration(self)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn registration(&self) -> RegisterTool {
        AgentTool::registration(self)
    }

    fn missing(&self, _: &Driver) -> Option<&'static str> {
        None
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn order(&self) -> CallOrder {
        match self.kind {
            AgentToolKind::Delegates => CallOrder::Any,
            AgentToolKind::HandsOff => CallOrder::InSequence,
        }
    }

    fn starts_run(&self) -> bool {
        self.kind == AgentToolKind::Delegates
    }

    fn changes_agent(&self) -> bool {
        self.kind == AgentToolKind::HandsOff
    }

    fn run<'a>(&'a self, call: RunningCall<'a>) -> BoxFuture<'a, Step<Option<ToolOutcome>>> {
        match self.kind {
            AgentToolKind::Delegates => task::run(call).boxed(),
            AgentToolKind::HandsOff => handoff::run(call).boxed(),
        }
    }
}
