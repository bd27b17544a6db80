//! Handoffs: a session that is beyond its agent goes into a supervisor's hands and comes back.
//!
//! ```text
//! pending ◀─▶ claimed ─▶ resolved, rejected        (either may end as cancelled or expired)
//! ```

use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, Value, reducer, table,
};
use serde_json::{Value as JsonValue, json};

use crate::session::{self, SessionStatus};
use crate::{check, message};

/// How long a claim holds unless it says otherwise, in milliseconds: a supervisor may be a person.
const LEASE_MS: i64 = 15 * 60 * 1000;

/// Where a handoff stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum HandoffStatus {
    /// Waiting for a supervisor.
    Pending,
    /// A supervisor is at it.
    Claimed,
    /// Answered; the session goes on.
    Resolved,
    /// Declined; the session goes on.
    Rejected,
    /// Nobody answered in time.
    Expired,
    /// The session ended meanwhile.
    Cancelled,
}

const ENDED: &str = "CREATE TRIGGER handoff_requests_ended BEFORE UPDATE ON handoff_requests
WHEN OLD.status <> 'pending' AND OLD.status <> 'claimed'
BEGIN SELECT RAISE(FAIL, 'conflict: the handoff has ended'); END";

/// A session's request for a supervisor.
#[table(
    name = "handoff_requests",
    without_rowid,
    unique(session_id, where = "status = 'pending' OR status = 'claimed'"),
    index(status),
    trigger = ENDED
)]
pub struct HandoffRequest {
    /// Its id.
    #[column(key)]
    pub id: String,
    /// The session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Why.
    pub reason: String,
    /// What the supervisor must be capable of.
    pub required_capability: String,
    /// Whatever else the supervisor should know.
    pub data: Option<Json>,
    /// Where it stands.
    pub status: HandoffStatus,
    /// Who has it.
    pub claimed_by: Option<String>,
    /// Until when.
    pub lease_expires_at: Option<Micros>,
    /// The supervisor's answer, or why it was declined.
    pub resolution: Option<String>,
    /// When it was asked for.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of that.
    pub seq: Seq,
}

/// The domain.
#[must_use]
pub fn module() -> Module {
    Module::new("handoff")
        .table::<HandoffRequest>()
        .reducer(request_supervisor_handoff::definition())
        .reducer(claim_handoff::definition())
        .reducer(release_handoff::definition())
        .reducer(resolve_handoff::definition())
        .reducer(reject_handoff::definition())
}

/// Puts a session into a supervisor's hands. It is `handed_off` until somebody answers.
#[reducer]
pub fn request_supervisor_handoff(
    ctx: &mut Context<'_>,
    session_id: String,
    reason: String,
    required_capability: String,
    data: Option<JsonValue>,
) -> Result<HandoffRequest, Abort> {
    check::name("required_capability", &required_capability)?;
    let session = session::open(ctx, &session_id)?;
    if session.status == SessionStatus::HandedOff {
        let open = "WHERE session_id = ?1 AND status IN ('pending', 'claimed')";
        let open = ctx.find::<HandoffRequest>(open, &[Value::from(session_id.as_str())])?;
        let which = open.first().map_or("another handoff", |handoff| handoff.id.as_str());
        let detail = format!("session {session_id} is handed off already, by {which}");
        return Err(Refusal::new(Code::Conflict, detail).into());
    }
    session::to_status(ctx, session, SessionStatus::HandedOff, |_| {})?;
    let (id, now, seq) = (ctx.new_id("ho"), ctx.now, ctx.seq);
    ctx.insert(HandoffRequest {
        id,
        session_id,
        reason,
        required_capability,
        data: data.map(Json::from),
        status: HandoffStatus::Pending,
        claimed_by: None,
        lease_expires_at: None,
        resolution: None,
        created_at: now,
        updated_at: now,
        seq,
    })
}

/// Takes a pending handoff. One supervisor wins, however many watch.
#[reducer]
pub fn claim_handoff(
    ctx: &mut Context<'_>,
    id: String,
    lease_ms: Option<i64>,
) -> Result<HandoffRequest, Abort> {
    let mut handoff = find(ctx, &id)?;
    let lapsed = handoff.lease_expires_at.is_none_or(|until| until <= ctx.now);
    match handoff.status {
        HandoffStatus::Pending => {}
        HandoffStatus::Claimed if lapsed => {}
        _ => return Err(not_to_be_claimed(&handoff).into()),
    }
    handoff.status = HandoffStatus::Claimed;
    handoff.claimed_by = Some(ctx.caller.name.clone());
    handoff.lease_expires_at = Some(check::lease(ctx.now, lease_ms.unwrap_or(LEASE_MS))?);
    save(ctx, handoff)
}

/// Gives a claimed handoff back, for another supervisor.
#[reducer]
pub fn release_handoff(ctx: &mut Context<'_>, id: String) -> Result<HandoffRequest, Abort> {
    let mut handoff = claimed(ctx, &id)?;
    handoff.status = HandoffStatus::Pending;
    handoff.claimed_by = None;
    handoff.lease_expires_at = None;
    save(ctx, handoff)
}

/// Answers a claimed handoff. The answer becomes a message of the session, which is active again.
#[reducer]
pub fn resolve_handoff(
    ctx: &mut Context<'_>,
    id: String,
    resolution: String,
) -> Result<HandoffRequest, Abort> {
    give_back(ctx, &id, HandoffStatus::Resolved, resolution)
}

/// Declines a claimed handoff. The reason becomes a message of the session, which is active again.
#[reducer]
pub fn reject_handoff(
    ctx: &mut Context<'_>,
    id: String,
    reason: String,
) -> Result<HandoffRequest, Abort> {
    give_back(ctx, &id, HandoffStatus::Rejected, reason)
}

fn give_back(
    ctx: &mut Context<'_>,
    id: &str,
    status: HandoffStatus,
    resolution: String,
) -> Result<HandoffRequest, Abort> {
    let mut handoff = claimed(ctx, id)?;
    let session = session::open(ctx, &handoff.session_id)?;
    let data = Json::from(json!({"handoff_id": id, "status": status.as_str()}));
    let (role, kind) = ("supervisor".to_owned(), "handoff".to_owned());
    message::append(ctx, &session, role, kind, Some(resolution.clone()), Some(data))?;
    session::to_status(ctx, session, SessionStatus::Active, |_| {})?;
    handoff.status = status;
    handoff.resolution = Some(resolution);
    save(ctx, handoff)
}

fn save(ctx: &mut Context<'_>, mut handoff: HandoffRequest) -> Result<HandoffRequest, Abort> {
    handoff.updated_at = ctx.now;
    handoff.seq = ctx.seq;
    ctx.update(&handoff)?;
    Ok(handoff)
}

fn find(ctx: &mut Context<'_>, id: &str) -> Result<HandoffRequest, Abort> {
    let handoff = ctx.get::<HandoffRequest>(id)?;
    let handoff =
        handoff.ok_or_else(|| Refusal::new(Code::NotFound, format!("there is no handoff {id}")))?;
    ctx.about(&handoff.session_id);
    Ok(handoff)
}

/// A handoff that this caller has claimed.
fn claimed(ctx: &mut Context<'_>, id: &str) -> Result<HandoffRequest, Abort> {
    let handoff = find(ctx, id)?;
    if handoff.status != HandoffStatus::Claimed {
        let refusal = Refusal::new(
            Code::Conflict,
            format!("handoff {id} is {}, not claimed", handoff.status),
        );
        return Err(match handoff.status {
            HandoffStatus::Pending => refusal.hint("claim_handoff first").into(),
            _ => refusal.into(),
        });
    }
    if handoff.claimed_by.as_deref() != Some(ctx.caller.name.as_str()) {
        return Err(not_to_be_claimed(&handoff).into());
    }
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
    Refusal::new(Code::Conflict, detail)
        .hint("abide watch \"SELECT id, reason FROM handoff_requests WHERE status = 'pending'\"")
}
