//! The agent runtime: what an agent is, and the loop that drives its runs. A client of Abide like any
//! other: every step is a reducer call, so a run goes on where it stands, whoever drives it next.
//!
//! Changes when it changes what an agent may be told to be, or how a turn goes. It knows nothing of SQLite,
//! and keeps nothing that it could not read again.
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
//! In reading order: `definition` what an agent is · `catalog` which there are, in files and built in ·
//! `transcript` messages as a model reads them · `stage` what is to be done next, from rows alone · `drive` the
//! loop · `ask` a model, `call` tools, `plan` one of them, `structured` answers · `program` a foreign agent, `heard`
//! what it says, `noted` its plans, `consent` what it asks to be let do · `drivers` a task for each run, `beat` their
//! signs of life · `runtime` who drives what · `contract` how others follow a run · `workshop` a folder with all of it,
//! `texts` what is read of it · `posted` definitions that come over the network.

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
