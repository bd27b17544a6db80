//! Reads the events of a run, past and future, for a protocol that presents them.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use abide_engine::buffers::{Account, Reservation};
use abide_engine::{Connection, SubscribeRequest, Update};
use abide_schema::{Code, Refusal, Row, Value};
use abide_server::port::{
    AuthSession, ConnectionPermit, PING_INTERVAL, Port, note, rows::deny_hidden, unsent,
};
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::{Stream, StreamExt as _, stream};
use serde_json::{Map, json};
use tokio::time::timeout;

use crate::limits;
use crate::start::{EVENTS, RunRow};
use crate::state::ProtocolState;
use crate::turn::{Change, RunEvent, Turn};

/// The encoder of a protocol for the changes of a turn.
pub(super) trait Encoder: Send + 'static {
    /// Appends the text for a change.
    fn encode(&mut self, turn: &Turn, change: &Change, out: &mut String);

    /// Appends the text for a refusal that ends the stream before the turn has ended.
    fn refuse(&mut self, refusal: &Refusal, out: &mut String);

    /// Returns `true` if it keeps something back that [`Encoder::release`] appends.
    fn holds(&self) -> bool {
        false
    }

    /// Appends what it keeps back, because nothing has happened for a while.
    fn release(&mut self, _turn: &Turn, _out: &mut String) {}

    /// Appends the text for a server that stops before the turn has ended. A stream without one ends, and its client continues
    /// it after that.
    fn stop(&mut self, _out: &mut String) {}
}

/// The next change for a reader of a turn.
enum Next {
    /// Events of the run, in order; none if the update has no new ones.
    Events(Vec<RunEvent>),
    /// Nothing has happened for a while.
    Silence,
    /// The stream ends before the turn.
    Refused(Refusal),
    /// The server stops.
    Stops,
}

/// A reader of one turn.
pub(super) struct Follower {
    pub(super) turn: Turn,
    connection: Connection,
    /// Counts the items of the turn for the caller.
    hold: Reservation,
    account: Account,
    port: Port,
    /// Completes when the credentials are no longer valid.
    invalid: Pin<Box<dyn Future<Output = Refusal> + Send>>,
    /// The number of the last event that was read.
    read: i64,
    /// Whether all events that existed at the start were read.
    caught_up: bool,
}

impl Follower {
    /// Starts reading the turn.
    pub(super) async fn new(
        app: &ProtocolState,
        session: AuthSession,
        run: &RunRow,
        turn: Turn,
    ) -> Result<Follower, Refusal> {
        let params = Map::from_iter([("run".to_owned(), json!(run.id))]);
        let mut connection = app.engine.connect(&session.caller);
        let account = app.engine.buffers().account(&session.caller);
        connection
            .subscribe(&SubscribeRequest::new("run", EVENTS, &params))
            .await
            .map_err(deny_hidden)?;
        let port = app.port.clone();
        let invalid = Box::pin(async move { port.until_invalid(session).await });
        Ok(Follower {
            turn,
            connection,
            hold: account.reserve(),
            account,
            port: app.port.clone(),
            invalid,
            read: 0,
            caught_up: false,
        })
    }

    /// Reads the events that exist.
    pub(super) async fn read_until_now(&mut self) -> Result<(), Refusal> {
        while !self.caught_up && self.turn.end.is_none() {
            match self.next().await {
                Next::Events(events) => self.add(&events)?,
                Next::Silence => {}
                Next::Refused(refusal) => return Err(refusal),
                Next::Stops => break,
            }
        }
        Ok(())
    }

    /// Returns the next events that exist and are not read yet, for a caller that adds them to the turn; `None` after
    /// the last one.
    pub(super) async fn next_existing(&mut self) -> Result<Option<Vec<RunEvent>>, Refusal> {
        self.count_items()?;
        if self.caught_up || self.turn.end.is_some() {
            return Ok(None);
        }
        match self.next().await {
            Next::Events(events) => Ok(Some(events)),
            Next::Silence => Ok(Some(Vec::new())),
            Next::Refused(refusal) => Err(refusal),
            Next::Stops => Ok(None),
        }
    }

    /// Reads until the turn has ended, or the server stops.
    pub(super) async fn read_until_end(&mut self) -> Result<(), Refusal> {
        while self.turn.end.is_none() {
            match self.next().await {
                Next::Events(events) => self.add(&events)?,
                Next::Silence => {}
                Next::Refused(refusal) => return Err(refusal),
                Next::Stops => break,
            }
        }
        Ok(())
    }

    /// Waits for changes of the turn. Empty if nothing has happened for a while, `None` if the server stops.
    pub(super) async fn next_changes(&mut self) -> Result<Option<Vec<Change>>, Refusal> {
        let mut changes = Vec::new();
        match self.next().await {
            Next::Events(events) => {
                for event in &events {
                    changes.extend(self.turn.add(event));
                }
                self.count_items()?;
            }
            Next::Silence => {}
            Next::Refused(refusal) => return Err(refusal),
            Next::Stops => return Ok(None),
        }
        Ok(Some(changes))
    }

    async fn next(&mut self) -> Next {
        self.next_within(PING_INTERVAL).await
    }

    /// Returns the next change, or [`Next::Silence`] after this time.
    async fn next_within(&mut self, time: Duration) -> Next {
        let port = self.port.clone();
        let mut draining = pin!(port.until_draining());
        let update = tokio::select! {
            () = &mut draining => return Next::Stops,
            refusal = &mut self.invalid => return Next::Refused(refusal),
            update = timeout(time, self.connection.next()) => update,
        };
        let Ok(update) = update else { return Next::Silence };
        match self.new_events(&update) {
            Ok(events) => Next::Events(events),
            Err(refusal) => Next::Refused(refusal),
        }
    }

    /// Adds events to the turn.
    fn add(&mut self, events: &[RunEvent]) -> Result<(), Refusal> {
        for event in events {
            self.turn.add(event);
        }
        self.count_items()
    }

    /// Counts the items of the turn for the caller.
    fn count_items(&mut self) -> Result<(), Refusal> {
        let bytes = self.turn.bytes();
        if bytes > limits::TURN_UNCOUNTED_BYTES && bytes > self.hold.bytes() {
            self.hold.grow(bytes - self.hold.bytes())?;
        }
        Ok(())
    }

    fn new_events(&mut self, update: &Update) -> Result<Vec<RunEvent>, Refusal> {
        let mut all = Vec::new();
        match update {
            Update::Snapshot(part) => {
                self.add_rows(&part.rows, &mut all);
                self.caught_up |= !part.more;
            }
            Update::Delta { changes, .. } => {
                for change in changes {
                    let delta = change.delta.rows();
                    self.add_rows(&delta.inserts, &mut all);
                }
            }
            Update::Rerun { change, .. } => {
                let delta = change.delta.rows();
                self.add_rows(&delta.inserts, &mut all);
            }
            Update::Error { refusal, .. } if refusal.code != Code::ResyncRequired => {
                return Err(refusal.clone());
            }
            Update::Error { .. } | Update::Progress { .. } => {}
        }
        Ok(all)
    }

    /// The new events of rows, in order. A repeated snapshot has old ones too.
    fn add_rows(&mut self, rows: &[Row], all: &mut Vec<RunEvent>) {
        let mut events: Vec<RunEvent> = rows.iter().filter_map(event_from_row).collect();
        events.sort_by_key(|event| event.number);
        for event in events {
            if event.number > self.read {
                self.read = event.number;
                all.push(event);
            }
        }
    }
}

fn event_from_row(row: &Row) -> Option<RunEvent> {
    let [
        Value::Integer(number),
        Value::Integer(turn),
        Value::Text(kind),
        Value::Text(data),
        Value::Integer(created_at),
    ] = &**row
    else {
        return None;
    };
    Some(RunEvent {
        number: *number,
        turn: *turn,
        kind: kind.to_string(),
        data: serde_json::from_str(data).unwrap_or_default(),
        created_at: *created_at,
    })
}

/// A turn as server-sent events. Polled only when the socket has room, which applies backpressure.
struct TurnStream<E> {
    follower: Follower,
    encoder: E,
    /// Counts the text that is being sent.
    hold: Option<Reservation>,
    ended: bool,
    _place: ConnectionPermit,
}

impl<E: Encoder> TurnStream<E> {
    async fn next(&mut self) -> Option<String> {
        // The socket has room again, so the text before this has left.
        self.hold = None;
        while !self.ended {
            let mut text = String::new();
            let holds = self.encoder.holds();
            let patience = if holds { limits::TURN_HOLD } else { PING_INTERVAL };
            match self.follower.next_within(patience).await {
                Next::Events(events) => {
                    for event in &events {
                        for change in self.follower.turn.add(event) {
                            self.encoder.encode(&self.follower.turn, &change, &mut text);
                        }
                    }
                    self.ended = self.follower.turn.end.is_some();
                    if let Err(refusal) = self.follower.count_items() {
                        self.refuse(&refusal, &mut text);
                    }
                }
                Next::Silence if holds => self.encoder.release(&self.follower.turn, &mut text),
                Next::Silence => text.push_str(": still here\n\n"),
                Next::Refused(refusal) => self.refuse(&refusal, &mut text),
                Next::Stops => {
                    self.ended = true;
                    self.encoder.stop(&mut text);
                }
            }
            match unsent::reserve(&self.follower.account, &text) {
                Ok(hold) => self.hold = hold,
                Err(refusal) => {
                    text.clear();
                    self.refuse(&refusal, &mut text);
                }
            }
            if !text.is_empty() {
                return Some(text);
            }
        }
        None
    }

    fn refuse(&mut self, refusal: &Refusal, text: &mut String) {
        self.ended = true;
        note(refusal);
        self.encoder.refuse(refusal, text);
    }
}

/// Returns the texts of a turn to its end.
pub(super) fn texts_of_turn(
    follower: Follower,
    encoder: impl Encoder,
    place: ConnectionPermit,
) -> impl Stream<Item = String> + Send {
    let events = TurnStream { follower, encoder, hold: None, ended: false, _place: place };
    stream::unfold(events, |mut events| async move {
        let text = events.next().await?;
        Some((text, events))
    })
}

/// Returns the response that streams a turn to its end.
pub(super) fn stream_turn(
    follower: Follower,
    encoder: impl Encoder,
    place: ConnectionPermit,
) -> Response {
    let events = texts_of_turn(follower, encoder, place).map(Ok::<_, std::convert::Infallible>);
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, [("x-accel-buffering", "no")], Body::from_stream(events)).into_response()
}
