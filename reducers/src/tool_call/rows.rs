//! The rows of tool calls and lost leases, and what reads and writes them.

use abide_schema::{Abort, Code, Context, Json, Micros, Refusal, Seq, TextEnum, table};

use crate::claim_queue;
use crate::tool::{self, Tool, ToolVersion};

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
    /// It may have had its effect, and it must not run twice: its outcome must be settled. Its error is the reason, if a worker has
    /// reported one; otherwise its worker vanished.
    Unknown,
}

impl ToolCallStatus {
    /// Returns `true` if the status is final.
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
    /// Its error, or why its outcome is unknown.
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

impl ToolCall {
    /// Returns the bytes of its values that have no small limit.
    pub(crate) fn bytes(&self) -> usize {
        let columns = [Some(&self.arguments), self.result.as_ref(), self.evidence.as_ref()];
        let bytes = columns.into_iter().flatten().map(|json| json.as_str().len());
        bytes.sum::<usize>() + self.error.as_ref().map_or(0, String::len)
    }
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

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum Outcome {
    /// It ran successfully.
    Succeeded,
    /// It did not run, or it failed.
    Failed,
}

/// Loads a call; the event will name its session.
pub(crate) fn find(ctx: &mut Context<'_>, call_id: &str) -> Result<ToolCall, Abort> {
    let call = ctx.get::<ToolCall>(call_id)?.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no tool call {call_id}"))
            .hint_query("SELECT call_id, session_id, status FROM tool_calls")
    })?;
    ctx.about(&call.session_id);
    Ok(call)
}

/// Returns `true` if a session has a call with this status, visible or not.
pub(crate) fn has_any(
    ctx: &mut Context<'_>,
    session_id: &str,
    status: ToolCallStatus,
) -> Result<bool, Abort> {
    let params = [session_id.into(), status.as_str().into()];
    let first = "WHERE session_id = ?1 AND status = ?2 LIMIT 1";
    let found = ctx.without_policies(|ctx| ctx.find::<ToolCall>(first, &params))?;
    Ok(!found.is_empty())
}

/// Writes a changed call.
pub(crate) fn save(ctx: &mut Context<'_>, mut call: ToolCall) -> Result<ToolCall, Abort> {
    call.updated_at = ctx.now;
    call.seq = ctx.seq;
    let before = ctx.without_policies(|ctx| ctx.get::<ToolCall>(&call.call_id))?;
    ctx.update(&call)?;
    let was_claimable = before.is_some_and(|before| before.is_claimable());
    if was_claimable != call.is_claimable() {
        claim_queue::set(ctx, call.entry(), call.is_claimable())?;
    }
    Ok(call)
}

impl ToolCall {
    /// Returns `true` if a worker can claim it now.
    pub(super) fn is_claimable(&self) -> bool {
        self.status == ToolCallStatus::Pending && self.retry_at.is_none()
    }

    /// Returns its queue entry.
    pub(crate) fn entry(&self) -> claim_queue::QueueEntry<'_> {
        let queue = claim_queue::tool_queue(&self.tool_name);
        let since = self.created_seq.0;
        let id = &*self.call_id;
        let session_id = &*self.session_id;
        claim_queue::QueueEntry { queue, since, id, session_id }
    }
}

/// Returns the tool of a call, in the version with which the call was requested.
pub(crate) fn find_pinned(ctx: &mut Context<'_>, call: &ToolCall) -> Result<Tool, Abort> {
    let newest = tool::find(ctx, &call.tool_name)?;
    if newest.version == call.tool_version {
        return Ok(newest);
    }
    let key = (call.tool_name.as_str(), call.tool_version);
    let version = ctx.get::<ToolVersion>(key)?;
    let pinned = version.and_then(|version| serde_json::from_value(version.manifest.value()).ok());
    Ok(pinned.unwrap_or(newest))
}

/// A call before the first attempt.
pub(crate) struct RequestedCall {
    pub(crate) call_id: String,
    pub(crate) session_id: String,
    pub(crate) tool_name: String,
    pub(crate) tool_version: i64,
    pub(crate) arguments: Json,
    pub(crate) provider_call_id: Option<String>,
    pub(crate) status: ToolCallStatus,
}

impl RequestedCall {
    /// Returns the row of a call that the current event requests.
    pub(crate) fn into_row(self, ctx: &Context<'_>) -> ToolCall {
        ToolCall {
            call_id: self.call_id,
            session_id: self.session_id,
            tool_name: self.tool_name,
            tool_version: self.tool_version,
            arguments: self.arguments,
            provider_call_id: self.provider_call_id,
            status: self.status,
            attempt: 0,
            fencing_token: None,
            claimed_by: None,
            claimed_at: None,
            lease_expires_at: None,
            retry_at: None,
            cancel_requested_at: None,
            result: None,
            error: None,
            evidence: None,
            settled_by: None,
            created_at: ctx.now,
            created_seq: ctx.seq,
            updated_at: ctx.now,
            seq: ctx.seq,
        }
    }
}
