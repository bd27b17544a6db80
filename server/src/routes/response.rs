//! Responses of routes.

use std::convert::Infallible;

use abide_engine::buffers::Buffers;
use abide_schema::limits::BUFFERED_BYTES_PER_CALLER;
use abide_schema::{Caller, Code, Refusal, SEE_LOG};
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::Value as JsonValue;
use tokio::task::spawn_blocking;

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
/// [`Code::Overloaded`]: the buffers are full. [`Code::LimitExceeded`]: one caller must not fill them with one response.
pub(super) fn counted_json(
    text: String,
    buffers: &Buffers,
    by: &Caller,
) -> Result<Response, Refusal> {
    if text.len() < limits::COUNTED_RESPONSE_BYTES {
        return Ok(json(text));
    }
    if text.len() > BUFFERED_BYTES_PER_CALLER {
        let most = BUFFERED_BYTES_PER_CALLER >> 20;
        let detail = format!("the response has more than {most} MiB");
        return Err(Refusal::new(Code::LimitExceeded, detail)
            .hint("request fewer rows at once, or read them with POST /v1/sql"));
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

/// Makes a value, and returns it as a response that is counted like [`counted_json`].
///
/// # Errors
/// Those of [`counted_json`].
pub(super) async fn counted_value(
    make: impl FnOnce() -> JsonValue + Send + 'static,
    buffers: &Buffers,
    by: &Caller,
) -> Result<Response, Refusal> {
    let text = off_the_runtime(move || make().to_string()).await?;
    counted_json(text, buffers, by)
}

/// Runs work that takes longer with the size of a result on a thread for such work: those of the runtime serve all callers.
/// The messages of one session can have a hundred megabytes as JSON.
///
/// # Errors
/// [`Code::Internal`] if it panics.
pub(super) async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "a response could not be made");
        Refusal::new(Code::Internal, "the response could not be made").hint(SEE_LOG)
    })
}
