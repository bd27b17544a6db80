//! Common parts of the bindings over HTTP: the version of the protocol, the type of a body, and an answer.

use abide_engine::buffers::Account;
use abide_server::port::{ConnectionPermit, ParseTurn, off_the_runtime, single, unsent};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde_json::Value as JsonValue;

use super::error::{A2aError, A2aResult, Kind};
use super::task::TaskEncoder;
use crate::follow::{Follower, stream_turn};

/// The version of the protocol.
pub(super) const VERSION: &str = "1.0";

/// Returns the version that a request names: the header, or the parameter of its query. Empty if it names none.
pub(super) fn version(headers: &HeaderMap, query: Option<&str>) -> String {
    let in_query = single::parameter(query, "A2A-Version").ok().flatten();
    let in_header = headers.get(single::A2A_VERSION).map(|value| value.to_str().unwrap_or("?"));
    in_header.or(in_query.as_deref()).unwrap_or_default().trim().to_owned()
}

/// Refuses a request in another version of the protocol. A request without a version is one of 0.3.
pub(super) fn check_version(headers: &HeaderMap, query: Option<&str>) -> A2aResult<()> {
    let version = version(headers, query);
    // The third number does not count.
    if version == VERSION || version.strip_prefix("1.0.").is_some() {
        return Ok(());
    }
    let message = format!("version {version:?} of A2A is not supported (send A2A-Version: 1.0)");
    Err(A2aError::new(Kind::VersionNotSupported, message))
}

/// Refuses a body that is not JSON by its type. A request without a type is accepted.
pub(super) fn check_content_type(headers: &HeaderMap) -> A2aResult<()> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let name = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    match name.trim().to_ascii_lowercase().as_str() {
        "application/json" | "application/a2a+json" => Ok(()),
        other => {
            let message = format!(
                "the content type {other:?} is not supported (send Content-Type: application/json)"
            );
            Err(A2aError::new(Kind::ContentTypeNotSupported, message))
        }
    }
}

/// The value of an operation, or a stream.
pub(super) enum A2aResponse {
    /// A large value has the permit to encode it.
    Value(JsonValue, Option<ParseTurn>),
    Stream(Box<TaskStream>),
}

impl A2aResponse {
    /// Returns a small value.
    pub(super) fn small(value: JsonValue) -> A2aResponse {
        A2aResponse::Value(value, None)
    }
}

/// Returns a value as a response, which is counted for the caller until it is sent.
pub(super) async fn respond(
    account: &Account,
    permit: Option<ParseTurn>,
    encode: impl FnOnce() -> String + Send + 'static,
) -> A2aResult<Response> {
    let text = off_the_runtime(encode).await?;
    drop(permit);
    Ok(unsent::response(account, text)?)
}

/// The stream of a task that has not begun.
pub(super) struct TaskStream {
    pub(super) follower: Follower,
    pub(super) encoder: TaskEncoder,
    pub(super) place: ConnectionPermit,
}

impl TaskStream {
    /// Returns the response with server-sent events.
    pub(super) fn into_response(self) -> Response {
        stream_turn(self.follower, self.encoder, self.place)
    }
}
