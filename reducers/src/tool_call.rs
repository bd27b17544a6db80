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
//! This file has the rows and shared functions; then [`mod@request`], [`mod@claim`], [`mod@finish`] (by
//! the holder, on expiry, by settlement) and [`mod@cancel`].

use abide_schema::reducer::{ColumnName, RowVisibility};
use abide_schema::seeded::{SeededBug, makes};
use abide_schema::{
    Abort, Caller, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, table,
};

use crate::waiting::{self, WaitingEntry};
use crate::{check, lease, tool};

pub mod cancel;
pub mod claim;
pub mod finish;
pub mod request;

mod pace;

pub use cancel::{acknowledge_cancel, cancel_tool_call};
pub use claim::{claim_next_tool_call, claim_tool_call, heartbeat_tool_call, retry_tool_call};
pub use finish::{Outcome, complete_tool_call, fail_tool_call, lapse_tool_call, settle_tool_call};
pub use pace::ToolClaim;
pub use request::request_tool_call;

/// Status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum ToolCallStatus {
    /// Waiting for a worker.
    Pending,
    /// Waiting for an approval.
    AwaitingApproval,
    /// Claimed by a worker, under a lease.
    Claimed,
    /// Succeeded.
    Succeeded,
    /// Failed.
    Failed,
    /// The approval was rejected or expired.
    Rejected,
    /// Cancelled before it ran.
    Cancelled,
    /// Its worker vanished and it must not run twice: its outcome must be settled.
    Unknown,
}

impl ToolCallStatus {
    /// Whether the status is final.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        use ToolCallStatus::{Cancelled, Failed, Rejected, Succeeded};
        matches!(self, Succeeded | Failed | Rejected | Cancelled)
    }
}

const ENDED: &str = "CREATE TRIGGER tool_calls_ended BEFORE UPDATE ON tool_calls
WHEN OLD.status = 'succeeded' OR OLD.status = 'failed' OR OLD.status = 'rejected'
  OR OLD.status = 'cancelled'
BEGIN SELECT RAISE(FAIL, 'conflict: the tool call has ended'); END";

const SESSION_ENDED: &str = "CREATE TRIGGER tool_calls_of_ended BEFORE INSERT ON tool_calls
WHEN EXISTS (SELECT 1 FROM sessions WHERE id = NEW.session_id
  AND (status = 'completed' OR status = 'failed'))
BEGIN SELECT RAISE(FAIL, 'bad_transition: the session has ended'); END";

const FENCING: &str = "CREATE TRIGGER tool_calls_fencing BEFORE UPDATE ON tool_calls
WHEN NEW.fencing_token < OLD.fencing_token OR NEW.attempt < OLD.attempt
BEGIN SELECT RAISE(FAIL, 'lease_lost: the tool call was claimed by another'); END";

/// A call that may have run is not run again, even if another caller requests it.
const UNKNOWN: &str = "CREATE TRIGGER tool_calls_unknown BEFORE UPDATE OF status ON tool_calls
WHEN OLD.status = 'unknown' AND NEW.status <> 'unknown'
  AND NEW.status <> 'succeeded' AND NEW.status <> 'failed'
BEGIN SELECT RAISE(FAIL, 'conflict: the tool call may have run, it can only be settled'); END";

/// The approved arguments are the ones that run.
const ARGUMENTS: &str =
    "CREATE TRIGGER tool_calls_arguments BEFORE UPDATE OF arguments ON tool_calls
WHEN OLD.arguments <> NEW.arguments AND OLD.status <> 'awaiting_approval'
BEGIN SELECT RAISE(FAIL, 'conflict: the arguments of the tool call stand'); END";

/// A call of a tool by a session.
// One index serves all queries by status: calls that wait for a worker, by tool and in order of arrival;
// retries and expiring leases, in order of time. The others serve queries of one call for a session or a tool,
// so that it never reads calls that have ended.
#[table(
    name = "tool_calls",
    index(session_id, status, cancel_requested_at),
    index(status, lease_expires_at, retry_at, tool_name),
    index(tool_name, session_id),
    index(tool_name, where = "status = 'claimed'"),
    constraint = "CHECK (status <> 'claimed' OR (fencing_token IS NOT NULL
    AND lease_expires_at IS NOT NULL AND attempt > 0))",
    constraint = "CHECK (status <> 'pending' OR lease_expires_at IS NULL)",
    trigger = ENDED,
    trigger = SESSION_ENDED,
    trigger = FENCING,
    trigger = UNKNOWN,
    trigger = ARGUMENTS
)]
pub struct ToolCall {
    /// The key that identifies the call across repeated requests.
    #[column(key)]
    pub call_id: String,
    /// The session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The tool.
    #[column(references = "tools(name)")]
    pub tool_name: String,
    /// The tool's version when the call was requested; its rules apply.
    pub tool_version: i64,
    /// The arguments to run with.
    pub arguments: Json,
    /// The model provider's id of the call: an attribute, never a key.
    pub provider_call_id: Option<String>,
    /// Its status.
    pub status: ToolCallStatus,
    /// Number of claims.
    pub attempt: i64,
    /// Identifies the claim, also among claims of one identity. It is the claim's seq, so it only increases.
    /// The caller of that event holds the lease; only it can end the call.
    pub fencing_token: Option<i64>,
    /// The current or last holder.
    pub claimed_by: Option<String>,
    /// When the last attempt began.
    pub claimed_at: Option<Micros>,
    /// When the lease expires.
    pub lease_expires_at: Option<Micros>,
    /// The time of the next attempt of a pending call; it cannot be claimed before.
    pub retry_at: Option<Micros>,
    /// When its cancellation was requested: its worker is asked to stop.
    pub cancel_requested_at: Option<Micros>,
    /// Its result.
    pub result: Option<Json>,
    /// Its error.
    pub error: Option<String>,
    /// The evidence of a settlement.
    pub evidence: Option<Json>,
    /// The caller that settled the unknown outcome.
    pub settled_by: Option<String>,
    /// When it was requested.
    pub created_at: Micros,
    /// The event that requested it.
    pub created_seq: Seq,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// An expired lease, and what its holder reported afterwards: too late, but kept for the settlement.
#[table(name = "lost_leases", index(session_id))]
pub struct LostLease {
    /// The call.
    #[column(key, references = "tool_calls(call_id)")]
    pub call_id: String,
    /// The claim's fencing token.
    #[column(key)]
    pub fencing_token: i64,
    /// The call's session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The attempt.
    pub attempt: i64,
    /// The former holder.
    pub claimed_by: Option<String>,
    /// When it expired.
    pub lost_at: Micros,
    /// The outcome that the holder reported too late.
    pub outcome: Option<Outcome>,
    /// The reported result.
    pub result: Option<Json>,
    /// The reported error.
    pub error: Option<String>,
    /// When it was reported.
    pub reported_at: Option<Micros>,
    /// The event that last changed it.
    pub seq: Seq,
}

/// Calls with an unknown outcome, with all available information: they must be settled.
const UNKNOWN_CALLS: &str = "SELECT c.call_id, c.session_id, c.tool_name, c.arguments, c.attempt,
  c.claimed_by, c.claimed_at, l.lost_at, l.outcome AS late_outcome, l.result AS late_result,
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

/// Version 2: finds open calls of a session and running calls of a tool without reading ended ones.
const BY_STATUS: &str = "DROP INDEX tool_calls_session_id;
DROP INDEX tool_calls_tool_name;
CREATE INDEX tool_calls_session_id_status_cancel_requested_at ON tool_calls (session_id, status, cancel_requested_at);
CREATE INDEX tool_calls_tool_name_session_id ON tool_calls (tool_name, session_id);
CREATE INDEX tool_calls_tool_name ON tool_calls (tool_name) WHERE status = 'claimed'";

/// Version 3: the view contains no fencing tokens, which restricted callers must not see.
const BY_ATTEMPT: &str = "DROP VIEW unknown_tool_calls;
CREATE VIEW unknown_tool_calls AS SELECT c.call_id, c.session_id, c.tool_name, c.arguments, c.attempt,
  c.claimed_by, c.claimed_at, l.lost_at, l.outcome AS late_outcome, l.result AS late_result,
  l.error AS late_error, l.reported_at, c.seq
FROM tool_calls c
LEFT JOIN lost_leases l ON l.call_id = c.call_id AND l.attempt = c.attempt
WHERE c.status = 'unknown'";

/// A model's request is copied into its message, the run's events, and the approval.
const COPIES_OF_ARGUMENTS: &[ColumnName] = &[
    ("approvals", "arguments"),
    ("approvals", "arguments_hash"),
    ("approvals", "approved_arguments"),
    ("approvals", "prompt"),
    ("agent_state", "data"),
    ("run_events", "data"),
];

/// A tool's result is copied into a message.
const COPIES_OF_RESULTS: &[ColumnName] = &[
    ("agent_state", "content"),
    ("agent_state", "data"),
    ("lost_leases", "result"),
    ("run_events", "data"),
];

const COPIES_OF_ERRORS: &[ColumnName] = &[
    ("agent_state", "content"),
    ("agent_state", "data"),
    ("lost_leases", "error"),
    ("run_events", "data"),
];

/// The module.
#[must_use]
pub fn module() -> Module {
    Module::new("tool_call")
        .step(BY_STATUS)
        .step(BY_ATTEMPT)
        .visible::<ToolCall>(RowVisibility::InScopeExcept(&["fencing_token"]))
        .visible::<LostLease>(RowVisibility::InScopeExcept(&["fencing_token"]))
        .copied(("tool_calls", "arguments"), COPIES_OF_ARGUMENTS)
        .copied(("tool_calls", "result"), COPIES_OF_RESULTS)
        .copied(("tool_calls", "error"), COPIES_OF_ERRORS)
        .step(waiting::FILL_CALLS)
        .table::<ToolClaim>()
        .table::<WaitingEntry>()
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
        .deadline::<ToolCall>(
            "retry_at",
            "status = 'pending' AND lease_expires_at IS NULL",
            retry_tool_call::definition(),
        )
}

/// Loads a call; the event will name its session.
pub(crate) fn find(ctx: &mut Context<'_>, call_id: &str) -> Result<ToolCall, Abort> {
    let call = ctx.get::<ToolCall>(call_id)?;
    let call = call
        .ok_or_else(|| Refusal::new(Code::NotFound, format!("there is no tool call {call_id}")))?;
    ctx.about(&call.session_id);
    Ok(call)
}

/// Loads a call, if the caller holds it with this token.
pub(crate) fn held(
    ctx: &mut Context<'_>,
    call_id: &str,
    fencing_token: i64,
) -> Result<ToolCall, Abort> {
    let call = find(ctx, call_id)?;
    match is_held(ctx, &call, fencing_token)? {
        true => Ok(call),
        false => Err(refusal(ctx, &call, fencing_token)?.into()),
    }
}

/// Writes a changed call.
pub(crate) fn save(ctx: &mut Context<'_>, mut call: ToolCall) -> Result<ToolCall, Abort> {
    call.updated_at = ctx.now;
    call.seq = ctx.seq;
    let before = ctx.without_policies(|ctx| ctx.get::<ToolCall>(&call.call_id))?;
    ctx.update(&call)?;
    let waited = before.is_some_and(|before| before.waits());
    if waited != call.waits() {
        waiting::note(ctx, call.entry(), call.waits())?;
    }
    Ok(call)
}

impl ToolCall {
    /// Whether a worker can claim it now.
    fn waits(&self) -> bool {
        self.status == ToolCallStatus::Pending && self.retry_at.is_none()
    }

    /// Its queue entry.
    fn entry(&self) -> waiting::QueueEntry<'_> {
        let queue = waiting::calls_of(&self.tool_name);
        let (since, id, session_id) = (self.created_seq.0, &*self.call_id, &*self.session_id);
        waiting::QueueEntry { queue, since, id, session_id }
    }
}

/// Whether the caller holds the call with this token. A holder without the required capability is denied.
fn is_held(ctx: &mut Context<'_>, call: &ToolCall, fencing_token: i64) -> Result<bool, Abort> {
    let Some(current) = call.fencing_token else { return Ok(false) };
    let fenced = current != fencing_token && !makes(SeededBug::NoFencing);
    if call.status != ToolCallStatus::Claimed || fenced || !lease::is_holder(ctx, current)? {
        return Ok(false);
    }
    if !ctx.caller.can(Caller::EVERY_CAPABILITY) {
        let required = tool::pinned(ctx, call)?.required_capability;
        let what = format!("running a call of {}", call.tool_name);
        check::capability(ctx.caller, required.as_deref(), &what)?;
    }
    Ok(true)
}

/// Why a caller cannot end a call, or extend its lease, with a token. The current or former holder learns how the
/// lease was lost; other callers learn only that they do not hold it.
fn refusal(ctx: &mut Context<'_>, call: &ToolCall, fencing_token: i64) -> Result<Refusal, Abort> {
    let Some(current) = call.fencing_token else { return Ok(not_held(call, fencing_token)) };
    let held = lease::is_holder(ctx, current)?
        || (lost_lease(ctx, call, fencing_token)?.is_some()
            && lease::is_holder(ctx, fencing_token)?);
    Ok(match held {
        true => not_held(call, fencing_token),
        false => lease::not_the_holder(&format!("call {}", call.call_id)),
    })
}

fn lost_lease(
    ctx: &mut Context<'_>,
    call: &ToolCall,
    fencing_token: i64,
) -> Result<Option<LostLease>, Abort> {
    let key = (call.call_id.as_str(), fencing_token);
    ctx.without_policies(|ctx| ctx.get::<LostLease>(key))
}

/// Why a call cannot be ended, or its lease extended, with a token.
fn not_held(call: &ToolCall, fencing_token: i64) -> Refusal {
    let (id, status) = (&call.call_id, call.status);
    let holder = call.claimed_by.as_deref().unwrap_or("no worker");
    match (status, call.fencing_token == Some(fencing_token)) {
        (ToolCallStatus::Claimed, false) => {
            lease_lost(format!("call {id} is claimed by {holder} under another token"))
        }
        (ToolCallStatus::Pending | ToolCallStatus::AwaitingApproval, _) => {
            lease_lost(format!("call {id} is {status} and not claimed"))
        }
        (ToolCallStatus::Unknown, _) => {
            lease_lost(format!("the lease of {holder} on call {id} has run out"))
        }
        (_, true) => Refusal::new(Code::Conflict, format!("call {id} is {status} already")),
        (_, false) => lease_lost(format!("call {id} is {status} under another token")),
    }
}

fn lease_lost(detail: String) -> Refusal {
    Refusal::new(Code::LeaseLost, detail)
        .hint("what this attempt did may be done again by another; do not report it as done")
}
