//! The reading half: turns messages into running calls, and commands for the writer of the socket.
//!
//! It decides what a socket error means, when a session ends, and the order of calls: each is polled once before the
//! next message is read (`Reader::start`). A call goes on in `Engine::call`; its answer comes back to the same task,
//! is encoded by `frames.rs`, and goes to `writer.rs`.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_engine::{Engine, Start};
use abide_schema::wire::ClientMessage;
use abide_schema::{Code, Refusal, SEE_LOG, Seq, lowercase_first};
use axum::extract::ws::{Message, WebSocket, close_code};
use futures_util::stream::SplitStream;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Map, Value as JsonValue};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Error as SocketError;

use super::admission::{Admission, Admissions};
use super::message;
use super::running::RunningQueries;
use super::writer::{Command, OutgoingMessage, Subscribe};
use crate::access_log::MessageRecord;
use crate::auth::authenticator::{AuthSession, Authenticator};
use crate::connections::lifecycle::{Lifecycle, Phase};
use crate::connections::parse_turns::begin;
use crate::{frames, limits};

/// An answered message: the text of the answer, and what the message has taken.
struct Answered {
    text: String,
    admission: Admission,
}

impl Answered {
    /// A refusal is encoded as the error of the message with this id.
    fn new(id: &str, outcome: Result<String, Refusal>, admission: Admission) -> Answered {
        let text = outcome.unwrap_or_else(|refusal| frames::encode_error(Some(id), &refusal));
        Answered { text, admission }
    }
}

/// The writer has ended, and with it the connection.
struct WriterGone;

/// How a session ended.
pub(super) enum SessionEnd {
    /// The peer has disconnected, or was silent for too long: it gets no close frame.
    Gone,
    /// The peer closed.
    Closed,
    /// The server closes, with a code of RFC 6455 and a reason.
    Close(u16, &'static str),
}

/// The reading half of a session.
pub(super) struct Reader<'a> {
    pub(super) engine: Engine,
    pub(super) authenticator: Authenticator,
    pub(super) session: AuthSession,
    pub(super) lifecycle: Lifecycle,
    pub(super) admissions: Admissions,
    /// Notified when there is no room for the result of a call.
    pub(super) full: Arc<Notify>,
    pub(super) answers: mpsc::Sender<OutgoingMessage>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) running: RunningQueries,
    /// A blocked write succeeded: the peer is alive, even if silent.
    pub(super) moved: &'a AtomicBool,
}

impl Reader<'_> {
    /// Reads messages until either side closes. Afterwards nothing is read, and its ends of the
    /// channels are dropped.
    pub(super) async fn run(mut self, stream: &mut SplitStream<WebSocket>) -> SessionEnd {
        let lifecycle = self.lifecycle.clone();
        let mut draining = pin!(lifecycle.wait_for(Phase::Draining));
        let authenticator = self.authenticator.clone();
        let mut invalid = pin!(authenticator.until_invalid(self.session.clone()));
        loop {
            let message = tokio::select! {
                () = &mut draining => {
                    return SessionEnd::Close(close_code::AWAY, "the server is shutting down");
                }
                refusal = &mut invalid => return self.end_invalid(&refusal).await,
                () = self.full.notified() => return SessionEnd::Close(close_code::AGAIN, UNREAD),
                message = timeout(limits::SILENCE_TIMEOUT, stream.next()) => message,
            };
            let message = match message {
                Err(_) if self.moved.swap(false, Ordering::Relaxed) => continue,
                Err(_) | Ok(None) => return SessionEnd::Gone,
                Ok(Some(Err(why))) => return self.end_broken(why).await,
                Ok(Some(Ok(message))) => message,
            };
            // Once a revocation is acknowledged, no later message may use the credential.
            if let Err(refusal) = authenticator.check(&mut self.session).await {
                return self.end_invalid(&refusal).await;
            }
            let taken = match message {
                Message::Text(text) => self.handle(&text).await,
                Message::Binary(_) => {
                    self.admissions.discard();
                    let refusal = Refusal::new(Code::BadRequest, "the message is binary")
                        .hint("abide.v1 is one JSON object per text message");
                    self.answer(frames::encode_error(None, &refusal)).await
                }
                Message::Ping(payload) => {
                    self.admissions.subtract_control(&payload);
                    // The library's pong waits for the socket like other answers: a client that does not read them is
                    // not read from.
                    self.send(OutgoingMessage { text: None, _admission: None }).await
                }
                Message::Pong(payload) => {
                    self.admissions.subtract_control(&payload);
                    Ok(())
                }
                Message::Close(_) => return SessionEnd::Closed,
            };
            if let Err(WriterGone) = taken {
                return SessionEnd::Gone;
            }
        }
    }

    /// The credentials are no longer valid.
    async fn end_invalid(&self, refusal: &Refusal) -> SessionEnd {
        match self.answer(frames::encode_error(None, refusal)).await {
            Ok(()) => SessionEnd::Close(close_code::POLICY, "the credentials are no longer valid"),
            Err(WriterGone) => SessionEnd::Gone,
        }
    }

    /// Handles a message: completes or starts the work.
    async fn handle(&self, text: &str) -> Result<(), WriterGone> {
        let begun = Instant::now();
        tracing::trace!(name: "arrived", bytes = text.len(), "a message has arrived");
        let admitted = tokio::select! {
            admitted = self.admissions.admit(&self.session.caller, text) => admitted,
            () = self.answers.closed() => return Err(WriterGone),
        };
        let (message, admission) = match admitted {
            Ok(admitted) => admitted,
            Err((id, refusal)) => {
                return self.answer(frames::encode_error(id.as_deref(), &refusal)).await;
            }
        };
        tracing::trace!(name: "admitted", "the message is parsed and admitted");
        let engine = self.engine.clone();
        let caller = self.session.caller.clone();
        match message {
            ClientMessage::Call { id, reducer, args, request_id } => {
                let record = MessageRecord::new("call", &caller, begun);
                self.start(id, admission, |id, admission| async move {
                    let done = engine.call(&caller, &reducer, args, request_id.as_deref()).await;
                    if let Some(record) = record {
                        record.write(done.as_ref().map(|done| done.seq));
                    }
                    let text = done.map(|done| frames::encode_call(Some(&id), &done));
                    Some(Answered::new(&id, text, admission))
                });
            }
            ClientMessage::Batch { id, calls, request_id } => {
                let record = MessageRecord::new("batch", &caller, begun);
                self.start(id, admission, |id, admission| async move {
                    let done = engine.batch(&caller, calls, request_id.as_deref()).await;
                    if let Some(record) = record {
                        record.write(done.as_ref().map(|done| done.seq));
                    }
                    let text = done.map(|done| frames::encode_batch(Some(&id), &done));
                    Some(Answered::new(&id, text, admission))
                });
            }
            ClientMessage::Sql { id, sql, params, as_of } => {
                self.query(id, admission, sql, params, as_of);
            }
            ClientMessage::Explain { id, sql, params } => {
                self.start_cancellable(id, admission, |id, admission| async move {
                    let explained = engine.explain(&caller, &sql, &params).await;
                    let text = explained.map(|it| frames::encode_explanation(Some(&id), &it));
                    Answered::new(&id, text, admission)
                });
            }
            ClientMessage::Subscribe {
                id,
                sql,
                params,
                after_seq,
                timeline,
                as_of,
                checksum,
                explain,
            } => {
                let start = match Start::from_message(after_seq, as_of) {
                    Ok(start) => start,
                    Err(refusal) => {
                        return self.answer(frames::encode_error(Some(&id), &refusal)).await;
                    }
                };
                let subscribe = Subscribe { id, sql, params, start, timeline, checksum, explain };
                return self.send_command(Command::Subscribe(Box::new(subscribe), admission)).await;
            }
            ClientMessage::Unsubscribe { id } => {
                return self.send_command(Command::Unsubscribe { id }).await;
            }
            ClientMessage::Cancel { id } => self.running.cancel(&id),
            ClientMessage::Ping => return self.answer(frames::encode_pong()).await,
            // A resume names its seq; the server keeps no acknowledgements.
            ClientMessage::Ack { .. } => {}
        }
        Ok(())
    }

    /// Starts a query. Its result counts against the caller's buffers until it is sent.
    fn query(
        &self,
        id: String,
        admission: Admission,
        sql: String,
        params: Map<String, JsonValue>,
        as_of: Option<Seq>,
    ) {
        let engine = self.engine.clone();
        let authenticator = self.authenticator.clone();
        let mut session = self.session.clone();
        self.start_cancellable(id, admission, |id, mut admission| async move {
            let caller = session.caller.clone();
            let sink = frames::EncodedResult::for_message(&id, engine.buffers().reserve(&caller));
            let result = engine.read_rows(&caller, &sql, &params, as_of, sink).await;
            // The credential may have been revoked while the query waited for a reader.
            let result = match result {
                Ok(result) => authenticator.check(&mut session).await.map(|()| result),
                refused => refused,
            };
            let text = result.and_then(frames::EncodedResult::into_text).map(|text| {
                let (text, reservation) = text.join();
                admission.hold_result(reservation);
                text
            });
            Answered::new(&id, text, admission)
        });
    }

    /// Starts a query that ends without an answer when the client cancels it, or when the connection has ended. Dropping it
    /// frees its reader.
    fn start_cancellable<F: Future<Output = Answered> + Send + 'static>(
        &self,
        id: String,
        admission: Admission,
        query: impl FnOnce(String, Admission) -> F,
    ) {
        let running = self.running.begin(&id);
        let answers = self.answers.clone();
        self.start(id, admission, |id, admission| {
            let query = query(id, admission);
            async move {
                tokio::select! {
                    answer = query => Some(answer),
                    () = running.cancelled() => None,
                    () = answers.closed() => None,
                }
            }
        });
    }

    /// Starts the work of an admitted message, in a separate task. It may have no answer.
    ///
    /// The first poll happens immediately, and a call reaches the engine's queue in its first poll. So calls are executed
    /// in the order of their messages. A call that is queued runs even if its connection ends.
    fn start<F: Future<Output = Option<Answered>> + Send + 'static>(
        &self,
        id: String,
        mut admission: Admission,
        work: impl FnOnce(String, Admission) -> F,
    ) {
        let answers = self.answers.clone();
        let full = Arc::clone(&self.full);
        let turn = admission.take_turn();
        let work = work(id.clone(), admission);
        let mut work = Box::pin(async move {
            // Without this, a panicked task would leave the client waiting for its answer.
            let done = begin(turn, AssertUnwindSafe(work).catch_unwind()).await;
            let (text, admission) = match done {
                Ok(None) => return,
                Ok(Some(Answered { text, mut admission })) => {
                    if admission.count_answer(&text).is_err() {
                        // A committed call cannot be refused: the connection ends without its result.
                        full.notify_one();
                        return;
                    }
                    (text, Some(admission))
                }
                Err(_) => (frames::encode_error(Some(&id), &internal_error()), None),
            };
            tracing::trace!(name: "answered", bytes = text.len(), "the message has an answer");
            // If the writer has ended, the answer is dropped.
            let _ = answers.send(OutgoingMessage { text: Some(text), _admission: admission }).await;
        });
        if work.as_mut().now_or_never().is_none() {
            tokio::spawn(work);
        }
    }

    async fn send_command(&self, command: Command) -> Result<(), WriterGone> {
        self.commands.send(command).await.map_err(|_| WriterGone)
    }

    async fn answer(&self, text: String) -> Result<(), WriterGone> {
        self.send(OutgoingMessage { text: Some(text), _admission: None }).await
    }

    /// Waits while [`limits::IN_FLIGHT`] messages wait for the socket.
    async fn send(&self, message: OutgoingMessage) -> Result<(), WriterGone> {
        self.answers.send(message).await.map_err(|_| WriterGone)
    }

    /// After a socket error nothing more can be read.
    async fn end_broken(&self, why: axum::Error) -> SessionEnd {
        let why = why.into_inner();
        let (code, refusal, reason) = match why.downcast_ref::<SocketError>() {
            Some(SocketError::Capacity(_)) => {
                (close_code::SIZE, message::too_large(), "a message was too large")
            }
            Some(SocketError::Utf8(_)) => {
                let refusal = Refusal::new(Code::BadRequest, "the message is not UTF-8")
                    .hint("encode text as UTF-8");
                (close_code::INVALID, refusal, "a message was not UTF-8")
            }
            Some(SocketError::Io(why)) if let Some(refusal) = find_refusal(why) => {
                (close_code::AGAIN, refusal.clone(), UNREAD)
            }
            Some(SocketError::Protocol(why)) => {
                let refusal = Refusal::new(Code::BadRequest, lowercase_first(&why.to_string()));
                (close_code::PROTOCOL, refusal, "the frames violate RFC 6455")
            }
            _ => {
                tracing::debug!(%why, "a websocket ended early");
                return SessionEnd::Gone;
            }
        };
        match self.answer(frames::encode_error(None, &refusal)).await {
            Ok(()) => SessionEnd::Close(code, reason),
            Err(WriterGone) => SessionEnd::Gone,
        }
    }
}

/// The close reason when there is no room for data of the caller.
const UNREAD: &str = "too many bytes of the caller wait to be sent or received";

/// Returns the refusal that stopped reading from a socket.
fn find_refusal(why: &std::io::Error) -> Option<&Refusal> {
    why.get_ref()?.downcast_ref()
}

fn internal_error() -> Refusal {
    tracing::error!(name: "message_panicked", "processing a message panicked");
    Refusal::new(Code::Internal, "the server failed with an internal error").hint(SEE_LOG)
}
