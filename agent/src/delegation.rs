//! Work of other agents: runs of their own, and agents that take over the turn.
//!
//! | file | what it does |
//! |---|---|
//! | `composition`, `agent_tool` | the agents that a model sees, and those that are tools of their own |
//! | `task` | another agent runs in a child session |
//! | `handoff` | another agent takes over the turn |
//! | `supervisor` | a person answers |

mod agent_tool;
pub(crate) mod composition;
pub(crate) mod handoff;
pub(crate) mod supervisor;
pub(crate) mod task;
