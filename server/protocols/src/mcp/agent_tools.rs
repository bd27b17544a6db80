//! Agents as tools. A call starts a run; the result is its answer, or its task.

use std::collections::HashSet;

use abide_schema::{Caller, Code, Value};
use serde_json::{Map, Value as JsonValue, json};

use super::agent_run::{self, decide, failed_result, finish, refusal_result};
use super::exchange::McpRequestContext;
use super::input;
use super::message::to_failure;
use super::tasks;
use crate::mcp_handler::McpFailure;
use crate::start::{self, NewRun, NewSession};

/// The beginning of the names of these tools.
const PREFIX: &str = "agent_";

/// Agents that may have sessions, as the caller sees them.
const VISIBLE: &str = "SELECT name, description FROM agents \
    WHERE retired_at IS NULL AND hidden = 0 AND mode <> 'subagent' ORDER BY name";

/// The names of exposed agents. Definitions are hidden from callers with a scope, so the server reads this itself.
const EXPOSED: &str = "SELECT a.name FROM agents a \
    JOIN agent_revisions r ON r.agent = a.name AND r.revision = a.revision \
    WHERE json_extract(r.definition, '$.mcp_exposed') = 1";

/// Returns the tools of exposed agents.
pub(super) async fn list(exchange: &McpRequestContext) -> Result<Vec<JsonValue>, McpFailure> {
    let agents = exposed_agents(exchange).await?;
    Ok(agents.iter().map(|(name, description)| agent_tool(name, description.as_deref())).collect())
}

/// Returns the names and descriptions of exposed agents.
async fn exposed_agents(
    exchange: &McpRequestContext,
) -> Result<Vec<(String, Option<String>)>, McpFailure> {
    let server = Caller::local();
    let found = exchange.app.engine.query(&server, EXPOSED, &Map::new(), None).await;
    let found = found.map_err(to_failure)?;
    let names: HashSet<String> =
        found.rows.iter().filter_map(|row| text_cell(row.first())).collect();
    let visible = match exchange.query(VISIBLE, &Map::new()).await {
        // A policy hides the agents.
        Err(refusal) if refusal.code == Code::Denied => return Ok(Vec::new()),
        visible => visible.map_err(to_failure)?,
    };
    let agents = visible
        .rows
        .iter()
        .filter_map(|row| Some((text_cell(row.first())?, text_cell(row.get(1)))));
    Ok(agents.filter(|(name, _)| names.contains(name)).collect())
}

fn text_cell(cell: Option<&Value>) -> Option<String> {
    match cell {
        Some(Value::Text(text)) => Some(text.to_string()),
        _ => None,
    }
}

fn agent_tool(name: &str, description: Option<&str>) -> JsonValue {
    let described = description.map_or_else(|| format!("Asks the agent {name}."), str::to_owned);
    json!({
        "name": format!("{PREFIX}{name}"),
        "title": name,
        "description": described,
        "inputSchema": {"type": "object", "required": ["message"], "additionalProperties": false,
            "properties": {
                "message": {"type": "string", "description": "What to tell the agent."},
                "session_id": {"type": "string",
                    "description": "Continues a session of the agent. Omit it to start one."}}},
        "annotations": {"openWorldHint": true},
        "execution": {"taskSupport": "optional"},
    })
}

/// Returns the agent that a tool name stands for, if it is exposed.
pub(super) async fn find(
    exchange: &McpRequestContext,
    tool: &str,
) -> Result<Option<String>, McpFailure> {
    let Some(name) = tool.strip_prefix(PREFIX) else { return Ok(None) };
    let agents = exposed_agents(exchange).await?;
    Ok(agents.into_iter().map(|(agent, _)| agent).find(|agent| agent == name))
}

/// Starts a run, or continues the one that the state of the call names.
pub(super) async fn call(
    exchange: &McpRequestContext,
    agent: String,
    params: &Map<String, JsonValue>,
) -> Result<JsonValue, McpFailure> {
    if let Some(state) = params.get("requestState") {
        return resume(exchange, &agent, state, params).await;
    }
    let empty = Map::new();
    let arguments = params.get("arguments").and_then(JsonValue::as_object).unwrap_or(&empty);
    let has_unknown = arguments.keys().any(|name| name != "message" && name != "session_id");
    let message = arguments.get("message").and_then(JsonValue::as_str);
    let Some(input) = message.filter(|_| !has_unknown) else {
        return Ok(failed_result(
            "bad_arguments: send the string message, and optionally session_id",
        ));
    };
    let by = exchange.by();
    let key = exchange.key.as_deref();
    let name = key.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
    let (session_id, new_session) = match arguments.get("session_id").and_then(JsonValue::as_str) {
        Some(id) => (id.to_owned(), None),
        None => {
            let id = start::derived_id("s_", by, "mcp", &name);
            (id.clone(), Some(NewSession { id, metadata: None }))
        }
    };
    let id = key.map(|key| start::derived_id("run_", by, "mcp", key));
    let input = input.to_owned();
    let new = NewRun {
        agent,
        session_id,
        new_session,
        before: Vec::new(),
        input,
        id,
        record: None,
        follow_up: None,
    };
    let continued = new.new_session.is_none().then(|| new.session_id.clone());
    let run = match start::start(&exchange.app, by, exchange.content.bytes(), new, key).await {
        Ok(run) => run,
        Err(refusal) => {
            let blocked = match continued.filter(|_| refusal.code == Code::Conflict) {
                Some(session_id) => blocked_result(exchange, &session_id).await?,
                None => None,
            };
            return Ok(blocked.unwrap_or_else(|| refusal_result(refusal)));
        }
    };
    if tasks::wants_task(exchange, params) {
        tasks::task_result(exchange, &run.id).await
    } else {
        finish(exchange, run, false).await
    }
}

/// Returns the result of a message to a session whose run waits: what it waits for, and how to go on. The message is
/// not sent.
async fn blocked_result(
    exchange: &McpRequestContext,
    session_id: &str,
) -> Result<Option<JsonValue>, McpFailure> {
    let engine = &exchange.app.engine;
    let by = exchange.by();
    let Some(session) = start::find_session_id(engine, by, session_id).await.map_err(to_failure)?
    else {
        return Ok(None);
    };
    let newest = start::newest_run_id(engine, by, &session).await.map_err(to_failure)?;
    let Some(id) = newest else { return Ok(None) };
    let run = start::find(engine, by, &id).await.map_err(to_failure)?;
    agent_run::not_sent_result(exchange, &run).await
}

/// Returns a repeated call, with decisions. The state is the id of the run, which is looked up with the rights of the
/// caller, so that it is valid after a restart and needs no signature.
async fn resume(
    exchange: &McpRequestContext,
    agent: &str,
    state: &JsonValue,
    params: &Map<String, JsonValue>,
) -> Result<JsonValue, McpFailure> {
    let invalid = || McpFailure::invalid("requestState is not that of a call of this tool");
    let id = state.as_str().ok_or_else(invalid)?;
    let run = start::find(&exchange.app.engine, exchange.by(), id).await.map_err(|_| invalid())?;
    if run.agent != agent {
        return Err(invalid());
    }
    let responses = input::read_responses(params)?;
    let (run, form_cancelled) = decide(exchange, run, &responses).await?;
    finish(exchange, run, form_cancelled).await
}
