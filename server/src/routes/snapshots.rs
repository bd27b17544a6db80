//! Runs that pause, continue, and move, and sessions that are forked, over REST. Each route is one reducer call.

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

/// A reducer as a route.
struct Route {
    reducer: &'static str,
    /// The member of the answer that has the result.
    result: &'static str,
    status: StatusCode,
}

/// Requests that a run pauses.
pub(super) async fn pause(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let shape = r#"{"stage": "after_agent", "reason": "…"}, or nothing"#;
    let args = arguments(&content, shape, "id", &path(id, "run")?)?;
    let route = Route { reducer: "pause_run", result: "pause", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}

/// Resumes a paused run.
pub(super) async fn resume(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let args = arguments(&content, "nothing", "id", &path(id, "run")?)?;
    let route = Route { reducer: "resume_run", result: "run", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}

/// Exports a run that waits.
pub(super) async fn export(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let args = arguments(&content, r#"{"copy": true}, or nothing"#, "id", &path(id, "run")?)?;
    let route = Route { reducer: "export_run", result: "snapshot", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}

/// Imports a snapshot.
pub(super) async fn import(
    State(app): State<AppState>,
    by: CallerExtension,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let args: JsonValue = content.envelope(r#"{"snapshot": {…}, "id": "…"}, the last optional"#)?;
    let route = Route { reducer: "import_run", result: "run", status: StatusCode::CREATED };
    route.answer(&app, &by, &headers, &content, args).await
}

/// Forks a session.
pub(super) async fn fork(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let shape = r#"{"at": 42, "id": "…"}, or nothing"#;
    let args = arguments(&content, shape, "session_id", &path(id, "session")?)?;
    let route = Route { reducer: "fork_session", result: "fork", status: StatusCode::CREATED };
    route.answer(&app, &by, &headers, &content, args).await
}

/// The arguments of a body, and the id of the path. The reducer refuses those that it does not have.
fn arguments(
    content: &RequestBody,
    shape: &str,
    name: &str,
    id: &str,
) -> Result<JsonValue, Problem> {
    let mut args = match content.value()? {
        JsonValue::Null => Map::new(),
        _ => content.envelope(shape)?,
    };
    args.insert(name.to_owned(), json!(id));
    Ok(JsonValue::Object(args))
}

impl Route {
    async fn answer(
        &self,
        app: &AppState,
        by: &CallerExtension,
        headers: &HeaderMap,
        content: &RequestBody,
        args: JsonValue,
    ) -> Result<Response, Problem> {
        let permit = app.read_limiter.permit(by.quota_key(), content.bytes()).await;
        app.engine.check_room(by, content.bytes())?;
        let key = idempotency_key(headers)?;
        let BatchCall { reducer, args } = call(self.reducer, args);
        let done = begin(permit, app.engine.call(by, &reducer, &args, key)).await?;
        let result: JsonValue = serde_json::from_str(&done.result).unwrap_or_default();
        let body =
            json!({"seq": done.seq, "duplicate": done.duplicate, self.result: result}).to_string();
        Ok((self.status, as_json(body)).into_response())
    }
}
