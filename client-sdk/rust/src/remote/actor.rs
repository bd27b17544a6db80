//! The task that owns the connection: it sends requests, dispatches messages, and reconnects after a
//! lost connection.
//!
//! A call is sent again, unchanged, on each new connection until it is answered or its caller gives
//! up; its request id makes that safe. A subscription resumes from its seq.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use abide_schema::{Code, Seq};
use futures_util::FutureExt as _;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::dial::{Dial, Dialing, Socket};
use super::frame::{Frame, Op, cut};
use super::mailbox::Mailbox;
use super::socket_connection::SocketConnection;
use super::subscriptions::Subscriptions;
use crate::Error;
use crate::backend::{
    AppliedCall, Attempt, BackendReply, Backoff, RawResult, Start, SubscriptionQuery,
};

/// How long to wait for the other side after a close frame.
const CLOSING: Duration = Duration::from_secs(1);

/// A pending request.
#[derive(Debug)]
struct PendingRequest {
    text: Utf8Bytes,
    is_query: bool,
    reply: oneshot::Sender<Attempt>,
    /// Whether it was sent on this connection.
    sent: bool,
    /// Whether it was sent on an earlier connection.
    uncertain: bool,
}

/// How a connection ended.
enum ConnectionEnd {
    /// The connection is lost, for this reason.
    Lost(String),
    /// The client is closed.
    Closed(Closed),
}

/// How a client was closed.
struct Closed {
    /// The error that all pending requests get.
    reason: Error,
    /// The caller of `close` waits for this.
    done: Option<oneshot::Sender<()>>,
}

/// The commands of handles and consumers.
#[derive(Debug)]
pub(crate) enum Command {
    Ask { id: u64, text: String, is_query: bool, reply: oneshot::Sender<Attempt> },
    Cancel { id: u64 },
    Subscribe { key: u64, query: SubscriptionQuery, start: Start, mailbox: Arc<Mailbox> },
    Resume { key: u64, start: Start },
    Unsubscribe { key: u64 },
    Close { done: oneshot::Sender<()> },
}

/// State that the actor shares with its handles.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(super) reconnects: AtomicU64,
    pub(super) connected: watch::Sender<bool>,
    /// Why there is no connection at the moment.
    pub(super) last_error: Mutex<Option<String>>,
    /// The namespace of the caller, from the first message of the last connection.
    pub(super) namespace: Mutex<Option<String>>,
    /// Why the client has ended.
    pub(super) close_reason: OnceLock<Error>,
}

pub(crate) struct Actor {
    dial: Dial,
    commands: UnboundedReceiver<Command>,
    shared: Arc<Shared>,
    /// In the order of the requests, which is the order in which they are sent.
    requests: BTreeMap<u64, PendingRequest>,
    subscriptions: Subscriptions,
    backoff: Backoff,
}

impl Actor {
    pub(crate) fn new(
        dial: Dial,
        commands: UnboundedReceiver<Command>,
        shared: Arc<Shared>,
    ) -> Actor {
        Actor {
            dial,
            commands,
            shared,
            requests: BTreeMap::new(),
            subscriptions: Subscriptions::default(),
            backoff: Backoff::new(),
        }
    }

    /// Runs until it is closed, or the last handle is dropped.
    pub(crate) async fn run(mut self, mut socket: Socket) {
        let closed = loop {
            match self.serve_connection(&mut socket).await {
                ConnectionEnd::Closed(closed) => {
                    // A server that does not answer in time is abandoned.
                    let _ = timeout(CLOSING, socket.close(None)).await;
                    break closed;
                }
                ConnectionEnd::Lost(why) => {
                    tracing::info!(
                        name: "connection_lost",
                        %why,
                        "the connection to the server was lost"
                    );
                    // Completes a close handshake, if one was under way; nothing else can be saved.
                    let _ = socket.close(None).now_or_never();
                    drop(socket);
                    self.set_last_error(Some(why));
                }
            }
            match self.reconnect().await {
                Ok(made) => socket = made,
                Err(closed) => break closed,
            }
            self.set_last_error(None);
            self.shared.reconnects.fetch_add(1, Ordering::Relaxed);
        };
        self.end(&closed.reason);
        if let Some(done) = closed.done {
            // The caller of close may have stopped waiting.
            let _ = done.send(());
        }
    }

    /// Serves one connection until it ends.
    async fn serve_connection(&mut self, socket: &mut Socket) -> ConnectionEnd {
        let mut connection = SocketConnection::new(socket);
        for request in self.requests.values_mut() {
            request.uncertain |= request.sent;
            request.sent = true;
            connection.send(request.text.clone());
        }
        self.subscriptions.restart_all(&mut connection);
        loop {
            let retry_at = self.subscriptions.retry_at();
            if retry_at.is_some_and(|at| at <= Instant::now()) {
                self.subscriptions.retry(&mut connection);
                continue;
            }
            let timer = retry_at.map_or(connection.wake_at(), |at| at.min(connection.wake_at()));
            tokio::select! {
                biased;
                received = poll_fn(|context| connection.poll(context)) => match received {
                    Ok(Some(text)) => {
                        if let Err(reason) = self.handle_message(&text, &mut connection) {
                            return ConnectionEnd::Closed(Closed { reason, done: None });
                        }
                    }
                    Ok(None) => {}
                    Err(why) => return ConnectionEnd::Lost(why),
                },
                command = self.commands.recv() => {
                    if let Err(end) = self.handle_command(command, Some(&mut connection)) {
                        return end;
                    }
                }
                () = sleep_until(timer) => {
                    if let Err(why) = connection.check() {
                        return ConnectionEnd::Lost(why);
                    }
                }
            }
            // A busy connection must not delay commands.
            while let Ok(command) = self.commands.try_recv() {
                if let Err(end) = self.handle_command(Some(command), Some(&mut connection)) {
                    return end;
                }
            }
        }
    }

    /// Reconnects, however long that takes.
    async fn reconnect(&mut self) -> Result<Socket, Closed> {
        let mut dialing = self.schedule_dial();
        loop {
            tokio::select! {
                made = &mut dialing => match made {
                    Ok(socket) => return Ok(socket),
                    Err(reason) if is_final(&reason) => return Err(Closed { reason, done: None }),
                    Err(error) => {
                        let why = format!("{error:#}");
                        tracing::debug!(%why, "reconnect failed; retrying");
                        self.set_last_error(Some(why));
                        dialing = self.schedule_dial();
                    }
                },
                command = self.commands.recv() => match self.handle_command(command, None) {
                    Err(ConnectionEnd::Closed(closed)) => return Err(closed),
                    Err(ConnectionEnd::Lost(_)) | Ok(()) => {}
                },
            }
        }
    }

    fn schedule_dial(&mut self) -> Dialing {
        let pause = self.backoff.next();
        let dialing = (self.dial)();
        Box::pin(async move {
            sleep(pause).await;
            dialing.await
        })
    }

    /// Executes a command, on the connection if there is one.
    fn handle_command(
        &mut self,
        command: Option<Command>,
        connection: Option<&mut SocketConnection<'_>>,
    ) -> Result<(), ConnectionEnd> {
        match command {
            None => {
                let closed = Closed { reason: Error::Closed, done: None };
                return Err(ConnectionEnd::Closed(closed));
            }
            Some(Command::Close { done }) => {
                let closed = Closed { reason: Error::Closed, done: Some(done) };
                return Err(ConnectionEnd::Closed(closed));
            }
            Some(Command::Ask { id, text, is_query, reply }) => {
                let text = Utf8Bytes::from(text);
                let sent = connection.map(|connection| connection.send(text.clone())).is_some();
                let request = PendingRequest { text, is_query, reply, sent, uncertain: false };
                self.requests.insert(id, request);
            }
            Some(Command::Cancel { id }) => {
                let request = self.requests.remove(&id);
                if let (Some(request), Some(connection)) = (request, connection)
                    && request.is_query
                {
                    connection.send(format!(r#"{{"op":"cancel","id":"{id}"}}"#));
                }
            }
            Some(Command::Subscribe { key, query, start, mailbox }) => {
                self.subscriptions.add(key, query, start, mailbox, connection);
            }
            Some(Command::Resume { key, start }) => {
                self.subscriptions.resume(key, start, connection)
            }
            Some(Command::Unsubscribe { key }) => self.subscriptions.remove(key, connection),
        }
        Ok(())
    }

    /// Dispatches a message of the server.
    fn handle_message(
        &mut self,
        text: &str,
        connection: &mut SocketConnection<'_>,
    ) -> Result<(), Error> {
        let frame: Frame = serde_json::from_str(text).map_err(|why| {
            // The reason quotes what was sent.
            Error::Protocol { why: format!("cannot parse a message: {}", cut(&why.to_string())) }
        })?;
        self.backoff = Backoff::new();
        match frame.op {
            Op::Snapshot => self.subscriptions.handle_snapshot(frame, connection),
            Op::Delta => self.subscriptions.handle_delta(frame, connection),
            Op::Rerun => self.subscriptions.handle_rerun(frame, connection),
            Op::Progress => self.subscriptions.handle_progress(&frame),
            Op::Result | Op::Rows => self.handle_answer(frame),
            Op::Explanation => self.handle_explanation(&frame, text),
            Op::Error => self.handle_refusal(&frame),
            Op::Hello => self.handle_hello(&frame),
            Op::Pong | Op::Unknown => {}
        }
        Ok(())
    }

    /// The first message of a connection.
    fn handle_hello(&mut self, frame: &Frame) {
        let namespace = frame.namespace.clone().unwrap_or_default();
        let mut shared = self.shared.namespace.lock().unwrap_or_else(PoisonError::into_inner);
        *shared = Some(namespace);
        self.subscriptions.handle_hello(frame);
    }

    fn handle_answer(&mut self, mut frame: Frame) {
        let Some(request) = self.take_request(&frame) else { return };
        let seq = frame.seq.unwrap_or(Seq::ZERO);
        let duplicate = frame.duplicate;
        let reply = if frame.op == Op::Rows {
            let rows = frame.take_rows().collect();
            let columns =
                frame.columns.into_iter().map(|column| column.into_column().name).collect();
            BackendReply::Rows { seq, columns, rows }
        } else if let Some(results) = frame.results {
            let results = results
                .into_iter()
                .map(|one| AppliedCall { seq: one.seq, result: RawResult::from_wire(one.result) });
            BackendReply::Batch { seq, duplicate, results: results.collect() }
        } else {
            BackendReply::Called { seq, duplicate, result: RawResult::from_wire(frame.result) }
        };
        request.finish(Ok(reply));
    }

    fn handle_explanation(&mut self, frame: &Frame, text: &str) {
        let Some(request) = self.take_request(frame) else { return };
        let explanation =
            serde_json::from_str(text).map(|read| BackendReply::Explained(Box::new(read)));
        request.finish(explanation.map_err(|why| Error::decode("the explanation", why)));
    }

    fn handle_refusal(&mut self, frame: &Frame) {
        let refusal = frame.refusal();
        if let Some(request) = self.take_request(frame) {
            request.finish(Err(refusal.into()));
        } else if frame.id.is_none() && refusal.code == Code::Unauthenticated {
            // The server closes the connection; its answer to the next one counts.
            tracing::debug!(%refusal, "the credentials are no longer valid");
        } else if !self.subscriptions.handle_refusal(frame.id.as_deref(), refusal) {
            let detail = frame.detail.as_deref().map(cut);
            tracing::warn!(
                name: "request_unknown",
                id = ?frame.id,
                ?detail,
                "the server refused an unknown or abandoned request"
            );
        }
    }

    fn take_request(&mut self, frame: &Frame) -> Option<PendingRequest> {
        let id = frame.id.as_deref()?.parse().ok()?;
        self.requests.remove(&id)
    }

    fn set_last_error(&self, why: Option<String>) {
        self.shared.connected.send_replace(why.is_none());
        *self.shared.last_error.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn end(&mut self, close_reason: &Error) {
        // Set once: the actor ends once.
        let _ = self.shared.close_reason.set(close_reason.clone());
        for (_, request) in std::mem::take(&mut self.requests) {
            request.finish(Err(close_reason.clone()));
        }
        self.subscriptions.end(close_reason);
        self.commands.close();
        // Replies to later commands are dropped; subscriptions must be ended explicitly.
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Subscribe { mailbox, .. } = command {
                mailbox.end(close_reason.clone());
            }
        }
        // Last: those who wait for a new connection find out first that there will be none.
        self.shared.connected.send_replace(false);
    }
}

impl PendingRequest {
    fn finish(self, outcome: Result<BackendReply, Error>) {
        // The caller may have stopped waiting.
        let _ = self.reply.send(Attempt { outcome, uncertain: self.uncertain });
    }
}

/// A retry would not help: the server rejected the credentials, or speaks another protocol.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::IncompatibleVersion { .. })
        || matches!(error.code(), Some(Code::Unauthenticated | Code::Denied))
}
