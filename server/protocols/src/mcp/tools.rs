//! Tools: exposed agents, a query, the reducers that the handler has chosen, and tools of the handler.

use abide_engine::buffers::size_of_rows;
use serde_json::{Map, Value as JsonValue, json};

use super::agent_run::{failed_result, refusal_result};
use super::agent_tools;
use super::exchange::McpRequestContext;
use super::handler::ask_handler;
use super::message::{Request, to_failure};
use crate::limits;
use crate::mcp_handler::{McpFailure, McpItems};

/// The tool for queries.
const QUERY: &str = "sql_query";

/// Returns all tools of the caller, in an order that stays the same.
pub(super) async fn list(exchange: &McpRequestContext) -> Result<Vec<JsonValue>, McpFailure> {
    let mut tools = agent_tools::list(exchange).await?;
    tools.push(json!({
        "name": QUERY,
        "title": "SQL query",
        "description": "Runs one read-only SELECT of SQLite on the rows that you may see. The resources \
            abide://tables/{name} are the tables.",
        "inputSchema": {"type": "object", "required": ["sql"], "additionalProperties": false,
            "properties": {
                "sql": {"type": "string", "description": "One SELECT; use LIMIT."},
                "params": {"type": "object", "description": "Values of parameters such as :id."}}},
        "annotations": {"readOnlyHint": true, "openWorldHint": false},
    }));
    if let Some(handler) = exchange.handler() {
        tools.extend(reducer_tools(exchange, &handler.reducers()));
        tools.extend(handler.items(McpItems::Tools));
    }
    for tool in &mut tools {
        describe_properties(&mut tool["inputSchema"]);
    }
    Ok(tools)
}

/// Writes the schema of each property as an object, as MCP demands: JSON Schema permits `true` for any value, too.
fn describe_properties(schema: &mut JsonValue) {
    match schema {
        JsonValue::Object(members) => {
            if let Some(JsonValue::Object(properties)) = members.get_mut("properties") {
                for schema in properties.values_mut() {
                    match schema {
                        JsonValue::Bool(true) => *schema = json!({}),
                        JsonValue::Bool(false) => *schema = json!({"not": {}}),
                        _ => {}
                    }
                }
            }
            members.values_mut().for_each(describe_properties);
        }
        JsonValue::Array(parts) => parts.iter_mut().for_each(describe_properties),
        _ => {}
    }
}

/// Returns the tools of chosen reducers, in the order of the choice.
fn reducer_tools(exchange: &McpRequestContext, chosen: &[String]) -> Vec<JsonValue> {
    let app = &exchange.app;
    chosen.iter().filter_map(|name| app.mcp.reducer_tool(&app.engine, name)).collect()
}

/// Calls a tool.
pub(super) async fn call(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let name = request.required_text("name")?;
    let arguments = match request.params.get("arguments") {
        None | Some(JsonValue::Null) => Map::new(),
        Some(JsonValue::Object(arguments)) => arguments.clone(),
        Some(_) => return Err(McpFailure::invalid("arguments must be an object")),
    };
    if let Some(agent) = agent_tools::find(exchange, name).await? {
        return agent_tools::call(exchange, agent, &request.params).await;
    }
    if name == QUERY {
        return tokio::select! {
            answered = run_query(exchange, &arguments) => answered,
            // The client does not read the rows.
            _ = exchange.cancellation() => Ok(failed_result("the query was cancelled")),
        };
    }
    if let Some(handler) = exchange.handler() {
        if handler.reducers().iter().any(|reducer| reducer == name) {
            return call_reducer(exchange, name, arguments).await;
        }
        if has_item(&handler.items(McpItems::Tools), "name", name) {
            return ask_handler(exchange, &*handler, request).await;
        }
    }
    Err(McpFailure::invalid(format!("unknown tool {name:?}; tools/list has the tools")))
}

/// Returns `true` if a list has an entry.
pub(super) fn has_item(items: &[JsonValue], member: &str, value: &str) -> bool {
    items.iter().any(|item| item[member] == value)
}

async fn run_query(
    exchange: &McpRequestContext,
    arguments: &Map<String, JsonValue>,
) -> Result<JsonValue, McpFailure> {
    let empty = Map::new();
    let params = match arguments.get("params") {
        None | Some(JsonValue::Null) => &empty,
        Some(JsonValue::Object(params)) => params,
        Some(_) => return Ok(failed_result("bad_arguments: params must be an object")),
    };
    let Some(sql) = arguments.get("sql").and_then(JsonValue::as_str) else {
        return Ok(failed_result("bad_arguments: sql must be a string"));
    };
    let answer = match exchange.app.engine.query(exchange.by(), sql, params, None).await {
        Ok(answer) => answer,
        Err(refusal) => return Ok(refusal_result(refusal)),
    };
    // The credential may have been revoked while the query waited for a reader.
    let mut session = exchange.auth.clone();
    exchange.app.port.check(&mut session).await.map_err(to_failure)?;
    if size_of_rows(&answer.rows) > limits::MCP_RESULT_BYTES {
        let max = limits::MCP_RESULT_BYTES >> 10;
        return Ok(failed_result(&format!(
            "limit_exceeded: the result has over {max} KiB; use LIMIT"
        )));
    }
    let rows: Vec<Vec<JsonValue>> = answer
        .rows
        .iter()
        .map(|row| row.iter().map(abide_schema::Value::to_json).collect())
        .collect();
    let structured = json!({"columns": answer.columns, "rows": rows, "seq": answer.seq});
    Ok(json!({"content": [{"type": "text", "text": structured.to_string()}],
        "structuredContent": structured, "isError": false}))
}

async fn call_reducer(
    exchange: &McpRequestContext,
    name: &str,
    arguments: Map<String, JsonValue>,
) -> Result<JsonValue, McpFailure> {
    let args = JsonValue::Object(arguments);
    let key = exchange.key.as_deref();
    let done = match exchange.app.engine.call(exchange.by(), name, &args, key).await {
        Ok(done) => done,
        Err(refusal) => return Ok(refusal_result(refusal)),
    };
    let result: JsonValue = serde_json::from_str(&done.result).unwrap_or_default();
    let structured = json!({"seq": done.seq, "result": result, "duplicate": done.duplicate});
    Ok(json!({"content": [{"type": "text", "text": structured.to_string()}],
        "structuredContent": structured, "isError": false}))
}
