//! Responses of routes.

use std::convert::Infallible;

use abide_engine::buffers::Buffers;
use abide_schema::{Caller, Code, Refusal, SEE_LOG};
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::Value as JsonValue;
use tokio::task::spawn_blocking;

use crate::app_state::AppState;
use crate::{limits, unsent};

/// Returns a JSON text as a response.
#[must_use]
pub fn json(text: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// Returns a JSON text as a response that is counted for the caller until the client has taken it: an HTTP/2 client
/// decides when it takes each of many responses. Fewer than [`limits::COUNTED_RESPONSE_BYTES`] are not counted.
///
/// # Errors
/// [`Code::Overloaded`]: the buffers are full. [`Code::LimitExceeded`]: the text is too long.
pub(super) fn counted_json(
    text: String,
    buffers: &Buffers,
    by: &Caller,
) -> Result<Response, Refusal> {
    if text.len() < limits::COUNTED_RESPONSE_BYTES {
        return Ok(json(text));
    }
    unsent::check_length(text.len())?;
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
    app: &AppState,
    by: &Caller,
    make: impl FnOnce() -> JsonValue + Send + 'static,
) -> Result<Response, Refusal> {
    let text = encode(app, by, make).await?;
    counted_json(text, app.engine.buffers(), by)
}

/// As [`counted_value`], after a call that has taken effect, which cannot be refused; see [`unsent::committed_response`].
///
/// # Errors
/// [`Code::Internal`] if the value cannot be made.
pub(super) async fn committed_value(
    app: &AppState,
    by: &Caller,
    make: impl FnOnce() -> JsonValue + Send + 'static,
) -> Result<Response, Refusal> {
    let text = encode(app, by, make).await?;
    Ok(unsent::committed_response(&app.engine.buffers().account(by), text))
}

/// The first step of [`encode`].
enum Encoding {
    Done(String),
    Large { value: JsonValue, bytes: usize },
}

/// Encodes a value apart from the runtime. A large one waits for a turn, as a large message does: otherwise a caller could
/// keep all processors busy.
async fn encode(
    app: &AppState,
    by: &Caller,
    make: impl FnOnce() -> JsonValue + Send + 'static,
) -> Result<String, Refusal> {
    let first = off_the_runtime(move || {
        let value = make();
        match text_bytes(&value) {
            bytes if bytes < limits::LARGE_BYTES => Encoding::Done(value.to_string()),
            bytes => Encoding::Large { value, bytes },
        }
    });
    match first.await? {
        Encoding::Done(text) => Ok(text),
        Encoding::Large { value, bytes } => {
            let _turn = app.parse_turns.acquire(by, bytes).await;
            off_the_runtime(move || value.to_string()).await
        }
    }
}

/// Returns about how long the text of a value is, without the escapes of strings.
fn text_bytes(value: &JsonValue) -> usize {
    match value {
        JsonValue::String(text) => text.len() + 2,
        JsonValue::Array(items) => items.iter().map(text_bytes).sum::<usize>() + 2,
        JsonValue::Object(members) => {
            members.iter().map(|(name, value)| name.len() + 4 + text_bytes(value)).sum::<usize>()
                + 2
        }
        JsonValue::Null | JsonValue::Bool(_) | JsonValue::Number(_) => 8,
    }
}

/// Runs work that takes longer with the size of a result on a thread for such work: those of the runtime serve all callers.
/// The messages of one session can have a hundred megabytes as JSON.
///
/// # Errors
/// [`Code::Internal`] if it panics.
pub async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "a response could not be made");
        Refusal::new(Code::Internal, "the response could not be made").hint(SEE_LOG)
    })
}
