//! Runs that pause, continue, and move, and sessions that are forked, over REST. Each route is one reducer call.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value as JsonValue;

use super::reducer_route::{ReducerRoute, arguments};
use super::runs::path;
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::problem::Problem;

/// Requests that a run pauses.
pub(super) async fn pause(
    State(app): State<AppState>,
    by: CallerExtension,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let shape = r#"{"stage": "after_agent", "reason": "…"}, or nothing"#;
    let args = arguments(&content, shape, "id", &path(id, "run")?).await?;
    let route = ReducerRoute { reducer: "pause_run", result: "pause", status: StatusCode::OK };
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
    let args = arguments(&content, "nothing", "id", &path(id, "run")?).await?;
    let route = ReducerRoute { reducer: "resume_run", result: "run", status: StatusCode::OK };
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
    let args =
        arguments(&content, r#"{"copy": true}, or nothing"#, "id", &path(id, "run")?).await?;
    let route = ReducerRoute { reducer: "export_run", result: "snapshot", status: StatusCode::OK };
    route.answer(&app, &by, &headers, &content, args).await
}

/// Imports a snapshot.
pub(super) async fn import(
    State(app): State<AppState>,
    by: CallerExtension,
    headers: HeaderMap,
    content: RequestBody,
) -> Result<Response, Problem> {
    let args: JsonValue =
        content.envelope_in_turn(r#"{"snapshot": {…}, "id": "…"}, the last optional"#).await?;
    let route = ReducerRoute { reducer: "import_run", result: "run", status: StatusCode::CREATED };
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
    let args = arguments(&content, shape, "session_id", &path(id, "session")?).await?;
    let route =
        ReducerRoute { reducer: "fork_session", result: "fork", status: StatusCode::CREATED };
    route.answer(&app, &by, &headers, &content, args).await
}
