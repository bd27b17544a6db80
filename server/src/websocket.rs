//! `GET /v1/ws`: the protocol `abide.v1`, one JSON object per message.
//!
//! The caller was admitted before the upgrade (`auth/access.rs`), and the bytes of its messages are counted below this
//! module, where the socket is read (`arrivals.rs`). What a message has taken until its answer is written is one value
//! (`admission`); `message` parses it. From `reader` a call goes on to `Engine::call`.
//!
//! Two loops in one task. The [`reader`] reads messages in order, starts calls and
//! queries, and passes subscriptions on; the [`writer`] owns the engine's connection and the socket's
//! write half, and sends everything. Calls run concurrently, but enter the engine's queue in
//! the order of their messages. The channels between them are bounded, so a peer that does not read
//! is eventually not read from.

mod admission;
mod message;
mod reader;
mod running;
mod writer;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use abide_schema::caller::Credential;
use abide_schema::wire::{AUTHENTICATION_HEADER, AUTHENTICATION_OFF, SUBPROTOCOL, UpdateSide};
use abide_schema::{Code, Refusal, lowercase_first};
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Extension, State};
use axum::http::header::SEC_WEBSOCKET_PROTOCOL;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use futures_util::stream::SplitStream;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::access_log::AccessRecord;
use crate::app_state::{AppState, SessionExtension};
use crate::arrivals::Arrivals;
use crate::auth::access::SUBPROTOCOLS;
use crate::auth::authenticator::AuthSession;
use crate::connections::lifecycle::{ConnectionPermit, Phase};
use crate::problem::Problem;
use crate::{frames, limits};

use admission::Admissions;
pub use message::read;
use reader::{Reader, SessionEnd};
use running::RunningQueries;
use writer::{Command, OutgoingMessage, SocketSender, Writer};

/// Upgrades a request to a WebSocket.
pub(crate) async fn upgrade(
    State(app): State<AppState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    arrivals: Option<Extension<Arc<Arrivals>>>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    check_protocol(&headers)?;
    let upgrade = upgrade.map_err(|why| {
        let why = lowercase_first(&why.to_string());
        Refusal::new(Code::BadRequest, format!("this endpoint requires a WebSocket: {why}"))
            .hint("open ws://…/v1/ws with the subprotocol abide.v1")
    })?;
    let upgrade = upgrade
        .protocols(SUBPROTOCOLS)
        .max_message_size(limits::OVERSIZE_BYTES)
        .max_frame_size(limits::OVERSIZE_BYTES)
        .read_buffer_size(limits::READ_BUFFER_BYTES)
        .write_buffer_size(limits::WRITE_BUFFER_BYTES);
    let Extension(arrivals) = arrivals.unwrap_or_default();
    arrivals.begin(app.engine.buffers().account(&session.caller));
    let credential = session.caller.credential().map(|it| &it.credential);
    let is_open = matches!(credential, Some(Credential::Anonymous));
    let mut response =
        upgrade.on_upgrade(|socket| run_session(app, session, socket, arrivals, place));
    if is_open {
        let value = HeaderValue::from_static(AUTHENTICATION_OFF);
        response.headers_mut().insert(AUTHENTICATION_HEADER, value);
    }
    Ok(response)
}

/// Refuses a client that offers only other versions of the protocol, and says which side is older. A client that offers none
/// is not an SDK.
///
/// # Errors
/// `bad_request`.
fn check_protocol(headers: &HeaderMap) -> Result<(), Refusal> {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|it| it.to_str().ok());
    let offered: Vec<&str> = offered.flat_map(|it| it.split(',')).map(str::trim).collect();
    if offered.iter().any(|protocol| SUBPROTOCOLS.contains(protocol)) {
        return Ok(());
    }
    let other = offered.iter().find_map(|other| Some((other, UpdateSide::of(other)?)));
    let Some((other, side)) = other else { return Ok(()) };
    let version = env!("CARGO_PKG_VERSION");
    let detail =
        format!("the client speaks {other}, and this server of version {version} {SUBPROTOCOL}");
    Err(Refusal::new(Code::BadRequest, detail).hint(match side {
        UpdateSide::Own => "the server is older: update the server (docs/upgrade.md)",
        UpdateSide::Other => "the client is older: update the SDK that connects (docs/upgrade.md)",
    }))
}

/// Runs a session until it ends, or until the shutdown takes too long. `place` is its place among the connections.
async fn run_session(
    app: AppState,
    session: AuthSession,
    socket: WebSocket,
    arrivals: Arc<Arrivals>,
    place: ConnectionPermit,
) {
    let counted = app.lifecycle.count_websocket();
    let record = AccessRecord::of_websocket(&session.caller);
    tokio::select! {
        () = run_halves(&app, session, socket, arrivals) => {}
        () = app.lifecycle.wait_for(Phase::Over) => {}
    }
    drop((record, counted, place));
}

/// Runs both halves of a session to their end, then closes the socket.
async fn run_halves(
    app: &AppState,
    session: AuthSession,
    socket: WebSocket,
    arrivals: Arc<Arrivals>,
) {
    let (sink, mut stream) = socket.split();
    let (answers, to_send) = mpsc::channel::<OutgoingMessage>(limits::IN_FLIGHT);
    let (commands, to_do) = mpsc::channel::<Command>(limits::COMMANDS);
    // The writer sets it when a blocked write succeeds. A peer that only reads is then not ended as silent.
    let moved = AtomicBool::new(false);
    let account = app.engine.buffers().account(&session.caller);
    let hello = frames::encode_hello(&app.engine, &session.caller);
    let writer = Writer {
        connection: app.engine.connect(&session.caller),
        sender: SocketSender::new(sink, to_send, &moved, account.clone()),
        commands: to_do,
    };
    let reader = Reader {
        engine: app.engine.clone(),
        authenticator: app.authenticator.clone(),
        session,
        lifecycle: app.lifecycle.clone(),
        admissions: Admissions::new(arrivals, app.parse_turns.clone(), account),
        full: Arc::default(),
        answers,
        commands,
        running: RunningQueries::default(),
        moved: &moved,
    };
    let mut writer = pin!(writer.run(hello));
    let end = tokio::select! {
        end = reader.run(&mut stream) => end,
        _ = &mut writer => return, // The socket failed.
    };
    let (code, reason) = match end {
        SessionEnd::Gone => return,
        SessionEnd::Closed => {
            // Reading on lets the WebSocket library answer the peer's close frame.
            let _ = timeout(limits::CLOSE_TIMEOUT, read_until_closed(&mut stream)).await;
            return;
        }
        SessionEnd::Close(code, reason) => (code, reason),
    };
    // The reader has ended, so the writer ends when all pending work is answered.
    let Some(mut sink) = writer.await else { return };
    let close = CloseFrame { code, reason: reason.into() };
    if sink.send(Message::Close(Some(close))).await.is_ok() {
        // A peer that does not answer in time is abandoned.
        let _ = timeout(limits::CLOSE_TIMEOUT, read_until_closed(&mut stream)).await;
    }
    if code != close_code::AWAY {
        tracing::info!(
            name: "websocket_closed",
            code,
            reason,
            "a websocket was closed with an error"
        );
    }
}

/// Reads until the peer has closed too.
async fn read_until_closed(stream: &mut SplitStream<WebSocket>) {
    while let Some(Ok(_)) = stream.next().await {}
}
