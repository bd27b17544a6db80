//! Responses of routes.

use std::convert::Infallible;

use abide_engine::buffers::Reservation;
use abide_schema::Refusal;
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;

use crate::limits;

/// A JSON text as a response.
pub(super) fn json(text: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// A JSON text as a response that is counted as buffered until the client has taken it. An HTTP/2 client decides when it takes
/// each of many responses. A small text is not counted.
///
/// # Errors
/// The buffers are full.
pub(super) fn counted_json(text: String, mut hold: Reservation) -> Result<Response, Refusal> {
    if text.len() < limits::COUNTED_RESPONSE_BYTES {
        return Ok(json(text));
    }
    hold.grow(text.len())?;
    let length = (CONTENT_LENGTH, HeaderValue::from(text.len()));
    let parts = stream::unfold((Bytes::from(text), hold), |(mut rest, hold)| async move {
        let part = rest.split_to(rest.len().min(limits::ANSWER_PART_BYTES));
        (!part.is_empty()).then_some((Ok::<_, Infallible>(part), (rest, hold)))
    });
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(([kind, length], Body::from_stream(parts)).into_response())
}
