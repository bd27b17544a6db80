//! The outcome of a call from the answer of its server, or from the error of the connection.

use std::error::Error;

use abide_json_integers as integers;
use rmcp::ServiceError;
use rmcp::model::{CallToolResult, ErrorCode};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use serde_json::{Value, json};

use super::authorized::oauth_cause;
use super::connection::Connection;
use super::post::HttpError;
use super::received::UNREADABLE;
use super::rendering;
use super::server::Server;
use crate::oauth::OAuthError;
use crate::outcome::{Failure, ToolOutcome};

/// Maximum length of the part of an unexpected answer that is shown.
const ANSWER_BYTES: usize = 2048;

/// Returns an answer, complete and as text.
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

/// Returns the first number of an answer that may have lost digits. The SDK has already parsed the text: an integer
/// beyond 64 bits has become a double, and so has a number with an exponent. Both are refused.
fn inexact(value: &Value, pointer: String) -> Option<(String, String)> {
    match value {
        Value::Number(number) => {
            let literal = number.to_string();
            let is_lost =
                number.is_f64() && number.as_f64().is_some_and(|x| x.abs() >= -(i64::MIN as f64));
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
    if let Some(why) = oauth_cause(&error) {
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
            // The tool may have run.
            if error.code == UNREADABLE {
                let text = format!("MCP server {name} has answered, but {}", error.message);
                return ToolOutcome::failed(Failure::Lost, text);
            }
            let failure = match error.code {
                ErrorCode::INVALID_PARAMS | ErrorCode::METHOD_NOT_FOUND => Failure::Arguments,
                code => failure_for_code(code),
            };
            let text = format!("MCP server {name} returned an error: {}", error.message);
            ToolOutcome { content: json!({ "error": error }), ..ToolOutcome::failed(failure, text) }
        }
        ServiceError::TransportSend(error) if too_large(&error).is_some() => {
            let max = too_large(&error).unwrap_or_default();
            let text = format!("the response of MCP server {name} has more than {max} bytes");
            ToolOutcome::failed(Failure::TooLarge, text)
        }
        ServiceError::TransportSend(error) if was_refused(&error) => {
            let text = format!("MCP server {name} cannot be reached");
            ToolOutcome::failed(Failure::Unavailable, text)
        }
        ServiceError::TransportSend(error) if answer_of(&error).is_some() => {
            let answer = answer_of(&error).unwrap_or_default();
            let text =
                format!("MCP server {name} has answered, but not as the protocol says: {answer}");
            ToolOutcome::failed(Failure::Lost, text)
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
            ToolOutcome::failed(Failure::Lost, text)
        }
        other => {
            let text = format!("invalid response of MCP server {name}: {other}");
            ToolOutcome::failed(Failure::Lost, text)
        }
    }
}

/// Returns the failure of a call by the code of the server's error. Only codes that refuse a request prove that the
/// tool did not run. Servers report a timeout, a lost upstream and an exception in the tool with other codes: after
/// these the tool may have had its effect.
pub(super) fn failure_for_code(code: ErrorCode) -> Failure {
    if REFUSALS.contains(&code) { Failure::Tool } else { Failure::Lost }
}

/// The codes of JSON-RPC and of the protocol for a request that is not executed.
const REFUSALS: [ErrorCode; 9] = [
    ErrorCode::PARSE_ERROR,
    ErrorCode::INVALID_REQUEST,
    ErrorCode::METHOD_NOT_FOUND,
    ErrorCode::INVALID_PARAMS,
    ErrorCode::RESOURCE_NOT_FOUND,
    ErrorCode::HEADER_MISMATCH,
    ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY,
    ErrorCode::UNSUPPORTED_PROTOCOL_VERSION,
    URL_ELICITATION_REQUIRED,
];

/// The code of 2025-11-25 for a call that a person must first permit elsewhere.
const URL_ELICITATION_REQUIRED: ErrorCode = ErrorCode(-32042);

/// Returns the size limit that the answer exceeded, if that is the reason of the error.
fn too_large(error: &(dyn Error + 'static)) -> Option<usize> {
    match transport_error(error)? {
        StreamableHttpError::ResponseBodyTooLarge { max_size } => Some(*max_size),
        _ => None,
    }
}

/// What the server answered in place of a message of the protocol, such as the page of a proxy.
fn answer_of(error: &(dyn Error + 'static)) -> Option<String> {
    let answer = match transport_error(error)? {
        StreamableHttpError::UnexpectedServerResponse(answer) => answer.to_string(),
        StreamableHttpError::UnexpectedContentType(kind) => {
            format!("its content type is {}", kind.as_deref().unwrap_or("missing"))
        }
        StreamableHttpError::HttpStatus(status) => status.to_string(),
        _ => return None,
    };
    Some(answer[..answer.floor_char_boundary(ANSWER_BYTES)].trim().to_owned())
}

/// Returns the error of the HTTP transport among the causes.
pub(super) fn transport_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a HttpError> {
    let mut cause = Some(error);
    while let Some(one) = cause {
        if let Some(found) = one.downcast_ref::<HttpError>() {
            return Some(found);
        }
        cause = one.source();
    }
    None
}

/// Returns `true` if the request was refused at the connection level.
fn was_refused(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(one) = cause {
        // This error does not report its cause through `source`.
        let client = match one.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(StreamableHttpError::Client(error)) => Some(error),
            _ => one.downcast_ref::<reqwest::Error>(),
        };
        if client.is_some_and(reqwest::Error::is_connect) {
            return true;
        }
        cause = one.source();
    }
    false
}
