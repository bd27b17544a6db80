//! Request bodies: complete, within limits of size and time, UTF-8, and JSON of the expected form.

use std::time::Duration;

use abide_engine::buffers::Reservation;
use abide_schema::caller::Caller;
use abide_schema::{CallArguments, Code, Refusal, integers, json_values, limits::MESSAGE_BYTES};
use axum::body::Body;
use axum::extract::{FromRef, FromRequest, Request};
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value as JsonValue;
use tokio::time::{Instant, timeout, timeout_at};

use crate::connections::parse_turns::{ParseTurn, ParseTurns};
use crate::limits;
use crate::port::Port;
use crate::problem::{Problem, with_status};

/// The text of a request's body, counted while it is held.
#[derive(Debug)]
pub struct RequestBody {
    text: String,
    hold: Option<Reservation>,
    turns: Turns,
}

/// Gives the turns in which a large body is parsed.
#[derive(Debug)]
struct Turns {
    limiter: ParseTurns,
    caller: Option<Caller>,
}

impl Turns {
    async fn acquire(&self, bytes: usize) -> Option<ParseTurn> {
        self.limiter.acquire(self.caller.as_ref()?, bytes).await
    }
}

/// Why there is no body.
#[derive(Debug)]
pub enum BodyError {
    /// It is refused.
    Refused(Refusal),
    /// It did not arrive in time.
    Late,
    /// The peer has disconnected; it gets no response.
    Gone,
}

impl RequestBody {
    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Waits for the turn in which a large body is parsed. A caller has one at a time: drop it before another wait.
    pub async fn turn(&self) -> Option<ParseTurn> {
        self.turns.acquire(self.text.len()).await
    }

    /// [`RequestBody::value`] in a turn of its own.
    pub async fn value_in_turn(&self) -> Result<JsonValue, Refusal> {
        let _turn = self.turn().await;
        self.value()
    }

    /// [`RequestBody::envelope`] in a turn of its own.
    pub async fn envelope_in_turn<T: DeserializeOwned>(&self, example: &str) -> Result<T, Refusal> {
        let _turn = self.turn().await;
        self.envelope(example)
    }

    /// Refuses a body with more values than this.
    pub fn check_values(&self, max: usize) -> Result<(), Refusal> {
        json_values::check_most(&self.text, max)
    }

    /// Returns the reservation for the body, without its text: the parsed value is as large.
    pub fn into_hold(self) -> Option<Reservation> {
        self.hold
    }

    /// Returns the id of a JSON-RPC request whose values are refused, so that its sender learns which one it is; null for
    /// all other text.
    pub fn request_id(&self) -> JsonValue {
        #[derive(Deserialize)]
        struct RpcRequest {
            id: JsonValue,
            #[serde(rename = "method")]
            _method: String,
        }
        if json_values::check(&self.text).is_err() {
            return JsonValue::Null;
        }
        let request = serde_json::from_str::<RpcRequest>(&integers::readable(self.text.as_bytes()));
        let id = request.map(|request| request.id).unwrap_or_default();
        if id.is_string() || id.is_i64() || id.is_u64() { id } else { JsonValue::Null }
    }

    /// Returns the JSON value, null if the body is empty.
    pub fn value(&self) -> Result<JsonValue, Refusal> {
        let value = self.parse()?;
        integers::check(&self.text)?;
        integers::check_names(&self.text)?;
        Ok(value)
    }

    /// Returns the arguments of a call, none if the body is empty.
    pub(crate) fn arguments(&self) -> Result<CallArguments, Refusal> {
        let arguments: CallArguments = self.parse()?;
        if arguments.has_large_number() {
            integers::check(&self.text)?;
        }
        Ok(arguments)
    }

    fn parse<T: DeserializeOwned + Default>(&self) -> Result<T, Refusal> {
        if self.text.trim_ascii().is_empty() {
            return Ok(T::default());
        }
        json_values::check(&self.text)?;
        serde_json::from_str(&self.text).map_err(|why| {
            self.not_json(
                &why,
                "send one JSON object in UTF-8, or an empty body if no arguments are needed",
            )
        })
    }

    /// Returns the JSON object in the form that a route expects; `example` is shown in the hint.
    pub fn envelope<T: DeserializeOwned>(&self, example: &str) -> Result<T, Refusal> {
        let hint = format!("send a body like {example}");
        if self.text.trim_ascii().is_empty() {
            return Err(Refusal::new(Code::BadRequest, "the body is empty").hint(hint));
        }
        if !self.text.trim_ascii_start().starts_with('{') {
            // Serde would accept an array for a struct, its items as the fields in order.
            return Err(match serde_json::from_str::<IgnoredAny>(&self.text) {
                Err(why) => self.not_json(&why, &hint),
                Ok(_) => Refusal::new(Code::BadRequest, "the body is not a JSON object").hint(hint),
            });
        }
        json_values::check(&self.text)?;
        let envelope = serde_json::from_str(&self.text).map_err(|why| match why.classify() {
            serde_json::error::Category::Data => {
                let detail = format!("the body has an unexpected form: {why}");
                Refusal::new(Code::BadRequest, detail).hint(&hint)
            }
            _ => self.not_json(&why, &hint),
        })?;
        integers::check(&self.text)?;
        integers::check_names(&self.text)?;
        Ok(envelope)
    }

    /// Why the body cannot be parsed. Half a surrogate pair is JSON, and no text.
    fn not_json(&self, why: &serde_json::Error, hint: &str) -> Refusal {
        match integers::check_surrogates(&self.text) {
            Err(found) => found.into(),
            Ok(()) => {
                Refusal::new(Code::BadRequest, format!("the body is not JSON: {why}")).hint(hint)
            }
        }
    }
}

impl<S> FromRequest<S> for RequestBody
where
    S: Send + Sync,
    Port: FromRef<S>,
{
    type Rejection = BodyError;

    async fn from_request(request: Request, state: &S) -> Result<RequestBody, BodyError> {
        let RequestBytes { bytes, hold, turns } =
            RequestBytes::from_request(request, state).await?;
        let text = String::from_utf8(bytes).map_err(|why| {
            let at = why.utf8_error().valid_up_to();
            BodyError::Refused(
                Refusal::new(Code::BadRequest, format!("the body is not UTF-8 from byte {at} on"))
                    .hint("encode text as UTF-8, and bytes as {\"$blob\": \"<base64>\"}"),
            )
        })?;
        Ok(RequestBody { text, hold, turns })
    }
}

/// The bytes of a request's body, within the same limits.
#[derive(Debug)]
pub struct RequestBytes {
    /// The bytes.
    pub bytes: Vec<u8>,
    hold: Option<Reservation>,
    turns: Turns,
}

impl RequestBytes {
    /// As [`RequestBody::turn`].
    pub async fn turn(&self) -> Option<ParseTurn> {
        self.turns.acquire(self.bytes.len()).await
    }

    /// As [`RequestBody::into_hold`].
    pub fn into_hold(self) -> Option<Reservation> {
        self.hold
    }
}

impl<S> FromRequest<S> for RequestBytes
where
    S: Send + Sync,
    Port: FromRef<S>,
{
    type Rejection = BodyError;

    async fn from_request(request: Request, state: &S) -> Result<RequestBytes, BodyError> {
        let port = Port::from_ref(state);
        let (parts, body) = request.into_parts();
        let caller = parts.extensions.get::<Caller>();
        let mut hold = caller.map(|caller| port.engine().buffers().reserve(caller));
        // The head is held as long as the body takes.
        let mut head_hold = caller.map(|caller| port.engine().buffers().reserve(caller));
        let head = head_bytes(&parts);
        if let Some(hold) = &mut head_hold
            && head > limits::HEAD_UNCOUNTED_BYTES
        {
            hold.grow(head).map_err(BodyError::Refused)?;
        }
        let announced = announced_bytes(&parts.headers);
        if announced > MESSAGE_BYTES && parts.headers.contains_key(EXPECT) {
            // The client asked first (`Expect: 100-continue`) and need not send the body.
            return Err(BodyError::Refused(too_large()));
        }
        let read = timeout(limits::BODY_TIMEOUT, read_body(body, hold.as_mut()));
        let bytes = read.await.map_err(|_| BodyError::Late)??;
        let turns =
            Turns { limiter: port.parse_turns().clone(), caller: parts.extensions.get().cloned() };
        Ok(RequestBytes { bytes, hold, turns })
    }
}

/// Reads the body of a request that is refused by its head, so that the response reaches the client. Without this, HTTP/2
/// resets the stream after the response, and some clients then discard the response; HTTP/1 closes a socket that has
/// unread bytes, with the same effect.
pub(crate) async fn discard(request: Request) {
    let (parts, body) = request.into_parts();
    let is_large = announced_bytes(&parts.headers) > limits::REFUSED_BODY_BYTES;
    // With `Expect`, the client waits for the response before it sends the body.
    if is_large || parts.headers.contains_key(EXPECT) {
        return;
    }
    // Nobody has counted it.
    drop(parts);
    // A body that does not end in time is not worth more: its client gets the response as well as it can.
    let _ = timeout(limits::REFUSED_BODY_TIMEOUT, read_away(body)).await;
}

/// Reads a body to its end or to the limit, and keeps nothing.
async fn read_away(body: Body) {
    let mut pieces = body.into_data_stream();
    let mut seen = 0;
    while let Some(Ok(piece)) = pieces.next().await {
        seen += piece.len();
        if seen > limits::REFUSED_BODY_BYTES {
            return;
        }
    }
}

/// The bytes of a request's head, about.
fn head_bytes(head: &Parts) -> usize {
    let headers = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    head.uri.path().len() + head.uri.query().map_or(0, str::len) + headers.sum::<usize>()
}

fn announced_bytes(headers: &HeaderMap) -> usize {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// Reads a body. Received bytes are counted for the caller; a body that arrives too slowly is abandoned.
async fn read_body(body: Body, mut hold: Option<&mut Reservation>) -> Result<Vec<u8>, BodyError> {
    let mut bytes = Vec::new();
    let mut seen = 0;
    let begun = Instant::now();
    let mut pieces = body.into_data_stream();
    loop {
        // By then the next part has arrived, or the body is too slow.
        let paid_for = Duration::from_secs((seen / limits::BODY_BYTES_PER_S) as u64);
        let due = begun + limits::BODY_START_GRACE + paid_for;
        let Ok(piece) = timeout_at(due, pieces.next()).await else { return Err(BodyError::Late) };
        let Some(piece) = piece else { break };
        let piece = piece.map_err(|_| BodyError::Gone)?;
        seen += piece.len();
        if let Some(hold) = hold.as_deref_mut()
            && seen > limits::BODY_UNCOUNTED_BYTES
            && seen <= MESSAGE_BYTES
        {
            hold.grow(seen - hold.bytes()).map_err(BodyError::Refused)?;
        }
        if seen > limits::DRAINED_BYTES {
            break;
        }
        if seen > MESSAGE_BYTES {
            bytes = Vec::new();
            if let Some(hold) = hold.as_deref_mut() {
                hold.shrink(hold.bytes());
            }
        } else {
            bytes.extend_from_slice(&piece);
        }
    }
    if seen > MESSAGE_BYTES { Err(BodyError::Refused(too_large())) } else { Ok(bytes) }
}

fn too_large() -> Refusal {
    let detail = format!("the body is larger than {MESSAGE_BYTES} bytes");
    Refusal::new(Code::LimitExceeded, detail).hint(
        "send several requests, or store large content elsewhere and append a reference to it",
    )
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        match self {
            BodyError::Refused(refusal) => Problem(refusal).into_response(),
            BodyError::Late => {
                let start_s = limits::BODY_START_GRACE.as_secs();
                let kib_per_s = limits::BODY_BYTES_PER_S >> 10;
                let detail = format!(
                    "the body arrived too slowly: the first bytes must arrive within {start_s} s, \
                     the rest at {kib_per_s} KiB/s or faster"
                );
                let refusal = Refusal::new(Code::BadRequest, detail)
                    .hint("repeat the request on a faster connection, or send smaller bodies");
                with_status(&refusal, StatusCode::REQUEST_TIMEOUT)
            }
            BodyError::Gone => StatusCode::BAD_REQUEST.into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::stream;

    use super::*;

    /// The body of a refused request is read, within limits: neither a slow one nor a large one occupies the server.
    #[tokio::test(start_paused = true)]
    async fn the_body_of_a_refused_request_is_read_within_limits() {
        let begun = Instant::now();
        let endless = stream::pending::<Result<Vec<u8>, Infallible>>();
        discard(Request::new(Body::from_stream(endless))).await;
        let waited = begun.elapsed();
        let expected = limits::REFUSED_BODY_TIMEOUT;
        assert!(waited >= expected && waited < 2 * expected, "{waited:?}");

        let read = Arc::<AtomicUsize>::default();
        let counter = Arc::clone(&read);
        let large = stream::repeat_with(move || {
            counter.fetch_add(64 << 10, Ordering::Relaxed);
            Ok::<_, Infallible>(vec![b' '; 64 << 10])
        });
        discard(Request::new(Body::from_stream(large))).await;
        let bytes = read.load(Ordering::Relaxed);
        assert!(bytes > limits::REFUSED_BODY_BYTES && bytes < 2 * limits::REFUSED_BODY_BYTES);
    }

    /// A body of a kilobyte per second was received, and held in memory, for 64 seconds.
    #[tokio::test(start_paused = true)]
    async fn slow_bodies_are_refused() {
        let slow = stream::unfold((), |()| async {
            // tidy: on the paused clock of the test, it takes no time
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, Infallible>(vec![b' '; 1 << 10]), ()))
        });
        let begun = Instant::now();
        let answer = read_body(Body::from_stream(slow), None).await;
        assert!(matches!(answer, Err(BodyError::Late)));
        let waited = begun.elapsed();
        assert!(
            waited >= limits::BODY_START_GRACE && waited < 2 * limits::BODY_START_GRACE,
            "{waited:?}"
        );

        let quick = stream::unfold(0, |nth| async move {
            // tidy: on the paused clock of the test, it takes no time
            tokio::time::sleep(Duration::from_secs(1)).await;
            (nth < 20).then(|| (Ok::<_, Infallible>(vec![b' '; 64 << 10]), nth + 1))
        });
        let answer = read_body(Body::from_stream(quick), None).await;
        assert!(answer.is_ok_and(|bytes| bytes.len() == 20 * (64 << 10)));
    }
}
