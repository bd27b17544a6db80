//! Tool calls: requested once, claimed under a lease, completed by whoever holds it.
//!
//! ```text
//! awaiting_approval ─▶ pending ─▶ claimed ─▶ succeeded
//!        │               │  ▲        │ ├───▶ failed
//!        ▼               ▼  └────────┘ └───▶ unknown ─▶ succeeded, failed (settled)
//!     rejected       cancelled     (retry)
//! ```
//!
//! `call_id` is Abide's key, made by the caller from session and position. A model provider's own id
//! is no key: recorded conversations reuse it for different calls, and some have none.

use abide_schema::reducer::Answer;
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, reducer, table,
};
use serde_json::Value as JsonValue;

use crate::tool::{self, Tool};
use crate::{approval, check, session};

/// How long a claim holds unless it says otherwise, in milliseconds (protocol.md).
const LEASE_MS: i64 = 30_000;

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum ToolCallStatus {
    /// Waiting for a worker.
    Pending,
    /// Waiting for somebody's yes.
    AwaitingApproval,
    /// A worker is at it, under a lease.
    Claimed,
    /// Done.
    Succeeded,
    /// Done, and it went wrong.
    Failed,
    /// Somebody said no.
    Rejected,
    /// Nobody wants it any more.
    Cancelled,
    /// Its worker vanished and it must not run twice: somebody has to find out.
    Unknown,
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

/// A call of a tool by a session.
#[table(
    name = "tool_calls",
    index(session_id),
    index(status),
    index(tool_name),
    constraint = "CHECK (status <> 'claimed' OR (fencing_token IS NOT NULL
    AND lease_expires_at IS NOT NULL AND attempt > 0))",
    trigger = ENDED,
    trigger = SESSION_ENDED,
    trigger = FENCING
)]
pub struct ToolCall {
    /// The key that makes it one call, however often it is asked for.
    #[column(key)]
    pub call_id: String,
    /// The session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The tool.
    #[column(references = "tools(name)")]
    pub tool_name: String,
    /// The tool's version when the call was asked for.
    pub tool_version: i64,
    /// What the tool is to run with.
    pub arguments: Json,
    /// The model provider's id of the call: an attribute, never a key.
    pub provider_call_id: Option<String>,
    /// Where it stands.
    pub status: ToolCallStatus,
    /// How often it was claimed.
    pub attempt: i64,
    /// The claim's number; only its holder may end the call. It is the claim's seq, so it only grows.
    pub fencing_token: Option<i64>,
    /// Who holds it, or held it last.
    pub claimed_by: Option<String>,
    /// Until when the claim holds.
    pub lease_expires_at: Option<Micros>,
    /// What it gave.
    pub result: Option<Json>,
    /// What went wrong.
    pub error: Option<String>,
    /// What a settlement rests on.
    pub evidence: Option<Json>,
    /// When it was asked for.
    pub created_at: Micros,
    /// The event that asked for it.
    pub created_seq: Seq,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of that.
    pub seq: Seq,
}

/// The domain.
#[must_use]
pub fn module() -> Module {
    Module::new("tool_call")
        .table::<ToolCall>()
        .reducer(request_tool_call::definition())
        .reducer(claim_tool_call::definition())
        .reducer(heartbeat_tool_call::definition())
        .reducer(complete_tool_call::definition())
        .reducer(fail_tool_call::definition())
        .reducer(settle_tool_call::definition())
}

/// Asks for a tool to be run. The same `call_id` with the same session, tool and arguments is the
/// same call and returns the stored row; with anything else it is a conflict. With `claim_lease_ms`
/// the caller claims it in the same breath: for agents that run their own tools.
#[reducer]
pub fn request_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    session_id: String,
    tool_name: String,
    arguments: JsonValue,
    provider_call_id: Option<String>,
    claim_lease_ms: Option<i64>,
) -> Result<Answer<ToolCall>, Abort> {
    check::name("call_id", &call_id)?;
    let arguments = Json::from(arguments);
    if let Some(stored) = ctx.get::<ToolCall>(&call_id)? {
        ctx.about(&stored.session_id);
        check_same(ctx, &stored, &session_id, &tool_name, &arguments)?;
        return Ok(Answer::Duplicate(stored.created_seq, stored));
    }
    let session = session::open(ctx, &session_id)?;
    let tool = tool::find(ctx, &tool_name)?;
    let (now, seq) = (ctx.now, ctx.seq);
    let mut call = ToolCall {
        call_id,
        session_id,
        tool_name,
        tool_version: tool.version,
        arguments,
        provider_call_id,
        status: ToolCallStatus::Pending,
        attempt: 0,
        fencing_token: None,
        claimed_by: None,
        lease_expires_at: None,
        result: None,
        error: None,
        evidence: None,
        created_at: now,
        created_seq: seq,
        updated_at: now,
        seq,
    };
    if tool.needs_approval {
        call.status = ToolCallStatus::AwaitingApproval;
    } else if let Some(lease_ms) = claim_lease_ms {
        take(ctx, &mut call, lease_ms, None)?;
    }
    let call = ctx.insert(call)?;
    if tool.needs_approval {
        approval::request(ctx, &call)?;
    }
    session::touch(ctx, session)?;
    Ok(Answer::Fresh(call))
}

/// Takes a pending call to run it. One claimant wins. `worker` is a name to be known by.
#[reducer]
pub fn claim_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    lease_ms: Option<i64>,
    worker: Option<String>,
) -> Result<ToolCall, Abort> {
    let mut call = find(ctx, &call_id)?;
    match call.status {
        ToolCallStatus::Pending => {}
        ToolCallStatus::Claimed if !lease_runs(ctx, &call) => {
            if !tool::find(ctx, &call.tool_name)?.effect.may_run_again() {
                return Err(outcome_unknown(&call).into());
            }
        }
        _ => return Err(not_to_be_claimed(&call).into()),
    }
    take(ctx, &mut call, lease_ms.unwrap_or(LEASE_MS), worker)?;
    save(ctx, call)
}

/// Says that the work goes on, and moves the end of the lease.
#[reducer]
pub fn heartbeat_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    fencing_token: i64,
    lease_ms: Option<i64>,
) -> Result<ToolCall, Abort> {
    let mut call = find(ctx, &call_id)?;
    check_holder(&call, fencing_token)?;
    let until = check::lease(ctx.now, lease_ms.unwrap_or(LEASE_MS))?;
    call.lease_expires_at = call.lease_expires_at.max(Some(until));
    save(ctx, call)
}

/// Ends a call well. Only the holder of its claim can.
#[reducer]
pub fn complete_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    fencing_token: i64,
    result: JsonValue,
) -> Result<Answer<ToolCall>, Abort> {
    let mut call = find(ctx, &call_id)?;
    let result = Json::from(result);
    let again = call.status == ToolCallStatus::Succeeded
        && call.fencing_token == Some(fencing_token)
        && call.result.as_ref() == Some(&result);
    if again {
        return Ok(Answer::Duplicate(call.seq, call));
    }
    check_holder(&call, fencing_token)?;
    call.status = ToolCallStatus::Succeeded;
    call.result = Some(result);
    call.error = None;
    save(ctx, call).map(Answer::Fresh)
}

/// Ends a call badly; or, where the holder says that it may be tried again, puts it back.
#[reducer]
pub fn fail_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    fencing_token: i64,
    error: String,
    retryable: Option<bool>,
) -> Result<Answer<ToolCall>, Abort> {
    let mut call = find(ctx, &call_id)?;
    let again = call.status == ToolCallStatus::Failed
        && call.fencing_token == Some(fencing_token)
        && call.error.as_ref() == Some(&error);
    if again {
        return Ok(Answer::Duplicate(call.seq, call));
    }
    check_holder(&call, fencing_token)?;
    let tool: Tool = tool::find(ctx, &call.tool_name)?;
    call.error = Some(error);
    call.status = if retryable == Some(true) && call.attempt < tool.max_attempts() {
        call.lease_expires_at = None;
        ToolCallStatus::Pending
    } else {
        ToolCallStatus::Failed
    };
    save(ctx, call).map(Answer::Fresh)
}

/// Says what became of a call whose worker vanished.
#[reducer]
pub fn settle_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    outcome: Outcome,
    result: Option<JsonValue>,
    error: Option<String>,
    evidence: Option<JsonValue>,
) -> Result<ToolCall, Abort> {
    let mut call = find(ctx, &call_id)?;
    let lapsed = call.status == ToolCallStatus::Claimed && !lease_runs(ctx, &call);
    if call.status != ToolCallStatus::Unknown && !lapsed {
        let detail = format!("call {call_id} is {}, there is nothing to settle", call.status);
        return Err(Refusal::new(Code::Conflict, detail).into());
    }
    (call.status, call.result, call.error) = match outcome {
        Outcome::Succeeded => (ToolCallStatus::Succeeded, result.map(Json::from), None),
        Outcome::Failed => (ToolCallStatus::Failed, None, error),
    };
    call.evidence = evidence.map(Json::from);
    save(ctx, call)
}

/// What a settlement found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum Outcome {
    /// It had run.
    Succeeded,
    /// It had not, or it went wrong.
    Failed,
}

/// Nobody wants a call any more that nobody has begun.
pub(crate) fn cancel(ctx: &mut Context<'_>, mut call: ToolCall) -> Result<(), Abort> {
    call.status = ToolCallStatus::Cancelled;
    save(ctx, call).map(drop)
}

/// The call of an id; the event will say which session it is about.
pub(crate) fn find(ctx: &mut Context<'_>, call_id: &str) -> Result<ToolCall, Abort> {
    let call = ctx.get::<ToolCall>(call_id)?;
    let call = call
        .ok_or_else(|| Refusal::new(Code::NotFound, format!("there is no tool call {call_id}")))?;
    ctx.about(&call.session_id);
    Ok(call)
}

/// Writes a changed call.
pub(crate) fn save(ctx: &mut Context<'_>, mut call: ToolCall) -> Result<ToolCall, Abort> {
    call.updated_at = ctx.now;
    call.seq = ctx.seq;
    ctx.update(&call)?;
    Ok(call)
}

fn take(
    ctx: &Context<'_>,
    call: &mut ToolCall,
    lease_ms: i64,
    worker: Option<String>,
) -> Result<(), Abort> {
    call.lease_expires_at = Some(check::lease(ctx.now, lease_ms)?);
    call.status = ToolCallStatus::Claimed;
    call.attempt += 1;
    call.fencing_token = Some(ctx.seq.0);
    call.claimed_by = Some(worker.unwrap_or_else(|| ctx.caller.name.clone()));
    Ok(())
}

/// Holds a repeated request to the first: session, tool and arguments.
fn check_same(
    ctx: &mut Context<'_>,
    stored: &ToolCall,
    session_id: &str,
    tool_name: &str,
    arguments: &Json,
) -> Result<(), Abort> {
    let mut differs = Vec::new();
    if stored.session_id != session_id {
        differs.push("session");
    }
    if stored.tool_name != tool_name {
        differs.push("tool");
    }
    // An approver may have edited what runs; what was asked for stands with the approval.
    if stored.arguments != *arguments
        && approval::asked_for(ctx, &stored.call_id)?.as_ref() != Some(arguments)
    {
        differs.push("arguments");
    }
    if differs.is_empty() {
        return Ok(());
    }
    let detail =
        format!("call id {} stands for a call with other {}", stored.call_id, differs.join(", "));
    Err(Refusal::new(Code::CallIdConflict, detail)
        .hint("make call ids from session and position; a provider's id is not unique")
        .into())
}

fn lease_runs(ctx: &Context<'_>, call: &ToolCall) -> bool {
    call.lease_expires_at.is_some_and(|until| ctx.now < until)
}

fn check_holder(call: &ToolCall, fencing_token: i64) -> Result<(), Refusal> {
    let id = &call.call_id;
    if call.fencing_token != Some(fencing_token) {
        let detail = match &call.claimed_by {
            Some(holder) => format!("call {id} is claimed by {holder} under another token"),
            None => format!("call {id} is not claimed"),
        };
        return Err(Refusal::new(Code::LeaseLost, detail)
            .hint("what this attempt did may be done again by another; do not report it as done"));
    }
    if call.status != ToolCallStatus::Claimed {
        let detail = format!("call {id} is {} already", call.status);
        return Err(Refusal::new(Code::Conflict, detail));
    }
    Ok(())
}

fn not_to_be_claimed(call: &ToolCall) -> Refusal {
    let id = &call.call_id;
    let hint = format!(
        "watch it with  abide watch \"SELECT status FROM tool_calls WHERE call_id = '{id}'\""
    );
    let detail = match (call.status, &call.claimed_by, call.lease_expires_at) {
        (ToolCallStatus::Claimed, Some(holder), Some(until)) => {
            format!("call {id} was claimed by {holder} and its lease runs until {until}")
        }
        (status, ..) => format!("call {id} is {status}"),
    };
    Refusal::new(Code::Conflict, detail).hint(hint)
}

fn outcome_unknown(call: &ToolCall) -> Refusal {
    let holder = call.claimed_by.as_deref().unwrap_or("nobody");
    let detail = format!(
        "call {} was claimed by {holder}, whose lease has run out; whether it ran is unknown, \
         and {} must not run twice",
        call.call_id, call.tool_name
    );
    Refusal::new(Code::Conflict, detail).hint("find out, and tell with settle_tool_call")
}
