//! The agent that acts in a run: the run's own agent, or one that has taken over the turn.

use std::sync::Arc;

use abide_client::{Abide, Error};
use abide_definitions::agent::AgentDefinition;
use abide_tools::{ToolView, Tools};
use tokio::sync::OnceCell;

use crate::delegation::composition::Composition;
use crate::memory::space::MemorySpace;
use crate::run::step::RunFailure;

/// The active agent of a run.
pub(crate) struct ActiveAgent {
    pub(crate) definition: Arc<AgentDefinition>,
    pub(crate) tools: ToolView,
    /// The agents that it can use.
    pub(crate) composition: Composition,
    /// Where it keeps its facts, once that has been looked up.
    pub(crate) memory: OnceCell<MemorySpace>,
    /// Its request guardrails allow the messages up to this id.
    pub(crate) checked_id: i64,
}

impl ActiveAgent {
    /// Returns the agent with a definition, after it has read the definitions of the agents that it can use.
    pub(crate) async fn load(
        abide: &Abide,
        tools: &Tools,
        definition: Arc<AgentDefinition>,
    ) -> Result<Result<ActiveAgent, RunFailure>, Error> {
        let composition = match Composition::load(abide, &definition).await? {
            Ok(composition) => composition,
            Err(conflict) => return Ok(Err(conflict)),
        };
        Ok(Ok(ActiveAgent {
            tools: tools.view_of_known(definition.selection()),
            definition,
            composition,
            memory: OnceCell::new(),
            checked_id: 0,
        }))
    }
}
