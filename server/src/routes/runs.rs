//! Runs over REST: start, read, abort. Their events are in [`events`], [`invoke`] waits for a turn.
//!
//! Starting a run is a call of the reducer `start_run` (`reducers/src/run/start.rs`), which decides whether it may
//! start. A new session is created in the same batch. No runtime is involved here.

pub(super) mod events;
pub(super) mod invoke;
pub(super) mod pause;
pub(super) mod snapshots;

use abide_engine::Engine;
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Refusal, Seq};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

use super::response::{committed_value, counted_value};
use super::rows::{query_rows, row_of_result, stored_ids};
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::connections::parse_turns::{ParseTurn, begin};
use crate::problem::Problem;
use crate::single::idempotency_key;

/// A request for a run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StartRunBody {
    /// The user's message.
    input: RunInput,
    /// An existing session.
    session_id: Option<String>,
    /// An id for the run, chosen by the caller.
    id: Option<String>,
    /// Time limit of the run in milliseconds.
    deadline_ms: Option<i64>,
    /// Title of the session that is created for it.
    title: Option<String>,
    /// Scope of that session.
    scope: Option<Map<String, JsonValue>>,
    /// Metadata of that session.
    metadata: Option<JsonValue>,
    /// How long the request waits, see [`invoke`].
    wait_ms: Option<JsonValue>,
}

/// The input of a run. An agent gets JSON as JSON text.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "input must be a string, an object or a list")]
enum RunInput {
    Text(String),
    Object(Map<String, JsonValue>),
    List(Vec<JsonValue>),
}

impl RunInput {
    fn into_text(self) -> String {
        match self {
            RunInput::Text(text) => text,
            RunInput::Object(object) => JsonValue::Object(object).to_string(),
            RunInput::List(list) => JsonValue::Array(list).to_string(),
        }
    }
}

/// Starts a run of an agent, in a new session or an existing one. The response does not wait for the run: a runtime that watches for
/// runs without a driver drives it (`agent/src/run/dispatcher.rs`).
pub(super) async fn start(
    State(app): State<AppState>,
    by: CallerExtension,
    agent: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let agent = path(agent, "name of the agent")?;
    let key = idempotency_key(&headers)?;
    let request = RunRequest::read(&app, &by, &content).await?;
    if request.body.wait_ms.is_some() {
        let detail = "wait_ms belongs to POST /v1/agents/{name}/invoke";
        let hint = "remove wait_ms, or send the request to /v1/agents/{name}/invoke";
        return Err(Refusal::new(Code::BadRequest, detail).hint(hint).into());
    }
    let StartedRun { seq, run, duplicate } = request.start(&app, &by, &agent, key).await?;
    let location = run_location(&run);
    let reply = move || json!({"seq": seq, "run": run, "duplicate": duplicate});
    let mut response = committed_value(&app, &by, reply).await?;
    *response.status_mut() = StatusCode::CREATED;
    if let Some(location) = location {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// A request for a run that has been read. Nothing is written yet.
struct RunRequest {
    body: StartRunBody,
    /// Held until the calls are in the engine's queue.
    permit: Option<ParseTurn>,
}

/// A run that a request has started.
struct StartedRun {
    seq: Seq,
    run: JsonValue,
    duplicate: bool,
}

impl RunRequest {
    async fn read(app: &AppState, by: &Caller, content: &RequestBody) -> Result<Self, Refusal> {
        let permit = app.admit_call(by, content.bytes()).await?;
        let body = content.envelope(r#"{"input": "…", "session_id": "…"}, the last optional"#)?;
        Ok(RunRequest { body, permit })
    }

    /// Starts the run.
    async fn start(
        self,
        app: &AppState,
        by: &Caller,
        agent: &str,
        key: Option<&str>,
    ) -> Result<StartedRun, Refusal> {
        let is_named = self.body.id.is_some();
        let calls = build_start_calls(by, agent, self.body, key)?;
        let done = match (begin(self.permit, app.engine.batch(by, &calls, key)).await, &*calls) {
            // Perhaps a retry, whose session exists. Then `start_run` alone returns the run that has this id; it refuses
            // if that run is of another session or agent.
            (Err(refusal), [_, run]) if is_named && refusal.code == Code::Conflict => {
                app.engine.batch(by, std::slice::from_ref(run), key).await?
            }
            (done, _) => done.map_err(Refusal::outside_batch)?,
        };
        let Some(started) = done.results.last() else {
            return Err(Refusal::new(Code::Internal, "the batch has no result"));
        };
        let run = row_of_result(&started.result);
        Ok(StartedRun { seq: done.seq, run, duplicate: done.duplicate || started.duplicate })
    }
}

/// Returns the address of a run.
fn run_location(run: &JsonValue) -> Option<HeaderValue> {
    format!("/v1/runs/{}", encode_segment(run["id"].as_str().unwrap_or_default())).parse().ok()
}

/// Returns the calls of the batch that starts a run: `create_session`, unless the body names a session, and
/// `start_run`. `key` is the request id of the caller.
fn build_start_calls(
    by: &Caller,
    agent: &str,
    body: StartRunBody,
    key: Option<&str>,
) -> Result<Vec<BatchCall>, Refusal> {
    let StartRunBody { input, session_id, id, deadline_ms, title, scope, metadata, .. } = body;
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
            let session_id = new_session_id(by, agent, id.as_deref(), key);
            let new_session = json!({"id": session_id, "agent": agent, "title": title,
                "scope": scope, "metadata": metadata});
            calls.push(reducer_call("create_session", new_session));
            session_id
        }
    };
    let new_run = json!({"session_id": session_id, "agent": agent, "input": input.into_text(),
        "id": id, "deadline_ms": deadline_ms});
    calls.push(reducer_call("start_run", new_run));
    Ok(calls)
}

/// Returns a reducer call without its null arguments.
#[must_use]
pub fn reducer_call(reducer: &str, mut args: JsonValue) -> BatchCall {
    if let Some(args) = args.as_object_mut() {
        args.retain(|_, value| !value.is_null());
    }
    BatchCall { reducer: reducer.to_owned(), args }
}

/// Returns the id of a session that is created for a run. A retry must use the same one, so it is derived from
/// the run's id or the request id. Without either it is random.
fn new_session_id(by: &Caller, agent: &str, id: Option<&str>, key: Option<&str>) -> String {
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
    let id = path(id, "id of the run")?;
    let (seq, run) = find(&app.engine, &by, &id).await?;
    Ok(counted_value(&app, &by, move || json!({"seq": seq, "run": run})).await?)
}

/// Why a run is aborted.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AbortRunBody {
    reason: Option<String>,
}

/// Returns the reason in the body of an abort, which may be empty.
pub(super) async fn abort_reason(content: &RequestBody) -> Result<Option<String>, Refusal> {
    let _turn = content.turn().await;
    match content.value()? {
        JsonValue::Null => Ok(None),
        _ => content.envelope(r#"{"reason": "…"}, or nothing"#).map(|it: AbortRunBody| it.reason),
    }
}

/// Aborts a run.
pub(super) async fn abort(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let id = path(id, "id of the run")?;
    let reason = abort_reason(&content).await?;
    let key = idempotency_key(&headers)?;
    let BatchCall { reducer, args } =
        reducer_call("abort_run", json!({"id": id, "reason": reason}));
    let done = app.engine.call(&by, &reducer, &args, key).await?;
    let reply = move || {
        let run = row_of_result(&done.result);
        json!({"seq": done.seq, "run": run, "duplicate": done.duplicate})
    };
    Ok(committed_value(&app, &by, reply).await?)
}

/// Returns a run by its id, as an object of its columns.
///
/// # Errors
/// `not_found` if the caller sees no such run.
pub async fn find(engine: &Engine, by: &Caller, id: &str) -> Result<(Seq, JsonValue), Refusal> {
    let sql = "SELECT * FROM runs WHERE id = :id";
    for stored in stored_ids(by, id) {
        let of_run = [("id", json!(stored))];
        let (seq, found) = query_rows(engine, by, sql, of_run, None).await?;
        if let Some(run) = found.into_iter().next() {
            return Ok((seq, JsonValue::Object(run)));
        }
    }
    Err(Refusal::new(Code::NotFound, format!("there is no run {id}"))
        .hint_query("SELECT id, session_id, status FROM runs"))
}

/// Encodes an id as one path segment.
fn encode_segment(id: &str) -> String {
    id.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// Returns a parameter of the path. `what` is what the parameter names.
///
/// # Errors
/// `not_found` if it is not UTF-8.
pub fn path(id: Result<Path<String>, PathRejection>, what: &str) -> Result<String, Refusal> {
    id.map(|Path(id)| id).map_err(|_| {
        Refusal::new(Code::NotFound, format!("the {what} is not UTF-8"))
            .hint("percent-encode it as UTF-8")
    })
}
