//! Responses of routes.

use std::convert::Infallible;

use abide_engine::buffers::Buffers;
use abide_schema::{Caller, Refusal};
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;

use crate::limits;

/// Returns a JSON text as a response.
#[must_use]
pub fn json(text: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// Returns a JSON text as a response that is counted for the caller until the client has taken it: an HTTP/2 client
/// decides when it takes each of many responses. Fewer than [`limits::COUNTED_RESPONSE_BYTES`] are not counted.
///
/// # Errors
/// [`Code::Overloaded`](abide_schema::Code::Overloaded): the buffers are full.
pub(super) fn counted_json(
    text: String,
    buffers: &Buffers,
    by: &Caller,
) -> Result<Response, Refusal> {
    if text.len() < limits::COUNTED_RESPONSE_BYTES {
        return Ok(json(text));
    }
    let mut hold = buffers.reserve(by);
    hold.grow(text.len())?;
    let length = (CONTENT_LENGTH, HeaderValue::from(text.len()));
    let parts = stream::unfold((Bytes::from(text), hold), |(mut rest, hold)| async move {
        let part = rest.split_to(rest.len().min(limits::ANSWER_PART_BYTES));
        (!part.is_empty()).then_some((Ok::<_, Infallible>(part), (rest, hold)))
    });
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(([kind, length], Body::from_stream(parts)).into_response())
}
