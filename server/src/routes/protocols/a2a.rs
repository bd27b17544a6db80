//! A2A: agents with `a2a_exposed`, for agents elsewhere. A context is a session, a task is a run, and a message to a task
//! that needs input decides on the calls that wait for an approval.
//!
//! [`operations`] are the same in all bindings; [`rpc`] and [`http`] are JSON-RPC and HTTP+JSON. The messages of clients
//! are stored in a collection of their scope ([`records`]), in the transaction that they cause.

mod card;
mod error;
mod http;
mod message;
mod operations;
mod params;
mod records;
mod rpc;
mod task;

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;

pub(in crate::routes) use card::{card, list};
pub(in crate::routes) use http::call as http_call;
pub(in crate::routes) use rpc::call as rpc_call;

use crate::routes::exchange::json as json_response;
use error::{A2aError, A2aResult, Kind};

/// The version of the protocol.
const VERSION: &str = "1.0";

/// Refuses a request in another version of the protocol. A request without a version is one of 0.3.
fn check_version(headers: &HeaderMap, query: Option<&str>) -> A2aResult<()> {
    let in_query = query.into_iter().flat_map(|query| query.split('&'));
    let in_query = in_query.filter_map(|pair| pair.strip_prefix("A2A-Version=")).next();
    let in_header = headers.get("a2a-version").and_then(|value| value.to_str().ok());
    let version = in_header.or(in_query).unwrap_or_default().trim();
    // The third number does not count.
    if version == VERSION || version.strip_prefix("1.0.").is_some() {
        return Ok(());
    }
    let message = format!("version {version:?} of A2A is not supported (send A2A-Version: 1.0)");
    Err(A2aError::new(Kind::VersionNotSupported, message))
}

/// Refuses a body that is not JSON by its type. A request without a type is accepted.
fn check_content_type(headers: &HeaderMap) -> A2aResult<()> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let name = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    match name.trim().to_ascii_lowercase().as_str() {
        "application/json" | "application/a2a+json" => Ok(()),
        other => {
            let message = format!("the content type {other:?} is not supported");
            Err(A2aError::new(Kind::ContentTypeNotSupported, message))
        }
    }
}

/// The value of an operation, or a stream.
enum Answer {
    Value(serde_json::Value),
    Stream(Response),
}
