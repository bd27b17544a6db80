//! Runs over REST: start, read, abort. Their events are in [`events`].

pub(super) mod events;

use abide_engine::Engine;
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Refusal, Seq, Value};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

use super::exchange::json as as_json;
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::connections::read_limiter::begin;
use crate::problem::Problem;
use crate::routes::exchange::{hidden, idempotency_key};

/// A request for a run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StartRunBody {
    /// The user's message.
    input: String,
    /// An existing session.
    session_id: Option<String>,
    /// An id for the run, chosen by the caller.
    id: Option<String>,
    /// Time limit of the run in milliseconds.
    deadline_ms: Option<i64>,
    /// Title of the session that is created for it.
    title: Option<String>,
    scope: Option<Map<String, JsonValue>>,
    metadata: Option<JsonValue>,
}

/// Starts a run of an agent, in a new session or an existing one.
pub(super) async fn start(
    State(app): State<AppState>,
    by: CallerExtension,
    agent: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let agent = path(agent, "agent")?;
    let looks = r#"{"input": "…", "session_id": "…"}, the last optional"#;
    let permit = app.read_limiter.permit(by.quota_key(), content.bytes()).await;
    app.engine.check_room(&by, content.bytes())?;
    let wanted: StartRunBody = content.envelope(looks)?;
    let key = idempotency_key(&headers)?;
    let is_named = wanted.id.is_some();
    let calls = calls(&by, &agent, wanted, key)?;
    let begun = begin(permit, app.engine.batch(&by, &calls, key)).await;
    let done = match (begun, calls.as_slice()) {
        // A retry: the session exists, and the run confirms that it is the same one.
        (Err(refusal), [_, run]) if is_named && refusal.code == Code::Conflict => {
            app.engine.batch(&by, std::slice::from_ref(run), key).await?
        }
        (done, _) => done?,
    };
    let Some(begun) = done.results.last() else {
        return Err(Refusal::new(Code::Internal, "the batch has no result").into());
    };
    let run: JsonValue = serde_json::from_str(&begun.result).unwrap_or_default();
    let place = format!("/v1/runs/{}", segment(run["id"].as_str().unwrap_or_default()));
    let reply =
        json!({"seq": done.seq, "run": run, "duplicate": done.duplicate || begun.duplicate});
    let mut response = (StatusCode::CREATED, as_json(reply.to_string())).into_response();
    if let Ok(place) = place.parse() {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// The calls that start a run: create the session, if necessary, and start the run. All or nothing.
fn calls(
    by: &Caller,
    agent: &str,
    wanted: StartRunBody,
    key: Option<&str>,
) -> Result<Vec<BatchCall>, Refusal> {
    let StartRunBody { input, session_id, id, deadline_ms, title, scope, metadata } = wanted;
    let mut calls = Vec::new();
    let session_id = match session_id {
        Some(session_id) if title.is_some() || scope.is_some() || metadata.is_some() => {
            let detail = format!(
                "title, scope and metadata cannot be set for the existing session {session_id}"
            );
            let hint = "omit them, or omit session_id to create a session";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
        }
        Some(session_id) => session_id,
        None => {
            let made = session_of(by, agent, id.as_deref(), key);
            let all = json!({"id": made, "agent": agent, "title": title, "scope": scope,
                "metadata": metadata});
            calls.push(call("create_session", all));
            made
        }
    };
    let all = json!({"session_id": session_id, "agent": agent, "input": input, "id": id,
        "deadline_ms": deadline_ms});
    calls.push(call("start_run", all));
    Ok(calls)
}

/// A reducer call without its null arguments.
pub(super) fn call(reducer: &str, mut args: JsonValue) -> BatchCall {
    if let Some(args) = args.as_object_mut() {
        args.retain(|_, value| !value.is_null());
    }
    BatchCall { reducer: reducer.to_owned(), args }
}

/// The id of a session that is created for a run. A retry must use the same one, so it is derived from
/// the run's id or the request id. Without either it is random.
fn session_of(by: &Caller, agent: &str, id: Option<&str>, key: Option<&str>) -> String {
    let text = match (id, key) {
        (Some(id), _) => json!(["id", by.principal(), agent, id]).to_string(),
        (None, Some(key)) => json!(["key", by.principal(), agent, key]).to_string(),
        (None, None) => uuid::Uuid::new_v4().to_string(),
    };
    let digest = Sha256::digest(text.as_bytes());
    format!("s_{}", hex::encode(&digest[..13]))
}

/// Returns a run.
pub(super) async fn get(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let id = path(id, "run")?;
    let (seq, run) = find(&app.engine, &by, &id).await?;
    Ok(as_json(json!({"seq": seq, "run": run}).to_string()))
}

/// Why a run is aborted.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AbortRunBody {
    reason: Option<String>,
}

/// Aborts a run.
pub(super) async fn abort(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let id = path(id, "run")?;
    let AbortRunBody { reason } = match content.value()? {
        JsonValue::Null => AbortRunBody::default(),
        _ => content.envelope(r#"{"reason": "…"}, or nothing"#)?,
    };
    let key = idempotency_key(&headers)?;
    let BatchCall { reducer, args } = call("abort_run", json!({"id": id, "reason": reason}));
    let done = app.engine.call(&by, &reducer, &args, key).await?;
    let run: JsonValue = serde_json::from_str(&done.result).unwrap_or_default();
    let reply = json!({"seq": done.seq, "run": run, "duplicate": done.duplicate});
    Ok(as_json(reply.to_string()))
}

/// A run by its id, as an object of its columns.
pub(super) async fn find(
    engine: &Engine,
    by: &Caller,
    id: &str,
) -> Result<(Seq, JsonValue), Refusal> {
    let sql = "SELECT * FROM runs WHERE id = :id";
    let query = async |id: &str| {
        let params = Map::from_iter([("id".to_owned(), json!(id))]);
        engine.query(by, sql, &params, None).await.map_err(hidden)
    };
    let mut answer = query(id).await?;
    // As in reducers: an id chosen by a caller with a scope is stored in the namespace of that scope.
    if answer.rows.is_empty() && !by.namespace().is_empty() {
        answer = query(&format!("{}{id}", by.namespace())).await?;
    }
    // As in reducers.
    let missing = || {
        Refusal::new(Code::NotFound, format!("there is no run {id}"))
            .hint("SELECT id, session_id, status FROM runs  lists them")
    };
    let row = answer.rows.first().ok_or_else(missing)?;
    let cells = answer.columns.iter().zip(row.iter()).map(|(name, cell)| {
        let value = match (name.as_str(), cell) {
            // A JSON value, stored as text.
            ("output", Value::Text(text)) => serde_json::from_str(text).unwrap_or_default(),
            (_, cell) => cell.to_json(),
        };
        (name.clone(), value)
    });
    Ok((answer.seq, JsonValue::Object(cells.collect())))
}

/// Encodes an id as one path segment.
fn segment(id: &str) -> String {
    let escaped = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    id.bytes().map(escaped).collect()
}

pub(super) fn path(id: Result<Path<String>, PathRejection>, what: &str) -> Result<String, Refusal> {
    let refused = |_| Refusal::new(Code::NotFound, format!("the {what}'s name is not UTF-8"));
    id.map(|Path(id)| id).map_err(refused)
}
