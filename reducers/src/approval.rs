//! Approvals: a tool call that needs one waits for a decision, which is bound to its arguments.
//!
//! ```text
//! pending ─▶ approved, rejected        (by the first decision)
//!    └─────▶ expired, cancelled        (no decision in time; the call was cancelled)
//! ```

use std::sync::Arc;

use abide_schema::reducer::{ColumnName, ReducerResult, RowVisibility, WaitingRows};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, Value, reducer, table,
};
use serde_json::Value as JsonValue;

use crate::run::{Run, RunStatus};
use crate::tool::{ApprovalPolicy, Tool};
use crate::tool_call::{self, ToolCall, ToolCallStatus};
use crate::{check, exchange, run, session};

/// Status of an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum ApprovalStatus {
    /// No decision yet.
    Pending,
    /// Approved.
    Approved,
    /// Rejected.
    Rejected,
    /// Expired without a decision.
    Expired,
    /// The call was cancelled.
    Cancelled,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum Decision {
    /// Run the call.
    Approve,
    /// Do not run it.
    Reject,
}

const DECIDED: &str = "CREATE TRIGGER approvals_decided BEFORE UPDATE ON approvals
WHEN OLD.status <> 'pending'
BEGIN SELECT RAISE(FAIL, 'conflict: the approval is decided'); END";

/// The arguments of an approval cannot change.
const BOUND: &str = "CREATE TRIGGER approvals_bound BEFORE UPDATE ON approvals
WHEN OLD.arguments <> NEW.arguments OR OLD.arguments_hash <> NEW.arguments_hash
  OR OLD.call_id <> NEW.call_id
BEGIN SELECT RAISE(FAIL, 'conflict: the approval is bound to its arguments'); END";

/// An approval of a tool call.
#[table(
    name = "approvals",
    unique(call_id),
    index(session_id),
    index(status),
    index(expires_at, where = "status = 'pending' AND expires_at IS NOT NULL"),
    trigger = DECIDED,
    trigger = BOUND
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
    /// The call's tool.
    #[column(references = "tools(name)")]
    pub tool_name: String,
    /// Its status.
    pub status: ApprovalStatus,
    /// The requested arguments.
    pub arguments: Json,
    /// A salted digest of the arguments, in hexadecimal: a decision is bound to it. It is read from this column
    /// and cannot be computed from the arguments.
    pub arguments_hash: String,
    /// The approved arguments, if the approver changed them.
    pub approved_arguments: Option<Json>,
    /// The question for the approver.
    pub prompt: Option<String>,
    /// Initial values of the approver's form.
    pub defaults: Option<Json>,
    /// The capability that an approver needs.
    pub required_capability: Option<String>,
    /// The approver.
    pub decided_by: Option<String>,
    /// The approver's comment.
    pub comment: Option<String>,
    /// When it expires.
    pub expires_at: Option<Micros>,
    /// When it was requested.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// The events of a run have what its approvers read and decide.
const COPIES_IN_EVENTS: &[ColumnName] = &[("run_events", "data")];

/// A call runs with the arguments of its approver, and the model learns them.
const COPIES_OF_APPROVED_ARGUMENTS: &[ColumnName] =
    &[("tool_calls", "arguments"), ("agent_state", "data"), ("run_events", "data")];

/// The comment on a rejection is the error of the call, which the model reads.
const COPIES_OF_COMMENTS: &[ColumnName] =
    &[("tool_calls", "error"), ("agent_state", "content"), ("run_events", "data")];

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("approval")
        .visible::<Approval>(RowVisibility::InScope)
        .waiting(WaitingRows {
            kind: "approvals",
            query: "SELECT created_at AS since FROM approvals WHERE status = 'pending' ORDER BY rowid",
        })
        .copied(("approvals", "prompt"), COPIES_IN_EVENTS)
        .copied(("approvals", "defaults"), COPIES_IN_EVENTS)
        .copied(("approvals", "approved_arguments"), COPIES_OF_APPROVED_ARGUMENTS)
        .copied(("approvals", "comment"), COPIES_OF_COMMENTS)
        .reducer(decide_approval::definition())
        .deadline::<Approval>(
            "expires_at",
            "status = 'pending' AND expires_at IS NOT NULL",
            expire_approval::definition(),
        )
}

/// Approves or rejects a call. The first decision wins; an identical one changes nothing. With
/// `approved_arguments` the call runs with these instead: they are validated against the tool's schema as well,
/// and both are kept. A call of `tool_input` is a question: its `approved_arguments` are `{"answer": …}`, and the answer must
/// fit the schema in its arguments. With `arguments_hash` the decision is valid only for arguments with that hash.
#[reducer(roles(app, supervisor))]
pub fn decide_approval(
    ctx: &mut Context<'_>,
    /// The approval; or give `call_id`.
    #[id(Approval)]
    id: Option<String>,
    /// The tool call; or give `id`.
    #[id(ToolCall)]
    call_id: Option<String>,
    /// The decision.
    decision: Decision,
    /// Arguments that replace the requested ones.
    approved_arguments: Option<JsonValue>,
    /// A comment on the decision.
    comment: Option<String>,
    /// The hash of the arguments that the decision is about.
    arguments_hash: Option<String>,
) -> Result<ReducerResult<Approval>, Abort> {
    let mut approval = find(ctx, id.as_deref(), call_id.as_deref())?;
    ctx.about(&approval.session_id);
    let what = format!("deciding on a call of {}", approval.tool_name);
    check::capability(ctx.caller, approval.required_capability.as_deref(), &what)?;
    check_hash(&approval, arguments_hash.as_deref())?;
    let approved_arguments_text = approved_arguments.clone().map(Json::from);
    let status = match decision {
        Decision::Approve => ApprovalStatus::Approved,
        Decision::Reject => ApprovalStatus::Rejected,
    };
    if approval.status == status && approval.approved_arguments == approved_arguments_text {
        return Ok(ReducerResult::Duplicate(approval.seq, approval));
    }
    if approval.status != ApprovalStatus::Pending {
        return Err(already_decided(ctx, &approval)?.into());
    }
    if decision == Decision::Reject && approved_arguments.is_some() {
        let detail = "approved_arguments is not valid with decision=reject";
        let hint = "omit approved_arguments, or give decision=approve";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
    }
    // A caller who can see the approval may decide, even if it cannot see the call.
    ctx.without_policies(|ctx| session::find_accepting(ctx, &approval.session_id))?;
    let mut call = ctx.without_policies(|ctx| tool_call::find(ctx, &approval.call_id))?;
    if decision == Decision::Approve {
        run::starter::check_continues(ctx, &approval.session_id)?;
    }
    let by = ctx.caller.id().to_owned();
    match decision {
        Decision::Approve if exchange::rows::find_asker(&call).is_some() => {
            let answer = approved_arguments.as_ref();
            let comment = comment.as_deref();
            call.result = Some(exchange::answer::accept(ctx, &call, answer, comment)?);
            call.status = ToolCallStatus::Succeeded;
        }
        Decision::Approve => {
            if let Some(arguments) = approved_arguments.map(Arc::new) {
                let tool = tool_call::find_pinned(ctx, &call)?;
                tool.check_arguments(ctx, &arguments)?;
                call.arguments = Json::from(&*arguments);
            }
            call.status = ToolCallStatus::Pending;
        }
        Decision::Reject => {
            call.status = ToolCallStatus::Rejected;
            call.error = comment.clone().or_else(|| Some(format!("rejected by {by}")));
        }
    }
    let call = ctx.without_policies(|ctx| tool_call::save(ctx, call))?;
    exchange::rows::resume_asker(ctx, &call)?;
    approval.status = status;
    approval.approved_arguments = approved_arguments_text;
    approval.decided_by = Some(by);
    approval.comment = comment;
    run::continue_if_decided(ctx, &approval.session_id)?;
    save(ctx, approval).map(ReducerResult::Fresh)
}

/// Expires an approval without a decision: the call is rejected.
#[reducer]
pub fn expire_approval(
    ctx: &mut Context<'_>,
    id: String,
    expires_at: Micros,
) -> Result<Approval, Abort> {
    let mut approval = find(ctx, Some(&id), None)?;
    let waits = approval.status == ApprovalStatus::Pending;
    if !waits || approval.expires_at != Some(expires_at) || ctx.now < expires_at {
        return Err(check::not_due(&id, expires_at).into());
    }
    let mut call = tool_call::find(ctx, &approval.call_id)?;
    call.status = ToolCallStatus::Rejected;
    call.error = Some("there was no decision in time".to_owned());
    let call = tool_call::save(ctx, call)?;
    exchange::rows::resume_asker(ctx, &call)?;
    run::continue_if_decided(ctx, &approval.session_id)?;
    approval.status = ApprovalStatus::Expired;
    save(ctx, approval)
}

/// Requests a decision on a call.
pub(crate) fn request(ctx: &mut Context<'_>, tool: &Tool, call: &ToolCall) -> Result<(), Abort> {
    request_with(ctx, tool.approval(), call)
}

/// Requests a decision on a call, with settings that belong to this call.
pub(crate) fn request_with(
    ctx: &mut Context<'_>,
    policy: ApprovalPolicy,
    call: &ToolCall,
) -> Result<(), Abort> {
    let id = ctx.new_id("ap");
    let now = ctx.now;
    let seq = ctx.seq;
    let arguments_hash = ctx.digest(call.arguments.as_str());
    let approval = ctx.insert(Approval {
        id,
        call_id: call.call_id.clone(),
        session_id: call.session_id.clone(),
        tool_name: call.tool_name.clone(),
        status: ApprovalStatus::Pending,
        arguments: call.arguments.clone(),
        arguments_hash,
        approved_arguments: None,
        prompt: policy.prompt,
        defaults: policy.defaults.map(Json::from),
        required_capability: policy.required_capability,
        decided_by: None,
        comment: None,
        expires_at: check::time_after("expires_after_ms", now, policy.expires_after_ms)?,
        created_at: now,
        updated_at: now,
        seq,
    });
    approval.map(drop)
}

/// Returns the arguments with which a call was first requested, if it needed an approval.
pub(crate) fn requested_arguments(
    ctx: &mut Context<'_>,
    call_id: &str,
) -> Result<Option<Json>, Abort> {
    let found = ctx.without_policies(|ctx| find_by_call(ctx, call_id))?;
    Ok(found.map(|approval| approval.arguments))
}

/// Cancels the pending approval of a call.
pub(crate) fn cancel(ctx: &mut Context<'_>, call_id: &str) -> Result<(), Abort> {
    match find_by_call(ctx, call_id)? {
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

fn find_by_call(ctx: &mut Context<'_>, call_id: &str) -> Result<Option<Approval>, Abort> {
    let found = ctx.find::<Approval>("WHERE call_id = ?1", &[Value::from(call_id)])?;
    Ok(found.into_iter().next())
}

fn find(ctx: &mut Context<'_>, id: Option<&str>, call_id: Option<&str>) -> Result<Approval, Abort> {
    let (found, name) = match (id, call_id) {
        (Some(id), None) => (ctx.get::<Approval>(id)?, id),
        (None, Some(call_id)) => (find_by_call(ctx, call_id)?, call_id),
        _ => {
            let detail = "exactly one of id and call_id is required";
            let hint = "id names the approval, call_id the tool call";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
        }
    };
    Ok(found.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no approval for {name}"))
            .hint_query("SELECT id, call_id, status FROM approvals")
    })?)
}

fn check_hash(approval: &Approval, arguments_hash: Option<&str>) -> Result<(), Refusal> {
    match arguments_hash {
        Some(hash) if !hash.eq_ignore_ascii_case(&approval.arguments_hash) => {
            let detail = format!("approval {} concerns other arguments", approval.id);
            let hint = "read its arguments and arguments_hash again";
            Err(Refusal::new(Code::Conflict, detail).hint(hint))
        }
        _ => Ok(()),
    }
}

/// Returns the refusal of a decision on an approval that is no longer pending.
fn already_decided(ctx: &mut Context<'_>, approval: &Approval) -> Result<Refusal, Abort> {
    if approval.status == ApprovalStatus::Cancelled
        && let Some(run) = run_of_cancellation(ctx, approval)?
    {
        let session = ctx.get::<session::Session>(&approval.session_id)?;
        let has_ended = session.is_some_and(|session| session.status.is_terminal());
        return Ok(cancelled_with(approval, &run, has_ended));
    }
    let id = &approval.id;
    let status = approval.status;
    let detail = match (&approval.decided_by, approval.expires_at) {
        (Some(by), _) => format!("approval {id} was {status} by {by}"),
        (None, Some(at)) if status == ApprovalStatus::Expired => {
            format!("approval {id} expired at {at}")
        }
        _ => format!("approval {id} is {status}"),
    };
    Ok(Refusal::new(Code::Conflict, detail))
}

/// Returns the run whose end or abort has cancelled a call, unless a policy hides it.
fn run_of_cancellation(ctx: &mut Context<'_>, approval: &Approval) -> Result<Option<Run>, Abort> {
    let last =
        "WHERE session_id = ?1 AND created_at <= ?2 ORDER BY created_at DESC, id DESC LIMIT 1";
    let params = [Value::from(&*approval.session_id), Value::from(approval.created_at.0)];
    let run = ctx.find::<Run>(last, &params)?.into_iter().next();
    Ok(run.filter(|run| {
        let requested = run.abort_requested_at.is_some_and(|at| at <= approval.updated_at);
        run.status.is_terminal()
            && run.status != RunStatus::Done
            && (requested || run.seq <= approval.seq)
    }))
}

/// Returns the refusal of a decision on a call that was cancelled with its run. `has_ended`: its session has ended too.
fn cancelled_with(approval: &Approval, run: &Run, has_ended: bool) -> Refusal {
    let Run { id, status, .. } = run;
    let why = run.error_message.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let call = &approval.call_id;
    let detail = format!("call {call} was cancelled, because run {id} has ended ({status}){why}");
    let hint = if run.error_code.as_deref() == Some(run::stop::MOVED) {
        "decide in the file in which the run continues"
    } else if has_ended {
        "its session has ended too: start a run in a new session"
    } else {
        "start another run in the session; a new call asks for a new approval"
    };
    Refusal::new(Code::Conflict, detail).hint(hint)
}
