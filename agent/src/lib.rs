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
//! In reading order: `definition` an agent, `profile` and `profile_settings` its numbers · `catalog` all agents, from files and built in · `transcript` the
//! messages for the model · `next_step` the next step, computed from rows · `driver` one run and how its steps read and
//! record, `step` how a step ends · `model_call` model requests, `model_choice` their models, `chosen_model` a choice in a definition, `guardrail` rules for
//! texts, `held` answers that a rule may still deny, `pattern_reach` how far a match extends, `verdict` their decision, `middleware` what else surrounds requests and calls, `redactor` and `redaction` personal data, `agent_middleware` and `hooks`
//! middleware in Rust · `request_size` tokens of a request, `compaction`
//! older messages, `summary` what stands for them, `summarized_context` the newest one · `tool_calls` tool calls, `claimed_call` their leases and outcomes, `tool_worker` those of no run, `call_arguments` their arguments, `plan` the planning tool,
//! `tool_response` archived results,
//! `delegate` the delegation tool, `agent_tool` and `composition` agents as tools, `handoff` agents that take over,
//! `budget` reservations, `pause` stages at which a run waits, `pause_rule` why, `recorded_run` recordings, `recorded_run_repeat` their repetition, `recorded_run_diff` its
//! differences, `tracer` traces, `trace` their spans, `trace_sink` where they go,
//! `memory` facts, `memory_block` their text, `memory_tools` their tools, `watchdog` health of a run, `structured` answers · `program` foreign agents, `program_output` their output,
//! `program_plan` their plans, `program_approvals` their permission requests · `drive` the loop · `drivers` one task per
//! run, `heartbeat` lease renewal · `runtime` claims runs · `contract` the API for clients that follow a run · `project`
//! the runtime's folder, `folder_texts` the files in it · `submitted` definitions received over the network.
//!
//! The files depend on each other in one direction: `runtime` → `drivers` → `drive` → the files of the steps →
//! `driver` → `definition`. No step uses the loop.

mod agent_middleware;
mod agent_tool;
mod budget;
mod call_arguments;
mod catalog;
mod chosen_model;
mod claimed_call;
mod compaction;
mod composition;
mod contract;
mod cycles;
mod definition;
mod definition_error;
mod delegate;
mod drive;
mod driver;
mod drivers;
mod folder_check;
mod folder_texts;
mod guardrail;
mod handoff;
mod health_state;
mod heartbeat;
mod held;
mod hooks;
mod memory;
mod memory_block;
mod memory_space;
mod memory_tools;
mod middleware;
mod model_call;
mod model_choice;
mod native;
mod next_step;
mod pattern_reach;
mod pause;
mod pause_rule;
mod plan;
mod profile;
mod profile_settings;
mod program;
mod program_approvals;
mod program_output;
mod program_plan;
mod project;
mod recorded_run;
mod recorded_run_diff;
mod recorded_run_repeat;
mod redaction;
mod redactor;
mod reduction;
mod replan;
mod request_size;
mod restart;
mod revision;
mod run_lease;
mod runtime;
mod runtime_context;
mod runtime_error;
mod settings;
mod step;
mod stopped;
mod structured;
mod submitted;
mod summarized_context;
mod summary;
mod tool_calls;
mod tool_response;
mod tool_worker;
mod trace;
mod trace_names;
mod trace_sink;
mod tracer;
mod transcript;
mod trusted_programs;
mod verdict;
mod watchdog;

pub use abide_tools::{
    BackendName, Environment, Launcher, McpServer, McpStatus, ToolDeclaration, ToolView, Tools,
    available_backends, sandbox_exec,
};
pub use agent_middleware::{AgentMiddleware, MiddlewareContext};
pub use agent_tool::{AsHandoff, AsTool};
pub use catalog::{Catalog, Problem};
pub use contract::{
    AgentEvent, Checkpoint, Events, RunState, abort, begin, checkpoints, invoke, state, state_at,
    until_turn_ends,
};
pub use definition::{
    AgentConfig, AgentDefinition, Limits, ModelChoice, Permission, PromptSource, PromptStore,
    Subagent,
};
pub use definition_error::DefinitionError;
pub use guardrail::{Guardrail, GuardrailAt, GuardrailName, Pattern, VerdictRule};
pub use middleware::{
    CustomMiddleware, Middleware, ModelFallback, Pii, PiiAt, PiiKind, ToolRetry, ToolSecurity,
};
pub use pause_rule::{PausePoint, PauseRule};
pub use profile::{CustomProfile, Profile, ProfileSettings};
pub use profile_settings::{
    ContextOverrides, ContextPolicy, ContextSettings, LimitSettings, MemoryOverrides, MemoryRead,
    MemoryScope, MemoryScopeRule, MemorySettings, MemoryWrite, PlanOverrides, PlanSettings, Preset,
    Replan, WatchdogOverrides, WatchdogSettings,
};
pub use project::{AgentProject, McpExposure, ProjectError};
pub use recorded_run::{
    RecordedConversation, RecordedMessage, RecordedOutcome, RecordedRun, RecordingError,
};
pub use recorded_run_diff::{RunChange, RunChangeKind};
pub use reduction::{Reduction, ReductionRules};
pub use runtime::Runtime;
pub use runtime_error::RuntimeError;
pub use settings::Settings;
pub use tool_worker::ToolWorker;
pub use trace_sink::{TraceConfig, TraceSink};
pub use tracer::Tracer;
