//! The writing half: owns the engine's connection and the socket's sink, and sends everything. It has nothing to do with the
//! writer of the engine.
//!
//! It decides the order on the socket: answers and pings do not wait for a subscription that starts, nor for the
//! next update, and what waits together leaves in one write.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_engine::buffers::Account;
use abide_engine::{Connection, Start, SubscribeRequest, Update};
use abide_schema::Refusal;
use axum::extract::ws::{Message, WebSocket};
use futures_util::stream::SplitSink;
use futures_util::{FutureExt as _, SinkExt as _};
use serde_json::{Map, Value as JsonValue};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::admission::Admission;
use crate::{frames, limits, unsent};

/// Commands from the reader. The writer executes them, because it owns the connection.
pub(super) enum Command {
    /// With what its message has taken until it starts.
    Subscribe(Box<Subscribe>, Admission),
    Unsubscribe {
        id: String,
    },
}

/// A subscription to start.
pub(super) struct Subscribe {
    pub(super) id: String,
    pub(super) sql: String,
    pub(super) params: Map<String, JsonValue>,
    pub(super) start: Start,
    pub(super) timeline: Option<String>,
    pub(super) checksum: bool,
    pub(super) explain: bool,
}

impl Subscribe {
    fn request(&self) -> SubscribeRequest<'_> {
        let Subscribe { id, sql, params, start, timeline, checksum, explain } = self;
        SubscribeRequest {
            id,
            sql,
            params,
            start: *start,
            timeline: timeline.as_deref(),
            checksum: *checksum,
            explain: *explain,
        }
    }
}

/// A message to the client, and what the message that it answers has taken until it is written.
pub(super) struct OutgoingMessage {
    /// `None` for a pong, which the WebSocket library has buffered when it read the ping.
    pub(super) text: Option<String>,
    pub(super) _admission: Option<Admission>,
}

/// The writing half of a session.
pub(super) struct Writer<'a> {
    pub(super) connection: Connection,
    pub(super) sender: SocketSender<'a>,
    pub(super) commands: mpsc::Receiver<Command>,
}

/// The next event of the connection.
enum WriterEvent {
    Update(Update),
    Command(Command),
}

/// Messages to send in addition to updates.
enum Outgoing {
    Answer(OutgoingMessage),
    Ping,
    End,
}

/// Why a session ends.
enum WriterStop {
    /// The socket failed, or the peer did not read for too long.
    Broken,
    /// The reader and all work that it started are done.
    Done,
}

impl<'a> Writer<'a> {
    /// Sends everything until the reader and all work that it started are done; returns the socket, so
    /// that it can be closed. `None` if it failed.
    pub(super) async fn run(mut self, hello: String) -> Option<SplitSink<WebSocket, Message>> {
        match self.send_all(hello).await {
            WriterStop::Broken => None,
            WriterStop::Done => Some(self.sender.sink),
        }
    }

    async fn send_all(&mut self, hello: String) -> WriterStop {
        if let Err(stop) = self.sender.send_text(hello).await {
            return stop;
        }
        loop {
            let done = match self.next().await {
                Ok(WriterEvent::Update(update)) => self.send_updates(update).await,
                Ok(WriterEvent::Command(command)) => self.execute(command).await,
                Err(stop) => return stop,
            };
            if let Err(stop) = done {
                return stop;
            }
        }
    }

    /// Waits for an update or a command, and sends answers meanwhile. The pending wait for the update is kept
    /// while they are sent.
    async fn next(&mut self) -> Result<WriterEvent, WriterStop> {
        let mut update = pin!(self.connection.next());
        loop {
            tokio::select! {
                update = &mut update => return Ok(WriterEvent::Update(update)),
                Some(command) = self.commands.recv() => return Ok(WriterEvent::Command(command)),
                outgoing = self.sender.next_outgoing() => self.sender.send_outgoing(outgoing).await?,
            }
        }
    }

    /// Sends an update together with those that already wait, in one write. This keeps up when commits
    /// are faster than writes to a socket.
    async fn send_updates(&mut self, mut update: Update) -> Result<(), WriterStop> {
        let mut bytes = 0;
        loop {
            let encoded = unsent::encode(&self.sender.account, update, frames::encode_update).await;
            // No room for too long: treated like a socket that accepts no data.
            let (text, hold) = encoded.ok_or(WriterStop::Broken)?;
            bytes += text.len();
            // Answers and pings are sent in between.
            let fits = bytes < limits::WRITE_BUFFER_BYTES;
            match fits.then(|| self.connection.try_next()).flatten() {
                Some(next) => {
                    self.sender.buffer(text).await?;
                    update = next;
                }
                None => {
                    let sent = self.sender.send_text(text).await;
                    drop(hold);
                    return sent;
                }
            }
        }
    }

    async fn execute(&mut self, command: Command) -> Result<(), WriterStop> {
        match command {
            Command::Subscribe(subscribe, admission) => {
                // From here on the subscription counts its parameters and its result.
                drop(admission);
                let request = subscribe.request();
                let subscribed = {
                    let mut subscribed = pin!(self.connection.subscribe(&request));
                    // Reading a large result takes time; answers do not wait for it.
                    loop {
                        tokio::select! {
                            subscribed = &mut subscribed => break subscribed,
                            outgoing = self.sender.next_outgoing() => self.sender.send_outgoing(outgoing).await?,
                        }
                    }
                };
                match subscribed {
                    Ok(()) => Ok(()), // The answer is the next update.
                    Err(refusal) => self.refuse(request.id, &refusal).await,
                }
            }
            Command::Unsubscribe { id } => {
                self.connection.unsubscribe(&id);
                Ok(())
            }
        }
    }

    async fn refuse(&mut self, id: &str, refusal: &Refusal) -> Result<(), WriterStop> {
        self.sender.send_text(frames::encode_error(Some(id), refusal)).await
    }
}

/// The socket's sink, with what is sent besides updates: answers and pings.
pub(super) struct SocketSender<'a> {
    sink: SplitSink<WebSocket, Message>,
    answers: mpsc::Receiver<OutgoingMessage>,
    pings: Interval,
    /// Set when a blocked write succeeded.
    moved: &'a AtomicBool,
    /// The account that counts texts being sent.
    account: Account,
}

impl<'a> SocketSender<'a> {
    pub(super) fn new(
        sink: SplitSink<WebSocket, Message>,
        answers: mpsc::Receiver<OutgoingMessage>,
        moved: &'a AtomicBool,
        account: Account,
    ) -> SocketSender<'a> {
        let mut pings = interval_at(Instant::now() + limits::PING_INTERVAL, limits::PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        SocketSender { sink, answers, pings, moved, account }
    }

    /// Waits until there is something to send. Cancelling the wait loses nothing.
    async fn next_outgoing(&mut self) -> Outgoing {
        tokio::select! {
            answer = self.answers.recv() => answer.map_or(Outgoing::End, Outgoing::Answer),
            _ = self.pings.tick() => Outgoing::Ping,
        }
    }

    /// Sends it.
    async fn send_outgoing(&mut self, outgoing: Outgoing) -> Result<(), WriterStop> {
        match outgoing {
            Outgoing::Answer(answer) => self.send_answers(answer).await,
            Outgoing::Ping => self.send(Message::Ping(Default::default())).await,
            Outgoing::End => Err(WriterStop::Done),
        }
    }

    /// Sends an answer together with those that already wait, in one write.
    async fn send_answers(&mut self, answer: OutgoingMessage) -> Result<(), WriterStop> {
        let mut answer = Some(answer);
        while let Some(OutgoingMessage { text, _admission: admission }) = answer {
            tracing::trace!(name: "sending", "the socket has an answer to send");
            let next = self.answers.try_recv().ok();
            match (text, &next) {
                (Some(text), Some(_)) => self.buffer(text).await?,
                (Some(text), None) => self.send_text(text).await?,
                (None, _) => self.flush().await?,
            }
            tracing::trace!(name: "written", "an answer is written or buffered");
            drop(admission);
            answer = next;
        }
        Ok(())
    }

    /// Buffers a message for the next write.
    async fn buffer(&mut self, text: String) -> Result<(), WriterStop> {
        self.sink.feed(Message::text(text)).await.map_err(|_| WriterStop::Broken)
    }

    async fn send_text(&mut self, text: String) -> Result<(), WriterStop> {
        self.send(Message::text(text)).await
    }

    async fn send(&mut self, message: Message) -> Result<(), WriterStop> {
        write(self.sink.send(message), self.moved).await
    }

    async fn flush(&mut self) -> Result<(), WriterStop> {
        write(self.sink.flush(), self.moved).await
    }
}

/// Waits until it is written. Records that a blocked write succeeded.
async fn write(
    mut writing: impl Future<Output = Result<(), axum::Error>> + Unpin,
    moved: &AtomicBool,
) -> Result<(), WriterStop> {
    let written = match (&mut writing).now_or_never() {
        Some(written) => written,
        None => {
            let written = writing.await;
            moved.store(true, Ordering::Relaxed);
            written
        }
    };
    written.map_err(|_| WriterStop::Broken)
}
