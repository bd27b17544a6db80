//! Work of other agents: runs of their own, and agents that take over the turn.
//!
//! `agent_tool` agents as tools · `composition` the agents that a model sees · `handoff` another agent takes over · `supervisor` a person answers · `task`
//! another agent runs in a child session.

mod agent_tool;
pub(crate) mod composition;
pub(crate) mod handoff;
pub(crate) mod supervisor;
pub(crate) mod task;
