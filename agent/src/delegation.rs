//! Work of other agents: runs of their own, and agents that take over the turn.
//!
//! `composition` the agents that a model sees · `handoff` another agent takes over · `task` another agent runs in a
//! child session.

pub(crate) mod composition;
pub(crate) mod handoff;
pub(crate) mod task;
