//! Approvals: a call of a tool that needs one waits for somebody's decision, bound to its arguments.

use abide_schema::reducer::Answer;
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, Value, reducer, table,
};
use serde_json::Value as JsonValue;

use crate::tool_call::{self, ToolCall, ToolCallStatus};

/// Where an approval stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum ApprovalStatus {
    /// Nobody has decided.
    Pending,
    /// Yes.
    Approved,
    /// No.
    Rejected,
    /// Nobody decided in time.
    Expired,
    /// The call is not wanted any more.
    Cancelled,
}

/// What a decider says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum Decision {
    /// Run it.
    Approve,
    /// Do not.
    Reject,
}

const DECIDED: &str = "CREATE TRIGGER approvals_decided BEFORE UPDATE ON approvals
WHEN OLD.status <> 'pending'
BEGIN SELECT RAISE(FAIL, 'conflict: the approval is decided'); END";

/// A decision that a call waits for, or had.
#[table(
    name = "approvals",
    without_rowid,
    unique(call_id),
    index(session_id),
    trigger = DECIDED
)]
pub struct Approval {
    /// Its id.
    #[column(key)]
    pub id: String,
    /// The call.
    #[column(references = "tool_calls(call_id)")]
    pub call_id: String,
    /// The call's session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Where it stands.
    pub status: ApprovalStatus,
    /// The arguments that were asked for.
    pub arguments: Json,
    /// The arguments that were approved, where the decider changed them.
    pub approved_arguments: Option<Json>,
    /// Who decided.
    pub decided_by: Option<String>,
    /// What the decider said.
    pub comment: Option<String>,
    /// Until when it can be decided.
    pub expires_at: Option<Micros>,
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
    Module::new("approval").table::<Approval>().reducer(decide_approval::definition())
}

/// Approves or rejects a call. The first decider wins; the same decision again changes nothing.
#[reducer]
pub fn decide_approval(
    ctx: &mut Context<'_>,
    id: Option<String>,
    call_id: Option<String>,
    decision: Decision,
    approved_arguments: Option<JsonValue>,
    comment: Option<String>,
) -> Result<Answer<Approval>, Abort> {
    let mut approval = find(ctx, id.as_deref(), call_id.as_deref())?;
    ctx.about(&approval.session_id);
    let approved_arguments = approved_arguments.map(Json::from);
    let status = match decision {
        Decision::Approve => ApprovalStatus::Approved,
        Decision::Reject => ApprovalStatus::Rejected,
    };
    if approval.status == status && approval.approved_arguments == approved_arguments {
        return Ok(Answer::Duplicate(approval.seq, approval));
    }
    if approval.status != ApprovalStatus::Pending {
        let by = approval.decided_by.as_deref().unwrap_or("nobody");
        let detail = format!("approval {} was {} by {by}", approval.id, approval.status);
        return Err(Refusal::new(Code::Conflict, detail).into());
    }
    if decision == Decision::Reject && approved_arguments.is_some() {
        let detail = "a rejection has no approved_arguments";
        return Err(Refusal::new(Code::BadArguments, detail).into());
    }
    let mut call = tool_call::find(ctx, &approval.call_id)?;
    call.status = match decision {
        Decision::Approve => ToolCallStatus::Pending,
        Decision::Reject => ToolCallStatus::Rejected,
    };
    if let Some(arguments) = &approved_arguments {
        call.arguments = arguments.clone();
    }
    tool_call::save(ctx, call)?;
    approval.status = status;
    approval.approved_arguments = approved_arguments;
    approval.decided_by = Some(ctx.caller.name.clone());
    approval.comment = comment;
    save(ctx, approval).map(Answer::Fresh)
}

/// Asks for a decision on a call.
pub(crate) fn request(ctx: &mut Context<'_>, call: &ToolCall) -> Result<Approval, Abort> {
    let (id, now, seq) = (ctx.new_id("ap"), ctx.now, ctx.seq);
    ctx.insert(Approval {
        id,
        call_id: call.call_id.clone(),
        session_id: call.session_id.clone(),
        status: ApprovalStatus::Pending,
        arguments: call.arguments.clone(),
        approved_arguments: None,
        decided_by: None,
        comment: None,
        expires_at: None,
        created_at: now,
        updated_at: now,
        seq,
    })
}

/// The arguments that a call was first asked with, where it needed approval.
pub(crate) fn asked_for(ctx: &mut Context<'_>, call_id: &str) -> Result<Option<Json>, Abort> {
    Ok(of_call(ctx, call_id)?.map(|approval| approval.arguments))
}

/// The call of a pending approval is not wanted any more.
pub(crate) fn cancel(ctx: &mut Context<'_>, call_id: &str) -> Result<(), Abort> {
    match of_call(ctx, call_id)? {
        Some(mut approval) if approval.status == ApprovalStatus::Pending => {
            approval.status = ApprovalStatus::Cancelled;
            save(ctx, approval).map(drop)
        }
        _ => Ok(()),
    }
}

fn save(ctx: &mut Context<'_>, mut approval: Approval) -> Result<Approval, Abort> {
    approval.updated_at = ctx.now;
    approval.seq = ctx.seq;
    ctx.update(&approval)?;
    Ok(approval)
}

fn of_call(ctx: &mut Context<'_>, call_id: &str) -> Result<Option<Approval>, Abort> {
    let found = ctx.find::<Approval>("WHERE call_id = ?1", &[Value::from(call_id)])?;
    Ok(found.into_iter().next())
}

fn find(ctx: &mut Context<'_>, id: Option<&str>, call_id: Option<&str>) -> Result<Approval, Abort> {
    let (found, name) = match (id, call_id) {
        (Some(id), None) => (ctx.get::<Approval>(id)?, id),
        (None, Some(call_id)) => (of_call(ctx, call_id)?, call_id),
        _ => {
            let detail = "decide_approval: give either id or call_id";
            return Err(Refusal::new(Code::BadArguments, detail).into());
        }
    };
    let missing = || Refusal::new(Code::NotFound, format!("there is no approval for {name}"));
    Ok(found.ok_or_else(missing)?)
}
