//! `GET /v1/runs/{id}/events`: the events of a run as server-sent events, until the run ends.
//!
//! `id:` is the event's number in the run, 1, 2, 3 …, so that `Last-Event-ID` resumes after it. If the run has ended
//! and all events were sent, the response is 204, which stops an `EventSource` for good.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};

use abide_engine::buffers::{Account, Reservation};
use abide_engine::{Change, Connection, SubscribeRequest, Update};
use abide_schema::{Code, Refusal, Row, Value};
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::{Map, json};
use tokio::time::timeout;

use super::{find, path};
use crate::app_state::{AppState, SessionExtension};
use crate::connections::lifecycle::{ConnectionPermit, Lifecycle, Phase};
use crate::problem::{Problem, note};
use crate::routes::rows::deny_hidden;
use crate::single::LAST_EVENT_ID;
use crate::{limits, unsent};

const SQL: &str = "SELECT id, number, turn, kind, data FROM run_events \
    WHERE run_id = :run AND number > :sent ORDER BY number";

/// The events of a run, if a policy hides their data from the caller.
const WITHOUT_DATA: &str = "SELECT id, number, turn, kind, NULL AS data FROM run_events \
    WHERE run_id = :run AND number > :sent ORDER BY number";

/// Streams a run's events until it ends, the client disconnects, or the server stops.
pub(in crate::routes) async fn events(
    State(app): State<AppState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let id = path(id, "id of the run")?;
    let last_sent = read_last_event_id(&headers)?;
    let (_, run) = find(&app.engine, &session.caller, &id).await?;
    // A policy may hide the number of events; then any value is accepted.
    let events = run["events"].as_i64().unwrap_or(i64::MAX);
    if last_sent > events {
        let detail = format!(
            "the header Last-Event-ID is {last_sent}, but run {id} has only {events} events"
        );
        let hint = "send the unchanged id of the last event of this run";
        return Err(Refusal::new(Code::BadRequest, detail).hint(hint).into());
    }
    if last_sent == events && !run["ended_at"].is_null() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let params = Map::from_iter([
        ("run".to_owned(), run["id"].clone()),
        ("sent".to_owned(), json!(last_sent)),
    ]);
    let mut connection = app.engine.connect(&session.caller);
    let account = app.engine.buffers().account(&session.caller);
    let subscribed = connection.subscribe(&SubscribeRequest::new("run", SQL, &params)).await;
    match subscribed {
        Err(refusal) if refusal.code == Code::BadSql => {
            let without = SubscribeRequest::new("run", WITHOUT_DATA, &params);
            connection.subscribe(&without).await.map_err(deny_hidden)?;
        }
        subscribed => drop(subscribed?),
    }
    let authenticator = app.authenticator.clone();
    let invalid = Box::pin(async move { authenticator.until_invalid(session).await });
    let lifecycle = app.lifecycle;
    let ended = false;
    let hold = None;
    let events =
        Events { connection, lifecycle, account, hold, invalid, last_sent, ended, _place: place };
    let events = stream::unfold(events, |mut events| async move {
        let text = events.next().await?;
        Some((Ok::<_, Infallible>(text), events))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, [("x-accel-buffering", "no")], Body::from_stream(events)).into_response())
}

/// Returns the number of the last event that the client has; 0 without the header.
fn read_last_event_id(headers: &HeaderMap) -> Result<i64, Refusal> {
    let Some(id) = headers.get(LAST_EVENT_ID) else { return Ok(0) };
    let number = id.to_str().ok().and_then(|id| id.trim().parse().ok());
    number.filter(|number| *number >= 0).ok_or_else(|| {
        Refusal::new(Code::BadRequest, "the header Last-Event-ID is not the number of an event")
            .hint("send the unchanged id of the last event, or omit the header")
    })
}

/// The stream of one client. Polled only when the socket has room.
struct Events {
    connection: Connection,
    lifecycle: Lifecycle,
    account: Account,
    /// Counts the text that is being sent.
    hold: Option<Reservation>,
    /// Completes when the credentials are no longer valid.
    invalid: Pin<Box<dyn Future<Output = Refusal> + Send>>,
    /// The number of the last sent event.
    last_sent: i64,
    ended: bool,
    _place: ConnectionPermit,
}

impl Events {
    async fn next(&mut self) -> Option<String> {
        // The socket has room again, so the text before this has left.
        self.hold = None;
        while !self.ended {
            let lifecycle = self.lifecycle.clone();
            let mut draining = pin!(lifecycle.wait_for(Phase::Draining));
            let update = tokio::select! {
                () = &mut draining => return None,
                refusal = &mut self.invalid => return Some(self.end_with(&refusal)),
                update = timeout(limits::PING_INTERVAL, self.connection.next()) => update,
            };
            let text = match update {
                Ok(update) => {
                    let account = self.account.clone();
                    let last_sent =
                        unsent::encode(&account, update, |update| self.encode_update(update));
                    let (text, hold) = last_sent.await?;
                    self.hold = hold;
                    text
                }
                Err(_) => ": still here\n\n".to_owned(),
            };
            // Progress and stale marks are not sent.
            if !text.is_empty() {
                return Some(text);
            }
        }
        None
    }

    fn encode_update(&mut self, update: &Update) -> String {
        match update {
            Update::Snapshot(part) => self.encode_rows(&part.rows),
            Update::Delta { changes, .. } => {
                changes.iter().map(|change| self.encode_change(change)).collect()
            }
            Update::Rerun { change, .. } => self.encode_change(change),
            Update::Error { refusal, .. } if refusal.code != Code::ResyncRequired => {
                self.end_with(refusal)
            }
            Update::Error { .. } | Update::Progress { .. } => String::new(),
        }
    }

    fn encode_change(&mut self, change: &Change) -> String {
        self.encode_rows(&change.delta.rows().inserts)
    }

    /// Returns the new rows, in order. A repeated snapshot contains old ones too.
    fn encode_rows(&mut self, rows: &[Row]) -> String {
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by_key(|row| event_number(row));
        let mut text = String::new();
        for row in rows {
            if event_number(row) <= self.last_sent {
                continue;
            }
            if let [Value::Integer(id), Value::Integer(number), permit, Value::Text(kind), data] =
                &**row
            {
                let permit = permit.to_json();
                let data = json_text(data);
                text.push_str(&format!(
                    "event: {kind}\nid: {number}\ndata: {{\"id\":{id},\"number\":{number},\
                     \"turn\":{permit},\"event\":\"{kind}\",\"data\":{data}}}\n\n"
                ));
                self.last_sent = *number;
                self.ended = matches!(kind.as_str(), "done" | "error");
            }
        }
        text
    }

    /// Ends the stream although the run continues: runs have no events of kind `problem`.
    fn end_with(&mut self, refusal: &Refusal) -> String {
        self.ended = true;
        note(refusal);
        format!("event: problem\ndata: {}\n\n", refusal.problem())
    }
}

fn event_number(row: &Row) -> i64 {
    match row.get(1) {
        Some(Value::Integer(number)) => *number,
        _ => 0,
    }
}

/// Returns a JSON value stored as canonical text, on one line.
fn json_text(cell: &Value) -> &str {
    match cell {
        Value::Text(text) => text,
        _ => "null",
    }
}
