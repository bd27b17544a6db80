//! The binding JSON-RPC: `POST /a2a/{agent}`.

use abide_schema::Code;
use abide_schema::limits::A2A_VALUES;
use abide_server::port::{
    ConnectionPermit, Problem, RequestBody, SessionExtension, json_response, path,
};
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use serde_json::{Value as JsonValue, json};

use super::binding::{A2aResponse, check_content_type, check_version, respond, version};
use super::error::{A2aError, A2aResult, Kind};
use super::legacy;
use super::operations::{Operation, Peer};
use super::task::Framing;
use crate::state::ProtocolState;

/// Performs a request.
pub(crate) async fn call(
    State(app): State<ProtocolState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    agent: Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let agent = path(agent, "name of the agent")?;
    let base = app.port.base_url(&uri, &headers);
    let mut id = JsonValue::Null;
    let turn = content.turn().await;
    let request = check_content_type(&headers).and_then(|()| read_request(&content, &mut id));
    drop(turn);
    let bytes = content.bytes();
    let account = app.engine.buffers().account(&session.caller);
    let peer = Peer { app, session, place, agent, bytes, hold: content.into_hold(), base };
    let answer = match request {
        Ok((method, params)) => {
            let version = version(&headers, uri.query());
            // A request without a version is one of 0.3. Its methods have other names than those of 1.0.
            let is_legacy = version.is_empty() || version == "0.3" || version.starts_with("0.3.");
            match legacy::operation_from_name(&method).filter(|_| is_legacy) {
                Some(operation) => perform_legacy(peer, operation, params, &id).await,
                None => match check_version(&headers, uri.query()) {
                    Ok(()) => perform(peer, &method, params, &id).await,
                    Err(error) => Err(error),
                },
            }
        }
        Err(error) => Err(error),
    };
    let sent = match answer {
        Ok(A2aResponse::Stream(stream)) => Ok(stream.into_response()),
        Ok(A2aResponse::Value(result, permit)) => {
            let whole = json!({"jsonrpc": "2.0", "id": id});
            respond(&account, permit, move || with_result(whole, result).to_string()).await
        }
        Err(error) => Err(error),
    };
    Ok(match sent {
        Ok(response) => response,
        Err(error) => {
            let error = error.to_rpc();
            json_response(json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
        }
    })
}

fn with_result(mut whole: JsonValue, result: JsonValue) -> JsonValue {
    whole["result"] = result;
    whole
}

async fn perform(
    peer: Peer,
    method: &str,
    params: JsonValue,
    id: &JsonValue,
) -> A2aResult<A2aResponse> {
    let operation = Operation::from_name(method).ok_or_else(|| {
        A2aError::new(Kind::MethodNotFound, format!("there is no method {method}"))
    })?;
    peer.perform(operation, params, Framing::Rpc(id.clone())).await
}

/// Performs a request of version 0.3.
async fn perform_legacy(
    peer: Peer,
    operation: Operation,
    params: JsonValue,
    id: &JsonValue,
) -> A2aResult<A2aResponse> {
    let params = legacy::params_from_legacy(operation, &params);
    match peer.perform(operation, params, Framing::LegacyRpc(id.clone())).await? {
        A2aResponse::Value(value, permit) => {
            Ok(A2aResponse::Value(legacy::result_to_legacy(operation, &value), permit))
        }
        stream => Ok(stream),
    }
}

/// Returns the method and the parameters of a request. `id` is set as soon as it is known.
fn read_request(content: &RequestBody, id: &mut JsonValue) -> A2aResult<(String, JsonValue)> {
    let value = content.check_values(A2A_VALUES).and_then(|()| content.value());
    let mut value = value.map_err(|refusal| match refusal.code {
        // The message is JSON: its sender waits for a response to its request.
        Code::BadArguments => {
            *id = content.request_id();
            A2aError::from(refusal)
        }
        _ => A2aError::new(Kind::ParseError, refusal.to_string()),
    })?;
    let invalid = |message: &str| A2aError::new(Kind::InvalidRequest, message);
    if !value.is_object() {
        return Err(invalid("the body is not one JSON-RPC request"));
    }
    match &value["id"] {
        given @ (JsonValue::String(_) | JsonValue::Number(_)) => *id = given.clone(),
        _ => return Err(invalid("id must be a string or a number")),
    }
    if value["jsonrpc"] != "2.0" {
        return Err(invalid("jsonrpc must be 2.0"));
    }
    let method = value["method"].as_str().ok_or_else(|| invalid("method must be a string"))?;
    let method = method.to_owned();
    match value["params"].take() {
        JsonValue::Null => Ok((method, json!({}))),
        params @ JsonValue::Object(_) => Ok((method, params)),
        _ => Err(A2aError::invalid("params must be an object")),
    }
}
