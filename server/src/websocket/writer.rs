//! The writing half: owns the engine's connection and the socket's sink, and tells everything.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use abide_engine::Connection;
use abide_schema::{Refusal, Seq};
use axum::extract::ws::{Message, WebSocket};
use futures_util::SinkExt as _;
use futures_util::stream::SplitSink;
use serde_json::{Map, Value as JsonValue};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::Answer;
use crate::{frames, limits};

/// What the reader passes on, because the connection is the writer's.
pub(super) enum Command {
    Subscribe { id: String, sql: String, params: Map<String, JsonValue>, from: Option<Seq> },
    Unsubscribe { id: String },
}

/// The socket is broken, or took nothing in for too long.
struct Broken;

/// The writing half of a session.
pub(super) struct Writer<'a> {
    pub(super) connection: Connection,
    pub(super) sink: SplitSink<WebSocket, Message>,
    pub(super) answers: mpsc::Receiver<Answer>,
    pub(super) commands: mpsc::Receiver<Command>,
    /// Set when a write that had to wait went through.
    pub(super) moved: &'a AtomicBool,
}

impl Writer<'_> {
    /// Tells everything until the reader and all that it started are done; gives the socket back, so
    /// that it can be closed. None when it broke.
    pub(super) async fn run(mut self, head: Seq) -> Option<SplitSink<WebSocket, Message>> {
        self.tell(frames::hello(head)).await.ok()?;
        let mut pings = interval_at(Instant::now() + limits::PING, limits::PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let told = tokio::select! {
                answer = self.answers.recv() => match answer {
                    Some(answer) => self.answer(answer).await,
                    None => return Some(self.sink),
                },
                Some(command) = self.commands.recv() => self.obey(command).await,
                update = self.connection.next() => self.tell(frames::update(&update)).await,
                _ = pings.tick() => self.send(Message::Ping(Default::default())).await,
            };
            told.ok()?;
        }
    }

    /// Tells an answer, and with it those that wait already: they leave in one write.
    async fn answer(&mut self, answer: Answer) -> Result<(), Broken> {
        let mut answer = Some(answer);
        while let Some(Answer { text, _room: room }) = answer {
            let next = self.answers.try_recv().ok();
            match next {
                Some(_) => self.sink.feed(Message::text(text)).await.map_err(|_| Broken)?,
                None => self.tell(text).await?,
            }
            drop(room);
            answer = next;
        }
        Ok(())
    }

    async fn obey(&mut self, command: Command) -> Result<(), Broken> {
        match command {
            Command::Subscribe { id, sql, params, from } => {
                match self.subscribe(&id, &sql, &params, from).await? {
                    Ok(()) => Ok(()), // The snapshot is the next update.
                    Err(refusal) => self.tell(frames::error(Some(&id), &refusal)).await,
                }
            }
            Command::Unsubscribe { id } => {
                self.connection.unsubscribe(&id);
                Ok(())
            }
        }
    }

    /// Subscribes, and tells answers meanwhile: reading a large result may take its time.
    async fn subscribe(
        &mut self,
        id: &str,
        sql: &str,
        params: &Map<String, JsonValue>,
        from: Option<Seq>,
    ) -> Result<Result<(), Refusal>, Broken> {
        let mut subscribed = pin!(self.connection.subscribe(id, sql, params, from));
        loop {
            tokio::select! {
                subscribed = &mut subscribed => return Ok(subscribed),
                Some(answer) = self.answers.recv() => {
                    let message = Message::text(answer.text);
                    self.sink.send(message).await.map_err(|_| Broken)?;
                }
            }
        }
    }

    async fn tell(&mut self, text: String) -> Result<(), Broken> {
        self.send(Message::text(text)).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Broken> {
        let mut sending = self.sink.send(message);
        let at_once = futures_util::FutureExt::now_or_never(&mut sending);
        let sent = match at_once {
            Some(sent) => sent,
            None => {
                let sent = sending.await;
                self.moved.store(true, Ordering::Relaxed);
                sent
            }
        };
        sent.map_err(|_| Broken)
    }
}
