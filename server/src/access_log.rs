//! The access log: one record at INFO for each request, for each call or batch over a WebSocket, and for each WebSocket at its end.
//! `docs/logs.md` lists their fields.
//!
//! A record has the template of the route and no path, query, header or body: those have ids, content and tokens.

use std::pin::Pin;
use std::task::{Context, Poll};

use abide_engine::LastCommit;
use abide_schema::caller::Caller;
use abide_schema::{Refusal, Seq};
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

/// The caller of a request, in the extensions of its response.
#[derive(Clone, Debug)]
struct LoggedCaller(Caller);

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
    /// The calls of the request.
    last_commit: LastCommit,
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
            last_commit: LastCommit::default(),
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
        let seq = self.last_commit.seq().map(|seq| seq.0);
        let duration_ms = self.begun.elapsed().as_secs_f64() * 1e3;
        tracing::info!(name: "request", method, route, caller, status, seq, duration_ms, "a request has ended");
    }
}

/// A call or a batch over a WebSocket.
pub(crate) struct MessageRecord {
    op: &'static str,
    caller: Caller,
    begun: Instant,
}

impl MessageRecord {
    /// Returns the record of a message that arrived at a time.
    pub(crate) fn new(op: &'static str, caller: &Caller, begun: Instant) -> Option<MessageRecord> {
        is_enabled().then(|| MessageRecord { op, caller: caller.clone(), begun })
    }

    /// Writes it, with the status that the message would have as a request.
    pub(crate) fn write(self, outcome: Result<Seq, &Refusal>) {
        let MessageRecord { op, caller, begun } = self;
        let caller = caller.id();
        let route = WEBSOCKET;
        let (status, seq) = match outcome {
            Ok(seq) => (200, Some(seq.0)),
            Err(refusal) => (refusal.code.http_status(), None),
        };
        let duration_ms = begun.elapsed().as_secs_f64() * 1e3;
        tracing::info!(name: "websocket_message", route, op, caller, status, seq, duration_ms, "a message of a websocket has an answer");
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
        last_commit: LastCommit::default(),
        begun: Instant::now(),
        is_written: true,
    };
    let last_commit = record.last_commit.clone();
    let mut response = last_commit.follow(next.run(request)).await;
    record.status = Some(response.status());
    record.caller = response.extensions_mut().remove::<LoggedCaller>().map(|it| it.0);
    // The session of a WebSocket has a record of its own.
    record.is_written = response.status() != StatusCode::SWITCHING_PROTOCOLS;
    response.map(|body| Body::new(LoggedBody { body, record }))
}

/// The body of a response. Its record is written when it was sent or given up.
struct LoggedBody {
    body: Body,
    record: AccessRecord,
}

impl HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let LoggedBody { body, record } = &mut *self;
        record.last_commit.follow_poll(|| Pin::new(body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
