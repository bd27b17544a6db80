//! The exchange of a tool with its server during one call, where it takes more than one request: the server asks for
//! input, or makes a task of the call. Steps are recorded before the tool acts on them, so another worker can continue.
//!
//! ```text
//! claimed ─▶ awaiting_approval ─▶ pending   (the server asks: each question is a call of `tool_input` with an approval)
//!    └─────▶ pending                        (a task of the server goes on: the call is claimed again later)
//! ```
//!
//! A question has an id that derives from the call which asks, so it can be answered, and cannot be forged, like any other
//! approval. When all questions of a call are decided, the call can be claimed again.

use abide_schema::reducer::RowVisibility;
use abide_schema::{Abort, Code, Context, Json, Module, Refusal, Value, limits, reducer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as JsonValue, json};

use crate::tool::{self, ApprovalPolicy};
use crate::tool_call::{self, RequestedCall, ToolCall, ToolCallStatus};
use crate::{approval, check, lease, run};

pub(crate) mod answer;
pub(crate) mod rows;

pub use rows::{ExchangeKind, INPUT_TOOL, ToolExchange, asked_by, input_id};

/// A step of an exchange, as a worker records it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewExchange {
    /// Its kind.
    pub kind: ExchangeKind,
    /// Its data.
    pub data: JsonValue,
}

/// A question of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewInput {
    /// The question, for a person.
    pub message: String,
    /// The JSON Schema of the answer, an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<JsonValue>,
    /// Where the person answers, if not here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("exchange")
        .visible::<ToolExchange>(RowVisibility::InScope)
        .reducer(record_exchange::definition().wrapping(limits::RECORD_DEPTH))
        .reducer(suspend_tool_call::definition())
        .reducer(close_exchange::definition())
}

/// Records steps of the exchange of a claimed call.
#[reducer(roles(app, agent, worker))]
pub fn record_exchange(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// The steps.
    entries: Vec<NewExchange>,
) -> Result<ToolCall, Abort> {
    let call = tool_call::find_claimed(ctx, &call_id, fencing_token)?;
    record_entries(ctx, &call, entries)?;
    Ok(call)
}

/// Puts a claimed call back, because its server has asked for input, or continues it as a task. With `inputs` the call waits
/// for a decision on each of them; with `retry_ms` it is claimed again after that time. Steps are recorded with it.
#[reducer(roles(app, agent, worker))]
pub fn suspend_tool_call(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// Steps of the exchange.
    entries: Option<Vec<NewExchange>>,
    /// The questions of the server. They need a step that records them.
    inputs: Option<Vec<NewInput>>,
    /// When the call can be claimed again.
    retry_ms: Option<i64>,
) -> Result<ToolCall, Abort> {
    let mut call = tool_call::find_claimed(ctx, &call_id, fencing_token)?;
    if call.cancel_requested_at.is_some() {
        let detail = format!("call {call_id} is being cancelled");
        let hint = "end it with acknowledge_cancel, complete_tool_call or fail_tool_call";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    let last = record_entries(ctx, &call, entries.unwrap_or_default())?;
    call.lease_expires_at = None;
    match (inputs.unwrap_or_default(), retry_ms) {
        (inputs, None) if !inputs.is_empty() => {
            insert_questions(ctx, &call, last, inputs)?;
            call.status = ToolCallStatus::AwaitingApproval;
        }
        (inputs, Some(retry_ms)) if inputs.is_empty() => {
            call.retry_at = check::time_after("retry_ms", ctx.now, Some(retry_ms.max(1)))?;
            call.status = ToolCallStatus::Pending;
        }
        _ => {
            let detail = "exactly one of inputs and retry_ms is required";
            let hint = "inputs are questions of the server; retry_ms is for a task of the server";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
        }
    }
    let call = tool_call::save(ctx, call)?;
    run::suspend_for_call(ctx, &call.session_id)?;
    Ok(call)
}

/// Records that the tasks of a call have ended, or were cancelled. The holder of the call closes them with the outcome; without
/// a token, the call must have ended.
#[reducer(roles(app, agent, worker))]
pub fn close_exchange(
    ctx: &mut Context<'_>,
    #[id(ToolCall)] call_id: String,
    /// The fencing token of the claim.
    fencing_token: Option<i64>,
) -> Result<ToolCall, Abort> {
    let mut call = match fencing_token {
        Some(fencing_token) => tool_call::find_claimed(ctx, &call_id, fencing_token)?,
        None => tool_call::find(ctx, &call_id)?,
    };
    if fencing_token.is_none() && !call.status.is_terminal() {
        let detail = format!("call {call_id} is {} and has not ended", call.status);
        let hint = "its holder gives fencing_token; others wait for the end of the call";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    for mut task in rows::open_tasks(ctx, &call_id)? {
        task.ended_at = Some(ctx.now);
        task.seq = ctx.seq;
        ctx.without_policies(|ctx| ctx.update(&task))?;
    }
    lease::hide_token(ctx, &mut call.fencing_token)?;
    Ok(call)
}

/// Adds steps; returns the number of the last one.
fn record_entries(
    ctx: &mut Context<'_>,
    call: &ToolCall,
    entries: Vec<NewExchange>,
) -> Result<i64, Abort> {
    let newest = "WHERE call_id = ?1 ORDER BY number DESC LIMIT 1";
    let params = [Value::from(call.call_id.as_str())];
    let newest = ctx.without_policies(|ctx| ctx.find::<ToolExchange>(newest, &params))?;
    let mut number = newest.first().map_or(0, |step| step.number);
    let max = limits::EXCHANGES_OF_A_CALL;
    for NewExchange { kind, data } in entries {
        let data = Json::from(data);
        let bytes = data.as_str().len();
        let limit = limits::EXCHANGE_BYTES;
        if bytes > limit {
            let detail = format!("a step in entries has {bytes} bytes; the limit is {limit}");
            let hint = "record only what another worker needs to continue";
            return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
        }
        number += 1;
        if number > max {
            let id = &call.call_id;
            let detail = format!("call {id} has reached the limit of {max} recorded steps");
            let hint = "fail the call: its server keeps asking";
            return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
        }
        let step = ToolExchange {
            call_id: call.call_id.clone(),
            number,
            session_id: call.session_id.clone(),
            kind,
            data,
            ended_at: None,
            created_at: ctx.now,
            seq: ctx.seq,
        };
        ctx.without_policies(|ctx| ctx.insert(step))?;
    }
    Ok(number)
}

/// Requests a decision on each question.
fn insert_questions(
    ctx: &mut Context<'_>,
    call: &ToolCall,
    step: i64,
    inputs: Vec<NewInput>,
) -> Result<(), Abort> {
    let count = inputs.len();
    let max = limits::INPUTS_AT_ONCE;
    if count > max {
        let detail = format!("inputs has {count} questions; the limit is {max}");
        return Err(Refusal::new(Code::LimitExceeded, detail).hint("fail the call").into());
    }
    if step == 0 {
        let detail = "inputs requires a step in entries that records the questions";
        let hint = "give entries with the request of the server";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
    }
    let policy = tool_call::find_pinned(ctx, call)?.approval();
    let tool = tool::find(ctx, INPUT_TOOL)?;
    for (index, input) in inputs.into_iter().enumerate() {
        let arguments = Json::from(arguments(ctx, call, &input)?);
        let question = RequestedCall {
            call_id: input_id(&call.call_id, step, index + 1),
            session_id: call.session_id.clone(),
            tool_name: tool.name.clone(),
            tool_version: tool.version,
            arguments,
            provider_call_id: None,
            status: ToolCallStatus::AwaitingApproval,
        };
        let question = question.into_row(ctx);
        // Those who may approve calls of the tool may answer for it.
        let policy =
            ApprovalPolicy { prompt: Some(input.message), defaults: None, ..policy.clone() };
        ctx.without_policies(|ctx| {
            let question = ctx.insert(question)?;
            approval::request_with(ctx, policy, &question)
        })?;
    }
    Ok(())
}

/// Returns the arguments of the call for a question. Only `message`, `schema` and `url` are from the server.
fn arguments(ctx: &mut Context<'_>, call: &ToolCall, input: &NewInput) -> Result<JsonValue, Abort> {
    let bytes = input.message.len();
    let max = limits::INPUT_MESSAGE_BYTES;
    if bytes > max || input.url.as_ref().is_some_and(|url| url.len() > max) {
        let detail = format!("message or url of an input has more than {max} bytes");
        return Err(Refusal::new(Code::LimitExceeded, detail).hint("fail the call").into());
    }
    let mut arguments = json!({"tool": call.tool_name, "call_id": call.call_id,
        "message": input.message});
    if let Some(schema) = &input.schema {
        if schema["type"] != "object" {
            let detail = "schema of an input must have the type object";
            let hint = "put other values into a property of an object";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
        }
        tool::check_schema(ctx, INPUT_TOOL, &Json::from(schema.clone()))?;
        arguments["schema"] = schema.clone();
    }
    if let Some(url) = &input.url {
        if !url.starts_with("https://") && !url.starts_with("http://") {
            let detail = "url of an input must begin with https:// or http://";
            return Err(Refusal::new(Code::BadArguments, detail).into());
        }
        arguments["url"] = json!(url);
    }
    Ok(arguments)
}
