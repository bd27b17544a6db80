//! The reading half: turns messages into running calls, and commands for the writer.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use abide_engine::buffers::{Account, Reservation, size_of_rows};
use abide_engine::{Engine, Start};
use abide_schema::limits::COUNTED_BYTES;
use abide_schema::wire::ClientMessage;
use abide_schema::{Code, Refusal, SEE_LOG, Seq};
use axum::extract::ws::{Message, WebSocket, close_code};
use futures_util::stream::SplitStream;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Map, Value as JsonValue};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Error as SocketError;

use super::message;
use super::running::RunningQueries;
use super::writer::{Command, OutgoingMessage, Subscribe};
use crate::arrivals::Arrivals;
use crate::auth::authenticator::{AuthSession, Authenticator};
use crate::connections::lifecycle::{Lifecycle, Phase};
use crate::connections::read_limiter::ReadLimiter;
use crate::{frames, limits, unsent};

/// The text of an answer, and what counts it if it is large.
type ResponseFrame = (String, Option<Reservation>);

/// The writer has ended, and with it the connection.
struct WriterGone;

/// How a session ended.
pub(super) enum SessionEnd {
    /// The peer has disconnected.
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
    pub(super) read_limiter: ReadLimiter,
    pub(super) session: AuthSession,
    pub(super) lifecycle: Lifecycle,
    /// The account that counts answers.
    pub(super) account: Account,
    /// Counts the message that arrives.
    pub(super) arrivals: Arc<Arrivals>,
    /// Notified when there is no room for the result of a call.
    pub(super) full: Arc<Notify>,
    pub(super) answers: mpsc::Sender<OutgoingMessage>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) in_flight: Arc<Semaphore>,
    pub(super) running: RunningQueries,
    /// A blocked write succeeded: the peer is alive, even if silent.
    pub(super) moved: &'a AtomicBool,
}

impl Reader<'_> {
    /// Reads messages until either side closes. Afterwards nothing is read, and its ends of the
    /// channels are dropped.
    pub(super) async fn run(mut self, stream: &mut SplitStream<WebSocket>) -> SessionEnd {
        let lifecycle = self.lifecycle.clone();
        let mut draining = pin!(lifecycle.until(Phase::Draining));
        let authenticator = self.authenticator.clone();
        let mut invalid = pin!(authenticator.until_invalid(self.session.clone()));
        loop {
            let message = tokio::select! {
                () = &mut draining => {
                    return SessionEnd::Close(close_code::AWAY, "the server is shutting down");
                }
                refusal = &mut invalid => return self.put_out(&refusal).await,
                () = self.full.notified() => return SessionEnd::Close(close_code::AGAIN, UNREAD),
                message = timeout(limits::SILENCE_TIMEOUT, stream.next()) => message,
            };
            let message = match message {
                Err(_) if self.moved.swap(false, Ordering::Relaxed) => continue,
                Err(_) => return SessionEnd::Gone,
                Ok(None) => return SessionEnd::Gone,
                Ok(Some(Err(why))) => return self.broken(why).await,
                Ok(Some(Ok(message))) => message,
            };
            // Once a revocation is acknowledged, no later message may use the credential.
            if let Err(refusal) = authenticator.check(&mut self.session).await {
                return self.put_out(&refusal).await;
            }
            let taken = match message {
                Message::Text(text) => self.take(&text, self.arrivals.message()).await,
                Message::Binary(_) => {
                    drop(self.arrivals.message());
                    let refusal = Refusal::new(Code::BadRequest, "the message is binary")
                        .hint("abide.v1 is one JSON object per text message");
                    self.answer(frames::error(None, &refusal)).await
                }
                Message::Ping(payload) => {
                    self.arrivals.control(&payload);
                    // The library's pong waits for the socket like other answers: a client that does not read them is
                    // not read from.
                    self.send(OutgoingMessage { text: None, _room: None, _hold: None }).await
                }
                Message::Pong(payload) => {
                    self.arrivals.control(&payload);
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
    async fn put_out(&self, refusal: &Refusal) -> SessionEnd {
        match self.answer(frames::error(None, refusal)).await {
            Ok(()) => SessionEnd::Close(close_code::POLICY, "the credentials are no longer valid"),
            Err(WriterGone) => SessionEnd::Gone,
        }
    }

    /// Handles a message: completes or starts the work. The message is counted until its call is answered.
    async fn take(&self, text: &str, hold: Option<Reservation>) -> Result<(), WriterGone> {
        let permit = self.read_limiter.permit(&self.session.caller, text.len()).await;
        let read = message::read(text);
        // The rest may wait for this client to read, and must not block others.
        drop(permit);
        let message = match read {
            Ok(message) => message,
            Err((id, refusal)) => {
                return self.answer(frames::error(id.as_deref(), &refusal)).await;
            }
        };
        let weight = 1 + text.len() / limits::WEIGHT_BYTES;
        let (engine, caller) = (self.engine.clone(), self.session.caller.clone());
        match message {
            ClientMessage::Call { id, reducer, args, request_id } => {
                let named = id.clone();
                let call = async move {
                    let _counted = hold;
                    let done = engine.call(&caller, &reducer, args, request_id.as_deref()).await;
                    reply(&id, done.map(|done| frames::call(Some(&id), &done)))
                };
                self.start(weight, text.len(), named, call).await
            }
            ClientMessage::Batch { id, calls, request_id } => {
                let named = id.clone();
                let batch = async move {
                    let _counted = hold;
                    let done = engine.batch(&caller, calls, request_id.as_deref()).await;
                    reply(&id, done.map(|done| frames::batch(Some(&id), &done)))
                };
                self.start(weight, text.len(), named, batch).await
            }
            ClientMessage::Sql { id, sql, params, as_of } => {
                self.query(id, sql, params, as_of).await
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
                let start = match Start::of(after_seq, as_of) {
                    Ok(start) => start,
                    Err(refusal) => return self.answer(frames::error(Some(&id), &refusal)).await,
                };
                let subscribe = Subscribe { id, sql, params, start, timeline, checksum, explain };
                self.command(Command::Subscribe(subscribe)).await
            }
            ClientMessage::Unsubscribe { id } => self.command(Command::Unsubscribe { id }).await,
            ClientMessage::Explain { id, sql, params } => self.explain(id, sql, params).await,
            ClientMessage::Cancel { id } => {
                self.running.cancel(&id);
                Ok(())
            }
            ClientMessage::Ping => self.answer(frames::pong()).await,
            // A resume names its seq; the server keeps no acknowledgements.
            ClientMessage::Ack { .. } => Ok(()),
        }
    }

    /// Starts an explanation of a live query.
    async fn explain(
        &self,
        id: String,
        sql: String,
        params: Map<String, JsonValue>,
    ) -> Result<(), WriterGone> {
        let (engine, caller) = (self.engine.clone(), self.session.caller.clone());
        let named = id.clone();
        let explain = async move {
            let explained = engine.explain(&caller, &sql, &params).await;
            let frame = |explanation| frames::explanation(Some(id.clone()), explanation);
            (reply(&id, explained.map(frame)), None)
        };
        let explain = self.cancellable(&named, explain);
        self.start_counted(limits::QUERY_WEIGHT, 0, named, explain).await
    }

    /// Starts a query. Its result counts against the caller's buffers until it is sent.
    async fn query(
        &self,
        id: String,
        sql: String,
        params: Map<String, JsonValue>,
        as_of: Option<Seq>,
    ) -> Result<(), WriterGone> {
        let (engine, caller) = (self.engine.clone(), self.session.caller.clone());
        let (authenticator, mut session) = (self.authenticator.clone(), self.session.clone());
        let named = id.clone();
        let query = async move {
            let answer = engine.query(&caller, &sql, &params, as_of).await;
            // The credential may have been revoked while the query waited for a reader.
            let answer = match answer {
                Ok(answer) => authenticator.check(&mut session).await.map(|()| answer),
                refused => refused,
            };
            let counted = answer.and_then(|answer| {
                let mut hold = engine.buffers().reserve(&caller);
                let bytes = size_of_rows(&answer.rows);
                if bytes >= COUNTED_BYTES {
                    hold.grow(bytes)?;
                }
                Ok((frames::rows(Some(&id), &answer), hold))
            });
            match counted {
                Ok((text, hold)) => (text, Some(hold)),
                Err(refusal) => (frames::error(Some(&id), &refusal), None),
            }
        };
        let query = self.cancellable(&named, query);
        self.start_counted(limits::QUERY_WEIGHT, 0, named, query).await
    }

    /// A query that ends without an answer when the client cancels it, or when the connection has ended. Dropping it frees
    /// its reader.
    fn cancellable(
        &self,
        id: &str,
        query: impl Future<Output = ResponseFrame> + Send + 'static,
    ) -> impl Future<Output = Option<ResponseFrame>> + Send + 'static {
        let (running, answers) = (self.running.begin(id), self.answers.clone());
        async move {
            tokio::select! {
                answer = query => Some(answer),
                () = running.cancelled() => None,
                () = answers.closed() => None,
            }
        }
    }

    /// Starts work for a message of this size when there is room for it, in a separate task.
    ///
    /// The first poll happens immediately, and a call reaches the
    /// engine's queue in its first poll. So calls are executed in the order of their messages.
    async fn start(
        &self,
        weight: usize,
        bytes: usize,
        id: String,
        work: impl Future<Output = String> + Send + 'static,
    ) -> Result<(), WriterGone> {
        self.start_counted(weight, bytes, id, async move { Some((work.await, None)) }).await
    }

    /// Starts work that may have no answer, and whose answer is counted until it is written.
    async fn start_counted(
        &self,
        weight: usize,
        bytes: usize,
        id: String,
        work: impl Future<Output = Option<ResponseFrame>> + Send + 'static,
    ) -> Result<(), WriterGone> {
        let weight = weight.min(limits::IN_FLIGHT) as u32;
        let room = Arc::clone(&self.in_flight).acquire_many_owned(weight);
        let room = tokio::select! {
            room = room => room.ok(),
            () = self.answers.closed() => return Err(WriterGone),
        };
        let (answers, account) = (self.answers.clone(), self.account.clone());
        let full = Arc::clone(&self.full);
        let mut work = Box::pin(async move {
            // Without this, a panicked task would leave the client waiting for its answer.
            let done = AssertUnwindSafe(work).catch_unwind().await;
            let panicked = |_| Some((frames::error(Some(&id), &failed()), None));
            let Some((text, hold)) = done.unwrap_or_else(panicked) else { return };
            let hold = match hold {
                Some(hold) => Some(hold),
                // A committed call cannot be refused: the connection ends without its result.
                None => match unsent::count(&account, &text) {
                    Ok(hold) => hold,
                    Err(_) => return full.notify_one(),
                },
            };
            // If the writer has ended, the answer is dropped.
            let text = Some(text);
            let _ = answers.send(OutgoingMessage { text, _room: room, _hold: hold }).await;
        });
        let permit = self.read_limiter.permit(&self.session.caller, bytes).await;
        let begun = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        drop(permit);
        if begun.is_pending() {
            tokio::spawn(work);
        }
        Ok(())
    }

    async fn command(&self, command: Command) -> Result<(), WriterGone> {
        self.commands.send(command).await.map_err(|_| WriterGone)
    }

    async fn answer(&self, text: String) -> Result<(), WriterGone> {
        self.send(OutgoingMessage { text: Some(text), _room: None, _hold: None }).await
    }

    /// Waits while [`limits::IN_FLIGHT`] messages wait for the socket.
    async fn send(&self, message: OutgoingMessage) -> Result<(), WriterGone> {
        self.answers.send(message).await.map_err(|_| WriterGone)
    }

    /// After a socket error nothing more can be read.
    async fn broken(&self, why: axum::Error) -> SessionEnd {
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
            Some(SocketError::Io(why)) if let Some(refusal) = refusal_of(why) => {
                (close_code::AGAIN, refusal.clone(), UNREAD)
            }
            Some(SocketError::Protocol(why)) => {
                let refusal = Refusal::new(Code::BadRequest, why.to_string().to_lowercase());
                (close_code::PROTOCOL, refusal, "the frames violate RFC 6455")
            }
            _ => {
                tracing::debug!(%why, "a websocket ended early");
                return SessionEnd::Gone;
            }
        };
        match self.answer(frames::error(None, &refusal)).await {
            Ok(()) => SessionEnd::Close(code, reason),
            Err(WriterGone) => SessionEnd::Gone,
        }
    }
}

/// The close reason when there is no room for data of the caller.
const UNREAD: &str = "too many bytes of the caller wait to be sent or received";

/// The refusal that stopped reading from a socket.
fn refusal_of(why: &std::io::Error) -> Option<&Refusal> {
    why.get_ref()?.downcast_ref()
}

fn failed() -> Refusal {
    tracing::error!("processing a message panicked");
    Refusal::new(Code::Internal, "the server failed with an internal error").hint(SEE_LOG)
}

fn reply(id: &str, outcome: Result<String, Refusal>) -> String {
    outcome.unwrap_or_else(|refusal| frames::error(Some(id), &refusal))
}
