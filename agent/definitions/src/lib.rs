//! Definitions of agents: what a file, a request or Rust code can say about an agent, and what it resolves to.
//!
//! This crate changes when definitions get a field, or a field gets another meaning. Nothing here reads rows, asks a model or runs a tool.
//!
//! `agent` an agent · `agent_tool` tools that stand for agents · `error` why a definition is refused · `folder_texts`
//! the files of a folder · `guardrail` rules for texts · `literal_secret` secrets in plain text · `middleware` what
//! surrounds requests and calls · `model_choice` a model of a provider · `pause_rule` where a run pauses · `place` the
//! place of an error in its file · `profile` named sets of numbers · `profile_settings` the numbers · `project_config`
//! `abide.yaml` · `prompt_source` where the system prompt is · `reduction_rules` what a summary replaces · `supervisor`
//! whom an agent can ask.

pub mod agent;
pub mod agent_tool;
pub mod error;
pub mod folder_texts;
pub mod guardrail;
pub mod literal_secret;
pub mod middleware;
pub mod model_choice;
pub mod pause_rule;
mod place;
pub mod profile;
pub mod profile_settings;
pub mod project_config;
pub mod prompt_source;
pub mod reduction_rules;
pub mod supervisor;
