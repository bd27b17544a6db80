//! The rows of the built-in tables, and the types of their columns.
//!
//! [`Query::fetch`](crate::Query::fetch) and [`Abide::subscribe_as`](crate::Abide::subscribe_as) decode rows as these
//! types, and calls return them. `#[table]` declares those of custom modules.

pub use abide_reducers::{
    Agent, AgentAllow, AgentMode, AgentRevision, AgentState, Approval, ApprovalStatus,
    ArchivedResult, ContextSummary, Effect, ExchangeKind, HandoffRequest, HandoffStatus,
    HealthAction, Identity, LostLease, Memory, MemoryVector, Pause, PauseStage, PauseStatus,
    PlanStep, PlanStepStatus, PlanVersion, Prompt, PromptLabel, PromptVersion, Reservation, Role,
    Run, RunBudget, RunCorrection, RunEvent, RunEventKind, RunHealth, RunImport, RunSnapshot,
    RunStatus, RunTrace, Session, SessionFork, SessionPlan, SessionStatus, Timer, TimerStatus,
    Token, Tool, ToolCall, ToolCallStatus, ToolExchange, TraceStatus, Webhook, WebhookState,
    WebhookStatus, WithheldAnswer,
};
