//! `GET /v1/subscribe`: one live query as server-sent events.
//!
//! The same objects as on the WebSocket, one per event, with the subscription id `q`. `id:` is the
//! seq from which a reconnect resumes, with its timeline, so an event has one only if everything up to that seq has
//! been sent: the parts of a snapshot before its last have none.

use std::future::Future;
use std::pin::{Pin, pin};

use abide_engine::buffers::{Account, Reservation};
use abide_engine::{Connection, Start, SubscribeRequest, Update};
use abide_schema::{Code, Refusal, Seq, integers};
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue};
use tokio::time::timeout;

use crate::app_state::{AppState, SessionExtension};
use crate::connections::lifecycle::{ConnectionPermit, Lifecycle, Phase};
use crate::problem::Problem;
use crate::query_string::invalid_query_string;
use crate::single::LAST_EVENT_ID;
use crate::{frames, limits, unsent};

/// The subscription's id in the messages.
const ID: &str = "q";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueryString {
    sql: String,
    params: Option<String>,
    after_seq: Option<Seq>,
    timeline: Option<String>,
    as_of: Option<Seq>,
    #[serde(default)]
    checksum: bool,
    #[serde(default)]
    explain: bool,
    /// Read by [`crate::auth::access`], as an `EventSource` cannot set headers.
    #[serde(rename = "token")]
    _token: Option<String>,
}

/// Subscribes, and streams until the client leaves, the query ends, or the server does.
pub(crate) async fn subscribe(
    State(app): State<AppState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    query: Result<Query<QueryString>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Query(query) = query.map_err(|why| {
        invalid_query_string(Code::BadRequest, &why).hint(
            "/v1/subscribe?sql=SELECT…&params={…}&after_seq=40; \
                 only sql is required; there are also timeline, as_of, checksum and explain",
        )
    })?;
    let params = query.params.as_deref().map_or_else(|| Ok(Map::new()), parse_params)?;
    let QueryString { sql, after_seq, timeline, as_of, checksum, explain, .. } = query;
    // A reconnect repeats the original address; Last-Event-ID is newer than its parameters.
    let (start, timeline) = match read_last_event_id(&headers)? {
        Some((seq, timeline)) => (Start::After(seq), timeline),
        None => (Start::from_message(after_seq, as_of)?, timeline),
    };
    let timeline = timeline.as_deref();
    let request =
        SubscribeRequest { id: ID, sql: &sql, params: &params, start, timeline, checksum, explain };
    let mut connection = app.engine.connect(&session.caller);
    let account = app.engine.buffers().account(&session.caller);
    connection.subscribe(&request).await?;
    let authenticator = app.authenticator.clone();
    let invalid = Box::pin(async move { authenticator.until_invalid(session).await });
    let lifecycle = app.lifecycle;
    let ended = false;
    let stale = false;
    let hold = None;
    let timeline = app.engine.timeline().to_owned();
    let events = Events {
        connection,
        lifecycle,
        account,
        hold,
        invalid,
        ended,
        stale,
        timeline,
        _place: place,
    };
    let events = stream::unfold(events, |mut events| async move {
        let event = events.next().await?;
        Some((Ok::<_, std::convert::Infallible>(event), events))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, [("x-accel-buffering", "no")], Body::from_stream(events)).into_response())
}

fn parse_params(text: &str) -> Result<Map<String, JsonValue>, Refusal> {
    integers::check_surrogates(text)?;
    let params = serde_json::from_str(text).map_err(|why| {
        Refusal::new(Code::BadRequest, format!("params is not a JSON object: {why}"))
            .hint("params={\"sid\": \"s_42\"}, percent-encoded")
    })?;
    integers::check(text)?;
    Ok(params)
}

/// Where a reconnect resumes: the seq and the timeline of an event's id, `42@9f2c…`, or only a seq.
fn read_last_event_id(headers: &HeaderMap) -> Result<Option<(Seq, Option<String>)>, Refusal> {
    let Some(id) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let position = id.to_str().ok().and_then(|id| {
        let (seq, timeline) =
            id.trim().split_once('@').map_or((id.trim(), None), |(seq, on)| (seq, Some(on)));
        Some((Seq(seq.parse().ok()?), timeline.map(str::to_owned)))
    });
    position.map(Some).ok_or_else(|| {
        Refusal::new(Code::BadRequest, "the header Last-Event-ID is not the id of an event")
            .hint("send the unchanged id of the last event, or omit the header")
    })
}

/// The stream of one client. Polled only when the socket has room, which applies backpressure.
struct Events {
    connection: Connection,
    lifecycle: Lifecycle,
    account: Account,
    /// Counts the event that is being sent.
    hold: Option<Reservation>,
    /// Completes when the credentials are no longer valid.
    invalid: Pin<Box<dyn Future<Output = Refusal> + Send>>,
    ended: bool,
    /// The rows are outdated, so a reconnect must not resume here.
    stale: bool,
    timeline: String,
    _place: ConnectionPermit,
}

impl Events {
    fn note_staleness(&mut self, update: &Update) {
        match update {
            Update::Snapshot(_) => self.stale = false,
            Update::Rerun { stale, .. } => self.stale = *stale,
            Update::Delta { changes, .. } => {
                self.stale |= changes.iter().any(|change| change.delta.is_stale());
            }
            Update::Progress { .. } | Update::Error { .. } => {}
        }
    }

    async fn next(&mut self) -> Option<String> {
        // The socket has room again, so the event before this has left.
        self.hold = None;
        if self.ended {
            return None;
        }
        let lifecycle = self.lifecycle.clone();
        let mut draining = pin!(lifecycle.wait_for(Phase::Draining));
        tokio::select! {
            () = &mut draining => None,
            refusal = &mut self.invalid => {
                self.ended = true;
                let update = Update::Error { id: ID.into(), refusal };
                Some(encode_event(&update, self.stale, &self.timeline))
            }
            update = timeout(limits::PING_INTERVAL, self.connection.next()) => match update {
                Ok(update) => {
                    self.ended = matches!(&update, Update::Error { refusal, .. }
                        if refusal.code != Code::ResyncRequired);
                    self.note_staleness(&update);
                    let stale = self.stale;
                    let timeline = self.timeline.clone();
                    let encoded = unsent::encode(&self.account, update, move |update| {
                        encode_event(update, stale, &timeline)
                    });
                    let (text, hold) = encoded.await?;
                    self.hold = hold;
                    Some(text)
                }
                Err(_) => Some(": still here\n\n".to_owned()),
            },
        }
    }
}

fn encode_event(update: &Update, stale: bool, timeline: &str) -> String {
    let (name, at) = match update {
        Update::Snapshot(part) => ("snapshot", (!part.more).then_some(part.seq)),
        Update::Rerun { seq, .. } => ("rerun", Some(*seq)),
        Update::Delta { to, .. } => ("delta", (!stale).then_some(*to)),
        Update::Progress { seq } => ("progress", (!stale).then_some(*seq)),
        Update::Error { .. } => ("error", None),
    };
    let data = frames::encode_update(update);
    let id = at.map(|seq| format!("id: {seq}@{timeline}\n")).unwrap_or_default();
    format!("event: {name}\n{id}data: {data}\n\n")
}
