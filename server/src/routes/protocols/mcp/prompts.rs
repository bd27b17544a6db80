//! Prompts: those of the host.

use super::exchange::Exchange;
use super::host::ask_host;
use super::message::Request;
use super::tools::has;
use crate::mcp_host::{McpFailure, McpItems};
use serde_json::Value as JsonValue;

/// All prompts.
pub(super) fn list(exchange: &Exchange) -> Vec<JsonValue> {
    exchange.host().map(|host| host.items(McpItems::Prompts)).unwrap_or_default()
}

/// `prompts/get`.
pub(super) async fn get(exchange: &Exchange, request: &Request) -> Result<JsonValue, McpFailure> {
    let name = request.text("name")?;
    match exchange.host() {
        Some(host) if has(&host.items(McpItems::Prompts), "name", name) => {
            ask_host(exchange, &*host, request).await
        }
        _ => Err(McpFailure::invalid(format!("unknown prompt {name:?}"))),
    }
}
