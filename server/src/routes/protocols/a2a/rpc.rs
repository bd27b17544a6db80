//! The binding JSON-RPC: `POST /a2a/{agent}`.

use abide_schema::limits::A2A_VALUES;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use serde_json::{Value as JsonValue, json};

use super::binding::{Answer, check_content_type, check_version, version};
use super::error::{A2aError, A2aResult, Kind};
use super::legacy;
use super::operation::Operation;
use super::operations::Peer;
use super::task::Framing;
use crate::app_state::{AppState, SessionExtension};
use crate::body::RequestBody;
use crate::connections::lifecycle::ConnectionPermit;
use crate::problem::Problem;
use crate::routes::exchange::json as json_response;
use crate::routes::runs::path;

/// Performs a request.
pub(in crate::routes) async fn call(
    State(app): State<AppState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    agent: Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let agent = path(agent, "agent")?;
    let base = app.base(&uri, &headers);
    let mut id = JsonValue::Null;
    let turn = content.turn().await;
    let request = check_content_type(&headers).and_then(|()| read(&content, &mut id));
    drop(turn);
    let bytes = content.bytes();
    let peer = Peer { app, session, place, agent, bytes, hold: content.into_hold(), base };
    let answer = match request {
        Ok((method, params)) => {
            let version = version(&headers, uri.query());
            // A request without a version is one of 0.3. Its methods have other names than those of 1.0.
            let is_legacy = version.is_empty() || version == "0.3" || version.starts_with("0.3.");
            match legacy::operation(&method).filter(|_| is_legacy) {
                Some(operation) => perform_legacy(peer, operation, params, &id).await,
                None => match check_version(&headers, uri.query()) {
                    Ok(()) => perform(peer, &method, params, &id).await,
                    Err(error) => Err(error),
                },
            }
        }
        Err(error) => Err(error),
    };
    Ok(match answer {
        Ok(Answer::Stream(stream)) => stream.into_response(),
        Ok(Answer::Value(result)) => {
            json_response(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
        }
        Err(error) => {
            let error = error.to_rpc();
            json_response(json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
        }
    })
}

async fn perform(peer: Peer, method: &str, params: JsonValue, id: &JsonValue) -> A2aResult<Answer> {
    let unknown = || A2aError::new(Kind::MethodNotFound, format!("there is no method {method}"));
    let operation = Operation::named(method).ok_or_else(unknown)?;
    peer.perform(operation, params, Framing::Rpc(id.clone())).await
}

/// Performs a request of version 0.3.
async fn perform_legacy(
    peer: Peer,
    operation: Operation,
    params: JsonValue,
    id: &JsonValue,
) -> A2aResult<Answer> {
    let params = legacy::params(operation, &params);
    match peer.perform(operation, params, Framing::LegacyRpc(id.clone())).await? {
        Answer::Value(value) => Ok(Answer::Value(legacy::result(operation, &value))),
        stream => Ok(stream),
    }
}

/// The method and the parameters of a request. `id` is set as soon as it is known.
fn read(content: &RequestBody, id: &mut JsonValue) -> A2aResult<(String, JsonValue)> {
    let value = content.check_values(A2A_VALUES).and_then(|()| content.value());
    let mut value =
        value.map_err(|refusal| A2aError::new(Kind::ParseError, refusal.to_string()))?;
    let invalid = |message: &str| A2aError::new(Kind::InvalidRequest, message);
    if !value.is_object() {
        return Err(invalid("the body is not one JSON-RPC request"));
    }
    match &value["id"] {
        given @ (JsonValue::String(_) | JsonValue::Number(_)) => *id = given.clone(),
        _ => return Err(invalid("id is neither a text nor a number")),
    }
    if value["jsonrpc"] != "2.0" {
        return Err(invalid("jsonrpc is not 2.0"));
    }
    let method = value["method"].as_str().ok_or_else(|| invalid("method is not a text"))?;
    let method = method.to_owned();
    match value["params"].take() {
        JsonValue::Null => Ok((method, json!({}))),
        params @ JsonValue::Object(_) => Ok((method, params)),
        _ => Err(A2aError::invalid("params is not an object")),
    }
}
