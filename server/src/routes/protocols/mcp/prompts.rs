//! Prompts: those of the host.

use super::exchange::Exchange;
use super::host::ask_host;
use super::message::Request;
use super::tools::has;
use crate::mcp_host::{McpFailure, McpItems};
use serde_json::Value as JsonValue;

/// All prompts of the caller. A store of prompts adds its own here, and answers for them in [`get`].
pub(super) async fn list(exchange: &Exchange) -> Result<Vec<JsonValue>, McpFailure> {
    Ok(exchange.host().map(|host| host.items(McpItems::Prompts)).unwrap_or_default())
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
