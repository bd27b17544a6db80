//! The built-in reducers: what can happen to a session, and its consequences. One file per domain contains its
//! rows, arguments, rules and refusals; a new domain is a new file and an entry in the list below. If rules of several
//! domains call each other, a domain is a folder: other domains use its `rows.rs`, which uses no rules.
//!
//! It changes when a product rule changes. It does not depend on HTTP, threads or storage: it accesses rows
//! through [`abide_schema::Context`].
//!
//! # What bounds the work of a call
//!
//! A call occupies the only writer, so its work is bounded by constants or by the size of its arguments, and never by the
//! number of stored rows or the size of more than one. A loop over stored rows that can be large counts rows and bytes, and reads one row at a
//! time:
//!
//! | work | rows | bytes | then |
//! |---|---|---|---|
//! | ending a session or a run: [`cleanup`] | `CLEANUP_ROWS` | `CLEANUP_BYTES` | the next step |
//! | forking a session: [`mod@snapshot::fork`] | `FORK_STEP_ROWS` | `FORK_STEP_BYTES` | the next step |
//! | claiming the next call of some tools, or the next run | `ROWS_EXAMINED_PER_CLAIM` for all tools together | `CLAIM_BYTES`; active runs are small | what was found is claimed |
//! | deleting or replacing entries: [`collection`] | `ENTRIES_DELETED`, `ENTRIES_OF_A_CALL` | `ENTRIES_BYTES` | `more`, or refused |
//! | exporting a run: [`mod@snapshot::export`] | `SNAPSHOT_ROWS` | `SNAPSHOT_BYTES` | refused |
//! | importing a run: [`mod@snapshot::import`] | its arguments | its arguments | |
//! | facts: [`memory`] | `MEMORIES_OF_A_CALL`, `MEMORIES_OF_A_SPACE` | `MEMORY_VALUE_BYTES` each | refused |
//! | a plan, the labels of a prompt, the webhooks of a run, the questions of a call, the runs above one | a small limit of each | | |
//!
//! All other reducers handle one row and what directly belongs to it, also those that the engine calls: for timers, leases,
//! retries, approvals, handoffs and deadlines. So the largest step is one row with megabytes. `reducers/tests/rules/costs.rs` counts the
//! steps of each reducer over files of different sizes; rows of many bytes are in `tests/it/cleanup.rs`,
//! `tests/it/claims.rs` and `tests/it/forks.rs`.

mod access;
pub mod agent;
pub mod approval;
pub mod arguments;
pub mod budget;
pub mod cleanup;
pub mod collection;
pub mod correction;
pub mod delegation;
pub mod exchange;
pub mod handoff;
pub mod health;
pub mod memory;
pub mod message;
pub mod pause;
pub mod plan;
pub mod prompt;
pub mod run;
pub mod session;
pub mod snapshot;
pub mod summary;
pub mod timer;
pub mod tool;
pub mod tool_call;
pub mod trace;
pub mod usage;
pub mod webhook;
pub mod withheld;

mod check;
mod claim_queue;
mod lease;

use abide_schema::Module;

pub use access::denial;
pub use access::denial::DeniedAttempt;
pub use access::identity;
pub use access::identity::Identity;
pub use access::policy;
pub use access::policy::Policy;
pub use access::role;
pub use access::role::Role;
pub use access::token;
pub use access::token::Token;
pub use agent::{Agent, AgentAllow, AgentMode, AgentRevision};
pub use approval::{Approval, ApprovalStatus};
pub use budget::{Reservation, RunBudget};
pub use claim_queue::WaitingEntry;
pub use cleanup::{Cleanup, CleanupKind};
pub use collection::{Collection, Entry};
pub use correction::RunCorrection;
pub use delegation::Delegation;
pub use exchange::{ExchangeKind, NewExchange, NewInput, ToolExchange};
pub use handoff::{HandoffRequest, HandoffStatus};
pub use health::{HealthAction, NewHealth, RunHealth, WatchdogActions};
pub use memory::{Memory, MemoryVector, NewMemory, NewMemoryVector};
pub use message::AgentState;
pub use pause::{Pause, PauseStage, PauseStatus};
pub use plan::{PlanStep, PlanStepStatus, PlanVersion, SessionPlan};
pub use prompt::{Prompt, PromptLabel, PromptVersion};
pub use run::{Run, RunEvent, RunEventKind, RunStatus};
pub use session::{Session, SessionStatus};
pub use snapshot::{RunImport, RunMove, RunSnapshot, SessionFork};
pub use summary::{ArchivedResult, ContextSummary};
pub use timer::{Timer, TimerStatus};
pub use tool::{Effect, Tool};
pub use tool_call::{LostLease, ToolCall, ToolCallStatus};
pub use trace::{RunTrace, TraceStatus};
pub use webhook::{Webhook, WebhookState, WebhookStatus};
pub use withheld::WithheldAnswer;

/// Returns the built-in modules, in the order in which their tables are created. Custom modules are registered
/// after them in the same way.
#[must_use]
pub fn modules() -> Vec<Module> {
    vec![
        session::module(),
        message::module(),
        tool::module(),
        tool_call::module(),
        approval::module(),
        handoff::module(),
        agent::module(),
        run::module(),
        delegation::module(),
        budget::module(),
        timer::module(),
        policy::module(),
        role::module(),
        identity::module(),
        token::module(),
        denial::module(),
        cleanup::module(),
        collection::module(),
        withheld::module(),
        // Not last: if the newest object of the schema is a view, SQLite's integrity check reports no unused pages.
        usage::module(),
        correction::module(),
        pause::module(),
        snapshot::module(),
        trace::module(),
        memory::module(),
        health::module(),
        summary::module(),
        plan::module(),
        prompt::module(),
        webhook::module(),
        exchange::module(),
    ]
}
