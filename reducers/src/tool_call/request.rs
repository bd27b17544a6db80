//! Asking for a call: of a tool that is registered, with arguments that fit it, once.

use abide_schema::reducer::Answer;
use abide_schema::{Abort, Code, Context, Json, Refusal, Value, reducer};
use serde_json::Value as JsonValue;

use super::{ToolCall, ToolCallStatus, claim, pace};
use crate::tool::{self, Tool};
use crate::{approval, check, session};

/// Asks for a tool to be run. The same `call_id` with the same session, tool and arguments is the
/// same call and returns the stored row; with anything else it is a conflict. With `claim_lease_ms`
/// the caller claims it in the same breath, if it can be claimed: for agents that run their own tools.
/// With `needs_approval` somebody must approve it, though the tool itself does not ask for that.
#[reducer]
pub fn request_tool_call(
    ctx: &mut Context<'_>,
    call_id: String,
    session_id: String,
    tool_name: String,
    arguments: JsonValue,
    provider_call_id: Option<String>,
    claim_lease_ms: Option<i64>,
    needs_approval: Option<bool>,
) -> Result<Answer<ToolCall>, Abort> {
    check::name("call_id", &call_id)?;
    if let Some(stored) = ctx.get::<ToolCall>(&call_id)? {
        ctx.about(&stored.session_id);
        check_same(ctx, &stored, &session_id, &tool_name, &Json::from(arguments))?;
        return Ok(Answer::Duplicate(stored.created_seq, stored));
    }
    let session = session::wanted(ctx, &session_id)?;
    let tool = tool::find(ctx, &tool_name)?;
    tool::arguments::check(&tool, &arguments)?;
    check_count(ctx, &tool, &session_id)?;
    let (now, seq) = (ctx.now, ctx.seq);
    let mut call = ToolCall {
        call_id,
        session_id,
        tool_name,
        tool_version: tool.version,
        arguments: Json::from(arguments),
        provider_call_id,
        status: ToolCallStatus::Pending,
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
        created_at: now,
        created_seq: seq,
        updated_at: now,
        seq,
    };
    let asks = tool.needs_approval || needs_approval == Some(true);
    if asks {
        call.status = ToolCallStatus::AwaitingApproval;
    } else if let Some(lease_ms) = claim_lease_ms {
        check::lease(now, lease_ms)?;
        let capable = tool.required_capability.as_deref().is_none_or(|it| ctx.caller.can(it));
        if capable && pace::held_up(ctx, &tool)?.is_none() {
            claim::take(ctx, &tool, &tool, &mut call, lease_ms, None)?;
        }
    }
    let call = ctx.insert(call).map_err(taken)?;
    if asks {
        ctx.beyond_policies(|ctx| approval::request(ctx, &tool, &call))?;
    }
    session::touch(ctx, session)?;
    Ok(Answer::Fresh(call))
}

/// A call id that stands for a call which the caller cannot see.
fn taken(abort: Abort) -> Abort {
    match abort {
        Abort::Refused(mut refusal) if refusal.code == Code::Conflict => {
            refusal.code = Code::CallIdConflict;
            Abort::Refused(refusal)
        }
        abort => abort,
    }
}

/// Holds a session to the number of calls that a tool allows it.
fn check_count(ctx: &mut Context<'_>, tool: &Tool, session_id: &str) -> Result<(), Abort> {
    let Some(most) = tool.limits().calls_per_session else { return Ok(()) };
    let params = [Value::from(session_id), Value::from(tool.name.as_str())];
    let of_both = "WHERE session_id = ?1 AND tool_name = ?2";
    let count = ctx.beyond_policies(|ctx| ctx.count::<ToolCall>(of_both, &params))?;
    if count < most {
        return Ok(());
    }
    let name = &tool.name;
    let detail = format!("session {session_id} has asked for {name} {count} times already");
    let hint = format!("{name} may be called {most} times by a session; register_tool sets it");
    Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into())
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
