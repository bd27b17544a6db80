//! The definition of an agent: what a file, a request or Rust code can say about it, and what it resolves to. No file
//! here reads rows or asks a model.
//!
//! `agent` an agent · `agent_tool` tools that stand for agents · `chosen_model` the choice of a model · `error` why a
//! definition is refused · `guardrail` rules for texts · `middleware` what surrounds requests and calls · `pause_rule`
//! where a run pauses · `profile` named sets of numbers · `profile_settings` the numbers · `prompt_source` where the
//! system prompt is.

pub(crate) mod agent;
pub(crate) mod agent_tool;
pub(crate) mod chosen_model;
pub(crate) mod error;
pub(crate) mod guardrail;
pub(crate) mod middleware;
pub(crate) mod pause_rule;
pub(crate) mod profile;
pub(crate) mod profile_settings;
pub(crate) mod prompt_source;
