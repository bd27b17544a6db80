//! Tasks: each is a run, by its id. A run is stored before its id is sent, so that a client finds it again after a
//! restart. In 2026-07-28 tasks are the extension `io.modelcontextprotocol/tasks`; in 2025-11-25 they are part of the
//! protocol.

use abide_schema::{Code, Micros, Refusal};
use abide_server::port::runs;
use serde_json::{Map, Value as JsonValue, json};

use super::agent_run;
use super::exchange::McpRequestContext;
use super::input;
use super::message::{Request, to_failure};
use super::paging::{read_cursor, start_before};
use crate::call::Interrupt;
use crate::mcp_handler::McpFailure;
use crate::start::{self, RunRow};

/// The extension of 2026-07-28.
pub(super) const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The interval at which a client polls, in milliseconds.
const POLL_MS: i64 = 1_000;

/// Tasks of one page of `tasks/list`.
const PAGE: usize = 50;

/// Returns `true` if a call of an agent becomes a task.
pub(super) fn wants_task(exchange: &McpRequestContext, params: &Map<String, JsonValue>) -> bool {
    if exchange.is_modern() {
        has_declared_extension(exchange)
    } else {
        params.get("task").is_some_and(JsonValue::is_object)
    }
}

fn has_declared_extension(exchange: &McpRequestContext) -> bool {
    exchange.capabilities()["extensions"][EXTENSION].is_object()
}

/// A client of 2026-07-28 must have declared the extension.
fn check_declared(exchange: &McpRequestContext) -> Result<(), McpFailure> {
    if !exchange.is_modern() || has_declared_extension(exchange) {
        return Ok(());
    }
    Err(McpFailure {
        code: -32021,
        message: format!("the client has not declared the extension {EXTENSION}"),
        data: Some(json!({"requiredCapabilities": {"extensions": {EXTENSION: {}}}})),
    })
}

/// Returns the result of a call that has become a task.
pub(super) async fn task_result(
    exchange: &McpRequestContext,
    id: &str,
) -> Result<JsonValue, McpFailure> {
    let Task { base, .. } = load_task(exchange, id).await?;
    if !exchange.is_modern() {
        return Ok(json!({"task": base}));
    }
    let mut result = base;
    result["resultType"] = json!("task");
    Ok(result)
}

struct Task {
    row: RunRow,
    /// The members that all messages about a task have.
    base: JsonValue,
    pending: Vec<Interrupt>,
}

/// Returns a run as a task.
async fn load_task(exchange: &McpRequestContext, id: &str) -> Result<Task, McpFailure> {
    let engine = &exchange.app.engine;
    let by = exchange.by();
    let missing = |refusal: Refusal| match refusal.code {
        Code::NotFound => McpFailure::invalid(format!("there is no task {}", id.escape_debug())),
        _ => to_failure(refusal),
    };
    let (_, run) = runs::find(engine, by, id).await.map_err(missing)?;
    let row = start::find(engine, by, id).await.map_err(missing)?;
    let pending = match run["status"].as_str() {
        Some("waiting") => start::undecided_calls(engine, by, &row).await.map_err(to_failure)?,
        _ => Vec::new(),
    };
    let is_modern = exchange.is_modern();
    let status = match run["status"].as_str() {
        Some("done") => "completed",
        // The call has a result, which is an error.
        Some("failed") if is_modern => "completed",
        Some("failed") => "failed",
        Some("aborted") => "cancelled",
        Some("waiting") if !pending.is_empty() => "input_required",
        _ => "working",
    };
    let created = format_time(&run["created_at"]);
    let updated = format_time(&run["updated_at"]);
    let mut base = json!({"taskId": row.id, "status": status, "createdAt": created,
        "lastUpdatedAt": updated});
    let [ttl, poll] = if is_modern { ["ttlMs", "pollIntervalMs"] } else { ["ttl", "pollInterval"] };
    base[ttl] = JsonValue::Null;
    base[poll] = json!(POLL_MS);
    let said = match (run["status"].as_str(), run["reason"].as_str()) {
        (Some("waiting"), _) if !pending.is_empty() => Some(agent_run::describe_calls(&pending)),
        (Some("waiting"), Some(reason)) => Some(format!("waits for: {reason}")),
        (Some("failed"), _) => run["error_message"].as_str().map(str::to_owned),
        (Some("aborted"), reason) => reason.map(str::to_owned),
        _ => None,
    };
    if let Some(said) = said {
        base["statusMessage"] = json!(said);
    }
    Ok(Task { row, base, pending })
}

/// `tasks/get`.
pub(super) async fn get(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    check_declared(exchange)?;
    let Task { row, mut base, pending } =
        load_task(exchange, request.required_text("taskId")?).await?;
    if exchange.is_modern() {
        match base["status"].as_str() {
            Some("completed") => {
                base["result"] = agent_run::ended_result(exchange, &row).await?;
            }
            Some("input_required") => {
                base["inputRequests"] = JsonValue::Object(input::approval_forms(&pending));
            }
            _ => {}
        }
    }
    Ok(base)
}

/// `tasks/update`: decisions.
pub(super) async fn update(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    check_declared(exchange)?;
    let Task { row, .. } = load_task(exchange, request.required_text("taskId")?).await?;
    let responses = input::read_responses(&request.params)?;
    agent_run::decide(exchange, row, &responses).await?;
    Ok(json!({}))
}

/// `tasks/cancel`.
pub(super) async fn cancel(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    check_declared(exchange)?;
    let Task { row, .. } = load_task(exchange, request.required_text("taskId")?).await?;
    if row.has_ended && !exchange.is_modern() {
        return Err(McpFailure::invalid(format!("the task {} has ended", row.id)));
    }
    if !row.has_ended {
        let args = json!({"id": row.id, "reason": "the MCP client has cancelled the task"});
        match exchange.app.engine.call(exchange.by(), "abort_run", &args, None).await {
            // The run has ended in the meantime.
            Err(refusal) if refusal.code == Code::BadTransition => {}
            done => drop(done.map_err(to_failure)?),
        }
    }
    if exchange.is_modern() { Ok(json!({})) } else { Ok(load_task(exchange, &row.id).await?.base) }
}

/// `tasks/result` of 2025-11-25: waits for the end, and asks for approvals.
pub(super) async fn wait_for_result(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let Task { row, .. } = load_task(exchange, request.required_text("taskId")?).await?;
    let id = row.id.clone();
    let mut result = agent_run::finish(exchange, row, false).await?;
    result["_meta"]["io.modelcontextprotocol/related-task"] = json!({"taskId": id});
    Ok(result)
}

/// `tasks/list` of 2025-11-25: runs that no other run has started, by id. Generated ids begin with the time, so the
/// newest come first.
pub(super) async fn list(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let limit = PAGE + 1;
    let sql = format!(
        "SELECT id FROM runs WHERE parent_id IS NULL AND id < :before ORDER BY id DESC LIMIT {limit}"
    );
    let last = read_cursor(&request.params)?.unwrap_or_default();
    let params = Map::from_iter([("before".to_owned(), json!(start_before(last)))]);
    let rows = exchange.rows(&sql, &params).await?;
    let mut all = Vec::new();
    for row in rows.iter().take(PAGE) {
        all.push(load_task(exchange, row["id"].as_str().unwrap_or_default()).await?.base);
    }
    let next = all.last().filter(|_| rows.len() > PAGE).map(|task| task["taskId"].clone());
    let mut result = json!({"tasks": all});
    if let Some(next) = next {
        result["nextCursor"] = next;
    }
    Ok(result)
}

/// Returns a time in microseconds as ISO 8601.
fn format_time(micros: &JsonValue) -> String {
    Micros(micros.as_i64().unwrap_or_default()).to_string()
}
