//! The response to a request: one JSON message, or server-sent events if there is something to say before the result,
//! or if it takes long.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use abide_engine::LastCommit;
use abide_engine::buffers::{Account, Reservation};
use abide_server::port::{ConnectionPermit, PING_INTERVAL, Port, unsent};
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::{FutureExt as _, stream};
use serde_json::{Value as JsonValue, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::exchange::McpRequestContext;
use super::headers::MCP_SESSION_ID;
use super::message::{Request, error_response};
use super::{methods, subscriptions};
use crate::limits;
use crate::mcp_handler::McpFailure;

/// The last message of a response, and its status if it is the only one. `None` for the stream of a session.
type Work = Pin<Box<dyn Future<Output = Option<(JsonValue, StatusCode)>> + Send>>;

/// A response that is being written. Dropping it ends the work for it.
struct Reply {
    work: Option<Work>,
    outgoing: mpsc::Receiver<JsonValue>,
    account: Account,
    /// Counts the text that is being sent.
    hold: Option<Reservation>,
    _place: ConnectionPermit,
}

enum Step {
    Message(JsonValue),
    Last(JsonValue, StatusCode),
    /// Nothing has happened for a while.
    Silence,
    End,
}

impl Reply {
    /// Returns the next message. Notifications that were sent before the result come before it.
    async fn next(&mut self) -> Step {
        let Some(work) = &mut self.work else {
            return self.outgoing.try_recv().map_or(Step::End, Step::Message);
        };
        let step = timeout(PING_INTERVAL, async {
            tokio::select! {
                biased;
                Some(message) = self.outgoing.recv() => Ok(message),
                last = work => Err(last),
            }
        });
        match step.await {
            Err(_) => Step::Silence,
            Ok(Ok(message)) => Step::Message(message),
            Ok(Err(last)) => {
                self.work = None;
                match (last, self.outgoing.try_recv()) {
                    (None, _) => Step::End,
                    (Some((last, status)), Err(_)) => Step::Last(last, status),
                    (Some((last, status)), Ok(message)) => {
                        let done = std::future::ready(Some((last, status)));
                        self.work = Some(Box::pin(done));
                        Step::Message(message)
                    }
                }
            }
        }
    }

    /// Returns the text of the next events.
    async fn next_text(&mut self) -> Option<String> {
        // The socket has room again, so the text before this has left.
        self.hold = None;
        let text = match self.next().await {
            Step::End => return None,
            Step::Silence => return Some(": still here\n\n".to_owned()),
            Step::Last(message, _) | Step::Message(message) => encode_event(&message),
        };
        // A client that reads nothing costs only itself.
        self.hold = unsent::reserve(&self.account, &text).ok()?;
        Some(text)
    }

    fn into_stream(self, first: String) -> Response {
        let rest = stream::unfold((self, Some(first)), |(mut reply, first)| async move {
            let text = match first {
                Some(text) => text,
                None => reply.next_text().await?,
            };
            Some((Ok::<_, Infallible>(text), (reply, None)))
        });
        let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
        (headers, [("x-accel-buffering", "no")], Body::from_stream(rest)).into_response()
    }
}

fn encode_event(message: &JsonValue) -> String {
    format!("event: message\ndata: {message}\n\n")
}

/// Answers a request.
pub(super) async fn respond(
    exchange: McpRequestContext,
    request: Request,
    outgoing: mpsc::Receiver<JsonValue>,
    account: Account,
    place: ConnectionPermit,
) -> Response {
    let started = start_session(&exchange, &request);
    let accepts_events = exchange.accepts_events;
    let is_modern = exchange.is_modern();
    let hang_up = stops_with_its_client(&exchange, &request).then(|| HangUp {
        disconnected: exchange.disconnected.clone(),
        port: exchange.app.port.clone(),
    });
    let work: Work = Box::pin(async move {
        let _in_progress = exchange
            .session()
            .map(|session| session.begin(&request.id, exchange.cancelled.clone()));
        let _can_be_cancelled = exchange
            .key
            .as_ref()
            .map(|key| exchange.app.mcp.begin(exchange.by(), key, exchange.cancelled.clone()));
        let answered = methods::answer(&exchange, &request).await;
        Some(match answered {
            Ok(result) => {
                let message = json!({"jsonrpc": "2.0", "id": request.id, "result": result});
                (message, StatusCode::OK)
            }
            Err(failure) => {
                (error_response(&request.id, &failure), http_status(&failure, is_modern))
            }
        })
    });
    let work = match hang_up {
        Some(hang_up) => cancel_on_drop(work, hang_up),
        None => work,
    };
    let mut reply = Reply { work: Some(work), outgoing, account, hold: None, _place: place };
    loop {
        match reply.next().await {
            Step::Last(message, status) => {
                let mut response = unsent::committed_response(&reply.account, message.to_string());
                *response.status_mut() = status;
                if let Some(id) = started.filter(|_| message.get("result").is_some())
                    && let Ok(id) = HeaderValue::from_str(&id)
                {
                    response.headers_mut().insert(MCP_SESSION_ID, id);
                }
                return response;
            }
            Step::End => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            // The client reads one JSON message only.
            Step::Message(_) | Step::Silence if !accepts_events => {}
            Step::Message(message) => {
                let text = encode_event(&message);
                return reply.into_stream(text);
            }
            Step::Silence => return reply.into_stream(": still here\n\n".to_owned()),
        }
    }
}

/// Returns `true` if the client cancels a request by closing the connection, as 2026-07-28 demands. A request with an
/// idempotency key goes on: its client repeats it when the connection was lost, and cancels it by that key.
fn stops_with_its_client(exchange: &McpRequestContext, request: &Request) -> bool {
    exchange.is_modern() && exchange.key.is_none() && request.method == "tools/call"
}

/// Cancels a request when it is dropped before the request is answered, except when the server stops: then the run
/// continues after its start.
struct HangUp {
    disconnected: CancellationToken,
    port: Port,
}

impl Drop for HangUp {
    fn drop(&mut self) {
        let stops = self.port.until_draining().now_or_never().is_some();
        if !stops {
            self.disconnected.cancel();
        }
    }
}

/// Work that learns that its client has left, and ends by itself: dropped work could not abort its run.
fn cancel_on_drop(work: Work, hang_up: HangUp) -> Work {
    let last_commit = LastCommit::current().unwrap_or_default();
    let task = tokio::spawn(async move { last_commit.follow(work).await });
    Box::pin(async move {
        let _hang_up = hang_up;
        task.await.ok().flatten()
    })
}

/// Returns the HTTP status of an error. Before 2026-07-28 it is that of the message.
fn http_status(failure: &McpFailure, is_modern: bool) -> StatusCode {
    match failure.code {
        -32601 if is_modern => StatusCode::NOT_FOUND,
        -32022..=-32020 if is_modern => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// Returns the id of the session that `initialize` starts.
fn start_session(exchange: &McpRequestContext, request: &Request) -> Option<String> {
    if exchange.is_modern() || request.method != "initialize" {
        return None;
    }
    let capabilities = request.params.get("capabilities").cloned().unwrap_or_default();
    if capabilities.to_string().len() > limits::MCP_CAPABILITIES_BYTES {
        return None;
    }
    let hold = exchange.app.engine.buffers().reserve(exchange.by());
    let tenant = exchange.app.engine.tenants().key(exchange.by());
    let session = exchange.app.mcp.sessions.start(exchange.by(), tenant, capabilities, hold);
    Some(session.id().to_owned())
}

/// Returns the stream of a session. It begins when changes are watched: a change after that is not missed.
pub(super) async fn stream_of_session(
    exchange: McpRequestContext,
    stream: OwnedSemaphorePermit,
    outgoing: mpsc::Receiver<JsonValue>,
    account: Account,
    place: ConnectionPermit,
) -> Response {
    let (watches, watched) = oneshot::channel();
    let mut work: Work = Box::pin(async move {
        subscriptions::follow_session(&exchange, watches).await;
        drop(stream);
        None
    });
    let has_ended = tokio::select! {
        _ = &mut work => true,
        _ = watched => false,
    };
    let work = (!has_ended).then_some(work);
    let reply = Reply { work, outgoing, account, hold: None, _place: place };
    // So that the client learns that it is connected.
    reply.into_stream(": connected\n\n".to_owned())
}
