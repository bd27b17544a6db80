//! Requests that the host answers.

use serde_json::Value as JsonValue;

use super::exchange::Exchange;
use super::input;
use super::message::Request;
use crate::mcp_host::{McpFailure, McpHost, McpReply, McpRequest};

/// Lets the host answer, and asks the client for the input that it needs.
pub(super) async fn ask_host(
    exchange: &Exchange,
    host: &dyn McpHost,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let name = request.params.get("name").or_else(|| request.params.get("uri"));
    let audience = format!("{} {}", request.method, name.unwrap_or(&JsonValue::Null));
    let (seal, principal) = (&exchange.app.mcp.seal, exchange.by().principal());
    let mut state = match request.params.get("requestState") {
        None => None,
        Some(JsonValue::String(text)) => Some(seal.open(principal, &audience, text)?),
        Some(_) => return Err(McpFailure::invalid("requestState is not a text")),
    };
    let mut responses = input::responses(&request.params)?;
    loop {
        let asked = host.answer(McpRequest {
            method: &request.method,
            params: &request.params,
            caller: exchange.by(),
            capabilities: exchange.capabilities(),
            state: state.take(),
            responses: std::mem::take(&mut responses),
            notifier: &exchange.notifier,
        });
        let reply = tokio::select! {
            reply = asked => reply?,
            () = exchange.cancelled.cancelled() => {
                let message = "the request was cancelled".to_owned();
                return Err(McpFailure { code: -32800, message, data: None });
            }
        };
        let (requests, next) = match reply {
            McpReply::Complete(result) => return Ok(result),
            McpReply::InputRequired { requests, state } => (requests, state),
        };
        input::check(exchange, &requests)?;
        if exchange.is_modern() {
            let signed = next.map(|state| seal.sign(principal, &audience, state)).transpose()?;
            return Ok(input::required(requests, signed));
        }
        responses = input::ask(exchange, requests).await?;
        state = next;
    }
}
