//! Responses of routes.

use std::convert::Infallible;

use abide_engine::buffers::{Buffers, Reservation};
use abide_schema::{Caller, Code, Refusal, SEE_LOG, json_text_bytes};
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
    Ok(send_counted(text, hold))
}

/// Returns a text as a response in parts, which is counted until the last part is taken.
fn send_counted(text: String, hold: Reservation) -> Response {
    let length = (CONTENT_LENGTH, HeaderValue::from(text.len()));
    let parts = stream::unfold((Bytes::from(text), hold), |(mut rest, hold)| async move {
        let part = rest.split_to(rest.len().min(limits::ANSWER_PART_BYTES));
        (!part.is_empty()).then_some((Ok::<_, Infallible>(part), (rest, hold)))
    });
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    ([kind, length], Body::from_stream(parts)).into_response()
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
    match measure(make).await? {
        Encoding::Done(text) => counted_json(text, app.engine.buffers(), by),
        Encoding::Large { value, bytes } => {
            // Before the text is made, and while it waits for a turn: the values of many requests would fill the memory.
            unsent::check_length(bytes)?;
            let mut hold = app.engine.buffers().reserve(by);
            hold.grow(bytes)?;
            let text = encode_in_turn(app, by, value, bytes).await?;
            Ok(send_counted(text, hold))
        }
    }
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
    let text = match measure(make).await? {
        Encoding::Done(text) => text,
        Encoding::Large { value, bytes } => encode_in_turn(app, by, value, bytes).await?,
    };
    Ok(unsent::committed_response(&app.engine.buffers().account(by), text))
}

/// A value with the length of its text, which is made if it is short.
enum Encoding {
    Done(String),
    Large { value: JsonValue, bytes: usize },
}

/// Makes a value and measures it, apart from the runtime.
async fn measure(make: impl FnOnce() -> JsonValue + Send + 'static) -> Result<Encoding, Refusal> {
    off_the_runtime(move || {
        let value = make();
        match text_bytes(&value) {
            bytes if bytes < limits::LARGE_BYTES => Encoding::Done(value.to_string()),
            bytes => Encoding::Large { value, bytes },
        }
    })
    .await
}

/// Encodes a large value in a turn, as a large message is parsed: otherwise a caller could keep all processors busy.
async fn encode_in_turn(
    app: &AppState,
    by: &Caller,
    value: JsonValue,
    bytes: usize,
) -> Result<String, Refusal> {
    let _turn = app.parse_turns.acquire(by, bytes).await;
    off_the_runtime(move || value.to_string()).await
}

/// Returns how long the text of a value is, at most.
fn text_bytes(value: &JsonValue) -> usize {
    match value {
        JsonValue::String(text) => json_text_bytes(text),
        JsonValue::Array(items) => items.iter().map(|item| text_bytes(item) + 1).sum::<usize>() + 2,
        JsonValue::Object(members) => {
            let members = members.iter();
            members
                .map(|(name, value)| json_text_bytes(name) + text_bytes(value) + 2)
                .sum::<usize>()
                + 2
        }
        JsonValue::Null | JsonValue::Bool(_) => 5,
        // 17 digits with sign, point and exponent.
        JsonValue::Number(_) => 24,
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
        tracing::error!(name: "response_failed", %error, "a response could not be made");
        Refusal::new(Code::Internal, "the response could not be made").hint(SEE_LOG)
    })
}
