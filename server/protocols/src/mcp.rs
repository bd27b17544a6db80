//! `/mcp`: the Model Context Protocol over streamable HTTP, in two generations. In 2026-07-28 each request is complete
//! in itself. In 2025-11-25 and before, a client starts a [session](sessions) with `initialize`.
//!
//! A [tool](tools) is an agent, a query, a reducer or a tool of the handler; a [resource](resources) is a session, a run
//! or a table. A [task](tasks) is a run, so it is stored before its id is sent, and survives restarts. What a request
//! asks of its client is an [input request](input): an approval that waits, in most cases.

mod agent_run;
mod agent_tools;
mod exchange;
mod handler;
mod headers;
mod input;
mod message;
mod methods;
mod paging;
mod prompts;
mod reply;
mod resources;
mod sessions;
mod shared;
mod state_seal;
mod subscriptions;
mod tasks;
mod tools;

use std::sync::Arc;

use abide_server::port::{AuthSession, SessionExtension};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value as JsonValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::incoming::Incoming;
use crate::limits;
use crate::mcp::headers::MCP_SESSION_ID;
use crate::mcp_handler::{McpFailure, McpNotifier};
use crate::state::ProtocolState;
use exchange::{McpRequestContext, ProtocolGeneration};
use message::{HttpFailure, Message};
use sessions::McpSession;
pub(crate) use shared::McpState;

/// One message of a client.
pub(crate) async fn post(incoming: Incoming) -> Response {
    match receive(incoming).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn receive(incoming: Incoming) -> Result<Response, HttpFailure> {
    let Incoming { app, session: auth, place, headers, content } = incoming;
    let headers = &headers;
    headers::check_origin(headers)?;
    let permit = app.port.parse_turn(&auth.caller, content.bytes()).await;
    let message = Message::parse(&content)?;
    drop(permit);
    let session = find_session(&app, &auth, headers)?;
    match message {
        Message::Request(request) => {
            let era = headers::read_generation(&request, headers, session)?;
            let (out, outgoing) = mpsc::channel(limits::MCP_OUTBOX);
            let notifier = McpNotifier::new(out, request.progress_token(), era.log_level(&request));
            let cancelled = CancellationToken::new();
            let key = headers::idempotency_key(&request, headers)
                .map_err(|failure| HttpFailure::bad_request(request.id.clone(), failure))?;
            let accepts_events = headers::accepts_events(headers);
            let account = app.engine.buffers().account(&auth.caller);
            let exchange = McpRequestContext {
                app,
                auth,
                era,
                notifier,
                cancelled,
                disconnected: CancellationToken::new(),
                key,
                accepts_events,
                content,
            };
            Ok(reply::respond(exchange, request, outgoing, account, place).await)
        }
        Message::Notification { method, params } => {
            if method == "notifications/cancelled" {
                match (session, params["_meta"]["abide/request_id"].as_str()) {
                    (Some(session), _) => session.cancel(&params["requestId"]),
                    // A request without a session has no id that differs from those of other clients.
                    (None, Some(key)) => app.mcp.cancel(&auth.caller, key),
                    (None, None) => {}
                }
            }
            Ok(StatusCode::ACCEPTED.into_response())
        }
        Message::Response { id, outcome } => {
            if let Some(session) = session {
                session.respond(&id, outcome);
            }
            Ok(StatusCode::ACCEPTED.into_response())
        }
    }
}

/// Returns the session that a request names, if it belongs to the caller.
fn find_session(
    app: &ProtocolState,
    auth: &AuthSession,
    headers: &HeaderMap,
) -> Result<Option<Arc<McpSession>>, HttpFailure> {
    let id = headers::read_header(headers, &MCP_SESSION_ID)
        .map_err(|failure| HttpFailure::bad_request(JsonValue::Null, failure))?;
    let Some(id) = id else { return Ok(None) };
    let found = app.mcp.sessions.find(id, &auth.caller, || {
        let tenant = app.engine.tenants().key(&auth.caller);
        (tenant, app.engine.buffers().reserve(&auth.caller))
    });
    found.map(Some).ok_or_else(|| {
        let message = "Session not found: start a new one with initialize".to_owned();
        let failure = McpFailure { code: -32001, message, data: None };
        HttpFailure { status: StatusCode::NOT_FOUND, id: JsonValue::Null, failure }
    })
}

/// Returns the notifications of a session, as server-sent events.
pub(crate) async fn get(incoming: Incoming) -> Response {
    let Incoming { app, session: auth, place, headers, content } = incoming;
    let checked =
        headers::check_origin(&headers).and_then(|()| find_session(&app, &auth, &headers));
    let session = match checked {
        Ok(Some(session)) if headers::accepts_events(&headers) => session,
        Ok(_) => return StatusCode::METHOD_NOT_ALLOWED.into_response(),
        Err(failure) => return failure.into_response(),
    };
    let Some(stream) = session.stream() else { return StatusCode::CONFLICT.into_response() };
    let (out, outgoing) = mpsc::channel(limits::MCP_OUTBOX);
    let notifier = McpNotifier::new(out, None, None);
    let account = app.engine.buffers().account(&auth.caller);
    let era = ProtocolGeneration::Legacy(Some(session));
    let cancelled = CancellationToken::new();
    let exchange = McpRequestContext {
        app,
        auth,
        era,
        notifier,
        cancelled,
        disconnected: CancellationToken::new(),
        key: None,
        accepts_events: true,
        content,
    };
    reply::stream_of_session(exchange, stream, outgoing, account, place).await
}

/// Ends a session.
pub(crate) async fn delete(
    State(app): State<ProtocolState>,
    Extension(auth): SessionExtension,
    headers: HeaderMap,
) -> Response {
    let checked =
        headers::check_origin(&headers).and_then(|()| find_session(&app, &auth, &headers));
    match checked {
        Ok(Some(session)) => {
            app.mcp.sessions.end(&session);
            StatusCode::NO_CONTENT.into_response()
        }
        Ok(None) => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        Err(failure) => failure.into_response(),
    }
}
