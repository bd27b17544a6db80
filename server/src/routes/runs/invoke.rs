//! `POST /v1/agents/{name}/invoke`: starts a run, and waits until its turn ends. The run does not depend on the request: it
//! continues if the client leaves, or if the time of the request is over.

use std::pin::pin;
use std::time::Duration;

use abide_engine::{Connection, SubscribeRequest, Update};
use abide_schema::{Code, Refusal, Row, Value};
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value as JsonValue, json};
use tokio::time::{Instant, timeout_at};

use super::{RunRequest, StartedRun, find, path, run_location};
use crate::app_state::{AppState, SessionExtension};
use crate::auth::authenticator::AuthSession;
use crate::body::RequestBody;
use crate::connections::lifecycle::Phase;
use crate::limits;
use crate::problem::{Problem, note};
use crate::routes::response::committed_value;
use crate::routes::rows::deny_hidden;
use crate::single::idempotency_key;

/// The events that end a turn.
const ENDS: &str = "SELECT number, turn, kind, data FROM run_events WHERE run_id = :run \
    AND turn >= :turn AND kind IN ('done', 'error', 'interrupt')";

/// Starts a run, and answers with the event that ends its turn.
pub(in crate::routes) async fn invoke(
    State(app): State<AppState>,
    Extension(session): SessionExtension,
    agent: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let agent = path(agent, "name of the agent")?;
    let now = Instant::now();
    let key = idempotency_key(&headers)?;
    // A client that repeats a refused request would start another run each time.
    let of_no_run = ends_params(&json!(""), &json!(0));
    let mut connection = app.engine.connect(&session.caller);
    connection.check_subscribe(ENDS, &of_no_run).await.map_err(deny_hidden)?;
    let mut request = RunRequest::read(&app, &session.caller, &content).await?;
    let wait = read_wait(request.body.wait_ms.take())?;
    let StartedRun { run, duplicate, .. } =
        request.start(&app, &session.caller, &agent, key).await?;
    let event = wait_for_end(&app, &session, connection, &run, now + wait).await?;
    let id = run["id"].as_str().unwrap_or_default();
    let (seq, run) = find(&app.engine, &session.caller, id).await?;
    let status = if event.is_null() { StatusCode::ACCEPTED } else { StatusCode::OK };
    let location = run_location(&run);
    let reply = move || json!({"seq": seq, "run": run, "event": event, "duplicate": duplicate});
    let mut response = committed_value(&app, &session.caller, reply).await?;
    *response.status_mut() = status;
    if let Some(location) = location {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// How long a request waits.
fn read_wait(given: Option<JsonValue>) -> Result<Duration, Refusal> {
    let Some(given) = given else { return Ok(limits::INVOKE_DEFAULT) };
    let max = u64::try_from(limits::INVOKE_MAX.as_millis()).unwrap_or(u64::MAX);
    match given.as_u64().filter(|wait_ms| *wait_ms <= max) {
        Some(wait_ms) => Ok(Duration::from_millis(wait_ms)),
        None => {
            let detail = format!("wait_ms must be an integer from 0 to {max}");
            let hint = "when the time is over, the response is 202, and the run continues";
            Err(Refusal::new(Code::BadArguments, detail).hint(hint))
        }
    }
}

/// Returns the parameters of [`ENDS`].
fn ends_params(run: &JsonValue, turn: &JsonValue) -> Map<String, JsonValue> {
    Map::from_iter([("run".to_owned(), run.clone()), ("turn".to_owned(), turn.clone())])
}

/// Returns the event that ends the turn of a run; null if the time is over, the server stops, or the event cannot be
/// awaited.
async fn wait_for_end(
    app: &AppState,
    session: &AuthSession,
    mut connection: Connection,
    run: &JsonValue,
    until: Instant,
) -> Result<JsonValue, Refusal> {
    let params = ends_params(&run["id"], &run["turn"]);
    let request = SubscribeRequest::new("end", ENDS, &params);
    if let Err(refusal) = connection.subscribe(&request).await.map_err(deny_hidden) {
        // The run has started: the client must learn its id.
        note(&refusal);
        return Ok(JsonValue::Null);
    }
    let authenticator = app.authenticator.clone();
    let mut invalid = pin!(authenticator.until_invalid(session.clone()));
    let mut stops = pin!(app.lifecycle.wait_for(Phase::Draining));
    loop {
        let found = tokio::select! {
            () = &mut stops => return Ok(JsonValue::Null),
            refusal = &mut invalid => return Err(refusal),
            found = timeout_at(until, next_event(&mut connection)) => found,
        };
        match found {
            Err(_) => return Ok(JsonValue::Null),
            Ok(Err(refusal)) => return Err(refusal),
            Ok(Ok(Some(event))) => return Ok(event),
            Ok(Ok(None)) => {}
        }
    }
}

/// Returns the first event of the next update, if it has one.
async fn next_event(connection: &mut Connection) -> Result<Option<JsonValue>, Refusal> {
    let mut rows: Vec<Row> = Vec::new();
    match connection.next().await {
        Update::Snapshot(part) => rows.extend(part.rows.iter().cloned()),
        Update::Delta { changes, .. } => {
            for change in &changes {
                let delta = change.delta.rows();
                rows.extend(delta.inserts.iter().cloned());
            }
        }
        Update::Rerun { change, .. } => {
            let delta = change.delta.rows();
            rows.extend(delta.inserts.iter().cloned());
        }
        Update::Error { refusal, .. } if refusal.code != Code::ResyncRequired => {
            return Err(refusal);
        }
        Update::Error { .. } | Update::Progress { .. } => {}
    }
    Ok(rows.iter().min_by_key(|row| event_number(row)).map(event_to_json))
}

fn event_number(row: &Row) -> i64 {
    match row.first() {
        Some(Value::Integer(number)) => *number,
        _ => i64::MAX,
    }
}

/// Returns an event in the form of `GET /v1/runs/{id}/events`.
fn event_to_json(row: &Row) -> JsonValue {
    let cell = |at: usize| row.get(at).map_or(JsonValue::Null, Value::to_json);
    let data = match row.get(3) {
        Some(Value::Text(text)) => serde_json::from_str(text).unwrap_or_default(),
        _ => JsonValue::Null,
    };
    json!({"number": cell(0), "turn": cell(1), "event": cell(2), "data": data})
}
