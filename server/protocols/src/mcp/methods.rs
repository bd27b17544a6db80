//! The methods of the protocol.

use serde_json::{Map, Value as JsonValue, json};

use super::exchange::{LEGACY, MODERN, McpRequestContext, ProtocolGeneration, legacy_version};
use super::message::Request;
use super::paging::page;
use super::{handler, prompts, resources, subscriptions, tasks, tools};
use crate::mcp_handler::{McpFailure, McpItems};

/// Answers a request.
pub(super) async fn answer(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let result = match &exchange.era {
        ProtocolGeneration::Modern(_) => answer_modern(exchange, request).await?,
        ProtocolGeneration::Legacy(_) => return answer_legacy(exchange, request).await,
    };
    let mut result = match result {
        JsonValue::Object(result) => result,
        other => Map::from_iter([("value".to_owned(), other)]),
    };
    result.entry("resultType").or_insert_with(|| json!("complete"));
    if is_cacheable(&request.method) {
        // A list may change at any time, and depends on the caller.
        result.entry("ttlMs").or_insert_with(|| json!(0));
        result.entry("cacheScope").or_insert_with(|| json!("private"));
    }
    let meta = result.entry("_meta").or_insert_with(|| json!({}));
    meta["io.modelcontextprotocol/serverInfo"] = server_info();
    Ok(result.into())
}

/// Returns the server's description of itself.
fn server_info() -> JsonValue {
    json!({"name": "abide", "title": "Abide", "version": env!("CARGO_PKG_VERSION")})
}

fn is_cacheable(method: &str) -> bool {
    matches!(
        method,
        "server/discover"
            | "tools/list"
            | "prompts/list"
            | "resources/list"
            | "resources/templates/list"
            | "resources/read"
    )
}

async fn answer_modern(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    match request.method.as_str() {
        "server/discover" => {
            let mut capabilities = server_capabilities(exchange);
            capabilities["extensions"] = json!({tasks::EXTENSION: {}});
            let versions: Vec<&str> = [MODERN].into_iter().chain(LEGACY).collect();
            Ok(json!({"supportedVersions": versions, "capabilities": capabilities,
                "instructions": INSTRUCTIONS}))
        }
        "subscriptions/listen" => subscriptions::listen(exchange, request).await,
        "tasks/update" => tasks::update(exchange, request).await,
        _ => answer_common(exchange, request).await,
    }
}

async fn answer_legacy(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    match request.method.as_str() {
        "initialize" => {
            let mut capabilities = server_capabilities(exchange);
            capabilities["logging"] = json!({});
            capabilities["tasks"] =
                json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
            Ok(json!({"protocolVersion": legacy_version(request), "capabilities": capabilities,
                "serverInfo": server_info(), "instructions": INSTRUCTIONS}))
        }
        "ping" => Ok(json!({})),
        "logging/setLevel" => {
            let is_known = match exchange.session() {
                Some(session) => session.set_log_level(request.required_text("level")?),
                None => crate::mcp_handler::level_index(request.required_text("level")?).is_some(),
            };
            if is_known { Ok(json!({})) } else { Err(McpFailure::invalid("unknown level")) }
        }
        "resources/subscribe" | "resources/unsubscribe" => {
            subscriptions::subscribe(exchange, request)
        }
        "tasks/result" => tasks::wait_for_result(exchange, request).await,
        "tasks/list" => tasks::list(exchange, request).await,
        _ => answer_common(exchange, request).await,
    }
}

/// The instructions about the server for a model.
const INSTRUCTIONS: &str = "Abide stores sessions of agents as rows. A tool agent_NAME asks an \
    agent; give it the session_id of its result to continue. sql_query reads the rows that you \
    may see.";

fn server_capabilities(exchange: &McpRequestContext) -> JsonValue {
    let changes = exchange.handler().is_some_and(|handler| handler.revisions().is_some());
    json!({
        "tools": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": false},
        "prompts": {"listChanged": changes},
        "completions": {},
    })
}

/// Returns the methods of both generations.
async fn answer_common(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let params = &request.params;
    match request.method.as_str() {
        "tools/list" => page("tools", "name", tools::list(exchange).await?, params),
        "tools/call" => tools::call(exchange, request).await,
        "resources/list" => resources::list(exchange, request).await,
        "resources/templates/list" => {
            page("resourceTemplates", "uriTemplate", resources::templates(exchange), params)
        }
        "resources/read" => resources::read(exchange, request).await,
        "prompts/list" => page("prompts", "name", prompts::list(exchange).await?, params),
        "prompts/get" => prompts::get(exchange, request).await,
        "completion/complete" => complete(exchange, request).await,
        "tasks/get" => tasks::get(exchange, request).await,
        "tasks/cancel" => tasks::cancel(exchange, request).await,
        method => Err(McpFailure {
            code: -32601,
            message: format!("method not found: {}", method.escape_debug()),
            data: None,
        }),
    }
}

/// Only a handler has completions.
async fn complete(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let reference = &request.params.get("ref").cloned().unwrap_or_default();
    let name = reference["name"].as_str().unwrap_or_default();
    match exchange.handler() {
        Some(provider) if tools::has_item(&provider.items(McpItems::Prompts), "name", name) => {
            handler::ask_handler(exchange, &*provider, request).await
        }
        _ => Ok(json!({"completion": {"values": [], "total": 0, "hasMore": false}})),
    }
}
