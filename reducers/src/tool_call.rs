//! Tool calls: requested once, claimed under a lease, completed by the holder.
//!
//! ```text
//! awaiting_approval ─▶ pending ─▶ claimed ─▶ succeeded
//!        │               │  ▲        │ ├───▶ failed
//!        ▼               ▼  └────────┘ ├───▶ cancelled
//!  rejected, cancelled  cancelled      └───▶ unknown ─▶ succeeded, failed (settled)
//! ```
//!
//! `call_id` is Abide's key; the caller derives it from session and position. A model provider's own id
//! cannot be the key: recorded conversations reuse it for different calls, and some have none.
//!
//! A lease is lost according to the log: it has expired ([`lapse_tool_call()`]) or another worker claimed the call
//! afterwards. Later reports of its former holder are refused, and kept in `lost_leases`.
//!
//! The rows are in `tool_call/rows.rs`; then follow [`mod@request`], [`mod@claim`], [`mod@finish`] (by the holder, on
//! expiry, by settlement) and [`mod@cancel`].

use abide_schema::Module;
use abide_schema::reducer::{ColumnName, RowVisibility, WaitingRows};

use crate::claim_queue::WaitingEntry;

pub mod cancel;
pub mod claim;
pub mod finish;
pub mod request;

mod holder;
mod pace;
mod rows;

pub use cancel::{acknowledge_cancel, cancel_tool_call};
pub use claim::{claim_next_tool_call, claim_tool_call, heartbeat_tool_call, retry_tool_call};
pub use finish::{complete_tool_call, fail_tool_call, lapse_tool_call, settle_tool_call};
pub(crate) use holder::find_claimed;
use holder::{holds_claim, lost_lease, not_held};
pub use pace::ToolClaim;
pub use request::request_tool_call;
pub use rows::{LostLease, Outcome, ToolCall, ToolCallStatus};
pub(crate) use rows::{RequestedCall, find, find_pinned, has_any, save};

/// Calls with an unknown outcome, with all available information: they must be settled.
const UNKNOWN_CALLS: &str = "SELECT c.call_id, c.session_id, c.tool_name, c.arguments, c.attempt,
  c.claimed_by, c.claimed_at, c.error, l.lost_at, l.outcome AS late_outcome, l.result AS late_result,
  l.error AS late_error, l.reported_at, c.seq
FROM tool_calls c
LEFT JOIN lost_leases l ON l.call_id = c.call_id AND l.attempt = c.attempt
WHERE c.status = 'unknown'";

/// Results reported after the session had ended: stored but not delivered.
const UNDELIVERED_RESULTS: &str = "SELECT c.call_id, c.session_id, c.tool_name, c.status, c.result,
  c.error, c.updated_at, c.seq
FROM tool_calls c JOIN sessions s ON s.id = c.session_id
WHERE (c.status = 'succeeded' OR c.status = 'failed')
  AND (s.status = 'completed' OR s.status = 'failed') AND c.seq >= s.seq";

/// A model's request is copied into its message, the run's events, and the approval.
const COPIES_OF_ARGUMENTS: &[ColumnName] = &[
    ("approvals", "arguments"),
    ("approvals", "arguments_hash"),
    ("approvals", "approved_arguments"),
    ("approvals", "prompt"),
    ("agent_state", "data"),
    ("run_events", "data"),
    ("plan_steps", "title"),
    ("plan_steps", "description"),
    ("plan_steps", "owner"),
    ("plan_steps", "exit_criteria"),
    ("plan_steps", "evidence"),
    ("plan_versions", "steps"),
    ("context_summaries", "summary"),
    ("tool_exchanges", "data"),
];

/// A tool's result is copied into a message.
const COPIES_OF_RESULTS: &[ColumnName] = &[
    ("agent_state", "content"),
    ("agent_state", "data"),
    ("lost_leases", "result"),
    ("run_events", "data"),
    ("context_summaries", "summary"),
    ("tool_exchanges", "data"),
];

const COPIES_OF_ERRORS: &[ColumnName] = &[
    ("agent_state", "content"),
    ("agent_state", "data"),
    ("lost_leases", "error"),
    ("run_events", "data"),
    ("context_summaries", "summary"),
];

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("tool_call")
        .visible::<ToolCall>(RowVisibility::InScopeExcept(&["fencing_token"]))
        .visible::<LostLease>(RowVisibility::InScopeExcept(&["fencing_token"]))
        .copied(("tool_calls", "arguments"), COPIES_OF_ARGUMENTS)
        .copied(("tool_calls", "result"), COPIES_OF_RESULTS)
        .copied(("tool_calls", "error"), COPIES_OF_ERRORS)
        .table::<ToolClaim>()
        .table::<WaitingEntry>()
        .waiting(WaitingRows {
            kind: "tool_calls",
            query: "SELECT updated_at AS since FROM tool_calls WHERE status = 'pending'",
        })
        .waiting(WaitingRows {
            kind: "unknown_calls",
            query: "SELECT updated_at AS since FROM tool_calls WHERE status = 'unknown'",
        })
        .view("unknown_tool_calls", UNKNOWN_CALLS)
        .view("undelivered_results", UNDELIVERED_RESULTS)
        .reducer(request_tool_call::definition())
        .reducer(claim_tool_call::definition())
        .reducer(claim_next_tool_call::definition())
        .reducer(heartbeat_tool_call::definition())
        .reducer(complete_tool_call::definition())
        .reducer(fail_tool_call::definition())
        .reducer(settle_tool_call::definition())
        .reducer(cancel_tool_call::definition())
        .reducer(acknowledge_cancel::definition())
        .deadline::<ToolCall>(
            "lease_expires_at",
            "status = 'claimed'",
            lapse_tool_call::definition(),
        )
        .lease()
        .deadline::<ToolCall>(
            "retry_at",
            "status = 'pending' AND lease_expires_at IS NULL",
            retry_tool_call::definition(),
        )
}
