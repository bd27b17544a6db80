//! The binding HTTP+JSON: paths below `/a2a/{agent}/`.

use abide_schema::limits::A2A_VALUES;
use abide_server::port::{ConnectionPermit, RequestBody, SessionExtension};
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::request::Parts;
use axum::response::Response;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value as JsonValue, json};

use super::binding::{A2aResponse, check_content_type, check_version, respond};
use super::error::{A2aError, A2aResult, Kind};
use super::operations::{Operation, Peer};
use super::task::Framing;
use super::{legacy_http, paths};
use crate::state::ProtocolState;

/// Performs a request.
pub(crate) async fn call(
    State(app): State<ProtocolState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    names: Result<Path<(String, String)>, PathRejection>,
    head: Parts,
    content: RequestBody,
) -> Response {
    let Ok(Path((agent, rest))) = names else {
        return A2aError::new(Kind::MethodNotFound, "the path is not UTF-8").into_response();
    };
    let base = app.port.base_url(&head.uri, &head.headers);
    let legacy = rest.strip_prefix("v1/");
    let turn = content.turn().await;
    let request = read_request(&head, &rest, &content);
    drop(turn);
    let bytes = content.bytes();
    let account = app.engine.buffers().account(&session.caller);
    let peer = Peer { app, session, place, agent, bytes, hold: content.into_hold(), base };
    let answer = match request {
        Ok((operation, params)) if legacy.is_some() => {
            let params = legacy_http::params_from_legacy(operation, &params);
            match peer.perform(operation, params, Framing::LegacyHttp).await {
                Ok(A2aResponse::Value(value, permit)) => {
                    Ok(A2aResponse::Value(legacy_http::result_to_legacy(operation, &value), permit))
                }
                other => other,
            }
        }
        Ok((operation, params)) => peer.perform(operation, params, Framing::Http).await,
        Err(error) => Err(error),
    };
    match answer {
        Err(error) if legacy.is_some() => {
            let body = legacy_http::error_to_legacy(&error);
            error.into_response_with(&body)
        }
        Ok(A2aResponse::Stream(stream)) => stream.into_response(),
        Ok(A2aResponse::Value(value, permit)) => {
            let sent = respond(&account, permit, move || value.to_string()).await;
            sent.unwrap_or_else(A2aError::into_response)
        }
        Err(error) => error.into_response(),
    }
}

/// Returns the operation of a request, and its parameters.
fn read_request(
    head: &Parts,
    rest: &str,
    content: &RequestBody,
) -> A2aResult<(Operation, JsonValue)> {
    let method = &head.method;
    let headers = &head.headers;
    let query = head.uri.query();
    let (operation, ids) = paths::operation(method, rest).ok_or_else(|| {
        let message = format!("there is no operation {method} {rest}");
        A2aError::new(Kind::MethodNotFound, message)
    })?;
    // The paths of 0.3 differ, so a request for them needs no version.
    if !rest.starts_with("v1/") {
        check_version(headers, query)?;
    }
    let mut params = match content.bytes() {
        0 => parse_query(query.unwrap_or_default()),
        _ => {
            check_content_type(headers)?;
            content.check_values(A2A_VALUES)?;
            content.value()?
        }
    };
    if !params.is_object() {
        return Err(A2aError::invalid("the body is not a JSON object"));
    }
    for (name, id) in ids {
        params[name] = json!(id);
    }
    Ok((operation, params))
}

/// Returns the parameters of a query.
fn parse_query(query: &str) -> JsonValue {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let fields: Map<String, JsonValue> = pairs
        .filter_map(|(name, value)| {
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8().ok()?;
            Some((name.to_owned(), json!(value)))
        })
        .collect();
    fields.into()
}
