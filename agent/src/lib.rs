//! The agent runtime: the definition of agents, and the loop that drives their runs. It is an ordinary client of
//! Abide: every step is a reducer call, so any driver can continue a run from its rows.
//!
//! This crate changes when the definition of an agent or the sequence of a turn changes. It does not depend on
//! SQLite, and it keeps no state that it could not read again.
//!
//! ```text
//! definition ─▶ catalog ─▶ agents, agent_revisions
//!                               │ start_run
//!                               ▼
//!  runtime: claim ─▶ drive: look ─▶ stage ─▶ ask · request · run · deliver · wait · finish
//!                            ▲                            │ one batch each, under the lease
//!                            └────────────────────────────┘
//! ```
//!
//! In reading order: `definition` an agent · `catalog` all agents, from files and built in · `transcript` the
//! messages for the model · `stage` the next step, computed from rows · `drive` the loop · `ask` model requests,
//! `call` tool calls, `plan` the planning tool, `structured` answers · `program` foreign agents, `heard` their
//! output, `noted` their plans, `consent` their permission requests · `drivers` one task per run, `beat` lease
//! renewal · `runtime` claims runs · `contract` the API for clients that follow a run · `workshop` the runtime's
//! folder, `texts` the files in it · `posted` definitions received over the network.

mod ask;
mod beat;
mod call;
mod catalog;
mod consent;
mod contract;
mod cycles;
mod definition;
mod delegate;
mod drive;
mod drivers;
mod guardrail;
mod heard;
mod native;
mod noted;
mod plan;
mod posted;
mod program;
mod runtime;
mod stage;
mod structured;
mod texts;
mod transcript;
mod trusted;
mod workshop;

pub use abide_tools::{Environment, McpServer, Tools};
pub use catalog::{Catalog, Problem};
pub use contract::{
    AgentEvent, Checkpoint, Events, RunState, abort, begin, checkpoints, invoke, state, state_at,
    until_turn_ends,
};
pub use definition::{
    AgentConfig, AgentDefinition, DefinitionError, Limits, ModelChoice, Permission, PromptSource,
    PromptStore, Subagent,
};
pub use guardrail::{Guardrail, GuardrailAt};
pub use runtime::{Runtime, RuntimeError, Settings};
pub use workshop::{Workshop, WorkshopError};
