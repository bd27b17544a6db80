//! A request's body: whole, within its bounds of bytes and time, UTF-8, and JSON of the right form.

use abide_schema::{Code, Refusal, limits::MESSAGE_BYTES};
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value as JsonValue;
use tokio::time::timeout;

use crate::limits;
use crate::problem::{Problem, with_status};

/// The text of a request's body.
#[derive(Debug)]
pub(crate) struct Content(String);

/// Why a body could not be had.
pub(crate) enum NoContent {
    Refused(Refusal),
    /// It did not come in time.
    Late,
    /// The peer is gone; nobody hears the answer.
    Gone,
}

impl Content {
    /// How long it is.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// The JSON value, null where there is nothing.
    pub(crate) fn value(&self) -> Result<JsonValue, Refusal> {
        if self.0.trim_ascii().is_empty() {
            return Ok(JsonValue::Null);
        }
        serde_json::from_str(&self.0).map_err(|why| {
            not_json(&why).hint("send one JSON object in UTF-8, or nothing where nothing is needed")
        })
    }

    /// The JSON object in the form that a route takes; `looks` is what it looks like.
    pub(crate) fn envelope<T: DeserializeOwned>(&self, looks: &str) -> Result<T, Refusal> {
        if self.0.trim_ascii().is_empty() {
            return Err(Refusal::new(Code::BadRequest, "the body is empty")
                .hint(format!("the body looks like {looks}")));
        }
        let refused = |refusal: Refusal| refusal.hint(format!("the body looks like {looks}"));
        if !self.0.trim_ascii_start().starts_with('{') {
            // Serde would take an array for a struct, its items for the fields in their order.
            let refusal = serde_json::from_str::<IgnoredAny>(&self.0).map_or_else(
                |why| not_json(&why),
                |_| Refusal::new(Code::BadRequest, "the body is not a JSON object"),
            );
            return Err(refused(refusal));
        }
        serde_json::from_str(&self.0).map_err(|why| match why.classify() {
            serde_json::error::Category::Data => {
                refused(Refusal::new(Code::BadRequest, format!("the body has another form: {why}")))
            }
            _ => refused(not_json(&why)),
        })
    }
}

fn not_json(why: &serde_json::Error) -> Refusal {
    Refusal::new(Code::BadRequest, format!("the body is not JSON: {why}"))
}

impl<S: Sync> FromRequest<S> for Content {
    type Rejection = NoContent;

    async fn from_request(request: Request, _: &S) -> Result<Content, NoContent> {
        let (parts, body) = request.into_parts();
        let announced = announced(&parts.headers);
        if announced > MESSAGE_BYTES && parts.headers.contains_key(EXPECT) {
            // The client asked first (`Expect: 100-continue`) and is spared the sending.
            return Err(NoContent::Refused(too_large()));
        }
        let read = timeout(limits::BODY, read(body, announced.min(MESSAGE_BYTES)));
        let bytes = read.await.map_err(|_| NoContent::Late)??;
        let text = String::from_utf8(bytes).map_err(|why| {
            let at = why.utf8_error().valid_up_to();
            NoContent::Refused(
                Refusal::new(Code::BadRequest, format!("the body is not UTF-8 from byte {at} on"))
                    .hint("encode texts as UTF-8, and bytes as {\"$blob\": \"<base64>\"}"),
            )
        })?;
        Ok(Content(text))
    }
}

fn announced(headers: &HeaderMap) -> usize {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

async fn read(body: Body, announced: usize) -> Result<Vec<u8>, NoContent> {
    let mut bytes = Vec::with_capacity(announced);
    let mut seen = 0;
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| NoContent::Gone)?;
        seen += piece.len();
        if seen > limits::DRAINED_BYTES {
            break;
        }
        if seen > MESSAGE_BYTES {
            bytes = Vec::new();
        } else {
            bytes.extend_from_slice(&piece);
        }
    }
    if seen > MESSAGE_BYTES { Err(NoContent::Refused(too_large())) } else { Ok(bytes) }
}

fn too_large() -> Refusal {
    let detail = format!("the body is larger than {MESSAGE_BYTES} bytes");
    Refusal::new(Code::LimitExceeded, detail)
        .hint("send several requests, or keep large content elsewhere and append a reference to it")
}

impl IntoResponse for NoContent {
    fn into_response(self) -> Response {
        match self {
            NoContent::Refused(refusal) => Problem(refusal).into_response(),
            NoContent::Late => {
                let detail =
                    format!("the body did not come within {} seconds", limits::BODY.as_secs());
                let refusal = Refusal::new(Code::BadRequest, detail).hint("send it again");
                with_status(&refusal, StatusCode::REQUEST_TIMEOUT)
            }
            NoContent::Gone => StatusCode::BAD_REQUEST.into_response(),
        }
    }
}
