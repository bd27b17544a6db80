//! The agent runtime: the loop that drives the runs of agents. It is an ordinary client of
//! Abide: every step is a reducer call, so any driver can continue a run from its rows.
//!
//! This crate changes when the sequence of a turn changes. It does not depend on
//! SQLite, and it keeps no state that it could not read again.
//!
//! ```text
//! definition ─▶ catalog ─▶ agents, agent_revisions
//!                               │ start_run
//!                               ▼
//!  dispatcher: claim ─▶ driver: refresh ─▶ decide ─▶ ask · request · run · deliver · wait · finish
//!                          ▲                            │ one batch each, under the lease
//!                          └────────── apply ───────────┘
//! ```
//!
//! | folder | what it does |
//! |---|---|
//! | `agent_loop` | own code in place of the loop |
//! | `catalog` | all agents: the folder, the native ones, those from the network |
//! | `run` | the loop: claims runs, computes the next step from rows, performs it |
//! | `context` | what a model reads, and compaction |
//! | `model` | requests to models and their answers |
//! | `middleware` | guardrails, redaction, middleware in Rust |
//! | `tools` | tool calls |
//! | `delegation` | other agents as tools, and those that take over |
//! | `plan`, `memory`, `watchdog` | plans, facts, health of a run |
//! | `program` | command-line programs as agents |
//! | `remote_agent` | agents that are reached by A2A |
//! | `recorded_run`, `trace` | recordings and traces of runs |
//! | `contract` | the API for clients that follow a run |
//!
//! The centre is `run`: a driver makes the rows of its run current (`run::read`), `RunState::decide` returns the next action from
//! them alone, the driver performs it, and `RunState::apply` takes over the rows that it has written.

mod agent_loop;
mod catalog;
mod context;
mod contract;
mod delegation;
mod memory;
mod middleware;
mod model;
mod plan;
mod program;
mod recorded_run;
mod remote_agent;
mod run;
mod tools;
mod trace;
mod watchdog;

pub use abide_definitions::agent::{
    AgentConfig, AgentDefinition, Limits, ModelChoice, Permission, Subagent,
};
pub use abide_definitions::agent_tool::{AsHandoff, AsTool};
pub use abide_definitions::error::{DefinitionError, Position, suggestion_for_run};
pub use abide_definitions::guardrail::{
    Guardrail, GuardrailAt, GuardrailName, Pattern, VerdictRule,
};
pub use abide_definitions::middleware::{
    CustomMiddleware, Middleware, ModelFallback, Observability, ObservedAt, Pii, PiiAt, PiiKind,
    Streaming, ToolRetry, ToolSecurity,
};
pub use abide_definitions::pause_rule::{PausePoint, PauseRule};
pub use abide_definitions::profile::{CustomProfile, Profile, ProfileSettings};
pub use abide_definitions::profile_settings::{
    ContextOverrides, ContextPolicy, ContextSettings, LimitSettings, MemoryOverrides, MemoryRead,
    MemoryScope, MemoryScopeRule, MemorySettings, MemoryWrite, PlanOverrides, PlanSettings, Preset,
    Replan, WatchdogOverrides, WatchdogSettings,
};
pub use abide_definitions::project_config::{TraceConfig, TraceSink};
pub use abide_definitions::prompt_source::{PromptOrigin, PromptSource, PromptStore};
pub use abide_definitions::reduction_rules::{Reduction, ReductionRules};
pub use abide_models::{ModelMessage, ModelRequest, ModelResponse};
pub use abide_programs::EndSignal;
pub use abide_tools::{
    BackendName, Concurrency, Environment, Launcher, McpServer, McpStatus, ToolDeclaration,
    ToolView, Tools, available_backends, media_type, sandbox_exec, unreadable_on_path,
};
pub use futures_util::future::BoxFuture;

pub use agent_loop::{AgentLoop, AgentLoops, LoopCallResult, LoopError, LoopRun};
pub use catalog::agents::{Catalog, FoundAgent, Problem};
pub use catalog::folder_check::check_definitions;
pub use catalog::project::{AgentProject, McpExposure, ProjectError, ProjectSource, mcp_servers};
pub use catalog::project_reload::{FolderChange, FolderChanges};
pub use context::entry::CallStatus;
pub use contract::{
    AgentEvent, Checkpoint, RunEvents, SessionState, abort, begin, checkpoints, invoke, state,
    state_at, until_turn_ends,
};
pub use middleware::agent_middleware::{AgentMiddleware, MiddlewareContext};
pub use program::reparse::{ReparseError, Reparsed, ReparsedChange};
pub use recorded_run::diff::{RunChange, RunChangeKind};
pub use recorded_run::recording::{
    RecordedConversation, RecordedEnding, RecordedMessage, RecordedOutcome, RecordedRun,
    RecordingError,
};
pub use run::error::RuntimeError;
pub use run::runtime::{Runtime, RuntimeBuilder};
pub use run::settings::{Settings, SettingsClock};
pub use run::shutdown::Shutdown;
pub use tools::worker::ToolWorker;
pub use trace::metrics::AgentMetrics;
pub use trace::tracer::Tracer;
