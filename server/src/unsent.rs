//! Counts encoded texts that are not sent yet for their caller, from [`COUNTED_BYTES`] on.

use std::io;

use abide_engine::Update;
use abide_engine::buffers::{Account, Reservation};
use abide_schema::limits::{BUFFERED_BYTES_PER_CALLER, COUNTED_BYTES};
use abide_schema::{Code, Refusal};
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::time::timeout;

use crate::{frames, limits};

/// A text, and its reservation until it is sent.
pub(crate) type Unsent = (String, Option<Reservation>);

/// Encodes an update as soon as there is room for its text. `None` if there is none for as long as a peer may read
/// nothing.
pub(crate) async fn encode(
    account: &Account,
    update: Update,
    encode: impl FnOnce(&Update) -> String,
) -> Option<Unsent> {
    let bytes = frames::update_size(&update);
    if bytes < COUNTED_BYTES {
        return Some((encode(&update), None));
    }
    let mut hold = account.reserve();
    let room = hold.wait_to_grow(bytes, update.counted_bytes());
    timeout(limits::STALL_TIMEOUT, room).await.ok()?;
    Some((encode(&update), Some(hold)))
}

/// Counts a text that is already encoded.
///
/// # Errors
/// `overloaded`, and those of `check_length`.
pub fn reserve(account: &Account, text: &str) -> Result<Option<Reservation>, Refusal> {
    if text.len() < COUNTED_BYTES {
        return Ok(None);
    }
    check_length(text.len())?;
    let mut hold = account.reserve();
    hold.grow(text.len())?;
    Ok(Some(hold))
}

/// Checks that one text does not take more than the share of its caller. A single text is counted even if it has more than
/// that, and nobody else could then buffer anything until it is read.
///
/// # Errors
/// `limit_exceeded`.
pub(crate) fn check_length(bytes: usize) -> Result<(), Refusal> {
    if bytes <= BUFFERED_BYTES_PER_CALLER {
        return Ok(());
    }
    let most = BUFFERED_BYTES_PER_CALLER >> 20;
    Err(Refusal::new(Code::LimitExceeded, format!("the result has more than {most} MiB as JSON"))
        .hint("read it in parts, for example with LIMIT"))
}

/// Returns a text as a response.
///
/// # Errors
/// `overloaded`.
pub fn response(account: &Account, text: String) -> Result<Response, Refusal> {
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(match reserve(account, &text)? {
        None => ([kind], text).into_response(),
        Some(hold) => {
            let length = (CONTENT_LENGTH, HeaderValue::from(text.len()));
            let whole = stream::iter([Ok::<_, io::Error>(text)]).map(move |text| {
                let _counted = &hold;
                text
            });
            ([kind, length], Body::from_stream(whole)).into_response()
        }
    })
}

/// Returns the result of a call as a response. A committed call cannot be refused: if there is no room for its result,
/// the connection ends without it, and the caller retries with its request id.
pub fn committed_response(account: &Account, text: String) -> Response {
    response(account, text).unwrap_or_else(|refusal| {
        tracing::info!(
            name: "client_stalled",
            %refusal,
            "closing a connection: its caller reads no responses"
        );
        let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let nothing = stream::iter([Err::<String, _>(io::Error::other(refusal))]);
        ([kind], Body::from_stream(nothing)).into_response()
    })
}
