//! JSON-RPC messages.

use abide_schema::{Code, Refusal};
use abide_server::port::{RequestBody, note};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value as JsonValue, json};

use crate::mcp_handler::McpFailure;

/// A message of a client.
#[derive(Debug)]
pub(super) enum Message {
    Request(Request),
    Notification {
        method: String,
        params: JsonValue,
    },
    /// Of a request that the server has sent.
    Response {
        id: JsonValue,
        outcome: Result<JsonValue, JsonValue>,
    },
}

/// A request of a client.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: JsonValue,
    pub(super) method: String,
    pub(super) params: Map<String, JsonValue>,
}

/// A failure before a request is handled, with its HTTP status.
#[derive(Debug)]
pub(super) struct HttpFailure {
    pub(super) status: StatusCode,
    pub(super) id: JsonValue,
    pub(super) failure: McpFailure,
}

impl HttpFailure {
    pub(super) fn bad_request(id: JsonValue, failure: McpFailure) -> HttpFailure {
        HttpFailure { status: StatusCode::BAD_REQUEST, id, failure }
    }

    pub(super) fn into_response(self) -> Response {
        let body = error_response(&self.id, &self.failure).to_string();
        (self.status, [(CONTENT_TYPE, "application/json")], body).into_response()
    }
}

fn is_id(id: &JsonValue) -> bool {
    id.is_string() || id.is_i64() || id.is_u64()
}

impl Message {
    pub(super) fn parse(content: &RequestBody) -> Result<Message, HttpFailure> {
        let value = content.value().map_err(|refusal| match refusal.code {
            // The message is JSON: its sender waits for a response to its request.
            Code::BadArguments => {
                HttpFailure::bad_request(content.request_id(), to_failure(refusal))
            }
            _ => {
                let failure = McpFailure { code: -32700, message: refusal.detail, data: None };
                HttpFailure::bad_request(JsonValue::Null, failure)
            }
        })?;
        let JsonValue::Object(mut members) = value else {
            let message = "the body is not one JSON-RPC message: batches are not supported";
            let failure = McpFailure { code: -32600, message: message.to_owned(), data: None };
            return Err(HttpFailure::bad_request(JsonValue::Null, failure));
        };
        let id = members.remove("id");
        let id_or_null = id.clone().filter(is_id).unwrap_or_default();
        let invalid = |message: &str| {
            let failure = McpFailure { code: -32600, message: message.to_owned(), data: None };
            HttpFailure::bad_request(id_or_null.clone(), failure)
        };
        if members.get("jsonrpc").and_then(JsonValue::as_str) != Some("2.0") {
            return Err(invalid("jsonrpc must be \"2.0\""));
        }
        if id.as_ref().is_some_and(|id| !is_id(id)) {
            return Err(invalid("the id must be a string or an integer"));
        }
        let method = match (members.remove("method"), &id) {
            (Some(JsonValue::String(method)), _) => method,
            (None, Some(id)) => {
                let outcome = match (members.remove("result"), members.remove("error")) {
                    (Some(result), None) => Ok(result),
                    (None, Some(error)) => Err(error),
                    _ => return Err(invalid("a response has either result or error")),
                };
                return Ok(Message::Response { id: id.clone(), outcome });
            }
            _ => return Err(invalid("the method must be a string")),
        };
        let params = match members.remove("params") {
            None => Map::new(),
            Some(JsonValue::Object(params)) => params,
            Some(_) => return Err(invalid("params must be an object")),
        };
        Ok(match id {
            Some(id) => Message::Request(Request { id, method, params }),
            None => Message::Notification { method, params: params.into() },
        })
    }
}

impl Request {
    /// Returns a member of `_meta`.
    pub(super) fn meta(&self, name: &str) -> Option<&JsonValue> {
        self.params.get("_meta")?.get(name)
    }

    /// Returns a text among the parameters.
    pub(super) fn required_text(&self, name: &str) -> Result<&str, McpFailure> {
        let text = self.params.get(name).and_then(JsonValue::as_str);
        text.ok_or_else(|| McpFailure::invalid(format!("{name} must be a string")))
    }

    pub(super) fn progress_token(&self) -> Option<JsonValue> {
        let token = self.meta("progressToken")?;
        (token.is_string() || token.is_number()).then(|| token.clone())
    }
}

/// Returns a JSON-RPC error.
pub(super) fn error_response(id: &JsonValue, failure: &McpFailure) -> JsonValue {
    let mut error = json!({"code": failure.code, "message": failure.message});
    if let Some(data) = &failure.data {
        error["data"] = data.clone();
    }
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

/// Returns a refusal as a JSON-RPC error.
pub(super) fn to_failure(refusal: Refusal) -> McpFailure {
    note(&refusal);
    let code = match refusal.code {
        Code::Internal => -32603,
        code if code.is_temporary() => -32603,
        _ => -32602,
    };
    let data = json!({"code": refusal.code.as_str(), "hint": refusal.hint});
    McpFailure { code, message: refusal.detail, data: Some(data) }
}
