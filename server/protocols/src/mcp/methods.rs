//! The methods of the protocol.

use serde_json::{Map, Value as JsonValue, json};

use super::exchange::{McpRequestContext, ProtocolGeneration};
use super::message::Request;
use super::paging::page;
use super::versions::{LEGACY, MODERN, legacy_version, server_info};
use super::{handler, prompts, resources, subscriptions, tasks, tools};
use crate::mcp_handler::{McpFailure, McpItems};

/// Answers a request.
pub(super) async fn answer(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let result = match &exchange.era {
        ProtocolGeneration::Modern(_) => modern(exchange, request).await?,
        ProtocolGeneration::Legacy(_) => return legacy(exchange, request).await,
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

async fn modern(exchange: &McpRequestContext, request: &Request) -> Result<JsonValue, McpFailure> {
    match request.method.as_str() {
        "server/discover" => {
            let mut capabilities = capabilities(exchange);
            capabilities["extensions"] = json!({tasks::EXTENSION: {}});
            let versions: Vec<&str> = [MODERN].into_iter().chain(LEGACY).collect();
            Ok(json!({"supportedVersions": versions, "capabilities": capabilities,
                "instructions": INSTRUCTIONS}))
        }
        "subscriptions/listen" => subscriptions::listen(exchange, request).await,
        "tasks/update" => tasks::update(exchange, request).await,
        _ => common(exchange, request).await,
    }
}

async fn legacy(exchange: &McpRequestContext, request: &Request) -> Result<JsonValue, McpFailure> {
    match request.method.as_str() {
        "initialize" => {
            let mut capabilities = capabilities(exchange);
            capabilities["logging"] = json!({});
            capabilities["tasks"] =
                json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
            Ok(json!({"protocolVersion": legacy_version(request), "capabilities": capabilities,
                "serverInfo": server_info(), "instructions": INSTRUCTIONS}))
        }
        "ping" => Ok(json!({})),
        "logging/setLevel" => {
            let is_known = match exchange.session() {
                Some(session) => session.set_log_level(request.text("level")?),
                None => crate::mcp_handler::level_of(request.text("level")?).is_some(),
            };
            if is_known { Ok(json!({})) } else { Err(McpFailure::invalid("unknown level")) }
        }
        "resources/subscribe" | "resources/unsubscribe" => {
            subscriptions::subscribe(exchange, request)
        }
        "tasks/result" => tasks::result(exchange, request).await,
        "tasks/list" => tasks::list(exchange, request).await,
        _ => common(exchange, request).await,
    }
}

/// The instructions about the server for a model.
const INSTRUCTIONS: &str = "Abide stores sessions of agents as rows. A tool agent_NAME asks an \
    agent; give it the session_id of its result to continue. sql_query reads the rows that you \
    may see.";

fn capabilities(exchange: &McpRequestContext) -> JsonValue {
    let changes = exchange.handler().is_some_and(|handler| handler.revisions().is_some());
    json!({
        "tools": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": false},
        "prompts": {"listChanged": changes},
        "completions": {},
    })
}

/// Returns the methods of both generations.
async fn common(exchange: &McpRequestContext, request: &Request) -> Result<JsonValue, McpFailure> {
    let page = |member, key, items| page(member, key, items, &request.params);
    match request.method.as_str() {
        "tools/list" => page("tools", "name", tools::list(exchange).await?),
        "tools/call" => tools::call(exchange, request).await,
        "resources/list" => resources::list(exchange, request).await,
        "resources/templates/list" => {
            page("resourceTemplates", "uriTemplate", resources::templates(exchange))
        }
        "resources/read" => resources::read(exchange, request).await,
        "prompts/list" => page("prompts", "name", prompts::list(exchange).await?),
        "prompts/get" => prompts::get(exchange, request).await,
        "completion/complete" => complete(exchange, request).await,
        "tasks/get" => tasks::get(exchange, request).await,
        "tasks/cancel" => tasks::cancel(exchange, request).await,
        method => Err(McpFailure {
            code: -32601,
            message: format!("method not found: {method}"),
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
        Some(provider) if tools::has(&provider.items(McpItems::Prompts), "name", name) => {
            handler::ask_handler(exchange, &*provider, request).await
        }
        _ => Ok(json!({"completion": {"values": [], "total": 0, "hasMore": false}})),
    }
}
