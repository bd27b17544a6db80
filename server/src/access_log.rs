//! The access log: one record at INFO for each request, and one for each WebSocket at its end. `docs/logs.md` lists its fields.
//!
//! A record has the template of the route and no path, query, header or body: those have ids, content and tokens.

use std::pin::Pin;
use std::task::{Context, Poll};

use abide_schema::Seq;
use abide_schema::caller::Caller;
use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;
use tracing::Level;

/// The template of the route of WebSockets.
const WEBSOCKET: &str = "/v1/ws";

/// `true` if records are written. Nothing is collected otherwise.
pub(crate) fn is_enabled() -> bool {
    tracing::enabled!(Level::INFO)
}

/// The event of a call, in the extensions of its response.
#[derive(Clone, Copy, Debug)]
struct LoggedSeq(Seq);

/// The caller of a request, in the extensions of its response.
#[derive(Clone, Debug)]
struct LoggedCaller(Caller);

/// Adds the event of a call to the record of its request.
pub(crate) fn add_seq(mut response: Response, seq: Seq) -> Response {
    if is_enabled() {
        response.extensions_mut().insert(LoggedSeq(seq));
    }
    response
}

/// Adds the caller to the record of a request.
pub(crate) fn add_caller(response: &mut Response, caller: Caller) {
    response.extensions_mut().insert(LoggedCaller(caller));
}

/// A request or a WebSocket. Its record is written when this is dropped: when the response is sent, or when the client has gone.
pub(crate) struct AccessRecord {
    method: Method,
    route: Option<MatchedPath>,
    caller: Option<Caller>,
    /// `None` if the client has gone before the response.
    status: Option<StatusCode>,
    seq: Option<Seq>,
    begun: Instant,
    is_written: bool,
}

impl AccessRecord {
    /// Returns the record of a WebSocket that begins.
    pub(crate) fn of_websocket(caller: &Caller) -> Option<AccessRecord> {
        is_enabled().then(|| AccessRecord {
            method: Method::GET,
            route: None,
            caller: Some(caller.clone()),
            status: Some(StatusCode::SWITCHING_PROTOCOLS),
            seq: None,
            begun: Instant::now(),
            is_written: true,
        })
    }

    fn route(&self) -> Option<&str> {
        if self.status == Some(StatusCode::SWITCHING_PROTOCOLS) {
            return Some(WEBSOCKET);
        }
        self.route.as_ref().map(MatchedPath::as_str)
    }
}

impl Drop for AccessRecord {
    fn drop(&mut self) {
        if !self.is_written {
            return;
        }
        let method = self.method.as_str();
        let route = self.route();
        let caller = self.caller.as_ref().map(Caller::id);
        let status = self.status.map(|status| status.as_u16());
        let seq = self.seq.map(|seq| seq.0);
        let duration_ms = self.begun.elapsed().as_secs_f64() * 1e3;
        tracing::info!(name: "request", method, route, caller, status, seq, duration_ms, "a request has ended");
    }
}

/// Middleware: writes the record of every request.
pub(crate) async fn log_request(request: Request, next: Next) -> Response {
    if !is_enabled() {
        return next.run(request).await;
    }
    let mut record = AccessRecord {
        method: request.method().clone(),
        route: request.extensions().get::<MatchedPath>().cloned(),
        caller: None,
        status: None,
        seq: None,
        begun: Instant::now(),
        is_written: true,
    };
    let mut response = next.run(request).await;
    record.status = Some(response.status());
    record.caller = response.extensions_mut().remove::<LoggedCaller>().map(|it| it.0);
    record.seq = response.extensions_mut().remove::<LoggedSeq>().map(|it| it.0);
    // The session of a WebSocket has a record of its own.
    record.is_written = response.status() != StatusCode::SWITCHING_PROTOCOLS;
    response.map(|body| Body::new(LoggedBody { body, _record: record }))
}

/// The body of a response. Its record is written when it was sent or given up.
struct LoggedBody {
    body: Body,
    _record: AccessRecord,
}

impl HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
