//! Runs that pause, continue, and move, and sessions that are forked, over REST. Each route is one reducer call.

use abide_schema::Seq;
use abide_schema::wire::BatchCall;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value as JsonValue, json};

use super::exchange::{idempotency_key, json as as_json};
use super::runs::{call, path};
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::connections::read_limiter::begin;
use crate::problem::Problem;

/// Requests that a run pauses.
pub(super) async fn pause(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let id = path(id, "run")?;
    let looks = r#"{"stage": "after_agent", "reason": "…"}, or nothing"#;
    let args = arguments(&content, looks, "id", &id)?;
    let (seq, pause, duplicate) = made(&app, &by, &headers, &content, "pause_run", args).await?;
    let told = json!({"seq": seq, "pause": pause, "duplicate": duplicate});
    Ok(as_json(told.to_string()))
}

/// Resumes a paused run.
pub(super) async fn resume(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let id = path(id, "run")?;
    let args = arguments(&content, "nothing", "id", &id)?;
    let (seq, run, duplicate) = made(&app, &by, &headers, &content, "resume_run", args).await?;
    Ok(as_json(json!({"seq": seq, "run": run, "duplicate": duplicate}).to_string()))
}

/// Exports a run that waits.
pub(super) async fn export(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let id = path(id, "run")?;
    let args = arguments(&content, r#"{"copy": true}, or nothing"#, "id", &id)?;
    let made = made(&app, &by, &headers, &content, "export_run", args).await?;
    let (seq, snapshot, duplicate) = made;
    let told = json!({"seq": seq, "snapshot": snapshot, "duplicate": duplicate});
    Ok(as_json(told.to_string()))
}

/// Imports a snapshot.
pub(super) async fn import(
    State(app): State<AppState>,
    by: CallerExtension,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let args: JsonValue = content.envelope(r#"{"snapshot": {…}, "id": "…"}, the last optional"#)?;
    let (seq, run, duplicate) = made(&app, &by, &headers, &content, "import_run", args).await?;
    let told = json!({"seq": seq, "run": run, "duplicate": duplicate});
    Ok((StatusCode::CREATED, as_json(told.to_string())).into_response())
}

/// Forks a session.
pub(super) async fn fork(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let session_id = path(id, "session")?;
    let looks = r#"{"at": 42, "id": "…"}, or nothing"#;
    let args = arguments(&content, looks, "session_id", &session_id)?;
    let (seq, fork, duplicate) = made(&app, &by, &headers, &content, "fork_session", args).await?;
    let told = json!({"seq": seq, "fork": fork, "duplicate": duplicate});
    Ok((StatusCode::CREATED, as_json(told.to_string())).into_response())
}

/// The arguments of a body, and the id of the path. The reducer refuses those that it does not have.
fn arguments(
    content: &RequestBody,
    looks: &str,
    name: &str,
    id: &str,
) -> Result<JsonValue, Problem> {
    let mut args = match content.value()? {
        JsonValue::Null => Map::new(),
        _ => content.envelope(looks)?,
    };
    args.insert(name.to_owned(), json!(id));
    Ok(JsonValue::Object(args))
}

async fn made(
    app: &AppState,
    by: &CallerExtension,
    headers: &HeaderMap,
    content: &RequestBody,
    reducer: &str,
    args: JsonValue,
) -> Result<(Seq, JsonValue, bool), Problem> {
    let permit = app.read_limiter.permit(by.quota_key(), content.bytes()).await;
    app.engine.check_room(by, content.bytes())?;
    let key = idempotency_key(headers)?;
    let BatchCall { reducer, args } = call(reducer, args);
    let done = begin(permit, app.engine.call(by, &reducer, &args, key)).await?;
    let result = serde_json::from_str(&done.result).unwrap_or_default();
    Ok((done.seq, result, done.duplicate))
}
