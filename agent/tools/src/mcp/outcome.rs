//! The outcome of a call from the answer of its server, or from the error of the connection.

use std::error::Error;

use abide_json_integers as integers;
use rmcp::ServiceError;
use rmcp::model::{CallToolResult, ErrorCode};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use serde_json::{Value, json};

use super::authorized::of_oauth;
use super::connection::Connection;
use super::rendering;
use super::server::Server;
use crate::oauth::OAuthError;
use crate::outcome::{Failure, ToolOutcome};

/// An answer, complete and as text.
pub(super) fn outcome(server: &Server, result: &CallToolResult) -> ToolOutcome {
    let is_error = result.is_error.unwrap_or(false);
    let content = serde_json::to_value(result).expect("the result can be serialized");
    if let Some((pointer, number)) = inexact(&content, String::new()) {
        let text = format!(
            "the tool ran, but the response of MCP server {} cannot be stored: the number {number} at {pointer} may be \
             an integer that does not fit a signed 64-bit integer",
            server.name
        );
        return ToolOutcome::failed(Failure::Tool, text);
    }
    ToolOutcome {
        content,
        text: rendering::text_of(result),
        is_error,
        exit_code: i32::from(is_error),
        failure: is_error.then_some(Failure::Tool),
    }
}

/// The first number of an answer that may have lost digits. The SDK has already parsed the text: an integer beyond
/// 64 bits has become a double, and so has a number with an exponent. Both are refused.
fn inexact(value: &Value, pointer: String) -> Option<(String, String)> {
    match value {
        Value::Number(number) => {
            let is_large = |x: f64| x.abs() >= -(i64::MIN as f64);
            let literal = number.to_string();
            let is_lost = number.is_f64() && number.as_f64().is_some_and(is_large);
            let is_out = is_lost || integers::check(&literal).is_err();
            is_out.then_some((pointer, literal))
        }
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| inexact(item, format!("{pointer}/{index}")))
        }
        Value::Object(members) => members.iter().find_map(|(name, value)| {
            let name = name.replace('~', "~0").replace('/', "~1");
            inexact(value, format!("{pointer}/{name}"))
        }),
        _ => None,
    }
}

pub(super) async fn failure(
    server: &Server,
    connection: &Connection,
    error: ServiceError,
) -> ToolOutcome {
    let name = &server.name;
    if let Some(why) = of_oauth(&error) {
        let text = format!("MCP server {name} cannot be used: {why}");
        // The same request would be refused again.
        let failure = match why {
            OAuthError::Refused(_) | OAuthError::Config(_) => Failure::Denied,
            _ => Failure::Unavailable,
        };
        return ToolOutcome::failed(failure, text);
    }
    match error {
        ServiceError::McpError(error) => {
            if error.code == ErrorCode::PARSE_ERROR {
                let text = format!("MCP server {name} has answered, but {}", error.message);
                return ToolOutcome::failed(Failure::Tool, text);
            }
            let failure = match error.code {
                ErrorCode::INVALID_PARAMS | ErrorCode::METHOD_NOT_FOUND => Failure::Arguments,
                _ => Failure::Tool,
            };
            let text = format!("MCP server {name} returned an error: {}", error.message);
            ToolOutcome { content: json!({ "error": error }), ..ToolOutcome::failed(failure, text) }
        }
        ServiceError::TransportSend(error) if too_large(&error).is_some() => {
            let max = too_large(&error).unwrap_or_default();
            let text = format!("the response of MCP server {name} has more than {max} bytes");
            ToolOutcome::failed(Failure::TooLarge, text)
        }
        ServiceError::TransportSend(error) if refused(&error) => {
            let text = format!("MCP server {name} cannot be reached");
            ToolOutcome::failed(Failure::Unavailable, text)
        }
        ServiceError::TransportSend(_) | ServiceError::TransportClosed => {
            // The same call would produce the same oversized message, so it must not be repeated.
            if let Some(why) = connection.too_large() {
                let text = format!("the connection to MCP server {name} was closed: {why}");
                return ToolOutcome::failed(Failure::TooLarge, text);
            }
            let how = connection.how_it_ended().await;
            let text =
                format!("the connection to MCP server {name} was lost during the call: {how}");
            ToolOutcome::failed(Failure::Lost, text)
        }
        ServiceError::UnexpectedResponse => {
            let text =
                format!("MCP server {name} has answered, but not with a result of this call");
            ToolOutcome::failed(Failure::Tool, text)
        }
        other => {
            let text = format!("invalid response of MCP server {name}: {other}");
            ToolOutcome::failed(Failure::Lost, text)
        }
    }
}

/// The size limit that the answer exceeded, if that is the reason of the error.
fn too_large(error: &(dyn Error + 'static)) -> Option<usize> {
    let mut cause = Some(error);
    while let Some(one) = cause {
        let of_transport = one.downcast_ref::<StreamableHttpError<reqwest::Error>>();
        if let Some(StreamableHttpError::ResponseBodyTooLarge { max_size }) = of_transport {
            return Some(*max_size);
        }
        cause = one.source();
    }
    None
}

/// Whether the request was refused at the connection level.
fn refused(error: &(dyn Error + 'static)) -> bool {
    let is_refusal = |error: &(dyn Error + 'static)| {
        // This error does not report its cause through `source`.
        let of_transport = error.downcast_ref::<StreamableHttpError<reqwest::Error>>();
        let client = match of_transport {
            Some(StreamableHttpError::Client(error)) => Some(error),
            _ => error.downcast_ref::<reqwest::Error>(),
        };
        client.is_some_and(reqwest::Error::is_connect)
    };
    let mut cause = Some(error);
    while let Some(one) = cause {
        if is_refusal(one) {
            return true;
        }
        cause = one.source();
    }
    false
}
