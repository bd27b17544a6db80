//! Handoffs: a session that its agent cannot handle is handed to a supervisor and comes back.
//!
//! ```text
//! pending ◀─▶ claimed ─▶ resolved, rejected
//!    └─────────┴───────▶ cancelled (with the session or the call), expired (if unclaimed)
//! ```
//!
//! Deadlines apply to unclaimed handoffs: a pending handoff is escalated or expires, even if
//! it becomes pending again after the deadline.
//!
//! A handoff can belong to a tool call, as that of the tool `request_supervisor`. The call waits for it, and the answer is its
//! result.

use abide_schema::reducer::{RowVisibility, WaitingRows};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, Value, reducer, table,
};
use serde_json::{Value as JsonValue, json};

use crate::message::rows::{NewEntry, append};
use crate::session::{self, SessionStatus};
use crate::tool_call::{self, ToolCall, ToolCallStatus};
use crate::{check, run};

/// Default lease of a claim, in milliseconds: a supervisor may be a person.
const LEASE_MS: i64 = 15 * 60 * 1000;

/// Status of a handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum HandoffStatus {
    /// Waiting for a supervisor.
    Pending,
    /// Claimed by a supervisor.
    Claimed,
    /// Resolved; the session continues.
    Resolved,
    /// Rejected; the session continues.
    Rejected,
    /// Expired without an answer.
    Expired,
    /// The session ended meanwhile.
    Cancelled,
}

const ENDED: &str = "CREATE TRIGGER handoff_requests_ended BEFORE UPDATE ON handoff_requests
WHEN OLD.status <> 'pending' AND OLD.status <> 'claimed'
BEGIN SELECT RAISE(FAIL, 'conflict: the handoff has ended'); END";

const FENCING: &str = "CREATE TRIGGER handoff_requests_fencing BEFORE UPDATE ON handoff_requests
WHEN NEW.fencing_token < OLD.fencing_token
BEGIN SELECT RAISE(FAIL, 'lease_lost: the handoff was claimed by another'); END";

/// A session's request for a supervisor.
#[table(
    name = "handoff_requests",
    unique(session_id, where = "status = 'pending' OR status = 'claimed'"),
    index(session_id, status),
    index(status),
    index(lease_expires_at, where = "status = 'claimed'"),
    index(escalate_at, where = "status = 'pending' AND escalate_at IS NOT NULL"),
    index(expires_at, where = "status = 'pending' AND expires_at IS NOT NULL"),
    constraint = "CHECK (status <> 'claimed' OR (claimed_by IS NOT NULL
    AND fencing_token IS NOT NULL AND lease_expires_at IS NOT NULL))",
    trigger = ENDED,
    trigger = FENCING
)]
pub struct HandoffRequest {
    /// Its id.
    #[column(key)]
    pub id: String,
    /// The session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Why it was requested.
    pub reason: String,
    /// The capability that a supervisor needs.
    pub required_capability: String,
    /// Other data for the supervisor.
    pub data: Option<Json>,
    /// Its status.
    pub status: HandoffStatus,
    /// The supervisor that claimed it.
    pub claimed_by: Option<String>,
    /// The claim's fencing token: its seq, so it only increases.
    pub fencing_token: Option<i64>,
    /// When the lease expires.
    pub lease_expires_at: Option<Micros>,
    /// When it is escalated if still unclaimed.
    pub escalate_at: Option<Micros>,
    /// The capability that a supervisor needs after the escalation.
    pub escalate_to: Option<String>,
    /// When it was escalated.
    pub escalated_at: Option<Micros>,
    /// When it expires if still unclaimed.
    pub expires_at: Option<Micros>,
    /// The supervisor's resolution, or the reason for the rejection.
    pub resolution: Option<String>,
    /// When it was requested.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// A tool call whose result is the answer to a handoff.
#[table(name = "handoff_calls", without_rowid, unique(call_id), index(session_id))]
pub struct HandoffCall {
    /// The handoff.
    #[column(key, references = "handoff_requests(id)")]
    pub handoff_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The call.
    #[column(references = "tool_calls(call_id)")]
    pub call_id: String,
    /// The event that recorded it.
    pub seq: Seq,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("handoff")
        .visible::<HandoffRequest>(RowVisibility::InScopeExcept(&["fencing_token"]))
        .visible::<HandoffCall>(RowVisibility::InScope)
        .waiting(WaitingRows {
            kind: "handoffs",
            query: "SELECT created_at AS since FROM handoff_requests WHERE status = 'pending' \
                    ORDER BY rowid",
        })
        // The interrupt of a run that waits for a supervisor.
        .copied(("handoff_requests", "reason"), &[("run_events", "data")])
        .reducer(request_supervisor_handoff::definition())
        .reducer(claim_handoff::definition())
        .reducer(heartbeat_handoff::definition())
        .reducer(release_handoff::definition())
        .reducer(resolve_handoff::definition())
        .reducer(reject_handoff::definition())
        .deadline::<HandoffRequest>(
            "lease_expires_at",
            "status = 'claimed'",
            lapse_handoff::definition(),
        )
        .lease()
        .deadline::<HandoffRequest>(
            "escalate_at",
            "status = 'pending' AND escalate_at IS NOT NULL",
            escalate_handoff::definition(),
        )
        .deadline::<HandoffRequest>(
            "expires_at",
            "status = 'pending' AND expires_at IS NOT NULL",
            expire_handoff::definition(),
        )
}

/// Hands a session off to a supervisor. It is `handed_off` until there is an answer. If the handoff is unclaimed
/// after `escalate_after_ms`, it requires the capability `escalate_to` instead; if it is unclaimed after
/// `expires_after_ms`, the session continues without an answer. With `call_id` and `call_fencing_token` the answer is the result
/// of that tool call, which waits for it without a lease.
#[reducer(roles(app, agent))]
pub fn request_supervisor_handoff(
    ctx: &mut Context<'_>,
    #[id(session::Session)] session_id: String,
    /// Why it is handed off.
    reason: String,
    /// The capability that a supervisor needs to claim it.
    required_capability: String,
    /// Other data for the supervisor.
    data: Option<JsonValue>,
    /// Escalates to `escalate_to` if it is still unclaimed after this time.
    escalate_after_ms: Option<i64>,
    /// The capability to which it escalates.
    escalate_to: Option<String>,
    /// Returns the session unanswered if it is still unclaimed after this time.
    expires_after_ms: Option<i64>,
    /// The tool call whose result is the answer. Otherwise the answer is a message.
    #[id(ToolCall)]
    call_id: Option<String>,
    /// The fencing token of the claim of the call.
    call_fencing_token: Option<i64>,
) -> Result<HandoffRequest, Abort> {
    check::name("required_capability", &required_capability)?;
    check::optional_name("escalate_to", escalate_to.as_deref())?;
    if escalate_to.is_some() && escalate_after_ms.is_none() {
        let detail = "escalate_to requires escalate_after_ms";
        let refusal = Refusal::new(Code::BadArguments, detail).hint("give escalate_after_ms too");
        return Err(refusal.into());
    }
    let escalate_at = check::time_after("escalate_after_ms", ctx.now, escalate_after_ms)?;
    let expires_at = check::time_after("expires_after_ms", ctx.now, expires_after_ms)?;
    let session = session::find_accepting(ctx, &session_id)?;
    if session.status == SessionStatus::HandedOff {
        let open = "WHERE session_id = ?1 AND status IN ('pending', 'claimed')";
        let found = ctx.find::<HandoffRequest>(open, &[Value::from(session_id.as_str())])?;
        let which = found.first().map_or("another handoff", |handoff| handoff.id.as_str());
        let detail = format!("session {session_id} is already handed off, by {which}");
        let hint = "a session has one handoff at a time; wait for the answer of the supervisor";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    let call = claimed_call(ctx, &session_id, call_id.as_deref(), call_fencing_token)?;
    session::to_status(ctx, session, SessionStatus::HandedOff, |_| {})?;
    let handoff = ctx.insert(HandoffRequest {
        id: ctx.new_id("ho"),
        session_id,
        reason,
        required_capability,
        data: data.map(Json::from),
        status: HandoffStatus::Pending,
        claimed_by: None,
        fencing_token: None,
        lease_expires_at: None,
        escalate_at,
        escalate_to,
        escalated_at: None,
        expires_at,
        resolution: None,
        created_at: ctx.now,
        updated_at: ctx.now,
        seq: ctx.seq,
    })?;
    if let Some(call) = call {
        // After the row that it refers to: a caller with a scope cannot refer to a row that does not exist yet.
        ctx.insert(HandoffCall {
            handoff_id: handoff.id.clone(),
            session_id: handoff.session_id.clone(),
            call_id: call.call_id.clone(),
            seq: ctx.seq,
        })?;
        wait_for_answer(ctx, call)?;
    }
    Ok(handoff)
}

/// Returns the call that the caller holds and that a handoff is for, if it names one.
fn claimed_call(
    ctx: &mut Context<'_>,
    session_id: &str,
    call_id: Option<&str>,
    fencing_token: Option<i64>,
) -> Result<Option<ToolCall>, Abort> {
    let (call_id, fencing_token) = match (call_id, fencing_token) {
        (Some(call_id), Some(fencing_token)) => (call_id, fencing_token),
        (None, None) => return Ok(None),
        _ => {
            let detail = "call_id and call_fencing_token must be given together";
            let hint = "the worker of the tool call gives both; other callers omit both";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
        }
    };
    let call = tool_call::find_claimed(ctx, call_id, fencing_token)?;
    if call.session_id != session_id {
        let detail = format!("call {call_id} belongs to another session");
        let hint = format!("hand off its session, {}", call.session_id);
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
    }
    if call.cancel_requested_at.is_some() {
        let detail = format!("call {call_id} is being cancelled");
        let hint = "end it with acknowledge_cancel, complete_tool_call or fail_tool_call";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    Ok(Some(call))
}

/// Lets a claimed call wait for a supervisor. No worker can claim it meanwhile.
fn wait_for_answer(ctx: &mut Context<'_>, mut call: ToolCall) -> Result<(), Abort> {
    call.status = ToolCallStatus::AwaitingApproval;
    call.lease_expires_at = None;
    tool_call::save(ctx, call).map(drop)
}

/// Claims a pending handoff. Exactly one supervisor wins. Requires the capability that the
/// handoff requires.
#[reducer(roles(app, supervisor))]
pub fn claim_handoff(
    ctx: &mut Context<'_>,
    #[id(HandoffRequest)] id: String,
    /// Lease time, instead of the default.
    lease_ms: Option<i64>,
) -> Result<HandoffRequest, Abort> {
    let mut handoff = find(ctx, &id)?;
    check::capability(ctx.caller, Some(&handoff.required_capability), "claiming this handoff")?;
    let lapsed = handoff.lease_expires_at.is_none_or(|until| until <= ctx.now);
    match handoff.status {
        HandoffStatus::Pending => {}
        HandoffStatus::Claimed if lapsed => {}
        _ => return Err(not_to_be_claimed(&handoff).into()),
    }
    handoff.status = HandoffStatus::Claimed;
    handoff.claimed_by = Some(ctx.caller.id().to_owned());
    handoff.fencing_token = Some(ctx.seq.0);
    handoff.lease_expires_at = Some(check::lease_end(ctx.now, lease_ms.unwrap_or(LEASE_MS))?);
    save(ctx, handoff)
}

/// Extends the lease on a claimed handoff.
#[reducer(roles(app, supervisor))]
pub fn heartbeat_handoff(
    ctx: &mut Context<'_>,
    #[id(HandoffRequest)] id: String,
    lease_ms: Option<i64>,
    fencing_token: Option<i64>,
) -> Result<HandoffRequest, Abort> {
    let mut handoff = still_capable(ctx, &id, fencing_token)?;
    let until = check::lease_end(ctx.now, lease_ms.unwrap_or(LEASE_MS))?;
    handoff.lease_expires_at = handoff.lease_expires_at.max(Some(until));
    save(ctx, handoff)
}

/// Releases a claimed handoff to other supervisors. (The `fencing_token` of the claim, here and in
/// the answers, distinguishes supervisors that share a name.)
#[reducer(roles(app, supervisor))]
pub fn release_handoff(
    ctx: &mut Context<'_>,
    #[id(HandoffRequest)] id: String,
    fencing_token: Option<i64>,
) -> Result<HandoffRequest, Abort> {
    let handoff = claimed(ctx, &id, fencing_token)?;
    return_to_queue(ctx, handoff)
}

/// Resolves a claimed handoff. The resolution becomes a message of the session, or the result of the tool call that waits for it,
/// and the session is active again. Refused while the caller that started the run of the session may not start runs of its
/// agents.
#[reducer(roles(app, supervisor))]
pub fn resolve_handoff(
    ctx: &mut Context<'_>,
    #[id(HandoffRequest)] id: String,
    /// The answer.
    resolution: String,
    fencing_token: Option<i64>,
) -> Result<HandoffRequest, Abort> {
    let handoff = still_capable(ctx, &id, fencing_token)?;
    run::starter::check_continues(ctx, &handoff.session_id)?;
    give_back(ctx, handoff, HandoffStatus::Resolved, resolution)
}

/// Rejects a claimed handoff. The reason becomes a message of the session, or the error of the tool call that waits for it, and
/// the session is active again.
#[reducer(roles(app, supervisor))]
pub fn reject_handoff(
    ctx: &mut Context<'_>,
    #[id(HandoffRequest)] id: String,
    /// Why it is rejected.
    reason: String,
    fencing_token: Option<i64>,
) -> Result<HandoffRequest, Abort> {
    let handoff = still_capable(ctx, &id, fencing_token)?;
    give_back(ctx, handoff, HandoffStatus::Rejected, reason)
}

/// Handles the expired claim on a handoff: it is pending again.
#[reducer]
pub fn lapse_handoff(
    ctx: &mut Context<'_>,
    id: String,
    lease_expires_at: Micros,
) -> Result<HandoffRequest, Abort> {
    let handoff = find(ctx, &id)?;
    let is_claimed = handoff.status == HandoffStatus::Claimed;
    if !is_claimed
        || handoff.lease_expires_at != Some(lease_expires_at)
        || ctx.now < lease_expires_at
    {
        return Err(check::not_due(&id, lease_expires_at).into());
    }
    return_to_queue(ctx, handoff)
}

/// Escalates an unclaimed handoff to another capability.
#[reducer]
pub fn escalate_handoff(
    ctx: &mut Context<'_>,
    id: String,
    escalate_at: Micros,
) -> Result<HandoffRequest, Abort> {
    let mut handoff = find(ctx, &id)?;
    let waits = handoff.status == HandoffStatus::Pending;
    if !waits || handoff.escalate_at != Some(escalate_at) || ctx.now < escalate_at {
        return Err(check::not_due(&id, escalate_at).into());
    }
    handoff.escalate_at = None;
    handoff.escalated_at = Some(ctx.now);
    if let Some(capability) = &handoff.escalate_to {
        handoff.required_capability.clone_from(capability);
    }
    save(ctx, handoff)
}

/// Expires an unclaimed handoff: the session continues without an answer.
#[reducer]
pub fn expire_handoff(
    ctx: &mut Context<'_>,
    id: String,
    expires_at: Micros,
) -> Result<HandoffRequest, Abort> {
    let handoff = find(ctx, &id)?;
    let waits = handoff.status == HandoffStatus::Pending;
    if !waits || handoff.expires_at != Some(expires_at) || ctx.now < expires_at {
        return Err(check::not_due(&id, expires_at).into());
    }
    give_back(ctx, handoff, HandoffStatus::Expired, "there was no answer in time".to_owned())
}

/// Cancels the handoff of a session that has ended or is ending.
pub(crate) fn cancel_of_session(ctx: &mut Context<'_>, session_id: &str) -> Result<(), Abort> {
    let open = "WHERE session_id = ?1 AND (status = 'pending' OR status = 'claimed')";
    for mut handoff in ctx.find::<HandoffRequest>(open, &[Value::from(session_id)])? {
        handoff.status = HandoffStatus::Cancelled;
        save(ctx, handoff)?;
    }
    Ok(())
}

/// Withdraws the handoff that a call of a session waits for, because the call is cancelled with its run. The session goes on.
pub(crate) fn withdraw_of_calls(ctx: &mut Context<'_>, session_id: &str) -> Result<(), Abort> {
    let open = "WHERE session_id = ?1 AND (status = 'pending' OR status = 'claimed')";
    ctx.without_policies(|ctx| {
        for mut handoff in ctx.find::<HandoffRequest>(open, &[Value::from(session_id)])? {
            if ctx.get::<HandoffCall>(&handoff.id)?.is_none() {
                continue;
            }
            handoff.status = HandoffStatus::Cancelled;
            save(ctx, handoff)?;
            if let Some(session) = ctx.get::<session::Session>(session_id)?
                && session.status == SessionStatus::HandedOff
            {
                session::to_status(ctx, session, SessionStatus::Active, |_| {})?;
            }
        }
        Ok(())
    })
}

/// Returns the session to its agent, with the answer as the result of the call that waits for it, or as a message.
fn give_back(
    ctx: &mut Context<'_>,
    mut handoff: HandoffRequest,
    status: HandoffStatus,
    text: String,
) -> Result<HandoffRequest, Abort> {
    let data = Json::from(json!({"handoff_id": handoff.id, "status": status.as_str()}));
    let role = if status == HandoffStatus::Expired { "system" } else { "supervisor" };
    let entry = NewEntry::new(role, "handoff", Some(text.clone()), Some(data));
    ctx.without_policies(|ctx| {
        let session = session::open(ctx, &handoff.session_id)?;
        if !answer_call(ctx, &handoff, status, &text)? {
            append(ctx, &session, entry)?;
        }
        session::to_status(ctx, session, SessionStatus::Active, |_| {})?;
        run::continue_if_decided(ctx, &handoff.session_id)
    })?;
    handoff.status = status;
    handoff.resolution = Some(text);
    save(ctx, handoff)
}

/// Ends the call that waits for a handoff. Returns `false` if no call waits for it any more.
fn answer_call(
    ctx: &mut Context<'_>,
    handoff: &HandoffRequest,
    status: HandoffStatus,
    text: &str,
) -> Result<bool, Abort> {
    let Some(waiting) = ctx.get::<HandoffCall>(&handoff.id)? else { return Ok(false) };
    let call = ctx.get::<ToolCall>(&waiting.call_id)?;
    let Some(mut call) = call.filter(|call| call.status == ToolCallStatus::AwaitingApproval) else {
        return Ok(false);
    };
    match status {
        HandoffStatus::Resolved => {
            let content = json!({"handoff_id": handoff.id, "status": status.as_str()});
            let result = json!({"text": text, "content": content, "exit_code": 0});
            call.status = ToolCallStatus::Succeeded;
            call.result = Some(Json::from(result));
        }
        HandoffStatus::Rejected => {
            call.status = ToolCallStatus::Rejected;
            call.error = Some(text.to_owned());
        }
        _ => {
            call.status = ToolCallStatus::Failed;
            call.error = Some(text.to_owned());
        }
    }
    tool_call::save(ctx, call)?;
    Ok(true)
}

fn return_to_queue(
    ctx: &mut Context<'_>,
    mut handoff: HandoffRequest,
) -> Result<HandoffRequest, Abort> {
    handoff.status = HandoffStatus::Pending;
    handoff.claimed_by = None;
    handoff.lease_expires_at = None;
    save(ctx, handoff)
}

fn save(ctx: &mut Context<'_>, mut handoff: HandoffRequest) -> Result<HandoffRequest, Abort> {
    handoff.updated_at = ctx.now;
    handoff.seq = ctx.seq;
    ctx.update(&handoff)?;
    Ok(handoff)
}

fn find(ctx: &mut Context<'_>, id: &str) -> Result<HandoffRequest, Abort> {
    let handoff = ctx.get::<HandoffRequest>(id)?.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no handoff {id}"))
            .hint_query("SELECT id, status FROM handoff_requests")
    })?;
    ctx.about(&handoff.session_id);
    Ok(handoff)
}

/// Returns a handoff that this caller has claimed with this token.
pub(crate) fn find_claimed(
    ctx: &mut Context<'_>,
    id: &str,
    fencing_token: i64,
) -> Result<HandoffRequest, Abort> {
    claimed(ctx, id, Some(fencing_token))
}

/// Returns a handoff that this caller has claimed, with this token if one is given.
fn claimed(
    ctx: &mut Context<'_>,
    id: &str,
    fencing_token: Option<i64>,
) -> Result<HandoffRequest, Abort> {
    let handoff = find(ctx, id)?;
    let has_ended = !matches!(handoff.status, HandoffStatus::Pending | HandoffStatus::Claimed);
    let is_this_claim = fencing_token.is_none_or(|token| handoff.fencing_token == Some(token));
    if handoff.status == HandoffStatus::Claimed && is_this_claim {
        if handoff.claimed_by.as_deref() == Some(ctx.caller.id()) {
            return Ok(handoff);
        }
        return Err(not_to_be_claimed(&handoff).into());
    }
    if fencing_token.is_some() && !has_ended {
        let detail =
            format!("the claim of handoff {id} has expired; the handoff is {}", handoff.status);
        return Err(Refusal::new(Code::LeaseLost, detail)
            .hint(format!("claim it again with `abide call claim_handoff id={id}`"))
            .into());
    }
    let detail = format!("handoff {id} is {}, not claimed", handoff.status);
    let refusal = Refusal::new(Code::Conflict, detail);
    Err(if has_ended {
        refusal
    } else {
        refusal.hint(format!("claim it first with `abide call claim_handoff id={id}`"))
    }
    .into())
}

/// Returns a claimed handoff, if the caller still has the required capability. Without it, the caller can only release
/// the handoff.
fn still_capable(
    ctx: &mut Context<'_>,
    id: &str,
    fencing_token: Option<i64>,
) -> Result<HandoffRequest, Abort> {
    let handoff = claimed(ctx, id, fencing_token)?;
    check::capability(ctx.caller, Some(&handoff.required_capability), "answering this handoff")?;
    Ok(handoff)
}

fn not_to_be_claimed(handoff: &HandoffRequest) -> Refusal {
    let id = &handoff.id;
    let detail = match (handoff.status, &handoff.claimed_by, handoff.lease_expires_at) {
        (HandoffStatus::Claimed, Some(holder), Some(until)) => {
            format!("handoff {id} was claimed by {holder} and its lease runs until {until}")
        }
        (status, ..) => format!("handoff {id} is {status}"),
    };
    Refusal::new(Code::Conflict, detail).hint(
        "watch for handoffs: `abide watch \"SELECT id, reason FROM handoff_requests WHERE status = 'pending'\"`",
    )
}
