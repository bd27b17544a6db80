//! Follows the run of a call to its end. While the run waits for approvals, the client is asked for them.

use abide_schema::Refusal;
use abide_server::port::runs;
use serde_json::{Map, Value as JsonValue, json};

use super::exchange::McpRequestContext;
use super::input;
use super::message::to_failure;
use crate::call::Interrupt;
use crate::follow::Follower;
use crate::mcp_handler::{McpCancellation, McpFailure};
use crate::start::{self, RunRow};
use crate::turn::{Change, Content, Turn};
use crate::whole;

/// Decides on calls that wait, as far as the responses say. Returns the run, and whether a form was closed.
pub(super) async fn decide(
    exchange: &McpRequestContext,
    run: RunRow,
    responses: &Map<String, JsonValue>,
) -> Result<(RunRow, bool), McpFailure> {
    let app = &exchange.app;
    let by = exchange.by();
    let pending = start::undecided_calls(&app.engine, by, &run).await.map_err(to_failure)?;
    let decided = input::read_decisions(&pending, responses).map_err(to_failure)?;
    if decided.decisions.is_empty() {
        return Ok((run, decided.form_cancelled));
    }
    let decided_run = start::decide_some(app, by, &run, decided.decisions, Vec::new());
    let run = decided_run.await.map_err(to_failure)?;
    Ok((run, decided.form_cancelled))
}

/// Follows a run to its end. Asks the client for approvals.
pub(super) async fn finish(
    exchange: &McpRequestContext,
    mut run: RunRow,
    mut form_cancelled: bool,
) -> Result<JsonValue, McpFailure> {
    let app = &exchange.app;
    let by = exchange.by();
    loop {
        let turn = run.turn;
        tokio::select! {
            followed = until_end(exchange, &run) => followed?,
            how = exchange.cancellation() => return Err(abort_run(exchange, &run, how).await),
        }
        run = start::find(&app.engine, by, &run.id).await.map_err(to_failure)?;
        if run.has_ended {
            return ended_result(exchange, &run).await;
        }
        let pending = start::undecided_calls(&app.engine, by, &run).await.map_err(to_failure)?;
        if run.turn > turn {
            // It was continued elsewhere.
            continue;
        }
        if pending.is_empty() || form_cancelled || !input::has_forms(exchange) {
            return waiting_result(exchange, &run, &pending).await;
        }
        let requests = input::approval_forms(&pending);
        if exchange.is_modern() {
            return Ok(input::input_required(requests, Some(run.id)));
        }
        let responses = input::ask_client(exchange, requests).await?;
        (run, form_cancelled) = decide(exchange, run, &responses).await?;
    }
}

/// Reads the turn of a run to its end, and reports progress.
async fn until_end(exchange: &McpRequestContext, run: &RunRow) -> Result<(), McpFailure> {
    let auth = exchange.auth.clone();
    let turn = Turn::new(run.turn);
    let follower = Follower::new(&exchange.app, auth, run, turn).await;
    let mut follower = follower.map_err(to_failure)?;
    while follower.turn.end.is_none() {
        let Some(changes) = follower.next_changes().await.map_err(to_failure)? else {
            let id = &run.id;
            let message = format!("the server stops; the run {id} continues after its start");
            let data = Some(json!({"run_id": id, "session_id": run.session_id}));
            return Err(McpFailure { code: -32603, message, data });
        };
        for change in &changes {
            let Some(message) = progress_message(&follower.turn, change) else { continue };
            #[expect(clippy::cast_precision_loss, reason = "a run has far less than 2^52 events")]
            let progress = follower.turn.event as f64;
            exchange.notifier.progress(progress, None, Some(&message)).await;
        }
    }
    Ok(())
}

/// Returns the message for a change of a run, if it has one.
fn progress_message(turn: &Turn, change: &Change) -> Option<String> {
    match change {
        Change::Opened(at) => Some(match &turn.items[*at].content {
            Content::Call(call) => format!("calls {}", call.name),
            Content::Message(_) => "writes".to_owned(),
            Content::Reasoning(_) => "thinks".to_owned(),
            Content::Approval(interrupt) => format!("asks for an approval of {}", interrupt.tool()),
        }),
        Change::Edited(at) => match &turn.items[*at].content {
            Content::Call(call) => {
                Some(format!("calls {} with other arguments: {}", call.name, call.arguments))
            }
            _ => None,
        },
        Change::Closed(at) => match &turn.items[*at].content {
            Content::Call(call) if call.has_failed() => {
                call.outcome.as_ref().map(|outcome| format!("{}: {}", call.name, outcome.label()))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Aborts the run of a call that the client has cancelled.
async fn abort_run(exchange: &McpRequestContext, run: &RunRow, how: McpCancellation) -> McpFailure {
    let reason = match how {
        McpCancellation::Requested => "the MCP client has cancelled the call",
        McpCancellation::Disconnected => "the MCP client has closed the connection of the call",
    };
    let args = json!({"id": run.id, "reason": reason});
    let aborted = exchange.app.engine.call(exchange.by(), "abort_run", &args, None).await;
    if let Err(refusal) = aborted {
        return to_failure(refusal);
    }
    McpFailure { code: -32800, message: "the call was cancelled".to_owned(), data: None }
}

/// Returns the result of a run that has ended.
pub(super) async fn ended_result(
    exchange: &McpRequestContext,
    row: &RunRow,
) -> Result<JsonValue, McpFailure> {
    let found = runs::find(&exchange.app.engine, exchange.by(), &row.id).await;
    let (_, run) = found.map_err(to_failure)?;
    let mut structured = json!({"run_id": run["id"], "session_id": run["session_id"],
        "status": run["status"]});
    let (text, is_error) = match run["status"].as_str() {
        Some("done") => {
            structured["output"] = run["output"].clone();
            (run["output"]["content"].as_str().unwrap_or_default().to_owned(), false)
        }
        Some("aborted") => {
            let reason = run["reason"].as_str().unwrap_or("no reason");
            (format!("the run was aborted: {reason}"), true)
        }
        _ => {
            let [code, message] = ["error_code", "error_message"].map(|name| run[name].as_str());
            structured["error"] = json!({"code": code, "message": message});
            (format!("{}: {}", code.unwrap_or("failed"), message.unwrap_or_default()), true)
        }
    };
    let mut result = json!({"content": [{"type": "text", "text": text}],
        "structuredContent": structured, "isError": is_error});
    if let Some(results) = call_results(exchange, row).await {
        result["_meta"] = json!({META_TOOL_RESULTS: results});
    }
    Ok(result)
}

/// The member of `_meta` of a result with what became of the tool calls of its run.
const META_TOOL_RESULTS: &str = "abide/toolResults";

/// Returns the results of the tool calls of a run that its text does not say. `None` if there are none, and if its
/// events are hidden from the caller or too large for one answer: the result of the run is known without them.
async fn call_results(exchange: &McpRequestContext, run: &RunRow) -> Option<Vec<JsonValue>> {
    let _permit = whole::acquire_load_permit(&exchange.app, exchange.by(), run).await.ok()?;
    let turns = Turn::span(1, i64::MAX);
    let follower = Follower::new(&exchange.app, exchange.auth.clone(), run, turns).await;
    let mut follower = follower.ok()?;
    follower.read_until_now().await.ok()?;
    Some(follower.turn.call_results()).filter(|results| !results.is_empty())
}

/// Returns the result of a call whose run waits for something that the client does not decide.
async fn waiting_result(
    exchange: &McpRequestContext,
    run: &RunRow,
    pending: &[Interrupt],
) -> Result<JsonValue, McpFailure> {
    let found = runs::find(&exchange.app.engine, exchange.by(), &run.id).await;
    let (_, row) = found.map_err(to_failure)?;
    let text = match pending {
        [] => {
            let reason = row["reason"].as_str().unwrap_or("something else");
            format!("The run {} waits for: {reason}.", run.id)
        }
        calls => format!("The run {} waits for a decision. {}", run.id, describe_calls(calls)),
    };
    let approvals: Vec<&JsonValue> = pending.iter().map(Interrupt::request).collect();
    let structured = json!({"run_id": run.id, "session_id": run.session_id, "status": "waiting",
        "reason": row["reason"], "approvals": approvals});
    Ok(json!({"content": [{"type": "text", "text": text}], "structuredContent": structured,
        "isError": false}))
}

/// Returns the calls in words.
pub(super) fn describe_calls(pending: &[Interrupt]) -> String {
    pending
        .iter()
        .map(|it| format!("{} (call {})", it.description(), it.call_id()))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns the result of a message to a session whose run waits for decisions; `None` if it does not.
pub(super) async fn not_sent_result(
    exchange: &McpRequestContext,
    run: &RunRow,
) -> Result<Option<JsonValue>, McpFailure> {
    let pending = start::undecided_calls(&exchange.app.engine, exchange.by(), run);
    let pending = pending.await.map_err(to_failure)?;
    let Some(first) = pending.first().filter(|_| !run.has_ended) else { return Ok(None) };
    let id = &run.id;
    let call = first.call_id();
    let text = format!(
        "The message was not sent: the run {id} of the session waits for a decision. {} Decide first: \
         tasks/result of the task {id} asks for it, or  abide call decide_approval call_id={call} decision=approve",
        describe_calls(&pending)
    );
    let approvals: Vec<&JsonValue> = pending.iter().map(Interrupt::request).collect();
    let structured = json!({"run_id": id, "session_id": run.session_id, "status": "waiting",
        "approvals": approvals});
    Ok(Some(json!({"content": [{"type": "text", "text": text}], "structuredContent": structured,
        "isError": true})))
}

/// Returns a refusal as the result of a tool: the model reads it.
pub(super) fn refusal_result(refusal: Refusal) -> JsonValue {
    abide_server::port::note(&refusal);
    failed_result(&refusal.to_string())
}

/// Returns the result of a call that failed.
pub(super) fn failed_result(text: &str) -> JsonValue {
    json!({"content": [{"type": "text", "text": text}], "isError": true})
}
